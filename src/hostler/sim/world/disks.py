"""Disks of simulated machines, with notifications for each deleted disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.drivers.machines.simulated import MemoryHost

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostler.drivers.machines.simulated.host import Kept, Row


class Disks:
    """Notifies listeners of each deleted disk of a world."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[str, Row, Kept | None], None]] = []

    def listen(self, deleted: Callable[[str, Row, Kept | None], None]) -> None:
        """Call `deleted` for each deleted disk.

        Its arguments are the node, the machine's row before the deletion, and how it was retained; None: it was in
        service.
        """
        self._listeners.append(deleted)

    def deleted(self, node: str, row: Row, kept: Kept | None = None) -> None:
        """Notify the listeners that the disk of this row was deleted."""
        for listener in self._listeners:
            listener(node, row, kept)


class DiskHost(MemoryHost):
    """The machines of one blade."""

    def __init__(self, id: str, node: str, disks: Disks) -> None:  # noqa: A002 - the signature of MemoryPlace
        super().__init__(id)
        self._node, self._disks = node, disks

    def put(self, rows: Sequence[Row]) -> None:
        before = [self.contents.rows.get(row.vm) for row in rows]
        super().put(rows)
        for old, row in zip(before, rows):
            if old is not None and old.disk_id and old.disk_id != row.disk_id:
                self._disks.deleted(self._node, old)

    def delete(self, vm: str, now: float) -> None:
        row = self.contents.rows.get(vm)
        super().delete(vm, now)
        if row is not None and row.disk_id:
            self._disks.deleted(self._node, row)

    def reinstate(self, name: str, row: Row) -> None:
        old = self.contents.rows.get(row.vm)
        super().reinstate(name, row)
        if old is not None and old.disk_id and old.disk_id != row.disk_id:
            self._disks.deleted(self._node, old)

    def discard(self, name: str) -> None:
        kept = self.contents.kept.get(name)
        super().discard(name)
        if kept is not None:
            self._disks.deleted(self._node, kept.row, kept)

"""Whether data is kept, checked when a disk is deleted and when a machine runs again.

A disk that its guest wrote to has data. Two things may delete it: the command that follows when its owner deletes the
VM, and a request to delete a retained machine. Such a request comes from an administrator, or from the end of its
retention while its VM is gone or has a newer disk. The disk of a migrated machine is deleted when the other node has
all of it.

A VM that runs again has its previous disk with everything that was written to it, or its handle says since when it has
another disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from hostler.engine.controllers.janitor import WHO
from hostler.keys.families import COMMAND, HANDLE, RETAINED_REQUEST, VM
from hostler.model.vm import MachineState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hostler.drivers.machines.simulated.host import Kept, Row
    from hostler.ports.store import Event
    from hostler.sim.world import World

_VMS, _HANDLES, _COMMANDS, _REQUESTS = (key.prefix() for key in (VM, HANDLE, COMMAND, RETAINED_REQUEST))


class _Vm(msgspec.Struct):
    deleting: bool = False


class _Command(msgspec.Struct):
    deleting: bool = False
    retain: bool = False


class _Request(msgspec.Struct):
    by: str = ""
    at: float = 0.0


class _Handle(msgspec.Struct):
    node: str = ""
    state: str = ""
    reinstated: str = ""
    disk_since: float = 0.0


class _Last(NamedTuple):
    """The disk with which a VM was last reported running."""

    disk: str
    writes: int
    reinstated: str
    disk_since: float


class DiskWatch:
    """Tracks which VMs exist, which disks may be deleted, and which disk each VM runs with.

    `deleted` is called for a disk that was deleted without a request, `lost` for a VM that runs without its data and
    does not say so; None: not checked.
    """

    def __init__(
        self,
        world: World,
        deleted: Callable[[str, str, float | None], None] | None,
        lost: Callable[[str, str, float | None], None] | None,
    ) -> None:
        self._world, self._tell_deleted, self._tell_lost = world, deleted, lost
        self.looks = {"disks_kept": 0, "data_kept": 0}
        self._vms: dict[str, _Vm] = {}
        self._ordered: set[tuple[str, str]] = set()
        """Node and VM: a command says to delete the machine with its disk."""
        self._requests: dict[tuple[str, str], _Request] = {}
        """By node and name of the retained machine."""
        self._suspects: list[tuple[float, str, Row, Kept | None]] = []
        """Deleted disks and when; checked after all events of that instant."""
        self._last: dict[str, _Last] = {}
        if deleted is not None:
            world.disks.listen(self._note_deletion)

    def heard(self, event: Event) -> None:
        """Handle a change in the store."""
        if self._suspects and self._world.clock.now() > self._suspects[0][0]:
            self.judge()
        key, gone = event.kv.key, event.type == "delete"
        if key.startswith(_HANDLES):
            if not gone and self._tell_lost is not None:
                self._handle(key.rpartition("/")[2], msgspec.json.decode(event.kv.value, type=_Handle))
        elif key.startswith(_COMMANDS):
            if (parts := COMMAND.match(key)) and not gone:
                command = msgspec.json.decode(event.kv.value, type=_Command)
                ordered = command.deleting and not command.retain
                (self._ordered.add if ordered else self._ordered.discard)((parts["node"], parts["vm"]))
        elif key.startswith(_VMS):
            if parts := VM.match(key):
                if gone:
                    self._vms.pop(parts["vm"], None)
                else:
                    self._vms[parts["vm"]] = msgspec.json.decode(event.kv.value, type=_Vm)
        elif key.startswith(_REQUESTS) and not gone and (parts := RETAINED_REQUEST.match(key)):
            self._requests[parts["node"], parts["name"]] = msgspec.json.decode(event.kv.value, type=_Request)

    # Deleted disks

    def _note_deletion(self, node: str, row: Row, kept: Kept | None) -> None:
        if not row.writes:
            return
        self.looks["disks_kept"] += 1
        if not self._is_elsewhere(row):
            self._suspects.append((self._world.clock.now(), node, row, kept))

    def judge(self) -> None:
        """Check the deleted disks."""
        suspects, self._suspects = self._suspects, []
        for at, node, row, kept in suspects:
            why = self._against(node, row) if kept is None else self._against_discarding(node, kept)
            if why and self._tell_deleted is not None:
                writes = f"which was written {row.writes} times"
                text = f"its disk {row.disk_id} on node {node}, {writes}, was deleted: {why}"
                self._tell_deleted(f"vm {row.vm}", text, at)

    def _against(self, node: str, row: Row) -> str:
        """Return why the disk of a machine in service must not be deleted; empty: it may be."""
        vm = self._vms.get(row.vm)
        if vm is not None and not vm.deleting:
            return "its VM exists"
        return "" if (node, row.vm) in self._ordered else "no command to delete it"

    def _against_discarding(self, node: str, kept: Kept) -> str:
        """Return why the disk of a retained machine must not be deleted; empty: it may be."""
        request = self._requests.get((node, kept.name))
        if request is None:
            return "it was retained, and its deletion was not requested"
        if request.by != WHO:
            return ""
        if request.at < kept.at + self._world.plan.retention:
            return f"it was retained for {request.at - kept.at:.0f} s of {self._world.plan.retention:.0f}"
        vm = self._vms.get(kept.row.vm)
        newer = any(row.vm == kept.row.vm and row.disk_id for row in self._rows())
        return "it was retained, and its VM has no newer disk" if vm and not vm.deleting and not newer else ""

    def _is_elsewhere(self, row: Row) -> bool:
        """Return whether another copy of the disk has everything that was written to this one."""
        return any(
            other.disk_id == row.disk_id and other.writes >= row.writes and _is_whole(other) for other in self._rows()
        )

    def _rows(self) -> Iterator[Row]:
        for host in self._world.blades.values():
            for place in (*host.earlier, host.place):
                yield from place.contents.rows.values()
                yield from (kept.row for kept in place.contents.kept.values())

    # VMs that run again

    def _handle(self, vm: str, handle: _Handle) -> None:
        if handle.state != MachineState.RUNNING or (host := self._world.blades.get(handle.node)) is None:
            return
        row = host.place.contents.rows.get(vm)
        if row is None or row.on is None:
            return  # an outdated report
        last = self._last.get(vm)
        self._last[vm] = _Last(row.disk_id, row.writes, handle.reinstated, handle.disk_since)
        if last is None or self._tell_lost is None:
            return
        self.looks["data_kept"] += 1
        if row.disk_id == last.disk:
            if row.writes < last.writes:
                text = f"its disk {row.disk_id} has {row.writes} writes, but had {last.writes}"
                self._tell_lost(f"vm {vm}", f"it runs on node {handle.node}, and {text}", None)
        elif handle.disk_since <= last.disk_since and handle.reinstated == last.reinstated:
            text = f"it runs on node {handle.node} with disk {row.disk_id} instead of {last.disk}, but does not say so"
            self._tell_lost(f"vm {vm}", text, None)


def _is_whole(row: Row) -> bool:
    return row.state is not MachineState.ARRIVING or row.whole

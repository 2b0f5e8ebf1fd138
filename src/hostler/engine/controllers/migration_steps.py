"""Start of migrations: whether the target has capacity, and the reservation during the migration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.engine.controllers import migration
from hostler.engine.controllers.transactions import departed
from hostler.engine.placement import objections, wanted_of

if TYPE_CHECKING:
    from hostler.engine.controllers.allocations import Allocations
    from hostler.engine.controllers.snapshot import VmSnapshot
    from hostler.engine.runtime.guarded_writer import Txn
    from hostler.engine.view import View
    from hostler.keys.entry import Entry
    from hostler.model.node import NodeRecord
    from hostler.model.vm import VirtualMachine


class Moves:
    """Possible targets of machines, as known to the leader."""

    def __init__(self, view: View, books: Allocations) -> None:
        self._view, self._books = view, books

    def against(self, seen: VmSnapshot, vm: VirtualMachine, to: str) -> str:
        """Return why the machine cannot move there; empty: it can."""
        target = self._view.members.get(node=to)
        source = None if seen.member is None else seen.member.value
        why = migration.unfit(vm, source, to, None if target is None else target.value)
        if why is None and to in seen.foreign:
            why = f"move to {to}: that node has another machine of the same id"
        if why is not None:
            return why
        with self._books.alone(vm.id) as cluster:
            found = objections(wanted_of(vm), cluster, to)
        return f"move to {to}: {'; '.join(found)}" if found else ""

    def begun(self, seen: VmSnapshot, to: str, fence: int, *, wish: int = 0, stop: bool = False) -> Txn | None:
        """Return the transaction that starts the migration. None: there is no such node, or no such machine."""
        target = self._view.members.get(node=to)
        return None if target is None else departed(seen, target, wish=wish, stop=stop, fence=fence)

    def takers(self, node: str, record: NodeRecord) -> frozenset[str]:
        """Return nodes that a machine of this node cannot be migrated to."""
        return frozenset(
            entry.parts["node"]
            for entry in self._view.members.entries.values()
            if not _hands(record, entry) or entry.parts["node"] == node
        )


def _hands(record: NodeRecord, other: Entry[NodeRecord]) -> bool:
    return record.moves and other.value.moves and other.value.driver == record.driver

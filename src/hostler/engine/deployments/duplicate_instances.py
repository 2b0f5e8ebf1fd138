"""Resolves duplicates: if two instances of an artifact have the same number, one of them is removed.

Duplicates come from records that other programs wrote, or that were unreadable for some time. Both instances publish
the same endpoints, and the removed one deletes them. Therefore the endpoints of the remaining instance are checked
after the removal. If they are gone, that instance is removed, too, and replaced by a new one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.engine.deployments import transactions
from hostler.engine.deployments.decide import told
from hostler.engine.deployments.instance_index import InstanceState, kind_of
from hostler.engine.deployments.state_machine import since
from hostler.engine.runtime.guarded_writer import Why
from hostler.errors import Damaged
from hostler.keys.families import DEPLOYMENT, ENDPOINT
from hostler.kit.plural import counted
from hostler.model.deployment import SliceState, base_of
from hostler.model.reason import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hostler.engine.deployments.decide import SliceSnapshot, Spot
    from hostler.engine.runtime.guarded_writer import GuardedWriter
    from hostler.keys.entry import Entry
    from hostler.kit.clock import Clock
    from hostler.model.deployment import SliceInstance, SliceRecord
    from hostler.ports.store import Store

AT_ONCE = 20
"""Numbers that are resolved in one transaction."""
_OUT = {
    InstanceState.LOAD: SliceState.UNLOAD,
    InstanceState.LOADED: SliceState.UNLOAD,
    InstanceState.ACTIVE: SliceState.DEACTIVATE,
    InstanceState.DOWN: SliceState.DEACTIVATE,
}
"""The command for a surplus instance. Instances on the way to one of these states are waited for."""

Holder = tuple[str, "Entry[SliceRecord]", "SliceInstance"]


class Doubles:
    """Resolution of duplicates, for one leadership."""

    def __init__(self, store: Store, writing: GuardedWriter, *, clock: Clock, tell: Callable[[str], None]) -> None:
        self._store, self._writing, self._clock, self._tell = store, writing, clock, tell
        self._doubtful: dict[tuple[str, int], None] = {}  # artifact and number that two instances had

    async def look(self, base: str, look: SliceSnapshot) -> bool:
        """Resolve duplicates of a slice; return whether any instance was commanded to leave."""
        for artifact, numbers in look.roster.numbers.items():
            for number in numbers.doubled:
                self._doubtful[artifact, number] = None
            if numbers.doubled and await self._clear(base, look, artifact, numbers.doubled):
                return True
        return bool(self._doubtful) and await self._look_after(base, look)

    async def _clear(self, base: str, look: SliceSnapshot, artifact: str, doubled: Iterable[int]) -> bool:
        goes: list[tuple[int, Holder]] = []
        for number, holders in _holders(look, artifact, doubled).items():
            stay = [holder for holder in holders if kind_of(holder[2]) <= InstanceState.DOWN]
            if len(stay) < 2 or len(goes) >= AT_ONCE:
                continue
            stands = await self._stands(artifact, number, stay)
            kept = min(stay, key=lambda one: (one[0] != stands, since(one[1].value, one[2]), one[0]))
            goes += ((number, one) for one in stay if one is not kept)
        return await self._retire(base, artifact, goes, "another instance has the same number")

    async def _look_after(self, base: str, look: SliceSnapshot) -> bool:
        """Check the remaining instances: the removed duplicate may have deleted their endpoints."""
        for artifact, number in [one for one in self._doubtful if base_of(one[0]) == base]:
            numbers = look.roster.numbers.get(artifact)
            if numbers is not None and number in numbers.doubled:
                continue
            del self._doubtful[artifact, number]
            for holder in _holders(look, artifact, (number,))[number]:
                if (
                    kind_of(holder[2]) == InstanceState.ACTIVE
                    and await self._stands(artifact, number, [holder]) != holder[0]
                ):
                    why = "its endpoints were deleted together with a duplicate of the same number"
                    return await self._retire(base, artifact, [(number, holder)], why)
        return False

    async def _stands(self, artifact: str, number: int, holders: Iterable[Holder]) -> str:
        """Return the node that all endpoints of this number belong to; empty: none."""
        methods = dict.fromkeys(method for _, entry, _ in holders for method in entry.value.methods)
        nodes: dict[str, None] = {}
        for method in methods:
            try:
                end = await ENDPOINT.get(self._store, artifact=artifact, method=method, instance=number)
            except Damaged:
                end = None
            nodes["" if end is None else end.value.node_id] = None
        if not methods:  # no method can be called
            return next((node for node, _, _ in holders), "")
        return next(iter(nodes)) if len(nodes) == 1 else ""

    async def _retire(self, base: str, artifact: str, goes: list[tuple[int, Holder]], why: str) -> bool:
        changes: dict[Spot, dict[int, SliceInstance]] = {}
        entries: dict[Spot, Entry[SliceRecord]] = {}
        for number, (node, entry, one) in goes:
            state = _OUT.get(InstanceState(kind_of(one)))
            if state is not None:
                changes.setdefault((node, artifact), {})[number] = told(one, state)
                entries[node, artifact] = entry
        if not changes:
            return False
        at = self._clock.wall()
        written = [
            transactions.changed(spot, entries[spot], moves, at=at, settings={}) for spot, moves in changes.items()
        ]
        reasons = tuple(
            Reason(subject=node, why=f"instance {', '.join(map(str, of))}") for (node, _), of in changes.items()
        )
        said = f"{artifact}: removing {counted(len(goes), 'instance', 'instances')}: {why}"
        told_of = Why(what="doubled", why=said, reasons=reasons[:8], read=tuple(entries.values())[:8])
        await self._writing.write(base, DEPLOYMENT.fill(base=base), transactions.together([], written), told_of)
        self._tell(f"slice {said}")
        return True


def _holders(look: SliceSnapshot, artifact: str, numbers: Iterable[int]) -> dict[int, list[Holder]]:
    found: dict[int, list[Holder]] = {number: [] for number in numbers}
    nodes = dict.fromkeys(
        node
        for party in look.roster.parties.values()
        if party.side.artifact == artifact
        for kind in party.nodes
        for node in kind
    )
    for node in nodes:
        entry = look.entry(node, artifact)
        instances = {} if entry is None else entry.value.each()
        for number, holders in found.items():
            if entry is not None and number in instances:
                holders.append((node, entry, instances[number]))
    return found

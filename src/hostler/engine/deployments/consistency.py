"""Repairs what must not be: duplicate instances, and endpoints without an instance.

Duplicates have the same artifact and number. They come from records that other programs wrote, or that were unreadable
for some time. Both instances publish the same endpoints, and the removed one deletes them. Therefore the endpoints of
the remaining instance are checked after the removal. If they are gone, that instance is removed, too, and replaced by a
new one.

An endpoint is an orphan if a slice's key was removed by hand, and its node did not notice. One page of endpoints is
checked at a time, so that the cost does not depend on the size of the cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.engine.deployments import transactions
from hostler.engine.deployments.decide import commanded_instance
from hostler.engine.deployments.instance_index import InstanceState, kind_of
from hostler.engine.deployments.state_machine import since
from hostler.engine.deployments.transactions import WRITES
from hostler.engine.runtime.guarded_writer import Txn, Why
from hostler.errors import Conflict, Damaged, Invalid, Unavailable, Uncertain
from hostler.keys.families import DEPLOYMENT, ENDPOINT, SLICE
from hostler.kit.plural import counted
from hostler.model.deployment import SliceState, base_of
from hostler.model.trace import Reason
from hostler.ports.store import Delete, Version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hostler.engine.deployments.decide import SliceSnapshot, Spot
    from hostler.engine.runtime.guarded_writer import GuardedWriter
    from hostler.engine.view import View
    from hostler.keys.entry import Entry
    from hostler.kit.clock import Clock
    from hostler.model.deployment import Endpoint, SliceInstance, SliceRecord
    from hostler.ports.store import Comparison, KeyValue, Store


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
                changes.setdefault((node, artifact), {})[number] = commanded_instance(one, state)
                entries[node, artifact] = entry
        if not changes:
            return False
        at = self._clock.wall()
        written = [
            transactions.slice_change(spot, entries[spot], moves, at=at, settings={}) for spot, moves in changes.items()
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


EVERY = 60.0
PAGE = 1000
MOST = WRITES // 2
"""Endpoints deleted in one transaction: each is compared, and so is the slice record that does not contain it."""
_NAME = "strays"


class OrphanEndpoints:
    """Search for orphan endpoints, for one leadership."""

    def __init__(self, store: Store, view: View, writing: GuardedWriter, *, clock: Clock) -> None:
        self._store, self._view, self._writing, self._clock = store, view, writing, clock
        self._next_at = clock.now() + EVERY
        self._after: str | None = None

    async def look(self) -> None:
        """Check the next page if it is due. What fails is retried when the page is due again."""
        if self._clock.now() < self._next_at:
            return
        self._next_at = self._clock.now() + EVERY
        if not await self._writing.caught_up(_NAME):
            return
        try:
            page = await self._store.range(ENDPOINT.prefix(), after=self._after, limit=PAGE)
            self._after = page.items[-1].key if page.more else None
            found = list(self._strays(page.items))
            for first in range(0, len(found), MOST):
                await self._drop(found[first : first + MOST])
        except (Conflict, Unavailable, Uncertain):
            self._writing.count("strays_left")

    def _strays(self, kvs: Iterable[KeyValue]) -> Iterable[Entry[Endpoint]]:
        slices = self._view.slices
        for kv in kvs:
            try:
                entry = ENDPOINT.entry(kv)
            except (Damaged, Invalid):
                continue
            parts = {"node": entry.value.node_id, "artifact": entry.parts["artifact"]}
            if SLICE.fill(**parts) in slices.unreadable:
                continue
            record = slices.get(**parts)
            if record is None or int(entry.parts["instance"]) not in record.value.each():
                yield entry

    async def _drop(self, strays: list[Entry[Endpoint]]) -> None:
        """Delete endpoints if the slices are as this leader knows them: an instance may have been added just now."""
        when: dict[str, Comparison] = {}
        for one in strays:
            key = SLICE.fill(node=one.value.node_id, artifact=one.parts["artifact"])
            record = self._view.slices.entries.get(key)
            when[key] = Version(key) == 0 if record is None else SLICE.unchanged(record)
        txn = Txn([*when.values(), *map(ENDPOINT.unchanged, strays)], [Delete(one.key) for one in strays])
        why = Why(
            what="strays",
            why=counted(
                len(strays),
                "endpoint belongs to no instance of a slice, and is",
                "endpoints belong to no instance of a slice, and are",
            )
            + " dropped",
            read=tuple(strays[:8]),
        )
        await self._writing.write(_NAME, strays[0].key, txn, why)

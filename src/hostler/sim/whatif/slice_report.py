"""Effects on slices in a copy: where their instances were and are, and the lowest number that served in between."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from hostler.errors import Damaged
from hostler.keys.families import BLUEPRINT, DEPLOYMENT, SLICE, SLICE_DECISION
from hostler.model.deployment import LEAVING, SliceState, base_of

if TYPE_CHECKING:
    from hostler.model.deployment import SliceRecord
    from hostler.ports.store import Event
    from hostler.sim.world import World


class SliceMove(msgspec.Struct, frozen=True, kw_only=True):
    """One instance that would leave its node. Its number may change: numbers are reused."""

    artifact: str
    before: str
    """Its node."""
    after: str = ""
    """The node of the instance of the same artifact that replaces it; empty: none."""
    why: str = ""


class SliceFate(msgspec.Struct, frozen=True, kw_only=True):
    """The effect on one slice."""

    slice: str
    """`group:name`."""
    instances: int
    """The requested number of instances."""
    ready: int
    """The number that serve before."""
    least: int
    """The lowest number that serve at any time."""
    after: int
    """The number that serve in the end."""
    moves: tuple[SliceMove, ...] = ()


class SliceMoves:
    """Watches one copy. Call `begin` before anything happens, and `fates` when it is over."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._records: dict[tuple[str, str], SliceRecord] = {}
        self._ready: Counter[str] = Counter()
        self._before: dict[tuple[str, str], SliceRecord] = {}
        self._least: dict[str, int] = {}
        self._at_first: dict[str, int] = {}
        self._end = world.chronicle.listen(self._heard)

    def begin(self) -> None:
        """Start counting."""
        self._before = dict(self._records)
        self._at_first = dict(self._ready)
        self._least = dict(self._ready)

    async def fates(self) -> tuple[SliceFate, ...]:
        """Return the slices of which an instance moved, or of which fewer served for some time."""
        self._end()
        old, new = _places(self._before), _places(self._records)
        requested = await self._requested_instances()
        found = []
        for base in dict.fromkeys((*requested, *(base_of(artifact) for artifact in (*old, *new)))):
            artifacts = [name for name in dict.fromkeys((*old, *new)) if base_of(name) == base]
            moves = [
                move
                for artifact in artifacts
                for move in await self._moves(artifact, old.get(artifact, Counter()), new.get(artifact, Counter()))
            ]
            ready, after = self._at_first.get(base, 0), self._ready.get(base, 0)
            least = min(self._least.get(base, ready), after)
            if moves or least < ready:
                found.append(
                    SliceFate(
                        slice=base,
                        instances=requested.get(base, 0),
                        ready=ready,
                        least=least,
                        after=after,
                        moves=tuple(moves),
                    )
                )
        return tuple(found)

    def _heard(self, event: Event) -> None:
        parts = SLICE.match(event.kv.key)
        if parts is None:
            return
        key, base = (parts["node"], parts["artifact"]), base_of(parts["artifact"])
        old = self._records.pop(key, None)
        if event.type == "put":
            with suppress(Damaged):
                self._records[key] = SLICE.entry(event.kv).value
        self._ready[base] += _serving(self._records.get(key)) - _serving(old)
        if base in self._least:
            self._least[base] = min(self._least[base], self._ready[base])

    async def _requested_instances(self) -> dict[str, int]:
        store = self._world.store
        scaled = {
            DEPLOYMENT.parse(entry.key)["base"]: entry.value.scale
            for entry in (await DEPLOYMENT.list(store, strict=False)).entries
        }
        return {
            spec.base: scaled.get(spec.base) or spec.instances
            for entry in (await BLUEPRINT.list(store, strict=False)).entries
            for spec in entry.value.slices
        }

    async def _moves(self, artifact: str, old: Counter[str], new: Counter[str]) -> list[SliceMove]:
        left, come = sorted((old - new).elements()), sorted((new - old).elements())
        why = "" if len(left) <= len(come) else await self._why(artifact)
        return [
            SliceMove(artifact=artifact, before=node, after=come[at])
            if at < len(come)
            else SliceMove(artifact=artifact, before=node, why=why)
            for at, node in enumerate(left)
        ]

    async def _why(self, artifact: str) -> str:
        """Return why there is no node for the artifact, if the leader recorded it."""
        decision = await SLICE_DECISION.get(self._world.store, artifact=artifact)
        if decision is None or not decision.value.waiting:
            return ""
        return "; ".join(f"{reason.subject}: {reason.why}" for reason in decision.value.passed_over[:3])


def _serving(record: SliceRecord | None) -> int:
    if record is None:
        return 0
    return sum(one.state is SliceState.ACTIVE and one.ready for one in record.each().values())


def _places(records: dict[tuple[str, str], SliceRecord]) -> dict[str, Counter[str]]:
    """Return the number of instances on each node, by artifact."""
    found: dict[str, Counter[str]] = {}
    for (node, artifact), record in records.items():
        staying = sum(one.state not in LEAVING for one in record.each().values())
        if staying:
            found.setdefault(artifact, Counter())[node] += staying
    return found

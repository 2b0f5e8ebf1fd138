"""Whether no machine is placed on hardware that the inventory has taken out of service, checked with each placement."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hostler.keys.families import BLADE, RACK, REGION, ZONE
from hostler.model.inventory import Condition
from hostler.model.node import split_node_id
from hostler.sim.invariants.endpoints import is_hindered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hostler.ports.store import Event
    from hostler.sim.world import World

PREFIXES = (BLADE.prefix(), RACK.prefix(), ZONE.prefix(), REGION.prefix())
GRACE = 25.0
"""Seconds in which a leader may not have noticed: its earlier writes may be in flight for as long."""


class _Hardware(msgspec.Struct):
    enabled: bool = True
    condition: str = Condition.OPERATIONAL.value
    region: str = ""
    zone: str = ""


class Duty:
    """Tracks blades, racks, zones and regions out of service, and since when. Pdus and tors are not checked."""

    def __init__(self, world: World, violated: Callable[[str, str, float | None], None]) -> None:
        self._world, self._violated = world, violated
        self._off: dict[str, tuple[float, str]] = {}
        """By key: since when, and why."""
        self._racks: dict[str, _Hardware] = {}

    def heard(self, key: str, event: Event) -> None:
        """Handle a changed record of the inventory."""
        if event.type == "delete":
            self._off.pop(key, None)
            self._racks.pop(key, None)
            return
        try:
            record = msgspec.json.decode(event.kv.value, type=_Hardware)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return
        if key.startswith(RACK.prefix()):
            self._racks[key] = record
        why = record.condition if record.enabled else "not enabled"
        if why == Condition.OPERATIONAL:
            self._off.pop(key, None)
        else:
            self._off[key] = self._off.get(key, (self._world.clock.now(), ""))[0], why

    def placed(self, vm: str, node: str) -> int:
        """Check the placement of a new machine on a node. Return how many checks were made."""
        if not self._off or is_hindered(self._world):
            return 0
        now = self._world.clock.now()
        for key in self._above(node):
            since, why = self._off.get(key, (now, ""))
            if now - since > GRACE:
                what = f"placed on {node}, though {key} is {why} since {since:g} s"
                self._violated(f"vm {vm}", what, None)
        return 1

    def _above(self, node: str) -> Iterator[str]:
        """Return the keys of a node's blade and of everything above it."""
        rack, blade = split_node_id(node)
        yield BLADE.fill(rack=rack, blade=blade)
        key = RACK.fill(rack=rack)
        yield key
        record = self._racks.get(key)
        if record is not None and record.region:
            yield REGION.fill(region=record.region)
            if record.zone:
                yield ZONE.fill(region=record.region, zone=record.zone)

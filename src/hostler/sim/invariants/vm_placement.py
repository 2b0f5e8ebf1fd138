"""Whether machines are placed where they may be, checked with each placement.

Required rules are kept against the other machines of the project. No machine is placed on hardware that the inventory
has taken out of service.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from hostler.keys.families import BLADE, RACK, REGION, ZONE
from hostler.model.inventory import Condition
from hostler.model.name import fold
from hostler.model.node import split_node_id
from hostler.model.vm import Affinity, Level
from hostler.sim.invariants.labs import is_hindered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hostler.ports.store import Event
    from hostler.sim.world import World


class _VmRules(msgspec.Struct):
    affinity: tuple[Affinity, ...] = ()
    labels: dict[str, str] = {}
    node_labels: dict[str, str] = {}

    @property
    def required(self) -> list[Affinity]:
        return [rule for rule in self.affinity if rule.required]


_decoder = msgspec.json.Decoder(_VmRules)


class Rules:
    """Tracks rules and placements. Machines of projects without a rule cost nothing."""

    def __init__(self, world: World, violated: Callable[[str, str, float | None], None]) -> None:
        self._world, self._violated = world, violated
        self._specs: dict[str, _VmRules] = {}
        self._project: dict[str, str] = {}
        self._ruled: defaultdict[str, dict[str, None]] = defaultdict(dict)
        """By project, the machines with rules."""
        self._placed: defaultdict[str, dict[str, str]] = defaultdict(dict)
        """By project, the nodes of its machines."""
        self._nodes: dict[str, str] = {}

    def take_vm(self, vm: str, key: str, record: bytes) -> None:
        """Handle a new or changed VM record."""
        try:
            vm_rules = _decoder.decode(record)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return
        self.forget_vm(vm, self._project.get(vm, ""))
        project = key.rpartition("/")[0]
        self._specs[vm], self._project[vm] = vm_rules, project
        if vm_rules.required:
            self._ruled[project][vm] = None
        if vm in self._nodes:
            self._placed[project][vm] = self._nodes[vm]

    def forget_vm(self, vm: str, key: str) -> None:
        """Handle the deletion of the VM record under this key."""
        project = self._project.get(vm)
        if project is not None and key.startswith(project):
            del self._project[vm]
            self._specs.pop(vm, None)
            self._ruled[project].pop(vm, None)
            self._placed[project].pop(vm, None)

    def check_placement(self, vm: str, node: str) -> int:
        """Check the placement of a VM on a node. Return the number of rules checked."""
        self._nodes[vm] = node
        project = self._project.get(vm)
        if project is None:
            return 0
        placed, ruled = self._placed[project], self._ruled[project]
        placed[vm] = node
        looked = self._check_labels(vm, node)
        if not ruled:
            return looked
        for rule in self._specs[vm].required:
            looked += 1
            if (what := self._violation(rule, vm, node, placed)) is not None:
                self._violated(f"vm {vm}", f"placed on {node}: {what}", None)
        labels = self._specs[vm].labels
        for other in ruled:
            where = placed.get(other)
            if other == vm or where is None:
                continue
            for rule in self._specs[other].required:
                if not rule.together and rule.labels.items() <= labels.items():
                    looked += 1
                    if (shared := self._shared_domain(rule.level, node, where)) is not None:
                        what = f"{other} on {where} must not share a {rule.level} with it, but shares {shared}"
                        self._violated(f"vm {vm}", f"placed on {node}: {what}", None)
        return looked

    def _check_labels(self, vm: str, node: str) -> int:
        """Check whether the node has the required labels. Return the number of checks."""
        host, wanted = self._world.blades.get(node), self._specs[vm].node_labels
        if host is None or not wanted:
            return 0
        having = {**host.blade.labels, "node": node, "rack": host.blade.rack}
        for name, value in wanted.items():
            if fold(having.get(name, "")) != fold(value):
                what = f"it requires {name}={value}, but the node has {having.get(name) or 'no value'}"
                self._violated(f"vm {vm}", f"placed on {node}: {what}", None)
        return 1

    def note_removal(self, vm: str, node: str) -> None:
        """Handle the removal of a VM from a node. After a migration, another node already has it."""
        if self._nodes.get(vm) == node:
            del self._nodes[vm]
            self._placed[self._project.get(vm, "")].pop(vm, None)

    def _violation(self, rule: Affinity, vm: str, node: str, placed: dict[str, str]) -> str | None:
        others = [
            (other, where)
            for other, where in placed.items()
            if other != vm and rule.labels.items() <= self._specs[other].labels.items()
        ]
        if rule.together:
            if not others or any(self._shared_domain(rule.level, node, where) is not None for _, where in others):
                return None
            names = ", ".join(sorted(other for other, _ in others))
            return f"it shares no {rule.level} with any of {names}, against its rule"
        for other, where in others:
            if (shared := self._shared_domain(rule.level, node, where)) is not None:
                return f"it shares {shared} with {other} on {where}, against its rule"
        return None

    def _shared_domain(self, level: Level, one: str, other: str) -> str | None:
        mine = dict.fromkeys(self._domains(level, one))
        return next((domain for domain in self._domains(level, other) if domain in mine), None)

    def _domains(self, level: Level, node: str) -> Iterator[str]:
        yield f"node {node}"
        host = self._world.blades.get(node)
        if host is None or level is Level.NODE:
            return
        if level is Level.RACK:
            yield f"rack {host.blade.rack}"
        else:
            yield from host.blade.pdus if level is Level.PDU else host.blade.tors


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

    def check_placement(self, vm: str, node: str) -> int:
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

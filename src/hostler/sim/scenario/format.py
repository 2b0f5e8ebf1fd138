"""The file of a scenario. All errors in a file are reported, each with its line. The format: docs/simulation.md.

scenario = read_scenario(text, "pdu-loss.yaml", include=read_beside)
text = scenario_text(scenario)    # reading that gives the same scenario
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from hostler.engine.inventory.inventory_file import Inventory, inventory_of
from hostler.engine.workloads.workload_file import workload_of
from hostler.errors import HostlerError, Invalid
from hostler.kit.yaml import Doubts, Piece, read
from hostler.model.name import fold
from hostler.sim.fault import FAULTS
from hostler.sim.scenario import timeline as moments
from hostler.sim.scenario.resources import (
    base_of,
    blueprint_name,
    blueprint_of,
    catalogue_of,
    labs_of,
    name_in,
    seconds,
    vms_of,
)
from hostler.sim.scenario.scenario import GROUPS, INVARIANTS, LONGEST, SETTLE, Chance, Components, Moment, Scenario
from hostler.sim.world import WorldConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.model.deployment import Blueprint

FIELDS = (
    *("name", "about", "seed", "length", "settle", "inventory", "replicas", "settings", "workloads", "vms", "labs"),
    *("blueprints", "catalogue", "timeline", "chances", "invariants", "pending", "given_up"),
)
DURATIONS = (
    *("node_ttl", "fencing_time", "leadership_ttl", "lock_ttl", "latency", "make_time", "boot_time", "stop_grace"),
    *("power_grace", "brake_window", "fence_every", "restart", "retention", "burn_in"),
)
FLAGS = ("power", "hands_over")
MOST_REPLICAS = 9
UNFELT = ("store_slow", "answer_lost", "watch_lost")
"""Faults of the connection to the store, which do not affect light agents."""


def _nothing(path: str) -> str:
    raise Invalid(f"{path}: cannot include an inventory from another file here; write it into the scenario")


def read_scenario(
    text: str | bytes, file: str = "scenario", *, include: Callable[[str], str | bytes] = _nothing
) -> Scenario:
    """Parse a file. `include` reads another file that it names. Invalid: has a line for each error."""
    doubts = Doubts(file)
    top = read(text, doubts)
    scenario = None if top is None else _Reading(top, include).scenario()
    if doubts or scenario is None:
        raise Invalid("\n".join(doubts.lines()))
    return scenario


def scenario_text(scenario: Scenario) -> str:
    """Return the scenario as a file."""
    text: str = yaml.safe_dump(
        scenario.document, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None
    )
    return text


class _Reading:
    """Parser of one file."""

    def __init__(self, top: Piece, include: Callable[[str], str | bytes]) -> None:
        self._top, self._include = top, include
        self._fields = top.fields(*FIELDS)
        self._document: dict[str, Any] = top.plain() if isinstance(top.value, dict) else {}

    def scenario(self) -> Scenario:
        fields = self._fields
        inventory = self._inventory()
        replicas = fields["replicas"].whole(least=1, most=MOST_REPLICAS) if "replicas" in fields else 2
        length = seconds(fields["length"], least=1.0, most=LONGEST) if "length" in fields else 0.0
        if "length" not in fields:
            self._top.missing("length")
        timeline, components = self._timeline(inventory, replicas, length)
        settings = self._settings(replicas)
        if settings.get("agents") == "light":
            self._felt(components)
        return Scenario(
            name=name_in(self._top, fields, most=100),
            about=fields["about"].text(least=1, most=2000) if "about" in fields else self._top.missing("about"),
            seed=fields["seed"].whole() if "seed" in fields else 1,
            length=length,
            settle=seconds(fields["settle"], least=1.0, most=LONGEST) if "settle" in fields else SETTLE,
            inventory=inventory,
            replicas=replicas,
            settings=settings,
            workloads=tuple(workload_of(piece) for piece in self._items("workloads")),
            vms=tuple(vms_of(piece) for piece in self._items("vms")),
            labs=tuple(labs_of(piece) for piece in self._items("labs")),
            blueprints=self._blueprints(),
            catalogue=catalogue_of(fields["catalogue"]) if "catalogue" in fields else None,
            timeline=timeline,
            chances=tuple(
                chance for piece in self._items("chances") if (chance := _chance(piece, components)) is not None
            ),
            invariants=self._invariants(),
            pending=fields["pending"].whole() if "pending" in fields else 0,
            given_up=tuple(base_of(piece) for piece in self._items("given_up")),
            document=self._document,
        )

    def _items(self, name: str) -> list[Piece]:
        return self._fields[name].items() if name in self._fields else []

    def _blueprints(self) -> dict[str, Blueprint]:
        if "blueprints" not in self._fields:
            return {}
        pieces = self._fields["blueprints"].fields()
        return {blueprint_name(piece, name): blueprint_of(piece) for name, piece in pieces.items()}

    def _inventory(self) -> Inventory:
        piece = self._fields.get("inventory")
        if piece is None:
            self._top.missing("inventory")
            return Inventory()
        if not isinstance(piece.value, str):
            return inventory_of(piece)
        try:
            text = self._include(piece.value)
        except (HostlerError, OSError) as error:
            piece.doubt(f"{piece.value} cannot be read: {getattr(error, 'strerror', None) or error}")
            return Inventory()
        doubts = Doubts(piece.value)
        other = read(text, doubts)
        inventory = Inventory() if other is None else inventory_of(other)
        for line in doubts.lines():
            piece.doubt(line)
        if other is not None:
            self._document["inventory"] = other.plain()
        return inventory

    def _settings(self, replicas: int) -> dict[str, Any]:
        piece = self._fields.get("settings")
        if piece is None:
            return {}
        fields = piece.fields(*DURATIONS, *FLAGS, "agents", "boots", "brake_share")
        found: dict[str, Any] = {name: seconds(fields[name]) for name in DURATIONS if name in fields}
        found |= {name: fields[name].flag() for name in FLAGS if name in fields}
        if "agents" in fields:
            found["agents"] = fields["agents"].choice("real", "light")
        if "boots" in fields:
            found["boots"] = fields["boots"].whole(least=1, most=1000)
        if "brake_share" in fields:
            found["brake_share"] = fields["brake_share"].number(most=1.0)
        try:
            plan = WorldConfig(replicas=replicas, **found)
        except Invalid as error:
            piece.doubt(str(error))
            return {}
        for name in ("node_ttl", "fencing_time", "leadership_ttl"):
            if name in fields and getattr(plan, name) < 1.0:
                fields[name].doubt("must be at least 1 second")
        if plan.fencing_time < 2 * plan.node_ttl:
            piece.doubt(f"must be at least twice node_ttl, {2 * plan.node_ttl:g} seconds", field="fencing_time")
        return found

    def _felt(self, components: Components) -> None:
        """Report faults that would not affect light agents."""
        latency = self._fields["settings"].fields().get("latency")
        if latency is not None and latency.value:
            latency.doubt("does not affect light agents; use real agents, or omit it")
        for piece in (*self._items("timeline"), *self._items("chances")):
            fields = piece.fields()
            name, on = fields["fault"].value if "fault" in fields else None, fields.get("on")
            if name in UNFELT and not (on is not None and _of_replicas(on, components)):
                fields["fault"].doubt(f"{name} does not affect light agents; use real agents, or name replicas in `on`")

    def _timeline(self, inventory: Inventory, replicas: int, length: float) -> tuple[tuple[Moment, ...], Components]:
        pieces = self._items("timeline")
        later = moments.inventories(pieces)
        components = Components([inventory, *later.values()], replicas)
        found = []
        for number, piece in enumerate(pieces):
            moment = moments.moment_of(piece, components, later.get(number), length)
            if moment is not None:
                found.append(moment)
        return tuple(found), components

    def _invariants(self) -> tuple[str, ...]:
        if "invariants" not in self._fields:
            return INVARIANTS
        chosen = {piece.choice(*INVARIANTS) for piece in self._fields["invariants"].items()}
        return tuple(name for name in INVARIANTS if name in chosen)


def _chance(piece: Piece, components: Components) -> Chance | None:
    fields = piece.fields()
    own = {name: inside for name, inside in fields.items() if name not in ("per_hour", "on", "for")}
    if "fault" not in fields:
        piece.missing("fault")
        return None
    name = fields["fault"].choice(*FAULTS)
    per_hour = fields["per_hour"].number(least=1e-6, most=100_000) if "per_hour" in fields else 0.0
    if not per_hour:
        piece.missing("per_hour")
        return None
    least, most = _range(fields.get("for"))
    chance = Chance(
        fields={name: inside.plain() for name, inside in own.items()},
        per_hour=per_hour,
        on=_candidates(fields.get("on"), FAULTS[name].place, components, piece),
        least=least,
        most=most,
    )
    on = {"on": chance.on[0]} if chance.on else {}
    moments.fault_in(piece, chance.fields | on | ({} if least is None else {"for": most}), components)
    return chance


def _range(piece: Piece | None) -> tuple[float | None, float | None]:
    """`for: 30`, or `for: [10, 60]`."""
    if piece is None:
        return None, None
    if not isinstance(piece.value, list):
        fixed = seconds(piece, least=0.001)
        return fixed, fixed
    ends = [seconds(item, least=0.001) for item in piece.items()]
    if len(ends) != 2 or ends[0] > ends[1]:
        piece.doubt("must be a number of seconds, or a range of two numbers")
        return None, None
    return ends[0], ends[1]


def _of_replicas(on: Piece, components: Components) -> bool:
    """Return whether it names only replicas."""
    names = [piece.value for piece in on.items()] if isinstance(on.value, list) else [on.value]
    return all(name == "replicas" or components.kinds.get(fold(str(name))) == "replica" for name in names)


def _candidates(piece: Piece | None, kinds: tuple[str, ...], components: Components, whole: Piece) -> tuple[str, ...]:
    """Return the possible targets: the named ones, all of a group (`blades`), or all that the fault can affect."""
    if piece is None:
        if "all" in kinds:
            return ()
        # a rack affects many components: only if it is named
        found = components.of(*(kind for kind in kinds if kind != "rack"))
        if not found:
            whole.doubt(f"the inventory has no {' or '.join(kinds)} that it could affect")
        return found
    names = piece.items() if isinstance(piece.value, list) else [piece]
    found = ()
    for name in names:
        text = name.text(least=1)
        found += components.of(GROUPS[text]) if text in GROUPS else (text,)
    return tuple(dict.fromkeys(found))

"""Events of a timeline in the file: faults, and actions of users."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from hostler.engine.inventory.inventory_file import Inventory, inventory_of
from hostler.engine.workloads.workload_file import workload_of
from hostler.errors import Invalid
from hostler.model.inventory import Condition
from hostler.model.name import fold
from hostler.model.node import DrainMode
from hostler.sim.fault import FAULTS, Partition, fault_of
from hostler.sim.scenario import actions
from hostler.sim.scenario.resources import (
    base_of,
    blueprint_name,
    blueprint_of,
    labs_of,
    name_in,
    seconds,
    users_of,
    vm_names,
    vms_of,
)
from hostler.sim.scenario.scenario import Moment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hostler.kit.yaml import Piece
    from hostler.sim.fault import Fault
    from hostler.sim.scenario.scenario import Components

_COMMON = ("at", "do", "refused")


def inventories(pieces: Sequence[Piece]) -> dict[int, Inventory]:
    """Return the inventories loaded by the timeline, by event number: other events may name their components."""
    found = {}
    for number, piece in enumerate(pieces):
        inside = piece.value if isinstance(piece.value, dict) else {}
        if "do" in inside and inside["do"].value == "load_inventory" and "inventory" in inside:
            found[number] = inventory_of(piece.fields()["inventory"])
    return found


def moment_of(piece: Piece, components: Components, loaded: Inventory | None, length: float) -> Moment | None:
    """Parse one item of the timeline; None: it is invalid, and the errors are reported."""
    fields = piece.fields()
    if not fields:
        return None
    if ("fault" in fields) == ("do" in fields):
        piece.doubt("must have either a fault or a do")
        return None
    at = seconds(fields["at"]) if "at" in fields else 0.0
    if "at" not in fields:
        piece.missing("at")
    elif length and at > length:
        fields["at"].doubt(f"is after the end of the scenario at {length:g} seconds")
    plain = {name: inside.plain() for name, inside in fields.items() if name != "at"}
    kind, known = ("fault", FAULTS) if "fault" in fields else ("do", actions.ACTS)
    name = fields[kind].value
    if name not in known:
        close = difflib.get_close_matches(str(name), known, 1)
        hint = f"did you mean {close[0]}?" if close else f"it must be one of {', '.join(known)}"
        fields[kind].doubt(f"unknown {'fault' if kind == 'fault' else 'action'} {name}; {hint}")
        return None
    if kind == "fault":
        if "for" in fields:
            plain["for"] = seconds(fields["for"], least=0.001)
        what: Any = fault_in(piece, plain, components)
    else:
        what = _Acts(piece, components, loaded).read(str(name))
    return None if what is None else Moment(at=at, what=what, written=plain)


def fault_in(piece: Piece, plain: Mapping[str, Any], components: Components) -> Fault | None:
    """Parse the fault that a map describes; None: it is invalid, and the errors are reported."""
    try:
        fault = fault_of(plain)
    except Invalid as error:
        piece.doubt(str(error))
        return None
    names = fault.members if isinstance(fault, Partition) else (fault.on,) if fault.on else ()
    if not names and "all" not in fault.place:
        piece.doubt(f"is missing; {fault.name} affects a {_either(fault.place)}", field="on")
    for name in names:
        kind = components.kinds.get(fold(name))
        if kind is None:
            piece.doubt(f"{name} is not in the inventory and not a replica", field="on")
        elif kind not in fault.place:
            piece.doubt(f"{name} is a {kind}; {fault.name} affects a {_either(fault.place)}", field="on")
    return fault


def _either(kinds: Sequence[str]) -> str:
    return " or ".join(kind for kind in kinds if kind != "all") or "nothing in particular"


class _Acts:
    """Parser of one action."""

    def __init__(self, piece: Piece, components: Components, loaded: Inventory | None) -> None:
        self._piece, self._components, self._loaded = piece, components, loaded
        self._fields: dict[str, Piece] = {}

    def read(self, do: str) -> actions.Act:
        known: dict[str, tuple[tuple[str, ...], Callable[[], dict[str, Any]]]] = {
            "apply": (("workload",), self._apply),
            "scale": (("workload", "instances"), self._scale),
            "delete": (("workload",), lambda: {"workload": self._name("workload")}),
            "apply_blueprint": (("name", "blueprint"), self._apply_blueprint),
            "delete_blueprint": (("name",), lambda: {"name": self._blueprint()}),
            "rollback_blueprint": (("name", "to"), self._rollback),
            "calls": (("artifact", "per_second", "errors", "p95_ms", "in_flight"), self._calls),
            "drain": (("on", "mode"), self._drain),
            "activate": (("on",), self._nodes),
            "confirm_off": (("on",), self._nodes),
            "release_brake": ((), dict),
            "load_inventory": (("inventory",), self._load),
            "set": (("on", "enabled", "condition"), self._set),
            "lab_start": (("user", "count", "lab"), lambda: {"labs": labs_of(self._piece, self._fields)}),
            "lab_stop": (("user", "count"), lambda: {"users": users_of(self._piece, self._fields)}),
            "create_vm": (("vm",), self._create),
            "delete_vm": (("name", "count", "org", "project"), self._delete),
            "backup": ((), dict),
            "restore": ((), dict),
            "repair": (("on",), self._repair),
            "expect": (("pending", "given_up"), self._expect),
        }
        names, made = known[do]
        self._fields = self._piece.fields(*_COMMON, *names)
        refused = self._fields["refused"].flag() if "refused" in self._fields else False
        return actions.ACTS[do](refused=refused, **made())

    def _name(self, field: str) -> str:
        return name_in(self._piece, self._fields, field)

    def _apply(self) -> dict[str, Any]:
        if "workload" not in self._fields:
            self._piece.missing("workload")
            return {"workload": None}
        return {"workload": workload_of(self._fields["workload"])}

    def _scale(self) -> dict[str, Any]:
        if "instances" not in self._fields:
            self._piece.missing("instances")
        number = self._fields["instances"].whole(most=1_000_000) if "instances" in self._fields else 0
        return {"workload": self._name("workload"), "instances": number}

    def _blueprint(self) -> str:
        return (
            blueprint_name(self._fields["name"], self._name("name")) if "name" in self._fields else self._name("name")
        )

    def _apply_blueprint(self) -> dict[str, Any]:
        if "blueprint" not in self._fields:
            self._piece.missing("blueprint")
            return {"name": self._blueprint(), "blueprint": None}
        return {"name": self._blueprint(), "blueprint": blueprint_of(self._fields["blueprint"])}

    def _rollback(self) -> dict[str, Any]:
        if "to" not in self._fields:
            self._piece.missing("to")
        return {"name": self._blueprint(), "to": self._fields["to"].whole(least=1) if "to" in self._fields else 1}

    def _calls(self) -> dict[str, Any]:
        numbers = {name: piece.number() for name, piece in self._fields.items() if name not in (*_COMMON, "artifact")}
        if numbers.get("errors", 0.0) > 1:
            self._fields["errors"].doubt("must be from 0 to 1")
        return {"artifact": self._name("artifact"), **numbers}

    def _drain(self) -> dict[str, Any]:
        mode = self._fields["mode"].choice(*DrainMode) if "mode" in self._fields else DrainMode.MOVE
        return self._nodes() | {"mode": DrainMode(mode)}

    def _nodes(self) -> dict[str, Any]:
        nodes: tuple[str, ...] = ()
        piece = self._fields.get("on")
        if piece is None:
            self._piece.missing("on")
            return {"nodes": nodes}
        for item in piece.items() if isinstance(piece.value, list) else [piece]:
            name = item.text(least=1)
            found = self._components.nodes(name)
            if name and found is None:
                item.doubt(f"{name} is not a blade or rack of the inventory")
            nodes += found or ()
        return {"nodes": nodes}

    def _load(self) -> dict[str, Any]:
        if "inventory" not in self._fields:
            self._piece.missing("inventory")
        return {"inventory": self._loaded or Inventory()}

    def _set(self) -> dict[str, Any]:
        on = self._name("on")
        level = self._components.level(on)
        if on and level is None:
            self._fields["on"].doubt(f"{on} is not a region, zone, rack, pdu, tor or blade of the inventory")
        found: dict[str, Any] = {"on": fold(on), "level": level or ""}
        if "enabled" in self._fields:
            found["enabled"] = self._fields["enabled"].flag()
        if "condition" in self._fields:
            found["condition"] = Condition(self._fields["condition"].choice(*Condition))
        if len(found) == 2:
            self._piece.doubt("must say what to set: enabled or condition")
        return found

    def _create(self) -> dict[str, Any]:
        if "vm" not in self._fields:
            self._piece.missing("vm")
            return {"vms": None}
        return {"vms": vms_of(self._fields["vm"])}

    def _delete(self) -> dict[str, Any]:
        org, project, names = vm_names(self._piece, self._fields)
        return {"org": org, "project": project, "names": names}

    def _expect(self) -> dict[str, Any]:
        given_up = self._fields["given_up"].items() if "given_up" in self._fields else []
        return {
            "pending": self._fields["pending"].whole() if "pending" in self._fields else 0,
            "given_up": tuple(base_of(piece) for piece in given_up),
        }

    def _repair(self) -> dict[str, Any]:
        if "on" not in self._fields:
            return {"on": ""}
        on = self._name("on")
        if on and self._components.kinds.get(fold(on), "replica") == "replica":
            self._fields["on"].doubt(f"{on} is not hardware of the inventory")
        return {"on": fold(on)}

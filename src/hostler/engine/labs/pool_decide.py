"""Machines that are ready ahead: which there shall be, what each is, and what is to be done about them. Pure."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import msgspec

from hostler.engine.labs.vm_template import digest, node_labels_of, shape_of
from hostler.model.lab import SHAPE_LABEL
from hostler.model.vm import MachineState, Power, Step, VirtualMachine, VmSpec

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from hostler.keys.entry import Entry
    from hostler.model.lab import LabCatalogue, LabTemplate
    from hostler.model.vm import VmHandle

ANY = "default"
"""The project of machines that are ready for whatever lab is asked for: there is one shape for all."""
LATE = 600.0
"""Seconds after which a machine that is not available is given up."""
FAILURES = 3
"""Steps that failed in a row, after which it is given up, too."""
NO_ROOM = 10.0
"""Seconds after which a machine that no node has room for is given up: it must not take the room of a lab."""


class Kind(msgspec.Struct, frozen=True):
    """Machines that are alike, and how many of them shall be ready."""

    project: str
    warm: int
    spec: VmSpec
    shape: str
    """The digest of its template."""
    node_labels: dict[str, str]


class Is(enum.Enum):
    """What a machine of the pool is."""

    READY = enum.auto()
    """It can be handed out."""
    COMING = enum.auto()
    """It may yet be ready."""
    WRONG = enum.auto()
    """Nobody wants one like it any more."""
    AWAY = enum.auto()
    """Its node is silent: others are made in its place, and it is one too many when it comes back."""
    FAILED = enum.auto()
    NO_ROOM = enum.auto()
    GOING = enum.auto()
    """It is being deleted."""


class Stocked(msgspec.Struct, frozen=True):
    """One of them."""

    vm: Entry[VirtualMachine]
    condition: Is

    @property
    def project(self) -> str:
        return self.vm.value.project


class Work(msgspec.Struct, frozen=True):
    """What to do: machines to make, and machines to delete, with why as it is counted."""

    make: tuple[Kind, ...] = ()
    drop: tuple[tuple[Stocked, str], ...] = ()


def project_of(catalogue: LabCatalogue, lab_id: int) -> str:
    """Where machines are that are ready for this lab."""
    return ANY if catalogue.labs is None else str(lab_id)


def kind_of(project: str, template: LabTemplate, keys: Sequence[str]) -> Kind:
    """What is ready for a lab. `keys`: public SSH keys that may log in beside those of the template."""
    spec = shape_of(template, keys)
    return Kind(project, template.warm, spec, digest(template), node_labels_of(template))


def kinds_of(catalogue: LabCatalogue, keys: Sequence[str]) -> dict[str, Kind]:
    """Everything that shall be ready, by project."""
    templates = {ANY: catalogue.default} if catalogue.labs is None else catalogue.labs
    return {project: kind_of(project, template, keys) for project, template in templates.items() if template.warm}


def is_alike(vm: VirtualMachine, kind: Kind) -> bool:
    """Whether a machine is one of this kind, and as it was made."""
    shape = vm.labels.get(SHAPE_LABEL) == kind.shape and _without_keys(vm.spec) == _without_keys(kind.spec)
    return shape and vm.node_labels == kind.node_labels and vm.power is Power.ON


def _without_keys(spec: VmSpec) -> VmSpec:
    """Those of the template stand in the label; those of whoever led when it was made need not be ours."""
    return msgspec.structs.replace(spec, ssh_keys=())


def is_available(handle: VmHandle | None) -> bool:
    """Whether one can log in."""
    runs = handle is not None and handle.state is MachineState.RUNNING
    return runs and handle is not None and handle.readiness is not None and handle.readiness.step is Step.AVAILABLE


def judged(
    vm: VirtualMachine, handle: VmHandle | None, kind: Kind | None, *, ready: bool, away: bool, waited: float
) -> Is:
    """What it is. `ready`: it can be handed out, as far as its records tell; `waited`: for how long it could not.

    `away`: its node is silent.
    """
    if vm.deleting:
        return Is.GOING
    if kind is None or not is_alike(vm, kind):
        return Is.WRONG
    if ready:
        return Is.READY
    if away:
        return Is.AWAY
    state, failures = (None, 0) if handle is None else (handle.state, handle.failures)
    if state is MachineState.PENDING and waited >= NO_ROOM:
        return Is.NO_ROOM
    if waited >= LATE or (state is MachineState.FAILED and failures >= FAILURES):
        return Is.FAILED
    return Is.COMING


def work(
    kinds: Mapping[str, Kind], stock: Sequence[Stocked], *, coming: int, most: int, paused: Collection[str]
) -> Work:
    """What is to be done. `coming`: machines that were asked for and are not among the stock yet, by no means more than
    `most` in all are on their way at once. `paused`: projects for which none is made now.
    """
    gone = {Is.WRONG: "reshaped", Is.FAILED: "replaced", Is.NO_ROOM: "no_room"}
    drop = [(one, gone[one.condition]) for one in stock if one.condition in gone]
    missing: dict[str, int] = {}
    for project, kind in kinds.items():
        kept = [one for one in stock if one.project == project and one.condition in (Is.READY, Is.COMING)]
        # What is not ready goes first, and of those the youngest.
        kept.sort(key=lambda one: (one.condition is Is.READY, -one.vm.value.created_at))
        drop += [(one, "surplus") for one in kept[: max(0, len(kept) - kind.warm)]]
        missing[project] = 0 if project in paused else kind.warm - len(kept)
    room = most - coming - sum(one.condition is Is.COMING for one in stock)
    return Work(tuple(kinds[project] for project in _in_turn(missing, room)), tuple(drop))


def _in_turn(missing: dict[str, int], room: int) -> list[str]:
    """One for each project, then the next for each: a large pool does not hold up the others."""
    turns: list[str] = []
    while len(turns) < room:
        short = [project for project, number in missing.items() if number > 0]
        if not short:
            break
        for project in short[: room - len(turns)]:
            missing[project] -= 1
            turns.append(project)
    return turns


def in_the_way(stock: Sequence[Stocked], of_kind: Collection[str], own: str) -> Stocked | None:
    """Which one goes when a lab finds no room: one that is not ready, and of another lab, if there is such a one.

    `of_kind`: ids of those that stand where the lab could; `own`: the project of its own machines.
    """
    there = [one for one in stock if one.vm.value.id in of_kind and one.condition in (Is.READY, Is.COMING, Is.NO_ROOM)]
    there.sort(key=lambda one: (one.project == own, one.condition is Is.READY, -one.vm.value.created_at))
    return there[0] if there else None

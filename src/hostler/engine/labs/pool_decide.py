"""Pure decisions about the warm pool: which VMs should exist, the condition of each, and what to do."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import msgspec

from hostler.engine.labs.catalogue import digest, node_labels_of, shape_of
from hostler.model.lab import SHAPE_LABEL
from hostler.model.vm import MachineState, Power, Step, VirtualMachine, VmSpec

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from hostler.keys.entry import Entry
    from hostler.model.lab import LabCatalogue, LabTemplate
    from hostler.model.vm import VmHandle

ANY = "default"
"""The project of VMs that suit any lab, if all labs have the same template."""
LATE = 600.0
"""Seconds after which a VM that is not available is given up."""
FAILURES = 3
"""Consecutive failed steps after which a VM is given up."""
NO_ROOM = 10.0
"""Seconds after which a VM that no node has room for is given up: it must not take the room of a lab."""


class Kind(msgspec.Struct, frozen=True):
    """A set of identical VMs, and how many of them should be ready."""

    project: str
    warm: int
    spec: VmSpec
    shape: str
    """The digest of its template."""
    node_labels: dict[str, str]


class PoolState(enum.Enum):
    """Condition of a pool VM."""

    READY = enum.auto()
    """It can be assigned."""
    COMING = enum.auto()
    """It may still become ready."""
    WRONG = enum.auto()
    """Its template is no longer in use."""
    AWAY = enum.auto()
    """Its node is unreachable: it is replaced, and becomes surplus when the node comes back."""
    FAILED = enum.auto()
    NO_ROOM = enum.auto()
    GOING = enum.auto()
    """It is being deleted."""


class Stocked(msgspec.Struct, frozen=True):
    """A pool VM and its condition."""

    vm: Entry[VirtualMachine]
    condition: PoolState

    @property
    def project(self) -> str:
        return self.vm.value.project


class Work(msgspec.Struct, frozen=True):
    """The work to do: VMs to create, and VMs to delete with the name of their counter."""

    make: tuple[Kind, ...] = ()
    drop: tuple[tuple[Stocked, str], ...] = ()


def project_of(catalogue: LabCatalogue, lab_id: int) -> str:
    """Return the project of the pool VMs for this lab."""
    return ANY if catalogue.labs is None else str(lab_id)


def kind_of(project: str, template: LabTemplate, keys: Sequence[str]) -> Kind:
    """Return the kind of VM for a lab. `keys`: public SSH keys that may log in, in addition to the template's."""
    spec = shape_of(template, keys)
    return Kind(project, template.warm, spec, digest(template), node_labels_of(template))


def kinds_of(catalogue: LabCatalogue, keys: Sequence[str]) -> dict[str, Kind]:
    """Return all kinds that should be ready, by project."""
    templates = {ANY: catalogue.default} if catalogue.labs is None else catalogue.labs
    return {project: kind_of(project, template, keys) for project, template in templates.items() if template.warm}


def is_alike(vm: VirtualMachine, kind: Kind) -> bool:
    """Return whether a VM is of this kind and unmodified."""
    shape = vm.labels.get(SHAPE_LABEL) == kind.shape and _without_keys(vm.spec) == _without_keys(kind.spec)
    return shape and vm.node_labels == kind.node_labels and vm.power is Power.ON


def _without_keys(spec: VmSpec) -> VmSpec:
    """Ignore SSH keys. Those of the template are part of the label; those added by an earlier leader may differ."""
    return msgspec.structs.replace(spec, ssh_keys=())


def is_available(handle: VmHandle | None) -> bool:
    """Return whether login is possible."""
    runs = handle is not None and handle.state is MachineState.RUNNING
    return runs and handle is not None and handle.readiness is not None and handle.readiness.step is Step.AVAILABLE


def pool_state(
    vm: VirtualMachine, handle: VmHandle | None, kind: Kind | None, *, ready: bool, away: bool, waited: float
) -> PoolState:
    """Return the condition of a pool VM.

    `ready`: it can be assigned according to its records; `waited`: for how long it could not. `away`: its node is
    unreachable.
    """
    if vm.deleting:
        return PoolState.GOING
    if kind is None or not is_alike(vm, kind):
        return PoolState.WRONG
    if ready:
        return PoolState.READY
    if away:
        return PoolState.AWAY
    state, failures = (None, 0) if handle is None else (handle.state, handle.failures)
    if state is MachineState.PENDING and waited >= NO_ROOM:
        return PoolState.NO_ROOM
    if waited >= LATE or (state is MachineState.FAILED and failures >= FAILURES):
        return PoolState.FAILED
    return PoolState.COMING


def work(
    kinds: Mapping[str, Kind], stock: Sequence[Stocked], *, coming: int, most: int, paused: Collection[str]
) -> Work:
    """Return the work to do.

    `coming`: VMs that were requested and are not in `stock` yet. At most `most` VMs are in preparation at once.
    `paused`: projects for which none is created now.
    """
    gone = {PoolState.WRONG: "reshaped", PoolState.FAILED: "replaced", PoolState.NO_ROOM: "no_room"}
    drop = [(one, gone[one.condition]) for one in stock if one.condition in gone]
    missing: dict[str, int] = {}
    for project, kind in kinds.items():
        kept = [one for one in stock if one.project == project and one.condition in (PoolState.READY, PoolState.COMING)]
        # VMs that are not ready are removed first, the youngest before the others.
        kept.sort(key=lambda one: (one.condition is PoolState.READY, -one.vm.value.created_at))
        drop += [(one, "surplus") for one in kept[: max(0, len(kept) - kind.warm)]]
        missing[project] = 0 if project in paused else kind.warm - len(kept)
    room = most - coming - sum(one.condition is PoolState.COMING for one in stock)
    return Work(tuple(kinds[project] for project in _in_turn(missing, room)), tuple(drop))


def _in_turn(missing: dict[str, int], room: int) -> list[str]:
    """Return projects in round-robin order, so that a large pool does not delay the others."""
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
    """Return the VM to remove when a lab finds no room, preferably one that is not ready and of another lab.

    `of_kind`: ids of VMs in places that the lab could use; `own`: the project of the lab's own pool.
    """
    there = [
        one
        for one in stock
        if one.vm.value.id in of_kind and one.condition in (PoolState.READY, PoolState.COMING, PoolState.NO_ROOM)
    ]
    there.sort(key=lambda one: (one.project == own, one.condition is PoolState.READY, -one.vm.value.created_at))
    return there[0] if there else None

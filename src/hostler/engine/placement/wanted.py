"""What placement takes and gives, and how that is made from records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from hostler.model.name import fold
from hostler.model.node import Lifecycle
from hostler.model.vm import OnNodeLoss

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostler.model.inventory import Capacity
    from hostler.model.node import NodeRecord, VmCommand
    from hostler.model.reason import Reason
    from hostler.model.vm import Affinity, VirtualMachine, VmSpec

_NOBODY: frozenset[str] = frozenset()
_OFF_DUTY = {
    Lifecycle.JOINING: "still joining",
    Lifecycle.DRAINING: "draining",
    Lifecycle.DECOMMISSIONED: "decommissioned",
    Lifecycle.SHUTTING_DOWN: "shutting down",
}


class NodeState(Struct, frozen=True, kw_only=True):
    """A node as placement sees it. The names of racks, pdus and tors are those of the whole cluster."""

    node: str
    capacity: Capacity
    labels: Mapping[str, str] = {}
    rack: str | None = None
    pdus: tuple[str, ...] = ()
    tors: tuple[str, ...] = ()
    fences: bool = False
    images: frozenset[str] | None = None
    """What machines can be made of there; None: of anything."""
    refuses: str = ""
    """Why it takes no further machine at present."""
    on_duty: bool = True
    why_not: str = ""
    """While off duty: why."""


class Wanted(Struct, frozen=True, kw_only=True):
    """A machine that needs a node, or has one."""

    vm: str
    project: str
    """`org/project`: rules speak of the machines of the same one."""
    spec: VmSpec
    name: str = ""
    """How reasons call it; its id if empty."""
    labels: Mapping[str, str] = {}
    affinity: tuple[Affinity, ...] = ()
    node_labels: Mapping[str, str] = {}
    fenced: bool = False
    exclude: frozenset[str] = _NOBODY
    """Nodes that will not do."""
    tied: str = ""
    """Why it can only be on the node that `node_labels` names: its disk is there, and no image is needed."""


class Decision(Struct, frozen=True, kw_only=True):
    """A node, or None: none will do. `reasons` are to be kept with it, and hold about 2 KB at most."""

    node: str | None
    score: float
    """0 to 100; 0 without a node."""
    reasons: tuple[Reason, ...]
    summary: str
    """All of it in one sentence."""


def node_state(record: NodeRecord, alive: bool) -> NodeState:
    """A node that registered. It is on duty while its lifecycle says so, and its agent gives signs of life."""
    why_not = _OFF_DUTY.get(record.lifecycle, "")
    if not why_not and not alive:
        why_not = "silent"
    return NodeState(
        node=fold(record.node),
        capacity=record.capacity,
        labels=record.labels,
        rack=record.rack,
        pdus=record.pdus,
        tors=record.tors,
        fences=record.fences,
        images=None if record.images is None else frozenset(record.images),
        refuses=record.refuses,
        on_duty=not why_not,
        why_not=why_not,
    )


def wanted_of(vm: VirtualMachine, *, exclude: frozenset[str] = _NOBODY, only: str = "", tied: str = "") -> Wanted:
    """What a wish asks of a node; `only`: of that one, for the reason `tied`, if one is to be told."""
    return Wanted(
        vm=vm.id,
        project=f"{vm.org}/{vm.project}",
        spec=vm.spec,
        name=vm.name,
        labels=vm.labels,
        affinity=vm.affinity,
        node_labels=_folded({**vm.node_labels, "node": only} if only else vm.node_labels),
        fenced=vm.on_node_loss is OnNodeLoss.FENCE,
        exclude=exclude,
        tied=tied,
    )


def wanted_of_command(command: VmCommand, vm: VirtualMachine | None) -> Wanted:
    """What a commanded machine takes of its node: the shape is the command's; labels and rules stand in the wish only.

    Without a wish the machine takes room, and no rule knows it.
    """
    return Wanted(
        vm=command.vm,
        project=f"{command.org}/{command.project}",
        spec=command.spec,
        name=vm.name if vm is not None else "",
        labels=vm.labels if vm is not None else {},
        affinity=vm.affinity if vm is not None else (),
        node_labels=_folded(vm.node_labels) if vm is not None else {},
        fenced=command.fenced,
    )


def _folded(labels: Mapping[str, str]) -> Mapping[str, str]:
    """A node is meant however its name was typed."""
    return {**labels, "node": fold(labels["node"])} if "node" in labels else labels

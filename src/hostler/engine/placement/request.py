"""What placement takes and gives, and how that is made from records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, structs

from hostler.model.name import fold
from hostler.model.node import HOST, HOST_SHARE, Lifecycle

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hostler.engine.inventory.topology_cache import Wiring
    from hostler.model.inventory import Capacity
    from hostler.model.node import NodeRecord, VmCommand
    from hostler.model.reason import Reason
    from hostler.model.vm import Affinity, VirtualMachine, VmSpec

_NOBODY: frozenset[str] = frozenset()
_NO_LABELS: Mapping[str, str] = {}
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
    host: str = ""
    """The host that its agent runs on; empty: it is not known."""
    whole_host: bool = True
    """Its capacity is all of that host, not a share of it: what stands on other nodes of the host counts against it."""


class Wanted(Struct, frozen=True, kw_only=True, gc=False):
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


def must_join(one: Wanted, other: Wanted) -> bool:
    """Whether a rule of one machine demands that it is together with such as the other."""
    return one.project == other.project and any(
        rule.required and rule.together and other.labels.items() >= rule.labels.items() for rule in one.affinity
    )


class Decision:
    """A node, or None: none will do. `reasons` are to be kept with it, and hold about 2 KB at most.

    What was seen is kept as it was, and put into words when somebody asks.
    """

    __slots__ = ("_tell", "_told", "node", "score")

    def __init__(
        self,
        *,
        node: str | None,
        score: float,
        reasons: tuple[Reason, ...] = (),
        summary: str = "",
        tell: Callable[[], tuple[tuple[Reason, ...], str]] | None = None,
    ) -> None:
        """`score`: 0 to 100; 0 without a node. `tell` gives reasons and summary, in their place."""
        self.node, self.score = node, score
        self._tell = tell
        self._told = (reasons, summary) if tell is None else None

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Why this one, and why not the others."""
        return self._in_words()[0]

    @property
    def summary(self) -> str:
        """All of it in one sentence."""
        return self._in_words()[1]

    def adding(self, reason: Reason) -> Decision:
        """The same decision with one more thing to say, which comes first."""
        reasons, summary = self._in_words()
        return Decision(
            node=self.node, score=self.score, reasons=(reason, *reasons), summary=f"{summary}; {reason.why}"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Decision):
            return NotImplemented
        return (self.node, self.score, self._in_words()) == (other.node, other.score, other._in_words())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Decision({self.summary!r})"

    def _in_words(self) -> tuple[tuple[Reason, ...], str]:
        if self._told is None:
            self._told = ((), "") if self._tell is None else self._tell()
            self._tell = None
        return self._told


def node_state(
    record: NodeRecord,
    alive: bool,
    *,
    objection: str = "",
    wiring: Wiring | None = None,
    capacity: Capacity | None = None,
    labels: Mapping[str, str] = _NO_LABELS,
) -> NodeState:
    """A node that registered. It is on duty while its lifecycle says so, and its agent gives signs of life.

    The rest is what the inventory says: what is against it, on what it hangs (None: as its agent says), what it has at
    most, and labels, which win over those of its agent.
    """
    why_not = "" if record.lifecycle is Lifecycle.ON_DUTY else _OFF_DUTY.get(record.lifecycle, record.lifecycle.words)
    if not why_not and not alive:
        why_not = "silent"
    why_not = why_not or objection
    rack, pdus, tors = wiring or (record.rack and fold(record.rack), record.pdus, record.tors)
    return NodeState(
        node=fold(record.node),
        capacity=counted_capacity(record, capacity),
        labels={**record.labels, **labels} if labels else record.labels,
        rack=rack,
        pdus=pdus,
        tors=tors,
        fences=record.fences,
        images=None if record.images is None else frozenset(record.images),
        refuses=record.refuses,
        on_duty=not why_not,
        why_not=why_not,
        host=record.facts.get(HOST, ""),
        whole_host=not record.facts.get(HOST_SHARE),
    )


def counted_capacity(record: NodeRecord, listed: Capacity | None) -> Capacity:
    """What placement counts on: what both the node's agent and the inventory (None: it is not in it) say is there."""
    return record.capacity if listed is None else least(record.capacity, listed)


def least(offered: Capacity, listed: Capacity) -> Capacity:
    """What both the agent and the inventory say is there. The inventory need not say anything: then it has 0."""
    changed = {
        name: most
        for name in ("cpus", "memory_mib", "disk_gib", "network_mbps")
        if 0 < (most := getattr(listed, name)) < getattr(offered, name)
    }
    return structs.replace(offered, **changed) if changed else offered


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
        fenced=vm.is_fenced,
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
    """A node, or a rack, is meant however its name was typed."""
    named = {label: fold(labels[label]) for label in ("node", "rack") if label in labels}
    return {**labels, **named} if named else labels

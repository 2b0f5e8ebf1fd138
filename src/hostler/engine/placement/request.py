"""Inputs and result of placement, and their construction from records."""

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
    from hostler.model.trace import Reason
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
    """A node as placement sees it. The names of racks, pdus and tors are unique in the cluster."""

    node: str
    capacity: Capacity
    labels: Mapping[str, str] = {}
    rack: str | None = None
    pdus: tuple[str, ...] = ()
    tors: tuple[str, ...] = ()
    fences: bool = False
    images: frozenset[str] | None = None
    """Available images; None: any."""
    refuses: str = ""
    """Why it accepts no further machine at present."""
    on_duty: bool = True
    why_not: str = ""
    """Why it is off duty."""
    host: str = ""
    """The host that its agent runs on; empty: unknown."""
    whole_host: bool = True
    """Its capacity is the whole host, not a share: machines on other nodes of the host count against it."""


class PlacementRequest(Struct, frozen=True, kw_only=True, gc=False):
    """A machine that needs a node, or has one."""

    vm: str
    project: str
    """`org/project`: rules apply to machines of the same project."""
    spec: VmSpec
    name: str = ""
    """Its name in reasons; its id if empty."""
    labels: Mapping[str, str] = {}
    affinity: tuple[Affinity, ...] = ()
    node_labels: Mapping[str, str] = {}
    fenced: bool = False
    exclude: frozenset[str] = _NOBODY
    """Nodes that must not be chosen."""
    tied: str = ""
    """Why it can only run on the node in `node_labels`: its disk is there, and no image is needed."""


def must_join(one: PlacementRequest, other: PlacementRequest) -> bool:
    """Return whether a rule of one machine requires affinity to machines like the other."""
    return one.project == other.project and any(
        rule.required and rule.together and other.labels.items() >= rule.labels.items() for rule in one.affinity
    )


class Decision:
    """The chosen node, or None: no node is suitable. `reasons` are stored with it, and have about 2 KB at most.

    The text is built from the observed values when it is first requested.
    """

    __slots__ = ("_tell", "_told", "node", "score", "why_not")

    def __init__(
        self,
        *,
        node: str | None,
        score: float,
        reasons: tuple[Reason, ...] = (),
        summary: str = "",
        tell: Callable[[], tuple[tuple[Reason, ...], str]] | None = None,
    ) -> None:
        """`score`: 0 to 100; 0 without a node. `tell` returns reasons and summary, in place of these."""
        self.node, self.score = node, score
        self.why_not = ""
        """Why no node is suitable, without the words that introduce it in `summary`; empty: one is."""
        self._tell = tell
        self._told = (reasons, summary) if tell is None else None

    @classmethod
    def no_node(cls, why: str, reasons: tuple[Reason, ...]) -> Decision:
        """Return the decision that no node is suitable."""
        decision = cls(node=None, score=0.0, reasons=reasons, summary=f"no node will do: {why}")
        decision.why_not = why
        return decision

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Return why this node was chosen, and why not the others."""
        return self._in_words()[0]

    @property
    def summary(self) -> str:
        """Return everything in one sentence."""
        return self._in_words()[1]

    def adding(self, reason: Reason) -> Decision:
        """Return the same decision with one more reason, which comes first."""
        reasons, summary = self._in_words()
        more = Decision(
            node=self.node, score=self.score, reasons=(reason, *reasons), summary=f"{summary}; {reason.why}"
        )
        more.why_not = self.why_not
        return more

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
    """Return the state of a registered node. It is on duty if its lifecycle says so and its agent sends heartbeats.

    The other arguments come from the inventory: the objection to it, its wiring (None: as its agent reports), its
    largest capacity, and labels, which override those of its agent.
    """
    why_not = "" if record.lifecycle is Lifecycle.ON_DUTY else _OFF_DUTY.get(record.lifecycle, record.lifecycle.words)
    if not why_not and not alive:
        why_not = "unreachable"
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
    """Return the capacity for placement: the smaller of the agent's and the inventory's (None: not listed there)."""
    return record.capacity if listed is None else least(record.capacity, listed)


def least(offered: Capacity, listed: Capacity) -> Capacity:
    """Return the smaller of the agent's and the inventory's capacity.

    A value of 0 in the inventory means: not given.
    """
    changed = {
        name: most
        for name in ("cpus", "memory_mib", "disk_gib", "network_mbps")
        if 0 < (most := getattr(listed, name)) < getattr(offered, name)
    }
    return structs.replace(offered, **changed) if changed else offered


def wanted_of(
    vm: VirtualMachine, *, exclude: frozenset[str] = _NOBODY, only: str = "", tied: str = ""
) -> PlacementRequest:
    """Return the requirements of a spec on a node; `only`: on that node, for the reason `tied` (empty: not shown)."""
    return PlacementRequest(
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


def wanted_of_command(command: VmCommand, vm: VirtualMachine | None) -> PlacementRequest:
    """Return the allocation of a commanded machine: the size is the command's; labels and rules are in the spec only.

    Without a spec the machine has an allocation, and no rule applies to it.
    """
    return PlacementRequest(
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
    """Fold the names of node and rack, so that they match in any case."""
    named = {label: fold(labels[label]) for label in ("node", "rack") if label in labels}
    return {**labels, **named} if named else labels

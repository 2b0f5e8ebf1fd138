"""Requirements of one machine on a node, prepared once so that each node can be checked quickly. Pure.

An image has requirements on a machine, too, as far as nodes report them: memory, and the user data that it runs. The
machines of a project are indexed by location, for affinity rules and spread.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias

from hostler.engine.text import SHORT, clip
from hostler.model.image import Seeding
from hostler.model.node import ImageNeeds, Lifecycle
from hostler.model.vm import ARCH, VOLUME, YES, accelerators_of, architecture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hostler.engine.placement.cluster import Cluster
    from hostler.engine.placement.node_state import NodeSlot
    from hostler.engine.placement.request import PlacementRequest
    from hostler.model.node import NodeRecord
    from hostler.model.vm import Affinity, Level, VmSpec


Selector: TypeAlias = frozenset[tuple[str, str]]
"""Labels that a machine must have to match."""

SELECTORS = 256
"""Number of selectors for which a project keeps tallies; the oldest is dropped first."""


class AffinityCounts:
    """A set of machines, counted per node, rack, pdu and tor."""

    __slots__ = ("counts", "unknown", "vms")

    def __init__(self) -> None:
        self.vms: dict[str, NodeSlot] = {}
        self.counts: dict[str, int] = {}
        self.unknown: dict[Level, int] = {}
        """Number of machines, by level, on nodes whose rack, pdu or tor is unknown."""

    def add(self, vm: str, slot: NodeSlot) -> None:
        """Add a machine."""
        self.vms[vm] = slot
        counts = self.counts
        for domain, _ in slot.domains:
            counts[domain] = counts.get(domain, 0) + 1
        for level in slot.unknown:
            self.unknown[level] = self.unknown.get(level, 0) + 1

    def remove(self, vm: str, slot: NodeSlot) -> None:
        """Remove a machine, which must be present."""
        del self.vms[vm]
        counts = self.counts
        for domain, _ in slot.domains:
            if counts[domain] == 1:
                del counts[domain]
            else:
                counts[domain] -= 1
        for level in slot.unknown:
            if self.unknown[level] == 1:
                del self.unknown[level]
            else:
                self.unknown[level] -= 1


class Project:
    """The placed machines of one project."""

    def __init__(self) -> None:
        self.all = AffinityCounts()
        self.guards: dict[tuple[Selector, Level], AffinityCounts] = {}
        """Machines with anti-affinity to these labels: a new machine with the labels must avoid them, too."""
        self._tallies: dict[Selector, AffinityCounts] = {}

    def add(self, wanted: PlacementRequest, slot: NodeSlot) -> None:
        """Add a placed machine."""
        self.all.add(wanted.vm, slot)
        for selector, tally in self._tallies.items():
            if wanted.labels.items() >= selector:
                tally.add(wanted.vm, slot)
        for key in _guarded(wanted) if wanted.affinity else ():
            self.guards.setdefault(key, AffinityCounts()).add(wanted.vm, slot)

    def remove(self, wanted: PlacementRequest, slot: NodeSlot) -> None:
        """Remove a machine."""
        self.all.remove(wanted.vm, slot)
        for selector, tally in self._tallies.items():
            if wanted.labels.items() >= selector:
                tally.remove(wanted.vm, slot)
        for key in _guarded(wanted) if wanted.affinity else ():
            self.guards[key].remove(wanted.vm, slot)
            if not self.guards[key].vms:
                del self.guards[key]

    def with_labels(self, labels: Mapping[str, str]) -> AffinityCounts:
        """Return the machines that have all of these labels. Counted at the first query, then kept."""
        selector = selector_of(labels)
        if not selector:
            return self.all
        tally = self._tallies.get(selector)
        if tally is None:
            tally = AffinityCounts()
            for vm, slot in self.all.vms.items():
                if slot.vms[vm].labels.items() >= selector:
                    tally.add(vm, slot)
            if len(self._tallies) >= SELECTORS:
                del self._tallies[next(iter(self._tallies))]
            self._tallies[selector] = tally
        return tally


def selector_of(labels: Mapping[str, str]) -> Selector:
    """Return labels as a hashable value."""
    return frozenset(labels.items())


def _guarded(wanted: PlacementRequest) -> set[tuple[Selector, Level]]:
    return {(selector_of(rule.labels), rule.level) for rule in wanted.affinity if guards(rule)}


def guards(rule: Affinity) -> bool:
    """Return whether new machines must avoid the owner of this rule."""
    return rule.required and not rule.together


_NOBODY = AffinityCounts()


class Rule:
    """Affinity to one of some machines on a level, or anti-affinity to all of them.

    If it is unknown whether two nodes share a rack (or pdu, or tor), neither rule is satisfied.
    """

    def __init__(self, others: AffinityCounts, level: Level, who: str, *, together: bool) -> None:
        self.together, self.level, self.others = together, level, others
        not_known = f"may share a {level} with {who}: that is not known"
        self._broken = f"shares no {level} with {who}" if together else f"shares a {level} with {who}"
        self._not_known = self._broken if together else not_known
        self.who = who
        self._examples: dict[str, str] | None = None

    def broken_by(self, slot: NodeSlot) -> str | None:
        """Return how the node breaks the rule; None: it does not.

        The text applies to many nodes, so it names no machine.
        """
        others = self.others
        if not others.vms:
            return None
        shared = self._shared(slot)
        if self.together:
            return None if shared is not None else self._broken
        if shared is not None:
            return self._broken
        if self.level in slot.unknown or self.level in others.unknown or not self.level.is_known:
            return self._not_known
        return None

    def explain(self, slot: NodeSlot) -> str:
        """Explain the rule for the node, with the name of a machine."""
        if not self.others.vms:
            return f"{self.who} does not exist yet: any node will do" if self.together else ""
        shared = self._shared(slot)
        if shared is None:
            return self.broken_by(slot) or f"shares no {self.level} with {self.who}"
        which = f"{clip(self._example(shared))} ({self.who}), which is on {shared} too"
        return f"with {which}" if self.together else f"must be apart from {which}"

    def _shared(self, slot: NodeSlot) -> str | None:
        counts = self.others.counts
        for domain in slot.at.get(self.level, ()):
            if domain in counts:
                return domain
        own = f"node {slot.node}"  # machines on the same node share everything, known or not
        return own if own in counts else None

    def _example(self, domain: str) -> str:
        if self._examples is None:
            self._examples = {}
            for vm in sorted(self.others.vms, reverse=True):
                slot = self.others.vms[vm]
                for name, _ in slot.domains:
                    self._examples[name] = slot.vms[vm].name or vm
        return self._examples[domain]


class Demand:
    """A wanted machine, with the rules that concern it."""

    __slots__ = (
        "accelerators",
        "check",
        "cpus",
        "disk",
        "image",
        "labels",
        "memory",
        "neighbours",
        "plain",
        "preferred",
        "required",
        "shape",
        "wanted",
    )

    def __init__(self, wanted: PlacementRequest, cluster: Cluster) -> None:
        self.wanted = wanted
        spec = wanted.spec
        self.cpus, self.memory, self.disk = spec.cpus, spec.memory_mib, spec.disk_gib
        self.shape = cluster.shape(self.cpus, self.memory, self.disk)
        self.labels = _lacking(wanted) if wanted.node_labels or spec.arch or spec.volumes else ()
        self.accelerators = tuple(sorted(spec.accelerators.items())) if spec.accelerators else ()
        self.image = spec.image
        project = cluster.projects.get(wanted.project)
        self.neighbours = _NOBODY if project is None else project.all
        self.required: Sequence[Rule] = ()
        self.preferred: Sequence[Rule] = ()
        if wanted.affinity or (project is not None and project.guards):
            self._rules(project)
        picky = self.required or self.labels or self.accelerators or wanted.exclude
        self.plain = not (picky or (wanted.fenced and cluster.unfenced))
        """Only capacity and the node's own restrictions count."""
        self.check: Callable[[NodeSlot], str | None] | None = (
            None if self.plain and not cluster.particular else self.refused_by
        )

    def _rules(self, project: Project | None) -> None:
        wanted, required, preferred = self.wanted, list[Rule](), list[Rule]()
        for rule in wanted.affinity:
            others = _NOBODY if project is None else project.with_labels(rule.labels)
            made = Rule(others, rule.level, selector_text(rule), together=rule.together)
            (required if rule.required else preferred).append(made)
        for (selector, level), owners in sorted(project.guards.items(), key=_by_name) if project is not None else ():
            if wanted.labels.items() >= selector:
                who = "a machine whose own rule it would break"
                required.append(Rule(owners, level, who, together=False))
        self.required, self.preferred = required, preferred

    def refused_by(self, slot: NodeSlot) -> str | None:
        """Return the first objection to a node on duty, other than capacity. It does not name the node."""
        wanted = self.wanted
        for name, value, lacking in self.labels:
            if slot.labels.get(name) != value:
                return lacking
        for kind, count in self.accelerators:
            if free_accelerators(slot, kind) < count:
                return f"too few free accelerators of kind {kind}: {count} wanted"
        if slot.node in wanted.exclude:
            return "excluded"
        if wanted.fenced and (slot.state is None or not slot.state.fences):
            return "cannot fence machines"
        if slot.particular and (why := self.declined_by(slot)) is not None:
            return why
        for rule in self.required:
            if (why := rule.broken_by(slot)) is not None:
                return why
        return None

    def declined_by(self, slot: NodeSlot) -> str | None:
        """Return the node's own restriction against this machine, and what to do about it."""
        state = slot.state
        if state is None:
            return None
        if state.refuses:
            return clip(f"taking no more machines: {state.refuses}", 2 * SHORT)
        if state.images is None or self.wanted.tied:
            return None
        there = self.image in state.images if self.image else bool(state.images)
        return None if there else _no_image(self.image)

    def missing(self, slot: NodeSlot) -> tuple[tuple[str, int, int], ...]:
        """Return the insufficient resources: resource, wanted, free."""
        found = []
        if slot.cpus < self.cpus:
            found.append(("cpus", self.cpus, slot.cpus))
        if slot.memory < self.memory:
            found.append(("MiB of memory", self.memory, slot.memory))
        if slot.disk < self.disk:
            found.append(("GiB of disk", self.disk, slot.disk))
        return tuple(found)

    def most(self, slots: list[NodeSlot]) -> tuple[tuple[str, int, int], ...]:
        """Return the same for nodes with the same shortage, with the largest free amount of each resource."""
        get = {"cpus": attrgetter("cpus"), "MiB of memory": attrgetter("memory"), "GiB of disk": attrgetter("disk")}
        return tuple((what, want, max(map(get[what], slots))) for what, want, _ in self.missing(slots[0]))


def _lacking(wanted: PlacementRequest) -> Sequence[tuple[str, str, str]]:
    """Return the labels that a node must have, and the objection to a node without one."""
    spec = wanted.spec
    found = [
        (name, value, wanted.tied if wanted.tied and name == "node" else clip(f"not labelled {name}={value}"))
        for name, value in wanted.node_labels.items()
    ]
    if spec.arch:
        found.append((ARCH, architecture(spec.arch), f"not of architecture {architecture(spec.arch)}"))
    return [*found, *((VOLUME + name, YES, f"without volume {name}") for name in spec.volumes)]


def free_accelerators(slot: NodeSlot, kind: str) -> int:
    """Return the accelerators of the node minus those of its machines."""
    return accelerators_of(slot.labels, kind) - sum(each.spec.accelerators.get(kind, 0) for each in slot.vms.values())


def _no_image(image: str) -> str:
    if not image:
        return "without any image; add or build one there (hostler image)"
    return f"without image {clip(image)!r}; add it there (hostler image add), or name another"


def selector_text(rule: Affinity) -> str:
    """Describe the machines that a rule selects."""
    return f"a machine labelled {labels_text(rule.labels)}" if rule.labels else "a machine of the project"


def labels_text(labels: Mapping[str, str]) -> str:
    """Return labels as text."""
    return clip(", ".join(f"{name}={value}" for name, value in sorted(labels.items())))


def _by_name(guard: tuple[tuple[Selector, Level], AffinityCounts]) -> tuple[list[tuple[str, str]], str]:
    """Return a sort key that does not depend on the order of insertion."""
    (selector, level), _ = guard
    return sorted(selector), level


_SCRIPT = "#!"


def image_problems(spec: VmSpec, records: Iterable[NodeRecord]) -> tuple[str, ...]:
    """Return what is wrong with a machine of this spec on each node that could run it; nothing without nodes."""
    serving = [record for record in records if record.lifecycle is not Lifecycle.DECOMMISSIONED]
    if not serving:
        return ()
    having = [record for record in serving if record.images is None or spec.image in record.images]
    if not having:
        if not spec.image:
            return ("no node has a default image; build or add one (hostler image)",)
        return (f"no node has the image {spec.image!r}; build or add it (hostler image), or name another one",)
    found = []
    least = min(_needs(spec.image, record).memory_mib for record in having)
    if spec.memory_mib < least:
        found.append(f"its image needs {least} MiB of memory, and it has {spec.memory_mib}; give it more")
    if why := not_run(spec, having):
        found.append(why)
    return tuple(found)


def not_run(spec: VmSpec, records: Iterable[NodeRecord]) -> str:
    """Return why none of these nodes runs the user data of a machine; empty: one does, or that is unknown."""
    if not spec.user_data or spec.origin is not None:
        return ""
    name = f"image {spec.image!r}" if spec.image else "the default image"
    why = ""
    for record in records:
        match _needs(spec.image, record).seeding:
            case Seeding.NONE:
                why = f"user_data is not run: {name} takes none; leave it out, or name another image"
            case Seeding.FIRMWARE if not spec.user_data.startswith(_SCRIPT):
                why = (
                    f"user_data is not run: {name} has no cloud-init, and runs only a script that begins with"
                    f" {_SCRIPT}; write such a script, or name an image with cloud-init"
                )
            case _:
                return ""
    return why


def _needs(image: str, record: NodeRecord) -> ImageNeeds:
    if image:
        return record.image_needs.get(image, ImageNeeds())
    return next((needs for needs in record.image_needs.values() if needs.default), ImageNeeds())

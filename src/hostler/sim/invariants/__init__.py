"""Invariants of a world: what must hold whatever fails, checked continuously.

    no_vm_twice              no machine runs on two blades at one instant, as the blades themselves recorded it, and no
                             two nodes have a command to run it
    no_vm_lost               no VM record disappears unless its deletion was requested, and every acknowledged VM exists
    no_stale_leader_write    no decision or command has a fence other than that of the present leader
    no_unreachable_endpoint  no lab is shown as available for long while its machine is unreachable
    rules_kept               no machine is placed against a required rule, its own or another's
    brake_kept               if too many nodes become unreachable together, none is switched off or loses machines
    disks_kept               no disk with data is deleted unless its VM was, or a retained one after its retention
    data_kept                a VM that runs again has its data or says that it does not; retained disks are listed
    inventory_heeded         no machine is placed on a blade that the inventory took out of service some time ago
    rollout_kept             no update stops more instances of a workload, or creates more, than its rollout allows
    no_early_end             no machine and no lab ends before its expiry, unless its end was requested
    wishes_met               after all faults have ended, the state matches the spec and the answers, in time
    pending_has_reason       everything that waits for a node gives a reason
    one_lab_per_user         no user has two machines
    blueprints_met           after all faults have ended, slices match the blueprints (`blueprints`)

The invariants of slices are described in `slices`: slice_moves_legal, instance_numbers_unique, endpoints_before_active,
needs_kept, min_available_kept, spread_kept, retries_heeded.

The checks use the store's events, one by one, and the places of machines. So the cost of a run depends on what happens
in it, not on the size of the world. A violation is reported when it is found and does not end the run.
"""

from __future__ import annotations

import functools
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import msgspec

from hostler.keys.families import COMMAND, HANDLE, LEADER, TARGET, TRACE, VM
from hostler.model.lab import LAB_LABEL, ORG
from hostler.sim.invariants.brake import BrakeWatch
from hostler.sim.invariants.disks import DiskWatch
from hostler.sim.invariants.labs import Endpoints
from hostler.sim.invariants.slices import SliceWatch
from hostler.sim.invariants.vm_placement import PREFIXES, Duty, Rules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hostler.ports.store import Event
    from hostler.sim.world import World

    Telling: TypeAlias = Callable[[str, str, float | None], None]
    """Called with the component, what is wrong, and since when (None: now)."""

S = TypeVar("S", bound=msgspec.Struct)

MOST = 20
"""Most violations kept per invariant; further ones are only counted."""
CLOSE = 1e-6
"""Seconds by which two equal instants may differ: clocks of different rates are compared."""
_LEADS = LEADER.fill(n=1)


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """A violation of an invariant."""

    invariant: str
    at: float
    component: str
    text: str
    revision: int = 0
    """The store revision up to which all events had been seen."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one invariant."""

    invariant: str
    looks: int
    """How often it was checked. 0: the run says nothing about it."""
    found: int
    violations: tuple[Violation, ...] = ()
    """The first violations."""

    @property
    def held(self) -> bool:
        return not self.found


class _Vm(msgspec.Struct):
    id: str = ""
    project: str = ""
    deleting: bool = False
    labels: dict[str, str] = {}


class _Handle(msgspec.Struct):
    node: str = ""
    state: str = ""
    detail: str = ""
    reasons: tuple[msgspec.Raw, ...] = ()


class _Command(msgspec.Struct):
    fence: int = 0
    arrived: int | None = None


class _Fence(msgspec.Struct):
    fence: int = 0
    subject: str = ""
    what: str = ""


class _Target(msgspec.Struct):
    node: str | None = None
    reasons: tuple[msgspec.Raw, ...] = ()


class Invariants:
    """Checks a world from before it is entered until its story is over."""

    def __init__(
        self, world: World, names: Iterable[str], *, told: Callable[[Violation], None] = lambda _: None
    ) -> None:
        self._world, self._told = world, told
        self.names = tuple(names)
        self._looks = dict.fromkeys(self.names, 0)
        self._found = dict.fromkeys(self.names, 0)
        self._kept: dict[str, list[Violation]] = {name: [] for name in self.names}
        self._revision = 0
        self._fence: int | None = None
        self._highest = 0
        """The highest fence ever assigned."""
        self._vms: dict[str, str] = {}
        """Keys of the VM records by VM id."""
        self._gone: dict[str, tuple[str, bool]] = {}
        """VM records deleted in the present revision, and whether their deletion was requested."""
        self._told_nodes: dict[str, dict[str, None]] = {}
        """For each VM, the nodes with a command to run it."""
        self._doubled: dict[str, None] = {}
        """VMs that more than one node was commanded to run, in the present revision so far."""
        self._labs: dict[str, set[str]] = {}
        self._ran: dict[str, str] = {}
        """The node on which each machine was last reported running."""
        rules = self._teller("rules_kept")
        self._rules = Rules(world, rules) if rules is not None else None
        duty = self._teller("inventory_heeded")
        self._duty = Duty(world, duty) if duty is not None else None
        brake = self._teller("brake_kept")
        self._brake = BrakeWatch(world, brake) if brake is not None else None
        self._disks = DiskWatch(world, self._teller("disks_kept"), self._teller("data_kept"))
        endpoints = self._teller("no_unreachable_endpoint")
        self._endpoints = Endpoints(world, endpoints) if endpoints is not None and world.plan.labs else None
        self._slices = SliceWatch(world, self.violated, lambda: self._fence) if world.plan.slices else None
        self._families: tuple[tuple[str, Callable[[str, Event], None]], ...] = (
            (TRACE.prefix(), self._trace),
            (HANDLE.prefix(), self._handle),
            (COMMAND.prefix(), self._command),
            (VM.prefix(), self._vm),
            (_LEADS, self._leader),
            (TARGET.prefix(), self._target),
            *(() if self._duty is None else ((prefix, self._duty.heard) for prefix in PREFIXES)),
        )
        self._end = world.chronicle.listen(self._heard)

    def stop(self) -> None:
        """Stop watching."""
        self._end()
        self._judge()
        if self._brake is not None:
            self.look("brake_kept", self._brake.looks)
        self._disks.judge()
        for name, looks in self._disks.looks.items():
            self.look(name, looks)
        self._disks.looks = dict.fromkeys(self._disks.looks, 0)
        if self._endpoints is not None:
            self._endpoints.stop()
        if self._slices is not None:
            self._slices.stop()
            for name, looks in self._slices.looks.items():
                self.look(name, looks)
            self._slices.looks.clear()

    def verdicts(self) -> tuple[Verdict, ...]:
        """Return the present results."""
        return tuple(
            Verdict(
                invariant=name,
                looks=self._looks[name],
                found=self._found[name],
                violations=tuple(self._kept[name]),
            )
            for name in self.names
        )

    def look(self, name: str, times: int = 1) -> None:
        """Count checks."""
        if name in self._looks:
            self._looks[name] += times

    def violated(self, name: str, component: str, text: str, at: float | None = None) -> None:
        """Record a violation, if the invariant is selected. Changes made by a restore are not checked."""
        if name not in self._found or self._world.recovery.runs:
            return
        self._found[name] += 1
        if len(self._kept[name]) < MOST:
            found = Violation(
                invariant=name,
                at=round(self._world.clock.now() if at is None else at, 6),
                component=component,
                text=text,
                revision=self._world.chronicle.revision,
            )
            self._kept[name].append(found)
            self._told(found)

    def check_runs(self) -> None:
        """Check all runs of all machines, at the end."""
        seen: dict[str, None] = {}
        for host in self._world.blades.values():
            for place in (*host.earlier, host.place):
                seen |= dict.fromkeys((*place.contents.rows, *place.contents.ended_intervals()))
        for vm in seen:
            self._check_runs_of(vm)
        self.look("no_vm_twice", len(seen))

    # Events

    def _heard(self, event: Event) -> None:
        if event.kv.mod_revision != self._revision:
            self._revision = event.kv.mod_revision
            self._judge()
        key = event.kv.key
        for prefix, heard in self._families:
            if key.startswith(prefix):
                heard(key, event)
                break
        if self._brake is not None:
            self._brake.heard(event)
        self._disks.heard(event)
        if self._slices is not None:
            self._slices.heard(event)

    def _leader(self, key: str, event: Event) -> None:
        if key != _LEADS:
            return
        if event.type == "delete":
            self._fence = None
            return
        fence = _read(_Fence, event.kv.value).fence
        if fence and fence != self._fence and fence <= self._highest:  # 0: not known yet
            self.violated("no_stale_leader_write", "leader", f"fence {fence} was assigned before")
        self._fence, self._highest = fence, max(fence, self._highest)

    def _trace(self, key: str, event: Event) -> None:  # noqa: ARG002 - the same signature as the others
        if event.type == "delete" or "no_stale_leader_write" not in self._looks:
            return
        trace = _read(_Fence, event.kv.value)
        if trace.fence:
            self._looks["no_stale_leader_write"] += 1
            if trace.fence != self._fence:
                self._stale(trace.subject, f"{trace.what} was decided", trace.fence)

    def _command(self, key: str, event: Event) -> None:
        parts = COMMAND.match(key)
        if parts is None:
            return
        node, vm = parts["node"], parts["vm"]
        if event.type == "delete":
            self._told_nodes.get(vm, {}).pop(node, None)
            if self._rules is not None:
                self._rules.note_removal(vm, node)
            return
        if event.previous is not None:
            return
        nodes = self._told_nodes.setdefault(vm, {})
        nodes[node] = None
        if len(nodes) > 1:  # a node that migrates it away deletes its command in the same revision
            self._doubled[vm] = None
        command = _read(_Command, event.kv.value)
        if command.arrived == 0:  # commanded by the leader, not migrated
            self.look("no_stale_leader_write")
            if command.fence != self._fence:
                self._stale(f"vm {vm}", f"node {node} was commanded to run it", command.fence)
            if self._duty is not None:
                self.look("inventory_heeded", self._duty.check_placement(vm, node))
        if self._rules is not None:
            self.look("rules_kept", self._rules.check_placement(vm, node))

    def _stale(self, component: str, what: str, fence: int) -> None:
        who = "there is no leader" if self._fence is None else f"the leader has fence {self._fence}"
        self.violated("no_stale_leader_write", component, f"{what} under fence {fence}, though {who}")

    def _handle(self, key: str, event: Event) -> None:
        if event.type == "delete":
            return
        handle, vm = _read(_Handle, event.kv.value), key.rpartition("/")[2]
        if handle.state == "pending":
            self.look("pending_has_reason")
            if not handle.detail and not handle.reasons:
                self.violated("pending_has_reason", f"vm {vm}", "it is pending without a reason")
        elif handle.state == "running" and self._ran.get(vm) != handle.node:
            before, self._ran[vm] = self._ran.get(vm), handle.node
            if before is not None:
                self._check_runs_of(vm)
                self.look("no_vm_twice")

    def _target(self, key: str, event: Event) -> None:
        if event.type == "delete" or (parts := TARGET.match(key)) is None:
            return
        target = _read(_Target, event.kv.value)
        if target.node is None:
            self.look("pending_has_reason")
            if not target.reasons:
                what = f"workload {parts['workload']}/{parts['instance']}"
                self.violated("pending_has_reason", what, "its target names no node and no reason")

    def _vm(self, key: str, event: Event) -> None:
        parts = VM.match(key)
        if parts is None:
            return
        id_, project = parts["vm"], parts["project"]
        if event.type == "delete":
            before = None if event.previous is None else _read(_Vm, event.previous.value)
            if self._vms.get(id_) == key:  # otherwise it moved to another project in this revision
                del self._vms[id_]
                self._gone[id_] = (key, before is None or before.deleting)
            if parts["org"] == ORG:
                self._labs.get(project, set()).discard(id_)
            if self._rules is not None:
                self._rules.forget_vm(id_, key)
            return
        self._vms[id_] = key
        self._gone.pop(id_, None)
        if self._rules is not None:
            self._rules.take_vm(id_, key, event.kv.value)
        if parts["org"] == ORG and event.previous is None and LAB_LABEL in _read(_Vm, event.kv.value).labels:
            having = self._labs.setdefault(project, set())
            having.add(id_)
            self.look("one_lab_per_user")
            if len(having) > 1:
                self.violated("one_lab_per_user", f"lab of {project}", f"{len(having)} machines: {sorted(having)}")

    def _judge(self) -> None:
        """Check what can only be checked after all events of a revision."""
        for vm in self._doubled:
            nodes = self._told_nodes.get(vm, {})
            if len(nodes) > 1:
                self.violated("no_vm_twice", f"vm {vm}", f"{' and '.join(nodes)} were both commanded to run it")
        self._doubled.clear()
        for id_, (key, wished_away) in self._gone.items():
            self.look("no_vm_lost")
            if not wished_away:
                self.violated("no_vm_lost", f"vm {id_}", f"{key} is gone without a request to delete it")
        self._gone.clear()
        if self._brake is not None:
            self._brake.judge(self._vms.__contains__)

    # Places

    def _check_runs_of(self, vm: str) -> None:
        now = self._world.clock.now()
        runs = sorted(
            (start, now if end is None else end, node)
            for node, host in self._world.blades.items()
            for start, end in host.intervals(vm)
        )
        for (_, end, first), (start, _, second) in pairwise(runs):
            if start < end - CLOSE:
                text = f"ran on {first} until {end:g} s, and on {second} from {start:g} s"
                if not any(seen.component == f"vm {vm}" for seen in self._kept.get("no_vm_twice", ())):
                    self.violated("no_vm_twice", f"vm {vm}", text, start)

    def _teller(self, name: str) -> Telling | None:
        """Return the function to report violations of an invariant; None: it is not selected."""
        if name not in self._found:
            return None
        return functools.partial(self.violated, name)


def _read(kind: type[S], data: bytes) -> S:
    """Decode a record; return an empty one if it is unreadable."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return kind()

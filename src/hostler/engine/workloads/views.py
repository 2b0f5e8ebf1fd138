"""API views of workloads and their instances. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.engine import phase as phases
from hostler.engine.workloads.decide import decide, least_ready
from hostler.engine.workloads.instance_index import WorkloadInstanceState, is_ready, total
from hostler.kit.plural import counted
from hostler.model.vm import MachineState
from hostler.model.vm_api import VmPhase
from hostler.model.workload import Actual
from hostler.model.workload_api import InstanceView, WorkloadPhase, WorkloadView

if TYPE_CHECKING:
    from hostler.engine.workloads.instance_index import WorkloadInstances
    from hostler.keys.entry import Entry
    from hostler.model.vm import VirtualMachine, VmHandle
    from hostler.model.workload import Target, Workload, WorkloadInstance


def workload_view(workload: Workload, revision: int, roll: WorkloadInstances, *, why_pending: str = "") -> WorkloadView:
    """Return the view of a workload. `why_pending`: why the first pending instance has no node or VM."""
    kept = roll.count(WorkloadInstanceState.KEPT)
    ready = total(roll.groups(ready=True))
    updated = total(
        [*roll.groups(ready=True, template=workload.template), *roll.groups(ready=False, template=workload.template)]
    )
    leaving = roll.count(WorkloadInstanceState.LEAVING) + roll.count(WorkloadInstanceState.AWAY)
    waiting = roll.count(WorkloadInstanceState.WAITING)
    made = kept + waiting + roll.count(WorkloadInstanceState.BLIND)
    pending = len(roll.pending) + waiting
    plan = decide(workload, roll)
    calm = plan.is_empty and not leaving and not roll.strays
    settled = calm and not workload.deleting and made == ready == workload.instances
    org, project = workload.home
    now = _phase(workload, settled=settled, pending=pending, older=kept - updated)
    return WorkloadView(
        name=workload.name,
        org=org,
        project=project,
        enabled=workload.enabled,
        instances=workload.instances,
        spec=workload.spec,
        affinity=workload.affinity,
        node_labels=workload.node_labels,
        on_node_loss=workload.loss,
        restart=workload.restart,
        rollout=workload.rollout,
        labels=workload.labels,
        phase=now,
        detail=_detail(now, workload, roll, why_pending, made=made, updated=updated)
        + _held_back(workload, roll, older=kept - updated, moves=bool(plan.remove or leaving)),
        made=made,
        ready=ready,
        updated=updated,
        pending=pending,
        leaving=leaving,
        settled=settled,
        template=workload.template,
        generation=workload.generation,
        created_at=workload.created_at,
        revision=revision,
    )


def _phase(workload: Workload, *, settled: bool, pending: int, older: int) -> WorkloadPhase:
    if workload.deleting:
        return WorkloadPhase.DELETING
    if settled:
        return WorkloadPhase.READY if workload.enabled else WorkloadPhase.OFF
    if pending:
        return WorkloadPhase.PENDING
    return WorkloadPhase.UPDATING if older else WorkloadPhase.CHANGING


def _detail(
    phase: WorkloadPhase, workload: Workload, roll: WorkloadInstances, why_pending: str, *, made: int, updated: int
) -> str:
    if phase is WorkloadPhase.DELETING:
        return counted(len(roll), "instance is left", "instances are left")
    if phase is WorkloadPhase.PENDING:
        missing = workload.instances - made
        more = f"; {missing} more {'is' if missing == 1 else 'are'} not created for that reason"
        return why_pending + (more if missing > 0 else "")
    if phase is WorkloadPhase.UPDATING:
        return f"{updated} of {workload.instances} are of the newest template"
    return ""


def _held_back(workload: Workload, roll: WorkloadInstances, *, older: int, moves: bool) -> str:
    """Return why older instances are not replaced now."""
    if workload.deleting or not older or moves:
        return ""
    return f"; {older} of an older template stay, because at least {least_ready(workload, roll)} must serve"


def first_pending(roll: WorkloadInstances) -> int | None:
    """Return an instance that shows why some are pending."""
    return next(iter(roll.by[WorkloadInstanceState.WAITING]), None) or next(iter(roll.pending), None)


def why_pending(number: int, target: Target | None, handle: VmHandle | None) -> str:
    """Return why an instance has no node, in one sentence."""
    return f"instance {number}: {_nowhere(target, handle) or 'not scheduled yet'}"


def _nowhere(target: Target | None, handle: VmHandle | None) -> str:
    """Return the leader's own explanation, if there is one; otherwise the first reason."""
    if handle is not None and handle.state is MachineState.PENDING and handle.detail:
        return handle.detail
    return target.reasons[0].why if target is not None and target.reasons else ""


class InstanceSnapshot:
    """The records of one instance."""

    __slots__ = ("actual", "alive", "handle", "instance", "target", "vm")

    def __init__(
        self,
        instance: Entry[WorkloadInstance],
        *,
        target: Target | None,
        actual: Actual | None,
        vm: VirtualMachine | None,
        handle: VmHandle | None,
        alive: bool,
    ) -> None:
        """`alive`: the node that the handle names is reachable."""
        self.instance, self.target, self.actual = instance, target, actual
        self.vm, self.handle, self.alive = vm, handle, alive


def instance_view(workload: Workload, seen: InstanceSnapshot) -> InstanceView:
    """Return the view of an instance."""
    record, vm, handle, target = seen.instance.value, seen.vm, seen.handle, seen.target
    now = VmPhase.PENDING if vm is None else phases.phase(vm, handle, seen.alive)
    ready = vm is not None and handle is not None and seen.alive and not vm.deleting and is_ready(vm, handle)
    node = None if target is None else target.node
    return InstanceView(
        instance=record.instance,
        vm=record.vm,
        name="" if vm is None else vm.name,
        phase=now,
        node=node,
        template=record.template,
        updated=record.template == workload.template,
        ready=ready,
        leaving=record.leaving or (vm is not None and vm.deleting),
        detail=_instance_detail(seen, now),
        reasons=() if target is None else target.reasons,
        target=target,
        actual=seen.actual,
        created_at=record.created_at,
    )


def _instance_detail(seen: InstanceSnapshot, now: VmPhase) -> str:
    target, handle = seen.target, seen.handle
    if now is VmPhase.SILENT and handle is not None:
        return f"node {handle.node} is unreachable; what runs there is not known"
    if now is VmPhase.PENDING:
        return _nowhere(target, handle)
    return "" if handle is None else handle.detail


def actual_of(handle: VmHandle | None, vm: str) -> Actual | None:
    """Return the last report of the agent, derived from the handle, which has the same content."""
    if handle is None or not handle.node:
        return None
    return Actual(
        node=handle.node,
        state=handle.state,
        vm=vm,
        generation=handle.generation,
        detail=handle.detail,
        seen_at=handle.seen_at,
    )

"""Pure decision: which instances of a workload to create, remove, replace or change.

The goal is the requested number of instances, all of the newest template. Instances of older templates are replaced
within two bounds. The number of VMs, including those being removed, never exceeds the requested number plus
`max_surge`. The number of serving instances never falls below the requested number minus `max_unavailable` because of
the controller. Instances that do not serve are replaced first. New instances that do not become ready stop the rollout.

If fewer instances than requested are possible (the quota is used up, no node is suitable), the possible number is used
instead; otherwise nothing could ever be replaced. It is never lower than the number possible when the template changed
(`had`), so new instances that cannot be placed also stop the rollout.
"""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING

import msgspec

from hostler.engine.workloads.instance_index import WorkloadInstanceState, total
from hostler.engine.workloads.vm_template import tune_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hostler.engine.workloads.instance_index import WorkloadInstances
    from hostler.kit.sorted_sets import Numbers
    from hostler.model.workload import Workload

BATCH = 20
"""Number of instances changed in one transaction: each takes several of its at most 128 operations."""


class WorkloadSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Instance numbers; of each kind at most as many as fit into a transaction."""

    make: tuple[int, ...] = ()
    """New instances: the lowest free numbers."""
    equip: tuple[int, ...] = ()
    """Waiting instances that get a VM now."""
    remove: tuple[int, ...] = ()
    """Instances whose VMs are to be deleted; they are deleted with their VMs."""
    drop: tuple[int, ...] = ()
    """Instances without a VM, to be deleted at once."""
    tune: tuple[int, ...] = ()
    """Instances whose VMs are changed in place."""
    over: bool = False
    """Only the workload's own record is left, and is to be deleted."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.make or self.equip or self.remove or self.drop or self.tune or self.over)


def decide(workload: Workload | None, roll: WorkloadInstances, *, most: int = BATCH) -> WorkloadSteps:
    """Return what to do now; nothing exactly when spec and status agree, or the controller has to wait.

    `workload` None: the workload no longer exists.
    """
    if workload is None or workload.deleting:
        kept = _highest([*roll.groups(ready=False), *roll.groups(ready=True)])
        return WorkloadSteps(
            remove=tuple(itertools.islice(kept, most)),
            drop=_first(_without_machine(roll), most),
            over=workload is not None and roll.is_empty,
        )
    plan = _going(workload, roll, most)
    leaving = set(plan.remove)
    requested = tune_of(workload)
    mistuned = (
        number
        for tune, numbers in roll.tunes.items()
        if tune != requested
        for number in numbers.above(0)
        if number not in leaving
    )
    make, equip = _coming(workload, roll, plan, most)
    return msgspec.structs.replace(plan, make=make, equip=equip, tune=tuple(itertools.islice(mistuned, most)))


def least_ready(workload: Workload, roll: WorkloadInstances) -> int:
    """Return how many instances must serve while older ones are replaced."""
    return max(0, can_have(workload, roll) - workload.rollout.max_unavailable)


def can_have(workload: Workload, roll: WorkloadInstances) -> int:
    """Return how many of the requested instances are possible; during a rollout, at least as many as before it."""
    requested, barred = workload.instances, len(roll.pending)
    if roll.count(WorkloadInstanceState.WAITING):  # it represents all instances without a VM
        there = (
            roll.count(WorkloadInstanceState.KEPT)
            + roll.count(WorkloadInstanceState.LEAVING)
            + roll.count(WorkloadInstanceState.BLIND)
            + roll.count(WorkloadInstanceState.LOST)
        )
        barred += max(0, requested - there)
    older = any(template != workload.template for template, _ in roll.kept)
    return min(requested, max(0, requested - barred, workload.had if older else 0))


def _coming(
    workload: Workload, roll: WorkloadInstances, plan: WorkloadSteps, most: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the numbers of new instances, and of waiting instances that get a VM."""
    requested, current = workload.instances, workload.template
    # A LOST instance may only not be in the cache yet: it is replaced once it is certainly gone.
    unclear = roll.count(WorkloadInstanceState.BLIND) + roll.count(WorkloadInstanceState.LOST)
    new = total(roll.groups(ready=False, template=current)) + total(roll.groups(ready=True, template=current))
    room = (
        requested
        + workload.rollout.max_surge
        - roll.count(WorkloadInstanceState.KEPT)
        - unclear
        - roll.count(WorkloadInstanceState.LEAVING)
    )
    missing = requested - new - unclear
    waiting = [number for number in roll.by[WorkloadInstanceState.WAITING] if number not in plan.drop]
    if waiting:  # they represent all further instances, and go first
        return (), _first(waiting, min(most, room, missing))
    return _first(roll.taken.free(1), min(most, room, missing - roll.count(WorkloadInstanceState.WAITING))), ()


def _going(workload: Workload, roll: WorkloadInstances, most: int) -> WorkloadSteps:
    """WorkloadSteps the removal of surplus instances, and of older ones as far as the rollout allows."""
    requested, current = workload.instances, workload.template
    drop = _first(roll.by[WorkloadInstanceState.LOST], most)
    unready, ready = (roll.groups(ready=is_ready, template=current) for is_ready in (False, True))
    waiting, new_ready = roll.count(WorkloadInstanceState.WAITING), total(ready)
    surplus = max(0, waiting + total(unready) + new_ready + roll.count(WorkloadInstanceState.BLIND) - requested)
    # First instances without a VM, then those that do not serve; of each the highest numbers.
    without = min(surplus, waiting)
    drop += _first(roll.by[WorkloadInstanceState.WAITING].below(), min(without, most - len(drop)))
    surplus -= without
    not_serving = min(surplus, total(unready))
    serving = min(surplus - not_serving, new_ready)
    new_ready -= serving
    old_unready, old_ready = (roll.groups(ready=is_ready, beside=current) for is_ready in (False, True))
    least = least_ready(workload, roll)
    # Even if none of the new instances becomes ready, the remaining other ones are enough.
    spare = max(0, new_ready + total(old_unready) + total(old_ready) - least)
    first = min(spare, total(old_unready))
    then = max(0, min(spare - first, new_ready + total(old_ready) - least, total(old_ready)))
    remove = itertools.chain(
        itertools.islice(_highest(unready), not_serving),
        itertools.islice(_highest(ready), serving),
        itertools.islice(_highest(old_unready), first),
        itertools.islice(_highest(old_ready), then),
    )
    return WorkloadSteps(remove=tuple(itertools.islice(remove, most)), drop=drop)


def _without_machine(roll: WorkloadInstances) -> Iterator[int]:
    return itertools.chain(roll.by[WorkloadInstanceState.LOST], roll.by[WorkloadInstanceState.WAITING].below())


def _highest(groups: Sequence[Numbers]) -> Iterator[int]:
    return heapq.merge(*(numbers.below() for numbers in groups), reverse=True)


def _first(numbers: Iterable[int], count: int) -> tuple[int, ...]:
    return tuple(itertools.islice(numbers, max(0, count)))

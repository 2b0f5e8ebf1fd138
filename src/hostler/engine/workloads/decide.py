"""What is to be done about a workload's instances. Pure.

There shall be as many as are wished for, all of the newest template. While there are older ones, they are replaced
within two bounds: never more machines than are wished for and `max_surge`, those that are going included; and never
fewer that serve than are wished for without `max_unavailable`, as far as it is our doing. What does not serve anyway is
replaced first; new ones that do not come up hold the rest back.

Where not as many can be had as are wished for (a quota is full, no node will do), as many as can be count instead: else
nothing could ever be replaced. But never fewer than could be when the template changed (`had`): new ones that can be
had nowhere hold the rest back, too.
"""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING

import msgspec

from hostler.engine.workloads.instance_index import Is, total
from hostler.engine.workloads.vm_template import tune_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hostler.engine.workloads.instance_index import Roll
    from hostler.kit.interval_set import Numbers
    from hostler.model.workload import Workload

BATCH = 20
"""Instances that are changed in one transaction: each takes a handful of its operations, and there may be 128."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of instances; of each kind at most as many as fit into a transaction."""

    make: tuple[int, ...] = ()
    """New ones: the lowest numbers that are free."""
    equip: tuple[int, ...] = ()
    """Those that wait for a machine, and may have one now."""
    remove: tuple[int, ...] = ()
    """Their machines shall be gone, and they with them."""
    drop: tuple[int, ...] = ()
    """They have no machine, and go at once."""
    tune: tuple[int, ...] = ()
    """Their machines are changed in place."""
    over: bool = False
    """Nothing is left of the workload but its own record, which is to go."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.make or self.equip or self.remove or self.drop or self.tune or self.over)


def decide(workload: Workload | None, roll: Roll, *, most: int = BATCH) -> Plan:
    """What is to be done now; nothing exactly when all is as wished, or something has to be waited for.

    None: nobody wishes for it any more.
    """
    if workload is None or workload.deleting:
        kept = _highest([*roll.groups(ready=False), *roll.groups(ready=True)])
        return Plan(
            remove=tuple(itertools.islice(kept, most)),
            drop=_first(_without_machine(roll), most),
            over=workload is not None and roll.is_empty,
        )
    plan = _going(workload, roll, most)
    leaving = set(plan.remove)
    wished = tune_of(workload)
    mistuned = (
        number
        for tune, numbers in roll.tunes.items()
        if tune != wished
        for number in numbers.above(0)
        if number not in leaving
    )
    make, equip = _coming(workload, roll, plan, most)
    return msgspec.structs.replace(plan, make=make, equip=equip, tune=tuple(itertools.islice(mistuned, most)))


def least_ready(workload: Workload, roll: Roll) -> int:
    """Instances that have to serve while older ones are replaced."""
    return max(0, can_have(workload, roll) - workload.rollout.max_unavailable)


def can_have(workload: Workload, roll: Roll) -> int:
    """Instances of those wished for that can be had; while older ones are replaced, those that could be before."""
    wished, barred = workload.instances, len(roll.pending)
    if roll.count(Is.WAITING):  # it speaks for all that have no machine
        there = roll.count(Is.KEPT) + roll.count(Is.LEAVING) + roll.count(Is.BLIND) + roll.count(Is.LOST)
        barred += max(0, wished - there)
    older = any(template != workload.template for template, _ in roll.kept)
    return min(wished, max(0, wished - barred, workload.had if older else 0))


def _coming(workload: Workload, roll: Roll, plan: Plan, most: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """New instances, and those without a machine that get one."""
    wished, current = workload.instances, workload.template
    # What seems lost may only not have been heard of yet: others are made in its place once it is certainly gone.
    unclear = roll.count(Is.BLIND) + roll.count(Is.LOST)
    new = total(roll.groups(ready=False, template=current)) + total(roll.groups(ready=True, template=current))
    room = wished + workload.rollout.max_surge - roll.count(Is.KEPT) - unclear - roll.count(Is.LEAVING)
    missing = wished - new - unclear
    waiting = [number for number in roll.by[Is.WAITING] if number not in plan.drop]
    if waiting:  # they speak for all that would follow, and go first
        return (), _first(waiting, min(most, room, missing))
    return _first(roll.taken.free(1), min(most, room, missing - roll.count(Is.WAITING))), ()


def _going(workload: Workload, roll: Roll, most: int) -> Plan:
    """Too many of the newest template, and older ones as far as the rollout allows."""
    wished, current = workload.instances, workload.template
    drop = _first(roll.by[Is.LOST], most)
    unready, ready = (roll.groups(ready=is_ready, template=current) for is_ready in (False, True))
    waiting, new_ready = roll.count(Is.WAITING), total(ready)
    surplus = max(0, waiting + total(unready) + new_ready + roll.count(Is.BLIND) - wished)
    # First what has no machine, then what does not serve; of each the highest numbers.
    without = min(surplus, waiting)
    drop += _first(roll.by[Is.WAITING].below(), min(without, most - len(drop)))
    surplus -= without
    not_serving = min(surplus, total(unready))
    serving = min(surplus - not_serving, new_ready)
    new_ready -= serving
    old_unready, old_ready = (roll.groups(ready=is_ready, beside=current) for is_ready in (False, True))
    least = least_ready(workload, roll)
    # However many of the new ones come up: those of the others that stay are enough.
    spare = max(0, new_ready + total(old_unready) + total(old_ready) - least)
    first = min(spare, total(old_unready))
    then = max(0, min(spare - first, new_ready + total(old_ready) - least, total(old_ready)))
    remove = itertools.chain(
        itertools.islice(_highest(unready), not_serving),
        itertools.islice(_highest(ready), serving),
        itertools.islice(_highest(old_unready), first),
        itertools.islice(_highest(old_ready), then),
    )
    return Plan(remove=tuple(itertools.islice(remove, most)), drop=drop)


def _without_machine(roll: Roll) -> Iterator[int]:
    return itertools.chain(roll.by[Is.LOST], roll.by[Is.WAITING].below())


def _highest(groups: Sequence[Numbers]) -> Iterator[int]:
    return heapq.merge(*(numbers.below() for numbers in groups), reverse=True)


def _first(numbers: Iterable[int], count: int) -> tuple[int, ...]:
    return tuple(itertools.islice(numbers, max(0, count)))

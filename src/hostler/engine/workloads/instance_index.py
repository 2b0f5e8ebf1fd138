"""All instances of one workload, indexed by their condition. The cost of an update does not depend on their number."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import msgspec

from hostler.engine.workloads.vm_template import Tune  # noqa: TC001 - msgspec reads annotations at run time
from hostler.kit.sorted_sets import Numbers

if TYPE_CHECKING:
    from collections.abc import Iterable


class WorkloadInstanceState(enum.Enum):
    """Condition of an instance."""

    WAITING = enum.auto()
    """It has no VM: the quota of its project is used up."""
    KEPT = enum.auto()
    LEAVING = enum.auto()
    """Its VM is being removed, and the instance with it."""
    AWAY = enum.auto()
    """Its VM is being removed on an unreachable node; other instances need not wait for it."""
    LOST = enum.auto()
    """The VM that it names does not exist."""
    BLIND = enum.auto()
    """Unknown, because a record cannot be decoded or has not been read yet. It counts and is left alone."""


class Condition(msgspec.Struct, frozen=True, gc=False):
    """Condition of one instance, with details."""

    what: WorkloadInstanceState
    template: int = 0
    """The workload template that its VM was created from."""
    ready: bool = False
    """Its VM matches the desired state and serves."""
    tune: Tune | None = None
    """KEPT: those properties of its VM that can be changed in place."""
    pending: bool = False
    """KEPT: no node is suitable for its VM."""


class WorkloadInstances:
    """Instance numbers by condition. Read-only, except for `put` and the owner of `strays`."""

    def __init__(self) -> None:
        self.conditions: dict[int, Condition] = {}
        self.taken = Numbers((0,))
        """Numbers that cannot be assigned; numbers begin with 1."""
        self.by: dict[WorkloadInstanceState, Numbers] = {what: Numbers() for what in WorkloadInstanceState}
        self.kept: dict[tuple[int, bool], Numbers] = {}
        """KEPT instances by template and readiness."""
        self.pending = Numbers()
        """KEPT instances without a node."""
        self.tunes: dict[Tune, Numbers] = {}
        """KEPT instances by the changeable properties of their VMs."""
        self.strays: dict[str, None] = {}
        """Keys of VMs that claim to implement an instance which does not name them."""
        self.others: dict[str, None] = {}
        """Instances whose names are not numbers: created by other programs, and ignored."""

    def __len__(self) -> int:
        return len(self.conditions)

    @property
    def is_empty(self) -> bool:
        """Whether no instance and no stray VM is left."""
        return not (self.conditions or self.strays or self.others)

    def put(self, number: int, condition: Condition | None) -> bool:
        """Set the condition of an instance; None: it is deleted. Return whether this is a change."""
        old = self.conditions.get(number)
        if old == condition:
            return False
        if old is not None:
            self.by[old.what].discard(number)
            if old.what is WorkloadInstanceState.KEPT:
                _take(self.kept, (old.template, old.ready), number)
                self.pending.discard(number)
                if old.tune is not None:
                    _take(self.tunes, old.tune, number)
        if condition is None:
            del self.conditions[number]
            self.taken.discard(number)
            return True
        self.conditions[number] = condition
        self.taken.add(number)
        self.by[condition.what].add(number)
        if condition.what is WorkloadInstanceState.KEPT:
            self.kept.setdefault((condition.template, condition.ready), Numbers()).add(number)
            if condition.pending:
                self.pending.add(number)
            if condition.tune is not None:
                self.tunes.setdefault(condition.tune, Numbers()).add(number)
        return True

    def count(self, what: WorkloadInstanceState) -> int:
        """Return the number of instances in this condition."""
        return len(self.by[what])

    def groups(self, *, ready: bool, template: int | None = None, beside: int | None = None) -> list[Numbers]:
        """Return the KEPT instances by readiness: of one template, or of all except `beside`."""
        return [
            numbers
            for (of, is_ready), numbers in sorted(self.kept.items(), key=_order)
            if is_ready is ready and template in (None, of) and of != beside
        ]


def _order(item: tuple[tuple[int, bool], Numbers]) -> tuple[int, bool]:
    return item[0]


def _take(groups: dict[Tune, Numbers] | dict[tuple[int, bool], Numbers], key: object, number: int) -> None:
    numbers = groups[key]  # type: ignore[index]
    numbers.discard(number)
    if not numbers:
        del groups[key]  # type: ignore[arg-type]


def total(groups: Iterable[Numbers]) -> int:
    """Return the total count."""
    return sum(map(len, groups))

"""All instances of one workload, sorted by what they are. Changing one costs the same however many there are."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import msgspec

from hostler.engine.workloads.vm_template import Tune  # noqa: TC001 - msgspec reads annotations at run time
from hostler.kit.interval_set import Numbers

if TYPE_CHECKING:
    from collections.abc import Iterable


class Is(enum.Enum):
    """What an instance is."""

    WAITING = enum.auto()
    """It has no machine: its project may have no more."""
    KEPT = enum.auto()
    LEAVING = enum.auto()
    """Its machine is being removed, and it goes with it."""
    AWAY = enum.auto()
    """The same, on a node that gives no sign of life: others need not wait for it."""
    LOST = enum.auto()
    """The machine that it names is not there."""
    BLIND = enum.auto()
    """Nobody can tell, for a record cannot be read, or has not been yet. It counts, and is left alone."""


class Condition(msgspec.Struct, frozen=True, gc=False):
    """One instance."""

    what: Is
    template: int = 0
    """Of the workload, that its machine was made from."""
    ready: bool = False
    """Its machine is as it shall be, and serves."""
    tune: Tune | None = None
    """KEPT: what its machine is, as far as that can be changed in place."""
    pending: bool = False
    """KEPT: no node will do for its machine."""


class Roll:
    """Numbers of instances by what they are. To be looked at; changed only by `put` and whoever keeps `strays`."""

    def __init__(self) -> None:
        self.conditions: dict[int, Condition] = {}
        self.taken = Numbers((0,))
        """Numbers that cannot be given; numbers begin with 1."""
        self.by: dict[Is, Numbers] = {what: Numbers() for what in Is}
        self.kept: dict[tuple[int, bool], Numbers] = {}
        """By template, and by whether they are ready."""
        self.pending = Numbers()
        """Those that are kept, and have no node."""
        self.tunes: dict[Tune, Numbers] = {}
        """Those that are kept, by what their machines are."""
        self.strays: dict[str, None] = {}
        """Keys of machines that say they stand for an instance which does not name them."""
        self.others: dict[str, None] = {}
        """Instances whose names are no numbers: not ours, and in nobody's way."""

    def __len__(self) -> int:
        return len(self.conditions)

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all is left of the workload's instances."""
        return not (self.conditions or self.strays or self.others)

    def put(self, number: int, condition: Condition | None) -> bool:
        """The instance is this now; None: it is gone. Whether that is news."""
        old = self.conditions.get(number)
        if old == condition:
            return False
        if old is not None:
            self.by[old.what].discard(number)
            if old.what is Is.KEPT:
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
        if condition.what is Is.KEPT:
            self.kept.setdefault((condition.template, condition.ready), Numbers()).add(number)
            if condition.pending:
                self.pending.add(number)
            if condition.tune is not None:
                self.tunes.setdefault(condition.tune, Numbers()).add(number)
        return True

    def count(self, what: Is) -> int:
        """How many are that."""
        return len(self.by[what])

    def groups(self, *, ready: bool, template: int | None = None, beside: int | None = None) -> list[Numbers]:
        """Those that are kept and ready, or not: of one template, or of all others than `beside`."""
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
    """How many there are in all."""
    return sum(map(len, groups))

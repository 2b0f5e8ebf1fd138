"""Shrink a failing schedule: remove the items that the failure does not need, then simplify the rest.

A predicate says whether a candidate still fails; a schedule is a sequence of values. The result failed when it was last
tested, so it is a reproduction, however the search ended. `smallest` shrinks a failing scenario to the smallest part
that still fails in the same way, as a scenario of its own.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from hostler.kit.plural import counted
from hostler.sim.fault import FaultBase
from hostler.sim.scenario.run import Outcome, run_scenario
from hostler.sim.scenario.scenario import Scenario  # noqa: TC001 - msgspec reads annotations at run time

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    from hostler.sim.scenario.scenario import Moment
    from hostler.sim.world import Factories


T = TypeVar("T")


class Search(Generic[T]):
    """Calls the predicate, never twice with the same candidate, and at most `tries` times."""

    def __init__(
        self,
        fails: Callable[[Sequence[T]], bool],
        *,
        tries: int,
        key: Callable[[Sequence[T]], Hashable] = tuple,
    ) -> None:
        """`key` identifies a sequence of items."""
        self._fails, self._tries, self._key = fails, tries, key
        self._known: dict[Hashable, bool] = {}
        self.asked = 0

    @property
    def spent(self) -> bool:
        """Whether no tries are left."""
        return self.asked >= self._tries

    def fails(self, items: Sequence[T]) -> bool:
        """Return whether these items still fail. Without tries left, return False: nothing is removed unproven."""
        key = self._key(items)
        found = self._known.get(key)
        if found is None:
            if self.spent:
                return False
            self.asked += 1
            found = self._known[key] = self._fails(items)
        return found


def fewest(items: Sequence[T], search: Search[T]) -> list[T]:
    """Return a minimal failing subsequence of the items: it no longer fails if any one of them is removed.

    It may not be minimal if the tries run out. All items together must fail.
    """
    if search.fails(()):
        return []
    left, parts = list(items), 2
    while len(left) > 1:
        chunks = _chunks(left, parts)
        found = _one_that_fails(chunks, search)
        if found is not None:
            left, parts = found, 2
            continue
        found = _one_that_can_go(chunks, search)
        if found is not None:
            left, parts = found, max(parts - 1, 2)
            continue
        if parts >= len(left) or search.spent:
            break
        parts = min(2 * parts, len(left))
    return left


def simplest(items: Sequence[T], simpler: Callable[[T], Iterable[T]], search: Search[T]) -> list[T]:
    """Return the same number of items, each as simple as possible.

    `simpler` yields replacements of an item, simplest first. A replaced item is tried again until nothing simpler
    fails.
    """
    left = list(items)
    for at in range(len(left)):
        changed = True
        while changed and not search.spent:
            changed = False
            for candidate in simpler(left[at]):
                tried = [*left[:at], candidate, *left[at + 1 :]]
                if candidate != left[at] and search.fails(tried):
                    left, changed = tried, True
                    break
    return left


def _chunks(items: list[T], parts: int) -> list[list[T]]:
    size, more = divmod(len(items), parts)
    chunks, start = [], 0
    for number in range(parts):
        end = start + size + (number < more)
        chunks.append(items[start:end])
        start = end
    return [chunk for chunk in chunks if chunk]


def _one_that_fails(chunks: list[list[T]], search: Search[T]) -> list[T] | None:
    return next((chunk for chunk in chunks if search.fails(chunk)), None)


def _one_that_can_go(chunks: list[list[T]], search: Search[T]) -> list[T] | None:
    if len(chunks) == 2:
        return None  # what remains is the other chunk, which was already tested
    for at in range(len(chunks)):
        rest = [item for number, chunk in enumerate(chunks) if number != at for item in chunk]
        if search.fails(rest):
            return rest
    return None


TRIES = 150
SHORTEST = 1.0
"""Shortest duration in seconds."""
SLACK = 1.25
"""Factor on the time to the violation that is allowed at first: with fewer events it may occur a little later."""
OTHERS = 4
"""Number of other seeds to try if an event cannot be removed with the first seed: removing one changes what others
draw."""

_SPECS = ("workloads", "vms", "labs", "blueprints")


class Smallest(msgspec.Struct, kw_only=True):
    """The result of shrinking."""

    scenario: Scenario
    """A scenario without random faults; it fails with its own seed."""
    outcome: Outcome
    """The outcome of that scenario."""
    tries: int
    complete: bool
    """Whether nothing more can be removed. Otherwise the tries ran out before that was known."""


def smallest(
    scenario: Scenario,
    failed: Outcome,
    *,
    parts: Factories | None = None,
    tries: int = TRIES,
    told: Callable[[str], None] = lambda _: None,
) -> Smallest:
    """Remove everything that the failure does not need. `told` is called with the progress.

    `failed` is an outcome of the scenario. Candidates must break the same invariant that was broken first.
    """
    return _Shrinking(scenario, failed, parts, tries, told).result()


class _Shrinking:
    def __init__(
        self, scenario: Scenario, failed: Outcome, parts: Factories | None, tries: int, told: Callable[[str], None]
    ) -> None:
        self._parts, self._told, self._tries = parts, told, tries
        self._broken = failed.violations[0].invariant
        self._seed = self._first = failed.seed
        self._best = scenario.with_timeline(failed.moments, seed=failed.seed)
        self._outcome = failed
        self._asked = 0
        self._found: list[Scenario] = [self._best]
        """All failing candidates, the smallest last."""
        # A violation before the end of the timeline needs no time to settle, however long that would take.
        self._calm = scenario.settle if failed.violations[0].at > scenario.length else SHORTEST

    def result(self) -> Smallest:
        before = len(self._best.timeline)
        self._length(SLACK)
        complete = self._moments()
        self._reseed()
        complete = self._leave_out_specs() and complete
        self._simplify()
        self._length()
        best, outcome, first = self._proof()
        self._told(f"{counted(before, 'event')} → {len(best.timeline)}, in {counted(self._asked, 'try', 'tries')}")
        return Smallest(scenario=best, outcome=outcome, tries=self._asked, complete=complete and first)

    def _proof(self) -> tuple[Scenario, Outcome, bool]:
        """Return the smallest candidate that fails with its full time to settle, and its outcome.

        The third item is whether it was the first candidate tried.
        """
        first = True
        while True:
            best = self._tell_origin(self._found.pop())
            outcome = run_scenario(best, parts=self._parts)
            if self._broken in outcome.broken or not self._found:
                return best, outcome, first
            first = False

    def _fails(self, candidate: Scenario) -> bool:
        self._asked += 1
        hasty = msgspec.structs.replace(candidate, settle=self._calm)
        outcome = run_scenario(hasty, parts=self._parts, kept=False, until=self._broken)
        # A state that is not settled early may settle within its full time.
        last = candidate.length if self._calm < candidate.settle else math.inf
        found = any(each.invariant == self._broken and each.at <= last for each in outcome.violations)
        if found:
            self._best, self._outcome = candidate, outcome
            self._found.append(candidate)
        left = counted(len(self._best.timeline), "event is", "events are")
        self._told(f"try {self._asked} of {self._tries}: {left} left")
        return found

    def _search(self, fails: Callable[[Sequence[Moment]], bool]) -> Search[Moment]:
        return Search(fails, tries=self._tries - self._asked, key=_key)

    def _moments(self) -> bool:
        base = self._best
        search = self._search(lambda some: self._fails(base.with_timeline(tuple(some), seed=self._seed)))
        fewest(base.timeline, search)
        return not search.spent

    def _reseed(self) -> None:
        """Remove one more event, with another seed, as long as that works."""
        left = True
        while left and len(self._best.timeline) > 1:
            left = False
            base, moments = self._best, self._best.timeline
            for at in range(len(moments)):
                fewer = (*moments[:at], *moments[at + 1 :])
                others = range(self._seed + 1, self._seed + 1 + OTHERS)
                seed = next((seed for seed in others if self._asks(base.with_timeline(fewer, seed=seed))), None)
                if seed is not None:
                    self._seed, left = seed, True
                    break

    def _asks(self, candidate: Scenario) -> bool:
        return self._asked < self._tries and self._fails(candidate)

    def _leave_out_specs(self) -> bool:
        base = self._best
        specs = [(kind, at) for kind in _SPECS for at in range(len(getattr(base, kind)))]
        search = Search[tuple[str, int]](lambda some: self._fails(_only(base, some)), tries=self._tries - self._asked)
        fewest(specs, search)
        return not search.spent

    def _length(self, slack: float = 1.0) -> None:
        """Shorten the scenario to the time that the violation needs, times `slack`."""
        at = max((violation.at for violation in self._outcome.violations), default=0.0)
        ends = [moment.at + _lasts(moment) for moment in self._best.timeline]
        for end in sorted({math.ceil(max([*ends, 1.0])), math.ceil(at * slack) + 1}):
            moments = tuple(moment for moment in self._best.timeline if moment.at <= end)
            shorter = self._best.with_timeline(moments, seed=self._seed, length=float(end))
            if end < self._best.length and self._asks(shorter):
                return

    def _simplify(self) -> None:
        base = self._best

        def fails(some: Sequence[Moment]) -> bool:
            ordered = tuple(sorted(some, key=lambda moment: moment.at))
            return self._fails(base.with_timeline(ordered, seed=self._seed, length=base.length))

        simplest(base.timeline, lambda moment: _simpler(moment, base.length), self._search(fails))

    def _tell_origin(self, best: Scenario) -> Scenario:
        about = f"The smallest part of {best.name} with seed {self._first} that still breaks {self._broken}."
        document = {key: about if key == "about" else value for key, value in best.document.items()}
        return msgspec.structs.replace(best, about=about, document=document)


def _only(scenario: Scenario, specs: Sequence[tuple[str, int]]) -> Scenario:
    """Return the scenario with only these specs."""
    document = dict(scenario.document)
    kept = {}
    for kind in _SPECS:
        numbers = [at for of, at in specs if of == kind]
        kept[kind] = _some(getattr(scenario, kind), numbers)
        if kind in document:
            document[kind] = _some(document[kind], numbers)
            if not numbers:
                del document[kind]
    return msgspec.structs.replace(scenario, document=document, **kept)


def _some(specs: Any, numbers: Sequence[int]) -> Any:
    """Return these items of a list, or of a map in the order of the file."""
    if isinstance(specs, dict):
        items = list(specs.items())
        return dict(items[at] for at in numbers)
    return type(specs)(specs[at] for at in numbers)


def _simpler(moment: Moment, length: float) -> Iterator[Moment]:
    """Yield simpler replacements of an event: at a round time, and shorter."""
    at = float(round(moment.at))
    if at <= length:
        yield msgspec.structs.replace(moment, at=at)
    what = moment.what
    if not isinstance(what, FaultBase) or what.for_ is None:
        return
    for lasts in (float(math.ceil(what.for_ / 2)), float(math.ceil(what.for_))):
        if lasts >= SHORTEST:
            yield msgspec.structs.replace(moment, what=msgspec.structs.replace(what, for_=lasts))


def _lasts(moment: Moment) -> float:
    return (moment.what.for_ or 0.0) if isinstance(moment.what, FaultBase) else 0.0


def _key(moments: Sequence[Moment]) -> bytes:
    return msgspec.json.encode([moment.document() for moment in moments])

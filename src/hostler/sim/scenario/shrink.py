"""Shrink a failing schedule: remove the items that the failure does not need, then simplify the rest. Pure.

A predicate says whether a candidate still fails; a schedule is a sequence of values. The result failed when it was last
tested, so it is a reproduction, however the search ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

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

"""Make a failing schedule small: leave out what it fails without, then make what is left simpler. Pure.

Whether a candidate still fails is asked of a predicate; a schedule is a sequence of values. What is returned did fail
when it was last asked about, so it is a reproduction, however the search ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

T = TypeVar("T")


class Search(Generic[T]):
    """Asks the predicate, never twice the same question, and no more often than `tries` allows."""

    def __init__(
        self,
        fails: Callable[[Sequence[T]], bool],
        *,
        tries: int,
        key: Callable[[Sequence[T]], Hashable] = tuple,
    ) -> None:
        """`key` tells one sequence of items from another."""
        self._fails, self._tries, self._key = fails, tries, key
        self._known: dict[Hashable, bool] = {}
        self.asked = 0

    @property
    def spent(self) -> bool:
        """Whether it may ask no more."""
        return self.asked >= self._tries

    def fails(self, items: Sequence[T]) -> bool:
        """Whether these still fail. What may no longer be asked counts as passing: nothing is left out unproven."""
        key = self._key(items)
        found = self._known.get(key)
        if found is None:
            if self.spent:
                return False
            self.asked += 1
            found = self._known[key] = self._fails(items)
        return found


def fewest(items: Sequence[T], search: Search[T]) -> list[T]:
    """Some of the items, in their order, that fail, and no longer do if any one of them is left out (unless the tries
    are spent before that is known). The items as they are must fail."""
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
    """The same number of items, each as simple as it can be: `simpler` tells what to try in its place, simplest first;
    an item that has changed is tried again until nothing simpler fails."""
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
        return None  # what is left is the other chunk, which was asked about
    for at in range(len(chunks)):
        rest = [item for number, chunk in enumerate(chunks) if number != at for item in chunk]
        if search.fails(rest):
            return rest
    return None

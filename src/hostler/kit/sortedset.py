"""A sorted set of strings, cheap to change at any size.

A flat list with `insort` moves half of itself at each insertion; blocks of bounded length do not.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_BLOCK = 1_000


class SortedSet:
    """Strings in code-point order, which is also the order of their UTF-8 bytes."""

    def __init__(self, items: Iterable[str] = ()) -> None:
        ordered = sorted(set(items))
        self._blocks = [ordered[i : i + _BLOCK] for i in range(0, len(ordered), _BLOCK)] or [[]]
        self._lasts = [block[-1] if block else "" for block in self._blocks]
        self._length = len(ordered)

    def __len__(self) -> int:
        return self._length

    def __contains__(self, item: str) -> bool:
        block = self._blocks[self._block_for(item)]
        at = bisect_left(block, item)
        return at < len(block) and block[at] == item

    def add(self, item: str) -> None:
        """Add `item`."""
        index = self._block_for(item)
        block = self._blocks[index]
        at = bisect_left(block, item)
        if at < len(block) and block[at] == item:
            return
        insort(block, item)
        self._length += 1
        if len(block) > 2 * _BLOCK:
            self._blocks[index : index + 1] = [block[:_BLOCK], block[_BLOCK:]]
            self._lasts[index : index + 1] = [block[_BLOCK - 1], block[-1]]
        else:
            self._lasts[index] = block[-1]

    def discard(self, item: str) -> None:
        """Remove `item` if present."""
        index = self._block_for(item)
        block = self._blocks[index]
        at = bisect_left(block, item)
        if at == len(block) or block[at] != item:
            return
        del block[at]
        self._length -= 1
        if block:
            self._lasts[index] = block[-1]
        elif len(self._blocks) > 1:
            del self._blocks[index], self._lasts[index]
        else:
            self._lasts[index] = ""

    def from_(self, start: str, *, after: bool = False) -> Iterator[str]:
        """Iterate over items ≥ `start` (or > it, with `after`), in order.

        The set must not change during the iteration.
        """
        index = self._block_for(start)
        at = (bisect_right if after else bisect_left)(self._blocks[index], start)
        yield from self._blocks[index][at:]
        for block in self._blocks[index + 1 :]:
            yield from block

    def _block_for(self, item: str) -> int:
        return min(bisect_left(self._lasts, item), len(self._blocks) - 1)

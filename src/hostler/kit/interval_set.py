"""A set of whole numbers that is cheap to change at any size, and knows its lowest, its highest and its gaps.

Bits in blocks: 1,024 numbers are one integer, so a million of them take as much memory as a short text.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_BLOCK = 1_024
_FULL = (1 << _BLOCK) - 1


class Numbers:
    """A set of numbers from 0."""

    __slots__ = ("_blocks", "_length", "_masks", "_maybe_free")

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self._masks: dict[int, int] = {}
        self._blocks: list[int] = []  # the blocks that are not empty, in order
        self._length = 0
        self._maybe_free = 0  # no block before this one has a gap
        for number in numbers:
            self.add(number)

    def __len__(self) -> int:
        return self._length

    def __contains__(self, number: int) -> bool:
        block, at = divmod(number, _BLOCK)
        return bool(self._masks.get(block, 0) >> at & 1)

    def __iter__(self) -> Iterator[int]:
        """Iterate from the lowest. The set must not change during the iteration."""
        return self.above(-1)

    def __repr__(self) -> str:
        return f"Numbers({list(self)})"

    def add(self, number: int) -> None:
        """Add a number."""
        block, at = divmod(number, _BLOCK)
        mask = self._masks.get(block, 0)
        if mask >> at & 1:
            return
        if not mask:
            insort(self._blocks, block)
        self._masks[block] = mask | 1 << at
        self._length += 1

    def discard(self, number: int) -> None:
        """Remove a number if present."""
        block, at = divmod(number, _BLOCK)
        mask = self._masks.get(block, 0)
        if not mask >> at & 1:
            return
        mask ^= 1 << at
        if mask:
            self._masks[block] = mask
        else:
            del self._masks[block]
            del self._blocks[bisect_left(self._blocks, block)]
        self._length -= 1
        self._maybe_free = min(self._maybe_free, block)

    def above(self, number: int) -> Iterator[int]:
        """Iterate over the numbers above `number`, ascending. The set must not change during the iteration."""
        first, at = divmod(number + 1, _BLOCK)
        for block in self._blocks[bisect_left(self._blocks, first) :]:
            mask = self._masks[block]
            if block == first:
                mask = mask >> at << at
            while mask:
                low = mask & -mask
                yield block * _BLOCK + low.bit_length() - 1
                mask ^= low

    def below(self, number: int | None = None) -> Iterator[int]:
        """Iterate over the numbers below `number`, or all, descending. The set must not change during the iteration."""
        blocks = self._blocks if number is None else self._blocks[: bisect_right(self._blocks, number // _BLOCK)]
        for block in reversed(blocks):
            mask = self._masks[block]
            if number is not None and block == number // _BLOCK:
                mask &= (1 << number % _BLOCK) - 1
            while mask:
                high = mask.bit_length() - 1
                yield block * _BLOCK + high
                mask ^= 1 << high

    def free(self, start: int = 0) -> Iterator[int]:
        """Iterate over the numbers not in the set, ascending, endlessly.

        The set must not change during the iteration.
        """
        while self._masks.get(self._maybe_free) == _FULL:
            self._maybe_free += 1
        block = max(self._maybe_free, start // _BLOCK)
        while True:
            gaps = _FULL ^ self._masks.get(block, 0)
            if block == start // _BLOCK:
                gaps = gaps >> start % _BLOCK << start % _BLOCK
            while gaps:
                low = gaps & -gaps
                yield block * _BLOCK + low.bit_length() - 1
                gaps ^= low
            block += 1

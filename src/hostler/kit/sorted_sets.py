"""Sorted sets that are cheap to change at any size: of strings, and of whole numbers."""

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


_BITS = 1_024
_FULL = (1 << _BITS) - 1


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
        block, at = divmod(number, _BITS)
        return bool(self._masks.get(block, 0) >> at & 1)

    def __iter__(self) -> Iterator[int]:
        """Iterate from the lowest. The set must not change during the iteration."""
        return self.above(-1)

    def __repr__(self) -> str:
        return f"Numbers({list(self)})"

    def add(self, number: int) -> None:
        """Add a number."""
        block, at = divmod(number, _BITS)
        mask = self._masks.get(block, 0)
        if mask >> at & 1:
            return
        if not mask:
            insort(self._blocks, block)
        self._masks[block] = mask | 1 << at
        self._length += 1

    def discard(self, number: int) -> None:
        """Remove a number if present."""
        block, at = divmod(number, _BITS)
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
        first, at = divmod(number + 1, _BITS)
        for block in self._blocks[bisect_left(self._blocks, first) :]:
            mask = self._masks[block]
            if block == first:
                mask = mask >> at << at
            while mask:
                low = mask & -mask
                yield block * _BITS + low.bit_length() - 1
                mask ^= low

    def below(self, number: int | None = None) -> Iterator[int]:
        """Iterate over the numbers below `number`, or all, descending. The set must not change during the iteration."""
        blocks = self._blocks if number is None else self._blocks[: bisect_right(self._blocks, number // _BITS)]
        for block in reversed(blocks):
            mask = self._masks[block]
            if number is not None and block == number // _BITS:
                mask &= (1 << number % _BITS) - 1
            while mask:
                high = mask.bit_length() - 1
                yield block * _BITS + high
                mask ^= 1 << high

    def free(self, start: int = 0) -> Iterator[int]:
        """Iterate over the numbers not in the set, ascending, endlessly.

        The set must not change during the iteration.
        """
        while self._masks.get(self._maybe_free) == _FULL:
            self._maybe_free += 1
        block = max(self._maybe_free, start // _BITS)
        while True:
            gaps = _FULL ^ self._masks.get(block, 0)
            if block == start // _BITS:
                gaps = gaps >> start % _BITS << start % _BITS
            while gaps:
                low = gaps & -gaps
                yield block * _BITS + low.bit_length() - 1
                gaps ^= low
            block += 1

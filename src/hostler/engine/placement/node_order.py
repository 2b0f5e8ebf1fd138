"""Nodes on duty, emptiest first, and the walk over them that finds a few suitable ones.

The order consists of blocks of bounded length. Each block knows its largest free capacity: a block with too little is
skipped at once.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from hostler.engine.placement.node_state import NodeSlot, Position

BLOCK = 64
ENOUGH = 8
"""Number of candidates that are scored."""
LOOK = 32
"""Number of suitable nodes after which the search for other racks ends."""
NAMES = 3
NO_ROOM = "too little room"


class Block:
    """A section of the order.

    The largest free capacity is never too low; it may be too high. The smallest is never too high.
    """

    __slots__ = ("cpus", "disk", "least_cpus", "least_disk", "least_memory", "memory", "positions", "slots")

    def __init__(self, slots: list[NodeSlot]) -> None:
        self.slots = slots
        self.positions = [slot.position for slot in slots]
        self.tighten()

    def tighten(self) -> None:
        """Recompute the largest and smallest free capacity exactly."""
        cpus = [slot.cpus for slot in self.slots] or [0]
        memory = [slot.memory for slot in self.slots] or [0]
        disk = [slot.disk for slot in self.slots] or [0]
        self.cpus, self.memory, self.disk = max(cpus), max(memory), max(disk)
        self.least_cpus, self.least_memory, self.least_disk = min(cpus), min(memory), min(disk)

    def taken_in(self, slot: NodeSlot) -> None:
        """Update the bounds for an added node."""
        cpus, memory, disk = slot.cpus, slot.memory, slot.disk
        # max() and min() take twice as long.
        if cpus > self.cpus:  # noqa: PLR1730
            self.cpus = cpus
        if memory > self.memory:  # noqa: PLR1730
            self.memory = memory
        if disk > self.disk:  # noqa: PLR1730
            self.disk = disk
        if cpus < self.least_cpus:  # noqa: PLR1730
            self.least_cpus = cpus
        if memory < self.least_memory:  # noqa: PLR1730
            self.least_memory = memory
        if disk < self.least_disk:  # noqa: PLR1730
            self.least_disk = disk


class Order:
    """Nodes by position. A node must be removed before its position changes."""

    def __init__(self, slots: Iterable[NodeSlot] = ()) -> None:
        ordered = sorted(slots, key=lambda slot: slot.position)
        self.blocks = [Block(ordered[at : at + BLOCK]) for at in range(0, len(ordered), BLOCK)]
        self._lasts: list[Position] = [block.positions[-1] for block in self.blocks]
        """For each block, a position not before its last and before the first of the next."""
        self._length = len(ordered)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[NodeSlot]:
        for block in self.blocks:
            yield from block.slots

    def add(self, slot: NodeSlot) -> None:
        """Insert a node."""
        self._length += 1
        position = slot.position
        if not self.blocks:
            self.blocks, self._lasts = [Block([slot])], [position]
            return
        index = bisect_left(self._lasts, position)
        if index == len(self._lasts):
            index -= 1
            self._lasts[index] = position
        block = self.blocks[index]
        at = bisect_left(block.positions, position)
        block.positions.insert(at, position)
        block.slots.insert(at, slot)
        block.taken_in(slot)
        if len(block.slots) > 2 * BLOCK:
            halves = [Block(block.slots[:BLOCK]), Block(block.slots[BLOCK:])]
            self.blocks[index : index + 1] = halves
            self._lasts[index : index + 1] = [half.positions[-1] for half in halves]

    def remove(self, slot: NodeSlot) -> None:
        """Remove a node, which must be present."""
        self._length -= 1
        index = bisect_left(self._lasts, slot.position)
        block = self.blocks[index]
        at = bisect_left(block.positions, slot.position)
        del block.positions[at], block.slots[at]
        if not block.slots:
            del self.blocks[index], self._lasts[index]


class Walk:
    """Result of a walk from the emptiest node on: at least one node, if any is suitable.

    It ends once `ENOUGH` in different racks were found, or `LOOK` in any.
    """

    __slots__ = ("_check", "_cpus", "_disk", "_memory", "_racks", "_spare", "fitting", "found", "refused")

    def __init__(self, cpus: int, memory: int, disk: int, check: Callable[[NodeSlot], str | None] | None) -> None:
        self._cpus, self._memory, self._disk, self._check = cpus, memory, disk, check
        self._racks: set[str | None] = set()
        self._spare: list[NodeSlot] = []
        self.found: list[NodeSlot] = []
        self.refused: dict[str, tuple[int, list[str]]] = {}
        """Unsuitable nodes up to the end of the walk: by reason the number, and the first names."""
        self.fitting = 0

    def over(self, blocks: Iterable[Block]) -> None:
        """Walk over the blocks; capacity is checked before anything else."""
        for block in blocks:
            if block.cpus < self._cpus or block.memory < self._memory or block.disk < self._disk:
                self._refuse(NO_ROOM, len(block.slots), block.slots)
            elif self._through(block):
                break
        self.fitting = len(self.found) + len(self._spare)
        self.found += self._spare[: max(0, ENOUGH - len(self.found))]

    def _through(self, block: Block) -> bool:
        """Return whether enough nodes were found."""
        cpus, memory, disk, check, racks = self._cpus, self._memory, self._disk, self._check, self._racks
        found, spare = self.found, self._spare
        left, roomy = LOOK - len(found) - len(spare), False
        tight = block.least_cpus < cpus or block.least_memory < memory or block.least_disk < disk
        for slot in block.slots:
            if tight and (slot.cpus < cpus or slot.memory < memory or slot.disk < disk):
                self._refuse(NO_ROOM, 1, (slot,))
                continue
            roomy = True
            if check is not None and (why := check(slot)) is not None:
                self._refuse(why, 1, (slot,))
                continue
            rack = slot.rack
            if rack is None or rack not in racks:
                racks.add(rack)
                found.append(slot)
                if len(found) == ENOUGH:
                    return True
            else:
                spare.append(slot)
            left -= 1
            if not left:
                return True
        if not roomy:
            block.tighten()
        return False

    def _refuse(self, why: str, count: int, slots: Iterable[NodeSlot]) -> None:
        before, names = self.refused.get(why, (0, []))
        if len(names) < NAMES:
            for slot in slots:
                names.append(slot.node)
                if len(names) == NAMES:
                    break
        self.refused[why] = (before + count, names)

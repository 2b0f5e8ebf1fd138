"""From request to login: one machine, and several at once, compared with bare QEMU in alternating rounds."""

from __future__ import annotations

import asyncio
import math
import statistics
from typing import TYPE_CHECKING

import msgspec

from bench import machines_bare
from bench.report import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from bench.machines_bare import Recipe
    from bench.machines_plane import RealPlane, Way

ONE_RATIO, AT_ONCE_RATIO = 1.10, 1.15
OWN_MS = 100
BARE = "bare QEMU"


class Pair(msgspec.Struct, frozen=True):
    """One round: the same number of machines by the control plane and by bare QEMU."""

    ours: Sequence[Way]
    bare: Sequence[Way]
    cpu: float = 0.0
    """Processor seconds of the control plane for its machines."""

    @property
    def last(self) -> tuple[float, float]:
        """Return the seconds until the last machine was available, for both sides."""
        return max(way.available for way in self.ours), max(way.available for way in self.bare)


async def measure(
    plane: RealPlane, recipe: Recipe, folder: Path, *, rounds: int, count: int, tell: Callable[[str], None]
) -> list[Pair]:
    """Run rounds of `count` machines at once; the sides alternate in going first."""
    pairs = []
    for number in range(rounds):
        tell(f"{count} at once, round {number + 1} of {rounds}")
        if number % 2:
            bare = await _bare(recipe, folder, number, count)
            ours, cpu = await _ours(plane, count)
        else:
            ours, cpu = await _ours(plane, count)
            bare = await _bare(recipe, folder, number, count)
        pairs.append(Pair(ours, bare, cpu))
    return pairs


async def _ours(plane: RealPlane, count: int) -> tuple[list[Way], float]:
    before = plane.process.cpu()
    made = await asyncio.gather(*(plane.create_machine() for _ in range(count)))
    cpu = plane.process.cpu() - before
    await plane.gone(*(view.id for view, _ in made))
    return [way for _, way in made if way is not None], cpu


async def _bare(recipe: Recipe, folder: Path, number: int, count: int) -> list[Way]:
    return await machines_bare.boot(recipe, [folder / f"bare-{count}-{number}-{index}" for index in range(count)])


def one_rows(pairs: Sequence[Pair]) -> list[Row]:
    """Return the rows of rounds with one machine each."""
    rows = [_ratio("create to SSH", pairs, ONE_RATIO)]
    both = [(pair.ours[0], pair.bare[0]) for pair in pairs]
    seen = [(ours, bare) for ours, bare in both if math.isfinite(ours.outside)]
    rows.append(
        Row(
            what="… more than bare",
            found=_ms(ours.available - bare.available for ours, bare in both),
            unit="ms",
        )
    )
    rows.append(Row(what="… processor time of the control plane", found=_ms(pair.cpu for pair in pairs), unit="ms"))
    if not seen:  # each step of each boot passed before it was observed
        return rows
    began = _ms(ours.began for ours, _ in seen), _ms(bare.began for _, bare in seen)
    after = (
        _ms(ours.available - ours.ready for ours, _ in seen),
        _ms(bare.available - bare.ready for _, bare in seen),
    )
    parts = (("… request to the first instruction", began), ("… ready line to the available machine", after))
    for what, (found, other) in parts:
        rows.append(Row(what=what, found=found, unit="ms", against=BARE, other=other))
    rows.append(
        Row(
            what="… the control plane's own share of these",
            found=_ms(ours.outside - bare.outside for ours, bare in seen),
            unit="ms",
            wanted=OWN_MS,
            at_most=True,
        )
    )
    return rows


def at_once_rows(pairs: Sequence[Pair]) -> list[Row]:
    """Return the rows of rounds with several machines."""
    return [_ratio(f"{len(pairs[0].ours)} at once: create to the last SSH", pairs, AT_ONCE_RATIO)]


def _ratio(what: str, pairs: Sequence[Pair], wanted: float) -> Row:
    ours, bare = zip(*(pair.last for pair in pairs), strict=True)
    return Row(
        what=f"{what}, times the bare one's",
        found=statistics.median(one / other for one, other in zip(ours, bare, strict=True)),
        unit="",
        wanted=wanted,
        at_most=True,
        against=f"{BARE}: {statistics.median(bare):.2f} s; ours {statistics.median(ours):.2f} s",
    )


def _ms(seconds: Iterable[float]) -> float:
    return 1000 * statistics.median(seconds)

"""Start from a saved state compared with a boot: the same guest, alternating."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from bench.machines_bare import command_line
from bench.machines_plane import MEMORY_MIB, TINY
from bench.report import Row
from hostler.errors import Conflict
from hostler.model.vm import Power
from hostler.wiring import open_images

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.machines_plane import RealPlane
    from hostler.settings import Settings

WANTED = 3
COLD_MIB = MEMORY_MIB + 4
"""A size for which no state is saved."""


async def measure(
    plane: RealPlane, settings: Settings, *, rounds: int, tell: Callable[[str], None]
) -> list[Row]:  # fmt: skip
    """Measure how many times as fast a machine that is off becomes available."""
    tell("saving the state of the booted tiny guest")
    images = open_images(settings.data / "images", settings=settings)
    await images.warm(TINY, cpus=1, memory_mib=MEMORY_MIB, progress=lambda what, *_: tell(f"warm: {what}"))
    warm, cold = [], []
    for number in range(rounds):
        tell(f"warm and cold, round {number + 1} of {rounds}")
        warm.append(await _time_start(plane, MEMORY_MIB, is_warm=True))
        cold.append(await _time_start(plane, COLD_MIB, is_warm=False))
    found, other = statistics.median(warm), statistics.median(cold)
    return [
        Row(
            what="warm start, times as fast as cold",
            found=statistics.median(slow / fast for slow, fast in zip(cold, warm, strict=True)),
            unit="",
            wanted=WANTED,
            against=f"cold: {other:.2f} s; warm {found:.2f} s",
        )
    ]


async def _time_start(plane: RealPlane, memory_mib: int, *, is_warm: bool) -> float:
    view, _ = await plane.create_machine(power=Power.OFF, memory_mib=memory_mib)
    _, way = await plane.start_machine(view.id)
    if is_warm != ("-incoming" in command_line(plane.folder_of(view.id))):
        raise Conflict(f"bench: a machine of {memory_mib} MiB was {'not ' * is_warm}started from a saved state")
    await plane.gone(view.id)
    return way.available

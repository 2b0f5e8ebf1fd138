"""Clocks that run at another rate."""

from __future__ import annotations

import random

import pytest

from hostler.kit.virtual_loop import VirtualClock, run_virtual
from hostler.sim.world.host import RatedClock


def test_what_it_measures_and_how_long_it_sleeps_follow_its_rate() -> None:
    async def main() -> None:
        true = VirtualClock()
        clock = RatedClock(true)
        await clock.sleep(10)
        assert (clock.now(), true.now()) == (10, 10)
        clock.rate = 2.0
        await clock.sleep(10)
        assert (clock.now(), true.now()) == pytest.approx((20, 15))
        clock.rate = 0.5
        await true.sleep(10)
        assert (clock.now(), true.now()) == pytest.approx((25, 25))
        clock.rate = 1.0
        await clock.sleep(5)
        assert (clock.now(), true.now()) == pytest.approx((30, 30))
        assert clock.wall() == true.wall()

    run_virtual(main)


def test_an_instant_is_found_again_on_the_clock_underneath() -> None:
    async def main() -> None:
        true, rng = VirtualClock(), random.Random(1)
        clock = RatedClock(true)
        seen = [(0.0, 0.0)]
        for _ in range(50):
            await true.sleep(rng.uniform(0, 10))
            seen.append((clock.now(), true.now()))
            clock.rate = rng.choice((0.5, 0.9, 1.0, 1.1, 3.0))
        for own, at in seen:
            assert clock.underneath(own) == pytest.approx(at)
        assert clock.underneath(clock.now() + 3) == pytest.approx(true.now() + 3 / clock.rate)

    run_virtual(main)


def test_who_sleeps_until_a_deadline_finds_that_it_has_passed() -> None:
    async def main() -> None:
        true, rng = VirtualClock(), random.Random(2)
        clock = RatedClock(true)
        for _ in range(2_000):
            await true.sleep(rng.uniform(0, 10))
            clock.rate = rng.choice((0.9, 1.0, 1.1, 1.7))
            deadline = clock.now() + rng.uniform(0, 10)
            await clock.sleep(deadline - clock.now())
            assert clock.now() >= deadline

    run_virtual(main)


def test_time_does_not_stand_still_or_go_back() -> None:
    async def main() -> None:
        clock = RatedClock(VirtualClock())
        for rate in (0.0, -1.0):
            with pytest.raises(ValueError, match="must be above 0"):
                clock.rate = rate

    run_virtual(main)

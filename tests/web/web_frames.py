"""How many frames a second the page shows, or would, had it the machine to itself."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable

from playwright.async_api import CDPSession, Page

LONG_ENOUGH = 40.0
"""Seconds for which other work on the machine may make everything slow."""
SLOWEST = 30.0
"""Frames per second."""


async def some_round(
    measure: Callable[[], Awaitable[float]], good: Callable[[float], bool], excused: Callable[[], bool]
) -> float:
    """What a round came to that is good enough, or the last one. What is slow by itself is so in every round;
    what is slow because of other tests on this machine is not, if it is looked at for long enough.

    `excused`: what was measured besides says that it is the others, so that three rounds do."""
    rounds, end = 0, time.monotonic() + LONG_ENOUGH
    while True:
        found, rounds = await measure(), rounds + 1
        if good(found) or (rounds >= 3 and (excused() or time.monotonic() > end)):
            return found


def others_work() -> bool:
    return os.getloadavg()[0] > (os.cpu_count() or 1)


SCROLL = """([selector, by]) => new Promise((done) => {
  const box = document.querySelector(selector) ?? document.scrollingElement;
  const times = [];
  const step = (now) => {
    times.push(now);
    const far = !by || box.scrollTop > box.clientHeight || now - times[0] > 30000;
    if (times.length > 120 || (now - times[0] > 3000 && far)) {
      done({ times, top: box.scrollTop, seen: box.clientHeight });
    } else {
      box.scrollTop += by;
      if (!by) box.dispatchEvent(new Event("scroll"));
      requestAnimationFrame(step);
    }
  };
  box.scrollTop = 0;
  requestAnimationFrame(step);
})"""


class Frames:
    """How the page keeps up while a box of it is scrolled by so many pixels with each frame; 0: it is drawn anew."""

    def __init__(self, page: Page, selector: str, by: int = 0) -> None:
        self._page, self._scrolled, self._scrolls = page, [selector, by], by > 0
        self.shown = 0.0
        """Frames per second, as they came."""
        self.possible = 0.0
        """Frames per second that the page's own work would allow on a machine with nothing else to do."""

    async def measure(self) -> float:
        cdp = await self._page.context.new_cdp_session(self._page)
        await cdp.send("Performance.enable", {"timeDomain": "threadTicks"})  # work, without waiting for a processor
        before = await self._work(cdp)
        told = await self._page.evaluate(SCROLL, self._scrolled)
        worked, times = await self._work(cdp) - before, told["times"]
        await cdp.detach()
        assert not self._scrolls or told["top"] > told["seen"], f"{self._scrolled}: it did not scroll"
        self.shown = 1000.0 * (len(times) - 1) / float(times[-1] - times[0])
        self.possible = (len(times) - 1) / worked
        print(f"{self._scrolled}: {self.shown:.0f} frames/s were shown, {self.possible:.0f} frames/s are possible")
        return self.shown

    async def _work(self, cdp: CDPSession) -> float:
        told = await cdp.send("Performance.getMetrics")
        return float(next(one["value"] for one in told["metrics"] if one["name"] == "TaskDuration"))

    async def check(self) -> None:
        """Where other tests have the processors, what the page does itself is what counts."""
        shown = await some_round(self.measure, lambda rate: rate >= SLOWEST, self._hindered)
        assert shown >= SLOWEST or self._hindered(), f"{shown:.0f} frames/s; {self.possible:.0f} are possible"

    def _hindered(self) -> bool:
        return others_work() and self.possible >= 2 * SLOWEST

"""Letting others run."""

from __future__ import annotations

import asyncio

from hostler.kit.tasks import Fairness

SPAN = 5.0
"""Seconds: more than a test takes, and less than any machine has been up, which is what the loop's clock tells."""


class Turns:
    """How many turns of the event loop went by."""

    def __init__(self) -> None:
        self.count, self._ended = 0, False

    async def run(self) -> None:
        while not self._ended:
            self.count += 1
            await asyncio.sleep(0)

    def end(self) -> None:
        self._ended = True


async def test_of_all_who_ask_in_one_turn_one_steps_back() -> None:
    """Otherwise a server with a hundred readers puts off all of them each time, and each costs another turn."""
    fairness, order = Fairness(span=SPAN), list[str]()

    async def reader(name: str) -> None:
        await fairness.share()
        order.append(name)

    await asyncio.gather(*(reader(name) for name in "abc"))
    assert order == ["b", "c", "a"]


async def test_who_never_waits_lets_others_run() -> None:
    fairness, turns = Fairness(span=0.0), Turns()
    other = asyncio.create_task(turns.run())
    for _ in range(10):
        await fairness.share()
        # a span of nothing is over once the clock has moved
        before = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() == before:
            pass
    turns.end()
    await other
    assert turns.count >= 10


async def test_within_the_span_nobody_is_put_off() -> None:
    fairness, turns = Fairness(span=SPAN), Turns()
    await fairness.share()
    other = asyncio.create_task(turns.run())
    for _ in range(1000):
        await fairness.share()
    assert turns.count == 0
    turns.end()
    await other

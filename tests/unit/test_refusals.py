"""Refused requests in the audit log: aggregated, bounded, and kept over an outage."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from msgspec import UNSET

from hostler.drivers.store.memory import MemoryStore
from hostler.engine.access.refusals import EVERY, HELD, LINES, RIGHT, SIGN_IN, Refusals
from hostler.errors import Unavailable
from hostler.keys.families import AUDIT
from hostler.kit.virtual_loop import VirtualClock, run_virtual
from hostler.model.access import Audit


class Scene:
    """A server's refusals, on a store that can be out of reach."""

    def __init__(self, store: MemoryStore, clock: VirtualClock) -> None:
        self._store, self.clock = store, clock
        self.is_silent = False
        ids = itertools.count()
        self.refusals = Refusals(
            self,  # type: ignore[arg-type]
            clock=clock,
            new_id=lambda: f"{next(ids):06d}",
            exists=lambda name: name in {"ada", "bob"},
        )

    async def txn(self, when: Any, then: Any) -> Any:
        if self.is_silent:
            raise Unavailable("store: out of reach")
        return await self._store.txn(when, then)

    async def lines(self) -> list[Audit]:
        return [entry.value for entry in (await AUDIT.list(self._store)).entries]


@asynccontextmanager
async def scened() -> AsyncIterator[Scene]:
    clock = VirtualClock()
    async with MemoryStore(clock=clock) as store:
        scene = Scene(store, clock)
        task = asyncio.create_task(scene.refusals.run())
        try:
            yield scene
        finally:
            task.cancel()
            await asyncio.wait((task,))


def virtual(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        run_virtual(test)

    run.__name__ = test.__name__
    return run


@virtual
async def test_a_minute_is_one_line_for_each_account_address_and_kind() -> None:
    async with scened() as scene:
        for _ in range(500):
            scene.refusals.note(SIGN_IN, "ada", "10.0.0.1", "session.login")
            scene.refusals.note(RIGHT, "bob", "10.0.0.1", "vm.create")
            scene.refusals.note(SIGN_IN, "hunter2", "10.0.0.2", "session.login")
        assert not await scene.lines()
        await scene.clock.sleep(EVERY + 1)
        found = {(line.verb, line.who, line.source, line.count) for line in await scene.lines()}
        assert found == {
            ("refused.sign-in", "ada", "10.0.0.1", 500),
            ("refused.right", "bob", "10.0.0.1", 500),
            ("refused.sign-in", "", "10.0.0.2", 500),
        }
        await scene.clock.sleep(10 * EVERY)
        assert len(await scene.lines()) == 3, "nothing happened, nothing is written"


@virtual
async def test_an_attack_from_many_addresses_writes_few_lines_and_counts_all() -> None:
    async with scened() as scene:
        for number in range(3 * HELD):
            scene.refusals.note(SIGN_IN, "ada", f"10.0.{number // 250}.{number % 250}", "session.login")
        for _ in range(10):
            scene.refusals.note(SIGN_IN, "ada", "10.0.0.1", "session.login")
        await scene.clock.sleep(EVERY + 1)
        lines = await scene.lines()
        assert len(lines) <= LINES + 1
        assert sum(line.count for line in lines if line.count is not UNSET) == 3 * HELD + 10
        assert ("10.0.0.1", 11) in {(line.source, line.count) for line in lines}, "the most frequent ones are named"
        assert [line for line in lines if line.verb == "refused.others"]


@virtual
async def test_what_the_store_did_not_take_is_written_later() -> None:
    async with scened() as scene:
        scene.is_silent = True
        scene.refusals.note(SIGN_IN, "ada", "10.0.0.1", "session.login")
        await scene.clock.sleep(3 * EVERY)
        scene.refusals.note(SIGN_IN, "ada", "10.0.0.1", "session.login")
        scene.is_silent = False
        await scene.refusals.aclose()
        [line] = await scene.lines()
        assert (line.count, line.name) == (2, "session.login")

"""The view: mirrors, where machines are, and how fresh it says it is."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest
from controller_world import ids, vm

from hostler.drivers.store.faulty import FaultyStore
from hostler.drivers.store.memory import MemoryStore
from hostler.engine.view import View
from hostler.errors import Closed
from hostler.keys.families import COMMAND, VM
from hostler.kit.virtual_loop import VirtualClock, run_virtual
from hostler.model.node import VmCommand
from hostler.model.vm import VmSpec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


def play(
    story: Callable[[FaultyStore, View], Awaitable[None]], *, seed: int = 0, write_every: float | None = None
) -> None:
    async def main() -> None:
        clock = VirtualClock()
        async with FaultyStore(MemoryStore(clock=clock), random.Random(seed), clock=clock) as store:
            view = View(store, clock=clock, rng=random.Random(seed), write_every=write_every)
            running = asyncio.create_task(view.run(), name="view")
            try:
                await story(store, view)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    run_virtual(main, seed=seed)


def command(id_: str) -> VmCommand:
    return VmCommand(org="o", project="p", vm=id_, spec=VmSpec(cpus=1, memory_mib=1))


def test_it_is_neither_healthy_nor_fresh_before_the_store_has_answered() -> None:
    async def story(store: FaultyStore, view: View) -> None:
        assert not view.healthy()
        assert view.stale_for() == float("inf")
        await view.ready()
        assert view.healthy()
        assert view.stale_for() == 0.0

    play(story)


def test_one_lost_answer_is_no_outage_and_an_outage_is_noticed_within_three_seconds() -> None:
    async def story(store: FaultyStore, view: View) -> None:
        await view.ready()
        store.script("get", "unavailable")
        for _ in range(30):
            await asyncio.sleep(0.1)
            assert view.healthy()
        store.down()
        await asyncio.sleep(3)
        assert not view.healthy()
        await asyncio.sleep(60)
        assert 60 <= view.stale_for() <= 65
        store.up()
        await asyncio.sleep(0.5)
        assert view.healthy()
        assert view.stale_for() == 0.0

    play(story)


def test_a_process_that_slept_does_not_take_what_it_knew_for_fresh() -> None:
    class Jumping(VirtualClock):
        """Jumps at once, as if nothing had run meanwhile."""

        slept = 0.0

        def now(self) -> float:
            return super().now() + self.slept

    async def main() -> None:
        clock = Jumping()
        async with MemoryStore(clock=clock) as store:
            view = View(store, clock=clock)
            running = asyncio.create_task(view.run(), name="view")
            await view.ready()
            clock.slept = 600.0
            assert 600 <= view.stale_for() <= 602
            await asyncio.sleep(3)
            assert view.stale_for() == 0.0
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    run_virtual(main)


def test_a_store_that_hangs_is_out_of_reach_too() -> None:
    async def story(store: FaultyStore, view: View) -> None:
        await view.ready()
        store.faults.slow, store.faults.slowest = 1.0, 10_000.0
        await asyncio.sleep(10)
        assert not view.healthy()

    play(story, seed=3)


def test_refreshed_it_holds_what_was_written_before_though_no_event_came() -> None:
    async def story(store: FaultyStore, view: View) -> None:
        await view.ready()
        store.faults.slow, store.faults.slowest = 1.0, 1.0
        await VM.create(store, vm("a"), **ids("a"))
        await view.refresh(view.vms)
        assert view.vms.get(**ids("a")) is not None

    play(story)


@pytest.mark.parametrize("seed", range(5))
def test_the_index_of_commands_is_what_the_commands_say_whatever_was_missed(seed: int) -> None:
    async def story(store: FaultyStore, view: View) -> None:
        rng = random.Random(seed)
        store.faults.lagged = store.faults.compacted = 0.1
        await view.ready()
        for _ in range(300):
            node, id_ = f"n{rng.randrange(3)}", f"v{rng.randrange(8)}"
            if rng.random() < 0.5:
                await store.put(COMMAND.fill(node=node, vm=id_), command(id_).encode())
            else:
                await store.delete(COMMAND.fill(node=node, vm=id_))
            await asyncio.sleep(rng.random() / 10)
        await asyncio.sleep(5)
        listing = await COMMAND.list(store)
        truth = {(entry.parts["node"], entry.parts["vm"]) for entry in listing.entries}
        for node in ("n0", "n1", "n2"):
            assert {(node, entry.value.vm) for entry in view.commands_of(node)} == {t for t in truth if t[0] == node}
            assert view.count_on(node) == len([t for t in truth if t[0] == node])
        for number in range(8):
            nodes = {node for node, id_ in truth if id_ == f"v{number}"}
            assert set(view.nodes_of(f"v{number}")) == nodes
            assert (view.node_of.get(f"v{number}") in nodes) if nodes else f"v{number}" not in view.node_of
        assert len(view.node_of) == len({id_ for _, id_ in truth})

    play(story, seed=seed)


def test_a_closed_store_ends_it_and_leaves_no_task() -> None:
    async def main() -> None:
        clock = VirtualClock()
        store = MemoryStore(clock=clock)
        async with store:
            view = View(store, clock=clock)
            running = asyncio.create_task(view.run(), name="view")
            await view.ready()
        await asyncio.wait((running,))
        assert isinstance(running.exception(), Closed)

    run_virtual(main)


def test_a_store_that_takes_no_write_is_healthy_for_reads_and_not_writable_until_a_write_succeeds() -> None:
    async def story(store: FaultyStore, view: View) -> None:
        await view.ready()
        assert (view.writable(), view.problem()) == (True, "")
        store.script("grant", "unavailable", times=20)
        await asyncio.sleep(5 + 2)
        assert (view.healthy(), view.writable(), view.stale_for()) == (True, False, 0.0)
        assert view.problem()
        await asyncio.sleep(20)
        assert (view.writable(), view.problem()) == (True, "")

    play(story, write_every=5.0)

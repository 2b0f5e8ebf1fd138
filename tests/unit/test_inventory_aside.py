"""A plan of thousands of blades is made beside the loop, which goes on meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from service_scene import ADMIN, asked

from hostler.drivers.store.memory import MemoryStore
from hostler.engine.idempotent_writer import Writer
from hostler.engine.inventory import service as module
from hostler.engine.inventory.export import document_of
from hostler.engine.inventory.inventory_file import Inventory, inventory_in
from hostler.engine.inventory.service import InventoryService
from hostler.engine.view import View
from hostler.errors import Unavailable
from hostler.kit.clock import SystemClock

TRIES = 5


def racks(count: int, blades: int) -> Inventory:
    feeds: dict[str, Any] = {kind: [{"name": kind[:-1], "ports": blades}] for kind in ("pdus", "tors")}
    return inventory_in(
        {"racks": [{"name": f"r{n}", "blades": {"count": blades, "cpus": 8}, **feeds} for n in range(count)]}
    )


@pytest.fixture
async def services() -> AsyncIterator[tuple[InventoryService, InventoryService]]:
    """One that works aside, and one that does not, on the same store."""
    clock = SystemClock()
    async with MemoryStore(clock=clock) as store:
        view = View(store, clock=clock)
        writer = Writer(store, clock=clock, new_id=lambda: "id")
        yield InventoryService(store, writer, view, aside=True), InventoryService(store, writer, view)


async def test_plans_loads_and_what_is_shown_are_worked_out_in_a_thread(
    services: tuple[InventoryService, InventoryService], monkeypatch: pytest.MonkeyPatch
) -> None:
    where: list[bool] = []
    for name in ("desired_records", "plan", "_digest", "_change_view", "document_of"):
        monkeypatch.setattr(module, name, _noted(where, getattr(module, name)))
    aside, plain = services
    small = racks(1, 2)
    planned = await aside.plan(ADMIN, small)
    await aside.load(asked(ADMIN), small, agreed=planned.digest)
    await aside.show(ADMIN)
    assert where
    assert not any(where), "something was worked out on the loop"
    assert (await plain.plan(ADMIN, small)).changes == (await aside.plan(ADMIN, small)).changes == ()
    assert await plain.show(ADMIN) == await aside.show(ADMIN)
    assert any(where)


async def test_the_loop_does_not_stand_still_while_thousands_of_blades_are_planned(
    services: tuple[InventoryService, InventoryService],
) -> None:
    aside, plain = services
    many = racks(75, 40)
    for _ in range(TRIES):  # others need the processor, too
        stood = await _stands_still(lambda: plain.plan(ADMIN, many))
        stands = await _stands_still(lambda: aside.plan(ADMIN, many))
        if stands < stood / 4:
            return
    pytest.fail(f"the loop stood still for {stands:.3f} s beside a thread, for {stood:.3f} s without one")


async def test_who_looks_at_all_of_it_holds_up_nobody_who_loads_one(
    services: tuple[InventoryService, InventoryService], monkeypatch: pytest.MonkeyPatch
) -> None:
    aside, _ = services
    small, shown, go = racks(1, 2), threading.Event(), threading.Event()

    def slowly(inventory: Inventory) -> dict[str, Any]:
        shown.set()
        go.wait(60)
        return document_of(inventory)

    monkeypatch.setattr(module, "document_of", slowly)
    for turn in (aside._shows, aside._texts):
        monkeypatch.setattr(turn, "_within", 0.05)
    looking = asyncio.create_task(aside.show(ADMIN))
    try:
        while not shown.is_set():
            await asyncio.sleep(0.001)
        with pytest.raises(
            Unavailable, match="inventory: too many concurrent requests for all of it; try again in a moment"
        ):
            await aside.show(ADMIN)
        planned = await aside.plan(ADMIN, small)
        await aside.load(asked(ADMIN), small, agreed=planned.digest)
    finally:
        go.set()
    assert not (await looking).racks


def _noted(where: list[bool], work: Callable[..., Any]) -> Callable[..., Any]:
    def noted(*arguments: Any) -> Any:
        where.append(threading.current_thread() is threading.main_thread())
        return work(*arguments)

    return noted


async def _stands_still(work: Callable[[], Awaitable[Any]]) -> float:
    """The longest time in which the loop did nothing else."""
    longest, last = 0.0, time.perf_counter()

    async def tick() -> None:
        nonlocal longest, last
        while True:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0.01)
    longest = 0.0
    await work()
    await asyncio.sleep(0.005)
    ticking.cancel()
    return longest

"""Self-fencing: machines that stop by themselves when they are not held."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from hostler.errors import Unavailable
from hostler.model.vm import MachineState
from hostler.testing.claim import TooSlow
from hostler.testing.machines.claim import claim, loop_time, refused

if TYPE_CHECKING:
    from hostler.testing.machines.claim import MachineTrial

STOPPED, RUNNING = MachineState.STOPPED, MachineState.RUNNING
LONG = 600.0
EARLY = 0.05
"""Seconds by which the event loop's clock and the driver's may differ."""


async def _start_fenced(t: MachineTrial, name: str = "a") -> str:
    await t.machines.hold(LONG)
    return await t.running(name, fenced=True)


async def _until_stopped(t: MachineTrial, vm: str, end: float) -> None:
    """Check that the machine stops at `end`, never earlier, and not later than the driver allows."""
    while True:
        asked = loop_time()  # an observation is valid for its start, however long it takes
        if (state := await t.state(vm)) is not RUNNING:
            break
        t.setup.on_time(asked - end, t.setup.late, since=end, what="stopping a machine that is not held")
        await asyncio.sleep(0.02)
    assert loop_time() >= end - EARLY, f"it stopped {end - loop_time():.2f} s too early"
    assert state is STOPPED


@claim(fences=True)
async def a_fenced_machine_that_is_not_held_stops_by_itself(t: MachineTrial) -> None:
    vm = await _start_fenced(t)
    end = loop_time() + t.setup.hold
    await t.machines.hold(t.setup.hold)
    await _until_stopped(t, vm, end)


@claim(fences=True)
async def a_fenced_machine_that_is_held_again_and_again_runs_on(t: MachineTrial) -> None:
    vm = await _start_fenced(t)
    end = loop_time() + 3 * t.setup.hold
    held_at, until = 0.0, math.inf
    while (now := loop_time()) < end:
        if now < until - EARLY:  # otherwise the previous hold may have ended the machine before this one begins
            held_at = now
        until = now + t.setup.hold
        await t.machines.hold(t.setup.hold)
        await asyncio.sleep(t.setup.hold / 3)
        if await t.state(vm) is not RUNNING:
            slept = loop_time() - held_at
            assert slept >= t.setup.hold - EARLY, f"it stopped {t.setup.hold - slept:.2f} s too early"
            t.setup.on_time(slept, t.setup.hold / 2, since=held_at, what="holding again")
            raise TooSlow
    end = loop_time() + t.setup.hold
    await t.machines.hold(t.setup.hold)
    await _until_stopped(t, vm, end)


@claim(fences=True)
async def a_fenced_machine_whose_time_has_run_out_does_not_start(t: MachineTrial) -> None:
    vm = await t.made(fenced=True)
    await t.machines.hold(0)
    with refused(Unavailable):
        await t.machines.start(vm)
    assert await t.state(vm) is STOPPED
    await t.machines.hold(LONG)
    assert (await t.machines.start(vm)).state is RUNNING


@claim(fences=True)
async def holding_starts_nothing_that_has_stopped(t: MachineTrial) -> None:
    vm = await _start_fenced(t)
    await t.machines.hold(0)
    await _until_stopped(t, vm, loop_time())
    await t.machines.hold(LONG)
    await asyncio.sleep(t.setup.late)
    assert await t.state(vm) is STOPPED


@claim(fences=True)
async def a_hold_in_the_past_is_over_at_once(t: MachineTrial) -> None:
    vm = await _start_fenced(t)
    await t.machines.hold(-5)
    await _until_stopped(t, vm, loop_time())
    with refused(Unavailable):
        await t.machines.start(vm)


@claim(fences=True)
async def a_shorter_hold_counts_and_not_the_longer_one_before(t: MachineTrial) -> None:
    vm = await _start_fenced(t)
    end = loop_time() + t.setup.hold
    await t.machines.hold(3 * t.setup.hold + t.setup.late)
    await t.machines.hold(t.setup.hold)
    await _until_stopped(t, vm, end)


@claim(fences=True)
async def a_hold_is_counted_from_the_instant_that_is_named_unless_that_is_to_come(t: MachineTrial) -> None:
    vm = await _start_fenced(t)
    end = loop_time() + t.setup.hold
    await t.machines.hold(3 * t.setup.hold, since=t.setup.now(t.machines) - 2 * t.setup.hold)
    await _until_stopped(t, vm, end)
    vm = await _start_fenced(t, "b")
    end = loop_time() + t.setup.hold
    await t.machines.hold(t.setup.hold, since=t.setup.now(t.machines) + LONG)
    await _until_stopped(t, vm, end)


@claim(fences=True)
async def a_machine_that_is_not_fenced_needs_no_hold(t: MachineTrial) -> None:
    await t.machines.hold(0)
    vm = await t.running()
    await t.machines.hold(0)
    await asyncio.sleep(t.setup.late)
    assert await t.state(vm) is RUNNING


@claim(fences=True)
async def a_fenced_machine_stops_though_nobody_has_it_open(t: MachineTrial) -> None:
    vm = await _start_fenced(t)
    end = loop_time() + t.setup.hold
    await t.machines.hold(t.setup.hold)
    await t.close()
    await asyncio.sleep(max(0.0, end + t.setup.late - loop_time()))
    await t.open()
    asked = loop_time()
    if await t.state(vm) is not STOPPED:
        t.setup.on_time(asked - end, t.setup.late / 2, since=end, what="stopping a machine that is not held")
        raise TooSlow


@claim(fences=True)
async def a_fenced_machine_runs_until_its_time_though_nobody_has_it_open(t: MachineTrial) -> None:
    vm = await _start_fenced(t)
    other = await t.made("b", fenced=True)
    await t.machines.hold(LONG)
    await t.reopen()
    assert await t.state(vm) is RUNNING
    assert (await t.machines.start(other)).state is RUNNING, "the hold is still valid"


@claim(fences=True)
async def every_fenced_machine_stops_and_no_other(t: MachineTrial) -> None:
    fenced = [await _start_fenced(t, name) for name in ("a", "b")]
    free = await t.running("c")
    await t.machines.hold(0)
    for vm in fenced:
        await _until_stopped(t, vm, loop_time())
    assert await t.state(free) is RUNNING

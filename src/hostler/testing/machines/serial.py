"""The serial port."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hostler.errors import NotFound, Refused
from hostler.model.vm import MachineState
from hostler.ports.machines import Door
from hostler.testing.machines.claim import claim, refused

if TYPE_CHECKING:
    from hostler.ports.machines import Channel
    from hostler.testing.machines.claim import MachineTrial


async def _has_none(t: MachineTrial) -> bool:
    """Return whether machines have no serial port here; if so, check that opening it is refused."""
    if not t.setup.console:
        vm = await t.running()
        with refused(Refused) as refusal:
            async with t.machines.channel(vm, Door.CONSOLE):
                pass
        assert not isinstance(refusal.error, NotFound), "NotFound means that there is no machine"
    return not t.setup.console


@claim()
async def a_console_tells_something_when_typed_at(t: MachineTrial) -> None:
    if await _has_none(t):
        return
    vm = await t.running()
    async with asyncio.timeout(t.setup.within), t.machines.channel(vm, Door.CONSOLE) as console:
        await console.write(b"\r\n")
        assert await console.read()
        async with t.machines.channel(vm, Door.LOG) as log:
            assert await log.read(), "its log does not contain its output"
            assert await log.read() == b"", "its log does not end"
    assert await t.state(vm) is MachineState.RUNNING, "closing the console stopped it"


async def _to_the_end(console: Channel) -> None:
    while await console.read():
        pass


@claim()
async def a_console_ends_when_its_machine_goes_off(t: MachineTrial) -> None:
    if not t.setup.console:
        return
    vm = await t.made()
    for destroys in (False, True):
        await t.machines.start(vm)
        async with asyncio.timeout(2 * t.setup.within), t.machines.channel(vm, Door.CONSOLE) as console:
            reading = asyncio.create_task(_to_the_end(console))
            await asyncio.sleep(0.05)
            assert not reading.done(), "it ended while the machine ran"
            await (t.machines.delete(vm) if destroys else t.machines.stop(vm, grace=0))
            await reading
            assert await console.read() == b""
        if not destroys:
            async with asyncio.timeout(t.setup.within), t.machines.channel(vm, Door.LOG) as log:
                await _to_the_end(log)


@claim(fences=True)
async def a_console_ends_when_its_machine_is_not_held(t: MachineTrial) -> None:
    await t.machines.hold(600)
    vm = await t.running(fenced=True)
    patience = t.setup.hold + t.setup.late + t.setup.within
    async with asyncio.timeout(patience), t.machines.channel(vm, Door.CONSOLE) as console:
        await t.machines.hold(t.setup.hold)
        await _to_the_end(console)


@claim()
async def a_machine_that_is_off_or_absent_has_no_console(t: MachineTrial) -> None:
    vm = await t.made()
    for name in (vm, t.vm("none")):
        with refused(NotFound):
            async with t.machines.channel(name, Door.CONSOLE):
                pass


@claim()
async def a_console_is_opened_again_and_again(t: MachineTrial) -> None:
    if not t.setup.console:
        return
    vm = await t.running()
    for _ in range(3):
        async with asyncio.timeout(t.setup.within), t.machines.channel(vm, Door.CONSOLE) as console:
            await console.write(b"\r\n")
            assert await console.read()

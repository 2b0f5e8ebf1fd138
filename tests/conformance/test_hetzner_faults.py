"""Hetzner Cloud fails at every call in turn: repeating the verb ends with one server, or none, and as it was asked."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import pytest
from dose import dose, rotation
from harness.artefacts import safe
from hetzner.opened import OTHER_SPEC, PACE, SPEC, hetzner
from hetzner.standin import KINDS, TOKEN, StandIn

from hostler.errors import HostlerError, Refused, Unavailable, Uncertain
from hostler.model.vm import MachineState
from hostler.ports.machines import Label, MachinePlan

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from hostler.drivers.machines.hetzner import HetznerMachines

VM = "vm-1"
PLAN = MachinePlan(label=Label("labs", "ada", VM, "c", "n"), spec=SPEC, name="lab-5", tags={"lab": "5"})
TAKES = {"create_server": 1, "start_server": 1, "stop_server": 1, "delete_server": 1, "create_image": 1}
HARD = ("429", "500", "locked", "cut-before", "cut-after", "slow")
"""One of each sort: the others are answered by the same lines."""
IN_TIME = msgspec.structs.replace(PACE, answers_within=0.2)
replace = msgspec.structs.replace

T = TypeVar("T")
Verb = "Callable[[HetznerMachines], Awaitable[Any]]"


async def create(machines: HetznerMachines) -> Any:
    return await machines.create(PLAN)


async def start(machines: HetznerMachines) -> Any:
    return await machines.start(VM)


async def stop(machines: HetznerMachines) -> Any:
    return await machines.stop(VM, grace=0.02)


async def delete(machines: HetznerMachines) -> None:
    await machines.delete(VM)


async def reshape(machines: HetznerMachines) -> Any:
    return await machines.create(replace(PLAN, spec=OTHER_SPEC))


async def snapshot(machines: HetznerMachines) -> Any:
    return await machines.snapshot(VM, "s")


async def restore(machines: HetznerMachines) -> Any:
    return await machines.restore(VM, "s", 1)


async def mark(machines: HetznerMachines) -> Any:
    return await machines.mark(replace(PLAN, label=replace(PLAN.label, project="bob"), tags={"lab": "6"}))


BEFORE: dict[Any, tuple[Any, ...]] = {
    create: (),
    start: (create,),
    stop: (create, start),
    delete: (create, start, snapshot),
    reshape: (create,),
    snapshot: (create, start),
    restore: (create, start, snapshot),
    mark: (create, start),
}


async def insist(machines: HetznerMachines, verb: Any, standin: StandIn) -> list[HostlerError]:
    """As an agent does: what it met until it was done."""
    met: list[HostlerError] = []
    while True:
        try:
            await verb(machines)
        except (Unavailable, Uncertain) as error:
            met.append(error)
            assert len(met) < 50, met
            if verb is restore:
                await standin.idle()  # a rebuild that comes after the next one undoes it, and nobody could tell
            await asyncio.sleep(0.01)
        else:
            return met


async def looked(look: Callable[[], Awaitable[T]]) -> T:
    """What is seen where nothing is wrong but a machine that is busy: an answer may come too late for IN_TIME."""
    for _ in range(20):
        with suppress(Unavailable):
            return await look()
        await asyncio.sleep(0.05)
    return await look()


@asynccontextmanager
async def scene(folder: Path, verb: Any, **changes: Any) -> AsyncIterator[tuple[StandIn, HetznerMachines]]:
    # One that shall go hears: so it is the calls alone that count.
    with StandIn(takes=TAKES, by_calls=True, shuts_down_in=0.0 if verb is delete else None) as standin:
        async with hetzner(folder / "node", standin, **changes) as machines:
            for before in BEFORE[verb]:
                await insist(machines, before, standin)
            yield standin, machines


async def outcome(standin: StandIn, machines: HetznerMachines) -> tuple[Any, ...]:
    """What is there in the end, without what differs from server to server."""
    seen = await looked(lambda: machines.inspect(VM))
    listed = await looked(machines.list)
    assert ([] if seen is None else [seen]) == list(listed), "inspect and list differ"
    images = [image.status for image in standin.cloud.images.values()]
    there = len(standin.cloud.servers)
    safe(there == (0 if seen is None else 1), f"{there} servers are there", calls=standin.calls)
    if seen is None:
        return None, images
    return replace(seen, id="", address="", access=None, readiness=None), len(images) > 0


def trials(calls: list[str]) -> list[tuple[int, str]]:
    """Which call meets what. In `make soak` each meets all; in `make test` each that writes meets two sorts and each
    that reads meets one, and others with each commit."""
    found: list[tuple[int, str]] = []
    for at, call in enumerate(calls, 1):
        count = min(len(HARD), dose(test=1 if call.startswith("GET") else 2, full=len(HARD)))
        found += [(at, HARD[(at + 2 * rotation() + each) % len(HARD)]) for each in range(count)]
    return found


@pytest.mark.parametrize("verb", BEFORE, ids=lambda verb: verb.__name__)
async def test_a_fault_at_any_call_is_made_up_for_by_repeating_the_verb(
    verb: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG if verb is create else logging.INFO)
    async with scene(tmp_path, verb) as (standin, machines):
        began = len(standin.calls)
        await verb(machines)
        calls = standin.calls[began:]
        expected = await outcome(standin, machines)
    assert len(calls) >= 2, calls
    met: list[HostlerError] = []
    for at, kind in trials(calls):
        pace = IN_TIME if kind == "slow" else PACE
        async with scene(tmp_path / f"{at}-{kind}", verb, pace=pace) as (standin, machines):
            standin.slow = 0.3
            standin.inject(kind, nth=at)
            met += await insist(machines, verb, standin)
            standin.heal()
            await standin.idle()
            await insist(machines, verb, standin)
            assert await outcome(standin, machines) == expected, f"{kind} at {calls[at - 1]}"
    assert met, "nothing failed"
    assert not any(TOKEN in f"{error!r} {error}" for error in met)
    assert TOKEN not in caplog.text


@pytest.mark.parametrize("kind", KINDS)
async def test_a_lookup_that_fails_is_no_absence(kind: str, tmp_path: Path) -> None:
    async with scene(tmp_path, start, pace=IN_TIME) as (standin, machines):
        standin.slow = 0.3
        standin.inject(kind, times=-1)
        for look in (lambda: machines.inspect(VM), lambda: machines.inspect("none"), machines.list):
            with pytest.raises(HostlerError) as caught:
                await look()
            assert isinstance(caught.value, Unavailable), caught.value
        standin.heal()
        await standin.idle()
        await asyncio.sleep(standin.recovers_in)
        seen = await looked(lambda: machines.inspect(VM))
        assert seen is not None
        assert seen.state is MachineState.STOPPED


async def test_a_lost_answer_to_a_creation_never_makes_two(tmp_path: Path) -> None:
    async with scene(tmp_path, create) as (standin, machines):
        standin.inject("cut-after", match="POST /servers$", times=1)
        with pytest.raises(Uncertain):
            await create(machines)
        left = await machines.inspect(VM)
        assert left is not None
        assert left.state is MachineState.CREATING
        assert (await create(machines)).state is MachineState.STOPPED
        safe(standin.cloud.made == 1, "a second server was made", calls=standin.calls)


async def test_a_server_whose_creation_failed_after_the_answer_is_made_anew(tmp_path: Path) -> None:
    async with scene(tmp_path, create) as (standin, machines):
        standin.cloud.half_made.append(("action_failed", "the host broke"))
        with pytest.raises(Unavailable, match="the host broke"):
            await create(machines)
        assert await machines.inspect(VM) is None
        # and if who saw it fail died before it could clean up
        standin.cloud.half_made.append(("action_failed", "the host broke"))
        standin.inject("cut-before", match="GET /actions|DELETE", times=-1)
        task = asyncio.create_task(create(machines))
        await standin.until(lambda: standin.cloud.made == 2)
        task.cancel()
        await asyncio.wait([task])
        standin.heal()
        left = await machines.inspect(VM)
        assert left is not None
        assert (left.state, left.cloud_status) == (MachineState.CREATING, "initializing")
        with pytest.raises(Refused, match="create it again"):
            await machines.start(VM)
        assert (await create(machines)).state is MachineState.STOPPED
        assert (standin.cloud.made, len(standin.cloud.servers)) == (3, 1)


async def test_a_deaf_guest_is_switched_off_and_one_that_hears_is_not(tmp_path: Path) -> None:
    async with scene(tmp_path, stop) as (standin, machines):
        await stop(machines)
        assert [
            call.rpartition("/")[2] for call in standin.calls if "/stop" in call or "off" in call or "shut" in call
        ] == [
            "shutdown",
            "poweroff",
        ]
        await start(machines)
        standin.cloud.shuts_down_in = 0.01
        standin.calls.clear()
        await machines.stop(VM, grace=10)
        assert not any("poweroff" in call for call in standin.calls)

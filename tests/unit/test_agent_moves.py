"""One agent hands a machine over, another takes it; whatever fails on the way, it goes on where it was."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from agent_stage import SPEC, Stage, stage

from hostler.drivers.machines.simulated import MachineFaults, MemoryHost
from hostler.engine.agent.agent import Agent
from hostler.engine.agent.config import AgentConfig, NodeEnv
from hostler.engine.agent.migration import OPEN_WITHIN, READY_WITHIN, _Patient
from hostler.errors import Refused, Unavailable
from hostler.keys.families import ARRIVAL, COMMAND, HANDLE, MEMBER
from hostler.kit.virtual_loop import VirtualClock, run_virtual
from hostler.model.node import Arrival, Departure
from hostler.model.vm import MachineState, Power
from hostler.ports.machines import ChannelKind, Label, MachinePlan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agent_stage import Running

    from hostler.ports.machines import Channel

RUNNING, STOPPED, ARRIVING = MachineState.RUNNING, MachineState.STOPPED, MachineState.ARRIVING


def staged(play: Callable[[Stage], Awaitable[None]], seed: int = 0) -> None:
    async def main() -> None:
        async with stage(seed) as it:
            await play(it)

    run_virtual(main, seed=seed)


async def two(it: Stage, **fields: Any) -> tuple[Running, Running]:
    """Two nodes; the first has a machine."""
    a, b = await it.agent("a"), await it.agent("b")
    await it.until(lambda: a.agent.state().registered and b.agent.state().registered)
    await it.command(**fields)
    await it.reaches("v", STOPPED if fields.get("power") is Power.OFF else RUNNING)
    return a, b


async def depart(it: Stage, **fields: Any) -> None:
    """As the leader does."""
    entry = await COMMAND.get(it.bare, node="a", vm="v")
    assert entry is not None
    target = await MEMBER.get(it.bare, node="b")
    place = "" if target is None else target.value.place
    departing = msgspec.structs.replace(Departure(to="b", number=1, wish=1), **fields)
    arrival = Arrival(source="a", number=1, place=place, command=entry.value)
    leaving = msgspec.structs.replace(entry.value, departing=departing)
    await it.bare.txn([], [ARRIVAL.put(arrival, node="b", vm="v"), COMMAND.put(leaving, node="a", vm="v")])


async def rows(it: Stage, *running: Running) -> list[Any]:
    return [row for one in running for row in one.place.contents.rows.values()]


def test_a_running_machine_goes_on_at_the_other_node() -> None:
    async def play(it: Stage) -> None:
        a, b = await two(it)
        await depart(it)
        handle = await it.reaches("v", RUNNING, node="b", moved=1, attempt=1)
        assert handle.unmoved == ""
        await it.until(lambda: not a.place.contents.rows)
        (row,) = await rows(it, a, b)
        assert (row.boots, row.label.node) == (1, "b")
        assert row.writes == 2, "its boot, and what it wrote until it left"
        assert row.disk_id.startswith(a.place.id)
        assert await ARRIVAL.get(it.bare, node="b", vm="v") is None
        assert await COMMAND.get(it.bare, node="a", vm="v") is None
        (here,), (there,) = a.machines.intervals("v"), b.machines.intervals("v")
        assert here[1] is not None
        assert here[1] <= there[0]

    staged(play)


def test_a_machine_that_is_off_goes_with_its_disk_and_stays_off() -> None:
    async def play(it: Stage) -> None:
        _, b = await two(it, power=Power.OFF)
        await depart(it)
        await it.reaches("v", STOPPED, node="b", moved=1)
        assert b.machines.intervals("v") == []

    staged(play)


def refusing_live(running: Running, patch: pytest.MonkeyPatch) -> None:
    send = running.machines.send

    async def cold(vm: str, number: int, connect: Any, *, live: bool = True) -> Any:
        if live:
            raise Refused("this one cannot go as it runs")
        return await send(vm, number, connect, live=live)

    patch.setattr(running.machines, "send", cold)


def test_one_that_cannot_go_as_it_runs_is_stopped_for_it_only_if_that_is_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play(it: Stage) -> None:
        a, b = await two(it)
        refusing_live(a, monkeypatch)
        await depart(it)
        handle = await it.reaches("v", RUNNING, node="a", attempt=1, moved=1)
        assert "cannot go as it runs" in handle.unmoved
        assert a.machines.intervals("v")[-1][1] is None
        entry = await COMMAND.get(it.bare, node="a", vm="v")
        assert entry is not None
        await ARRIVAL.get(it.bare, node="b", vm="v")
        arrival = Arrival(
            source="a", number=2, place=b.place.id, command=msgspec.structs.replace(entry.value, departing=None)
        )
        leaving = msgspec.structs.replace(entry.value, departing=Departure(to="b", number=2, wish=2, stop=True))
        await it.bare.txn([], [ARRIVAL.put(arrival, node="b", vm="v"), COMMAND.put(leaving, node="a", vm="v")])
        await it.reaches("v", RUNNING, node="b", attempt=2, moved=2)
        (row,) = await rows(it, b)
        assert row.boots == 2

    staged(play)


def test_a_shape_that_it_does_not_run_with_keeps_it_from_going_as_it_runs() -> None:
    async def play(it: Stage) -> None:
        await two(it)
        await it.change(spec=msgspec.structs.replace(SPEC, cpus=2))
        await it.reaches("v", RUNNING, at_next_boot=("cpus",))
        await depart(it)
        handle = await it.reaches("v", RUNNING, node="a", attempt=1)
        assert "another cpus" in handle.unmoved

    staged(play)


def test_a_node_that_does_not_open_its_doors_in_time_keeps_nobody_waiting_for_ever() -> None:
    async def play(it: Stage) -> None:
        a, b = await two(it)
        await b.crash()
        await depart(it)
        handle = await it.reaches("v", RUNNING, within=90.0, node="a", attempt=1)
        assert "was not ready within 60 s" in handle.unmoved
        assert a.machines.intervals("v")[-1][1] is None

    staged(play)


def test_a_door_that_was_closed_again_is_not_waited_for_as_long_as_the_first_one() -> None:
    """Its QEMU there died after it had said what to send; the machine's users shall not wait a minute for that."""

    class Closed:
        def channel(self, node: str, vm: str, door: ChannelKind) -> Channel:
            raise Unavailable(f"{door} of {vm} on {node}: it is not open")

    async def main() -> None:
        clock, waited = VirtualClock(), {}
        for opened in (set[ChannelKind](), {ChannelKind.ARRIVAL_STATE}):
            begun = clock.now()
            door = _Patient(Closed(), "b", "v", ChannelKind.ARRIVAL_DISK, opened, clock=clock, rng=random.Random(0))
            with pytest.raises(Unavailable, match="was not ready"):
                await door.__aenter__()
            waited[len(opened)] = clock.now() - begun
        assert waited[0] > READY_WITHIN / 2
        assert waited[1] <= OPEN_WITHIN

    run_virtual(main)


def test_a_node_says_why_it_cannot_take_a_machine() -> None:
    async def play(it: Stage) -> None:
        place = MemoryHost("taken")
        b = await it.agent("b", place=place)
        stranger = MachinePlan(label=Label("o", "p", "v", "another cluster", "b"), spec=SPEC)
        await b.machines.create(stranger)
        await it.agent("a")
        await it.command()
        await it.reaches("v", RUNNING)
        await depart(it)

        async def refused() -> bool:
            arrival = await ARRIVAL.get(it.bare, node="b", vm="v")
            return arrival is not None and "belongs to another owner" in arrival.value.refused

        await it.until(refused)
        assert await b.machine() is not None

    staged(play)


def test_what_is_stopped_or_deleted_meanwhile_is_not_sent_on() -> None:
    async def play(it: Stage) -> None:
        a = await it.agent("a", faults=MachineFaults(delays={"send": 1000.0}))
        b = await it.agent("b")
        await it.until(lambda: b.agent.state().registered)
        await it.command()
        await it.reaches("v", RUNNING)
        await depart(it)
        await asyncio.sleep(5.0)
        await it.change(power=Power.OFF)
        handle = await it.reaches("v", STOPPED, node="a", attempt=1)
        assert "requested in the meantime" in handle.unmoved
        assert (await rows(it, a))[0].state is STOPPED

    staged(play)


def test_what_arrives_is_no_orphan_while_it_is_expected_and_one_afterwards() -> None:
    async def play(it: Stage) -> None:
        _, b = await two(it)
        entry = await COMMAND.get(it.bare, node="a", vm="v")
        assert entry is not None
        arrival = Arrival(source="a", number=1, place=b.place.id, command=entry.value)
        await it.bare.txn([], [ARRIVAL.put(arrival, node="b", vm="v")])
        await it.until(lambda: bool(b.place.contents.rows))
        await asyncio.sleep(700.0)
        (row,) = await rows(it, b)
        assert (row.state, row.moved) == (ARRIVING, 1)
        await it.bare.delete(ARRIVAL.fill(node="b", vm="v"))
        await it.until(lambda: not b.place.contents.rows)
        assert (b.agent.state().removed, b.agent.state().retained) == (1, 0)

    staged(play)


def test_what_arrived_of_a_move_that_was_given_up_is_removed_where_the_machine_is_made_anew() -> None:
    """Whatever the handle says: its number may be that very move's, and it may be newer than the command."""

    async def play(it: Stage) -> None:
        a, b = await two(it)
        entry = await COMMAND.get(it.bare, node="a", vm="v")
        assert entry is not None
        arrival = Arrival(source="a", number=1, place=b.place.id, command=entry.value)
        await it.bare.txn([], [ARRIVAL.put(arrival, node="b", vm="v")])
        await it.until(lambda: bool(b.place.contents.rows))
        await a.crash()
        await b.crash()
        await it.bare.delete(ARRIVAL.fill(node="b", vm="v"))
        await it.remove()
        await it.command(node="b", arrived=0)
        handle = await it.handle_entry()
        assert handle is not None
        await HANDLE.replace(it.bare, handle, msgspec.structs.replace(handle.value, attempt=1))
        again = await it.agent("b", place=b.place)
        await it.reaches("v", RUNNING, node="b", attempt=1)
        (row,) = await rows(it, again)
        assert row.moved == 0

    staged(play)


def test_an_agent_that_knows_no_way_to_others_says_that_its_machines_stay() -> None:
    async def play(it: Stage) -> None:
        alone = await it.agent("a")
        env = NodeEnv(
            store=it.store,
            machines=alone.machines,
            config=AgentConfig(node="c"),
            clock=it.clock,
            new_id=lambda: "x",
        )
        agent = Agent(env)
        task = asyncio.create_task(agent.run())
        await it.until(lambda: agent.state().registered)
        member = await it.member("c")
        task.cancel()
        await asyncio.wait((task,))
        assert member is not None
        assert not member.moves

    staged(play)

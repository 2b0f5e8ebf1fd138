"""What becomes of a machine that ended by itself: what its restart policy says, whoever dies; and its actual."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from agent_stage import Stage, stage

from hostler.drivers.machines.simulated.host import switched_off
from hostler.engine.agent.decide import NOTHING, Action, decide, has_ended
from hostler.keys.families import ACTUAL
from hostler.kit.virtual_loop import run_virtual
from hostler.model.node import VmCommand
from hostler.model.vm import MachineState, Power, RestartPolicy, VmHandle, VmSpec
from hostler.ports.machines import Label, Machine

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

ALWAYS, ON_FAILURE, NEVER = RestartPolicy
RUNNING, STOPPED, FAILED = MachineState.RUNNING, MachineState.STOPPED, MachineState.FAILED
SPEC = VmSpec(cpus=1, memory_mib=64)
WISH = VmCommand(org="o", project="p", vm="v", spec=SPEC, generation=3)
SEEN = Machine(label=Label("o", "p", "v"), id="m", state=STOPPED, spec=SPEC)
TOLD = VmHandle(id="v", node="a", state=RUNNING, generation=3, seen_at=0.0)


def ended(**changes: Any) -> bool:
    parts = {"wish": WISH, "seen": SEEN, "told": TOLD}
    more: dict[str, Any] = {"ran": None}
    wish, seen, told = (
        msgspec.structs.replace(
            part, **{name.removeprefix(f"{of}_"): value for name, value in changes.items() if name.startswith(f"{of}_")}
        )
        for of, part in parts.items()
    )
    more |= {name: value for name, value in changes.items() if not name.startswith(("wish_", "seen_", "told_"))}
    return has_ended(wish, seen, told, node="a", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "is_so"),
    [
        ({}, False),
        ({"wish_restart": NEVER}, True),
        ({"wish_restart": ON_FAILURE}, True),
        ({"wish_restart": NEVER, "seen_state": FAILED, "seen_detail": "kernel panic"}, True),
        ({"wish_restart": ON_FAILURE, "seen_state": FAILED}, False),
        ({"wish_restart": NEVER, "seen_state": RUNNING}, False),
        ({"wish_restart": NEVER, "wish_power": Power.OFF}, False),
        ({"wish_restart": NEVER, "wish_deleting": True}, False),
        ({"wish_restart": NEVER, "seen_detail": "its node was switched off"}, False),
        ({"wish_restart": NEVER, "told_state": MachineState.CREATING}, False),
        ({"wish_restart": NEVER, "told_state": MachineState.CREATING, "ran": True}, True),
        ({"wish_restart": NEVER, "ran": False}, False),
        ({"wish_restart": NEVER, "wish_generation": 4}, False),
        ({"wish_restart": NEVER, "wish_generation": 4, "told_ended": True, "told_state": STOPPED}, True),
        ({"wish_restart": NEVER, "told_ended": True, "told_state": STOPPED, "ran": False}, False),
        ({"wish_restart": NEVER, "told_state": STOPPED, "ran": False, "was": True}, True),
        ({"wish_restart": NEVER, "wish_resets": 1, "was": True}, False),
        ({"wish_restart": NEVER, "told_node": "b"}, False),
        ({"wish_restart": NEVER, "seen_state": MachineState.ARRIVING}, False),
        ({"wish_restart": NEVER, "seen_state": MachineState.ARRIVING, "told_ended": True}, True),
    ],
)
def test_when_a_machine_has_ended(changes: dict[str, Any], is_so: bool) -> None:
    assert ended(**changes) is is_so


@pytest.mark.parametrize("state", [STOPPED, FAILED])
def test_what_has_ended_is_left_as_it_is(state: MachineState) -> None:
    seen = msgspec.structs.replace(SEEN, state=state)
    assert decide(WISH, seen).action is Action.START
    assert decide(WISH, seen, ended=True) is NOTHING
    arriving = msgspec.structs.replace(SEEN, state=MachineState.ARRIVING)
    assert decide(WISH, arriving, ended=True).action is Action.STOP


def staged(play: Callable[[Stage], Awaitable[None]]) -> None:
    async def main() -> None:
        async with stage() as it:
            await play(it)

    run_virtual(main)


def runs(it: Stage) -> int:
    return len(it.running[-1].place.intervals("v", it.clock.now()))


def test_a_machine_that_shut_itself_down_stays_off_also_for_the_next_agent_and_runs_when_it_is_asked_to() -> None:
    async def play(it: Stage) -> None:
        a = await it.agent()
        await it.command(restart=NEVER)
        await it.reaches("v", RUNNING)
        a.machines.guest("v", switched_off)
        handle = await it.reaches("v", STOPPED, ended=True)
        assert "restart policy (never)" in handle.detail
        await a.crash()
        b = await it.agent(place=a.place)
        await it.change(restart=NEVER, tags={"a": "b"})
        await it.reaches("v", STOPPED, ended=True, generation=2)
        await asyncio.sleep(30.0)
        assert runs(it) == 1
        await it.change(power=Power.OFF)
        await it.reaches("v", STOPPED, ended=False, generation=3)
        await it.change(power=Power.ON)
        await it.reaches("v", RUNNING, generation=4)
        b.machines.guest("v", switched_off)
        await it.reaches("v", STOPPED, ended=True)
        await it.change(resets=1)
        await it.reaches("v", RUNNING, resets=1)
        assert runs(it) == 3

    staged(play)


def test_a_machine_that_ended_while_its_agent_was_dead_has_ended_all_the_same() -> None:
    async def play(it: Stage) -> None:
        a = await it.agent()
        await it.command(restart=NEVER)
        await it.reaches("v", RUNNING)
        await a.crash()
        row = a.place.contents.rows["v"]
        a.place.put([switched_off(row, it.clock.now())])
        await it.agent(place=a.place)
        await it.reaches("v", STOPPED, within=60.0, ended=True)
        assert runs(it) == 1

    staged(play)


def test_one_that_broke_is_started_again_and_one_that_shut_down_is_not() -> None:
    async def play(it: Stage) -> None:
        a = await it.agent(look_every=1.0)
        await it.command(restart=ON_FAILURE)
        await it.reaches("v", RUNNING)
        a.machines.crash("v", "kernel panic")
        await it.until(lambda: runs(it) == 2)
        await it.reaches("v", RUNNING)
        a.machines.guest("v", switched_off)
        await it.reaches("v", STOPPED, ended=True)

    staged(play)


def test_what_its_node_did_to_it_is_not_its_own_end() -> None:
    async def play(it: Stage) -> None:
        a = await it.agent(node_ttl=5.0, fencing_time=10.0)
        await it.command(restart=NEVER, fenced=True)
        await it.reaches("v", RUNNING)
        await a.crash()
        a.place.power_off(it.clock.now())
        b = await it.agent(place=a.place, node_ttl=5.0, fencing_time=10.0)
        await it.until(lambda: runs(it) == 2, within=60.0)
        await it.reaches("v", RUNNING, within=60.0)
        it.store.down()
        await it.until(lambda: b.place.intervals("v", it.clock.now())[-1][1] is not None, within=60.0)
        it.store.up()
        await it.until(lambda: runs(it) == 3, within=60.0)

    staged(play)


def test_a_machine_that_stands_for_an_instance_is_told_of_there_together_with_its_handle() -> None:
    async def play(it: Stage) -> None:
        a = await it.agent()
        await it.command(instance="web/3")
        handle = await it.reaches("v", RUNNING)
        entry = await ACTUAL.get(it.bare, workload="web", instance="3")
        told = await it.handle_entry()
        assert entry is not None
        assert told is not None
        assert entry.mod_revision == told.mod_revision
        actual = entry.value
        assert (actual.node, actual.state, actual.vm) == ("a", RUNNING, "v")
        assert (actual.generation, actual.seen_at) == (handle.generation, handle.seen_at)
        await it.command("free")
        await it.reaches("free", RUNNING)
        assert len((await ACTUAL.list(it.bare)).entries) == 1
        await a.leave()

    staged(play)

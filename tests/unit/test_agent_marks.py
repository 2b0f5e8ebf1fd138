"""Machines that belong to another project from one command to the next: they run on, and carry its label and tags."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from agent_stage import SPEC, stage

from hostler.drivers.machines.simulated import MemoryHost
from hostler.engine.agent.decide import Action, decide, tell
from hostler.engine.agent.decide import StatusUpdate as Words
from hostler.entry.agent import plan_of
from hostler.keys.families import COMMAND, HANDLE
from hostler.kit.virtual_loop import run_virtual
from hostler.model.node import VmCommand
from hostler.model.vm import MachineState, Power, architecture
from hostler.ports.machines import Label, Machine
from hostler.settings import load

if TYPE_CHECKING:
    from agent_stage import Running, Stage

    from hostler.keys.entry import Entry

RUNNING = MachineState.RUNNING
COMMANDED = VmCommand(org="o", project="p", vm="v", spec=SPEC, tags={"lab": "5"})
THERE = Machine(label=Label("o", "p", "v", "c", "n"), id="m", state=RUNNING, spec=SPEC, tags={"lab": "5"})
replace = msgspec.structs.replace


async def given(it: Stage, **fields: Any) -> Entry[VmCommand]:
    """What a transfer does: command and handle in one transaction, the handle in the new project."""
    entry = await COMMAND.get(it.bare, node="a", vm="v")
    handle = await it.handle_entry()
    assert entry is not None
    assert handle is not None
    command = replace(entry.value, org="o2", project="p2", generation=entry.value.generation + 1, **fields)
    result = await it.bare.txn(
        [COMMAND.unchanged(entry), HANDLE.unchanged(handle)],
        [
            COMMAND.put(command, node="a", vm="v"),
            HANDLE.delete(org="o", project="p", vm="v"),
            HANDLE.put(handle.value, org="o2", project="p2", vm="v"),
        ],
    )
    assert result.succeeded
    return await COMMAND.get(it.bare, node="a", vm="v")  # type: ignore[return-value]


async def is_theirs(it: Stage, agent: Running, generation: int = 2) -> bool:
    handle = await HANDLE.get(it.bare, org="o2", project="p2", vm="v")
    machine = await agent.machine()
    return (
        handle is not None
        and (handle.value.generation, handle.value.state) == (generation, RUNNING)
        and machine is not None
        and (machine.label.org, machine.label.project, machine.tags) == ("o2", "p2", {"lab": "6"})
    )


@pytest.mark.parametrize(
    "changes",
    [{"org": "o2"}, {"project": "p2"}, {"tags": {}}, {"tags": {"lab": "6"}}],
    ids=["org", "project", "a", "b"],
)
def test_a_machine_that_carries_something_else_is_marked_before_all_else(changes: Any) -> None:
    command = replace(COMMANDED, **changes)
    assert decide(command, THERE).action is Action.MARK
    assert decide(replace(command, power=Power.OFF), THERE).action is Action.MARK
    assert decide(command, replace(THERE, state=MachineState.STOPPED)).action is Action.MARK


def test_a_machine_is_not_marked_while_it_goes_or_is_between_two_states() -> None:
    command = replace(COMMANDED, org="o2")
    assert decide(COMMANDED, THERE).action is Action.NOTHING
    assert decide(replace(command, deleting=True), THERE).action is Action.DELETE
    assert decide(command, THERE, leftover=True).action is Action.RETAIN
    assert decide(command, replace(THERE, state=MachineState.STARTING)).action is Action.START
    assert decide(command, replace(THERE, state=MachineState.CREATING)).action is Action.CREATE


def test_the_provider_s_own_word_for_its_state_is_told() -> None:
    words = Words(node="n", driver="d", at=0.0)
    assert tell(COMMANDED, replace(THERE, cloud_status="initializing"), None, words).cloud_status == "initializing"
    assert tell(COMMANDED, None, None, words).cloud_status == ""


def test_a_machine_that_changes_hands_runs_on_and_its_handle_stands_there() -> None:
    async def main() -> None:
        async with stage() as it:
            agent = await it.agent()
            await it.command(tags={"lab": "5"})
            await it.reaches("v", RUNNING)
            assert (await agent.machine()).tags == {"lab": "5"}  # type: ignore[union-attr]
            await given(it, tags={"lab": "6"})
            await it.until(lambda: is_theirs(it, agent))
            assert await it.handle_entry() is None
            assert len(agent.machines.intervals("v")) == 1
            assert agent.agent.state().retained == 0

    run_virtual(main)


def test_a_report_that_was_on_its_way_is_not_written_where_the_machine_was() -> None:
    async def main() -> None:
        async with stage() as it:
            place = MemoryHost("p")
            agent = await it.agent(place=place)
            await it.command()
            await it.reaches("v", RUNNING)
            for turn in range(40):  # somewhere in between the agent reads, decides and writes
                agent.machines.crash("v")
                for _ in range(turn % 8):
                    await it.clock.sleep(0.001)
                if turn == 20:
                    await given(it, tags={"lab": "6"})
                await it.clock.sleep(0.5)
            await it.until(lambda: is_theirs(it, agent), within=200)
            assert await it.handle_entry() is None

    run_virtual(main)


@pytest.mark.parametrize("point", ["before", "after"])
def test_an_agent_that_dies_around_a_mark_does_it_again(point: str) -> None:
    async def main() -> None:
        async with stage() as it:
            place = MemoryHost("p")
            died = it.clock.sleep

            async def step(name: str) -> None:
                if name == f"mark.done:{point}":
                    await died(1e6)

            agent = await it.agent(place=place, step=step)
            await it.command()
            await it.reaches("v", RUNNING)
            await given(it, tags={"lab": "6"})
            await it.clock.sleep(1)
            await agent.crash()
            other = await it.agent(place=place)
            await it.until(lambda: is_theirs(it, other))
            assert len(other.machines.intervals("v")) == 1

    run_virtual(main)


def test_a_mark_that_fails_stands_in_nobody_s_way_and_is_tried_again() -> None:
    async def main() -> None:
        async with stage() as it:
            agent = await it.agent()
            await it.command()
            await it.reaches("v", RUNNING)
            agent.machines.script("mark", "unavailable", times=3)
            await given(it, tags={"lab": "6"}, resets=1)

            async def is_reset() -> bool:
                machine = await agent.machine()
                return machine is not None and machine.resets == 1

            assert await it.until(is_reset) < 1
            assert (await agent.machine()).label.org == "o"  # type: ignore[union-attr]
            handle = await HANDLE.get(it.bare, org="o2", project="p2", vm="v")
            assert handle is not None
            assert handle.value.state is RUNNING
            await it.until(lambda: is_theirs(it, agent))

    run_virtual(main)


def test_a_node_is_labelled_with_its_kind_of_machines_and_its_architecture() -> None:
    arch = architecture(platform.machine())
    for machines in ("simulated", "qemu"):
        settings = load({"machines": machines}, {"HOME": "/home/ada"}, toml="")
        assert plan_of(settings, "n", None).labels == {"machines": machines, "arch": arch}
    settings = load({}, {"HOME": "/home/ada", "HOSTLER_LABELS": "machines=mine,disk=ssd,arch=other"}, toml="")
    assert plan_of(settings, "n", None).labels == {"machines": "mine", "disk": "ssd", "arch": "other"}

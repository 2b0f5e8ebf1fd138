"""The records that stories of failures are held against tell when something was wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from hostler import open_store
from hostler.keys.families import COMMAND, LEADER
from hostler.model.node import VmCommand
from hostler.model.replica import LeaderRecord
from hostler.model.vm import VmSpec
from hostler.ports.machines import Label, MachinePlan
from hostler.testing import FileHost, SimulatedMachines
from plane.record import Machines, check_commands

SPEC = VmSpec(cpus=1, memory_mib=64)
PLAN = MachinePlan(label=Label("acme", "web", "vm-1", "cluster"), spec=SPEC)


def command(fence: int) -> VmCommand:
    return VmCommand(org="acme", project="web", vm="vm-1", spec=SPEC, fence=fence)


async def test_a_machine_that_runs_in_two_places_at_once_is_noticed(tmp_path: Path) -> None:
    folders = {"r1-a": tmp_path / "a", "r1-b": tmp_path / "b"}
    machines = Machines(folders)
    async with (
        SimulatedMachines(FileHost(folders["r1-a"])) as one,
        SimulatedMachines(FileHost(folders["r1-b"])) as two,
    ):
        for each in (one, two):
            await each.create(PLAN)
        await one.start("vm-1")
        await one.stop("vm-1", grace=0)
        await two.start("vm-1")
        machines.check_never_twice()
        assert machines.there("r1-a") == {"vm-1"}
        await one.start("vm-1")
        with pytest.raises(AssertionError, match="ran twice at once"):
            machines.check_never_twice()
        await two.stop("vm-1", grace=0)
        with pytest.raises(AssertionError, match="ran twice at once"):
            machines.check_never_twice()


async def test_a_node_without_power_runs_nothing(tmp_path: Path) -> None:
    machines = Machines({"r1-a": tmp_path})
    async with SimulatedMachines(FileHost(tmp_path)) as one:
        await one.create(PLAN)
        await one.start("vm-1")
    assert list(machines.running()) == ["vm-1"]
    machines.switch_off("r1-a")
    assert machines.running() == {}
    [run] = machines.runs()["vm-1"]
    assert run.off is not None


@pytest.mark.parametrize(("fence", "deposed"), [(1, False), (2, True), (1, True)])
async def test_a_command_of_one_who_does_not_lead_is_noticed(fence: int, deposed: bool) -> None:
    async with open_store("memory://") as store:

        async def leads(fence: int) -> None:
            record = LeaderRecord(address="a:1", holder="one", fence=fence)
            await store.txn([], [LEADER.put(record, n=1)])

        await leads(1)
        await store.txn([], [COMMAND.put(command(1), node="r1-a", vm="vm-1")])
        if deposed:
            await leads(2)
        await store.txn([], [COMMAND.put(command(fence), node="r1-a", vm="vm-1")])
        if deposed and fence == 1:
            with pytest.raises(AssertionError, match="written under fence 1, while 2 led"):
                await check_commands(store)
        else:
            assert await check_commands(store) == 2

"""How many machines and labs are in which phase: counted once, then kept up, and each caller sees their own."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from hostler import open_store
from hostler.engine import phase as census_module
from hostler.engine.phase import PhaseCounts, phase
from hostler.engine.request import Caller
from hostler.engine.view import View
from hostler.keys.families import ALIVE, HANDLE, VM
from hostler.keys.lab import LAB
from hostler.kit.clock import SystemClock
from hostler.model.access import ROLES, Role
from hostler.model.lab import Lab, LabEvent, LabNews, LabPhase, LabUser
from hostler.model.node import Heartbeat
from hostler.model.vm import MachineState, VirtualMachine, VmHandle, VmSpec
from hostler.model.vm_api import VmPhase
from hostler.ports.store import Delete, Operation, Store

STATES = (MachineState.PENDING, MachineState.RUNNING, MachineState.FAILED, MachineState.STOPPED)
NODES = ("n1", "n2", "N3")


def caller(*memberships: str) -> Caller:
    return Caller("ann", ROLES[Role.VIEWER], memberships)


def machine(number: int, project: str, *, deleting: bool = False) -> tuple[VirtualMachine, dict[str, Any]]:
    spec = VmSpec(cpus=1, memory_mib=64)
    org, _, name = project.partition("/")
    vm = VirtualMachine(
        id=f"vm{number}", name=f"m{number}", org=org, project=name, spec=spec, deleting=deleting, created_at=1.0
    )
    return vm, {"org": org, "project": name, "vm": vm.id}


class World:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.view = View(store, clock=SystemClock())
        self.census = PhaseCounts(self.view, clock=SystemClock())

    async def write(self, *operations: Operation) -> None:
        await self.store.txn([], operations)
        await self.view.refresh(self.view.vms, self.view.handles, self.view.alive, self.view.labs)

    def counted(self, who: Caller) -> dict[str, int]:
        """One by one, as `phase` says."""
        found: Counter[str] = Counter()
        for entry in self.view.vms.entries.values():
            handle = self.view.handles.get(**entry.parts)
            seen = None if handle is None else handle.value
            lives = seen is not None and bool(seen.node) and self.view.alive.get(node=seen.node) is not None
            if who.sees(entry.value.org, entry.value.project):
                found[phase(entry.value, seen, lives).value] += 1
        return dict(found)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with open_store("memory://") as store:
        yield World(store)


CALLERS = (
    ("*",),
    ("acme",),
    ("acme/web",),
    ("acme", "acme/web"),
    ("acme/web", "acme/mobile"),
    ("other", "acme/web"),
    (),
)


@pytest.mark.parametrize("seed", range(5))
async def test_whatever_changes_the_counts_are_those_of_counting_one_by_one(world: World, seed: int) -> None:
    rng = random.Random(seed)
    for step in range(60):
        if step == 20:
            await world.census.load()
        vm, ids = machine(
            rng.randrange(12), rng.choice(("acme/web", "acme/mobile", "other/web")), deleting=rng.random() < 0.2
        )
        node = rng.choice(NODES)
        handle = VmHandle(id=vm.id, node=rng.choice(("", node)), state=rng.choice(STATES), generation=1, seen_at=2.0)
        life = ALIVE.put(Heartbeat(holder="h", started_at=0.0), node=node)
        wish = rng.choice((VM.put(vm, **ids), Delete(VM.fill(**ids))))
        seen = rng.choice((HANDLE.put(handle, **ids), HANDLE.put(handle, **ids), Delete(HANDLE.fill(**ids))))
        await world.write(rng.choice((wish, seen, rng.choice((life, ALIVE.delete(node=node))))))
    for memberships in CALLERS:
        who = caller(*memberships)
        assert world.census.vms(who) == world.counted(who), memberships


async def test_failed_machines_are_known_by_name_to_those_who_see_them(world: World) -> None:
    await world.census.load()
    for number, project in enumerate(("acme/web", "other/web")):
        vm, ids = machine(number, project)
        handle = VmHandle(id=vm.id, node="n1", state=MachineState.FAILED, detail="no image", generation=1, seen_at=2.0)
        await world.write(
            VM.put(vm, **ids), HANDLE.put(handle, **ids), ALIVE.put(Heartbeat(holder="h", started_at=0.0), node="n1")
        )
    (found,) = world.census.machines_in(caller("acme"), VmPhase.FAILED, 5)
    assert (found[0].value.name, found[1]) == ("m0", "no image")
    await world.write(ALIVE.delete(node="n1"))
    assert world.census.machines_in(caller("*"), VmPhase.FAILED, 5) == []
    assert len(world.census.machines_in(caller("*"), VmPhase.SILENT, 5)) == 2


async def test_only_those_are_waiting_that_have_been_pending_for_long(world: World) -> None:
    for number, project in enumerate(("acme/web", "acme/web", "other/web")):
        vm, ids = machine(number, project)
        await world.write(VM.put(vm, **ids))
    await world.census.load()
    for number in range(3, 9):
        vm, ids = machine(number, "acme/web")
        await world.write(VM.put(vm, **ids))
    await world.census.waited(SystemClock().wall() - 30.0)
    count, some = world.census.waiting(caller("acme"), 1)
    assert (count, [(vm.value.name, since) for vm, _, since in some]) == (2, [("m0", 1.0)])
    assert world.census.waiting(caller("*"), 5)[0] == 3
    assert world.census.waiting(caller("none"), 5) == (0, [])
    vm, ids = machine(0, "acme/web")
    handle = VmHandle(id=vm.id, node="n1", state=MachineState.RUNNING, generation=1, seen_at=2.0)
    await world.write(HANDLE.put(handle, **ids), ALIVE.put(Heartbeat(holder="h", started_at=0.0), node="n1"))
    await world.write(VM.delete(org="acme", project="web", vm="vm1"))
    assert world.census.waiting(caller("acme"), 5) == (0, [])
    await world.census.waited(SystemClock().wall())
    assert world.census.waiting(caller("acme"), 9)[0] == 6


async def test_what_waited_is_forgotten_though_nobody_asks(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(census_module, "LOOKED_AT", 5)
    await world.census.load()
    for number in range(20):
        vm, ids = machine(number, "acme/web")
        await world.write(VM.put(vm, **ids))
        if number % 4:
            await world.write(VM.delete(**ids))
    assert len(world.census._pending) <= 2 * 5 + 5 + 1
    await world.census.waited(SystemClock().wall())
    assert world.census.waiting(caller("*"), 9)[0] == 5


async def test_labs_are_counted_and_those_that_were_refused_are_known(world: World) -> None:
    lab = Lab(lab_id=5, generation=1, phase=LabPhase.WAITING, requested_at=1.0, life=60.0)
    refused = (LabNews(number=1, at=100.0, event=LabEvent.REFUSED, reason="too many"),)
    await world.write(
        LAB.put(LabUser(user="ada", lab=lab, changed_at=1.0), user="ada"),
        LAB.put(LabUser(user="bob", news=refused, changed_at=1.0), user="bob"),
    )
    await world.census.load()
    assert world.census.labs(caller("labs")) == {"waiting": 1}
    assert world.census.labs(caller("labs/bob")) == {}
    assert [entry.value.user for entry in world.census.refusals(caller("*"), 99.0)] == ["bob"]
    assert world.census.refusals(caller("*"), 101.0) == []
    assert world.census.refusals(caller("labs/ada"), 0.0) == []
    await world.write(
        LAB.put(LabUser(user="bob", lab=lab, news=refused, changed_at=1.0), user="bob"), LAB.delete(user="ada")
    )
    assert world.census.labs(caller("*")) == {"waiting": 1}
    assert world.census.refusals(caller("*"), 0.0) == []

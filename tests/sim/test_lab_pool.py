"""Labs whose machines are ready ahead, on the real control plane in virtual time.

A claim changes a machine's owner while its agent, its leader and every mirror know the old one. Whatever is killed
meanwhile: the machine runs on, is one lab's, and is made, stopped or removed by nobody.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from dose import every_nth, part, seeds
from msgspec.structs import replace

from hostler.engine.labs.controller import LabController
from hostler.engine.labs.pool import PER_NODE, LabPool
from hostler.keys.families import HANDLE, NAME, VM
from hostler.keys.lab import LAB_CATALOGUE
from hostler.model.lab import ORG, POOL_ORG, SHAPE_LABEL, LabCatalogue, LabPhase, LabTemplate
from hostler.model.vm import MachineState, Power, Step

from .labs import SMALL, LabPlane
from .plane import PATIENCE, Crash, Host, Loss, Wrong

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from hostler.engine.control_plane import ControlPlane
    from hostler.engine.service import Service

BOOT = 20.0
"""Seconds that a machine takes to start."""
AT_ONCE = 2.0
MOST = 400
POINTS = every_nth(range(1, MOST), 5)
"""Of a claim: `make soak` meets every one, `make test` every fifth, others with each commit."""


def of(warm: int, **changes: Any) -> LabTemplate:
    return replace(SMALL, warm=warm, **changes)


@dataclass
class PoolPlane(LabPlane):
    catalogue: LabCatalogue = field(default_factory=lambda: LabCatalogue(labs={"5": of(1), "6": of(0)}))
    pools: list[LabPool] = field(default_factory=list)

    def more_controllers(self, host: Host, graph: ControlPlane) -> Sequence[Service]:
        labs, projector = super().more_controllers(host, graph)
        assert isinstance(labs, LabController)
        assert labs._pool is not None
        self.pools.append(labs._pool)
        return (labs, projector)

    def check_one_each(self) -> None:
        users = [row.label.project for row in self.rows() if row.label.org == ORG]
        if len(users) != len(set(users)):
            raise Wrong(f"machines of {sorted(users)}")

    def rows(self) -> list[Any]:
        return [row for place in self.places.values() for row in place.contents.rows.values()]

    def counted(self, what: str) -> int:
        return sum(pool.counters.get(what, 0) for pool in self.pools)

    def runs(self, vm: str) -> int:
        """How often it was switched on."""
        return sum(len(place.intervals(vm, self.clock.now())) for place in self.places.values())

    async def rewrite(self, catalogue: LabCatalogue) -> None:
        """Another catalogue."""
        self.catalogue = catalogue
        await self.store.txn([], [LAB_CATALOGUE.put(catalogue, name="default")])

    async def ready(self, project: str = "5") -> list[str]:
        handles = (await HANDLE.list(self.store, org=POOL_ORG, project=project)).entries
        wishes = {entry.value.id: entry.value for entry in await self.wished(project)}
        return [
            entry.value.id
            for entry in handles
            if entry.value.state is MachineState.RUNNING
            and entry.value.readiness is not None
            and entry.value.readiness.step is Step.AVAILABLE
            and not wishes[entry.value.id].deleting
        ]

    async def wished(self, project: str) -> Any:
        return (await VM.list(self.store, org=POOL_ORG, project=project)).entries

    async def has(self, number: int, project: str = "5", within: float = PATIENCE, every: float = 0.1) -> list[str]:
        """Until so many are ready, and there are no others."""

        async def enough() -> bool:
            vms = await self.wished(project)
            return len(await self.ready(project)) == number == len(vms)

        await self.holds(enough, within, every)
        return await self.ready(project)

    async def holds(
        self, condition: Callable[[], Awaitable[bool]], within: float = PATIENCE, every: float = 0.1
    ) -> float:
        began = self.clock.now()
        while not await condition():
            if self.failure is not None:
                raise self.failure
            if self.clock.now() - began > within:
                vms = (await VM.list(self.store)).entries
                raise Wrong(f"not within {within:g} s: {vms}, {[pool.counters for pool in self.pools]}")
            await asyncio.sleep(every)
        return self.clock.now() - began

    async def nothing_else(self, machines: int) -> None:
        """As many machines as that, each with all its records, under the label that it has in the store."""

        async def fits() -> bool:
            vms = (await VM.list(self.store)).entries
            counts = [len(self.rows()), len(vms)]
            counts += [len((await key.list(self.store)).entries) for key in (HANDLE, NAME)]
            labels = {row.vm: (row.label.org, row.label.project) for row in self.rows()}
            return counts == [machines] * 4 and labels == {e.value.id: (e.value.org, e.value.project) for e in vms}

        await self.holds(fits)
        self.check_runs()


def play(story: Callable[[PoolPlane], Awaitable[None]], boot: float = BOOT, **options: Any) -> PoolPlane:
    plane = PoolPlane(**options)
    if boot:
        plane.faults.delays["start"] = boot
    plane.run(story)
    return plane


# Handing out


def test_a_lab_that_is_given_a_warm_machine_is_available_at_once() -> None:
    async def story(plane: PoolPlane) -> None:
        (vm,) = await plane.has(1)
        (before,) = plane.rows()
        await plane.start("ada", 5)
        assert await plane.until("ada", LabPhase.RUNNING) < AT_ONCE
        assert (await plane.lab("ada")).vm == vm
        await plane.agreed({"ada": 5})
        await plane.holds(lambda: _marked(plane, vm, "ada"))
        (after,) = plane.machines_of("ada")
        assert (after.on, after.boots, after.number) == (before.on, before.boots, before.number)
        assert after.tags.keys() == {"lab", "webuserid", "shape", "expires"}
        assert (await plane.has(1)) != [vm]
        await plane.nothing_else(2)
        await plane.stop("ada")
        await plane.agreed({"ada": None})
        await plane.nothing_else(1)

    play(story)


async def _marked(plane: PoolPlane, vm: str, user: str) -> bool:
    return [row.vm for row in plane.machines_of(user)] == [vm]


def test_without_a_warm_one_a_lab_gets_a_machine_of_its_own() -> None:
    async def story(plane: PoolPlane) -> None:
        await plane.has(1)
        await plane.start("ada", 6)
        assert await plane.until("ada", LabPhase.RUNNING) >= BOOT
        assert await plane.ready() != []
        assert plane.counted("missed") == 0
        await plane.start("bob", 5)
        await plane.start("eve", 5)
        await plane.agreed({"ada": 6, "bob": 5, "eve": 5})
        assert (plane.counted("claimed"), plane.counted("missed")) == (1, 1)

    play(story)


def test_where_every_id_has_the_default_one_pool_serves_all() -> None:
    async def story(plane: PoolPlane) -> None:
        await plane.has(2, "default")
        await plane.start("ada", 5)
        await plane.start("bob", 77)
        for user in ("ada", "bob"):
            assert await plane.until(user, LabPhase.RUNNING) < AT_ONCE
        await plane.has(2, "default")
        await plane.agreed({"ada": 5, "bob": 77})

    play(story, catalogue=LabCatalogue(default=of(2)))


KILLS = ("nobody", "replicas", "agents", "all")
AT_MOST = {kills: 200 if kills in part(KILLS, test=1) else 50 for kills in KILLS}
"""Users who come at once: 200 with one kind of kill, another with each commit; with all of them in soak."""


@pytest.mark.parametrize("kills", KILLS)
def test_all_who_come_at_once_get_a_machine_each_and_none_gets_anothers(kills: str) -> None:
    users, warm = [f"u{number}" for number in range(AT_MOST[kills])], AT_MOST[kills] // 5

    async def story(plane: PoolPlane) -> None:
        await plane.has(warm, within=1000)
        ready = set(await plane.ready())
        boots = {vm: plane.runs(vm) for vm in ready}
        await asyncio.gather(*(plane.start(user, 5) for user in users))
        victims = {"nobody": [], "replicas": ["replica-1", "replica-2"], "agents": list(plane.places)}
        for _ in range(0 if kills == "nobody" else 6):
            await asyncio.sleep(plane.rng.uniform(0.05, 1.5))
            chosen = victims.get(kills) or [*victims["replicas"], *victims["agents"]]
            plane.kill(plane.rng.choice(chosen))
        await plane.agreed(dict.fromkeys(users, 5), within=1000)
        given = [(await plane.lab(user)).vm for user in users]
        assert len(set(given)) == len(users)
        assert len(ready & set(given)) == warm, "all that were ready were of use"
        assert {vm: plane.runs(vm) for vm in ready} == boots, "and ran on"
        await plane.has(warm, within=1000)
        await plane.nothing_else(len(users) + warm)

    catalogue = LabCatalogue(labs={"5": of(warm)})
    play(story, boot=2.0, nodes=5, replicas=2, catalogue=catalogue, seed=len(kills))


@pytest.mark.parametrize("seed", seeds(test=1, pool=3))
def test_in_bad_weather_a_machine_that_was_ready_is_one_lab_s_and_runs_on(seed: int) -> None:
    users, warm = [f"u{number}" for number in range(30)], 8
    bad = {"unavailable": 0.03, "lost": 0.03, "never": 0.02, "slow": 0.1, "lagged": 0.02}

    async def story(plane: PoolPlane) -> None:
        ready = set(await plane.has(warm, within=1000))
        for name, often in bad.items():
            setattr(plane.weather, name, often)
        await asyncio.gather(*(plane.start(user, 5) for user in users))
        for _ in range(5):
            await asyncio.sleep(plane.rng.uniform(0.1, 5.0))
            plane.kill(plane.rng.choice(sorted(plane.hosts)))
        await asyncio.sleep(60)
        for name in bad:
            setattr(plane.weather, name, 0.0)
        await plane.agreed(dict.fromkeys(users, 5), within=1000)
        given = {(await plane.lab(user)).vm for user in users}
        assert len(given) == len(users)
        assert {plane.runs(vm) for vm in ready & given} == {1}
        assert len(ready & given) >= warm / 2, "weather is no reason to let them stand"
        await plane.has(warm, within=1000)
        await plane.nothing_else(len(users) + warm)

    play(story, boot=3.0, nodes=3, replicas=2, catalogue=LabCatalogue(labs={"5": of(warm)}), seed=seed)


# Killed, and unheard


VICTIMS = {
    "the agent": ("agent", ("agent",)),
    "the replica": ("replica", ("replica",)),
    "both, where the agent is": ("agent", ("agent", "replica")),
    "both, where the replica is": ("replica", ("agent", "replica")),
}


def claimed_with(fault: Crash | Loss, at: int) -> None:
    """One is ready, and a user asks; the fault is armed from then until all has settled."""

    async def story(plane: PoolPlane) -> None:
        (vm,) = await plane.has(1)
        fault.armed = True
        await plane.start("ada", 5)
        await plane.agreed({"ada": 5})
        assert (await plane.lab("ada")).vm == vm, "it was given another one"
        assert plane.runs(vm) == 1, "it did not run on"
        await plane.has(1)
        fault.armed = False
        await plane.nothing_else(2)

    crash, loss = (fault, None) if isinstance(fault, Crash) else (None, fault)
    play(story, boot=1.0, seed=at, crash=crash, loss=loss)


@pytest.mark.parametrize("who", VICTIMS)
def test_killed_at_every_point_of_a_claim_the_machine_runs_on_and_is_the_lab_s(who: str) -> None:
    watched, victims = VICTIMS[who]
    for at in POINTS:
        crash = Crash(watched, victims, at)
        try:
            claimed_with(crash, at)
        except BaseException as error:
            error.add_note(f"{who} killed at point {at} ({crash.where})")
            raise
        if not crash.where:
            assert crash.passed >= 4, f"only {crash.passed} points were found"
            return
    pytest.fail(f"more than {MOST} points")


@pytest.mark.parametrize("kind", ["lost", "never", "late"])
@pytest.mark.parametrize("watched", ["agent", "replica"])
def test_with_every_answer_lost_once_the_machine_runs_on_and_is_the_lab_s(watched: str, kind: str) -> None:
    for at in POINTS:
        loss = Loss(watched, kind, at)
        try:
            claimed_with(loss, at)
        except BaseException as error:
            error.add_note(f"request {at} of the {watched}: {kind} ({loss.where})")
            raise
        if not loss.where:
            assert loss.passed, "no request was met"
            return
    pytest.fail(f"more than {MOST} requests")


# Keeping it up


def test_never_more_are_on_their_way_than_nodes_make_at_once() -> None:
    async def story(plane: PoolPlane) -> None:
        most = 0

        async def full() -> bool:
            nonlocal most
            vms, ready = await plane.wished("5"), await plane.ready()
            most = max(most, len(vms) - len(ready))
            return len(ready) == 12 == len(vms)

        await plane.holds(full, within=1000)
        assert most == 2 * PER_NODE

    play(story, catalogue=LabCatalogue(labs={"5": of(12)}))


def test_machines_of_another_shape_make_place_and_so_do_those_that_are_too_many() -> None:
    async def story(plane: PoolPlane) -> None:
        first = await plane.has(3)
        await plane.rewrite(LabCatalogue(labs={"5": of(2)}))
        kept = await plane.has(2)
        assert set(kept) < set(first)
        await plane.rewrite(LabCatalogue(labs={"5": of(2, memory_mib=512)}))
        await plane.holds(lambda: _memory(plane, 512))
        await plane.rewrite(LabCatalogue(labs={"5": of(0)}))
        await plane.has(0)
        await plane.nothing_else(0)
        assert plane.counted("surplus") >= 1
        assert plane.counted("reshaped") >= 4

    play(story, boot=1.0, catalogue=LabCatalogue(labs={"5": of(3)}))


async def _memory(plane: PoolPlane, mib: int) -> bool:
    ready = await plane.ready()
    return [row.spec.memory_mib for row in plane.rows() if row.vm in ready] == [mib, mib] and len(plane.rows()) == 2


@pytest.mark.parametrize("value", [b"rubbish", None])
def test_a_catalogue_that_is_damaged_or_deleted_costs_no_machine(value: bytes | None) -> None:
    async def story(plane: PoolPlane) -> None:
        warm, key = await plane.has(1), LAB_CATALOGUE.fill(name="default")
        await (plane.store.delete(key) if value is None else plane.store.put(key, value))
        await asyncio.sleep(60)
        assert await plane.has(1) == warm
        await plane.start("ada", 5)
        await plane.agreed({"ada": 5})
        assert [(await plane.lab("ada")).vm] == warm

    play(story, boot=0.0)


def test_a_machine_of_the_old_shape_is_given_to_nobody() -> None:
    async def story(plane: PoolPlane) -> None:
        (old,) = await plane.has(1)
        await plane.start("ada", 5)
        await plane.rewrite(LabCatalogue(labs={"5": of(1, memory_mib=512)}))
        await plane.agreed({"ada": 5})
        (row,) = plane.machines_of("ada")
        assert row.spec.memory_mib == (256 if row.vm == old else 512)
        await plane.rewrite(LabCatalogue(labs={"5": of(1, memory_mib=1024)}))
        await plane.start("bob", 5)
        await plane.agreed({"ada": 5, "bob": 5})
        assert [row.spec.memory_mib for row in plane.machines_of("bob")] == [1024]

    play(story)


def test_a_machine_that_never_comes_up_is_replaced_with_growing_pauses() -> None:
    async def story(plane: PoolPlane) -> None:
        plane.faults.delays["start"] = 0.0
        plane.faults.of("start").broken = 1.0
        await plane.holds(lambda: _counted(plane, "replaced", 4), within=1000)
        made = plane.counted("made")
        took = await plane.holds(lambda: _counted(plane, "replaced", 5), within=1000)
        assert took > 60
        assert plane.counted("made") <= made + 2  # that which was replaced, and the next
        plane.faults.of("start").broken = 0.0
        await plane.has(1, within=1000)
        await plane.nothing_else(1)

    play(story, boot=0.0)


async def _counted(plane: PoolPlane, what: str, number: int) -> bool:
    return plane.counted(what) >= number


def test_one_that_takes_more_than_ten_minutes_is_replaced() -> None:
    async def story(plane: PoolPlane) -> None:
        took = await plane.holds(lambda: _counted(plane, "replaced", 1), within=1000, every=1.0)
        assert 590 < took < 650
        plane.faults.delays["start"] = 1.0
        await plane.has(1, within=3000, every=1.0)

    play(story, boot=2000.0)


def test_one_that_its_owner_stops_or_deletes_is_replaced() -> None:
    async def story(plane: PoolPlane) -> None:
        (vm,) = await plane.has(1)
        (entry,) = await plane.wished("5")
        off = replace(entry.value, power=Power.OFF, generation=2)
        await VM.replace(plane.store, entry, off)
        await plane.holds(lambda: _replaced(plane, vm))
        (entry,) = await plane.wished("5")
        await VM.replace(plane.store, entry, replace(entry.value, deleting=True, generation=2))
        await plane.holds(lambda: _replaced(plane, entry.value.id))
        await plane.nothing_else(1)

    play(story, boot=1.0)


async def _replaced(plane: PoolPlane, vm: str) -> bool:
    found = await plane.ready()
    return len(found) == 1 and found[0] != vm and len(await plane.wished("5")) == 1


def test_one_whose_node_is_silent_is_not_given_out_and_another_is_made() -> None:
    async def story(plane: PoolPlane) -> None:
        (vm,) = await plane.has(1)
        node = next(node for node, place in plane.places.items() if vm in place.contents.rows)
        plane.supervised = False
        plane.kill(node)
        await asyncio.sleep(10)
        await plane.start("ada", 5)
        await plane.agreed({"ada": 5})
        assert (await plane.lab("ada")).vm != vm
        plane.supervised = True
        plane.spawn(node)
        await plane.has(1)
        await plane.nothing_else(2)

    play(story, boot=1.0)


# Making way


def test_an_idle_machine_makes_way_for_a_lab_that_finds_no_room() -> None:
    async def story(plane: PoolPlane) -> None:
        await plane.has(2)  # of two nodes for two machines each
        for user in ("ada", "bob"):
            await plane.start(user, 6)
        await plane.agreed({"ada": 6, "bob": 6})
        await plane.start("eve", 6)
        assert await plane.until("eve", LabPhase.RUNNING) < AT_ONCE + 30
        await plane.agreed({"ada": 6, "bob": 6, "eve": 6})
        await asyncio.sleep(300)
        assert plane.counted("evicted") == 1
        await plane.agreed({"ada": 6, "bob": 6, "eve": 6})
        await plane.stop("bob")
        await plane.has(2, within=1000)

    big = {"cpus": 30}
    play(story, boot=1.0, catalogue=LabCatalogue(labs={"5": of(2, **big), "6": of(0, **big)}))


def test_what_no_node_has_room_for_is_not_kept_waiting() -> None:
    async def story(plane: PoolPlane) -> None:
        await plane.holds(lambda: _counted(plane, "no_room", 2), within=1000)
        assert len(await plane.ready()) == 4
        assert plane.counted("made") <= 8
        entries = await plane.wished("5")
        assert all(entry.value.labels[SHAPE_LABEL] for entry in entries)

    play(story, boot=1.0, catalogue=LabCatalogue(labs={"5": of(5, cpus=30)}))


def test_no_machine_makes_way_for_one_that_no_node_could_have() -> None:
    async def story(plane: PoolPlane) -> None:
        warm = await plane.has(1)
        await plane.start("ada", 7)
        await plane.until("ada", None)
        (entry,) = await plane.wished("5")
        wish = replace(entry.value, id="own", name="own", org=ORG, project="bob", labels={})
        wish = replace(wish, spec=replace(wish.spec, cpus=250))  # that of no lab: nobody ends it
        await plane.store.put(VM.fill(org=ORG, project="bob", vm="own"), VM.encode(wish))
        await asyncio.sleep(60)
        handle = await HANDLE.get(plane.store, org=ORG, project="bob", vm="own")
        assert handle is not None
        assert handle.value.state is MachineState.PENDING
        assert (await plane.has(1), plane.counted("evicted")) == (warm, 0)

    play(story, boot=0.0, catalogue=LabCatalogue(labs={"5": of(1), "7": of(0, cpus=250)}))

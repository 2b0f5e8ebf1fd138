"""A node's registration, heartbeat and fencing."""

from __future__ import annotations

import asyncio
import copy
import itertools
import random
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from agent_stage import FENCING, TTL, Running, Stage, stage
from dose import seeds

from hostler.drivers.machines.simulated import MachineFaults, MemoryHost, Odds, SimulatedMachines
from hostler.drivers.store.faulty import FaultyStore
from hostler.engine.agent import session
from hostler.engine.agent.agent import Agent
from hostler.engine.agent.config import AgentConfig, NodeEnv
from hostler.engine.calendar import READ_EVERY
from hostler.engine.cluster_id import read_identity
from hostler.errors import Invalid
from hostler.keys.families import ALIVE, CLOCK, CLUSTER, COMMAND, HANDLE, MEMBER
from hostler.kit.virtual_loop import ProcessLoop, run_virtual
from hostler.model.node import DrainMode, LastControlPlane, Lifecycle, OffConfirmation
from hostler.model.vm import MachineState, Power
from hostler.ports.store import Delete

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hostler.engine.cluster_id import Identity
    from hostler.ports.machines import Offer
    from hostler.ports.store import Store

RUNNING, STOPPED = MachineState.RUNNING, MachineState.STOPPED
replace = msgspec.structs.replace


def staged(play: Callable[[Stage], Awaitable[None]], seed: int = 0, loop: ProcessLoop | None = None) -> None:
    async def main() -> None:
        async with stage(seed) as it:
            await play(it)

    run_virtual(main, seed=seed, loop=loop)


async def registered(it: Stage, running: Running, within: float = 30.0) -> float:
    return await it.until(lambda: running.agent.state().registered, within)


# Registering


def test_a_node_registers_with_what_it_has_and_lives_on_its_lease() -> None:
    async def play(it: Stage) -> None:
        a = await it.agent(labels={"k": "v"}, rack="r1", pdus=("p",), tors=("t",), address="1.2.3.4")
        await registered(it, a)
        member, alive = await it.member(), await it.alive()
        assert member is not None
        assert alive is not None
        assert member.lifecycle is Lifecycle.JOINING
        assert (member.labels, member.rack, member.pdus, member.tors) == ({"k": "v"}, "r1", ("p",), ("t",))
        assert (member.address, member.driver, member.fences) == ("1.2.3.4", "simulated", True)
        assert (member.fencing_time, member.capacity) == (FENCING, (await a.machines.offer()).capacity)
        assert alive.value.place == a.place.id
        assert alive.lease is not None
        await asyncio.sleep(1000.0)
        assert await it.alive() == alive
        assert a.agent.state().sessions == 1

    staged(play)


class Kept:
    """The file beside the machines."""

    def __init__(self) -> None:
        self.last: LastControlPlane | None = None

    async def read(self) -> LastControlPlane | None:
        return self.last

    async def write(self, last: LastControlPlane) -> None:
        self.last = last


async def _change_cluster(it: Stage, **changes: Any) -> None:
    found = await CLUSTER.get(it.bare)
    assert found is not None
    await it.bare.txn([], [CLUSTER.put(msgspec.structs.replace(found.value, **changes))])


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"epoch": 6}, "older (epoch 6)"),
        ({"copy_id": "other"}, "a different copy of epoch 7"),
        ({"id": "other"}, "belongs to cluster other"),
        (None, "was emptied, or it is a different store"),
    ],
)
def test_a_node_takes_no_command_from_an_older_or_foreign_control_plane(
    changes: dict[str, Any] | None, why: str
) -> None:
    async def play(it: Stage) -> None:
        kept = Kept()
        a = await it.agent(memory=kept)
        await registered(it, a)
        await a.leave()
        await _change_cluster(it, epoch=7, copy_id="mine")
        a = await it.agent(place=a.place, memory=kept)
        await it.command()
        await it.reaches("v", MachineState.RUNNING)
        await a.leave()
        assert kept.last is not None
        assert (kept.last.epoch, kept.last.copy_id) == (7, "mine")
        if changes is None:
            await it.bare.delete(CLUSTER.fill())
        else:
            await _change_cluster(it, **changes)
        await it.remove()  # the older store knows nothing of the machine
        a = await it.agent(place=a.place, memory=kept)
        await asyncio.sleep(1000.0)
        state = a.agent.state()
        assert not state.registered
        assert why in state.waits_for
        assert "--accept-cluster" in state.waits_for
        assert await it.alive() is None
        machine = await a.machine()
        assert machine is not None
        assert machine.state is MachineState.RUNNING
        await a.leave()
        b = await it.agent(place=a.place, memory=kept, accept=True)
        await registered(it, b)

    staged(play)


@pytest.mark.parametrize("heartbeat", [True, False])
def test_a_node_ends_its_session_when_its_store_is_put_back_with_its_heartbeat_in_it(heartbeat: bool) -> None:
    async def play(it: Stage) -> None:
        kept = Kept()
        a = await it.agent(memory=kept)
        await registered(it, a)
        snapshot = copy.deepcopy(it.bare._state)  # as `etcdctl snapshot save`, with the lease
        await it.command()
        await it.reaches("v", MachineState.RUNNING)
        if heartbeat:
            await asyncio.sleep(TTL / 2)
        it.bare._state = snapshot
        await a.agent.commands.refresh()  # as after every interruption
        for lease in snapshot.leases.values():
            lease.deadline = it.clock.now() + TTL  # etcd extends it
        for number in range(50):  # others write to it
            await it.bare.put("/other", str(number).encode())
            await asyncio.sleep(TTL / 10)
        assert "older (" in a.agent.state().waits_for
        assert await it.alive() is None
        machine = await a.machine()
        assert machine is not None
        assert machine.state is MachineState.RUNNING, "the older store knows no command for it"
        await a.leave()
        b = await it.agent(place=a.place, memory=kept)
        await asyncio.sleep(100.0)
        assert not b.agent.state().registered, "a supervisor starts the agent again"
        await b.leave()
        c = await it.agent(place=a.place, memory=kept, accept=True)
        await registered(it, c)

    staged(play)


def test_an_answer_that_was_overtaken_by_a_newer_one_is_no_older_store(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(it: Stage) -> None:
        a = await it.agent()
        await registered(it, a)

        async def overtaken(store: Store) -> Identity:
            found = await read_identity(store)
            a.agent.session.saw(await it.bare.put("/other", b"x"))  # a command, on the watch
            return found

        monkeypatch.setattr(session, "read_identity", overtaken)
        alive = await it.alive()
        assert alive is not None
        await it.bare.delete(alive.key)
        await asyncio.sleep(2 * TTL)
        assert a.agent.state().registered

    staged(play)


def test_a_node_without_machines_joins_another_control_plane_but_no_older_one() -> None:
    async def play(it: Stage) -> None:
        kept = Kept()
        kept.last = LastControlPlane(cluster="other")
        a = await it.agent(memory=kept)
        await registered(it, a)
        assert kept.last.cluster != "other"
        await a.leave()
        kept.last = msgspec.structs.replace(kept.last, epoch=2)
        b = await it.agent(memory=kept)
        await asyncio.sleep(100.0)
        assert not b.agent.state().registered
        assert "older (epoch 1)" in b.agent.state().waits_for

    staged(play)


def test_a_node_with_retained_machines_alone_joins_no_other_control_plane() -> None:
    async def play(it: Stage) -> None:
        kept = Kept()
        a = await it.agent(memory=kept)
        await it.command()
        await it.reaches("v", MachineState.RUNNING)
        await it.remove()
        while not a.place.contents.kept:
            await asyncio.sleep(1.0)
        await a.leave()
        await _change_cluster(it, id="other")
        b = await it.agent(place=a.place, memory=kept)
        await asyncio.sleep(100.0)
        assert not b.agent.state().registered
        assert "belongs to cluster other" in b.agent.state().waits_for

    staged(play)


def test_a_node_writes_its_time_when_it_registers_and_every_five_minutes_on_its_lease() -> None:
    async def play(it: Stage) -> None:
        a = await it.agent()
        await registered(it, a)
        node = CLOCK.parse((await CLOCK.list(it.store)).entries[0].key)["node"]
        seen = []
        for _ in range(2):
            reading, alive = await CLOCK.get(it.store, node=node), await it.alive()
            assert reading is not None
            assert alive is not None
            assert reading.lease == alive.lease
            seen.append(reading.value.at)
            await asyncio.sleep(READ_EVERY + TTL)
        assert READ_EVERY <= seen[1] - seen[0] <= READ_EVERY + TTL
        await a.crash()
        await asyncio.sleep(3 * TTL)
        assert await CLOCK.get(it.store, node=node) is None

    staged(play)


def test_who_has_the_same_machines_takes_the_node_over_at_once() -> None:
    async def play(it: Stage) -> None:
        a = await it.agent()
        await registered(it, a)
        await a.crash()
        b = await it.agent(place=a.place)
        assert await registered(it, b) < 0.5
        alive = await it.alive()
        assert alive is not None
        assert alive.value.holder == b.agent.session.holder
        await asyncio.sleep(3 * TTL)
        assert await it.alive() == alive, "the old lease took the new key with it"

    staged(play)


def test_who_has_other_machines_waits_until_the_node_is_free_and_says_for_whom() -> None:
    async def play(it: Stage) -> None:
        a = await it.agent()
        await registered(it, a)
        b = await it.agent()
        await asyncio.sleep(100.0)
        assert not b.agent.state().registered
        assert a.agent.session.holder in b.agent.state().waits_for
        assert a.place.id in b.agent.state().waits_for
        await a.crash()
        assert TTL / 2 < await registered(it, b) < TTL + 2.0

    staged(play)


@pytest.mark.parametrize("trace", ["command", "handle"])
def test_who_has_other_machines_leaves_a_node_alone_that_may_have_some_elsewhere(trace: str) -> None:
    async def play(it: Stage) -> None:
        a, other = await it.agent("A"), MemoryHost("another disk")
        await registered(it, a)
        await it.command()
        await it.reaches("v", RUNNING)
        await a.crash()
        if trace == "handle":  # somebody meddled; the leader will tell the node again when it lives
            await it.remove()
        b = await it.agent(place=other)
        await asyncio.sleep(10 * TTL)
        assert not b.agent.state().registered
        assert await it.alive() is None, "the operator can still say that it is off"
        assert b.agent.state().waits_for == (
            f"node A has machines in other storage ({a.place.id}); start its agent there, or, if that host is off,"
            " confirm it: hostler node confirm-off A"
        )
        assert other.intervals("v", it.clock.now()) == []
        await it.remove()  # as the leader does once it is confirmed that the node is off
        await it.bare.delete(HANDLE.fill(org="o", project="p", vm="v"))
        assert await registered(it, b) < 2.0
        member = await it.member()
        assert member is not None
        assert member.place == other.id

    staged(play)


def test_the_first_agent_comes_back_though_another_waits_for_its_node() -> None:
    async def play(it: Stage) -> None:
        a = await it.agent()
        await registered(it, a)
        await it.command()
        await it.reaches("v", RUNNING)
        await a.crash()
        b = await it.agent(place=MemoryHost("another disk"))
        await asyncio.sleep(3 * TTL)
        again = await it.agent(place=a.place)
        assert await registered(it, again) < 1.0
        await asyncio.sleep(3 * TTL)
        assert not b.agent.state().registered
        assert len(a.place.intervals("v", it.clock.now())) == 1

    staged(play)


def test_a_record_without_a_place_is_of_an_earlier_release_and_counts_as_the_same() -> None:
    async def play(it: Stage) -> None:
        a = await it.agent()
        await registered(it, a)
        await it.command()
        await a.crash()
        entry = await MEMBER.get(it.bare, node="a")
        assert entry is not None
        await MEMBER.replace(it.bare, entry, replace(entry.value, place=""))
        await it.until(lambda: _silent(it))
        b = await it.agent(place=MemoryHost("moved"))
        assert await registered(it, b) < 2.0

    staged(play)


async def _silent(it: Stage) -> bool:
    return await it.alive() is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Lifecycle.ON_DUTY, Lifecycle.JOINING),
        (Lifecycle.SHUTTING_DOWN, Lifecycle.JOINING),
        (Lifecycle.DRAINING, Lifecycle.DRAINING),
        (Lifecycle.DECOMMISSIONED, Lifecycle.DECOMMISSIONED),
    ],
)
def test_an_operators_word_outlives_a_restart_and_a_confirmation_that_it_is_off_does_not(
    before: Lifecycle, after: Lifecycle
) -> None:
    async def play(it: Stage) -> None:
        a = await it.agent()
        await registered(it, a)
        await a.crash()
        member = await it.member()
        assert member is not None
        off = OffConfirmation(by="op", at=1.0)
        record = replace(member, lifecycle=before, drain=DrainMode.STOP, off=off)
        await it.bare.put(MEMBER.fill(node="a"), MEMBER.encode(record))
        b = await it.agent(place=a.place)
        await registered(it, b)
        member = await it.member()
        assert member is not None
        assert (member.lifecycle, member.drain, member.off) == (after, DrainMode.STOP, None)

    staged(play)


@pytest.mark.parametrize("verb", ["txn", "grant", "get", "range", "keep_alive"])
@pytest.mark.parametrize("kind", ["lost", "never", "unavailable"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_whatever_answer_is_lost_the_node_is_registered_in_the_end(verb: Any, kind: Any, nth: int) -> None:
    async def play(it: Stage) -> None:
        it.store.script(verb, kind, nth=nth, times=2)
        a = await it.agent()
        await it.command()
        await it.reaches("v", RUNNING)
        alive = await it.alive()
        assert alive is not None
        assert alive.value.holder == a.agent.session.holder
        await asyncio.sleep(60.0)
        assert await it.alive() == alive

    if verb in ("get", "range") and kind != "unavailable":
        with pytest.raises(Invalid):
            staged(play)  # a read cannot be lost
    else:
        staged(play)


@pytest.mark.parametrize("plan", [{"fencing_time": 29.0}, {"node_ttl": 0.0}, {"boots": 0}, {"look_every": 0.0}])
def test_a_plan_that_cannot_be_is_refused(plan: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        AgentConfig(node="a", **plan)


# Beating


def test_a_keep_alive_that_never_answers_costs_one_beat() -> None:
    async def play(it: Stage) -> None:
        hangs = 0

        async def call(verb: Any, do: Any) -> Any:
            nonlocal hangs
            if verb == "keep_alive" and 20.0 < it.clock.now() < 26.0:
                hangs += 1
                await asyncio.Event().wait()
            return await FaultyStore.call(it.store, verb, do)

        it.store.call = call  # type: ignore[method-assign]
        a = await it.agent()
        await registered(it, a)
        alive = await it.alive()
        await asyncio.sleep(200.0)
        assert hangs >= 1
        assert await it.alive() == alive

    staged(play)


def test_a_key_that_somebody_deleted_is_noticed_though_its_lease_lives() -> None:
    async def play(it: Stage) -> None:
        a = await it.agent()
        await it.command(fenced=True)
        await it.reaches("v", RUNNING)
        await it.bare.delete(ALIVE.fill(node="a"))
        deleted = it.clock.now()
        await it.until(lambda: a.agent.state().sessions == 2, within=TTL / 4 + 1.0)
        assert it.clock.now() - deleted <= TTL / 4 + 1.0
        assert await it.alive() is not None
        await asyncio.sleep(60.0)
        assert len(a.machines.intervals("v")) == 1

    staged(play)


@pytest.mark.parametrize("outage", [5.0, 20.0, 29.0, 60.0])
def test_an_outage_of_the_store_stops_no_machine_but_fenced_ones_after_their_time(outage: float) -> None:
    async def play(it: Stage) -> None:
        a = await it.agent()
        await it.command("free")
        await it.command("fenced", fenced=True)
        await it.reaches("free", RUNNING)
        await it.reaches("fenced", RUNNING)
        await asyncio.sleep(100.0)
        it.store.down()
        began = it.clock.now()
        await asyncio.sleep(outage)
        it.store.up()
        await it.until(lambda: a.agent.state().registered and a.agent.state().heard_ago < 1.0)  # type: ignore[operator]
        await it.reaches("fenced", RUNNING)
        await asyncio.sleep(30.0)
        assert len(a.machines.intervals("free")) == 1, "it was restarted needlessly"
        runs = a.machines.intervals("fenced")
        assert len(runs) == (1 if outage < FENCING - TTL / 4 else 2)
        if len(runs) == 2:
            assert runs[0][1] is not None
            assert runs[0][1] <= began + FENCING
        assert (await it.handle("fenced")).state is RUNNING

    staged(play)


def test_a_machine_that_breaks_during_an_outage_is_started_and_told_of_afterwards() -> None:
    async def play(it: Stage) -> None:
        a = await it.agent()
        await it.command()
        await it.reaches("v", RUNNING)
        await asyncio.sleep(100.0)
        it.store.down()
        await asyncio.sleep(25.0)
        a.machines.crash("v")
        await it.until(lambda: len(a.machines.intervals("v")) == 2)
        await it.bare.compact(it.bare.current_revision())
        it.store.up()
        await asyncio.sleep(30.0)
        assert (await it.handle()).state is RUNNING
        assert len(a.machines.intervals("v")) == 2

    staged(play)


def test_what_was_commanded_during_an_outage_is_done_after_it() -> None:
    async def play(it: Stage) -> None:
        a = await it.agent()
        for vm in ("stops", "goes", "stays"):
            await it.command(vm)
            await it.reaches(vm, RUNNING)
        it.store.down()
        await it.change("stops", power=Power.OFF)
        await it.remove("goes")
        await it.command("comes")
        await asyncio.sleep(60.0)
        assert {machine.state for machine in await a.machines.list()} == {RUNNING}
        it.store.up()
        await it.reaches("stops", STOPPED)
        await it.reaches("comes", RUNNING)
        await it.until(lambda: a.agent.state().retained == 1)
        assert len(a.machines.intervals("stays")) == 1

    staged(play)


@pytest.mark.parametrize("seed", seeds(test=15, pool=150, full=3000))
def test_fenced_machines_are_off_a_ttl_before_the_leader_may_take_them(seed: int) -> None:
    """However the store fails: off no later than when its key was gone, plus the fencing time, less the ttl."""

    async def play(it: Stage) -> None:
        rng = random.Random(seed)
        a = await it.agent(faults=MachineFaults(delays={"hold": rng.choice((0.0, 0.5, 3.0))}))
        await it.command(fenced=True)
        await it.reaches("v", RUNNING)
        await asyncio.sleep(rng.uniform(0.0, 60.0))
        it.store.faults.slow, it.store.faults.slowest = rng.choice((0.0, 0.5)), rng.choice((1.0, 6.0))
        it.store.faults.lost, it.store.faults.unavailable = rng.choice((0.0, 0.3)), rng.choice((0.0, 0.3))
        await asyncio.sleep(rng.uniform(0.0, 60.0))
        it.store.down()
        it.store.faults.slow = 0.0

        async def gone() -> bool:
            return await it.alive() is None

        await it.until(gone, within=3 * TTL)
        gone_at = it.clock.now()
        await it.remove()  # from here on only the hold counts
        await asyncio.sleep(FENCING)
        runs = a.machines.intervals("v")
        if runs:
            assert runs[-1][1] is not None
            assert runs[-1][1] <= gone_at + FENCING - TTL + 0.1

    staged(play, seed)


# Leaving


def test_who_leaves_says_so_and_its_machines_run_on() -> None:
    async def play(it: Stage) -> None:
        a = await it.agent()
        await it.command()
        await it.command("fenced", fenced=True)
        await it.reaches("v", RUNNING)
        await it.reaches("fenced", RUNNING)
        left = it.clock.now()
        await a.leave()
        member = await it.member()
        assert member is not None
        assert member.lifecycle is Lifecycle.SHUTTING_DOWN
        assert await it.alive() is None
        assert (await it.handle()).state is RUNNING
        await asyncio.sleep(100.0)
        b = await it.agent(place=a.place)
        await it.reaches("fenced", RUNNING)
        await asyncio.sleep(20.0)
        assert len(b.machines.intervals("v")) == 1
        first = b.machines.intervals("fenced")[0]
        assert first[1] is not None
        assert first[1] <= left + FENCING - TTL, "the leader counts from when the key went"
        member = await it.member()
        assert member is not None
        assert member.lifecycle is Lifecycle.JOINING

    staged(play)


def test_a_drained_node_that_leaves_stays_drained() -> None:
    async def play(it: Stage) -> None:
        a = await it.agent()
        await registered(it, a)
        member = await it.member()
        assert member is not None
        await it.bare.put(MEMBER.fill(node="a"), MEMBER.encode(replace(member, lifecycle=Lifecycle.DRAINING)))
        await a.leave()
        member = await it.member()
        assert member is not None
        assert member.lifecycle is Lifecycle.DRAINING
        assert await it.alive() is None

    staged(play)


def test_a_restart_without_goodbye_is_noticed_by_nobody() -> None:
    async def play(it: Stage) -> None:
        gone: list[int] = []
        a = await it.agent()
        await it.command(fenced=True)
        await it.reaches("v", RUNNING)

        async def look() -> None:
            async with ALIVE.watch(it.bare) as watch:
                while True:
                    if (change := await anext(watch)).type == "delete":
                        gone.append(change.revision)

        looking = asyncio.create_task(look())
        await asyncio.sleep(10.0)
        await a.leave(False)
        b = await it.agent(place=a.place)
        await registered(it, b)
        await asyncio.sleep(60.0)
        assert not gone
        assert len(b.machines.intervals("v")) == 1
        looking.cancel()
        await asyncio.wait((looking,))

    staged(play)


@pytest.mark.parametrize("away", [False, True])
def test_leaving_leaves_nothing_running_even_if_the_store_is_away(away: bool) -> None:
    async def play(it: Stage) -> None:
        def ours() -> list[str]:
            parts = ("agent", "session", "machine")
            return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith(parts)]

        a = await it.agent(faults=MachineFaults(delays={"start": 50.0}))
        await it.command()
        await it.reaches("v", MachineState.STARTING)
        if away:
            it.store.down()
        assert len(ours()) > 5
        started = it.clock.now()
        await a.leave()
        assert it.clock.now() - started <= TTL / 4 + 0.1
        assert ours() == []

    staged(play)


# Sleeping


STEPS = [
    f"{verb}.{part}:{when}"
    for verb, part in (("create", "begun"), ("create", "done"), ("start", "begun"), ("start", "done"), ("hold", "done"))
    for when in ("before", "after")
]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("slept", [20.0, 50.0, 200.0])
@pytest.mark.parametrize("lag", [0.0, 0.5, 5.0])
def test_a_sleeper_that_wakes_in_the_middle_of_a_step_lets_nothing_run_twice(
    step: str, slept: float, lag: float
) -> None:
    """`lag`: how long the step takes once it is awake again; the store is slow, so it knows nothing new before."""
    loop = ProcessLoop(int(slept + 7 * lag))

    async def play(it: Stage) -> None:
        asleep, awake = asyncio.Event(), asyncio.Event()
        a_running: list[Running] = []
        it.store.faults.slow, it.store.faults.slowest = float(lag > 0.0), 1.0

        async def at(name: str) -> None:
            if name == step and not asleep.is_set():
                asleep.set()
                loop.suspend("a")
                await awake.wait()
                await asyncio.sleep(lag)

        def wake() -> None:
            loop.wake("a")
            awake.set()

        async def process() -> None:
            a_running.append(await it.agent("a", step=at, faults=MachineFaults(delays={"create": 1.0, "start": 1.0})))

        b = await it.agent("b")
        await registered(it, b)
        await it.command(fenced=True)
        await loop.launch("a", process())
        a = a_running[0]
        await it.until(asleep.is_set)
        woken = asyncio.create_task(asyncio.sleep(slept))

        async def silent() -> bool:
            return await it.alive() is None

        await it.until(silent, within=slept + TTL)
        gone_at = it.clock.now()
        handle = await it.handle_entry()
        # The leader: what is silent for the fencing time is taken, and placed on b.
        while it.clock.now() < gone_at + FENCING and await it.alive() is None:
            if woken.done():
                wake()
            await asyncio.sleep(0.05)
        taken = await it.alive() is None
        if taken:
            assert await it.handle_entry() == handle, "a silent node wrote"
            await it.remove(node="a")
            await it.command(node="b", fenced=True)
            await it.reaches("v", RUNNING)
        await woken
        wake()
        await asyncio.sleep(lag)
        await it.until(lambda: a.agent.state().registered and not a.agent.state().working)
        await asyncio.sleep(20.0)
        runs = sorted([*a.machines.intervals("v"), *b.machines.intervals("v")], key=lambda run: run[0])
        for first, second in itertools.pairwise(runs):
            assert first[1] is not None
            assert first[1] <= second[0], f"it ran twice: {runs}"
        assert (await a.machine() is None) == taken
        if taken:
            assert (await it.handle()).node == "b"
        assert len(b.machines.intervals("v")) == int(taken)

    staged(play, loop=loop)


@pytest.mark.parametrize("seed", range(10))
def test_a_sleeper_asks_before_it_acts_on_what_it_knew(seed: int) -> None:
    loop = ProcessLoop(seed)

    async def play(it: Stage) -> None:
        a_running: list[Running] = []

        async def process() -> None:
            a_running.append(await it.agent("a"))

        await it.command()
        await loop.launch("a", process())
        await it.reaches("v", RUNNING)
        a = a_running[0]
        await asyncio.sleep(100.0)
        loop.suspend("a")
        await asyncio.sleep(5.0)
        await a.machines.stop("v", grace=0.0)
        await it.remove()
        await asyncio.sleep(100.0)
        it.store.faults.slow = 1.0
        loop.wake("a")
        await it.until(lambda: a.agent.state().retained == 1)
        assert len(a.machines.intervals("v")) == 1, "it was started though nobody wants it any more"

    staged(play, seed, loop=loop)


def test_a_fenced_machine_that_nobody_commands_is_off_before_anything_is_held_again() -> None:
    async def play(it: Stage) -> None:
        removed, held = False, []

        async def step(name: str) -> None:
            if removed and name == "hold.done:before":
                machine = await a.machine()
                held.append(machine is not None and machine.state)

        a = await it.agent(step=step)
        await it.command(fenced=True)
        await it.command("other", fenced=True)
        await it.reaches("v", RUNNING)
        await it.reaches("other", RUNNING)
        it.store.down()
        await asyncio.sleep(TTL + 5.0)
        await it.remove()  # somebody stood for it that the node is off
        removed = True
        a.machines.script("retain", "unavailable", times=1000)
        it.store.up()
        await it.until(lambda: a.agent.state().sessions == 2)
        await asyncio.sleep(60.0)
        assert set(held) == {STOPPED}
        assert len(a.machines.intervals("v")) == 1
        assert len(a.machines.intervals("other")) == 1

    staged(play)


# All at once


@pytest.mark.parametrize("seed", seeds(test=8, pool=80, full=1500))
def test_whatever_goes_wrong_every_commanded_machine_is_there_in_the_end_and_no_other(seed: int) -> None:
    async def play(it: Stage) -> None:
        rng = random.Random(seed)
        place = MemoryHost()
        odds = Odds(unavailable=0.05, never=0.05, half=0.1, lost=0.1, broken=0.05, slow=0.1)
        faults = MachineFaults(odds, delays={"create": 1.0, "start": 2.0, "stop": 1.0, "snapshot": 0.5})
        a = await it.agent(place=place, faults=faults, look_every=5.0, sweep_every=60.0)
        store = it.store.faults
        for number in range(60):
            store.lost, store.never = rng.choice((0.0, 0.1)), rng.choice((0.0, 0.1))
            store.unavailable, store.slow = rng.choice((0.0, 0.1)), rng.choice((0.0, 0.2))
            store.lagged = rng.choice((0.0, 0.2))
            vm = f"v{rng.randrange(5)}"
            entry = await COMMAND.get(it.bare, node="a", vm=vm)
            if rng.random() < 0.1:
                await a.crash()
                a = await it.agent(place=place, faults=faults, look_every=5.0, sweep_every=60.0)
            elif rng.random() < 0.05:
                it.store.down()
                await asyncio.sleep(rng.choice((5.0, 20.0, 50.0)))
                it.store.up()
            elif entry is None:
                await it.command(vm, power=rng.choice(list(Power)), fenced=rng.random() < 0.5, resets=number)
            elif rng.random() < 0.1:
                await it.remove(vm)
            elif rng.random() < 0.1:
                await it.change(vm, deleting=True)
            else:
                snapshots = tuple(sorted(rng.sample(("s", "t", "u"), rng.randrange(3))))
                await it.change(vm, power=rng.choice(list(Power)), snapshots=snapshots, resets=number)
            await asyncio.sleep(rng.choice((0.0, 0.1, 1.0, 10.0)))
        it.store.faults.lost = it.store.faults.never = it.store.faults.unavailable = it.store.faults.lagged = 0.0
        faults.every = Odds()
        await asyncio.sleep(400.0)
        commands = {entry.value.vm: entry.value for entry in (await COMMAND.list(it.bare, node="a")).entries}
        there = {machine.label.vm: machine for machine in await a.machines.list()}
        assert set(there) == {vm for vm, command in commands.items() if not command.deleting}
        for vm, command in commands.items():
            handle = await it.handle(vm)
            assert handle.generation == command.generation
            wanted = RUNNING if command.power is Power.ON else STOPPED
            assert handle.state is (MachineState.GONE if command.deleting else wanted)
            if not command.deleting:
                machine = there[vm]
                assert machine.state is wanted
                assert (machine.resets, set(machine.snapshots)) == (command.resets, set(command.snapshots))
                assert set(handle.snapshots) == set(command.snapshots)
        assert not a.agent.state().failing

    staged(play, seed)


# Fencing times that change


def test_a_shorter_fencing_time_is_told_only_once_no_longer_hold_stands() -> None:
    async def play(it: Stage) -> None:
        a = await it.agent(fencing_time=300.0)
        await registered(it, a)
        await it.command(fenced=True)
        await it.reaches("v", RUNNING)
        await a.crash()

        async def never_held(point: str) -> None:
            if point.startswith("hold"):
                await asyncio.sleep(1e6)

        b = await it.agent(place=a.place, fencing_time=30.0, step=never_held)
        await it.until(lambda: _held_by(it, b))
        await b.crash()
        member = await it.member()
        assert member is not None
        assert member.fencing_time == 300.0, "the leader would take what is still held"

        c = await it.agent(place=a.place, fencing_time=30.0)
        await registered(it, c)
        await it.until(lambda: _fencing_time(it, 30.0), 5.0)
        lowered_at = it.clock.now()
        await c.crash()
        await asyncio.sleep(31.0)
        end = a.place.intervals("v", it.clock.now())[-1][1]
        assert end is not None
        assert end <= lowered_at + 30.0

    staged(play)


def test_a_longer_fencing_time_is_told_before_anything_is_held_for_it() -> None:
    async def play(it: Stage) -> None:
        a = await it.agent(fencing_time=30.0)
        await registered(it, a)
        await a.crash()
        told: list[float] = []

        async def held(point: str) -> None:
            member = await it.member()
            if point.startswith("hold") and member is not None:
                told.append(member.fencing_time)

        b = await it.agent(place=a.place, fencing_time=300.0, step=held)
        await registered(it, b)
        assert told
        assert set(told) == {300.0}

    staged(play)


async def _held_by(it: Stage, running: Running) -> bool:
    alive = await it.alive()
    return alive is not None and alive.value.holder == running.agent.session.holder


async def _fencing_time(it: Stage, seconds: float) -> bool:
    member = await it.member()
    return member is not None and member.fencing_time == seconds


def test_an_agent_that_is_suspended_on_its_way_to_a_hold_does_not_hold_for_longer() -> None:
    async def play(it: Stage) -> None:
        place = MemoryHost("slow")
        asleep = 0.0

        class Suspended(SimulatedMachines):
            async def hold(self, seconds: float, *, since: float | None = None) -> None:
                await self.clock.sleep(asleep)
                await super().hold(seconds, since=since)

        machines = Suspended(place, clock=it.clock, rng=it.rng)
        await machines.__aenter__()
        plan = AgentConfig(node="a", node_ttl=60.0, fencing_time=120.0)  # it is patient for 15 s
        env = NodeEnv(store=it.store, machines=machines, config=plan, clock=it.clock, rng=it.rng, new_id=lambda: "id")
        agent = Agent(env)
        running = Running(agent, machines, place)
        it.running.append(running)
        await registered(it, running)
        asleep = 10.0
        for _ in range(40):
            await asyncio.sleep(2.5)
            heard, until = agent.session.heard_at, place.contents.held_until
            assert heard is not None
            assert until is not None
            assert until <= heard + 120.0

    staged(play)


# What it has to offer


def offers(machines: SimulatedMachines, patch: pytest.MonkeyPatch, **fields: Any) -> None:
    """Let the node offer something else from now on."""
    offer = machines.offer

    async def changed() -> Offer:
        return replace(await offer(), **fields)

    patch.setattr(machines, "offer", changed)


def test_a_node_tells_what_it_offers_and_again_when_that_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(it: Stage) -> None:
        a = await it.agent()
        await registered(it, a)
        member = await it.member()
        assert member is not None
        assert (member.moves, member.images, member.facts, member.refuses) == (True, None, {}, "")
        news = {"images": ("tiny",), "facts": {"acceleration": "kvm"}, "refuses": "its disk is almost full"}
        offers(a.machines, monkeypatch, **news)
        await it.until(lambda: _says(it, news), within=15.0)

    async def _says(it: Stage, news: dict[str, Any]) -> bool:
        member = await it.member()
        return member is not None and all(getattr(member, name) == value for name, value in news.items())

    staged(play)


def test_what_has_not_changed_is_not_written_again() -> None:
    async def play(it: Stage) -> None:
        a = await it.agent()
        await registered(it, a)
        entry = await MEMBER.get(it.bare, node="a")
        await asyncio.sleep(300.0)
        assert await MEMBER.get(it.bare, node="a") == entry

    staged(play)


def test_an_operators_word_survives_a_new_offer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(it: Stage) -> None:
        a = await it.agent()
        await registered(it, a)
        entry = await MEMBER.get(it.bare, node="a")
        assert entry is not None
        await MEMBER.replace(it.bare, entry, replace(entry.value, lifecycle=Lifecycle.DRAINING, drain=DrainMode.STOP))
        offers(a.machines, monkeypatch, refuses="full")
        await asyncio.sleep(30.0)
        member = await it.member()
        assert member is not None
        assert (member.lifecycle, member.drain, member.refuses) == (Lifecycle.DRAINING, DrainMode.STOP, "full")

    staged(play)


def test_another_address_of_its_relay_is_in_the_record_at_once_and_after_the_next_registration() -> None:
    async def play(it: Stage) -> None:
        a = await it.agent(address="https://a#sha256:1")
        await registered(it, a)
        a.agent.session.announce("https://a#sha256:2")
        await asyncio.sleep(1.0)
        member = await it.member()
        assert member is not None
        assert member.address == "https://a#sha256:2"
        alive = await it.alive()
        assert alive is not None
        await it.store.txn([], [Delete(alive.key)])
        await it.until(lambda: a.agent.state().sessions == 2, 60.0)
        member = await it.member()
        assert member is not None
        assert member.address == "https://a#sha256:2"

    staged(play)


def test_an_agent_logs_an_outage_of_its_store_and_what_that_stopped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def play(it: Stage) -> None:
        a = await it.agent()
        await it.command("free")
        await it.command("fenced", fenced=True)
        await it.reaches("free", RUNNING)
        await it.reaches("fenced", RUNNING)
        await registered(it, a)
        await asyncio.sleep(30.0)
        it.store.down()
        await asyncio.sleep(85.0)
        it.store.up()
        await asyncio.sleep(20.0)

    staged(play)
    (stopped,) = [line for line in caplog.messages if "stopped by itself" in line]
    assert stopped.startswith("machine fenced on node a: stopped by itself, because the store has not answered for 3")
    said = [line for line in caplog.messages if "the store does not answer" in line or "the store answers" in line]
    assert len(said) == 2
    assert "the store does not answer (" in said[0]
    assert "machines that fence themselves stop 30 s after the last heartbeat" in said[0]
    assert "the store answers again, after 8" in said[1]

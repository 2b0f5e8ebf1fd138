"""Which machines are kept ready for labs, what each of them is, and who gets one."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hostler.drivers.store.memory import MemoryStore
from hostler.engine.controllers.decision import tags_of
from hostler.engine.labs import state_machine
from hostler.engine.labs.decide import SPARE
from hostler.engine.labs.pool import LabPool
from hostler.engine.labs.pool_decide import (
    ANY,
    FAILURES,
    LATE,
    NO_ROOM,
    Kind,
    PoolState,
    Stocked,
    in_the_way,
    kind_of,
    kinds_of,
    pool_state,
    project_of,
    work,
)
from hostler.engine.labs.state_machine import LabStart
from hostler.engine.runtime.env import ControllerEnv
from hostler.engine.view import View
from hostler.errors import QuotaExceeded
from hostler.keys.entry import Entry
from hostler.keys.families import ALIVE, COMMAND, HANDLE, MEMBER, NAME, QUOTA, VM
from hostler.keys.lab import LAB, LAB_CATALOGUE
from hostler.kit.virtual_loop import VirtualClock, run_virtual
from hostler.model.access import Quota
from hostler.model.inventory import Capacity
from hostler.model.lab import POOL_ORG, LabCatalogue, LabTemplate, LabUser
from hostler.model.node import Heartbeat, Lifecycle, NodeRecord, VmCommand
from hostler.model.vm import MachineState, Power, Readiness, Step, VirtualMachine, VmHandle
from hostler.ports.store import Version

TEMPLATE = LabTemplate(warm=2, provider="qemu")
KIND = kind_of("5", TEMPLATE, ("k",))
MADE = VirtualMachine(
    id="a",
    name="warm-a",
    org=POOL_ORG,
    project="5",
    spec=KIND.spec,
    labels={"shape": KIND.shape},
    node_labels=KIND.node_labels,
    created_at=0.0,
)
HANDLED = VmHandle(
    id="a",
    node="n",
    state=MachineState.RUNNING,
    generation=1,
    readiness=Readiness(step=Step.AVAILABLE, since=0.0),
    seen_at=0.0,
)


def stocked(id_: str, condition: PoolState, project: str = "5", made: float = 0.0) -> Stocked:
    vm = replace(MADE, id=id_, project=project, created_at=made)
    return Stocked(Entry(vm, {}, id_, 1, 1, 1), condition)


def kinds(**warm: int) -> dict[str, Kind]:
    return {name.strip("l"): replace(KIND, project=name.strip("l"), warm=number) for name, number in warm.items()}


def test_each_lab_has_machines_of_its_own_or_all_share_the_default() -> None:
    labs = LabCatalogue(labs={"5": TEMPLATE, "6": replace(TEMPLATE, warm=0)})
    assert {project: kind.warm for project, kind in kinds_of(labs, ()).items()} == {"5": 2}
    assert project_of(labs, 5) == "5"
    everything = LabCatalogue(default=TEMPLATE)
    assert list(kinds_of(everything, ())) == [ANY] == [project_of(everything, 77)]


@pytest.mark.parametrize(
    ("changes", "condition"),
    [
        ({}, PoolState.READY),
        ({"vm": replace(MADE, deleting=True)}, PoolState.GOING),
        ({"vm": replace(MADE, power=Power.OFF)}, PoolState.WRONG),
        ({"vm": replace(MADE, labels={})}, PoolState.WRONG),
        ({"vm": replace(MADE, node_labels={})}, PoolState.WRONG),
        ({"vm": replace(MADE, spec=replace(MADE.spec, cpus=2))}, PoolState.WRONG),
        ({"kind": None}, PoolState.WRONG),
        ({"kind": kind_of("5", replace(TEMPLATE, memory_mib=512), ("k",))}, PoolState.WRONG),
        ({"kind": kind_of("5", replace(TEMPLATE, ssh_keys=("theirs",)), ("k",))}, PoolState.WRONG),
        ({"kind": kind_of("5", TEMPLATE, ("of another leader",))}, PoolState.READY),
        ({"ready": False}, PoolState.COMING),
        ({"ready": False, "away": True, "waited": LATE}, PoolState.AWAY),
        ({"ready": False, "waited": LATE}, PoolState.FAILED),
        ({"ready": False, "handle": replace(HANDLED, state=MachineState.FAILED, failures=FAILURES)}, PoolState.FAILED),
        ({"ready": False, "handle": replace(HANDLED, state=MachineState.FAILED, failures=1)}, PoolState.COMING),
        ({"ready": False, "handle": replace(HANDLED, state=MachineState.PENDING)}, PoolState.COMING),
        (
            {"ready": False, "handle": replace(HANDLED, state=MachineState.PENDING), "waited": NO_ROOM},
            PoolState.NO_ROOM,
        ),
        ({"ready": False, "handle": None}, PoolState.COMING),
    ],
    ids=str,
)
def test_what_a_machine_is(changes: dict[str, Any], condition: PoolState) -> None:
    seen: dict[str, Any] = {"vm": MADE, "handle": HANDLED, "kind": KIND, "ready": True, "away": False, "waited": 0.0}
    assert pool_state(**seen | changes) is condition


def test_what_is_missing_is_made_in_turn_and_no_more_than_can_be() -> None:
    todo = work(kinds(l5=3, l6=2), [stocked("a", PoolState.READY)], coming=1, most=4, paused=())
    assert [kind.project for kind in todo.make] == ["5", "6", "5"]
    assert work(kinds(l5=3), [stocked("a", PoolState.COMING)], coming=3, most=4, paused=()).make == ()
    assert work(kinds(l5=3), [], coming=0, most=9, paused={"5"}).make == ()


def test_what_is_too_many_goes_and_what_is_of_use_stays_longest() -> None:
    there = [
        stocked("old", PoolState.READY, made=1),
        stocked("new", PoolState.READY, made=2),
        stocked("soon", PoolState.COMING, made=0),
    ]
    assert [(one.vm.key, why) for one, why in work(kinds(l5=1), there, coming=0, most=9, paused=()).drop] == [
        ("soon", "surplus"),
        ("new", "surplus"),
    ]


@given(
    st.lists(st.tuples(st.sampled_from(PoolState), st.sampled_from("567")), max_size=12),
    st.dictionaries(st.sampled_from("56"), st.integers(1, 5)),
    st.integers(0, 3),
    st.integers(0, 8),
)
def test_whatever_there_is_the_work_ends_where_it_shall(
    there: list[tuple[PoolState, str]], warm: dict[str, int], coming: int, most: int
) -> None:
    wanted = {project: replace(KIND, project=project, warm=number) for project, number in warm.items()}
    stock = [stocked(str(number), condition, project) for number, (condition, project) in enumerate(there)]
    todo = work(wanted, stock, coming=coming, most=most, paused=())
    gone = {one.vm.key for one, _ in todo.drop}
    assert len(gone) == len(todo.drop)
    assert not [one for one, _ in todo.drop if one.condition in (PoolState.GOING, PoolState.AWAY)]
    on_their_way = sum(one.condition is PoolState.COMING for one in stock) + coming
    assert len(todo.make) <= max(0, most - on_their_way)
    for project, number in warm.items():
        kept = [
            one
            for one in stock
            if one.project == project
            and one.condition in (PoolState.READY, PoolState.COMING)
            and one.vm.key not in gone
        ]
        assert len(kept) + sum(kind.project == project for kind in todo.make) <= number


def test_who_makes_way_is_not_ready_or_of_another_lab_or_at_least_the_youngest() -> None:
    stock = [
        stocked("own", PoolState.COMING, "5"),
        stocked("ready", PoolState.READY, "6", made=1),
        stocked("younger", PoolState.READY, "6", made=2),
        stocked("going", PoolState.GOING, "6"),
        stocked("away", PoolState.AWAY, "6"),
    ]
    order = []
    while (found := in_the_way(stock, {one.vm.key for one in stock}, "5")) is not None:
        order.append(found.vm.key)
        stock.remove(found)
    assert order == ["younger", "ready", "own"]
    assert in_the_way([stocked("a", PoolState.READY)], (), "6") is None


# Two who know no better


class Led:
    fence = 7

    @property
    def leadership(self) -> Led:
        return self

    def check(self) -> None:
        pass

    def guard(self) -> Any:
        return Version("leader") == 1


async def laid(store: MemoryStore) -> None:
    node = NodeRecord(
        node="n", lifecycle=Lifecycle.ON_DUTY, capacity=Capacity(cpus=8, memory_mib=65536), registered_at=0.0
    )
    place: dict[str, Any] = {"org": POOL_ORG, "project": "5"}
    command = VmCommand(
        org=POOL_ORG, project="5", vm="a", name=MADE.name, spec=MADE.spec, tags=tags_of(MADE), generation=1
    )
    await store.put("leader", b"l")
    await store.txn(
        [],
        [
            LAB_CATALOGUE.put(LabCatalogue(labs={"5": TEMPLATE}), name="default"),
            MEMBER.put(node, node="n"),
            ALIVE.put(Heartbeat(holder="h", started_at=0.0), node="n"),
            VM.put(MADE, vm="a", **place),
            NAME.put("a", name=MADE.name, **place),
            HANDLE.put(HANDLED, vm="a", **place),
            COMMAND.put(command, node="n", vm="a"),
        ],
    )


async def pool_of(store: MemoryStore, clock: VirtualClock) -> LabPool:
    view = View(store, clock=clock, rng=random.Random(1))
    await view.refresh()
    env = ControllerEnv(store=store, clock=clock, rng=random.Random(1), new_id=lambda: "new")
    pool = LabPool(env, view, keys=("k",))
    await pool.start(Led())  # type: ignore[arg-type]
    return pool


async def asked(store: MemoryStore, user: str) -> Entry[LabUser]:
    catalogue = LabCatalogue(labs={"5": TEMPLATE})
    return await LAB.create(
        store, state_machine.start(None, user, LabStart(5, switch=False), catalogue=catalogue, now=0.0), user=user
    )


def play(story: Any) -> None:
    async def main() -> None:
        clock = VirtualClock()
        async with MemoryStore(clock=clock) as store:
            await laid(store)
            await story(store, clock)

    run_virtual(main)


def test_of_two_claims_of_one_machine_one_wins_whoever_makes_them() -> None:
    async def story(store: MemoryStore, clock: VirtualClock) -> None:
        pools = [await pool_of(store, clock) for _ in range(2)]
        claims = [
            await pool.claim(await asked(store, user), TEMPLATE, 100.0)
            for pool, user in zip(pools, ("ada", "bob"), strict=True)
        ]
        assert [claim and claim.vm for claim in claims] == ["a", "a"]
        won = [(await store.txn([Led().guard(), *claim.when], claim.then)).succeeded for claim in claims if claim]
        assert won == [True, False]
        (machine,) = (await VM.list(store)).entries
        assert (machine.value.project, machine.value.name) == ("ada", "lab-5-1")
        assert machine.value.expires_at == 100.0 + TEMPLATE.life + TEMPLATE.grace + SPARE
        assert machine.value.labels == {"lab": "5", "webuserid": "ada", "shape": KIND.shape}

    play(story)


def test_one_that_is_offered_is_offered_to_nobody_else_until_that_is_settled() -> None:
    async def story(store: MemoryStore, clock: VirtualClock) -> None:
        pool = await pool_of(store, clock)
        ada, bob = await asked(store, "ada"), await asked(store, "bob")
        first = await pool.claim(ada, TEMPLATE, 0.0)
        assert first is not None
        assert await pool.claim(bob, TEMPLATE, 0.0) is None
        pool.settle(first, written=False)
        second = await pool.claim(bob, TEMPLATE, 0.0)
        assert second is not None
        pool.settle(second, written=True)
        assert await pool.claim(ada, TEMPLATE, 0.0) is None
        assert pool.counters == {"missed": 2, "claimed": 1}

    play(story)


def test_a_claim_that_cannot_be_made_gives_the_machine_back() -> None:
    async def story(store: MemoryStore, clock: VirtualClock) -> None:
        pool = await pool_of(store, clock)
        ada, bob = await asked(store, "ada"), await asked(store, "bob")
        await store.txn([], [QUOTA.put(Quota(vms=0), org="labs", project="ada")])
        with pytest.raises(QuotaExceeded):
            await pool.claim(ada, TEMPLATE, 0.0)
        assert await pool.claim(bob, TEMPLATE, 0.0) is not None

    play(story)


@pytest.mark.parametrize(
    "meanwhile",
    [
        VM.put(replace(MADE, deleting=True), org=POOL_ORG, project="5", vm="a"),
        VM.put(replace(MADE, generation=2), org=POOL_ORG, project="5", vm="a"),
        HANDLE.put(replace(HANDLED, readiness=None), org=POOL_ORG, project="5", vm="a"),
        HANDLE.put(replace(HANDLED, state=MachineState.STOPPED), org=POOL_ORG, project="5", vm="a"),
        ALIVE.delete(node="n"),
        COMMAND.delete(node="n", vm="a"),
        MEMBER.delete(node="n"),
    ],
    ids=["going", "changed", "not available", "off", "silent", "told nothing", "forgotten"],
)
def test_what_is_not_ready_is_offered_to_nobody(meanwhile: Any) -> None:
    async def story(store: MemoryStore, clock: VirtualClock) -> None:
        await store.txn([], [meanwhile])
        pool = await pool_of(store, clock)
        assert await pool.claim(await asked(store, "ada"), TEMPLATE, 0.0) is None

    play(story)

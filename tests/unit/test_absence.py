"""Nodes that fall silent and come back are told of once, and who shares their fate."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest
from controller_world import World, play

from hostler.engine.controllers.node_lost import SETTLE
from hostler.engine.controllers.nodes import NodeController
from hostler.engine.decision_recorder import Tracer
from hostler.engine.runtime.env import ControllerEnv
from hostler.keys.families import ALIVE, MEMBER, SILENT, TRACE
from hostler.model.inventory import Capacity
from hostler.model.node import Heartbeat, Lifecycle, NodeRecord

if TYPE_CHECKING:
    from controller_world import Leader

    from hostler.model.trace import Trace


async def led(world: World, name: str, **more: Any) -> tuple[Leader, NodeController]:
    """A leader whose nodes are traced; its other controllers are those of every test."""
    leader = await world.leader(name)
    tracer = Tracer(world.clock, iter([f"{name}-{number}" for number in range(1000)]).__next__, "nodes")
    env = ControllerEnv(store=leader.store, clock=world.clock, rng=random.Random(1), tracer=tracer)
    nodes = NodeController(env, leader.view, **more)
    await nodes.start(leader)
    leader._tasks.append(asyncio.create_task(nodes.run()))
    return leader, nodes


async def member(world: World, node: str, **more: Any) -> None:
    fields: dict[str, Any] = {
        "node": node,
        "lifecycle": Lifecycle.ON_DUTY,
        "capacity": Capacity(cpus=8, memory_mib=8192, disk_gib=100),
        "registered_at": world.clock.wall(),
        "fencing_time": 30.0,
        **more,
    }
    beat = ALIVE.put(Heartbeat(holder="h", started_at=1.0), node=node)
    await world.raw.txn([], [MEMBER.put(NodeRecord(**fields), node=node), beat])


async def silenced(world: World, *nodes: str) -> None:
    await world.raw.txn([], [ALIVE.delete(node=node) for node in nodes])


async def told(world: World, what: str) -> list[Trace]:
    return [entry.value for entry in (await TRACE.list(world.raw)).entries if entry.value.what == what]


def test_those_that_share_a_pdu_say_so_and_the_others_do_not() -> None:
    async def story(world: World) -> None:
        for number in range(1, 9):
            pdu = f"r1/pdu{(number + 3) // 4}"
            await member(world, f"r1-{number}", rack="r1", pdus=(pdu,), tors=("r1/tor1",))
        await member(world, "r2-1", rack="r2", pdus=("r2/pdu1",))
        await led(world, "l1")
        await silenced(world, "r1-1", "r1-2", "r1-3", "r1-4", "r2-1")
        await asyncio.sleep(SETTLE - 0.5)
        assert not await told(world, "silent"), "it is not told at once"
        await asyncio.sleep(1)
        traces = {trace.subject.rpartition("/")[2]: trace for trace in await told(world, "silent")}
        assert set(traces) == {"r1-1", "r1-2", "r1-3", "r1-4", "r2-1"}
        assert traces["r1-1"].why.endswith("; so did r1-2, r1-3, r1-4, which share pdu r1/pdu1 (4 of its 4 nodes)"), (
            traces["r1-1"].why
        )
        assert traces["r2-1"].why.endswith("; it depends on pdu r2/pdu1, rack r2"), traces["r2-1"].why
        assert not any(trace.cause or trace.touches for trace in traces.values()), "nothing that we know led to it"

    play(story)


def test_many_are_counted_and_not_all_named() -> None:
    async def story(world: World) -> None:
        for number in range(1, 7):
            await member(world, f"r1-{number}", rack="r1", tors=("r1/tor1",))
        await led(world, "l1")
        await silenced(world, *(f"r1-{number}" for number in range(1, 6)))
        await asyncio.sleep(SETTLE + 1)
        whys = [trace.why for trace in await told(world, "silent")]
        assert len(whys) == 5
        assert all("and 1 more, which share tor r1/tor1 (5 of its 6 nodes)" in why for why in whys), whys

    play(story)


def test_the_next_leader_tells_neither_again_nor_less() -> None:
    async def story(world: World) -> None:
        await member(world, "r1-1")
        first, _ = await led(world, "l1")
        await silenced(world, "r1-1")
        await asyncio.sleep(SETTLE + 1)
        (silent,) = await told(world, "silent")
        kept = await SILENT.get(world.raw, node="r1-1")
        assert kept is not None
        assert kept.value.trace == silent.id
        await first.end()
        await led(world, "l2")
        await asyncio.sleep(SETTLE + 40)
        assert len(await told(world, "silent")) == 1
        await world.raw.txn([], [ALIVE.put(Heartbeat(holder="h", started_at=1.0), node="r1-1")])
        await asyncio.sleep(1)
        (back,) = await told(world, "returned")
        assert back.cause == silent.id
        assert await SILENT.get(world.raw, node="r1-1") is None
        await silenced(world, "r1-1")
        await asyncio.sleep(SETTLE + 1)
        assert len(await told(world, "silent")) == 2

    play(story)


def test_a_node_that_came_and_went_while_nobody_led_has_fallen_silent_anew() -> None:
    async def story(world: World) -> None:
        await member(world, "r1-1")
        first, _ = await led(world, "l1")
        await silenced(world, "r1-1")
        await asyncio.sleep(SETTLE + 1)
        await first.end()
        await asyncio.sleep(30)
        await member(world, "r1-1")
        await silenced(world, "r1-1")
        await led(world, "l2")
        await asyncio.sleep(SETTLE + 1)
        assert len(await told(world, "silent")) == 2

    play(story)


def test_who_is_back_at_once_or_leaves_in_order_is_not_told_of() -> None:
    async def story(world: World) -> None:
        await member(world, "r1-1")
        await member(world, "r1-2", lifecycle=Lifecycle.SHUTTING_DOWN)
        await led(world, "l1")
        await silenced(world, "r1-1", "r1-2")
        await asyncio.sleep(SETTLE / 2)
        await world.raw.txn([], [ALIVE.put(Heartbeat(holder="h", started_at=1.0), node="r1-1")])
        await asyncio.sleep(60)
        assert not await told(world, "silent")
        assert not await told(world, "returned")

    play(story)


class Switch:
    """A power switch that answers at once."""

    async def switch_off(self, node: str) -> bool:
        return bool(node)


@pytest.mark.parametrize("seen", [True, False], ids=["and it is seen", "and nobody sees it"])
def test_a_damaged_record_of_a_silence_stops_nothing_that_is_done_about_the_node(seen: bool) -> None:
    async def story(world: World) -> None:
        node = await world.node("r1-1")
        await world.create("a")
        leader, nodes = await led(world, "l1", power=Switch(), power_grace=2.0)
        await asyncio.sleep(3)
        await world.raw.put(SILENT.fill(node="r1-1"), b"{")
        await asyncio.sleep(1)
        silences = leader.view.silences
        assert list(silences.unreadable) == [SILENT.fill(node="r1-1")]
        if not seen:  # telling of it never succeeds
            silences.unreadable = {}
        await node.fall_silent()
        await asyncio.sleep(15 + SETTLE + 3)
        (off,) = await told(world, "switched_off")
        traces = await told(world, "silent")
        assert len(traces) == seen
        assert off.cause == (traces[0].id if seen else "")
        assert (nodes.counters.get("untold", 0) > 0) != seen
        if seen:
            assert (await SILENT.get(world.raw, node="r1-1")) is not None, "it is written anew"

    play(story)


@pytest.mark.parametrize("grace", [0.0, SETTLE / 4, SETTLE * 2])
def test_silence_is_told_before_a_node_is_switched_off_for_it(grace: float) -> None:
    async def story(world: World) -> None:
        node = await world.node("r1-1")
        await world.create("a")
        await led(world, "l1", power=Switch(), power_grace=grace)
        await asyncio.sleep(3)
        await node.fall_silent()
        await asyncio.sleep(15 + max(grace, SETTLE) + 1)
        (silent,) = await told(world, "silent")
        (off,) = await told(world, "switched_off")
        assert off.cause == silent.id

    play(story)

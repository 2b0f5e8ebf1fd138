"""The leader's work on nodes and on what expires, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from controller_world import ORG, PROJECT, Leader, World, ids, node, play, vm

from hostler.drivers.power import BmcPower, PowerByNode
from hostler.drivers.store.memory import MemoryStore
from hostler.engine.controllers.node_lost import HeartbeatMonitor
from hostler.engine.view import View
from hostler.errors import LeadershipLost, Unavailable
from hostler.keys.families import ALIVE, ARRIVAL, AUDIT, COMMAND, HANDLE, MEMBER, TOKEN, VM
from hostler.kit.virtual_loop import VirtualClock, run_virtual
from hostler.model.access import Audit, Token, TokenKind
from hostler.model.node import Arrival, DrainMode, Heartbeat, Lifecycle, NodeRecord, VmCommand
from hostler.model.vm import MachineState, VmHandle, VmSpec

RUNNING = MachineState.RUNNING


async def member(world: World, name: str) -> NodeRecord:
    entry = await MEMBER.get(world.raw, node=name)
    assert entry is not None
    return entry.value


# Nodes


def test_a_node_that_joined_is_on_duty_while_it_lives() -> None:
    async def story(world: World) -> None:
        joined = await world.node("n1")
        await joined.fall_silent()
        await asyncio.sleep(30)
        await world.leader()
        await asyncio.sleep(60)
        assert (await member(world, "n1")).lifecycle is Lifecycle.JOINING
        await joined.join()

        async def on_duty() -> bool:
            return (await member(world, "n1")).lifecycle is Lifecycle.ON_DUTY

        assert await world.until(on_duty) < 2

    play(story)


def test_an_empty_node_that_is_drained_is_decommissioned_only_if_it_was_to_be_moved() -> None:
    async def story(world: World) -> None:
        await world.leader()
        for name, mode in (("n1", DrainMode.MOVE), ("n2", DrainMode.STOP)):
            await world.node(name)
            await asyncio.sleep(2)
            await world.member(name, lifecycle=Lifecycle.DRAINING, drain=mode)
        await asyncio.sleep(60)
        assert (await member(world, "n1")).lifecycle is Lifecycle.DECOMMISSIONED
        assert (await member(world, "n2")).lifecycle is Lifecycle.DRAINING

    play(story)


def test_what_is_handed_over_between_two_looks_at_a_node_that_is_drained_is_seen() -> None:
    async def story(world: World) -> None:
        leader = await world.leader()
        joined = await world.node("n1")
        await asyncio.sleep(2)
        joined.stuck = True
        command = VmCommand(org=ORG, project=PROJECT, vm="a", spec=VmSpec(cpus=1, memory_mib=1))
        arrival = Arrival(source="n2", number=1, command=command)
        leader.view.arrivals_at = lambda _: ()  # type: ignore[assignment, method-assign]  # it does not know them yet
        leader.view.count_on = lambda _: 0  # type: ignore[method-assign]
        look, handed = leader.store.range, False

        async def then_handed_over(prefix: str, **options: Any) -> Any:
            nonlocal handed
            found = await look(prefix, **options)
            if not handed and prefix in (ARRIVAL.prefix(node="n1"), COMMAND.prefix(node="n1")):
                handed = True
                handle = VmHandle(id="a", node="n1", state=MachineState.ARRIVING, seen_at=0.0)
                then = [ARRIVAL.delete(node="n1", vm="a"), COMMAND.put(command, node="n1", vm="a")]
                await world.raw.txn([], [*then, VM.put(vm("a"), **ids("a")), HANDLE.put(handle, **ids("a"))])
            return found

        await world.raw.txn([], [ARRIVAL.put(arrival, node="n1", vm="a")])
        leader.store.range = then_handed_over  # type: ignore[method-assign]
        await world.member("n1", lifecycle=Lifecycle.DRAINING, drain=DrainMode.MOVE)
        await asyncio.sleep(0.5)
        assert handed
        assert (await member(world, "n1")).lifecycle is Lifecycle.DRAINING

    play(story)


class Switch:
    """A power switch that keeps a list."""

    def __init__(self, world: World, answers: list[bool | Exception]) -> None:
        self.world, self.answers = world, answers
        self.cut: list[tuple[str, float]] = []

    async def switch_off(self, node: str) -> bool:
        self.cut.append((node, self.world.clock.now()))
        answer = self.answers.pop(0) if self.answers else True
        if isinstance(answer, Exception):
            raise answer
        for vm_id in self.world.nodes[node].machines:
            self.world.stopped(node, vm_id)
        return answer


@pytest.mark.parametrize("answers", [[], [False], [Unavailable("switch: out of reach")]])
def test_a_silent_node_is_switched_off_and_its_machines_come_up_elsewhere(answers: list[bool | Exception]) -> None:
    async def story(world: World) -> None:
        switch = Switch(world, list(answers))
        await world.leader(power=switch)
        joined = await world.node("n1")
        await world.create("a")
        await world.until_state("a", RUNNING)
        await world.node("n2")
        await joined.fall_silent()

        async def moved() -> bool:
            handle = await world.handle("a")
            return handle is not None and handle.node == "n2" and handle.state is RUNNING

        await world.until(moved, within=300)
        assert {name for name, _ in switch.cut} == {"n1"}
        assert switch.cut[0][1] >= 30
        off = (await member(world, "n1")).off
        assert off is not None
        assert off.by == "hostler"

    play(story)


class LyingBoard:
    """A management board that accepts every request, and obeys if `obeys`. If `mute`, it does not answer reads."""

    name = "board of n1"

    def __init__(self, world: World) -> None:
        self.world, self.obeys, self.mute, self.state, self.requests = world, False, False, "On", 0

    async def read_state(self, within: float) -> str:
        if self.mute:
            await asyncio.sleep(within)
            raise Unavailable("board of n1: no answer")
        return self.state

    async def request_off(self, within: float) -> None:
        await asyncio.sleep(within / 10)
        self.requests += 1
        if self.obeys:
            self.state = "off"
            for vm_id in self.world.nodes["n1"].machines:
                self.world.stopped("n1", vm_id)


def test_machines_start_elsewhere_only_after_the_board_of_their_node_was_read_as_off() -> None:
    async def story(world: World) -> None:
        board = LyingBoard(world)
        await world.leader(power=PowerByNode({"n*": lambda _: BmcPower(board)}))
        joined = await world.node("n1")
        await world.create("a")
        await world.until_state("a", RUNNING)
        await world.node("n2")
        await joined.fall_silent()
        await asyncio.sleep(600)
        assert board.requests >= 5
        assert (await member(world, "n1")).off is None
        assert await world.command("n2", "a") is None
        board.mute = True
        await asyncio.sleep(120)  # the request under way ends
        told = board.requests
        await asyncio.sleep(600)
        assert board.requests == told  # what cannot be read is asked for nothing
        assert (await member(world, "n1")).off is None
        board.mute, board.obeys = False, True

        async def moved() -> bool:
            handle = await world.handle("a")
            return handle is not None and handle.node == "n2" and handle.state is RUNNING

        await world.until(moved, within=300)
        assert (await member(world, "n1")).off is not None

    play(story)


@pytest.mark.parametrize("why", ["leaves", "empty", "alive"])
def test_power_is_left_alone_where_nothing_is_to_be_gained(why: str) -> None:
    async def story(world: World) -> None:
        switch = Switch(world, [])
        await world.leader(power=switch)
        joined = await world.node("n1")
        if why != "empty":
            await world.create("a")
            await world.until_state("a", RUNNING)
        if why == "leaves":
            await world.member("n1", lifecycle=Lifecycle.SHUTTING_DOWN)
        if why != "alive":
            await joined.fall_silent()
        await asyncio.sleep(300)
        assert switch.cut == []

    play(story)


def test_a_node_that_came_back_while_it_was_switched_off_is_not_taken_for_off() -> None:
    async def story(world: World) -> None:
        class Slow(Switch):
            async def switch_off(self, node: str) -> bool:
                await world.nodes[node].join()
                return True

        await world.leader(power=Slow(world, []))
        await world.full_node()
        joined = await world.node("n1")
        await world.create("a")
        await world.until_state("a", RUNNING)
        await joined.fall_silent()
        await asyncio.sleep(100)
        assert (await member(world, "n1")).off is None
        assert await ALIVE.get(world.raw, node="n1") is not None

    play(story)


def test_an_operator_who_is_faster_is_not_overruled() -> None:
    async def story(world: World) -> None:
        leader = await world.leader()
        txn = leader.store.txn

        async def slow(when: Any, then: Any, otherwise: Any = ()) -> Any:
            if any(getattr(operation, "key", "") == MEMBER.fill(node="n1") for operation in then):
                leader.store.txn = txn  # type: ignore[method-assign]
                await world.member("n1", lifecycle=Lifecycle.DRAINING, drain=DrainMode.STOP)
            return await txn(when, then, otherwise)

        leader.store.txn = slow  # type: ignore[method-assign]
        await world.node("n1")
        await asyncio.sleep(60)
        assert (await member(world, "n1")).lifecycle is Lifecycle.DRAINING

    play(story)


def test_a_silence_is_unbroken_or_none() -> None:
    async def main() -> None:
        clock = VirtualClock()
        async with MemoryStore(clock=clock) as store:
            view = View(store, clock=clock)
            silence = HeartbeatMonitor(view, clock=clock)
            beat = Heartbeat(holder="h", started_at=0.0)

            async def looked() -> float:
                await view.refresh(view.members, view.alive)
                silence.look("n1")
                entry = view.members.get(node="n1")
                assert entry is not None
                return silence.unreachable_for(entry)

            first = await MEMBER.create(store, node("n1"), node="n1")
            assert await looked() == 0.0
            await asyncio.sleep(10)
            assert await looked() == 10.0
            lived = await ALIVE.create(store, beat, node="n1")
            assert await looked() == 0.0
            await ALIVE.remove(store, lived)
            await asyncio.sleep(5)
            assert await looked() == 0.0
            await asyncio.sleep(5)
            assert await looked() == 5.0
            # It came and went, and nobody saw it; but it wrote its record.
            await MEMBER.replace(store, first, node("n1"))
            assert silence.unreachable_for(first) == 5.0
            assert await looked() == 0.0
            await asyncio.sleep(3)
            assert await looked() == 3.0
            assert silence.unreachable_for(first) == 0.0, "a count holds for the record that it was begun under"

    run_virtual(main)


# What expires


def test_a_machine_that_expires_is_wished_away_once_and_the_audit_says_so() -> None:
    async def story(world: World) -> None:
        await world.leader()
        await world.node("n1")
        await world.create("a", expires_at=world.clock.wall() + 50)
        await world.create("b", expires_at=world.clock.wall() + 50)
        await world.until_state("a", RUNNING)
        await world.change("b", expires_at=None)
        await asyncio.sleep(30)
        assert await world.state("a") is RUNNING
        await asyncio.sleep(30)
        assert await VM.get(world.raw, **ids("a")) is None
        assert await VM.get(world.raw, **ids("b")) is not None
        audits = [entry.value for entry in (await AUDIT.list(world.raw)).entries]
        assert [(audit.who, audit.verb, audit.subject) for audit in audits] == [
            ("hostler", "vm.expire", VM.fill(org=ORG, project=PROJECT, vm="a"))
        ]
        assert audits[0].before > 0

    play(story)


def test_old_tokens_and_old_audit_are_deleted_and_nothing_else() -> None:
    async def story(world: World) -> None:
        now = world.clock.wall()
        for number in range(120):
            ends = now - 1 if number < 110 else None if number < 115 else now + 10_000
            token = Token(
                id=f"{number}",
                user="u",
                purpose=TokenKind.API,
                created_at=0.0,
                **({"expires_at": ends} if ends else {}),
            )
            await TOKEN.create(world.raw, token, digest=f"d{number:03}")
        for number in range(120):
            audit = Audit(who="u", verb="v", subject="s", at=0.0)
            await AUDIT.create(
                world.raw, audit, day="2025-01-01" if number < 110 else "2025-12-31", write=f"{number:03}"
            )
        await world.leader()
        await asyncio.sleep(60)
        assert len(await world.keys("/hostler/v1/tokens/")) == 10
        assert len(await world.keys("/hostler/v1/audit/")) == 10

    play(story)


def test_a_janitor_without_leadership_deletes_nothing() -> None:
    async def story(world: World) -> None:
        leader = await world.leader()
        await world.raw.put("sysvvm/1/1", b'{"somebody": "else"}')
        await world.create("a", expires_at=world.clock.wall() + 1)
        await asyncio.sleep(4)
        entry = await VM.get(world.raw, **ids("a"))
        assert entry is not None
        assert not entry.value.deleting
        assert isinstance(leader.failed, LeadershipLost)
        await world.raw.delete("sysvvm/1/1")

    play(story)


@pytest.mark.parametrize("seed", range(3))
def test_lost_answers_expire_a_machine_all_the_same(seed: int) -> None:
    async def story(world: World) -> None:
        leader = Leader(world, f"l{seed}")
        world.leaders.append(leader)
        await leader.lead()
        leader.store.faults.lost = leader.store.faults.never = leader.store.faults.unavailable = 0.2
        await world.node("n1")
        for number in range(5):
            await world.create(f"a{number}", expires_at=world.clock.wall() + 5)

        async def gone() -> bool:
            return await world.keys("/plasmavmc/") == []

        await world.until(gone, within=300)

    play(story, seed=seed)


def test_a_machine_that_comes_with_an_earlier_end_while_another_expires_is_not_forgotten() -> None:
    async def story(world: World) -> None:
        leader = await world.leader()
        end, write = world.clock.wall() + 5, leader.store.txn
        came: list[str] = []

        async def slow(when: Any, then: Any = (), otherwise: Any = ()) -> Any:
            if not came and any(operation.key.startswith(AUDIT.prefix()) for operation in then):
                came.append("b")
                await world.create("b", expires_at=end - 1)
                await asyncio.sleep(0.1)
            return await write(when, then, otherwise)

        leader.store.txn = slow  # type: ignore[method-assign]
        await world.create("a", expires_at=end)
        await asyncio.sleep(20)
        assert came
        assert await world.keys("/plasmavmc/") == []

    play(story)

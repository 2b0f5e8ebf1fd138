"""Something happens while a machine is on its way from one node to another: at every instant of it, in small steps.

`make soak` takes every step, `make test` every fifth, others with each commit.

Whatever that is, the machine never runs twice, is never gone unless it was wished away, keeps what is on its disk, and
in the end somebody has said what became of the move.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from dose import every_nth

from hostler.engine.idempotent_writer import Writer
from hostler.engine.nodes import NodeService
from hostler.engine.request import HOSTLER, Request
from hostler.engine.view import View
from hostler.errors import HostlerError
from hostler.keys.families import HANDLE
from hostler.model.inventory_api import Drain
from hostler.model.node import DrainMode
from hostler.model.vm import MachineState, OnNodeLoss
from hostler.model.vm_api import MoveRequest

from .plane import NODE_TTL, Loss, Plane
from .test_crash_points import AT, begin_saved, delete, kept, move, reset, snapshot, stop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

SENDING = 0.4
STEP = 0.04
INSTANTS = every_nth(range(30), 5)
"""So that the last ones come when all is over."""


async def desk(plane: Plane) -> NodeService:
    view = View(plane.store, clock=plane.clock)
    await view.refresh()
    writer = Writer(plane.store, clock=plane.clock, new_id=lambda: f"{plane.rng.getrandbits(64)}", healthy=lambda: True)
    return NodeService(plane.store, writer, view, clock=plane.clock)


def ends(plane: Plane) -> tuple[str, str]:
    """Where it began, and the other node."""
    here = next(node for node, place in plane.places.items() if place.contents.ended_intervals() or place.contents.rows)
    return here, next(node for node in plane.places if node != here)


async def move_again(plane: Plane) -> None:
    """Superseded by another move, to wherever it is not by then; that one may be refused."""
    for to in plane.places:
        try:
            await plane.wish(lambda vms, request, to=to: vms.move(request, *AT, "web", MoveRequest(to=to)))  # type: ignore[misc]
        except HostlerError:
            continue
        else:
            return


async def drain(plane: Plane, node: str) -> None:
    await (await desk(plane)).drain(Request(HOSTLER), node, Drain(mode=DrainMode.STOP))
    await asyncio.sleep(1.0)
    await (await desk(plane)).activate(Request(HOSTLER), node)


async def drain_the_source(plane: Plane) -> None:
    await drain(plane, ends(plane)[0])


async def drain_the_target(plane: Plane) -> None:
    await drain(plane, ends(plane)[1])


async def cut(plane: Plane, node: str) -> None:
    wire = plane.hosts[node].wire
    wire.cut()
    await asyncio.sleep(3 * NODE_TTL)
    wire.heal()


async def cut_the_source(plane: Plane) -> None:
    await cut(plane, ends(plane)[0])


async def cut_the_target(plane: Plane) -> None:
    await cut(plane, ends(plane)[1])


async def stop_the_process_of_the_source(plane: Plane) -> None:
    process = plane.hosts[ends(plane)[0]].process
    plane.loop.suspend(process)
    await asyncio.sleep(3 * NODE_TTL)
    plane.loop.wake(process)


async def change_the_leader(plane: Plane) -> None:
    plane.kill("replica-1")


async def kill_both_agents(plane: Plane) -> None:
    for node in plane.places:
        plane.kill(node)


async def power_off_the_target(plane: Plane) -> None:
    """And on again: what has arrived there has lost its memory, not its disk."""
    node = ends(plane)[1]
    plane.supervised = False
    plane.kill(node)
    plane.places[node].power_off(plane.clock.now())
    plane.supervised = True
    await asyncio.sleep(1.0)
    plane.spawn(node)


HAPPENINGS: dict[str, tuple[Callable[[Plane], Awaitable[None]], int]] = {
    "stop": (stop, 1),
    "reset": (reset, 1),
    "snapshot": (snapshot, 1),
    "delete": (delete, 0),
    "another move": (move_again, 1),
    "drain of the source": (drain_the_source, 1),
    "drain of the target": (drain_the_target, 1),
    "cut source": (cut_the_source, 1),
    "cut target": (cut_the_target, 1),
    "sleeping source": (stop_the_process_of_the_source, 1),
    "another leader": (change_the_leader, 1),
    "both agents": (kill_both_agents, 1),
    "power of the target": (power_off_the_target, 1),
}
"""What happens, and how many machines there are in the end."""


def story(what: str, at: int, seed: int | None = None) -> None:
    happens, machines = HAPPENINGS[what]

    async def scenario(plane: Plane) -> None:
        plane.faults.delays["send"] = SENDING
        await begin_saved(plane)
        moving = asyncio.create_task(move(plane))
        await asyncio.sleep(at * STEP)
        await happens(plane)
        await asyncio.wait((moving,))
        await plane.settled()
        await plane.check(machines=machines)
        if what == "snapshot":
            await snapshots_are_told(plane)
        elif machines:
            kept(plane)

    try:
        Plane(seed=at if seed is None else seed).run(scenario)
    except BaseException as error:
        error.add_note(f"{what}, {at * STEP:g} s after the move was asked for")
        raise


async def snapshots_are_told(plane: Plane) -> None:
    """It was taken here and stayed behind, or was taken there; nobody takes a lost one for a new one."""
    (entry,) = (await HANDLE.list(plane.store)).entries
    (row,) = [row for place in plane.places.values() for row in place.contents.rows.values()]
    ready = entry.value.snapshots["before"].state == "ready"
    assert ready == ("before" in row.snapshots), (entry.value, row)
    assert row.disk == "precious"


@pytest.mark.parametrize("what", HAPPENINGS)
def test_whatever_happens_during_a_move_the_machine_is_once_and_whole(what: str) -> None:
    for at in INSTANTS:
        story(what, at)


def test_a_fenced_machine_that_is_moved_is_fenced_there_from_its_first_instant() -> None:
    async def scenario(plane: Plane) -> None:
        await begin_saved(plane, on_node_loss=OnNodeLoss.RECREATE)
        here, there = ends(plane)
        await move(plane)
        await plane.settled()
        (row,) = plane.places[there].contents.rows.values()
        assert row.fenced
        plane.hosts[there].wire.cut()
        await asyncio.sleep(60.0)
        assert plane.places[here].contents.rows, "it is taken from a node that is silent for long"
        plane.check_runs()
        plane.hosts[there].wire.heal()
        await plane.check(machines=1)

    Plane(seed=7).run(scenario)


def test_a_drained_node_hands_its_machines_over_as_they_run() -> None:
    async def scenario(plane: Plane) -> None:
        await begin_saved(plane)
        here, there = ends(plane)
        await (await desk(plane)).drain(Request(HOSTLER), here, Drain(mode=DrainMode.MOVE))
        await asyncio.sleep(20.0)
        await plane.check(machines=1)
        kept(plane)
        (row,) = plane.places[there].contents.rows.values()
        assert row.boots == 1, "it was started anew"

    Plane(seed=3).run(scenario)


async def handed_to_a_node_that_died(plane: Plane) -> tuple[str, str]:
    """A machine whose new node has the command, and has not said a word since: where it was, and where it is."""
    await begin_saved(plane)
    here, there = ends(plane)
    moving = asyncio.create_task(move(plane))
    while not any(
        row.state is MachineState.DEPARTED and row.whole for row in plane.places[here].contents.rows.values()
    ):
        await asyncio.sleep(0.0005)
    plane.supervised = False
    plane.kill(there)
    await asyncio.wait((moving,))
    await asyncio.sleep(0.3)
    (entry,) = (await HANDLE.list(plane.store)).entries
    assert (entry.value.node, entry.value.machine, entry.value.state) == (there, "", MachineState.ARRIVING)
    return here, there


def test_a_drain_leaves_a_machine_alone_that_was_handed_over_and_not_told_of_yet() -> None:
    async def scenario(plane: Plane) -> None:
        _, there = await handed_to_a_node_that_died(plane)
        await (await desk(plane)).drain(Request(HOSTLER), there, Drain(mode=DrainMode.MOVE))
        await asyncio.sleep(1.0)
        plane.spawn(there)
        await asyncio.sleep(30.0)
        await plane.check(machines=1)
        kept(plane)
        assert not plane.places[there].contents.rows, "it was handed on once it was known"

    Plane(seed=3).run(scenario)


def test_what_was_handed_over_is_no_stray_though_a_later_move_was_given_up() -> None:
    async def scenario(plane: Plane) -> None:
        here, there = await handed_to_a_node_that_died(plane)
        await plane.wish(lambda vms, request: vms.move(request, *AT, "web", MoveRequest(to=here)))
        await asyncio.sleep(2 * NODE_TTL)
        (entry,) = (await HANDLE.list(plane.store)).entries
        assert entry.value.attempt == 2, "the second move was not begun"
        plane.spawn(there)
        await asyncio.sleep(10.0)
        await plane.check(machines=1)
        kept(plane)

    Plane(seed=3).run(scenario)


def test_a_drain_leaves_a_machine_alone_whose_handle_got_lost() -> None:
    """Its leader makes another handle, which knows of no machine; the agent says that there is one."""

    async def scenario(plane: Plane) -> None:
        await begin_saved(plane)
        here, _ = ends(plane)
        (entry,) = (await HANDLE.list(plane.store)).entries
        plane.loop.suspend(plane.hosts[here].process)
        await plane.store.delete(entry.key)
        await asyncio.sleep(0.5)
        await (await desk(plane)).drain(Request(HOSTLER), here, Drain(mode=DrainMode.MOVE))
        await asyncio.sleep(0.5)
        plane.loop.wake(plane.hosts[here].process)
        await asyncio.sleep(30.0)
        await plane.check(machines=1)
        kept(plane)

    Plane(seed=3).run(scenario)


def story_with_a_lost_answer(at: int, kind: str = "cut", seed: int = 1) -> int:
    """A move, with the `at`-th answer to an agent lost; how many departures there were."""
    loss = Loss("agent", kind, at)

    async def scenario(plane: Plane) -> int:
        await begin_saved(plane)
        loss.armed = True
        await move(plane)
        await plane.settled()
        loss.armed = False
        await plane.check(machines=1)
        kept(plane)
        (entry,) = (await HANDLE.list(plane.store)).entries
        return entry.value.attempt

    return Plane(seed=seed, loss=loss).run(scenario)


LOST = every_nth(range(1, 30), 5)
"""Answers: more than a move has."""


def test_a_handover_whose_answer_is_lost_is_found_out_about() -> None:
    """All answers of the agents, one after the other: among them is the one to the handover."""
    assert {story_with_a_lost_answer(at, "lost") for at in LOST} == {1}


def test_a_handover_that_happens_when_nobody_waits_for_it_any_more_is_found_out_about() -> None:
    """Whoever asks meanwhile sees an arrival that is gone, and must not take that for a move that was given up."""
    for at in LOST:
        story_with_a_lost_answer(at, "late")


def test_a_node_that_hears_no_more_after_a_handover_lets_nothing_go_on() -> None:
    for at in LOST:
        story_with_a_lost_answer(at)

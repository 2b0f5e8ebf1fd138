"""Labs at the edges, in virtual time: no leader, no node, no room, and hands that reach in from elsewhere."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from hostler.keys.families import ALIVE, MEMBER, VM
from hostler.keys.lab import LAB
from hostler.model.lab import ORG, LabCatalogue, LabEvent, LabPhase
from hostler.model.vm import Power

from .labs import GRACE, LIFE, SMALL, LabPlane
from .test_labs import SLACK, play, reason


def test_an_extension_while_nobody_leads_counts() -> None:
    """The lab's end is over when the next leader comes: none of its controllers takes the machine away."""

    async def story(plane: LabPlane) -> None:
        await plane.start("ada", 5)
        await plane.agreed({"ada": 5})
        end = (await plane.lab("ada")).expires_at
        await asyncio.sleep(end + GRACE - 2.0 - plane.clock.wall())
        plane.supervised = False
        plane.kill("replica-1")
        assert await plane.extend("ada", 60) is LabEvent.EXTENDED
        await asyncio.sleep(5.0)
        plane.supervised = True
        plane.spawn("replica-1")
        await asyncio.sleep(60.0)
        await plane.agreed({"ada": 5}, within=SLACK)

    play(story)


def test_a_lab_whose_node_is_silent_is_not_available_until_it_is_back() -> None:
    async def story(plane: LabPlane) -> None:
        await plane.start("ada", 5)
        await plane.agreed({"ada": 5})
        node = where(plane, "ada")
        plane.supervised = False
        plane.kill(node)
        await asyncio.sleep(60.0)
        lab, shown = await plane.lab("ada"), plane.door.records["ada"]
        assert (lab.available, lab.detail, lab.phase) == (False, "its node is silent", LabPhase.RUNNING)
        assert (shown.available, shown.address) == (False, lab.address)
        plane.supervised = True
        plane.spawn(node)
        await plane.agreed({"ada": 5})
        assert (await plane.news("ada")).count(LabEvent.AVAILABLE) == 1

    play(story)


def test_a_leader_that_comes_after_its_node_fell_silent_tells_it_too() -> None:
    async def story(plane: LabPlane) -> None:
        await plane.start("ada", 5)
        await plane.agreed({"ada": 5})
        node = where(plane, "ada")
        plane.supervised = False
        plane.kill("replica-1")
        plane.kill(node)
        await asyncio.sleep(30.0)
        plane.spawn("replica-1")
        await asyncio.sleep(60.0)
        assert not plane.door.records["ada"].available

    play(story)


def test_an_agent_that_is_started_again_costs_its_labs_nothing() -> None:
    async def story(plane: LabPlane) -> None:
        await plane.start("ada", 5)
        await plane.agreed({"ada": 5})
        node = where(plane, "ada")
        entry = await LAB.get(plane.store, user="ada")
        assert entry is not None
        await plane.store.delete(ALIVE.fill(node=node))  # as if its lease had been given back
        async with asyncio.timeout(60.0):
            while await ALIVE.get(plane.store, node=node) is None:
                await asyncio.sleep(0.1)
        await asyncio.sleep(SLACK)
        now = await LAB.get(plane.store, user="ada")
        assert now is not None
        assert now.mod_revision == entry.mod_revision

    play(story)


def test_the_life_of_a_lab_begins_when_a_node_has_room_for_it() -> None:
    async def story(plane: LabPlane) -> None:
        names, plane.supervised = list(plane.places), False
        for name in names:
            plane.kill(name)
        await asyncio.sleep(30.0)
        await plane.start("ada", 5)
        await plane.until("ada", LabPhase.PROVISIONING)
        for _ in range(9):
            await asyncio.sleep(LIFE / 3)
            assert plane.door.records["ada"].expires > plane.clock.wall() + LIFE / 2 - SLACK
        assert await plane.phase("ada") is LabPhase.PROVISIONING
        assert LabEvent.EXPIRES_SOON not in await plane.news("ada")
        plane.supervised = True
        for name in names:
            plane.spawn(name)
        await plane.agreed({"ada": 5})
        left = (await plane.lab("ada")).expires_at - plane.clock.wall()
        assert LIFE - 60.0 < left <= LIFE

    play(story)


def test_the_machine_of_a_lab_that_is_switched_off_is_switched_on_again() -> None:
    async def story(plane: LabPlane) -> None:
        await plane.start("ada", 5)
        await plane.agreed({"ada": 5})
        vm = (await plane.lab("ada")).vm
        entry = await VM.get(plane.store, org=ORG, project="ada", vm=vm)
        assert entry is not None
        off = replace(entry.value, power=Power.OFF, generation=entry.value.generation + 1)
        await VM.replace(plane.store, entry, off)
        await asyncio.sleep(SLACK)
        await plane.agreed({"ada": 5})
        now = await VM.get(plane.store, org=ORG, project="ada", vm=vm)
        assert now is not None
        assert now.value.power is Power.ON

    play(story)


HUGE = LabCatalogue(default=SMALL, labs={"5": replace(SMALL, warm=1), "6": replace(SMALL, cpus=250)})


def test_a_lab_that_no_node_could_have_fails_at_once_and_holds_up_nobody() -> None:
    async def story(plane: LabPlane) -> None:
        await asyncio.sleep(SLACK)
        await plane.start("eva", 6)
        for user in ("ada", "bob"):
            await plane.start(user, 5)
        await plane.until("eva", None, within=SLACK)
        why = await reason(plane, "eva", LabEvent.FAILED)
        assert why == "no node can run it: 2 nodes have too few cpus"
        assert LabEvent.STARTED not in await plane.news("eva")
        await plane.agreed({"ada": 5, "bob": 5, "eva": None})

    play(story, catalogue=HUGE)


def test_a_lab_that_came_before_the_nodes_is_judged_when_they_come() -> None:
    async def story(plane: LabPlane) -> None:
        await plane.start("eva", 6)
        await plane.start("ada", 5)
        await plane.agreed({"ada": 5, "eva": None})
        assert "too few cpus" in await reason(plane, "eva", LabEvent.FAILED)

    play(story, catalogue=HUGE)


def test_a_lab_that_no_node_can_have_any_more_fails() -> None:
    """The only node that could have it was taken out of the cluster while it waited for room."""

    async def story(plane: LabPlane) -> None:
        await asyncio.sleep(SLACK)
        plane.supervised = False
        for name in plane.places:
            plane.kill(name)
        await asyncio.sleep(30.0)
        await plane.start("ada", 5)
        await plane.until("ada", LabPhase.PROVISIONING)
        await asyncio.sleep(SLACK)
        for entry in (await MEMBER.list(plane.store)).entries:
            few = replace(entry.value, capacity=replace(entry.value.capacity, memory_mib=100))
            await MEMBER.replace(plane.store, entry, few)
        await plane.agreed({"ada": None}, within=SLACK)
        assert "too little memory" in await reason(plane, "ada", LabEvent.FAILED)

    play(story)


def where(plane: LabPlane, user: str) -> str:
    """The node that its machine is on."""
    (machine,) = plane.machines_of(user)
    (node,) = [node for node, place in plane.places.items() if machine.vm in place.contents.rows]
    return node

"""Labs on the real control plane, in virtual time: what users ask for, what becomes of it, and what times bring."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from hostler.engine.labs import state_machine
from hostler.engine.labs.decide import AFTER_TERMINAL, KEPT
from hostler.keys.families import VM
from hostler.keys.lab import LAB
from hostler.model.lab import ORG, LabCatalogue, LabEvent, LabPhase, LabTemplate, LabUser, lab_project

from .labs import GRACE, SMALL, WARN, LabPlane

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

RUNNING, STOPPING, WAITING, PROVISIONING = LabPhase.RUNNING, LabPhase.STOPPING, LabPhase.WAITING, LabPhase.PROVISIONING
REQUESTED, STARTED, AVAILABLE = LabEvent.REQUESTED, LabEvent.STARTED, LabEvent.AVAILABLE
SLACK = 5.0
"""Virtual seconds that the plane may take for what is to be done at once."""


def play(story: Callable[[LabPlane], Awaitable[None]], **options: Any) -> None:
    async def scenario(plane: LabPlane) -> None:
        await story(plane)
        plane.check_runs()

    LabPlane(**options).run(scenario)


async def reason(plane: LabPlane, user: str, event: LabEvent) -> str:
    """Of the last news of that kind."""
    entry = await LAB.get(plane.store, user=user)
    assert entry is not None
    return [news.reason for news in entry.value.news if news.event is event][-1]


# What users ask for


def test_a_lab_is_provisioned_shown_and_decommissioned() -> None:
    async def story(plane: LabPlane) -> None:
        await plane.start("ada", 5)
        await plane.agreed({"ada": 5})
        shown, (machine,) = plane.door.records["ada"], plane.machines_of("ada")
        assert (shown.user, shown.status, shown.available, shown.lab_id) == ("student", "running", True, 5)
        assert machine.spec.ssh_keys == ("ssh-ed25519 T",)
        await plane.stop("ada", 5)
        await plane.agreed({"ada": None})
        assert await plane.news("ada") == [REQUESTED, STARTED, AVAILABLE, LabEvent.STOPPING, LabEvent.STOPPED]
        assert [news.event for news in plane.door.news["ada"]] == await plane.news("ada")

    play(story)


def test_l2_users_of_any_printable_id_have_labs_of_their_own() -> None:
    """L2: federated ids, slashes, stars and dots; records, machines and what is shown are those of each alone."""
    users = ["f:6fdd9d7c:ada", "f:6fdd9d7c", "a/b", "a^2Fb", "*", "..", "a b", "東" * 255]

    async def story(plane: LabPlane) -> None:
        for number, user in enumerate(users, 1):
            await plane.start(user, number)
        await plane.agreed({user: number for number, user in enumerate(users, 1)})
        assert set(plane.door.records) == set(users)
        for number, user in enumerate(users, 1):
            (machine,), shown = plane.machines_of(user), plane.door.records[user]
            assert (shown.web_user_id, shown.lab_id) == (user, number)
            entry = await VM.get(plane.store, org=ORG, project=lab_project(user), vm=machine.vm)
            assert entry is not None
            assert entry.value.labels["webuserid"] == user
        for gone, user in enumerate(users, 1):  # and each ends alone
            await plane.stop(user)
            await plane.agreed({user: None if number <= gone else number for number, user in enumerate(users, 1)})
        assert plane.door.records == {}

    play(story, nodes=4)


def test_l48_a_lab_ends_with_its_terminal_and_a_new_leader_waits_as_long_again() -> None:
    async def story(plane: LabPlane) -> None:
        async def at_terminal(user: str) -> None:
            entry, now = await LAB.get(plane.store, user=user), plane.clock.wall()
            assert entry is not None
            await LAB.replace(plane.store, entry, state_machine.record_attendance(entry.value, 1, now, now))

        for user in ("ada", "bob", "cleo"):
            await plane.start(user, 5)
        await plane.agreed({"ada": 5, "bob": 5, "cleo": 5})
        await at_terminal("ada")
        await at_terminal("bob")
        await asyncio.sleep(AFTER_TERMINAL - 10)
        await at_terminal("bob")
        await plane.agreed({"ada": 5, "bob": 5, "cleo": 5}, within=0.0)
        await asyncio.sleep(10 + SLACK)
        await plane.agreed({"ada": None, "bob": 5, "cleo": 5})
        assert "terminal" in await reason(plane, "ada", LabEvent.STOPPED)
        await asyncio.sleep(AFTER_TERMINAL - 60)
        plane.kill("replica-1")
        await asyncio.sleep(AFTER_TERMINAL - 30)  # longer than bob may be away, but the leader is new
        await plane.agreed({"bob": 5, "cleo": 5}, within=0.0)
        await asyncio.sleep(60 + SLACK)
        await plane.agreed({"bob": None, "cleo": 5})

    play(story, catalogue=LabCatalogue(default=replace(SMALL, end_with_terminal=True)))


def test_a_stale_decommission_changes_nothing() -> None:
    async def story(plane: LabPlane) -> None:
        await plane.start("ada", 7)
        await plane.agreed({"ada": 7})
        machine = plane.machines_of("ada")[0].vm
        assert await plane.stop("ada", 5) is LabEvent.IGNORED
        await asyncio.sleep(30)
        await plane.agreed({"ada": 7})
        assert plane.machines_of("ada")[0].vm == machine

    play(story)


def test_a_decommission_during_provisioning_leaves_nothing() -> None:
    async def story(plane: LabPlane) -> None:
        plane.faults.delays["start"] = 20.0
        for wait in (0.0, 0.05, 0.3, 1.0, 5.0):
            await plane.start("ada", 5)
            await asyncio.sleep(wait)
            await plane.stop("ada")
            await plane.agreed({"ada": None})

    play(story)


def test_the_same_lab_while_it_stops_is_started_again_once_it_is_gone() -> None:
    async def story(plane: LabPlane) -> None:
        plane.faults.delays["delete"] = 3.0
        await plane.start("ada", 5)
        await plane.agreed({"ada": 5})
        (first,) = plane.machines_of("ada")
        await plane.stop("ada", 5)
        assert await plane.start("ada", 5) is REQUESTED
        await plane.until("ada", STOPPING)
        await plane.agreed({"ada": 5})
        (second,) = plane.machines_of("ada")
        assert first.vm != second.vm
        assert (await plane.news("ada"))[-4:] == [LabEvent.STOPPED, REQUESTED, STARTED, AVAILABLE]

    play(story)


def test_another_lab_while_one_runs_is_refused_and_with_switch_it_follows() -> None:
    async def story(plane: LabPlane) -> None:
        await plane.start("ada", 5)
        await plane.agreed({"ada": 5})
        assert await plane.start("ada", 6) is LabEvent.REFUSED
        await asyncio.sleep(10)
        await plane.agreed({"ada": 5})
        assert await plane.start("ada", 6, switch=True) is LabEvent.STOPPING
        await plane.agreed({"ada": 6})

    play(story)


# Times


def test_it_expires_with_a_warning_and_after_a_grace() -> None:
    async def story(plane: LabPlane) -> None:
        await plane.start("ada", 5)
        await plane.until("ada", PROVISIONING)
        end = (await plane.lab("ada")).expires_at
        await plane.agreed({"ada": 5})
        await asyncio.sleep(end - WARN - plane.clock.wall() - 1.0)
        assert LabEvent.EXPIRES_SOON not in await plane.news("ada")
        await asyncio.sleep(1.0 + SLACK)
        assert (await plane.news("ada")).count(LabEvent.EXPIRES_SOON) == 1
        await asyncio.sleep(end + GRACE - plane.clock.wall() - 1.0)
        await plane.agreed({"ada": 5}, within=0.0)
        await plane.agreed({"ada": None}, within=1.0 + SLACK)
        assert (await plane.news("ada"))[-2:] == [LabEvent.STOPPING, LabEvent.EXPIRED]
        assert (await plane.news("ada")).count(LabEvent.EXPIRES_SOON) == 1

    play(story)


def test_l22_a_lab_without_a_grace_ends_at_its_expiry() -> None:
    """L22: the record's `expiresAt` is when a lab ends; a grace has to be set."""

    async def story(plane: LabPlane) -> None:
        await plane.start("ada", 5)
        await plane.agreed({"ada": 5})
        end = (await plane.lab("ada")).expires_at
        await asyncio.sleep(end - plane.clock.wall() - 1.0)
        await plane.agreed({"ada": 5}, within=0.0)
        await plane.agreed({"ada": None}, within=1.0 + SLACK)

    play(story, catalogue=LabCatalogue(default=LabTemplate()))


def test_an_extension_also_within_the_grace_lets_it_live_longer_and_warns_again() -> None:
    async def story(plane: LabPlane) -> None:
        await plane.start("ada", 5)
        await plane.agreed({"ada": 5})
        end = (await plane.lab("ada")).expires_at
        await asyncio.sleep(end + GRACE / 2 - plane.clock.wall())
        assert await plane.extend("ada", 10) is LabEvent.EXTENDED
        await plane.agreed({"ada": 5}, within=SLACK)
        await asyncio.sleep(600.0 - GRACE)
        await plane.agreed({"ada": 5}, within=0.0)
        assert (await plane.news("ada")).count(LabEvent.EXPIRES_SOON) == 2
        await plane.agreed({"ada": None}, within=2 * GRACE + SLACK)

    play(story)


def test_a_lab_that_is_not_available_after_ten_minutes_has_failed() -> None:
    async def story(plane: LabPlane) -> None:
        plane.faults.delays["start"] = 700.0
        await plane.start("ada", 5)
        await plane.until("ada", PROVISIONING)
        began = plane.clock.wall()
        await plane.until("ada", STOPPING, within=700)
        assert abs(plane.clock.wall() - began - 600) <= SLACK
        plane.faults.delays["start"] = 0.0
        await plane.agreed({"ada": None})
        assert (await plane.news("ada"))[-1] is LabEvent.FAILED
        assert "not available in time" in await reason(plane, "ada", LabEvent.FAILED)

    play(story)


def test_while_no_node_has_room_the_ten_minutes_do_not_count() -> None:
    big = LabCatalogue(default=replace(SMALL, life=4 * 3600.0), labs=None)

    async def story(plane: LabPlane) -> None:
        names = list(plane.places)
        for name in names:
            plane.supervised = False
            plane.kill(name)
        await asyncio.sleep(30)
        await plane.start("ada", 5)
        await plane.until("ada", PROVISIONING)
        await asyncio.sleep(1500)
        assert await plane.phase("ada") is PROVISIONING
        assert (await plane.lab("ada")).detail
        plane.supervised = True
        for name in names:
            plane.spawn(name)
        await plane.agreed({"ada": 5})

    play(story, catalogue=big)


def test_what_is_known_of_a_user_without_a_lab_is_forgotten_after_a_day() -> None:
    async def story(plane: LabPlane) -> None:
        await plane.start("bob", 5)
        await plane.agreed({"bob": 5})
        await LAB.create(plane.store, LabUser(user="ada", changed_at=plane.clock.wall() - KEPT + 20.0), user="ada")
        await asyncio.sleep(19.0)
        assert await LAB.get(plane.store, user="ada") is not None
        await asyncio.sleep(1.0 + SLACK)
        assert await LAB.get(plane.store, user="ada") is None

    play(story, nodes=1)


# What goes wrong


def test_a_machine_that_fails_again_and_again_ends_the_lab() -> None:
    async def story(plane: LabPlane) -> None:
        plane.faults.verbs["start"] = replace_odds(broken=1.0)
        await plane.start("ada", 5)
        await plane.until("ada", PROVISIONING)
        await plane.until("ada", None)
        await plane.agreed({"ada": None})
        assert (await plane.news("ada"))[-1] is LabEvent.FAILED
        assert "failed" in await reason(plane, "ada", LabEvent.FAILED)

    play(story)


def replace_odds(**odds: float) -> Any:
    from hostler.drivers.machines.simulated.fault import Odds

    return Odds(**odds)


def test_a_machine_that_is_deleted_by_hand_ends_the_lab() -> None:
    async def story(plane: LabPlane) -> None:
        await plane.start("ada", 5)
        await plane.agreed({"ada": 5})
        lab = await plane.lab("ada")
        await plane.wish(lambda vms, request: vms.delete(request, ORG, "ada", lab.vm))
        await plane.agreed({"ada": None})
        assert (await plane.news("ada"))[-1] is LabEvent.FAILED
        assert await reason(plane, "ada", LabEvent.FAILED) == "its machine was deleted"

    play(story)


def test_a_machine_that_crashes_is_shown_so_and_comes_back() -> None:
    async def story(plane: LabPlane) -> None:
        await plane.start("ada", 5)
        await plane.agreed({"ada": 5})
        (machine,) = plane.machines_of("ada")
        (host,) = [plane.hosts[node] for node, place in plane.places.items() if machine.vm in place.contents.rows]
        plane.faults.delays["start"] = 5.0
        host.machines.crash(machine.vm)  # type: ignore[attr-defined]
        while plane.door.records["ada"].available:
            await asyncio.sleep(0.1)
        assert await plane.phase("ada") is RUNNING
        await plane.agreed({"ada": 5})
        assert plane.machines_of("ada")[0].vm == machine.vm

    play(story)


def test_machines_of_labs_that_no_lab_names_are_deleted_and_others_are_left_alone() -> None:
    async def story(plane: LabPlane) -> None:
        await plane.start("ada", 5)
        await plane.agreed({"ada": 5})
        entry = await VM.get(plane.store, org=ORG, project="ada", vm=(await plane.lab("ada")).vm)
        assert entry is not None
        for user in ("ada", "bob"):
            for id_, labels in (("extra", {"lab": "5"}), ("own", {})):
                vm = replace(entry.value, id=f"{id_}-{user}", name=f"{id_}-{user}", project=user, labels=labels)
                await plane.store.put(VM.fill(org=ORG, project=user, vm=vm.id), VM.encode(vm))
        for _ in range(600):
            left = {entry.value.id for entry in (await VM.list(plane.store, org=ORG)).entries}
            if left == {entry.value.id, "own-ada", "own-bob"}:
                break
            await asyncio.sleep(0.1)
        assert left == {entry.value.id, "own-ada", "own-bob"}

    play(story, strict=False)


# Whose turn it is


def test_labs_wait_in_order_and_each_that_ends_lets_the_next_one_in() -> None:
    catalogue = LabCatalogue(default=SMALL, at_once=2)
    users = [f"u{number}" for number in range(5)]

    async def story(plane: LabPlane) -> None:
        for user in reversed(users):
            await plane.start(user, 5)
            await asyncio.sleep(1.0)
        order = users[::-1]
        await asyncio.sleep(SLACK)
        assert [await plane.phase(user) for user in order] == [RUNNING, RUNNING, WAITING, WAITING, WAITING]
        assert sorted(plane.door.waiting, key=plane.door.waiting.__getitem__) == order[2:]
        assert plane.door.records[order[4]].status == "provisioning"
        assert await reason(plane, order[4], LabEvent.WAITING) == (
            "position 3: the limit of 2 concurrent labs is reached"
        )
        await plane.stop(order[3])  # it gives its place up
        await plane.stop(order[0])
        await plane.agreed({order[0]: None})
        await plane.until(order[2], RUNNING)
        assert await plane.phase(order[4]) is WAITING
        await plane.stop(order[1])
        await plane.agreed({user: 5 if user in (order[2], order[4]) else None for user in users})

    play(story, catalogue=catalogue)


def test_a_lab_of_which_enough_run_does_not_hold_up_others() -> None:
    catalogue = LabCatalogue(labs={"5": replace(SMALL, at_once=1), "6": SMALL}, default=SMALL)

    async def story(plane: LabPlane) -> None:
        for user, lab_id in (("ada", 5), ("bob", 5), ("cy", 6)):
            await plane.start(user, lab_id)
        await plane.until("cy", RUNNING)
        assert await plane.phase("bob") is WAITING
        await plane.stop("ada")
        await plane.agreed({"ada": None, "bob": 5, "cy": 6})
        assert await plane.start("dee", 7) is LabEvent.REFUSED

    play(story, catalogue=catalogue)


def test_where_no_node_has_room_the_rest_waits_and_all_have_their_turn() -> None:
    catalogue = LabCatalogue(default=replace(SMALL, cpus=24))
    users = [f"u{number:02}" for number in range(24)]

    async def story(plane: LabPlane) -> None:
        for user in users:
            await plane.start(user, 5)
        await asyncio.sleep(20.0)
        phases = [await plane.phase(user) for user in users]
        running = [user for user, phase in zip(users, phases) if phase is RUNNING]
        assert running
        assert phases.count(WAITING) >= len(users) - len(running) - 8, phases
        assert WAITING in phases
        gone: dict[str, int | None] = {}
        admitted: dict[str, float] = {}
        while len(gone) < len(users):
            for user in [user for user in users if user not in gone and await plane.phase(user) is RUNNING]:
                entry = await LAB.get(plane.store, user=user)
                assert entry is not None
                (admitted[user],) = [news.at for news in entry.value.news if news.event is STARTED]
                await plane.stop(user)
                gone[user] = None
            await asyncio.sleep(0.5)
        await plane.agreed(gone)
        order = sorted(users, key=admitted.__getitem__)[len(running) + 8 :]
        assert order == sorted(order), "where there is no room the order is that of the requests"

    play(story, catalogue=catalogue)


# Leaders


def test_a_second_replica_goes_on_where_the_first_one_was_killed() -> None:
    async def story(plane: LabPlane) -> None:
        for number in range(6):
            await plane.start(f"u{number}", 5)
        await asyncio.sleep(0.2)
        plane.kill("replica-1")
        plane.kill("replica-2")
        for number in range(0, 6, 2):
            await plane.stop(f"u{number}")
        await plane.agreed({f"u{number}": 5 if number % 2 else None for number in range(6)})

    play(story, replicas=2)

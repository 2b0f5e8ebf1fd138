"""The node service: what operators do to nodes, and what is told of them."""

from __future__ import annotations

from typing import Any

import pytest
from service_scene import ADMIN, MEMBER_OF_ACME, Scene, asked, contents, play

from hostler.engine.request import Caller
from hostler.errors import Conflict, Forbidden, Invalid, NotFound, Stale, Unavailable
from hostler.keys.families import ALIVE, BLADE, BRAKE, FENCING, MEMBER, SILENT
from hostler.model.access import ROLES, Role
from hostler.model.inventory import Blade, Capacity, Rights
from hostler.model.inventory_api import Drain, NodeView
from hostler.model.node import BrakeRecord, DrainMode, Heartbeat, Lifecycle, OffConfirmation
from hostler.model.trace import Silent

REPAIRER = Caller("rita", Rights(perform_repairs=True), ("*",))
OPERATOR = Caller("otto", ROLES[Role.OPERATOR], ("*",))

WRITES: dict[str, Any] = {
    "drain": lambda s, r, node="local-1": s.nodes.drain(r, node, Drain()),
    "activate": lambda s, r, node="local-1": s.nodes.activate(r, node),
    "confirm off": lambda s, r, node="local-1": s.nodes.confirm_off(r, node),
    "forget": lambda s, r, node="local-1": s.nodes.forget(r, node),
}


def test_a_node_is_shown_with_its_life_and_its_load() -> None:
    async def story(scene: Scene) -> None:
        await scene.node(labels={"disk": "ssd"}, rack="local", fences=True)
        view = await scene.made()
        await scene.told(view)
        shown = await scene.nodes.get(MEMBER_OF_ACME, "LOCAL-1")
        assert (shown.node, shown.alive, shown.vms, shown.labels) == ("local-1", True, 1, {"disk": "ssd"})
        assert shown.used == Capacity(cpus=1, memory_mib=512, disk_gib=10)
        assert shown == await scene.nodes.get(MEMBER_OF_ACME, "local-1", stale=True)
        await scene.raw.delete(ALIVE.fill(node="local-1"))
        await scene.settle()
        assert not (await scene.nodes.get(MEMBER_OF_ACME, "local-1")).alive
        for stale in (False, True):
            with pytest.raises(NotFound):
                await scene.nodes.get(MEMBER_OF_ACME, "local-2", stale=stale)

    play(story)


def test_a_node_is_shown_with_what_placement_counts_on() -> None:
    async def story(scene: Scene) -> None:
        blade = Blade(name="1", capacity=Capacity(cpus=4, memory_mib=0))
        await scene.raw.txn([], [BLADE.put(blade, rack="local", blade="1")])
        await scene.node()
        await scene.settle()
        shown = await scene.nodes.get(MEMBER_OF_ACME, "local-1")
        assert shown.capacity == Capacity(cpus=4, memory_mib=8192, disk_gib=100)

    play(story)


@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize("limit", [1, 3, 10, 1000])
def test_the_pages_together_are_all_nodes_in_order(limit: int, stale: bool) -> None:
    async def story(scene: Scene) -> None:
        for number in (3, 1, 10, 2, 7):
            await scene.node(f"local-{number}", alive=number % 2 == 0)
        await scene.raw.put(MEMBER.fill(node="local-5"), b"{")
        found: list[NodeView] = []
        after = None
        while True:
            page = await scene.nodes.list(MEMBER_OF_ACME, limit=limit, after=after, stale=stale)
            found += page.items
            after = page.after
            if after is None:
                break
        assert [view.node for view in found] == ["local-1", "local-10", "local-2", "local-3", "local-7"]
        assert [view.alive for view in found] == [False, True, True, False, False]
        with pytest.raises(Invalid):
            await scene.nodes.list(MEMBER_OF_ACME, limit=0)

    play(story)


def test_draining_and_activating_change_the_lifecycle() -> None:
    async def story(scene: Scene) -> None:
        await scene.node()
        drained = await scene.nodes.drain(asked(OPERATOR), "local-1", Drain(mode=DrainMode.STOP))
        assert (drained.value.lifecycle, drained.value.drain) == (Lifecycle.DRAINING, DrainMode.STOP)
        assert drained.value == await scene.nodes.get(OPERATOR, "local-1")
        again = await scene.nodes.drain(asked(OPERATOR), "local-1", Drain(mode=DrainMode.STOP))
        assert again.revision == drained.revision
        moved = await scene.nodes.drain(asked(OPERATOR), "local-1", Drain())
        assert moved.value.drain is DrainMode.MOVE
        back = await scene.nodes.activate(asked(OPERATOR), "local-1")
        assert back.value.lifecycle is Lifecycle.ON_DUTY
        assert [audit.verb for audit in await scene.audits()] == ["node.drain", "node.drain", "node.activate"]

    play(story)


def test_a_decommissioned_node_stays_so_when_drained_and_returns_when_activated() -> None:
    async def story(scene: Scene) -> None:
        await scene.node(lifecycle=Lifecycle.DECOMMISSIONED)
        drained = await scene.nodes.drain(asked(ADMIN), "local-1", Drain())
        assert drained.value.lifecycle is Lifecycle.DECOMMISSIONED
        assert (await scene.nodes.activate(asked(ADMIN), "local-1")).value.lifecycle is Lifecycle.ON_DUTY
        await scene.node("local-2", lifecycle=Lifecycle.SHUTTING_DOWN, alive=False)
        with pytest.raises(Conflict, match="start it"):
            await scene.nodes.activate(asked(ADMIN), "local-2")

    play(story)


def test_only_a_silent_node_can_be_confirmed_off() -> None:
    async def story(scene: Scene) -> None:
        await scene.node()
        before = await contents(scene.raw)
        with pytest.raises(Conflict, match="still sends heartbeats"):
            await scene.nodes.confirm_off(asked(REPAIRER), "local-1")
        assert await contents(scene.raw) == before
        await scene.raw.delete(ALIVE.fill(node="local-1"))
        confirmed = await scene.nodes.confirm_off(asked(REPAIRER), "local-1")
        assert confirmed.value.off == OffConfirmation(
            by="rita", at=confirmed.value.off.at if confirmed.value.off else 0
        )
        again = await scene.nodes.confirm_off(asked(ADMIN), "local-1")
        assert again.value.off == confirmed.value.off

    play(story)


def test_an_operator_counts_more_than_a_power_switch_which_a_brake_holds_back() -> None:
    async def story(scene: Scene) -> None:
        await scene.node(alive=False, off=OffConfirmation(by="hostler", at=1.0))
        confirmed = await scene.nodes.confirm_off(asked(REPAIRER), "local-1")
        assert confirmed.value.off is not None
        assert confirmed.value.off.by == "rita"

    play(story)


def test_the_brake_is_released_by_who_may_drain_once_and_with_an_audit() -> None:
    async def story(scene: Scene) -> None:
        assert not (await scene.nodes.brake(MEMBER_OF_ACME)).held
        with pytest.raises(Conflict, match="does not hold"):
            await scene.nodes.release_brake(asked(OPERATOR))
        record = BrakeRecord(nodes=("local-1", "local-2"), of=2, cause="all of them on rack r1", at=1.0)
        await scene.raw.txn([], [BRAKE.put(record, scope=FENCING)])
        shown = await scene.nodes.brake(MEMBER_OF_ACME)
        assert (shown.held, shown.nodes, shown.of, shown.cause) == (True, record.nodes, 2, record.cause)
        with pytest.raises(Forbidden):
            await scene.nodes.release_brake(asked(REPAIRER))
        released = await scene.nodes.release_brake(asked(OPERATOR))
        assert (released.value.held, released.value.released_by) == (False, "otto")
        assert released.value == await scene.nodes.brake(MEMBER_OF_ACME)
        assert (await scene.nodes.release_brake(asked(ADMIN))).value == released.value
        assert [(audit.who, audit.verb) for audit in await scene.audits()] == [("otto", "brake.release")]

    play(story)


def test_a_node_that_never_came_but_has_machines_can_be_confirmed_off_and_one_without_is_not_there() -> None:
    async def story(scene: Scene) -> None:
        with pytest.raises(NotFound):
            await scene.nodes.confirm_off(asked(REPAIRER), "local-1")
        await scene.told(await scene.made())
        with pytest.raises(Forbidden):
            await scene.nodes.confirm_off(asked(MEMBER_OF_ACME), "local-1")
        assert await MEMBER.get(scene.raw, node="local-1") is None
        confirmed = await scene.nodes.confirm_off(asked(REPAIRER), "Local-1")
        assert confirmed.value.off is not None
        assert confirmed.value.lifecycle is Lifecycle.SHUTTING_DOWN, "should it come after all, it joins"

    play(story)


def test_a_node_that_comes_back_while_it_is_confirmed_off_is_not() -> None:
    async def story(scene: Scene) -> None:
        await scene.node(alive=False)
        inner = scene.store.txn

        async def returns_first(*args: Any) -> Any:
            beat = ALIVE.put(Heartbeat(holder="h", started_at=2.0), node="local-1")
            await scene.raw.put(beat.key, beat.value)
            return await inner(*args)

        scene.store.txn = returns_first  # type: ignore[method-assign]
        with pytest.raises(Conflict, match="still sends heartbeats"):
            await scene.nodes.confirm_off(asked(REPAIRER), "local-1")
        assert (await scene.nodes.get(ADMIN, "local-1")).off is None

    play(story)


def test_a_node_is_forgotten_only_without_machines_and_silent_or_decommissioned() -> None:
    async def story(scene: Scene) -> None:
        await scene.node()
        with pytest.raises(Conflict, match="still sends heartbeats"):
            await scene.nodes.forget(asked(ADMIN), "local-1")
        await scene.raw.delete(ALIVE.fill(node="local-1"))
        await scene.told(await scene.made())
        with pytest.raises(Conflict, match="still has machines"):
            await scene.nodes.forget(asked(ADMIN), "local-1")
        assert (await scene.nodes.list(ADMIN)).items != ()
        await scene.raw.delete_prefix("/hostler/v1/nodes/")
        silent = SILENT.put(Silent(registered_at=1.0, trace="x", at=1.0), node="local-1")
        await scene.raw.put(silent.key, silent.value)
        await scene.nodes.forget(asked(ADMIN), "local-1")
        assert await scene.raw.get(silent.key) is None, "that it was silent is forgotten with it"
        await scene.node("local-2", lifecycle=Lifecycle.DECOMMISSIONED)
        await scene.nodes.forget(asked(ADMIN), "local-2")
        assert (await scene.nodes.list(ADMIN)).items == ()
        with pytest.raises(NotFound):
            await scene.nodes.forget(asked(ADMIN), "local-1")

    play(story)


@pytest.mark.parametrize("verb", WRITES)
def test_who_lacks_the_right_changes_nothing(verb: str) -> None:
    async def story(scene: Scene) -> None:
        await scene.node(alive=False)
        before = await contents(scene.raw)
        planner = Caller("i", Rights(modify_inventory=True), ("*",))
        of_one_org = Caller("olga", ROLES[Role.OPERATOR], ("acme",))
        callers = [MEMBER_OF_ACME, of_one_org, planner if verb == "confirm off" else REPAIRER]
        for caller in callers:
            with pytest.raises(Forbidden):
                await WRITES[verb](scene, asked(caller))
        assert await contents(scene.raw) == before
        await WRITES[verb](scene, asked(OPERATOR))

    play(story)


@pytest.mark.parametrize("verb", WRITES)
def test_every_write_is_compared_repeated_and_refused_in_an_outage(verb: str) -> None:
    async def story(scene: Scene) -> None:
        lifecycle = Lifecycle.DECOMMISSIONED if verb == "activate" else Lifecycle.ON_DUTY
        await scene.node(alive=False, lifecycle=lifecycle)
        with pytest.raises(Stale):
            await WRITES[verb](scene, asked(ADMIN, if_match=1_000))
        with pytest.raises(NotFound):
            await WRITES[verb](scene, asked(ADMIN), "local-9")
        with pytest.raises(Invalid):
            await WRITES[verb](scene, asked(ADMIN), "a/b")
        first = await WRITES[verb](scene, asked(ADMIN, key="k"))
        before = await contents(scene.raw)
        again = await WRITES[verb](scene, asked(ADMIN, key="k"))
        assert (again.value, again.status, again.replayed) == (first.value, first.status, True)
        assert await contents(scene.raw) == before
        scene.healthy = False
        with pytest.raises(Unavailable):
            await WRITES[verb](scene, asked(ADMIN))

    play(story)

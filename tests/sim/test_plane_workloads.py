"""Workloads in virtual time: created, scaled, replaced, moved, lost and deleted, whoever dies meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from dose import every_nth

from hostler.engine.idempotent_writer import Writer
from hostler.engine.nodes import NodeService
from hostler.engine.quotas import QuotaService
from hostler.engine.request import HOSTLER, Request
from hostler.engine.view import View
from hostler.engine.vm_queries import VmQuery
from hostler.errors import Conflict
from hostler.keys.families import INSTANCE, NAME, TARGET, VM, WORKLOAD
from hostler.model.access_api import QuotaSet
from hostler.model.inventory_api import Drain
from hostler.model.vm import Level, MachineState, OnNodeLoss, Power, VirtualMachine, VmSpec
from hostler.model.vm_api import VmUpdate
from hostler.model.workload import Rollout
from hostler.model.workload_api import WorkloadRule
from hostler.ports.store import Delete

from .plane import Crash, Loss
from .workloads import SPEC, WorkloadPlane

LARGE = VmSpec(cpus=2, memory_mib=128)


def played(story: Any, **more: Any) -> WorkloadPlane:
    plane = WorkloadPlane(**{"seed": 1, **more})
    plane.run(story)
    return plane


def test_a_workload_is_created_scaled_switched_off_and_deleted_with_all_that_belongs_to_it() -> None:
    async def story(plane: WorkloadPlane) -> None:
        await plane.apply(instances=3, labels={"tier": "a"})
        await plane.met()
        assert sorted(await plane.instances()) == [1, 2, 3]
        vms = {e.value.name: e.value for e in (await VM.list(plane.store)).entries}
        assert set(vms) == {"web-1", "web-2", "web-3"}
        assert vms["web-2"].labels == {"tier": "a", "workload": "web"}
        assert {vm.instance for vm in vms.values()} == {"web/1", "web/2", "web/3"}
        assert len({target.node for target in (await plane.targets()).values()}) > 1, "they are spread"
        revision = (await plane.store.status()).revision
        await plane.apply(instances=3, labels={"tier": "a"})
        await asyncio.sleep(5)
        assert (await WORKLOAD.get(plane.store, workload="web")).mod_revision <= revision  # type: ignore[union-attr]

        await plane.scale(5)
        await plane.met()
        await plane.scale(2)
        await plane.met()
        assert sorted(await plane.instances()) == [1, 2]
        await plane.scale(2, enabled=False)
        await plane.met()
        assert {actual.state for actual in (await plane.actuals()).values()} == {MachineState.STOPPED}
        assert {target.power for target in (await plane.targets()).values()} == {Power.OFF}
        await plane.scale(2, enabled=True)
        await plane.met()

        await plane.delete()
        with pytest.raises(Conflict, match="being deleted; wait until it is gone"):
            await plane.apply(instances=3)
        await plane.met()
        for key in (WORKLOAD, INSTANCE, TARGET, VM, NAME):
            assert (await plane.store.range(key.prefix())).items == (), key.template  # type: ignore[attr-defined]
        await plane.apply(instances=1)
        await plane.met()
        await plane.check(machines=1)
        plane.check_writers()

    played(story, nodes=3)


@pytest.mark.parametrize(("surge", "missing", "most"), [(0, 1, 4), (1, 0, 5), (2, 2, 6)])
def test_an_update_goes_through_the_instances_within_its_bounds(surge: int, missing: int, most: int) -> None:
    async def story(plane: WorkloadPlane) -> None:
        rollout = Rollout(max_surge=surge, max_unavailable=missing)
        await plane.apply(instances=4, rollout=rollout)
        await plane.met()
        plane.most = most
        fewest = 4
        await plane.apply(instances=4, rollout=rollout, spec=LARGE)
        while await plane.unmet() is not None:
            await asyncio.sleep(0.05)
            running = [actual for actual in (await plane.actuals()).values() if actual.state is MachineState.RUNNING]
            leaving = [one for one in (await plane.instances()).values() if one.leaving]
            fewest = min(fewest, len(running))
            assert len(running) - len(leaving) >= 4 - missing - len(leaving)
        assert fewest >= 4 - missing
        assert plane.seen_most == most
        assert {e.value.spec.cpus for e in (await VM.list(plane.store)).entries} == {2}
        await plane.check(machines=4)

    played(story, nodes=3)


def test_an_update_that_does_not_come_up_stops_and_is_taken_back() -> None:
    async def story(plane: WorkloadPlane) -> None:
        await plane.apply(instances=3)
        await plane.met()
        await plane.apply(instances=3, spec=SPEC, node_labels={"disk": "none"})

        async def stuck() -> bool:
            targets = await plane.targets()
            return sum(target.node is None for target in targets.values()) == 1 and len(targets) == 3

        await plane.until(stuck)
        await asyncio.sleep(60)
        assert await stuck(), "the others serve on"
        (pending,) = [target for target in (await plane.targets()).values() if target.node is None]
        assert "label" in pending.reasons[0].why
        await plane.apply(instances=3)
        await plane.met()
        await plane.check(machines=3)

    played(story, nodes=2)


def test_what_no_node_has_room_for_says_why_and_comes_when_there_is_room() -> None:
    async def story(plane: WorkloadPlane) -> None:
        apart = WorkloadRule(together=False, level="node")  # type: ignore[arg-type]
        await plane.apply(instances=3, affinity=(apart,))

        async def pending() -> bool:
            targets = (await plane.targets()).values()
            placed = [target for target in targets if target.node is not None]
            return len(placed) == 2 and len(targets) == 3

        await plane.until(pending)
        (target,) = [target for target in (await plane.targets()).values() if target.node is None]
        await plane.until(lambda: _decided(plane))
        assert target.vm
        await plane.scale(2)
        await plane.met()
        await plane.check(machines=2)

    async def _decided(plane: WorkloadPlane) -> bool:
        return any("web" in r.why for t in (await plane.targets()).values() if t.node is None for r in t.reasons)

    played(story, nodes=2)


def test_a_quota_holds_and_one_instance_says_so_for_all() -> None:
    async def story(plane: WorkloadPlane) -> None:
        writer = Writer(plane.store, clock=plane.clock, new_id=plane.hosts["replica-1"].new_id)
        quotas = QuotaService(plane.store, writer)
        await quotas.set(Request(HOSTLER), "workloads", "web", QuotaSet(vms=2))
        await plane.apply(instances=30)

        async def refused() -> bool:
            return len(await plane.instances()) == 3

        await plane.until(refused)
        await asyncio.sleep(40)
        assert len((await VM.list(plane.store)).entries) == 2
        instances, targets = await plane.instances(), await plane.targets()
        assert [number for number, one in instances.items() if not one.vm] == [3]
        assert "its quota allows 2" in targets[3].reasons[0].why
        await quotas.set(Request(HOSTLER), "workloads", "web", QuotaSet(vms=4))
        await plane.scale(4)
        await plane.met()
        assert (await quotas.get(HOSTLER, "workloads", "web")).used_vms == 4
        await plane.delete()
        await plane.met()
        assert (await quotas.get(HOSTLER, "workloads", "web")).used_vms == 0

    played(story, nodes=2)


@pytest.mark.parametrize("full", ["quota", "nodes"])
def test_an_update_goes_through_what_there_is_where_not_all_can_be_had(full: str) -> None:
    async def story(plane: WorkloadPlane) -> None:
        rules = (WorkloadRule(together=False, level=Level.NODE),) if full == "nodes" else ()
        if full == "quota":
            writer = Writer(plane.store, clock=plane.clock, new_id=plane.hosts["replica-1"].new_id)
            await QuotaService(plane.store, writer).set(Request(HOSTLER), "workloads", "web", QuotaSet(vms=3))
        await plane.apply(instances=5, affinity=rules)

        async def serving(*cpus: int) -> bool:
            ready = {n for n, one in (await plane.actuals()).items() if one.state is MachineState.RUNNING}
            specs = {e.value.instance: e.value.spec.cpus for e in (await VM.list(plane.store)).entries}
            return len(ready) == 3 and {specs.get(f"web/{n}") for n in ready} == set(cpus)

        await plane.until(lambda: serving(1))
        view = View(plane.store, clock=plane.clock)
        viewing = asyncio.create_task(view.run())
        await view.ready()
        await asyncio.sleep(5)
        await plane.apply(instances=5, spec=LARGE, affinity=rules, view=view)
        viewing.cancel()
        least = 3

        async def updated() -> bool:
            nonlocal least
            least = min(least, sum(one.state is MachineState.RUNNING for one in (await plane.actuals()).values()))
            return await serving(2)

        began = plane.clock.now()
        await plane.until(updated)
        assert plane.clock.now() - began < 60, "what has gone makes room at once"
        assert least == 2, "one at a time"

    played(story, nodes=3)


def test_instances_of_a_lost_node_are_made_elsewhere_and_a_drained_one_hands_its_own_over() -> None:
    async def story(plane: WorkloadPlane) -> None:
        await plane.apply(instances=4)
        await plane.met()
        plane.supervised = False
        plane.kill("r1-1")
        plane.places["r1-1"].power_off(plane.clock.now())
        before = {one.vm for one in (await plane.instances()).values()}

        async def elsewhere() -> bool:
            targets = (await plane.targets()).values()
            return {target.node for target in targets} <= {"r1-2", "r1-3"} and await _run(plane, 4)

        await plane.until(elsewhere)
        assert {one.vm for one in (await plane.instances()).values()} == before, "the same machines, made anew"
        plane.supervised = True
        plane.spawn("r1-1")
        await plane.met()

        view = View(plane.store, clock=plane.clock)
        writer = Writer(plane.store, clock=plane.clock, new_id=plane.hosts["replica-1"].new_id)
        await NodeService(plane.store, writer, view, clock=plane.clock).drain(Request(HOSTLER), "r1-2", Drain())

        async def drained() -> bool:
            on = [target.node for target in (await plane.targets()).values()]
            return "r1-2" not in on and await plane.unmet() is None

        await plane.until(drained)
        plane.check_writers()
        await plane.check(machines=4)

    played(story, nodes=3)


def test_fenced_instances_wait_for_their_lost_node_and_return_with_their_disks() -> None:
    async def story(plane: WorkloadPlane) -> None:
        await plane.apply(instances=3, on_node_loss=OnNodeLoss.FENCE)
        await plane.met()
        before = await plane.targets()
        place = plane.places["r1-1"]
        disks = {row.disk_id for row in place.contents.rows.values()}
        assert disks
        plane.supervised = False
        plane.kill("r1-1")
        place.power_off(plane.clock.now())
        await plane.clock.sleep(120)
        assert {n: target.node for n, target in (await plane.targets()).items()} == {
            n: target.node for n, target in before.items()
        }
        plane.supervised = True
        plane.spawn("r1-1")
        await plane.met()
        assert {row.disk_id for row in place.contents.rows.values()} == disks
        await plane.check(machines=3)

    played(story, nodes=3)


async def _run(plane: WorkloadPlane, count: int) -> bool:
    return sum(actual.state is MachineState.RUNNING for actual in (await plane.actuals()).values()) == count


def test_what_people_do_to_machines_of_a_workload_is_put_right() -> None:
    async def story(plane: WorkloadPlane) -> None:
        await plane.apply(instances=3)
        await plane.met()
        vms = {e.value.name: e for e in (await VM.list(plane.store)).entries}
        host = plane.hosts["replica-1"]
        service = host.vms  # type: ignore[attr-defined]
        with pytest.raises(Conflict, match="vm web-3: it is instance 3 of workload web; change the workload"):
            await service.update(Request(HOSTLER), "workloads", "web", "web-3", VmUpdate(cpus=8))
        await service.stop(Request(HOSTLER), "workloads", "web", "web-1")
        await service.delete(Request(HOSTLER), "workloads", "web", "web-2")
        # Somebody meddled: a target went, and a machine says it is an instance that there is not.
        await plane.store.delete(TARGET.fill(workload="web", instance="3"))
        stray = VirtualMachine(
            id="stray", name="stray", org="o", project="p", spec=SPEC, instance="web/9", created_at=0.0
        )
        await plane.store.txn([], [VM.put(stray, org="o", project="p", vm="stray")])
        plane.odd = ""
        await asyncio.sleep(5)
        plane.odd = ""
        await plane.met()
        now = {e.value.name: e.value.id for e in (await VM.list(plane.store)).entries}
        assert now["web-1"] == vms["web-1"].value.id
        assert now["web-2"] != vms["web-2"].value.id
        await plane.check(machines=3)

    played(story, nodes=2)


@pytest.mark.parametrize("missing", [WORKLOAD.fill(workload="web"), INSTANCE.fill(workload="web", instance="2")])
def test_no_disk_is_deleted_because_a_record_of_its_workload_is_missing(missing: str) -> None:
    async def story(plane: WorkloadPlane) -> None:
        await plane.apply(instances=2)
        await plane.met()
        lost = [e.value.id for e in (await VM.list(plane.store)).entries]
        if missing == INSTANCE.fill(workload="web", instance="2"):
            lost = [e.value.id for e in (await VM.list(plane.store)).entries if e.value.name == "web-2"]
        gone = [missing, TARGET.fill(workload="web", instance="2")] if len(lost) == 1 else [missing]
        await plane.store.txn([], [Delete(key) for key in gone])
        plane.odd = ""
        for _ in range(100):
            await asyncio.sleep(1.0)
            left = {e.value.id for e in (await VM.list(plane.store)).entries}
            if left.isdisjoint(lost):
                break
        assert left.isdisjoint(lost), "no machine runs that nothing asks for"
        retained = [each.row.vm for place in plane.places.values() for each in place.contents.kept.values()]
        assert sorted(retained) == sorted(lost), "a disk was deleted that its owner did not give up"
        plane.odd = ""

    played(story, nodes=2)


def test_a_name_that_is_taken_gives_way() -> None:
    async def story(plane: WorkloadPlane) -> None:
        await plane.store.txn([], [NAME.put("somebody", org="workloads", project="web", name="web-2")])
        await plane.apply(instances=3)
        await plane.met()
        names = sorted(e.value.name for e in (await VM.list(plane.store)).entries)
        assert names[0] == "web-1"
        assert names[1].startswith("web-2-")

    played(story, nodes=2)


# Whoever dies


async def create(plane: WorkloadPlane) -> None:
    await plane.apply(instances=3)


async def scale_up(plane: WorkloadPlane) -> None:
    await plane.scale(3)


async def scale_down(plane: WorkloadPlane) -> None:
    await plane.scale(1)


async def update(plane: WorkloadPlane) -> None:
    await plane.apply(instances=2, spec=LARGE)


async def delete(plane: WorkloadPlane) -> None:
    await plane.delete()


VERBS: dict[str, tuple[int | None, Any, int]] = {
    "create": (None, create, 3),
    "scale up": (1, scale_up, 3),
    "scale down": (3, scale_down, 1),
    "update": (2, update, 2),
    "delete": (2, delete, 0),
}
"""How many instances there are, what is done, and how many machines there are in the end."""
MOST = 600
"""Points that no verb has: more of them means that the enumeration does not end."""


def played_at(verb: str, at: int, **fault: Any) -> Crash | Loss:
    """The verb, with the fault armed from just before it until all is as wished; the fault, with where it happened."""
    first, act, machines = VERBS[verb]

    async def story(plane: WorkloadPlane) -> None:
        if first is not None:
            await plane.apply(instances=first)
            await plane.met()
        await plane.wish(lambda vms, _: vms.list(HOSTLER, VmQuery("o", "p")))  # until somebody answers
        armed = plane.crash or plane.loss
        assert armed is not None
        armed.armed = True
        await act(plane)
        await plane.met()
        armed.armed = False
        await plane.check(machines=machines)

    plane = WorkloadPlane(seed=at, most=max(first or 0, machines), **fault)
    plane.run(story)
    if plane.writers:
        plane.check_writers()
    done = plane.crash or plane.loss
    assert done is not None
    return done


@pytest.mark.parametrize("victims", [("replica",), ("agent",), ("replica", "agent")], ids="+".join)
@pytest.mark.parametrize("verb", VERBS)
def test_whoever_is_killed_at_whatever_point_there_are_as_many_machines_as_are_wished_for(
    verb: str, victims: tuple[str, ...]
) -> None:
    nth = 5 if (verb, victims) == ("scale up", ("replica",)) else 11
    for at in every_nth(range(1, MOST), nth):
        watched = "replica" if "replica" in victims else "agent"
        crash = played_at(verb, at, crash=Crash(watched, victims, at))
        if not crash.where:
            assert crash.passed >= 8, "there is nothing to kill"
            return
    raise AssertionError("more points than there can be")


@pytest.mark.parametrize("kind", ["lost", "cut", "late", "never", "unavailable"])
@pytest.mark.parametrize("verb", VERBS)
def test_whatever_answer_is_lost_nothing_is_doubled(verb: str, kind: str) -> None:
    for at in every_nth(range(1, MOST), 7):
        loss = played_at(verb, at, loss=Loss("replica", kind, at))
        if not loss.where:
            assert loss.passed >= 2, "there is nothing to lose"
            return
    raise AssertionError("more points than there can be")

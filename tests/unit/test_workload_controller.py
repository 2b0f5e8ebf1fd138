"""The leader's work on workloads: what is lost, stray, unreadable or in doubt, and what a change costs."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from environment import env_on

from hostler.drivers.store.faulty import FaultyStore
from hostler.drivers.store.memory import MemoryStore
from hostler.drivers.ttl.store import StoreTtlStorage
from hostler.engine.decision_recorder import Tracer
from hostler.engine.elections import Elections
from hostler.engine.idempotent_writer import Writer
from hostler.engine.request import HOSTLER, Request
from hostler.engine.runtime.env import ControllerEnv
from hostler.engine.view import View
from hostler.engine.workloads.controller import WorkloadController
from hostler.engine.workloads.instance_index import WorkloadInstanceState
from hostler.engine.workloads.service import WorkloadService
from hostler.errors import Conflict, Invalid, LeadershipLost, Stale, Uncertain
from hostler.keys.families import ACTUAL, ALIVE, COMMAND, HANDLE, INSTANCE, NAME, TARGET, TRACE, VM, WORKLOAD
from hostler.kit.virtual_loop import VirtualClock, run_virtual
from hostler.model.node import Heartbeat, VmCommand
from hostler.model.vm import MachineState, Power, VmHandle, VmSpec
from hostler.model.vm_api import VmPhase
from hostler.model.workload import Actual, Rollout, Workload, WorkloadInstance
from hostler.model.workload_api import WorkloadApply, WorkloadPhase, WorkloadScale
from hostler.ports.store import MAX_REQUEST_BYTES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hostler.keys.entry import Entry
    from hostler.model.vm import VirtualMachine
    from hostler.model.workload import Target

SPEC = VmSpec(cpus=1, memory_mib=64)
KEY = "sysvvm/1/1"


class Scene:
    """A leader's controller on a store of its own that can break, and nobody who makes machines."""

    def __init__(self, raw: MemoryStore, clock: VirtualClock) -> None:
        self.raw, self.clock = raw, clock
        self.store = FaultyStore(raw, random.Random(1), clock=clock)
        self.view = View(self.store, clock=clock, rng=random.Random(1))
        numbers = itertools.count(1)
        self.new_id = lambda: f"id-{next(numbers):05d}"
        self.told: list[str] = []
        self.failed: list[Exception] = []
        env = ControllerEnv(
            store=self.store,
            clock=clock,
            rng=random.Random(1),
            new_id=self.new_id,
            tracer=Tracer(clock, self.new_id, "workloads"),
            tell=self.told.append,
        )
        self.controller = WorkloadController(env, self.view)
        writer = Writer(raw, clock=clock, new_id=self.new_id)
        self.service = WorkloadService(raw, writer, self.view, env_on(clock))
        self.leadership: Any = None

    async def apply(self, name: str = "web", **fields: Any) -> None:
        wanted = WorkloadApply(**{"name": name, "spec": SPEC, **fields})
        await self.service.apply(Request(HOSTLER), wanted)
        await asyncio.sleep(3)

    async def scale(self, instances: int) -> None:
        await self.service.scale(Request(HOSTLER), "web", WorkloadScale(instances=instances))
        await asyncio.sleep(3)

    async def instances(self) -> dict[int, WorkloadInstance]:
        return {int(e.parts["instance"]): e.value for e in (await INSTANCE.list(self.raw, strict=False)).entries}

    async def target(self, number: int) -> Entry[Target] | None:
        return await TARGET.get(self.raw, workload="web", instance=str(number))

    async def vms(self) -> dict[str, VirtualMachine]:
        return {e.value.id: e.value for e in (await VM.list(self.raw, strict=False)).entries}

    async def forget(self, id_: str, *, index: bool = True) -> None:
        """What the controller of machines does at the end; not `index`: what somebody did who meddled."""
        vm = (await self.vms())[id_]
        place: dict[str, Any] = {"org": vm.org, "project": vm.project}
        then = [VM.delete(vm=id_, **place), NAME.delete(name=vm.name, **place), HANDLE.delete(vm=id_, **place)]
        if index:
            number = vm.instance.rpartition("/")[2]
            then += [key.delete(workload="web", instance=number) for key in (INSTANCE, TARGET, ACTUAL)]
        await self.raw.txn([], then)
        await asyncio.sleep(3)

    async def seen(self, id_: str, state: MachineState = MachineState.RUNNING, node: str = "n1") -> None:
        vm = (await self.vms())[id_]
        handle = VmHandle(id=id_, node=node, state=state, generation=vm.generation, seen_at=0.0)
        await self.raw.txn([], [HANDLE.put(handle, org=vm.org, project=vm.project, vm=id_)])
        await asyncio.sleep(0.5)

    async def commanded(self, id_: str, node: str, gone: str = "") -> None:
        """What placing does, without the target; from `gone`: what an agent does that hands it over."""
        vm = (await self.vms())[id_]
        command = VmCommand(org=vm.org, project=vm.project, vm=id_, spec=vm.spec, instance=vm.instance)
        then: list[Any] = [COMMAND.put(command, node=node, vm=id_)]
        if gone:
            then.append(COMMAND.delete(node=gone, vm=id_))
        await self.raw.txn([], then)
        await asyncio.sleep(3)


def play(story: Callable[[Scene], Awaitable[None]]) -> None:
    async def main() -> None:
        clock = VirtualClock()
        async with MemoryStore(clock=clock, rng=random.Random(1)) as raw:
            scene = Scene(raw, clock)
            elections = Elections(StoreTtlStorage(raw), clock=clock, new_id=lambda: "leader")
            scene.leadership = await elections.acquire(KEY, "leader", ttl=10_000)
            viewing = asyncio.create_task(scene.view.run())
            await scene.view.ready()
            await raw.txn([], [ALIVE.put(Heartbeat(holder="n1", started_at=0.0), node="n1")])
            await scene.controller.start(scene)  # type: ignore[arg-type]
            running = asyncio.create_task(_run(scene))
            try:
                await story(scene)
            finally:
                for task in (running, viewing):
                    task.cancel()
                await asyncio.gather(running, viewing, return_exceptions=True)
                await scene.controller.stop()
                await elections.aclose()

    run_virtual(main)


async def _run(scene: Scene) -> None:
    try:
        await scene.controller.run()
    except LeadershipLost as error:
        scene.failed.append(error)


# What does not fit together


def test_about_a_workload_that_is_held_nothing_is_decided() -> None:
    async def story(scene: Scene) -> None:
        await scene.apply(instances=2)
        before = await scene.vms()
        assert len(before) == 2
        entry = await WORKLOAD.get(scene.raw, workload="web")
        assert entry is not None
        held = msgspec.structs.replace(entry.value, held="c0ffee", instances=1)
        await WORKLOAD.replace(scene.raw, entry, held)
        await scene.raw.delete(INSTANCE.fill(workload="web", instance="2"))
        await asyncio.sleep(500)
        assert await scene.vms() == before
        entry = await WORKLOAD.get(scene.raw, workload="web")
        assert entry is not None
        await WORKLOAD.replace(scene.raw, entry, msgspec.structs.replace(entry.value, held=""))
        await asyncio.sleep(500)
        assert sum(vm.deleting for vm in (await scene.vms()).values()) == 1

    play(story)


def test_an_instance_whose_machine_somebody_deleted_is_made_again() -> None:
    async def story(scene: Scene) -> None:
        await scene.apply(instances=3)
        lost = (await scene.instances())[2].vm
        actual = Actual(node="n1", state=MachineState.RUNNING, seen_at=0.0)
        await scene.raw.txn([], [ACTUAL.put(actual, workload="web", instance="2")])
        await scene.forget(lost, index=False)
        instances = await scene.instances()
        assert sorted(instances) == [1, 2, 3]
        assert instances[2].vm != lost
        assert await ACTUAL.get(scene.raw, workload="web", instance="2") is None
        assert scene.controller.counters["dropped"] == 1

    play(story)


def test_a_machine_whose_index_somebody_deleted_is_removed_and_its_number_given_anew() -> None:
    async def story(scene: Scene) -> None:
        await scene.apply(instances=2)
        old = (await scene.instances())[2].vm
        await scene.raw.txn([], [key.delete(workload="web", instance="2") for key in (INSTANCE, TARGET)])
        await asyncio.sleep(5)
        vms = await scene.vms()
        assert vms[old].deleting
        assert any("claims to be instance 2 of web, and is not" in line for line in scene.told)
        assert (await scene.instances())[2].vm not in ("", old)
        await scene.forget(old, index=False)
        assert sorted(await scene.instances()) == [1, 2]

    play(story)


def test_what_cannot_be_read_counts_and_is_left_alone() -> None:
    async def story(scene: Scene) -> None:
        await scene.apply(instances=3)
        instances = await scene.instances()
        broken = VM.fill(org="workloads", project="web", vm=instances[3].vm)
        await scene.raw.put(broken, b"{")
        await scene.raw.put(INSTANCE.fill(workload="web", instance="2"), b"{")
        await asyncio.sleep(5)
        assert len(await scene.vms()) == 2, "nobody is made in their place"
        await scene.scale(1)
        assert [vm.deleting for vm in (await scene.vms()).values()] == [True, False], "the one that can be read goes"
        assert not scene.controller.counters.get("dropped")
        await scene.service.delete(Request(HOSTLER), "web")
        await asyncio.sleep(400)
        assert await WORKLOAD.get(scene.raw, workload="web") is not None, "it waits for somebody to look"

    play(story)


def test_nothing_is_done_about_a_wish_that_cannot_be_read_and_all_goes_with_one_that_is_gone() -> None:
    async def story(scene: Scene) -> None:
        await scene.apply(instances=2)
        key = WORKLOAD.fill(workload="web")
        await scene.raw.put(key, b"[]")
        await asyncio.sleep(400)
        assert not any(vm.deleting for vm in (await scene.vms()).values())
        await scene.raw.delete(key)
        await asyncio.sleep(3)
        assert all(vm.deleting for vm in (await scene.vms()).values())
        for id_ in tuple(await scene.vms()):
            await scene.forget(id_)
        assert await scene.instances() == {}

    play(story)


@pytest.mark.parametrize(
    "instance", ["web", "/3", "web/", "web/\x00", "a/b/3", "../1", "web/x", "web/03", "ß" * 300 + "/1"]
)
def test_a_machine_that_says_it_stands_for_what_cannot_be_harms_nobody(instance: str) -> None:
    async def story(scene: Scene) -> None:
        await scene.apply(instances=1)
        vm = next(iter((await scene.vms()).values()))
        odd = msgspec.structs.replace(vm, id="odd", name="odd", instance=instance)
        command = VmCommand(org=vm.org, project=vm.project, vm="odd", spec=SPEC, instance=instance)
        handle = VmHandle(id="odd", node="", state=MachineState.RUNNING, seen_at=0.0)
        place: dict[str, Any] = {"org": vm.org, "project": vm.project, "vm": "odd"}
        puts = [VM.put(odd, **place), HANDLE.put(handle, **place), COMMAND.put(command, node="n1", vm="odd")]
        await scene.raw.txn([], puts)
        await asyncio.sleep(5)
        await scene.raw.txn([], [VM.delete(**place), HANDLE.delete(**place), COMMAND.delete(node="n1", vm="odd")])
        await scene.scale(2)
        assert sorted(await scene.instances()) == [1, 2]
        await scene.service.delete(Request(HOSTLER), "web")
        await asyncio.sleep(3)
        for id_ in tuple(await scene.vms()):
            await scene.forget(id_)
        assert await WORKLOAD.get(scene.raw, workload="web") is None

    play(story)


def test_targets_follow_who_was_commanded_and_go_where_nobody_is() -> None:
    async def story(scene: Scene) -> None:
        await scene.apply(instances=2)
        id_ = (await scene.instances())[1].vm
        first = await scene.target(1)
        assert first is not None
        assert first.value.reasons[0].why == "waits for its first placement"
        await scene.commanded(id_, "n1")
        await scene.commanded(id_, "n2", gone="n1")
        moved = await scene.target(1)
        assert moved is not None
        assert (moved.value.node, moved.value.vm) == ("n2", id_)
        await asyncio.sleep(700)
        assert await scene.target(1) == moved, "what is right is not written again"
        stray = msgspec.structs.replace(moved.value, node="n9")
        await scene.raw.txn([], [TARGET.put(stray, workload="web", instance="77")])
        await scene.raw.delete(TARGET.fill(workload="web", instance="2"))
        await asyncio.sleep(5)
        assert await scene.target(77) is None
        second = await scene.target(2)
        assert second is not None
        assert second.value.node is None

    play(story)


# Doubts and limits


@pytest.mark.parametrize("kind", ["lost", "never", "unavailable"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_write_whose_answer_is_lost_is_sent_again_and_done_once(kind: Any, nth: int) -> None:
    async def story(scene: Scene) -> None:
        scene.store.script("txn", kind, prefix=INSTANCE.prefix(), nth=nth)
        await scene.apply(instances=50)
        await asyncio.sleep(10)
        assert sorted(await scene.instances()) == list(range(1, 51))
        assert len(await scene.vms()) == 50
        assert scene.controller.counters["made"] in (2, 3), scene.controller.counters
        scene.store.script("txn", kind, prefix=INSTANCE.prefix(), nth=nth)
        await scene.scale(10)
        await asyncio.sleep(10)
        assert sum(vm.deleting for vm in (await scene.vms()).values()) == 40
        assert sorted(n for n, one in (await scene.instances()).items() if not one.leaving) == list(range(1, 11))

    play(story)


def test_a_removal_that_comes_late_takes_nobody_beside_the_one_that_was_sent_again() -> None:
    async def story(scene: Scene) -> None:
        await scene.apply(instances=4)
        for one in (await scene.instances()).values():
            await scene.seen(one.vm)
        txn, late = scene.store.txn, list[tuple[Any, ...]]()

        async def sent(*args: Any) -> Any:
            if not late and any(b'"leaving":true' in getattr(operation, "value", b"") for operation in args[1]):
                late.append(args)
                raise Uncertain("no answer")
            return await txn(*args)

        scene.store.txn = sent  # type: ignore[method-assign, assignment]
        await scene.service.scale(Request(HOSTLER), "web", WorkloadScale(instances=3))
        while not late:
            await asyncio.sleep(0.001)
        await scene.seen((await scene.instances())[1].vm, MachineState.FAILED)  # it would be the one to go now
        await asyncio.sleep(5)
        await scene.raw.txn(*late[0])
        await asyncio.sleep(5)
        assert sorted(n for n, one in (await scene.instances()).items() if not one.leaving) == [1, 2, 3]

    play(story)


def test_what_was_decided_from_an_older_wish_writes_nothing() -> None:
    async def story(scene: Scene) -> None:
        await scene.apply(instances=3)
        mirror, held = scene.view.workloads, list[Any]()
        take = mirror._take
        mirror._take = held.append  # type: ignore[method-assign]
        await scene.scale(2)
        await scene.forget((await scene.instances())[3].vm)
        await asyncio.sleep(5)
        assert sorted(await scene.instances()) == [1, 2], "three are no longer wished for"
        assert scene.controller.counters["conflicts"] > 0
        for change in held:
            take(change)
        await asyncio.sleep(40)
        assert sorted(await scene.instances()) == [1, 2]

    play(story)


def test_an_instance_does_not_serve_while_its_node_is_silent() -> None:
    async def story(scene: Scene) -> None:
        await scene.apply(instances=1)
        id_ = (await scene.instances())[1].vm
        await scene.commanded(id_, "n1")
        await scene.seen(id_)
        assert (await scene.service.get(HOSTLER, "web")).settled
        await scene.raw.delete(ALIVE.fill(node="n1"))
        await asyncio.sleep(1)
        view = await scene.service.get(HOSTLER, "web")
        assert (view.ready, view.settled) == (0, False)
        (one,) = (await scene.service.instances(HOSTLER, "web")).items
        assert (one.phase, one.ready) == (VmPhase.SILENT, False)
        await scene.raw.txn([], [ALIVE.put(Heartbeat(holder="n1", started_at=0.0), node="n1")])
        await asyncio.sleep(1)
        assert (await scene.service.get(HOSTLER, "web")).settled

    play(story)


def test_machines_with_long_user_data_are_made_in_smaller_batches() -> None:
    async def story(scene: Scene) -> None:
        long = "x" * (MAX_REQUEST_BYTES // 8)
        await scene.apply(instances=9, spec=msgspec.structs.replace(SPEC, user_data=long))
        await asyncio.sleep(10)
        assert len(await scene.vms()) == 9
        assert scene.controller.counters["made"] == 3
        assert scene.told == []

    play(story)


def test_machines_with_long_user_data_are_tuned_replaced_and_removed_whatever_comes_next() -> None:
    async def story(scene: Scene) -> None:
        long = msgspec.structs.replace(SPEC, user_data="x" * 200_000)
        await scene.apply(instances=12, spec=long)
        await scene.apply(instances=12, spec=long, enabled=False)
        assert {vm.power for vm in (await scene.vms()).values()} == {Power.OFF}
        rollout = Rollout(max_unavailable=12)
        await scene.apply(instances=12, rollout=rollout)  # the old records are long, however short the new ones are
        assert all(vm.deleting for vm in (await scene.vms()).values())
        for id_ in tuple(await scene.vms()):
            await scene.forget(id_)
        assert {len(vm.spec.user_data) for vm in (await scene.vms()).values()} == {0}
        await scene.apply("db", instances=12, spec=long)
        await scene.service.delete(Request(HOSTLER), "db")
        await asyncio.sleep(3)
        assert sum(vm.deleting for vm in (await scene.vms()).values()) == 12
        assert scene.told == []

    play(story)


def test_a_machine_that_fits_into_no_request_is_refused_and_else_says_so() -> None:
    async def story(scene: Scene) -> None:
        with pytest.raises(Invalid, match=r"record has \d+ bytes, at most 786432 are allowed; shorten user_data"):
            await scene.apply(spec=msgspec.structs.replace(SPEC, user_data="x" * (MAX_REQUEST_BYTES // 2)))
        large = msgspec.structs.replace(SPEC, user_data="x" * (MAX_REQUEST_BYTES - 2_000))
        record = Workload(name="web", instances=3, spec=large)
        await scene.raw.txn([], [WORKLOAD.put(record, workload="web")])
        await asyncio.sleep(3)
        view = await scene.service.get(HOSTLER, "web")
        assert view.phase is WorkloadPhase.PENDING
        assert "can be written at once; shorten its user_data" in view.detail
        assert await scene.vms() == {}
        assert scene.told == []

    play(story)


def test_an_update_that_is_held_back_says_so() -> None:
    async def story(scene: Scene) -> None:
        await scene.apply(instances=3)
        for one in (await scene.instances()).values():
            await scene.seen(one.vm)
        await scene.apply(instances=3, node_labels={"disk": "none"})
        assert (await scene.service.get(HOSTLER, "web")).detail == "0 of 3 are of the newest template", "one goes"
        await scene.forget((await scene.instances())[3].vm)
        view = await scene.service.get(HOSTLER, "web")
        held = "; 2 of an older template stay, because at least 2 must serve"
        assert (view.phase, view.detail) == (WorkloadPhase.UPDATING, f"1 of 3 are of the newest template{held}")
        await scene.seen((await scene.instances())[3].vm, MachineState.PENDING, node="")
        view = await scene.service.get(HOSTLER, "web")
        assert (view.phase, view.detail.endswith(held)) == (WorkloadPhase.PENDING, True)
        assert [n for n, one in (await scene.instances()).items() if one.leaving] == []

    play(story)


def test_a_leader_that_leads_no_more_writes_nothing_and_stops() -> None:
    async def story(scene: Scene) -> None:
        await scene.apply(instances=1)
        await scene.raw.delete(KEY)
        await scene.scale(5)
        assert len(await scene.instances()) == 1
        assert scene.failed

    play(story)


def test_decisions_leave_traces_with_their_reasons() -> None:
    async def story(scene: Scene) -> None:
        await scene.apply(instances=3)
        await scene.scale(1)
        traces = [entry.value for entry in (await TRACE.list(scene.raw)).entries]
        assert [(trace.what, trace.why) for trace in traces] == [
            ("made", "instances 1, 2, 3: 0 of 3 existed"),
            ("removed", "instances 3, 2: 1 are requested"),
        ]
        assert {trace.subject for trace in traces} == {WORKLOAD.fill(workload="web")}
        assert {trace.fence for trace in traces} == {scene.leadership.fence}

    play(story)


# What a change costs


def test_a_change_costs_as_much_as_it_changes_however_many_there_are() -> None:
    async def story(scene: Scene) -> None:
        await scene.apply(instances=600)
        await asyncio.sleep(5)
        rolls, store = scene.controller._rolls, scene.store
        looks, writes = [0], [0]
        look, txn = rolls._look, store.txn

        def counting(instance: str) -> None:
            looks[0] += 1
            look(instance)

        async def sent(*args: Any) -> Any:
            writes[0] += 1
            return await txn(*args)

        rolls._look, store.txn = counting, sent  # type: ignore[method-assign, assignment]
        id_ = (await scene.instances())[300].vm
        await scene.seen(id_)
        assert (looks[0], writes[0]) == (1, 0)
        assert scene.controller._rolls.roll("web").count(WorkloadInstanceState.KEPT) == 600
        await scene.scale(601)
        assert (looks[0], writes[0]) == (3, 1), "an index and a machine, in one write"
        await scene.raw.txn([], [ALIVE.put(Heartbeat(holder="n9", started_at=0.0), node="n9")])
        await asyncio.sleep(1)
        assert looks[0] == 3, "a node that has none of them is nothing to them"

    play(story)


# The service


def test_a_repeated_apply_is_done_once_and_one_from_an_old_revision_is_not() -> None:
    async def story(scene: Scene) -> None:
        wanted = WorkloadApply(name="web", spec=SPEC, instances=2)
        request = Request(HOSTLER, key="k", fingerprint="f")
        first = await scene.service.apply(request, wanted)
        again = await scene.service.apply(request, wanted)
        assert (first.status, again.status, again.replayed) == (201, 201, True)
        assert again.value.revision == first.revision
        same = await scene.service.apply(Request(HOSTLER), wanted)
        assert (same.status, same.revision) == (200, first.revision)
        with pytest.raises(Stale):
            await scene.service.apply(Request(HOSTLER, if_match=1), wanted)
        entry = await WORKLOAD.get(scene.raw, workload="web")
        assert entry is not None
        # A field of a later release stays.
        later = Workload.decode(entry.value.encode()[:-1] + b',"later":1}')
        await WORKLOAD.replace(scene.raw, entry, later)
        await scene.service.scale(Request(HOSTLER), "web", WorkloadScale(instances=3))
        kept = await scene.raw.get(entry.key)
        assert kept is not None
        assert b'"later":1' in kept.value

    play(story)


def test_two_who_scale_at_once_both_have_their_say() -> None:
    async def story(scene: Scene) -> None:
        await scene.apply(instances=1)
        await asyncio.gather(
            scene.service.scale(Request(HOSTLER), "web", WorkloadScale(instances=4)),
            scene.service.scale(Request(HOSTLER), "web", WorkloadScale(enabled=False)),
        )
        entry = await WORKLOAD.get(scene.raw, workload="web")
        assert entry is not None
        assert (entry.value.instances, entry.value.enabled, entry.value.generation) == (4, False, 3)
        await scene.service.delete(Request(HOSTLER), "web")
        with pytest.raises(Conflict, match="being deleted"):
            await scene.service.scale(Request(HOSTLER), "web", WorkloadScale(instances=4))

    play(story)

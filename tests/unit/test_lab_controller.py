"""The leader's work on labs: each step alone, and where something stands in its way."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest
from controller_world import Leader, World, play
from msgspec.structs import replace

from hostler.engine.decision_recorder import Tracer
from hostler.engine.labs import state_machine
from hostler.engine.labs.admission import UNPLACED
from hostler.engine.labs.catalogue import digest, shape_of
from hostler.engine.labs.controller import REST, LabController
from hostler.engine.labs.decide import KEPT, SPARE, Act, LabConditions, decide, kept_until
from hostler.engine.labs.state_machine import LabStart
from hostler.engine.labs.transactions import Claim
from hostler.engine.runtime.env import ControllerEnv
from hostler.errors import LeadershipLost
from hostler.keys.families import COMMAND, HANDLE, NAME, QUOTA, TRACE, VM
from hostler.keys.lab import LAB, LAB_CATALOGUE
from hostler.model.access import Quota
from hostler.model.inventory import Capacity
from hostler.model.lab import ORG, LabCatalogue, LabEvent, LabPhase, LabTemplate, LabUser
from hostler.model.node import ImageNeeds, VmCommand
from hostler.model.vm import MachineState, Readiness, Step, VirtualMachine, VmHandle

if TYPE_CHECKING:
    from hostler.engine.labs.transactions import Pool

CATALOGUE = LabCatalogue(
    default=LabTemplate(life=1000.0, grace=100.0, warn=200.0, ssh_keys=("ssh-ed25519 A",), provider="qemu", cpus=2)
)
RUNNING, STOPPING, WAITING = LabPhase.RUNNING, LabPhase.STOPPING, LabPhase.WAITING


# What is decided


def provisioned(at: float = 0.0) -> LabUser:
    record = state_machine.start(None, "ada", LabStart(5, switch=False), catalogue=CATALOGUE, now=at)
    return state_machine.admit(record, "v", CATALOGUE.default, at)


def machine(**changes: Any) -> VirtualMachine:
    fields: dict[str, Any] = {"id": "v", "name": "n", "org": ORG, "project": "ada", "created_at": 0.0}
    spec = shape_of(CATALOGUE.default, ())
    return VirtualMachine(**{**fields, "spec": spec, "expires_at": 1100.0 + SPARE, **changes})


def handle(state: MachineState = MachineState.RUNNING, **changes: Any) -> VmHandle:
    ready = Readiness(step=Step.AVAILABLE, since=0.0) if state is MachineState.RUNNING else None
    return VmHandle(**{"id": "v", "node": "n1", "state": state, "seen_at": 0.0, "readiness": ready, **changes})


def decided(record: LabUser, vm: VirtualMachine | None, seen: VmHandle | None, now: float) -> Any:
    return decide(record, vm, seen, LabConditions(catalogue=CATALOGUE), now=now)


def test_what_is_seen_is_written_once() -> None:
    step = decided(provisioned(), machine(), handle(), 1.0)
    assert step.act is Act.WRITE
    assert step.record.lab.phase is RUNNING
    assert step.record.news[-1].event is LabEvent.AVAILABLE
    again = decided(step.record, machine(), handle(), 2.0)
    assert (again.act, again.until) == (Act.NOTHING, 800.0)


def test_l48_a_lab_may_end_when_nobody_comes_back_to_its_terminal() -> None:
    """L48: five minutes after the last terminal; not where nobody was there, nor before this leader has waited."""
    ends = LabCatalogue(default=replace(CATALOGUE.default, end_with_terminal=True))
    record = state_machine.observe(provisioned(), handle(), 1.0)
    assert decide(record, machine(), handle(), LabConditions(catalogue=ends), now=700.0).act is Act.NOTHING, (
        "nobody was there yet"
    )
    record = state_machine.record_attendance(record, 1, 100.0, 101.0)
    assert state_machine.record_attendance(record, 1, 99.0, 102.0) is record, "an older note came late"
    assert state_machine.record_attendance(record, 2, 200.0, 201.0) is record, "it is about another lab"
    step = decide(record, machine(), handle(), LabConditions(catalogue=ends), now=399.0)
    assert (step.act, step.until) == (Act.NOTHING, 400.0)
    over = decide(record, machine(), handle(), LabConditions(catalogue=ends), now=400.0)
    assert over.act is Act.DELETE
    assert over.record is not None
    assert over.record.lab is not None
    assert over.record.lab.ending is LabEvent.STOPPED
    assert "terminal" in over.record.lab.ending_reason
    back = state_machine.record_attendance(record, 1, 390.0, 390.0)
    assert decide(back, machine(), handle(), LabConditions(catalogue=ends), now=400.0).until == 690.0
    restarted = decide(record, machine(), handle(), LabConditions(catalogue=ends, since=350.0), now=400.0)
    assert (restarted.act, restarted.until) == (Act.NOTHING, 650.0)
    assert decide(record, machine(), handle(), LabConditions(catalogue=CATALOGUE), now=700.0).act is Act.NOTHING, (
        "it is an option"
    )


def test_it_is_warned_once_and_ends_after_its_grace() -> None:
    record = state_machine.observe(provisioned(), handle(), 1.0)
    step = decided(record, machine(), handle(), 800.0)
    assert (step.act, step.record.news[-1].event) == (Act.WRITE, LabEvent.EXPIRES_SOON)
    again = decided(step.record, machine(), handle(), 801.0)
    assert (again.act, again.until) == (Act.NOTHING, 1100.0)
    over = decided(step.record, machine(), handle(), 1100.0)
    assert (over.act, over.record.lab.ending) == (Act.DELETE, LabEvent.EXPIRED)


def test_it_is_warned_in_the_second_half_of_its_life_at_the_earliest() -> None:
    early = LabCatalogue(default=replace(CATALOGUE.default, warn=5000.0))
    record = state_machine.observe(provisioned(), handle(), 1.0)
    step = decide(record, machine(), handle(), LabConditions(catalogue=early), now=2.0)
    assert (step.act, step.until) == (Act.NOTHING, 500.0)
    step = decide(record, machine(), handle(), LabConditions(catalogue=early), now=500.0)
    assert (step.act, step.record.news[-1].event) == (Act.WRITE, LabEvent.EXPIRES_SOON)  # type: ignore[union-attr]


def test_an_extension_prolongs_its_machine() -> None:
    record = state_machine.extend(state_machine.observe(provisioned(), handle(), 1.0), "ada", 10, None, now=2.0)
    assert decided(record, machine(), handle(), 3.0).act is Act.KEEP
    assert decided(record, machine(expires_at=1700.0 + SPARE), handle(), 3.0).act is Act.NOTHING


def test_the_limit_counts_from_when_a_node_has_room() -> None:
    pending = handle(MachineState.PENDING, node="", detail="no room")
    step = decided(provisioned(), machine(), pending, 599.0)
    assert step.act is Act.WRITE
    assert decided(provisioned(), machine(), pending, 601.0).act is Act.WRITE, "it was never seen to be without a node"
    waiting = step.record
    assert decided(waiting, machine(), pending, 700.0).act is Act.KEEP, "its end has moved on"
    moved = machine(expires_at=1599.0 + 100.0 + SPARE)
    still = decided(waiting, moved, pending, 700.0)
    assert (still.act, still.until) == (Act.NOTHING, 1099.0), "that is when its end moves on again"
    placed = decided(waiting, moved, handle(MachineState.CREATING), 700.0).record
    assert placed.lab.provisioned_by == 1300.0
    late = LabCatalogue(default=replace(CATALOGUE.default, life=5000.0))
    slow = replace(placed, lab=replace(placed.lab, expires_at=5000.0, grace=0.0))
    seen = handle(MachineState.CREATING)
    over = decide(slow, machine(expires_at=5000.0 + SPARE), seen, LabConditions(catalogue=late), now=1300.0)
    assert (over.act, over.record.lab.ending) == (Act.DELETE, LabEvent.FAILED)
    assert "creating" in over.record.lab.ending_reason


def test_a_machine_that_failed_three_times_in_a_row_ends_the_lab() -> None:
    failed = handle(MachineState.FAILED, failures=2, detail="no kernel")
    assert decided(provisioned(), machine(), failed, 5.0).act is Act.WRITE
    step = decided(provisioned(), machine(), replace(failed, failures=3), 5.0)
    assert (step.act, step.record.lab.ending_reason) == (Act.DELETE, "its machine failed: no kernel")


def test_a_machine_that_goes_or_is_gone_ends_the_lab() -> None:
    going = decided(provisioned(), machine(deleting=True), handle(), 5.0)
    assert (going.act, going.record.lab.phase) == (Act.WRITE, STOPPING)
    gone = decided(provisioned(), None, None, 5.0)
    assert (gone.act, gone.record.lab) == (Act.GONE, None)
    assert gone.record.news[-1].reason == "its machine was deleted"
    assert decided(going.record, machine(deleting=True), handle(), 6.0).act is Act.NOTHING
    off = decided(going.record, machine(deleting=True), handle(MachineState.STOPPED), 6.0)
    assert (off.act, off.record.lab.cloud_status, off.record.lab.phase) == (Act.WRITE, "stopped", STOPPING)
    assert decided(going.record, machine(), handle(), 6.0).act is Act.DELETE
    assert decided(going.record, None, None, 6.0).act is Act.GONE


def test_a_record_without_a_lab_is_kept_for_a_day_and_an_hour() -> None:
    record = LabUser(user="ada", changed_at=10.0)
    assert decided(record, None, None, 9.0 + KEPT).until == 10.0 + KEPT
    assert decided(record, None, None, 10.0 + KEPT).act is Act.FORGET


def test_two_shapes_have_one_digest_exactly_if_they_are_equal() -> None:
    shapes = [LabTemplate(cpus=cpus, ssh_keys=keys) for cpus in (1, 2) for keys in ((), ("k",))]
    assert len({digest(template) for template in shapes}) == 4
    assert digest(shapes[0]) == digest(LabTemplate(title="t", warm=3, life=1.0))
    assert len(digest(shapes[0])) == 12


# What is done


async def led(world: World, name: str = "l1", **options: Any) -> tuple[Leader, LabController]:
    leader = await world.leader(name)
    numbers = iter(range(10**6))
    env = ControllerEnv(
        store=leader.store,
        clock=world.clock,
        rng=random.Random(1),
        new_id=lambda: f"{name}-{next(numbers):08}",
        tracer=options.pop("tracer", None),
        tell=leader.told.append,
    )
    options = {"catalogue": CATALOGUE, "keys": ("ssh-ed25519 T",), **options}
    labs = LabController(env, leader.view, **options)
    await labs.start(leader)
    leader._tasks.append(asyncio.create_task(leader._run(labs), name=f"{name}: labs"))
    return leader, labs


async def wished(world: World, user: str, *, before: float = 0.0) -> LabUser:
    entry, now = await LAB.get(world.raw, user=user), world.clock.wall() - before
    record = state_machine.start(
        None if entry is None else entry.value, user, LabStart(5, switch=False), catalogue=CATALOGUE, now=now
    )
    await world.raw.put(LAB.fill(user=user), LAB.encode(record))
    return record


async def record_of(world: World, user: str) -> LabUser:
    entry = await LAB.get(world.raw, user=user)
    assert entry is not None
    return entry.value


async def machines_of(world: World, user: str) -> list[VirtualMachine]:
    return [entry.value for entry in (await VM.list(world.raw, org=ORG, project=user)).entries]


def test_a_lab_gets_a_machine_of_its_template() -> None:
    async def story(world: World) -> None:
        await led(world)
        await wished(world, "ada")
        await asyncio.sleep(1)
        (vm,), record = await machines_of(world, "ada"), await record_of(world, "ada")
        assert record.lab is not None
        assert (vm.id, vm.name) == (record.lab.vm, "lab-5-1")
        assert vm.labels == {"lab": "5", "webuserid": "ada", "shape": digest(CATALOGUE.default)}
        assert vm.spec.ssh_keys == ("ssh-ed25519 A", "ssh-ed25519 T")
        assert (vm.spec.user, vm.spec.cpus, vm.node_labels) == ("student", 2, {"machines": "qemu"})
        assert vm.expires_at == kept_until(record.lab)
        name = await NAME.get(world.raw, org=ORG, project="ada", name="lab-5-1")
        assert name is not None
        assert name.value == vm.id

    play(story)


def test_a_lab_that_no_node_can_have_as_it_is_written_is_told_once_and_is_an_event() -> None:
    async def story(world: World) -> None:
        template = replace(CATALOGUE.default, memory_mib=64, user_data="#cloud-config\n", provider="")
        tracer = Tracer(world.clock, lambda: "t", "labs")
        leader, _ = await led(world, catalogue=LabCatalogue(labs={"5": template}), tracer=tracer)
        await asyncio.sleep(10)
        assert not [line for line in leader.told if "lab 5" in line], "no node is there that could say it"
        needs = {"tiny": ImageNeeds(memory_mib=128, default=True, seeding="firmware")}
        await world.node("n1", images=("", "tiny"), image_needs=needs)
        await asyncio.sleep(10)
        await world.node("n2", images=("", "tiny"), image_needs=needs)
        await asyncio.sleep(10)
        memory, data = [line for line in leader.told if "lab 5" in line]
        assert "needs 128 MiB of memory, and it has 64" in memory
        assert "user_data is not run" in data
        events = [entry.value for entry in (await TRACE.list(world.raw)).entries]
        (event,) = [one for one in events if one.what == "catalogue_problem"]
        assert "user_data is not run" in event.why

    play(story)


def test_a_name_that_somebody_has_is_not_in_the_way() -> None:
    async def story(world: World) -> None:
        await world.raw.put(NAME.fill(org=ORG, project="ada", name="lab-5-1"), NAME.encode("another"))
        await led(world)
        await wished(world, "ada")
        await asyncio.sleep(1)
        (vm,) = await machines_of(world, "ada")
        assert vm.name.startswith("lab-5-1-")

    play(story)


def test_a_quota_of_the_user_counts_and_one_that_is_too_small_is_told() -> None:
    async def story(world: World) -> None:
        for user, cpus in (("ada", 1), ("bob", 2)):
            quota = Quota(vms=1, cpus=cpus)
            await world.raw.put(QUOTA.fill(org=ORG, project=user), QUOTA.encode(quota))
        await led(world)
        await wished(world, "ada")
        await wished(world, "bob")
        await asyncio.sleep(1)
        record = await record_of(world, "ada")
        assert (record.lab, record.news[-1].event) == (None, LabEvent.FAILED)
        assert "quota" in record.news[-1].reason
        assert not await machines_of(world, "ada")
        quota = await QUOTA.get(world.raw, org=ORG, project="bob")  # type: ignore[assignment]
        assert quota.value.used_vms == 1  # type: ignore[attr-defined]

    play(story)


def test_a_leader_whose_record_was_taken_writes_nothing_more() -> None:
    async def story(world: World) -> None:
        old, _ = await led(world)
        await world.raw.put("sysvvm/1/1", b'{"somebody": "else"}')
        record = await wished(world, "ada")
        await asyncio.sleep(3)
        assert await record_of(world, "ada") == record
        assert not await machines_of(world, "ada")
        assert isinstance(old.failed, LeadershipLost)

    play(story)


def test_the_catalogue_of_who_leads_is_written_down_and_none_is_no_reason_to_change_it() -> None:
    async def story(world: World) -> None:
        first, _ = await led(world, "a", catalogue=None)
        entry = await LAB_CATALOGUE.get(world.raw, name="default")
        assert entry is not None
        assert entry.value == LabCatalogue()
        await first.end()
        world.leaders.remove(first)
        second, _ = await led(world, "b", catalogue=CATALOGUE)
        await second.end()
        world.leaders.remove(second)
        await led(world, "c", catalogue=None)
        entry = await LAB_CATALOGUE.get(world.raw, name="default")
        assert entry is not None
        assert entry.value == CATALOGUE

    play(story)


def test_nothing_is_done_about_a_record_that_cannot_be_read() -> None:
    async def story(world: World) -> None:
        await led(world)
        await wished(world, "ada")
        await asyncio.sleep(1)
        (vm,) = await machines_of(world, "ada")
        await world.raw.put(LAB.fill(user="ada"), b"{")
        await asyncio.sleep(400)
        assert await machines_of(world, "ada") == [vm]

    play(story)


def test_a_lab_gets_no_machine_while_an_older_one_of_its_user_goes() -> None:
    async def story(world: World) -> None:
        old = replace(machine(id="old", name="old", deleting=True), labels={"lab": "5"})
        place: dict[str, Any] = {"org": ORG, "project": "ada", "vm": "old"}
        there = replace(handle(node="n9"), id="old")
        command = VmCommand(org=ORG, project="ada", vm="old", spec=old.spec, deleting=True)
        then = [VM.put(old, **place), HANDLE.put(there, **place), COMMAND.put(command, node="n9", vm="old")]
        await world.raw.txn([], then)
        await led(world)
        await wished(world, "ada")
        await asyncio.sleep(400)
        assert [vm.id for vm in await machines_of(world, "ada")] == ["old"]
        gone = [VM.delete(**place), HANDLE.delete(**place), COMMAND.delete(node="n9", vm="old")]
        await world.raw.txn([], gone)
        await asyncio.sleep(1)
        (vm,) = await machines_of(world, "ada")
        assert vm.id != "old"

    play(story)


def test_a_write_whose_answer_is_lost_is_read_up_and_not_done_twice() -> None:
    for kind in ("lost", "never"):
        for nth in (1, 2):

            async def story(world: World, kind: Any = kind, nth: int = nth) -> None:
                leader, labs = await led(world)
                leader.store.script("txn", kind, prefix=LAB.prefix(), nth=nth)
                await wished(world, "ada")
                await asyncio.sleep(5)
                (vm,) = await machines_of(world, "ada")
                place: dict[str, Any] = {"org": ORG, "project": "ada", "vm": vm.id}
                seen = replace(handle(node="n9"), id=vm.id)
                command = VmCommand(org=ORG, project="ada", vm=vm.id, spec=vm.spec)
                told = COMMAND.put(command, node="n9", vm=vm.id)  # or the leader places it anew
                await world.raw.txn([], [HANDLE.put(seen, **place), told])
                await asyncio.sleep(5)
                record = await record_of(world, "ada")
                assert record.lab is not None
                assert (record.lab.vm, record.lab.phase) == (vm.id, RUNNING)
                events = [news.event for news in record.news]
                assert events == [LabEvent.REQUESTED, LabEvent.STARTED, LabEvent.AVAILABLE]
                assert labs.counters["retries"] == 1

            play(story)


def test_mirrors_that_are_behind_let_nobody_in_beyond_the_limit() -> None:
    async def story(world: World) -> None:
        leader, _ = await led(world, catalogue=replace(CATALOGUE, at_once=1))
        mirror, held = leader.view.labs, []  # type: ignore[var-annotated]
        take = mirror._take
        mirror._take = held.append  # type: ignore[method-assign]
        await wished(world, "ada")
        await wished(world, "bob", before=10.0)  # by the clock of another door
        await wished(world, "ada")
        await asyncio.sleep(0.1)
        first, second, third = held
        for changes in ((first, second), (third,)):  # the third is older than what is written when the first is seen
            for change in changes:
                take(change)
            await asyncio.sleep(2)
            assert [entry.parts["project"] for entry in (await VM.list(world.raw, org=ORG)).entries] == ["ada"]
        mirror._take = take  # type: ignore[method-assign]
        for change in held[3:]:
            take(change)
        await asyncio.sleep(2)
        assert [vm.labels["lab"] for vm in await machines_of(world, "ada")] == ["5"]
        assert (await record_of(world, "bob")).news[-1].event is LabEvent.WAITING

    play(story)


def test_one_change_costs_what_it_touches() -> None:
    async def story(world: World) -> None:
        _, labs = await led(world)
        await world.node("n1", labels={"machines": "qemu"}, capacity=Capacity(cpus=200, memory_mib=10**6))
        for number in range(50):
            await wished(world, f"u{number:02}")
        await asyncio.sleep(20)
        assert (labs.counters["created"], labs.state()["running_now"]) == (50, 50)
        writes, looks = dict(labs.counters), []
        seen_before = labs._sight.of
        labs._sight.of = lambda user: looks.append(user) or seen_before(user)  # type: ignore[method-assign, func-returns-value]
        await world.raw.put(
            LAB.fill(user="u07"), LAB.encode(state_machine.stop(await record_of(world, "u07"), "u07", None, now=9.0))
        )
        await asyncio.sleep(20)
        assert set(looks) == {"u07"}
        assert labs.counters["delete"] == writes.get("delete", 0) + 1

    play(story)


# With machines that are ready ahead


class Shelf:
    """A pool with one machine, which does not know of the store."""

    def __init__(self, *, there: bool) -> None:
        self.there, self.told = there, []  # type: ignore[var-annotated]

    async def start(self, _: Any) -> None:
        self.told.append("start")

    async def run(self) -> None:
        await asyncio.sleep(1e9)

    async def stop(self) -> None:
        self.told.append("stop")

    async def claim(self, *_: Any) -> Any:
        when = VM.exists(org="labs-pool", project="5", vm="warm")
        return Claim("warm", [] if self.there else [when], [NAME.put("warm", org=ORG, project="ada", name="w")])

    def settle(self, _: Any, *, written: bool) -> None:
        self.told.append(written)

    def make_room(self, *_: Any) -> None:
        self.told.append("room")


def test_a_claim_is_one_transaction_with_the_record_and_is_settled() -> None:
    async def story(world: World) -> None:
        shelf = Shelf(there=True)
        pool: Pool = shelf
        await led(world, pool=pool)
        await wished(world, "ada")
        await asyncio.sleep(0.5)
        assert shelf.told[:2] == ["start", True]
        name = await NAME.get(world.raw, org=ORG, project="ada", name="w")
        assert name is not None
        lab_entry = await LAB.get(world.raw, user="ada")
        assert lab_entry is not None
        assert any(news.event is LabEvent.STARTED for news in lab_entry.value.news)

    play(story)


def test_a_claim_that_does_not_hold_is_given_back_and_a_machine_is_made() -> None:
    async def story(world: World) -> None:
        shelf = Shelf(there=False)
        pool: Pool = shelf
        await led(world, pool=pool)
        await wished(world, "ada")
        await asyncio.sleep(0.5)
        assert shelf.told[:5] == ["start", False, False, False, "room"], "and no node has room for it"
        assert set(shelf.told[5:]) <= {"room"}, "which it says at each look"
        assert len(await machines_of(world, "ada")) == 1

    play(story)


# What cannot be read


def test_a_lab_whose_record_nobody_can_read_counts_as_one_that_is_there() -> None:
    async def story(world: World) -> None:
        one = replace(CATALOGUE, at_once=1)
        await world.node("n1", labels={"machines": "qemu"}, capacity=Capacity(cpus=200, memory_mib=10**6))
        first, _ = await led(world, catalogue=one)
        await wished(world, "ada")
        await asyncio.sleep(1)
        await world.raw.put(LAB.fill(user="ada"), b"rubbish")
        await wished(world, "bob")
        await asyncio.sleep(5)
        assert not await machines_of(world, "bob")
        await first.end()
        await led(world, "l2", catalogue=one)  # who never could read it
        await asyncio.sleep(30)
        assert len(await machines_of(world, "ada")) == 1
        assert not await machines_of(world, "bob")
        await world.raw.delete(LAB.fill(user="ada"))
        await asyncio.sleep(30)
        assert not await machines_of(world, "ada")
        assert len(await machines_of(world, "bob")) == 1

    play(story)


def test_while_nobody_can_read_which_labs_there_are_none_is_begun() -> None:
    async def story(world: World) -> None:
        key = LAB_CATALOGUE.fill(name="default")
        await world.node("n1", labels={"machines": "qemu"}, capacity=Capacity(cpus=200, memory_mib=10**6))
        await world.raw.put(key, b"rubbish")
        await led(world, catalogue=None)
        await wished(world, "ada")
        await asyncio.sleep(5)
        assert not await machines_of(world, "ada")
        await world.raw.put(key, LAB_CATALOGUE.encode(CATALOGUE))
        await asyncio.sleep(5)
        (vm,) = await machines_of(world, "ada")
        assert vm.spec.cpus == CATALOGUE.default.cpus
        for broken in (b"rubbish", None):
            await (world.raw.delete(key) if broken is None else world.raw.put(key, broken))
            await wished(world, f"user-{broken is None}")
            await asyncio.sleep(5)
            (vm,) = await machines_of(world, f"user-{broken is None}")
            assert vm.spec.cpus == CATALOGUE.default.cpus, "as it was last"

    play(story)


@pytest.mark.parametrize("why", ["an older machine of the user is still going", "the quota cannot be read"])
def test_labs_that_cannot_use_their_turn_hold_up_nobody(why: str) -> None:
    async def story(world: World) -> None:
        node = await world.node("n1", labels={"machines": "qemu"}, capacity=Capacity(cpus=200, memory_mib=10**6))
        await node.fall_silent()
        users = [f"a{number}" for number in range(UNPLACED)]
        for user in users:
            place: dict[str, Any] = {"org": ORG, "project": user, "vm": f"old-{user}"}
            old = machine(id=f"old-{user}", name="old", project=user, labels={"lab": "5"}, deleting=True)
            if "quota" in why:
                await world.raw.put(QUOTA.fill(org=ORG, project=user), b"rubbish")
                continue
            command = VmCommand(org=ORG, project=user, vm=old.id, spec=old.spec, deleting=True)
            await world.raw.put(VM.fill(**place), VM.encode(old))
            await world.raw.put(HANDLE.fill(**place), HANDLE.encode(handle(id=old.id)))
            await world.raw.put(COMMAND.fill(node="n1", vm=old.id), COMMAND.encode(command))
        await led(world)
        for user in users:
            await wished(world, user)
        await wished(world, "bob")
        await asyncio.sleep(5)
        assert len(await machines_of(world, "bob")) == 1
        if "quota" in why:
            await world.raw.delete(QUOTA.fill(org=ORG, project="a1"))
            await world.raw.delete(LAB.fill(user="bob"))  # whose machine found no room
            await asyncio.sleep(2 * REST)
            assert len(await machines_of(world, "a1")) == 1

    play(story)

"""Migration in virtual time: what is moved, what is left, and that nothing deleted comes back."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from service_scene import contents

from hostler.drivers.store.faulty import FaultyStore
from hostler.drivers.store.memory import MemoryStore
from hostler.engine.migration import Migrated, migrate
from hostler.engine.migration_table import BEFORE, MOVES, Way
from hostler.errors import Damaged, HostlerError, Refused, Unavailable, Uncertain
from hostler.keys.families import (
    BLUEPRINT,
    CLUSTER,
    COMMAND,
    EPOCH,
    FENCE,
    HANDLE,
    INSTANCE,
    KEYS,
    LOCK,
    MEMBER,
    MIGRATION,
    MOVED,
    NAME,
    ORG_QUOTA,
    QUOTA,
    SLICE_OWNER,
    TARGET,
    TOKEN,
    USER,
    VM,
    WORKLOAD,
)
from hostler.keys.lab import LAB, LAB_CATALOGUE
from hostler.model.access import Quota, Token, TokenKind
from hostler.model.deployment import Blueprint, SliceSpec
from hostler.model.inventory import Capacity, User
from hostler.model.lab import Lab, LabCatalogue, LabPhase, LabUser
from hostler.model.node import Cluster, EpochKind, Lifecycle, NodeRecord, OffConfirmation, VmCommand
from hostler.model.rollout import SliceOwner
from hostler.model.vm import LockInfo, MachineState, VirtualMachine, VmHandle, VmSpec
from hostler.model.workload import Target, Workload, WorkloadInstance
from hostler.ports.store import Put
from hostler.testing import VirtualClock, run_virtual

SPEC = VmSpec(cpus=2, memory_mib=512)
COUNT = 5


def ids(number: int) -> dict[str, Any]:
    return {"org": "acme", "project": f"p{number % 2}", "vm": f"vm-{number}"}


def machine(number: int, name: str | None = None) -> VirtualMachine:
    parts = ids(number)
    return VirtualMachine(
        id=parts["vm"],
        name=f"name{number}" if name is None else name,
        org="acme",
        project=parts["project"],
        spec=SPEC,
        created_at=1.0,
    )


async def written(store: Any, *puts: Any) -> None:
    for put in puts:
        await store.put(put.key, put.value)


async def fill(store: Any, count: int = COUNT) -> None:
    """Machines of a state file: each with its handle, every other with a command, and one locked."""
    for number in range(count):
        parts = ids(number)
        handle = VmHandle(id=parts["vm"], node="local-1", state=MachineState.RUNNING, seen_at=1.0)
        await written(store, VM.put(machine(number), **parts), HANDLE.put(handle, **parts))
        if number % 2:
            command = VmCommand(org="acme", project=parts["project"], vm=parts["vm"], spec=SPEC)
            await written(store, COMMAND.put(command, node="local-1", vm=parts["vm"]))
    await written(store, LOCK.put(LockInfo(timestamp=1, node_id="n"), **ids(0)))


class Scene:
    """A state file and a cluster, both in memory; `new` is the cluster with faults."""

    def __init__(self, old: MemoryStore, raw: MemoryStore, new: FaultyStore, clock: VirtualClock) -> None:
        self.old, self.raw, self.new, self.clock = old, raw, new, clock
        self._numbers = iter(range(1, 1000))

    async def migrate(self) -> Migrated:
        return await migrate(
            self.old, self.new, source="/state.json", clock=self.clock, new_id=lambda: f"cluster-{next(self._numbers)}"
        )

    async def machines(self) -> set[str]:
        return {entry.value.id for entry in (await VM.list(self.raw)).entries}


def play(story: Any, *, seed: int = 0) -> None:
    async def main() -> None:
        clock = VirtualClock()
        raw = MemoryStore(clock=clock)
        async with (
            MemoryStore(clock=clock) as old,
            FaultyStore(raw, random.Random(seed), clock=clock) as new,
        ):
            await story(Scene(old, raw, new, clock))

    run_virtual(main, seed=seed)


def test_machines_come_with_all_that_is_theirs_and_locks_stay_behind() -> None:
    async def story(scene: Scene) -> None:
        await fill(scene.old)
        before = await contents(scene.old)
        done = await scene.migrate()
        after = await contents(scene.raw)
        for key, value in before.items():
            assert (key in after) != key.startswith(LOCK.prefix())
            assert key.startswith(LOCK.prefix()) or after[key] == value
        names = {entry.parts["name"]: entry.value for entry in (await NAME.list(scene.raw)).entries}
        assert names == {f"name{number}": f"vm-{number}" for number in range(COUNT)}
        assert str(done) == "5 machines were moved into the cluster"
        assert await CLUSTER.get(scene.raw) is not None
        kept = await contents(scene.old)
        assert {key: value for key, value in kept.items() if key not in (CLUSTER.fill(), MOVED.fill())} == before

    play(story)


def lab_of(user: str, vm: str, phase: LabPhase = LabPhase.RUNNING) -> LabUser:
    lab = Lab(lab_id=5, generation=1, phase=phase, requested_at=1.0, life=60.0, vm=vm)
    return LabUser(user=user, generation=1, lab=lab, changed_at=1.0)


async def fill_labs(store: Any) -> dict[str, bytes]:
    """A lab with its machine and one that somebody made beside it, one that waits, a user without one, rubbish."""
    for user, vm in (("ada", "a-own"), ("ada", "b-lab"), ("eve", "c-lab")):
        wish = msgspec.structs.replace(machine(0, vm), id=vm, org="labs", project=user)
        await written(store, VM.put(wish, org="labs", project=user, vm=vm))
    waits = lab_of("bob", "", LabPhase.WAITING)
    for record in (lab_of("ada", "b-lab"), waits, LabUser(user="mia", changed_at=1.0), lab_of("zoe", "gone")):
        await written(store, LAB.put(record, user=record.user))
    await store.put(LAB.fill(user="eve"), b"rubbish")
    await written(store, LAB_CATALOGUE.put(LabCatalogue(at_once=7), name="default"))
    prefixes = (LAB.prefix(), LAB_CATALOGUE.prefix())
    return {kv.key: kv.value for prefix in prefixes for kv in (await store.range(prefix)).items}


def test_labs_come_with_their_machines_and_are_never_seen_without() -> None:
    async def story(scene: Scene) -> None:
        labs = await fill_labs(scene.old)
        seen: list[tuple[bool, bool]] = []

        async def watch() -> None:
            async with scene.raw.watch("/", start_revision=1) as events:
                async for _ in events:
                    lab, vm = LAB.fill(user="ada"), VM.fill(org="labs", project="ada", vm="b-lab")
                    seen.append((await scene.raw.get(lab) is not None, await scene.raw.get(vm) is not None))

        watching = asyncio.create_task(watch())
        await scene.migrate()
        await asyncio.sleep(1)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        assert set(seen) == {(False, False), (True, True)}
        assert {key: value for key, value in (await contents(scene.raw)).items() if key in labs} == labs

    play(story)


def test_a_lab_that_the_cluster_has_is_left_as_it_is() -> None:
    async def story(scene: Scene) -> None:
        await fill_labs(scene.old)
        theirs = lab_of("ada", "another")
        await written(scene.raw, LAB.put(theirs, user="ada"), LAB_CATALOGUE.put(LabCatalogue(), name="default"))
        await scene.migrate()
        entry, catalogue = await LAB.get(scene.raw, user="ada"), await LAB_CATALOGUE.get(scene.raw, name="default")
        assert entry is not None
        assert catalogue is not None
        assert (entry.value, catalogue.value.at_once) == (theirs, None)

    play(story)


@pytest.mark.parametrize(("nth", "come"), [(5, {"ada", "eve"}), (8, {"ada", "bob", "eve"})])
def test_a_lab_that_ended_in_the_cluster_does_not_come_back(nth: int, come: set[str]) -> None:
    async def story(scene: Scene) -> None:
        await fill_labs(scene.old)
        scene.new.script("txn", "unavailable", nth=nth)
        with pytest.raises(Unavailable):
            await scene.migrate()
        there = set(await contents(scene.raw, LAB.prefix()))
        assert there == {LAB.fill(user=user) for user in come}
        for key in there:
            await scene.raw.delete(key)
        await scene.migrate()
        assert set(await contents(scene.raw, LAB.prefix())) == set(await contents(scene.old, LAB.prefix())) - there

    play(story)


def test_it_happens_once() -> None:
    async def story(scene: Scene) -> None:
        await fill(scene.old)
        await scene.migrate()
        await scene.raw.delete_prefix("/plasmavmc/")
        await fill(scene.old, COUNT + 3)
        before = await contents(scene.raw)
        again = await scene.migrate()
        assert again.before
        assert "before" in str(again)
        assert await contents(scene.raw) == before

    play(story)


def test_an_empty_file_leaves_its_marker_too() -> None:
    async def story(scene: Scene) -> None:
        assert str(await scene.migrate()) == "0 machines were moved into the cluster"
        await fill(scene.old)
        assert (await scene.migrate()).before
        assert await scene.machines() == set()

    play(story)


def test_what_stands_in_the_cluster_is_left_as_it_is() -> None:
    async def story(scene: Scene) -> None:
        await fill(scene.old)
        await written(scene.raw, VM.put(machine(2, "mine"), **ids(2)))
        done = await scene.migrate()
        kept = await VM.get(scene.raw, **ids(2))
        assert kept is not None
        assert kept.value.name == "mine"
        assert await HANDLE.get(scene.raw, **ids(2)) is None
        assert (done.record.moved, done.record.present) == (4, 1)
        assert "1 already existed and was left alone" in str(done)

    play(story)


def test_a_machine_whose_name_is_taken_comes_under_another() -> None:
    async def story(scene: Scene) -> None:
        await fill(scene.old)
        long = "n" * 63
        await written(scene.old, VM.put(machine(6, long), **ids(6)), VM.put(machine(8, "NAME0"), **ids(8)))
        await written(scene.raw, NAME.put("another", org="acme", project="p0", name=long))
        done = await scene.migrate()
        assert done.record.renamed == 2
        assert "under a new name" in str(done)
        for number in (0, 6, 8):
            moved = await VM.get(scene.raw, **ids(number))
            assert moved is not None
            assert len(moved.value.name) <= 63
            name = await NAME.get(scene.raw, org="acme", project="p0", name=moved.value.name)
            assert name is not None
            assert name.value == moved.value.id
        taken = await NAME.get(scene.raw, org="acme", project="p0", name=long)
        assert taken is not None
        assert taken.value == "another"

    play(story)


def test_what_cannot_be_read_is_moved_as_it_is() -> None:
    async def story(scene: Scene) -> None:
        await scene.old.put(VM.fill(org="a", project="b", vm="broken"), b"{")
        await scene.old.put(VM.prefix() + "stray", b"stray")
        await written(scene.old, VM.put(machine(0, ""), **ids(0)), VM.put(machine(1, "a/b"), **ids(1)))
        await scene.old.put(HANDLE.fill(**ids(0)), b"{")
        before = await contents(scene.old, "/plasmavmc/")
        await scene.migrate()
        assert await contents(scene.raw, "/plasmavmc/") == before
        assert (await NAME.list(scene.raw)).entries == ()

    play(story)


def test_a_cluster_that_has_an_id_keeps_it_and_two_files_are_two_migrations() -> None:
    async def story(scene: Scene) -> None:
        await fill(scene.old)
        await scene.migrate()
        identity = await CLUSTER.get(scene.raw)
        async with MemoryStore(clock=scene.clock) as second:
            await written(second, VM.put(machine(9), **ids(9)))
            other = Scene(second, scene.raw, scene.new, scene.clock)
            other._numbers = iter(range(500, 600))
            assert (await other.migrate()).record.moved == 1
        both = await CLUSTER.get(scene.raw)
        assert identity is not None
        assert both is not None
        assert (both.value.id, both.value.aliases) == (identity.value.id, ("cluster-500",))
        assert len((await MIGRATION.list(scene.raw)).entries) == 2

    play(story)


@pytest.mark.parametrize(("mine", "theirs", "then"), [(5, 0, 5), (5, 3, 5), (3, 5, 5)])
def test_fences_go_on_above_those_of_both(mine: int, theirs: int, then: int) -> None:
    async def story(scene: Scene) -> None:
        await fill(scene.old)
        await written(scene.old, FENCE.put(mine, n=1))
        await written(scene.raw, *([FENCE.put(theirs, n=1)] if theirs else []))
        await scene.migrate()
        found = await FENCE.get(scene.raw, n=1)
        assert found is not None
        assert found.value == then

    play(story)


def test_a_quota_of_the_cluster_is_counted_again() -> None:
    async def story(scene: Scene) -> None:
        await fill(scene.old)
        await written(scene.raw, QUOTA.put(Quota(vms=1, counted=True), org="acme", project="p0"))
        await scene.migrate()
        quota = await QUOTA.get(scene.raw, org="acme", project="p0")
        assert quota is not None
        assert not quota.value.counted

    play(story)


def test_pages_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    from hostler.engine import migration

    monkeypatch.setattr(migration, "PAGE", 2)

    async def story(scene: Scene) -> None:
        await fill(scene.old, 7)
        assert (await scene.migrate()).record.moved == 7
        assert len(await scene.machines()) == 7

    play(story)


def test_a_marker_that_vanishes_meanwhile_stops_it() -> None:
    async def story(scene: Scene) -> None:
        await fill(scene.old)
        inner = scene.raw.txn

        async def meddled(*args: Any) -> Any:
            if await scene.machines():
                await scene.raw.delete_prefix(MIGRATION.prefix())
            return await inner(*args)

        scene.raw.txn = meddled  # type: ignore[method-assign, assignment]
        with pytest.raises(Damaged, match="deleted while"):
            await scene.migrate()

    play(story)


# Nodes


def node(place: str = "here", **fields: Any) -> NodeRecord:
    capacity = Capacity(cpus=4, memory_mib=4096)
    record = NodeRecord(
        node="Local-1", lifecycle=Lifecycle.SHUTTING_DOWN, capacity=capacity, place=place, registered_at=1.0
    )
    return msgspec.structs.replace(record, **fields)


def test_a_node_with_machines_comes_with_its_record_and_one_without_stays_behind() -> None:
    async def story(scene: Scene) -> None:
        await fill(scene.old)
        off = OffConfirmation(by="ada", at=1.0)
        await written(scene.old, MEMBER.put(node(off=off), node="local-1"), MEMBER.put(node(), node="local-2"))
        await scene.migrate()
        (member,) = (await MEMBER.list(scene.raw)).entries
        assert member.value == node(awaited=True), "that it is off was said of it in another control plane"

    play(story)


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [(node("here"), node("there")), (None, node("there")), (node(""), node("there")), (node("here"), node(""))],
    ids=["elsewhere", "without a record", "from where is not known", "where is not known"],
)
def test_a_cluster_that_has_another_node_of_that_name_gets_nothing(mine: NodeRecord | None, theirs: NodeRecord) -> None:
    async def story(scene: Scene) -> None:
        await fill(scene.old)
        if mine is not None:
            await written(scene.old, MEMBER.put(mine, node="local-1"))
        await written(scene.raw, MEMBER.put(theirs, node="local-1"))
        before, file_before = await contents(scene.raw), await contents(scene.old)
        with pytest.raises(Refused, match=r"node Local-1: .* another storage location.* --rack"):
            await scene.migrate()
        assert await contents(scene.raw) == before
        assert {
            key: value for key, value in (await contents(scene.old)).items() if key != CLUSTER.fill()
        } == file_before

    play(story)


def test_the_same_node_that_is_in_the_cluster_already_gets_its_machines() -> None:
    async def story(scene: Scene) -> None:
        await fill(scene.old)
        await written(scene.old, MEMBER.put(node(), node="local-1"))
        await written(scene.raw, MEMBER.put(node(lifecycle=Lifecycle.ON_DUTY), node="local-1"))
        assert (await scene.migrate()).record.moved == COUNT
        member = await MEMBER.get(scene.raw, node="local-1")
        assert member is not None
        assert member.value.lifecycle is Lifecycle.ON_DUTY
        assert member.version > 1, "who looked for machines before they came would not look again"

    play(story)


def test_another_node_that_takes_the_name_meanwhile_gets_no_more_machines() -> None:
    async def story(scene: Scene) -> None:
        await fill(scene.old)
        await written(scene.old, MEMBER.put(node(), node="local-1"))
        assert await cut_at(scene, 3, done=True)
        await written(scene.raw, MEMBER.put(node("there"), node="local-1"))
        arrived = await contents(scene.raw)
        with pytest.raises(Refused, match="another storage location"):
            await scene.migrate()
        assert await contents(scene.raw) == arrived

    play(story)


def test_a_node_that_joins_between_two_looks_is_seen() -> None:
    """The record that was looked at is compared in the transaction that brings a machine to the node."""

    async def story(scene: Scene) -> None:
        await fill(scene.old)
        await written(scene.old, MEMBER.put(node(), node="local-1"))
        inner = scene.raw.txn

        async def joined(when: Any, then: Any, *more: Any) -> Any:
            if any(getattr(op, "key", "") == VM.fill(**ids(0)) for op in then):
                scene.raw.txn = inner  # type: ignore[method-assign]
                await written(scene.raw, MEMBER.put(node("there"), node="local-1"))
            return await inner(when, then, *more)

        scene.raw.txn = joined  # type: ignore[method-assign, assignment]
        with pytest.raises(Refused, match="another storage location"):
            await scene.migrate()
        assert await scene.machines() == set()

    play(story)


# What the file and the cluster say of each other


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("nth", range(1, COUNT + 3))
def test_a_file_is_marked_before_anything_leaves_it_and_its_id_is_the_clusters_only_at_the_end(
    nth: int, done: bool
) -> None:
    async def story(scene: Scene) -> None:
        await fill(scene.old)
        await written(scene.raw, CLUSTER.put(Cluster(id="theirs", created_at=1.0)))
        assert await cut_at(scene, nth, done=done)
        mark, identity = await MOVED.get(scene.old), await CLUSTER.get(scene.raw)
        assert mark is not None
        assert identity is not None
        assert (mark.value.cluster, mark.value.finished_at) == ("theirs", None)
        assert bool(identity.value.aliases) == (nth == COUNT + 2 and done)
        await scene.migrate()
        mark, identity = await MOVED.get(scene.old), await CLUSTER.get(scene.raw)
        assert mark is not None
        assert identity is not None
        assert mark.value.finished_at is not None
        assert (identity.value.id, identity.value.aliases) == ("theirs", ("cluster-1",))

    play(story)


def test_a_file_whose_machines_went_into_one_cluster_gives_none_to_another() -> None:
    async def story(scene: Scene) -> None:
        await fill(scene.old)
        await scene.migrate()
        async with MemoryStore(clock=scene.clock) as second:
            other = Scene(scene.old, second, FaultyStore(second, random.Random(0), clock=scene.clock), scene.clock)
            again = await other.migrate()
            assert "moved into cluster cluster-1, which is not this one" in str(again)
            assert await contents(second) == {}

    play(story)


# Everything else


def test_every_family_has_a_line_in_the_table_and_in_the_docs() -> None:
    assert set(MOVES) == set(KEYS)
    page = (Path(__file__).parents[2] / "docs" / "operating.md").read_text(encoding="utf-8")
    for key, way in MOVES.items():
        assert f"| `{key.template}` | {way.value} |" in page
    moving = {key for key, way in MOVES.items() if way in (Way.ABSENT, Way.ACCOUNT)}
    assert moving - set(BEFORE) == {LAB_CATALOGUE}


GOLDEN = Path(__file__).parents[1] / "upgrade" / "golden" / "0.1"


def one_of(family: Any) -> Put:
    """A record of the family, as a release wrote it."""
    parts = {part.name: {"int": 2}.get(part.kind, "r1") for part in family._template.parts}
    return Put(family.fill(**parts), (GOLDEN / f"{family.record.__name__}.json").read_bytes())


def test_all_other_records_come_and_what_the_cluster_has_stays() -> None:
    async def story(scene: Scene) -> None:
        await fill(scene.old)
        user = User(name="r1", full_name="R")
        token = Token(id="t", user="r1", purpose=TokenKind.API, created_at=1.0)
        puts = [one_of(family) for family in BEFORE if family not in (USER, TOKEN)]
        puts += [USER.put(user, user="r1"), USER.put(user, user="admin")]
        puts += [TOKEN.put(token, digest="d1")]
        puts += [TOKEN.put(msgspec.structs.replace(token, user="admin"), digest="d2")]
        await written(scene.old, *puts)
        theirs = USER.put(User(name="admin", full_name="another one"), user="admin")
        await written(scene.raw, theirs)
        done = await scene.migrate()
        there = {kv.key: kv.value for kv in (await scene.raw.range("")).items}
        assert there[theirs.key] == theirs.value
        assert TOKEN.fill(digest="d2") not in there, "it would open an account of the same name"
        for put in puts:
            if put.key in (theirs.key, TOKEN.fill(digest="d2")):
                continue
            if put.key.startswith((QUOTA.prefix(), ORG_QUOTA.prefix(), WORKLOAD.prefix())):
                assert put.key in there
            else:
                assert there[put.key] == put.value
        quota = await QUOTA.get(scene.raw, org="r1", project="r1")
        assert quota is not None
        assert not quota.value.counted
        assert done.record.records == len(puts) - 2
        assert "other records" in str(done)
        assert [entry.value.begun_by for entry in (await EPOCH.list(scene.raw)).entries] == [EpochKind.MIGRATION]

    play(story)


def test_a_blueprint_whose_slice_belongs_to_another_one_stays_behind() -> None:
    async def story(scene: Scene) -> None:
        blueprint = Blueprint(slices=(SliceSpec(artifact="org.example:a:1.0.0", instances=1),))
        for name, base in (("mine", "org.example:a"), ("free", "org.example:b")):
            owner = SliceOwner(blueprint=name, number=1)
            await written(scene.old, BLUEPRINT.put(blueprint, blueprint=name), SLICE_OWNER.put(owner, base=base))
        await written(scene.raw, SLICE_OWNER.put(SliceOwner(blueprint="theirs", number=3), base="org.example:a"))
        await scene.migrate()
        assert [entry.parts["blueprint"] for entry in (await BLUEPRINT.list(scene.raw)).entries] == ["free"]
        owners = {entry.parts["base"]: entry.value.blueprint for entry in (await SLICE_OWNER.list(scene.raw)).entries}
        assert owners == {"org.example:a": "theirs", "org.example:b": "free"}

    play(story)


def instance(number: int) -> dict[str, Any]:
    return {"workload": "web", "instance": str(number)}


async def fill_workload(store: Any, count: int = 3) -> None:
    """A workload with its instances and machines, and one instance that waits for a machine."""
    await fill(store, count)
    for number in range(count):
        vm = msgspec.structs.replace(machine(number), instance=f"web/{number + 1}")
        index = WorkloadInstance(instance=str(number + 1), vm=vm.id, template=1, created_at=1.0)
        target = Target(node="local-1", vm=vm.id, decided_at=1.0)
        await written(store, VM.put(vm, **ids(number)), INSTANCE.put(index, **instance(number + 1)))
        await written(store, TARGET.put(target, **instance(number + 1)))
    waiting = WorkloadInstance(instance=str(count + 1), template=1, created_at=1.0)
    await written(store, INSTANCE.put(waiting, **instance(count + 1)))
    await written(store, WORKLOAD.put(Workload(name="web", instances=count + 1, spec=SPEC), workload="web"))


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("nth", range(1, 9))
def test_a_workload_is_held_until_all_of_its_machines_have_come(nth: int, done: bool) -> None:
    async def story(scene: Scene) -> None:
        await fill_workload(scene.old)
        assert await cut_at(scene, nth, done=done)
        found = await WORKLOAD.get(scene.raw, workload="web")
        machines = await scene.machines()
        if machines and len((await INSTANCE.list(scene.raw)).entries) < 4:
            assert found is not None
            assert found.value.held == "cluster-1"
        for entry in (await VM.list(scene.raw)).entries:
            assert await INSTANCE.get(scene.raw, **instance(int(entry.value.instance.rpartition("/")[2]))) is not None
        await scene.migrate()
        found = await WORKLOAD.get(scene.raw, workload="web")
        assert found is not None
        assert found.value.held == ""
        assert await scene.machines() == {"vm-0", "vm-1", "vm-2"}
        there = {entry.key: entry.value for entry in (await INSTANCE.list(scene.raw)).entries}
        assert there == {entry.key: entry.value for entry in (await INSTANCE.list(scene.old)).entries}
        assert len((await TARGET.list(scene.raw)).entries) == 3

    play(story)


def test_a_workload_that_the_cluster_has_under_the_same_name_stops_the_move_before_it_begins() -> None:
    async def story(scene: Scene) -> None:
        await fill_workload(scene.old)
        await written(scene.raw, WORKLOAD.put(Workload(name="Web", instances=1, spec=SPEC), workload="web"))
        before = await contents(scene.raw)
        with pytest.raises(Refused, match="workload web: the cluster has one of that name; nothing was moved"):
            await scene.migrate()
        assert await contents(scene.raw) == before
        assert await MOVED.get(scene.old) is None

    play(story)


# Interrupted, and taken up again


class _Cut(Exception):
    pass


async def cut_at(scene: Scene, nth: int, *, done: bool) -> bool:
    """Run until the `nth` transaction, which happens (`done`) or not; whether it was reached."""
    seen = 0
    inner = scene.raw.txn

    async def cut(*args: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == nth:
            if done:
                await inner(*args)
            raise _Cut
        return await inner(*args)

    scene.raw.txn = cut  # type: ignore[method-assign, assignment]
    try:
        await scene.migrate()
    except _Cut:
        return True
    finally:
        scene.raw.txn = inner  # type: ignore[method-assign]
    return False


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("nth", range(1, COUNT + 3))
def test_cut_off_anywhere_it_goes_on_and_brings_nothing_back(nth: int, done: bool) -> None:
    """The transactions are the beginning, one for each machine, and the end."""

    async def story(scene: Scene) -> None:
        await fill(scene.old)
        assert await cut_at(scene, nth, done=done)
        arrived = await scene.machines()
        for entry in (await VM.list(scene.raw)).entries:  # what has come is deleted there, as the leader does it
            name = NAME.delete(org="acme", project=entry.parts["project"], name=entry.value.name)
            await scene.raw.txn([], [VM.delete(**entry.parts), HANDLE.delete(**entry.parts), name])
        result = await scene.migrate()
        assert await scene.machines() == {f"vm-{number}" for number in range(COUNT)} - arrived
        assert result.before == (nth == COUNT + 2 and done)
        assert not await cut_at(scene, 1, done=False)

    play(story)


@pytest.mark.parametrize("done", [False, True])
def test_what_was_there_before_and_is_deleted_while_it_is_interrupted_stays_deleted(done: bool) -> None:
    async def story(scene: Scene) -> None:
        await fill(scene.old)
        await written(scene.raw, VM.put(machine(0), **ids(0)))
        assert await cut_at(scene, 3, done=done)
        await scene.raw.delete(VM.fill(**ids(0)))
        await scene.migrate()
        assert await scene.machines() == {f"vm-{number}" for number in range(1, COUNT)}

    play(story)


@pytest.mark.parametrize("seed", range(30))
def test_lost_answers_move_nothing_twice_and_two_runs_at_once_make_one(seed: int) -> None:
    async def story(scene: Scene) -> None:
        await fill(scene.old)
        faults = scene.new.faults
        faults.lost = faults.never = faults.unavailable = faults.slow = 0.1
        deleted: set[str] = set()

        async def until_done() -> None:
            while True:
                try:
                    await scene.migrate()
                except (Unavailable, Uncertain):
                    await scene.clock.sleep(1)
                else:
                    return

        async def deletes() -> None:
            rng = random.Random(seed)
            for _ in range(6):
                await scene.clock.sleep(rng.random())
                there = sorted(await scene.machines())
                if there:
                    vm = rng.choice(there)
                    deleted.add(vm)
                    await scene.raw.delete(VM.fill(**ids(int(vm.removeprefix("vm-")))))

        await asyncio.gather(until_done(), until_done(), deletes())
        (marker,) = (await MIGRATION.list(scene.raw)).entries
        assert (marker.value.moved, marker.value.present) == (COUNT, 0)
        assert await scene.machines() == {f"vm-{number}" for number in range(COUNT)} - deleted

    play(story, seed=seed)


def test_a_cluster_that_is_out_of_reach_is_said_and_what_was_moved_stays() -> None:
    async def story(scene: Scene) -> None:
        await fill(scene.old)
        assert await cut_at(scene, 4, done=True)
        arrived = await scene.machines()
        scene.new.down()
        with pytest.raises(HostlerError) as refused:
            await scene.migrate()
        assert isinstance(refused.value, Unavailable)
        assert await scene.machines() == arrived
        scene.new.up()
        await scene.migrate()
        assert len(await scene.machines()) == COUNT

    play(story)

"""The VM service in virtual time: creating, changing, deleting, and what is told of a machine."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from service_scene import ADMIN, MEMBER_OF_ACME, ORG, PROJECT, SMALL, STRANGER, VIEWER, Scene, asked, contents, play

from hostler.engine.vm_queries import VmQuery
from hostler.errors import Conflict, Forbidden, HostlerError, Invalid, NotFound, Stale, Unavailable
from hostler.keys.families import ALIVE, HANDLE, NAME, VM
from hostler.model.vm import MachineState, OnNodeLoss, Power, Snapshot, SnapshotState, VmSpec
from hostler.model.vm_api import VmCreate, VmPhase, VmUpdate

WISH = VmCreate(name="a", spec=SMALL)
READY = {"before": Snapshot(state=SnapshotState.READY, taken_at=1.0)}


# Creating


def test_a_new_machine_has_its_record_its_name_and_its_audit_in_one_revision() -> None:
    async def story(scene: Scene) -> None:
        written = await scene.vms.create(asked(), ORG, PROJECT, WISH)
        stored = {kv.key: kv for kv in (await scene.raw.range("/")).items}
        assert {kv.mod_revision for kv in stored.values()} == {written.revision}
        ids = {"org": ORG, "project": PROJECT}
        assert set(stored) >= {VM.fill(vm=written.value.id, **ids), NAME.fill(name="a", **ids)}
        (audit,) = await scene.audits()
        assert (audit.who, audit.verb, audit.source) == ("mia", "vm.create", "10.0.0.9")
        assert audit.subject == VM.fill(vm=written.value.id, **ids)
        assert audit.name == written.value.name
        assert (written.status, written.value.revision, written.value.phase) == (201, written.revision, VmPhase.PENDING)
        assert await scene.vms.get(MEMBER_OF_ACME, ORG, PROJECT, "a") == written.value

    play(story)


def test_without_a_quota_a_create_is_one_transaction_and_reads_nothing() -> None:
    async def story(scene: Scene) -> None:
        calls: list[str] = []
        inner = scene.store._call

        async def counted(verb: Any, names: Any, do: Any) -> Any:
            calls.append(verb)
            return await inner(verb, names, do)

        await scene.settle()
        scene.store._call = counted  # type: ignore[method-assign]
        await scene.made()
        assert calls == ["txn"]

    play(story)


def test_a_name_is_taken_whatever_its_case() -> None:
    async def story(scene: Scene) -> None:
        await scene.made("Straße")
        before = await contents(scene.raw)
        with pytest.raises(Conflict, match="of that name"):
            await scene.made("STRASSE")
        assert await contents(scene.raw) == before
        other = await scene.vms.create(asked(ADMIN), ORG, "another", VmCreate(name="straße", spec=SMALL))
        assert other.value.project == "another"

    play(story)


@pytest.mark.parametrize("name", ["", "a/b", "..", "a\nb", "x" * 64, "\ud800", "ß" * 63 + "x"])
def test_a_name_that_cannot_be_is_refused_and_nothing_is_written(name: str) -> None:
    async def story(scene: Scene) -> None:
        with pytest.raises(Invalid):
            await scene.made(name)
        assert await contents(scene.raw) == {}

    play(story)


@pytest.mark.parametrize("part", ["", "a/b", "..", "a\nb", "x" * 256, "\ud800"])
def test_an_org_a_project_or_an_id_that_cannot_be_is_refused(part: str) -> None:
    async def story(scene: Scene) -> None:
        for org, project in ((part, PROJECT), (ORG, part)):
            with pytest.raises(Invalid):
                await scene.vms.create(asked(ADMIN), org, project, WISH)
        for verb in VERBS.values():
            with pytest.raises(Invalid):
                await verb(scene, ADMIN, part)
        assert await contents(scene.raw) == {}

    play(story)


@pytest.mark.parametrize("spec", [{"memory_mib": 0}, {"memory_mib": -1}, {"cpus": "two"}, {"disk_gib": -1}])
def test_a_shape_that_cannot_be_is_refused_and_nothing_is_written(spec: dict[str, Any]) -> None:
    async def story(scene: Scene) -> None:
        with pytest.raises(Invalid):
            await scene.made(spec=msgspec.structs.replace(SMALL, **spec))
        assert await contents(scene.raw) == {}

    play(story)


def test_a_machine_may_come_with_an_end() -> None:
    async def story(scene: Scene) -> None:
        view = await scene.made(expires_in=60.0)
        assert view.expires_at == view.created_at + 60.0
        later = await scene.vms.update(asked(), ORG, PROJECT, "a", VmUpdate(expires_in=None))
        assert later.value.expires_at is None

    play(story)


# Finding


def test_an_id_goes_before_a_name() -> None:
    async def story(scene: Scene) -> None:
        first = await scene.made("a")
        second = await scene.made(first.id)
        assert (await scene.vms.get(MEMBER_OF_ACME, ORG, PROJECT, first.id)).id == first.id
        assert (await scene.vms.get(MEMBER_OF_ACME, ORG, PROJECT, "A")).id == first.id
        assert (await scene.vms.get(MEMBER_OF_ACME, ORG, PROJECT, second.id)).name == first.id

    play(story)


VERBS: dict[str, Any] = {
    "get": lambda s, who, vm: s.vms.get(who, ORG, PROJECT, vm),
    "get stale": lambda s, who, vm: s.vms.get(who, ORG, PROJECT, vm, stale=True),
    "why": lambda s, who, vm: s.vms.why(who, ORG, PROJECT, vm),
    "update": lambda s, who, vm: s.vms.update(asked(who), ORG, PROJECT, vm, VmUpdate(cpus=2)),
    "start": lambda s, who, vm: s.vms.start(asked(who), ORG, PROJECT, vm),
    "stop": lambda s, who, vm: s.vms.stop(asked(who), ORG, PROJECT, vm),
    "reset": lambda s, who, vm: s.vms.reset(asked(who), ORG, PROJECT, vm),
    "delete": lambda s, who, vm: s.vms.delete(asked(who), ORG, PROJECT, vm),
    "snapshot": lambda s, who, vm: s.vms.snapshot(asked(who), ORG, PROJECT, vm, "one"),
    "restore": lambda s, who, vm: s.vms.restore(asked(who), ORG, PROJECT, vm, "one"),
    "drop": lambda s, who, vm: s.vms.drop_snapshot(asked(who), ORG, PROJECT, vm, "one"),
}
WRITES = {name: verb for name, verb in VERBS.items() if name not in ("get", "get stale", "why")}


@pytest.mark.parametrize("verb", VERBS)
def test_a_machine_of_another_tenant_is_answered_as_one_that_does_not_exist(verb: str) -> None:
    async def story(scene: Scene) -> None:
        view = await scene.made()
        await scene.settle()
        before = await contents(scene.raw)
        for named in (view.id, "a"):
            with pytest.raises(NotFound) as theirs:
                await VERBS[verb](scene, STRANGER, named)
            with pytest.raises(NotFound) as missing:
                await VERBS[verb](scene, MEMBER_OF_ACME, f"{named}x")
            assert str(theirs.value) == str(missing.value).replace(f"{named}x", named)
        assert await contents(scene.raw) == before

    play(story)


@pytest.mark.parametrize("verb", WRITES)
def test_who_may_only_look_changes_nothing(verb: str) -> None:
    async def story(scene: Scene) -> None:
        view = await scene.made()
        before = await contents(scene.raw)
        with pytest.raises(Forbidden, match="modify_workloads"):
            await WRITES[verb](scene, VIEWER, view.id)
        assert await contents(scene.raw) == before
        assert (await scene.vms.get(VIEWER, ORG, PROJECT, view.id)) == view

    play(story)


def test_a_stranger_neither_creates_nor_lists_in_a_project() -> None:
    async def story(scene: Scene) -> None:
        await scene.made()
        with pytest.raises(NotFound):
            await scene.vms.create(asked(STRANGER), ORG, PROJECT, WISH)
        with pytest.raises(NotFound):
            await scene.vms.list(STRANGER, VmQuery(ORG, PROJECT))
        with pytest.raises(Forbidden):
            await scene.vms.create(asked(VIEWER), ORG, PROJECT, WISH)
        assert (await scene.vms.list(STRANGER, VmQuery())).items == ()

    play(story)


# Updating


def test_an_update_changes_what_it_names_and_counts_the_wish() -> None:
    async def story(scene: Scene) -> None:
        old = await scene.made(labels={"a": "1"})
        update = VmUpdate(cpus=3, labels={"b": "2"}, on_node_loss=OnNodeLoss.FENCE)
        new = (await scene.vms.update(asked(), ORG, PROJECT, "a", update)).value
        assert new.spec == msgspec.structs.replace(SMALL, cpus=3)
        assert (new.labels, new.on_node_loss, new.generation) == ({"b": "2"}, OnNodeLoss.FENCE, old.generation + 1)
        assert new.revision > old.revision
        assert (await scene.audits())[-1].before == old.revision

    play(story)


@pytest.mark.parametrize(
    "update",
    [
        VmUpdate(cpus=8),
        VmUpdate(name="b"),
        VmUpdate(labels={"b": "2"}),
        VmUpdate(on_node_loss=OnNodeLoss.FENCE),
        VmUpdate(expires_in=60),
    ],
)
def test_what_an_instance_is_only_its_workload_changes(update: VmUpdate) -> None:
    async def story(scene: Scene) -> None:
        vm = await scene.made("web-2")
        entry = await VM.get(scene.raw, org=ORG, project=PROJECT, vm=vm.id)
        assert entry is not None
        await VM.replace(scene.raw, entry, msgspec.structs.replace(entry.value, instance="web/2"))
        before = await contents(scene.raw)
        with pytest.raises(Conflict, match="vm web-2: it is instance 2 of workload web; change the workload"):
            await scene.vms.update(asked(), ORG, PROJECT, "web-2", update)
        await scene.vms.update(asked(), ORG, PROJECT, "web-2", VmUpdate(cpus=vm.spec.cpus))
        assert await contents(scene.raw) == before
        await scene.vms.stop(asked(), ORG, PROJECT, "web-2")
        await scene.vms.delete(asked(), ORG, PROJECT, "web-2")

    play(story)


def test_an_update_that_changes_nothing_writes_nothing() -> None:
    async def story(scene: Scene) -> None:
        old = await scene.made()
        before = await contents(scene.raw)
        written = await scene.vms.update(asked(), ORG, PROJECT, "a", VmUpdate(cpus=1, name="a"))
        assert (written.value, written.revision) == (old, old.revision)
        assert await contents(scene.raw) == before

    play(story)


def test_a_disk_may_only_grow() -> None:
    async def story(scene: Scene) -> None:
        await scene.made()
        with pytest.raises(Invalid, match="only grow"):
            await scene.vms.update(asked(), ORG, PROJECT, "a", VmUpdate(disk_gib=9))
        assert (await scene.vms.update(asked(), ORG, PROJECT, "a", VmUpdate(disk_gib=11))).value.spec.disk_gib == 11

    play(story)


def test_a_new_name_is_taken_and_the_old_one_given_back() -> None:
    async def story(scene: Scene) -> None:
        first, second = await scene.made("a"), await scene.made("b")
        with pytest.raises(Conflict, match="of that name"):
            await scene.vms.update(asked(), ORG, PROJECT, "a", VmUpdate(name="B"))
        await scene.vms.update(asked(), ORG, PROJECT, "a", VmUpdate(name="A"))
        await scene.vms.update(asked(), ORG, PROJECT, "a", VmUpdate(name="c"))
        names = {entry.parts["name"]: entry.value for entry in (await NAME.list(scene.raw)).entries}
        assert names == {"c": first.id, "b": second.id}
        assert (await scene.made("a")).name == "a"

    play(story)


def test_a_stale_if_match_writes_nothing_and_is_not_tried_again() -> None:
    async def story(scene: Scene) -> None:
        old = await scene.made()
        new = await scene.vms.update(asked(if_match=old.revision), ORG, PROJECT, "a", VmUpdate(cpus=2))
        before = await contents(scene.raw)
        now = scene.clock.now()
        with pytest.raises(Stale) as refused:
            await scene.vms.update(asked(if_match=old.revision), ORG, PROJECT, "a", VmUpdate(cpus=3))
        assert str(new.revision) in str(refused.value)
        with pytest.raises(Stale):
            await scene.vms.start(asked(if_match=old.revision), ORG, PROJECT, "a")
        with pytest.raises(Stale):
            await scene.vms.delete(asked(if_match=old.revision), ORG, PROJECT, "a")
        assert scene.clock.now() == now
        assert await contents(scene.raw) == before

    play(story)


def test_what_a_running_machine_does_not_have_yet_is_said_at_once() -> None:
    async def story(scene: Scene) -> None:
        view = await scene.made()
        assert (await scene.vms.update(asked(), ORG, PROJECT, "a", VmUpdate(cpus=2))).value.at_next_boot == ()
        await scene.seen(view, at_next_boot=("disk_gib",))
        running = (await scene.vms.update(asked(), ORG, PROJECT, "a", VmUpdate(memory_mib=1024, labels={}))).value
        assert running.at_next_boot == ("disk_gib", "memory_mib")
        await scene.seen(view, MachineState.STOPPED)
        assert (await scene.vms.update(asked(), ORG, PROJECT, "a", VmUpdate(cpus=5))).value.at_next_boot == ()

    play(story)


# Power and deletion


def test_power_resets_and_deletion_are_wishes() -> None:
    async def story(scene: Scene) -> None:
        await scene.made()
        off = (await scene.vms.stop(asked(), ORG, PROJECT, "a")).value
        assert (off.power, off.generation) == (Power.OFF, 2)
        with pytest.raises(Conflict, match="it is off"):
            await scene.vms.reset(asked(), ORG, PROJECT, "a")
        assert (await scene.vms.start(asked(), ORG, PROJECT, "a")).value.power is Power.ON
        await scene.vms.reset(asked(), ORG, PROJECT, "a")
        await scene.vms.reset(asked(), ORG, PROJECT, "a")
        (stored,) = (await VM.list(scene.raw)).entries
        assert (stored.value.resets, stored.value.generation) == (2, 5)
        gone = await scene.vms.delete(asked(), ORG, PROJECT, "a")
        assert (gone.status, gone.value.phase) == (202, VmPhase.DELETING)
        again = await scene.vms.delete(asked(), ORG, PROJECT, "a")
        assert again.value == gone.value
        assert [audit.verb for audit in await scene.audits()].count("vm.delete") == 1

    play(story)


@pytest.mark.parametrize("verb", [name for name in WRITES if name != "delete"])
def test_a_machine_that_is_being_deleted_takes_no_other_wish(verb: str) -> None:
    async def story(scene: Scene) -> None:
        await scene.made()
        await scene.vms.delete(asked(), ORG, PROJECT, "a")
        before = await contents(scene.raw)
        with pytest.raises(Conflict, match="being deleted"):
            await WRITES[verb](scene, MEMBER_OF_ACME, "a")
        assert await contents(scene.raw) == before

    play(story)


# Snapshots


def test_a_snapshot_is_asked_for_once_restored_when_ready_and_dropped() -> None:
    async def story(scene: Scene) -> None:
        view = await scene.made()
        await scene.vms.snapshot(asked(), ORG, PROJECT, "a", "before")
        with pytest.raises(Conflict, match="already"):
            await scene.vms.snapshot(asked(), ORG, PROJECT, "a", "before")
        with pytest.raises(Conflict, match="not taken yet"):
            await scene.vms.restore(asked(), ORG, PROJECT, "a", "before")
        with pytest.raises(NotFound, match="no snapshot"):
            await scene.vms.restore(asked(), ORG, PROJECT, "a", "other")
        await scene.seen(view, snapshots=READY)
        assert (await scene.vms.restore(asked(), ORG, PROJECT, "a", "before")).value.restore is not None
        with pytest.raises(Conflict, match="being restored"):
            await scene.vms.drop_snapshot(asked(), ORG, PROJECT, "a", "before")
        await scene.seen(view, snapshots=READY, restored=1)
        second = await scene.vms.restore(asked(), ORG, PROJECT, "a", "before")
        assert second.value.restore is not None
        assert second.value.restore.number == 2
        await scene.seen(view, snapshots=READY, restored=2)
        assert (await scene.vms.drop_snapshot(asked(), ORG, PROJECT, "a", "before")).value.snapshots == {}
        with pytest.raises(Conflict, match="still being dropped"):
            await scene.vms.snapshot(asked(), ORG, PROJECT, "a", "before")
        assert (await scene.counts())["locks"] == 0

    play(story)


def test_a_name_of_a_snapshot_is_free_again_once_an_agent_has_answered_that_it_was_dropped() -> None:
    async def story(scene: Scene) -> None:
        view = await scene.made()

        async def again() -> int:
            return (await scene.vms.snapshot(asked(), ORG, PROJECT, "a", "before")).revision

        await again()
        await scene.vms.drop_snapshot(asked(), ORG, PROJECT, "a", "before")
        for fields in (
            {"generation": 2, "state": MachineState.RUNNING},  # it answered what was wished before
            {"generation": 3, "state": MachineState.PLACED},  # the leader's word
            {"generation": 3, "state": MachineState.RUNNING, "snapshots": READY},
        ):
            await scene.seen(view, **fields)
            with pytest.raises(Conflict, match="still being dropped"):
                await again()
        await scene.seen(view, generation=3, state=MachineState.RUNNING)
        await again()
        await scene.vms.drop_snapshot(asked(), ORG, PROJECT, "a", "before")
        await scene.seen(view, generation=1, node="", state=MachineState.PENDING)
        await again()

    play(story)


def test_no_more_snapshots_are_dropped_than_can_be_remembered() -> None:
    async def story(scene: Scene) -> None:
        view = await scene.made()
        for number in range(64):
            await scene.vms.snapshot(asked(), ORG, PROJECT, "a", f"s{number}")
            await scene.vms.drop_snapshot(asked(), ORG, PROJECT, "a", f"s{number}")
        await scene.vms.snapshot(asked(), ORG, PROJECT, "a", "last")
        with pytest.raises(Conflict, match="wait until its node"):
            await scene.vms.drop_snapshot(asked(), ORG, PROJECT, "a", "last")
        await scene.seen(view, generation=200, state=MachineState.RUNNING)
        await scene.vms.drop_snapshot(asked(), ORG, PROJECT, "a", "last")

    play(story)


def test_a_snapshot_that_failed_is_not_restored() -> None:
    async def story(scene: Scene) -> None:
        view = await scene.made()
        await scene.vms.snapshot(asked(), ORG, PROJECT, "a", "before")
        failed = {"before": Snapshot(state=SnapshotState.FAILED, taken_at=1.0, detail="lost with node A")}
        await scene.seen(view, snapshots=failed)
        with pytest.raises(Conflict, match="lost with node A"):
            await scene.vms.restore(asked(), ORG, PROJECT, "a", "before")

    play(story)


def test_there_are_64_snapshots_at_most() -> None:
    async def story(scene: Scene) -> None:
        await scene.made()
        for number in range(64):
            await scene.vms.snapshot(asked(), ORG, PROJECT, "a", f"s{number}")
        with pytest.raises(Conflict, match="which is the most"):
            await scene.vms.snapshot(asked(), ORG, PROJECT, "a", "s64")

    play(story)


# What is told


def test_the_phase_is_made_of_wish_handle_and_the_life_of_the_node() -> None:
    async def story(scene: Scene) -> None:
        view = await scene.made()

        async def now() -> tuple[VmPhase, bool]:
            await scene.settle()
            seen = await scene.vms.get(MEMBER_OF_ACME, ORG, PROJECT, "a")
            assert seen == await scene.vms.get(MEMBER_OF_ACME, ORG, PROJECT, "a", stale=True)
            return seen.phase, seen.settled

        assert await now() == (VmPhase.PENDING, False)
        await scene.seen(view)
        assert await now() == (VmPhase.SILENT, False)
        await scene.node()
        assert await now() == (VmPhase.RUNNING, True)
        for state in MachineState:
            await scene.seen(view, state)
            phase, settled = await now()
            assert settled == (state is MachineState.RUNNING)
            assert phase not in (VmPhase.DELETING, VmPhase.SILENT)
        await scene.seen(view, generation=0)
        assert await now() == (VmPhase.RUNNING, False)
        await scene.raw.delete(ALIVE.fill(node="local-1"))
        assert await now() == (VmPhase.SILENT, False)

    play(story)


def test_reads_fail_without_the_store_unless_old_news_will_do() -> None:
    async def story(scene: Scene) -> None:
        view = await scene.made()
        await scene.settle()
        scene.store.down()
        there = VmQuery(ORG, PROJECT)
        for read in (scene.vms.get(MEMBER_OF_ACME, ORG, PROJECT, "a"), scene.vms.list(MEMBER_OF_ACME, there)):
            with pytest.raises(Unavailable):
                await read
        assert await scene.vms.get(MEMBER_OF_ACME, ORG, PROJECT, "A", stale=True) == view
        assert (await scene.vms.list(MEMBER_OF_ACME, VmQuery(ORG, PROJECT, stale=True))).items == (view,)
        with pytest.raises(Unavailable):
            await scene.made("b")

    play(story)


def test_a_machine_with_a_damaged_handle_can_still_be_deleted() -> None:
    async def story(scene: Scene) -> None:
        view = await scene.made()
        await scene.raw.put(HANDLE.fill(org=ORG, project=PROJECT, vm=view.id), b"{")
        assert (await scene.vms.delete(asked(), ORG, PROJECT, "a")).value.phase is VmPhase.DELETING
        with pytest.raises(HostlerError, match="handles"):
            await scene.vms.get(MEMBER_OF_ACME, ORG, PROJECT, "a")

    play(story)


def test_why_has_the_reasons_of_the_decision_and_each_node() -> None:
    from hostler.model.trace import Reason

    async def story(scene: Scene) -> None:
        view = await scene.made(spec=VmSpec(cpus=6, memory_mib=512))
        full = await scene.made("full", spec=VmSpec(cpus=6, memory_mib=512))
        await scene.node("local-1")
        await scene.node("local-2")
        await scene.told(full, "local-2")
        await scene.seen(view, MachineState.PENDING, node="", reasons=(Reason(subject="quota", why="no room"),))
        why = await scene.vms.why(MEMBER_OF_ACME, ORG, PROJECT, "a")
        assert (why.phase, why.node, why.decided) == (VmPhase.PENDING, None, (Reason(subject="quota", why="no room"),))
        assert [(verdict.node, verdict.fits) for verdict in why.nodes] == [("local-1", True), ("local-2", False)]
        await scene.told(view, reasons=(Reason(subject="local-1", why="emptiest"),))
        await scene.seen(view)
        why = await scene.vms.why(MEMBER_OF_ACME, ORG, PROJECT, "a")
        assert (why.node, why.decided) == ("local-1", (Reason(subject="local-1", why="emptiest"),))
        assert why.nodes[0].fits  # its own place is not counted against it

    play(story)

"""What `user_data` holds is shown to those who may change the machine, and to nobody else."""

from __future__ import annotations

import msgspec
import pytest
from service_scene import ADMIN, MEMBER_OF_ACME, ORG, PROJECT, SMALL, VIEWER, Scene, asked, play

from hostler.engine.request import Caller
from hostler.engine.vm_queries import VmQuery
from hostler.entry.server.feed import item_of
from hostler.errors import Invalid
from hostler.keys.families import VM, WORKLOAD
from hostler.model.access import HIDDEN, ROLES, Role
from hostler.model.vm_api import VmCreate, VmUpdate
from hostler.model.workload_api import WorkloadApply
from hostler.ports.store import Event, KeyValue

SECRET = "#!/bin/sh\necho the-solution"
SPEC = msgspec.structs.replace(SMALL, user_data=SECRET)


async def texts(scene: Scene, caller: Caller, org: str, project: str) -> set[str]:
    """What the caller reads of it, wherever it is read."""
    found = {(await scene.vms.get(caller, org, project, "a", stale=stale)).spec.user_data for stale in (False, True)}
    for query in (VmQuery(org=org, project=project), VmQuery(), VmQuery(stale=True)):
        found |= {vm.spec.user_data for vm in (await scene.vms.list(caller, query)).items}
    assert SECRET not in str(await scene.vms.rows(caller, VmQuery()))
    return found


def test_viewers_do_not_read_user_data() -> None:
    async def story(scene: Scene) -> None:
        await scene.made("a", spec=SPEC)
        await scene.settle()
        assert await texts(scene, VIEWER, ORG, PROJECT) == {HIDDEN}
        assert await texts(scene, MEMBER_OF_ACME, ORG, PROJECT) == {SECRET}
        await scene.made("plain")
        assert (await scene.vms.get(VIEWER, ORG, PROJECT, "plain")).spec.user_data == ""

    play(story)


@pytest.mark.parametrize("role", [Role.VIEWER, Role.MEMBER])
def test_students_do_not_read_the_set_up_of_their_lab_whatever_their_role(role: Role) -> None:
    async def story(scene: Scene) -> None:
        await scene.vms.create(asked(ADMIN), "labs", "ada", VmCreate(name="a", spec=SPEC))
        await scene.settle()
        student = Caller("ada", ROLES[role], ("labs/ada",))
        assert await texts(scene, student, "labs", "ada") == {HIDDEN}
        if role is Role.MEMBER:  # nor in the answers to what they change
            for update in (VmUpdate(labels={"a": "b"}), VmUpdate()):
                written = await scene.vms.update(asked(student), "labs", "ada", "a", update)
                assert written.value.spec.user_data == HIDDEN
        teacher = Caller("tom", ROLES[Role.MEMBER], ("labs",))
        assert await texts(scene, teacher, "labs", "ada") == {SECRET}

    play(story)


def test_a_workload_shows_its_user_data_to_those_who_may_change_it() -> None:
    async def story(scene: Scene) -> None:
        wanted = WorkloadApply(name="w", org=ORG, project=PROJECT, spec=SPEC)
        made = await scene.workloads.apply(asked(), wanted)
        await scene.settle()
        assert made.value.spec.user_data == SECRET
        for stale in (False, True):
            assert (await scene.workloads.get(VIEWER, "w", stale=stale)).spec.user_data == HIDDEN
            (item,) = (await scene.workloads.list(VIEWER, stale=stale)).items
            assert item.spec.user_data == HIDDEN
            assert (await scene.workloads.get(MEMBER_OF_ACME, "w", stale=stale)).spec.user_data == SECRET

    play(story)


def test_what_stands_in_its_place_is_not_written_back() -> None:
    async def story(scene: Scene) -> None:
        await scene.made("a", spec=SPEC)
        hidden = msgspec.structs.replace(SMALL, user_data=HIDDEN)
        with pytest.raises(Invalid, match="is the placeholder for hidden text"):
            await scene.vms.update(asked(), ORG, PROJECT, "a", VmUpdate(user_data=HIDDEN))
        with pytest.raises(Invalid, match="is the placeholder for hidden text"):
            await scene.made("b", spec=hidden)
        with pytest.raises(Invalid, match="is the placeholder for hidden text"):
            await scene.workloads.apply(asked(), WorkloadApply(name="w", org=ORG, project=PROJECT, spec=hidden))

    play(story)


def test_the_stream_of_events_has_no_user_data() -> None:
    async def story(scene: Scene) -> None:
        await scene.made("a", spec=SPEC)
        await scene.workloads.apply(asked(), WorkloadApply(name="w", org=ORG, project=PROJECT, spec=SPEC))
        for family in (VM, WORKLOAD):
            (kv,) = (await scene.raw.range(family.prefix())).items
            assert SECRET.splitlines()[1].encode() in kv.value
            item = item_of(Event("put", kv), (kv.mod_revision, 0))
            assert item is not None
            record = msgspec.json.decode(item.text.partition(b"data: ")[2])["record"]
            assert record["spec"]["user_data"] == HIDDEN
        strange = KeyValue(kv.key, b'{"spec":[1]}', kv.create_revision, kv.mod_revision, kv.version)
        assert item_of(Event("put", strange), (1, 0)) is not None  # another program's writing

    play(story)

"""New names are such that people see what they say; what stands already is read and changed whatever it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from environment import env_on
from service_scene import ADMIN, ORG, PROJECT, SMALL, Scene, asked, contents, play

from hostler.engine.inventory.check import name_fault
from hostler.engine.workloads.service import WorkloadService
from hostler.errors import Invalid
from hostler.keys.families import NAME, VM, WORKLOAD
from hostler.keys.template import check_new
from hostler.model.access_api import QuotaSet
from hostler.model.vm_api import VmCreate, VmUpdate
from hostler.model.workload import Workload
from hostler.model.workload_api import WorkloadApply, WorkloadScale

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

HIDDEN = [" ", "\u3000", "\u2800", "\u3164", "a\u202eb", "a\u2066b", "\u200b", "we\u00adb", "\ufeffweb"]
MAKERS: dict[str, Callable[[Scene, str, str, str], Awaitable[Any]]] = {
    "vm": lambda s, org, project, name: s.vms.create(asked(ADMIN), org, project, VmCreate(name=name, spec=SMALL)),
    "workload": lambda s, org, project, name: workloads(s).apply(
        asked(ADMIN), WorkloadApply(name=name, org=org, project=project, spec=SMALL)
    ),
}


def workloads(scene: Scene) -> WorkloadService:
    return WorkloadService(scene.store, scene.writer, scene.view, env_on(scene.clock))


@pytest.mark.parametrize("name", ["web", "Straße 7", "a b", "日本", "*", "-", "é"])
def test_names_that_people_can_read_are_fine(name: str) -> None:
    assert check_new(name) == name


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("name", HIDDEN)
def test_nothing_new_is_called_what_nobody_sees(kind: str, name: str) -> None:
    async def story(scene: Scene) -> None:
        for org, project, called in ((ORG, PROJECT, name), (name, PROJECT, "web"), (ORG, name, "web")):
            with pytest.raises(Invalid, match="must not"):
                await MAKERS[kind](scene, org, project, called)
        assert await contents(scene.raw) == {}

    play(story)


@pytest.mark.parametrize("kind", MAKERS)
def test_what_stands_for_every_org_or_project_is_not_one_of_them(kind: str) -> None:
    async def story(scene: Scene) -> None:
        for org, project, what in (("*", PROJECT, "org"), (ORG, "*", "project")):
            with pytest.raises(Invalid, match=f"{what} '\\*': means all of them; name one"):
                await MAKERS[kind](scene, org, project, "web")
        assert await contents(scene.raw) == {}

    play(story)


@pytest.mark.parametrize("org", [" ", "*", "a\u202eb"])
def test_a_quota_of_such_a_project_is_refused_unless_something_is_there(org: str) -> None:
    async def story(scene: Scene) -> None:
        with pytest.raises(Invalid):
            await scene.quotas.set(asked(ADMIN), org, PROJECT, QuotaSet(vms=1))
        vm = await scene.made("www")
        entry = await VM.get(scene.raw, org=ORG, project=PROJECT, vm=vm.id)
        assert entry is not None
        put = VM.put(msgspec.structs.replace(entry.value, org=org), org=org, project=PROJECT, vm=vm.id)
        await scene.raw.put(put.key, put.value)
        assert (await scene.quotas.set(asked(ADMIN), org, PROJECT, QuotaSet(vms=1))).status == 201

    play(story)


@pytest.mark.parametrize("name", HIDDEN)
def test_hardware_is_not_called_so_either(name: str) -> None:
    assert name_fault(name)


@pytest.mark.parametrize("name", HIDDEN)
def test_what_is_called_so_already_is_read_changed_and_removed(name: str) -> None:
    async def story(scene: Scene) -> None:
        old = WORKLOAD.put(
            Workload(name=name, org="*", project=name, instances=1, spec=SMALL, created_at=1.0), workload=name
        )
        vm = await scene.made("www")
        ids = {"org": ORG, "project": PROJECT}
        entry = await VM.get(scene.raw, vm=vm.id, **ids)
        assert entry is not None
        renamed = VM.put(msgspec.structs.replace(entry.value, name=name), vm=vm.id, **ids)
        await scene.raw.txn([], [old, renamed, NAME.put(vm.id, name=name, **ids)])
        await scene.settle()
        service = workloads(scene)
        assert (await service.get(ADMIN, name)).name == name
        again = WorkloadApply(name=name, org="*", project=name, spec=SMALL, instances=2)
        assert (await service.apply(asked(ADMIN), again)).value.instances == 2
        assert (await service.scale(asked(ADMIN), name, WorkloadScale(instances=3))).value.instances == 3
        await service.delete(asked(ADMIN), name)
        assert (await scene.vms.get(ADMIN, ORG, PROJECT, vm.id)).name == name
        await scene.vms.update(asked(ADMIN), ORG, PROJECT, vm.id, VmUpdate(name=name, labels={"a": "b"}))
        await scene.vms.update(asked(ADMIN), ORG, PROJECT, vm.id, VmUpdate(name="readable"))
        with pytest.raises(Invalid):
            await scene.vms.update(asked(ADMIN), ORG, PROJECT, vm.id, VmUpdate(name=name))
        await scene.vms.delete(asked(ADMIN), ORG, PROJECT, vm.id)

    play(story)

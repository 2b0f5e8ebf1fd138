"""Projects: who may create one, and which exist without having been created."""

from __future__ import annotations

import pytest
from service_scene import ADMIN, MEMBER_OF_ACME, ORG, PROJECT, SMALL, STRANGER, VIEWER, Scene, asked, contents, play

from hostler.engine.request import Caller
from hostler.errors import Conflict, Forbidden, Invalid, NotFound
from hostler.keys.families import NAME, VM
from hostler.keys.families import PROJECT as RECORD
from hostler.model.access import ROLES, Role
from hostler.model.access_api import ProjectCreate, QuotaSet
from hostler.model.vm_api import VmCreate
from hostler.model.workload_api import WorkloadApply

BOB = Caller("bob", ROLES[Role.MEMBER], (ORG,))
"""Member of the whole org, without the right to create projects of it."""
OWNER = Caller("otto", ROLES[Role.ADMIN], (ORG,))
OPERATOR = Caller("olga", ROLES[Role.OPERATOR], ("*",))
NEW = VmCreate(name="a", spec=SMALL)


async def recorded(scene: Scene) -> set[tuple[str, str]]:
    return {(entry.parts["org"], entry.parts["project"]) for entry in (await RECORD.list(scene.raw)).entries}


def test_a_member_of_an_org_makes_no_project_by_naming_it() -> None:
    """So a quota of a project cannot be evaded by another project."""

    async def story(scene: Scene) -> None:
        await scene.quotas.set(asked(ADMIN), ORG, PROJECT, QuotaSet(vms=0))
        before = await contents(scene.raw)
        for caller, org in ((BOB, ORG), (OPERATOR, ORG), (OPERATOR, "new-org")):
            with pytest.raises(Forbidden, match=f"ask an administrator: hostler project create web2 --org {org}"):
                await scene.vms.create(asked(caller), org, "web2", NEW)
        with pytest.raises(Forbidden, match="new-org/default"):
            await scene.vms.create(asked(OPERATOR), "new-org", "default", NEW)
        with pytest.raises(Forbidden, match="acme/web2"):
            await scene.workloads.apply(asked(BOB), WorkloadApply(name="w", org=ORG, project="web2", spec=SMALL))
        assert await contents(scene.raw) == before

    play(story)


def test_an_administrator_of_the_org_creates_one_and_members_use_it() -> None:
    async def story(scene: Scene) -> None:
        projects = scene.vms.projects
        for caller, error in ((BOB, Forbidden), (VIEWER, Forbidden), (MEMBER_OF_ACME, NotFound), (STRANGER, NotFound)):
            with pytest.raises(error):
                await projects.create(asked(caller), ORG, ProjectCreate(name="web2"))
        for name in ("*", "a/b", "", ".."):
            with pytest.raises(Invalid):
                await projects.create(asked(OWNER), ORG, ProjectCreate(name=name))
        request = asked(OWNER, key="k", fingerprint="f")
        made = await projects.create(request, ORG, ProjectCreate(name="web2"))
        again = await projects.create(request, ORG, ProjectCreate(name="web2"))
        assert (again.value, again.replayed, made.value.created_by) == (made.value, True, "otto")
        with pytest.raises(Conflict, match="exists already"):
            await projects.create(asked(OWNER), ORG, ProjectCreate(name="web2"))
        await scene.vms.create(asked(BOB), ORG, "web2", NEW)
        assert [audit.verb for audit in await scene.audits()] == ["project.create", "vm.create"]

    play(story)


def test_who_may_create_projects_does_so_by_putting_something_into_one() -> None:
    async def story(scene: Scene) -> None:
        for caller, org in ((OWNER, ORG), (ADMIN, "other")):
            await scene.vms.create(asked(caller, key="k", fingerprint="f"), org, "web2", NEW)
        assert await recorded(scene) == {(ORG, "web2"), ("other", "web2")}
        await scene.vms.create(asked(OWNER), ORG, "web2", VmCreate(name="b", spec=SMALL))
        assert [audit.verb for audit in await scene.audits()].count("project.create") == 2

    play(story)


@pytest.mark.parametrize("caller", [BOB, MEMBER_OF_ACME], ids=["of the org", "of the project"])
def test_default_projects_and_those_that_a_membership_names_exist(caller: Caller) -> None:
    async def story(scene: Scene) -> None:
        project = "default" if caller is BOB else PROJECT
        await scene.vms.create(asked(caller), ORG, project, NEW)
        await scene.vms.create(asked(OPERATOR), "default", "default", NEW)
        assert await recorded(scene) == set()

    play(story)


@pytest.mark.parametrize("what", ["a machine", "a quota", "a workload"])
def test_a_project_from_before_there_were_records_keeps_working(what: str) -> None:
    async def story(scene: Scene) -> None:
        if what == "a machine":
            vm = await scene.made("old")
        elif what == "a quota":
            await scene.quotas.set(asked(ADMIN), ORG, PROJECT, QuotaSet(vms=9))
        else:
            workload = WorkloadApply(name="w", org=ORG, project=PROJECT, spec=SMALL)
            await scene.workloads.apply(asked(MEMBER_OF_ACME), workload)
            await scene.settle()
        assert await recorded(scene) == set()
        await scene.vms.create(asked(BOB), ORG, PROJECT, NEW)
        assert await recorded(scene) == {(ORG, PROJECT)}
        if what == "a machine":  # and goes on to when it is empty
            for one in (vm.id, (await scene.vms.get(BOB, ORG, PROJECT, "a")).id):
                await scene.raw.delete(VM.fill(org=ORG, project=PROJECT, vm=one))
            await scene.raw.delete(NAME.fill(org=ORG, project=PROJECT, name="a"))
            await scene.another().vms.create(asked(BOB), ORG, PROJECT, NEW)

    play(story)


def test_the_list_has_what_the_caller_sees_and_nothing_else() -> None:
    async def story(scene: Scene) -> None:
        await scene.made("a")
        await scene.vms.projects.create(asked(ADMIN), ORG, ProjectCreate(name="empty"))
        await scene.vms.create(asked(ADMIN), "other", "secret", NEW)
        await scene.settle()

        async def seen(caller: Caller, org: str | None = None) -> list[str]:
            return [f"{view.org}/{view.name}" for view in (await scene.vms.projects.list(caller, org)).items]

        assert await seen(MEMBER_OF_ACME) == ["acme/web"]
        assert await seen(BOB) == ["acme/default", "acme/empty", "acme/web"]
        assert await seen(STRANGER) == ["other/default", "other/secret"]
        assert await seen(ADMIN) == ["acme/empty", "acme/web", "other/secret"]
        assert await seen(ADMIN, "other") == ["other/secret"]
        assert await seen(BOB, "other") == []

    play(story)

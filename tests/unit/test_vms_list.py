"""Listing machines: pages, spans of several projects, labels, and what a caller does not see."""

from __future__ import annotations

import random
from typing import Any

import pytest
from service_scene import ADMIN, SMALL, Scene, asked, play

from hostler.engine import vm_queries
from hostler.engine.request import Caller
from hostler.engine.vm_queries import VmQuery
from hostler.errors import Invalid
from hostler.keys.families import HANDLE, VM
from hostler.model.access import ROLES, Role
from hostler.model.vm import MachineState
from hostler.model.vm_api import VmCreate, VmPhase, VmView

PROJECTS = [("a", "p"), ("a", "p1"), ("a", "q"), ("a-b", "p"), ("ab", "p"), ("b", "p")]


def member(*memberships: str) -> Caller:
    return Caller("m", ROLES[Role.VIEWER], memberships)


async def filled(scene: Scene, each: int = 5) -> list[VmView]:
    """`each` machines in every project, half of them with handles and a label, in the order of their keys."""
    made = []
    for org, project in PROJECTS:
        for number in range(each):
            wanted = VmCreate(name=f"vm{number}", spec=SMALL, labels={"half": str(number % 2)})
            view = (await scene.vms.create(asked(ADMIN), org, project, wanted)).value
            if number % 2:
                await scene.seen(view, MachineState.PLACED)
            made.append(view)
    await scene.node()
    return sorted(made, key=lambda view: VM.fill(org=view.org, project=view.project, vm=view.id))


async def walked(scene: Scene, caller: Caller, org: str | None, project: str | None, limit: int, **more: Any) -> list:
    """All pages, one after the other."""
    found: list[VmView] = []
    after = None
    for _ in range(1000):
        page = await scene.vms.list(caller, VmQuery(org, project, limit=limit, after=after, **more))
        assert len(page.items) <= limit
        assert page.revision > 0
        found += page.items
        after = page.after
        if after is None:
            return found
    raise AssertionError("the pages never end")


SIGHTS = [
    (("*",), None, None, PROJECTS),
    (("*",), "a", None, PROJECTS[:3]),
    (("*",), "a", "p", PROJECTS[:1]),
    (("a",), None, None, PROJECTS[:3]),
    (("a", "a/p", "b/p", "a/p"), None, None, [*PROJECTS[:3], PROJECTS[5]]),
    (("ab/p", "a/q"), None, None, [PROJECTS[2], PROJECTS[4]]),
    (("ab/p", "a/q"), "a", None, [PROJECTS[2]]),
    (("nowhere",), None, None, []),
    ((), None, None, []),
    (("a",), "b", None, []),
]


@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize(("memberships", "org", "project", "expected"), SIGHTS)
@pytest.mark.parametrize("limit", [1, 2, 5, 7, 1000])
def test_the_pages_together_are_what_the_caller_sees_each_once_in_order(  # noqa: PLR0917 - what pages depend on
    memberships: tuple[str, ...],
    org: str | None,
    project: str | None,
    expected: list[tuple[str, str]],
    limit: int,
    stale: bool,
) -> None:
    async def story(scene: Scene) -> None:
        made = await filled(scene)
        found = await walked(scene, member(*memberships), org, project, limit, stale=stale)
        wanted = [view for view in made if (view.org, view.project) in expected]
        assert [view.id for view in found] == [view.id for view in wanted]
        phases = {view.name: view.phase for view in found}
        if found:
            assert phases["vm0"] is VmPhase.PENDING
            assert phases["vm1"] is VmPhase.PLACED
        for view in found:
            assert view == await scene.vms.get(ADMIN, view.org, view.project, view.id)

    play(story)


@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 1000])
def test_labels_choose(limit: int, stale: bool) -> None:
    async def story(scene: Scene) -> None:
        made = await filled(scene)
        for labels in ({"half": "1"}, {"half": "2"}, {"half": "1", "more": "x"}):
            found = await walked(scene, ADMIN, None, None, limit, labels=labels, stale=stale)
            assert [view.id for view in found] == [v.id for v in made if labels.items() <= v.labels.items()]

    play(story)


def test_one_call_reads_so_much_at_most_and_the_next_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(scene: Scene) -> None:
        made = await filled(scene, each=9)
        monkeypatch.setattr(vm_queries, "LOOKED_AT", 4)
        monkeypatch.setattr(vm_queries, "MAX_LIMIT", 4)
        page = await scene.vms.list(ADMIN, VmQuery(limit=3, labels={"half": "9"}))
        assert page.items == ()
        assert page.after is not None
        found = await walked(scene, ADMIN, None, None, 3, labels={"half": "1"})
        assert [view.id for view in found] == [view.id for view in made if view.labels["half"] == "1"]

    play(story)


def test_handles_without_machines_hide_no_handle_behind_them() -> None:
    async def story(scene: Scene) -> None:
        rng = random.Random(5)
        await filled(scene)
        keys = [entry.key for entry in (await HANDLE.list(scene.raw)).entries]
        some = (await scene.raw.get(keys[0])).value  # type: ignore[union-attr]
        for org, project in PROJECTS:
            for _ in range(30):
                orphan = f"{rng.choice('ahiz')}{rng.random()}"
                await scene.raw.put(HANDLE.fill(org=org, project=project, vm=orphan), some)
        for limit in (1, 3, 1000):
            for view in await walked(scene, ADMIN, None, None, limit):
                assert (view.phase is VmPhase.PLACED) == (view.labels["half"] == "1")

    play(story)


def test_a_record_that_cannot_be_read_is_passed_over() -> None:
    async def story(scene: Scene) -> None:
        made = await filled(scene, each=3)
        await scene.raw.put(VM.fill(org="a", project="p", vm="aaa"), b"{")
        await scene.raw.put(VM.prefix() + "stray", b"{}")
        for limit in (1, 2, 1000):
            assert [view.id for view in await walked(scene, ADMIN, None, None, limit)] == [view.id for view in made]

    play(story)


@pytest.mark.parametrize(
    ("org", "project", "limit", "after"),
    [("a", "p", 0, None), ("a", "p", 1001, None), ("a", "p", 1, "x/y"), (None, None, 1, "x"), (None, "p", 1, None)],
)
def test_a_page_that_cannot_be_is_refused(org: str | None, project: str | None, limit: int, after: str | None) -> None:
    async def story(scene: Scene) -> None:
        with pytest.raises(Invalid):
            await scene.vms.list(ADMIN, VmQuery(org, project, limit=limit, after=after))

    play(story)

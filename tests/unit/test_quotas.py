"""Quotas: what a project has is never more than it may, and the sum is never off."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import pytest
from dose import dose
from service_scene import ADMIN, MEMBER_OF_ACME, ORG, PROJECT, SMALL, STRANGER, Scene, asked, contents, play

from hostler.engine.quotas import Bound, Share, count, counted, quota_recount, quota_release, quota_transfer, share
from hostler.engine.request import Caller
from hostler.errors import Conflict, Forbidden, HostlerError, NotFound, QuotaExceeded, Stale
from hostler.keys.families import NAME, ORG_QUOTA, QUOTA, VM
from hostler.model.access import ROLES, Quota, Role
from hostler.model.access_api import QuotaSet
from hostler.model.inventory import Capacity
from hostler.model.vm import VmSpec
from hostler.model.vm_api import VmCreate, VmUpdate

SEEDS = range(dose(test=10, full=300))


async def limited(scene: Scene, **limits: int) -> None:
    await scene.quotas.set(asked(ADMIN), ORG, PROJECT, QuotaSet(**limits))


async def org_limited(scene: Scene, **limits: int) -> None:
    await scene.quotas.set(asked(ADMIN), ORG, "", QuotaSet(**limits))


async def sum_is_right(scene: Scene) -> Quota:
    """The quota as it is; what it says is used is what there is."""
    (bound, entry), (whole, of_org) = (await counted(scene.raw, ORG, PROJECT)).bounds
    if of_org is not None:
        await _is_right(scene, whole, of_org.value)
    assert entry is not None
    await _is_right(scene, bound, entry.value)
    return entry.value


async def _is_right(scene: Scene, bound: Bound, quota: Quota) -> None:
    has = await count(scene.raw, bound)
    assert (quota.used_vms, quota.used) == (
        has.vms,
        Capacity(cpus=has.cpus, memory_mib=has.memory_mib, disk_gib=has.disk_gib),
    )


async def gone(scene: Scene, vm: str, project: str = PROJECT) -> bool:
    """What the leader does at the end of a machine."""
    entry = await VM.get(scene.store, org=ORG, project=project, vm=vm)
    if entry is None:
        return True
    when, then = await quota_release(scene.store, entry.value)
    delete = [VM.delete(**entry.parts), NAME.delete(org=ORG, project=project, name=entry.value.name)]
    return (await scene.store.txn([VM.unchanged(entry), *when], [*delete, *then])).succeeded


@pytest.mark.parametrize("limits", [{"vms": 2}, {"cpus": 2}, {"memory_mib": 1024}, {"disk_gib": 20}])
def test_what_would_be_too_much_is_refused_and_nothing_is_written(limits: dict[str, int]) -> None:
    async def story(scene: Scene) -> None:
        await limited(scene, **limits)
        await scene.made("a")
        await scene.made("b")
        before = await contents(scene.raw)
        with pytest.raises(QuotaExceeded, match=next(iter(limits))):
            await scene.made("c")
        assert await contents(scene.raw) == before
        await gone(scene, (await scene.vms.get(MEMBER_OF_ACME, ORG, PROJECT, "a")).id)
        await scene.made("c")
        await sum_is_right(scene)

    play(story)


def test_a_quota_counts_what_was_there_before_it() -> None:
    async def story(scene: Scene) -> None:
        for name in "abc":
            await scene.made(name)
        await limited(scene, vms=3)
        with pytest.raises(QuotaExceeded):
            await scene.made("d")
        assert (await sum_is_right(scene)).used_vms == 3
        await limited(scene, vms=1)
        assert (await scene.quotas.get(MEMBER_OF_ACME, ORG, PROJECT)).used_vms == 3
        await gone(scene, (await scene.vms.get(MEMBER_OF_ACME, ORG, PROJECT, "a")).id)
        assert (await sum_is_right(scene)).used_vms == 2

    play(story)


def test_an_update_is_charged_with_the_difference() -> None:
    async def story(scene: Scene) -> None:
        await limited(scene, cpus=4, disk_gib=15)
        await scene.made("a")
        await scene.vms.update(asked(), ORG, PROJECT, "a", VmUpdate(cpus=4))
        with pytest.raises(QuotaExceeded, match="cpus"):
            await scene.vms.update(asked(), ORG, PROJECT, "a", VmUpdate(cpus=5))
        with pytest.raises(QuotaExceeded, match="disk_gib"):
            await scene.vms.update(asked(), ORG, PROJECT, "a", VmUpdate(cpus=1, disk_gib=16))
        await limited(scene, cpus=2)
        shrunk = await scene.vms.update(asked(), ORG, PROJECT, "a", VmUpdate(cpus=3))
        assert shrunk.value.spec.cpus == 3  # less is fine, also where it is still too much
        assert (await sum_is_right(scene)).used.cpus == 3

    play(story)


def test_an_update_between_whose_steps_another_replica_creates_is_charged_all_the_same() -> None:
    async def story(scene: Scene) -> None:
        await limited(scene, cpus=4)
        await scene.made("a")
        inner, other = scene.store.txn, scene.another()
        other.vms._store = other.writer._store = scene.raw  # type: ignore[assignment]

        async def created_first(*args: Any) -> Any:
            scene.store.txn = inner  # type: ignore[method-assign]
            await other.made("b")
            return await inner(*args)

        scene.store.txn = created_first  # type: ignore[method-assign]
        await scene.vms.update(asked(), ORG, PROJECT, "a", VmUpdate(cpus=2))
        assert (await sum_is_right(scene)).used.cpus == 3

    play(story)


def test_a_deleting_machine_counts_until_it_is_gone() -> None:
    async def story(scene: Scene) -> None:
        await limited(scene, vms=1)
        view = await scene.made("a")
        await scene.vms.delete(asked(), ORG, PROJECT, "a")
        with pytest.raises(QuotaExceeded):
            await scene.made("b")
        assert await gone(scene, view.id)
        await scene.made("b")

    play(story)


def test_whoever_gives_back_counts_first_where_nobody_has() -> None:
    async def story(scene: Scene) -> None:
        view = await scene.made("a")
        await scene.made("b")
        await limited(scene, vms=5)
        assert await gone(scene, view.id)
        entry = await QUOTA.get(scene.raw, org=ORG, project=PROJECT)
        assert entry is not None
        assert (entry.value.counted, entry.value.used_vms) == (True, 1)

    play(story)


def test_what_is_added_without_asking_is_counted_again() -> None:
    async def story(scene: Scene) -> None:
        await limited(scene, vms=5)
        view = await scene.made("a")
        stored = await VM.get(scene.raw, org=ORG, project=PROJECT, vm=view.id)
        assert stored is not None
        when, then = await quota_recount(scene.raw, ORG, PROJECT)
        copy = VM.put(stored.value, org=ORG, project=PROJECT, vm="copy")
        assert (await scene.raw.txn(when, [copy, *then])).succeeded
        assert (await scene.quotas.get(ADMIN, ORG, PROJECT)).used_vms == 2

    play(story)


def test_quotas_are_set_by_who_manages_accounts_and_seen_by_members() -> None:
    async def story(scene: Scene) -> None:
        with pytest.raises(Forbidden, match="manage_accounts"):
            await scene.quotas.set(asked(), ORG, PROJECT, QuotaSet(vms=1))
        with pytest.raises(Forbidden):
            await scene.quotas.delete(asked(), ORG, PROJECT)
        for verb in (
            scene.quotas.set(asked(STRANGER), ORG, PROJECT, QuotaSet(vms=1)),
            scene.quotas.delete(asked(STRANGER), ORG, PROJECT),
            scene.quotas.get(STRANGER, ORG, PROJECT),
        ):
            with pytest.raises(NotFound):
                await verb
        assert await contents(scene.raw) == {}
        await scene.made()
        none = await scene.quotas.get(MEMBER_OF_ACME, ORG, PROJECT)
        assert (none.revision, none.used_vms, none.limits) == (0, 1, QuotaSet())
        with pytest.raises(NotFound, match="no limits to remove"):
            await scene.quotas.delete(asked(ADMIN), ORG, PROJECT)

    play(story)


def test_setting_and_lifting_can_be_repeated_and_compared() -> None:
    async def story(scene: Scene) -> None:
        request = asked(ADMIN, key="k", fingerprint="f")
        first = await scene.quotas.set(request, ORG, PROJECT, QuotaSet(vms=1))
        again = await scene.quotas.set(request, ORG, PROJECT, QuotaSet(vms=1))
        assert (first.status, again.value, again.revision) == (201, first.value, first.revision)
        assert again.replayed
        with pytest.raises(Stale):
            await scene.quotas.set(asked(ADMIN, if_match=1_000), ORG, PROJECT, QuotaSet(vms=2))
        await scene.quotas.set(asked(ADMIN, if_match=first.revision), ORG, PROJECT, QuotaSet(vms=2))
        before = await contents(scene.raw)
        assert (await scene.quotas.set(asked(ADMIN), ORG, PROJECT, QuotaSet(vms=2))).status == 200
        assert await contents(scene.raw) == before
        lifting = asked(ADMIN, key="l", fingerprint="f")
        lifted = await scene.quotas.delete(lifting, ORG, PROJECT)
        repeated = await scene.quotas.delete(lifting, ORG, PROJECT)
        assert (lifted.value, lifted.value.revision) == (repeated.value, 0)
        await scene.made("a")
        await scene.made("b")
        verbs = [audit.verb for audit in await scene.audits()]
        assert verbs.count("quota.set") == 2
        assert verbs.count("quota.delete") == 1

    play(story)


OWNER = Caller("otto", ROLES[Role.ADMIN], (ORG, f"{ORG}/{PROJECT}", f"{ORG}/other"))
"""Administrator of the org alone."""


@pytest.mark.parametrize("limits", [{"vms": 2}, {"cpus": 2}, {"memory_mib": 1024}, {"disk_gib": 20}])
def test_the_quota_of_an_org_bounds_the_sum_of_its_projects(limits: dict[str, int]) -> None:
    async def story(scene: Scene) -> None:
        first = await scene.made("a")
        await org_limited(scene, **limits)
        await scene.vms.create(asked(OWNER), ORG, "other", VmCreate(name="b", spec=SMALL))
        before = await contents(scene.raw)
        for project in (PROJECT, "other"):
            with pytest.raises(QuotaExceeded, match=f"^org {ORG}: {next(iter(limits))} would be"):
                await scene.vms.create(asked(OWNER), ORG, project, VmCreate(name="c", spec=SMALL))
        assert await contents(scene.raw) == before
        if "vms" not in limits:
            larger = VmUpdate(cpus=2, memory_mib=1024, disk_gib=30)
            with pytest.raises(QuotaExceeded, match=f"^org {ORG}"):
                await scene.vms.update(asked(), ORG, PROJECT, "a", larger)
        await scene.vms.create(asked(ADMIN), "elsewhere", PROJECT, VmCreate(name="d", spec=SMALL))
        assert await gone(scene, first.id)
        await scene.vms.create(asked(OWNER), ORG, "other", VmCreate(name="c", spec=SMALL))
        view = await scene.quotas.get(OWNER, ORG)
        assert (view.project, view.used_vms, view.limits) == ("", 2, QuotaSet(**limits))

    play(story)


def test_the_tighter_of_both_quotas_counts_and_a_project_shows_what_it_inherits() -> None:
    async def story(scene: Scene) -> None:
        await org_limited(scene, vms=3)
        assert (await scene.quotas.get(MEMBER_OF_ACME, ORG, PROJECT)).inherited == QuotaSet(vms=3)
        await limited(scene, vms=1)
        await scene.made("a")
        with pytest.raises(QuotaExceeded, match=f"^project {ORG}/{PROJECT}: vms would be 2"):
            await scene.made("b")
        await limited(scene, vms=9)
        await scene.made("b")
        await scene.made("c")
        with pytest.raises(QuotaExceeded, match=f"^org {ORG}: vms would be 4"):
            await scene.made("d")
        await sum_is_right(scene)
        await scene.quotas.delete(asked(ADMIN), ORG, "")
        await scene.made("d")
        assert (await scene.quotas.get(MEMBER_OF_ACME, ORG, PROJECT)).inherited == QuotaSet()

    play(story)


def test_a_machine_that_changes_hands_within_an_org_does_not_change_what_the_org_has() -> None:
    async def story(scene: Scene) -> None:
        await scene.made("a")
        await org_limited(scene, vms=1)
        await counted(scene.raw, ORG, PROJECT)
        when, then = await quota_transfer(scene.raw, Bound(ORG, PROJECT), Bound(ORG, "other"), share(SMALL))
        assert (await scene.raw.txn(when, then)).succeeded
        assert (await scene.quotas.get(ADMIN, ORG)).used_vms == 1
        with pytest.raises(QuotaExceeded):
            await quota_transfer(scene.raw, Bound("pool", "x"), Bound(ORG, "other"), Share(1))

    play(story)


def test_limits_are_changed_by_nobody_whom_they_bound() -> None:
    """An administrator of the org set the limits of the org's own projects once."""

    async def story(scene: Scene) -> None:
        await limited(scene, vms=1)
        before = await contents(scene.raw)
        for project in (PROJECT, ""):
            with pytest.raises(Forbidden, match=r"takes manage_accounts and membership in \*; ask an administrator"):
                await scene.quotas.set(asked(OWNER), ORG, project, QuotaSet(vms=1_000))
            with pytest.raises(Forbidden, match=r"membership in \*"):
                await scene.quotas.delete(asked(OWNER), ORG, project)
        assert await contents(scene.raw) == before
        assert (await scene.quotas.get(OWNER, ORG)).used_vms == 0
        for caller in (MEMBER_OF_ACME, STRANGER):  # of one project, and of another org
            with pytest.raises(NotFound, match="org acme: not found"):
                await scene.quotas.get(caller, ORG)

    play(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_sum_is_right_whoever_writes_at_once_and_the_limit_is_never_passed(seed: int) -> None:
    """Two replicas, the leader that takes machines away, and somebody who sets and lifts the quota all the while."""

    async def story(scene: Scene) -> None:
        rng = random.Random(seed)
        faults = scene.store.faults
        faults.slow, faults.slowest, faults.lost, faults.unavailable = 0.4, 0.02, 0.03, 0.03
        scenes = (scene, scene.another())
        limits = QuotaSet(vms=6, cpus=12)
        whole = QuotaSet(vms=7, cpus=12)

        async def client(number: int) -> None:
            vms = scenes[number % 2].vms
            for step in range(6):
                try:
                    await one(vms, f"vm{number}-{step}")
                except HostlerError:
                    continue
                finally:
                    await scene.clock.sleep(rng.random() * 0.05)

        async def one(vms: Any, name: str) -> None:
            kind = rng.randrange(4)
            if kind < 2:
                await vms.create(asked(), ORG, PROJECT, VmCreate(name=name, spec=VmSpec(cpus=2, memory_mib=1)))
                return
            stored = (await VM.list(scene.raw)).entries
            if stored and kind == 2:
                vm = rng.choice(stored).value.id
                await vms.update(asked(), ORG, PROJECT, vm, VmUpdate(cpus=rng.randrange(1, 4)))
            elif stored:
                await gone(scene, rng.choice(stored).value.id)

        async def operator() -> None:
            for _ in range(2):
                for verb in (
                    lambda: scene.quotas.set(asked(ADMIN), ORG, PROJECT, limits),
                    lambda: scene.quotas.set(asked(ADMIN), ORG, "", whole),
                    lambda: scene.quotas.delete(asked(ADMIN), ORG, PROJECT),
                    lambda: scene.quotas.delete(asked(ADMIN), ORG, ""),
                ):
                    with contextlib.suppress(HostlerError):
                        await verb()
                    await scene.clock.sleep(rng.random() * 0.1)
            while await QUOTA.get(scene.raw, org=ORG, project=PROJECT) is None:
                with contextlib.suppress(HostlerError):
                    await scene.quotas.set(asked(ADMIN), ORG, PROJECT, limits)

            while await ORG_QUOTA.get(scene.raw, org=ORG) is None:
                with contextlib.suppress(HostlerError):
                    await scene.quotas.set(asked(ADMIN), ORG, "", whole)

        await asyncio.gather(operator(), *(client(number) for number in range(12)))
        # What was counted once and then only added to and taken from: it must still be what there is.
        faults.slow = faults.lost = faults.unavailable = 0.0
        await asyncio.gather(*(client(number) for number in range(12)))
        assert (await sum_is_right(scene)).counted

    play(story, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_many_creates_at_once_fill_a_quota_to_the_brim_and_not_beyond(seed: int) -> None:
    async def story(scene: Scene) -> None:
        await limited(scene, vms=10)
        await org_limited(scene, vms=11)
        scene.store.faults.slow, scene.store.faults.slowest = 0.5, 0.01
        scenes = (scene, scene.another())
        outcomes = await asyncio.gather(*(scenes[n % 2].made(f"vm{n}") for n in range(30)), return_exceptions=True)
        refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        assert {type(error) for error in refused} <= {QuotaExceeded, Conflict}
        assert QuotaExceeded in {type(error) for error in refused} or len(refused) == 20
        assert (await sum_is_right(scene)).used_vms == 30 - len(refused) <= 10

    play(story, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_creates_in_several_projects_at_once_fill_the_quota_of_the_org_and_not_more(seed: int) -> None:
    async def story(scene: Scene) -> None:
        await org_limited(scene, vms=10)
        scene.store.faults.slow, scene.store.faults.slowest = 0.5, 0.01
        projects = [PROJECT, "b", "c"]
        caller = Caller("mo", ROLES[Role.MEMBER], tuple(f"{ORG}/{project}" for project in projects))

        async def made(number: int) -> None:
            vms = (scene, other)[number % 2].vms
            await vms.create(asked(caller), ORG, projects[number % 3], VmCreate(name=f"vm{number}", spec=SMALL))

        other = scene.another()
        outcomes = await asyncio.gather(*(made(number) for number in range(30)), return_exceptions=True)
        refused = {type(outcome) for outcome in outcomes if outcome is not None}
        assert refused <= {QuotaExceeded, Conflict}
        has = await count(scene.raw, Bound(ORG))
        assert has.vms == outcomes.count(None) <= 10
        assert (await scene.quotas.get(ADMIN, ORG)).used_vms == has.vms

    play(story, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_clients_of_one_replica_do_not_fight_over_a_quota(seed: int) -> None:
    async def story(scene: Scene) -> None:
        await limited(scene, vms=10)
        scene.store.faults.slow, scene.store.faults.slowest = 0.5, 0.01
        outcomes = await asyncio.gather(*(scene.made(f"vm{n}") for n in range(30)), return_exceptions=True)
        refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        assert [type(error) for error in refused] == [QuotaExceeded] * 20

    play(story, seed=seed)


def test_a_quota_that_never_rests_ends_in_a_conflict() -> None:
    async def story(scene: Scene) -> None:
        await limited(scene, vms=10)
        inner = scene.raw.get

        async def restless(key: str, **more: Any) -> Any:
            if key.startswith("/hostler/v1/quotas/"):
                put = QUOTA.put(Quota(vms=10), org=ORG, project=PROJECT)
                found = await inner(key, **more)
                await scene.raw.put(put.key, put.value)
                return found
            return await inner(key, **more)

        scene.raw.get = restless  # type: ignore[method-assign, assignment]
        with pytest.raises(Conflict):
            await scene.made("a", spec=SMALL)

    play(story)

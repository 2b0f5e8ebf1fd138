"""Many at once on few machines: no lost update, no lock left, and a sleeper writes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import pytest
from dose import dose
from service_scene import MEMBER_OF_ACME, ORG, PROJECT, SMALL, Scene, asked, contents, play

from hostler.errors import Conflict, HostlerError, NotFound, Unavailable, Uncertain
from hostler.keys.access import AUDIT
from hostler.keys.vm import LOCK, NAME, VM
from hostler.model.api import Phase, VmCreate, VmUpdate
from hostler.model.vm import LockInfo, Power

SEEDS = range(dose(test=10, full=300))


async def locked_by_another(scene: Scene, vm: str, ttl: float) -> Any:
    lease = await scene.raw.grant(ttl)
    put = LOCK.put(LockInfo(timestamp=1, node_id="another"), lease=lease, org=ORG, project=PROJECT, vm=vm)
    await scene.raw.txn([], [put])
    return lease


@pytest.mark.parametrize("verb", ["start", "snapshot"])
def test_a_held_lock_is_waited_for_a_moment_and_then_a_conflict(verb: str) -> None:
    async def story(scene: Scene) -> None:
        view = await scene.made(power=Power.OFF)
        lease = await locked_by_another(scene, view.id, 60)
        more = ("one",) if verb == "snapshot" else ()
        before = await contents(scene.raw)
        with pytest.raises(Conflict):
            await getattr(scene.vms, verb)(asked(), ORG, PROJECT, "a", *more)
        assert scene.clock.now() < 2
        assert await contents(scene.raw) == before
        await lease.revoke()
        await getattr(scene.vms, verb)(asked(), ORG, PROJECT, "a", *more)
        assert (await scene.counts())["locks"] == 0

    play(story)


def test_writes_in_one_transaction_do_not_care_for_locks() -> None:
    async def story(scene: Scene) -> None:
        view = await scene.made()
        await locked_by_another(scene, view.id, 60)
        await scene.vms.update(asked(), ORG, PROJECT, "a", VmUpdate(cpus=2))
        await scene.vms.stop(asked(), ORG, PROJECT, "a")
        assert (await scene.vms.delete(asked(), ORG, PROJECT, "a")).value.phase is Phase.DELETING

    play(story)


def test_a_holder_that_slept_past_its_lease_writes_nothing() -> None:
    async def story(scene: Scene) -> None:
        view = await scene.made(power=Power.OFF)
        inner = scene.store.txn

        async def sleeps_first(when: Any, then: Any, otherwise: Any = ()) -> Any:
            if any(op.key.startswith("/plasmavmc/vms/") for op in then):
                await scene.clock.sleep(40)
            return await inner(when, then, otherwise)

        scene.store.txn = sleeps_first  # type: ignore[method-assign]
        stored = await VM.get(scene.raw, org=ORG, project=PROJECT, vm=view.id)
        with pytest.raises(Conflict):
            await scene.vms.start(asked(), ORG, PROJECT, "a")
        assert await VM.get(scene.raw, org=ORG, project=PROJECT, vm=view.id) == stored
        assert (await scene.counts())["locks"] == 0

    play(story)


def test_a_sleeper_does_not_take_away_the_lock_of_the_next_holder() -> None:
    async def story(scene: Scene) -> None:
        view = await scene.made(power=Power.OFF)
        inner = scene.store.txn

        async def sleeps_first(when: Any, then: Any, otherwise: Any = ()) -> Any:
            if any(op.key.startswith("/plasmavmc/vms/") for op in then):
                await scene.clock.sleep(40)
                if await LOCK.get(scene.raw, org=ORG, project=PROJECT, vm=view.id) is None:
                    await locked_by_another(scene, view.id, 1000)
            return await inner(when, then, otherwise)

        scene.store.txn = sleeps_first  # type: ignore[method-assign]
        with pytest.raises(Conflict):
            await scene.vms.start(asked(), ORG, PROJECT, "a")
        left = await LOCK.get(scene.raw, org=ORG, project=PROJECT, vm=view.id)
        assert left is not None
        assert left.value.node_id == "another"

    play(story)


STEPS_OF_A_START = [
    *((verb, fault, 1) for verb in ("grant", "revoke") for fault in ("lost", "never", "unavailable")),
    *(("txn", fault, nth) for fault in ("lost", "never", "unavailable") for nth in (1, 2)),
    *(("get", "unavailable", nth) for nth in (1, 2, 3, 4)),
]


@pytest.mark.parametrize(("verb", "fault", "nth"), STEPS_OF_A_START)
def test_whatever_fails_in_a_start_no_lock_outlives_its_lease(verb: Any, fault: Any, nth: int) -> None:
    async def story(scene: Scene) -> None:
        await scene.made(power=Power.OFF)
        scene.store.script(verb, fault, prefix="/plasmavmc/" if verb in ("txn", "get") else "", nth=nth)
        with contextlib.suppress(Unavailable, Uncertain):
            await scene.vms.start(asked(), ORG, PROJECT, "a")
        assert not scene.store._scripts, "the step was never reached"
        await scene.clock.sleep(60)
        assert (await scene.counts())["locks"] == 0
        assert (await scene.vms.start(asked(), ORG, PROJECT, "a")).value.power is Power.ON

    play(story)


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize(
    "faults",
    [("revoke", "unavailable"), ("revoke", "never"), ("txn", "never"), ("txn", "lost"), ("txn", "unavailable")],
)
def test_a_success_that_had_nothing_to_do_leaves_no_lock_behind_either(
    faults: tuple[Any, Any], key: str | None
) -> None:
    async def story(scene: Scene) -> None:
        await scene.made(power=Power.ON)
        failing, kind = faults
        scene.store.script("revoke", kind if failing == "revoke" else "unavailable")
        if failing == "txn":  # the first takes the lock
            scene.store.script("txn", kind, prefix="/plasmavmc/locks/", nth=2)
        try:
            await scene.vms.start(asked(key=key), ORG, PROJECT, "a")
        except Unavailable:
            assert failing == "txn"
        else:
            assert failing == "revoke"
            assert (await scene.counts())["locks"] == 0
        assert not scene.store._scripts, "the step was never reached"

    play(story)


def test_a_start_that_is_cancelled_leaves_no_lock() -> None:
    async def story(scene: Scene) -> None:
        await scene.made(power=Power.OFF)
        scene.store.faults.slow = 1.0
        for after in (0.5, 1.0, 1.5, 2.0, 2.5, 3.0):
            task = asyncio.create_task(scene.vms.start(asked(), ORG, PROJECT, "a"))
            await scene.clock.sleep(after)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        scene.store.faults.slow = 0.0
        await scene.clock.sleep(40)
        assert (await scene.counts())["locks"] == 0

    play(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_fifty_clients_on_few_machines_lose_no_update_and_leave_no_lock(seed: int) -> None:
    """Every acknowledged change counts exactly once: the generation of a machine is the number of its changes."""

    async def story(scene: Scene) -> None:
        rng = random.Random(seed)
        scenes = (scene, scene.another())
        scene.store.faults.slow, scene.store.faults.slowest = 0.5, 0.02
        changes: dict[str, int] = {}
        conflicts = 0

        async def client(number: int) -> None:
            nonlocal conflicts
            vms = scenes[number % 2].vms
            for step in range(8):
                name = f"vm{rng.randrange(3)}"
                try:
                    written = await one(vms, name, f"{number}-{step}")
                except (Conflict, NotFound):
                    conflicts += 1
                    continue
                changes[written.value.id] = changes.get(written.value.id, 0) + 1
                await scene.clock.sleep(rng.random() * 0.1)

        async def one(vms: Any, name: str, mark: str) -> Any:
            kind = rng.randrange(6)
            if kind == 0:
                return await vms.create(asked(), ORG, PROJECT, VmCreate(name=name, spec=SMALL))
            if kind == 1:
                return await vms.snapshot(asked(), ORG, PROJECT, name, mark)
            if kind == 2:
                return await vms.reset(asked(), ORG, PROJECT, name)
            if kind == 3:
                seen = await vms.get(MEMBER_OF_ACME, ORG, PROJECT, name)
                request = asked(if_match=seen.revision)
                return await vms.update(request, ORG, PROJECT, name, VmUpdate(labels={"mark": mark}))
            return await vms.update(asked(), ORG, PROJECT, name, VmUpdate(user_data=mark))

        await asyncio.gather(*(client(number) for number in range(50)))
        stored = (await VM.list(scene.raw)).entries
        assert {entry.value.id: entry.value.generation for entry in stored} == changes
        assert {entry.value.name: entry.value.id for entry in stored} == {
            entry.parts["name"]: entry.value for entry in (await NAME.list(scene.raw)).entries
        }
        assert (await scene.counts())["locks"] == 0
        assert conflicts > 0
        # Each audit names the revision it was made from: together they are one chain per machine, so a serial order.
        audits: dict[str, list[tuple[int, int]]] = {}
        for entry in (await AUDIT.list(scene.raw)).entries:
            audits.setdefault(entry.value.subject, []).append((entry.value.before, entry.create_revision))
        for chain in audits.values():
            chain.sort()
            assert [before for before, _ in chain] == [0, *(after for _, after in chain[:-1])]

    play(story, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_lost_answers_among_many_clients_lose_no_update_either(seed: int) -> None:
    async def story(scene: Scene) -> None:
        await scene.made()
        faults = scene.store.faults
        faults.lost = faults.never = faults.unavailable = 0.05
        sure = unsure = 0

        async def client() -> None:
            nonlocal sure, unsure
            for _ in range(5):
                try:
                    await scene.vms.reset(asked(), ORG, PROJECT, "a")
                except Uncertain:
                    unsure += 1
                except HostlerError:
                    continue
                else:
                    sure += 1

        await asyncio.gather(*(client() for _ in range(20)))
        (entry,) = (await VM.list(scene.raw)).entries
        assert sure <= entry.value.resets <= sure + unsure

    play(story, seed=seed)

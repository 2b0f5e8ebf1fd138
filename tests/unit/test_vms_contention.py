"""Many at once on few machines: no lost update, no lock left, and a sleeper writes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import msgspec
import pytest
from dose import dose
from service_scene import MEMBER_OF_ACME, ORG, PROJECT, SMALL, Scene, asked, contents, play

from hostler.engine.request import HOSTLER, Request
from hostler.engine.vms import VmService
from hostler.entry.doctor.examination import locks_without_lease
from hostler.errors import Conflict, HostlerError, LockHeld, NotFound, Unavailable, Uncertain
from hostler.keys.families import AUDIT, LOCK, NAME, VM
from hostler.model.vm import LockInfo, Power, VirtualMachine
from hostler.model.vm_api import MoveRequest, VmCreate, VmPhase, VmUpdate
from hostler.ports.machine_driver import Level

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
        assert (await scene.vms.delete(asked(), ORG, PROJECT, "a")).value.phase is VmPhase.DELETING

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


def test_v17_a_migration_takes_the_lock_and_deletes_it() -> None:
    async def story(scene: Scene) -> None:
        await scene.node("local-1", moves=True, driver="simulated")
        await scene.node("local-2", moves=True, driver="simulated")
        view = await scene.made()
        await scene.seen(view)
        lease = await locked_by_another(scene, view.id, 60)
        before = await contents(scene.raw)
        with pytest.raises(LockHeld):
            await scene.vms.move(asked(), ORG, PROJECT, "a", MoveRequest(to="local-2"))
        assert await contents(scene.raw) == before
        await lease.revoke()
        await scene.vms.move(asked(), ORG, PROJECT, "a", MoveRequest(to="local-2"))
        assert (await scene.counts())["locks"] == 0

    play(story)


def test_v45_a_held_lock_is_a_conflict_of_its_own_that_names_holder_and_time() -> None:
    async def story(scene: Scene) -> None:
        view = await scene.made(power=Power.OFF)
        await locked_by_another(scene, view.id, 60)
        with pytest.raises(LockHeld, match=r"held by 'another' since 1970-01-01T00:00:01.*Z; nothing was written"):
            await scene.vms.start(asked(), ORG, PROJECT, "a")

    play(story)


def test_v45_a_held_lock_without_a_lease_is_said_never_to_expire() -> None:
    async def story(scene: Scene) -> None:
        view = await scene.made(power=Power.OFF)
        put = LOCK.put(LockInfo(timestamp=1, node_id="another"), org=ORG, project=PROJECT, vm=view.id)
        await scene.raw.txn([], [put])
        with pytest.raises(LockHeld, match=f"has no lease, so it never expires; .*hostler store delete {put.key}"):
            await scene.vms.start(asked(), ORG, PROJECT, "a")
        found = await locks_without_lease(scene.raw)
        assert [finding.level for finding in found] == [Level.WARN]
        assert put.key in found[0].what

    play(story)


def test_v11_a_lock_with_a_lease_is_nothing_for_the_doctor() -> None:
    async def story(scene: Scene) -> None:
        view = await scene.made(power=Power.OFF)
        await locked_by_another(scene, view.id, 60)
        assert await locks_without_lease(scene.raw) == []

    play(story)


def test_v6_a_lock_names_the_holder_of_the_replica() -> None:
    async def story(scene: Scene) -> None:
        await scene.made(power=Power.OFF)
        scene.vms = VmService(
            scene.store,
            scene.writer,
            scene.view,
            scene.env,
            holder=lambda: "replica-holder",
        )
        inner, seen = scene.store.txn, []

        async def noted(when: Any, then: Any, otherwise: Any = ()) -> Any:
            seen.extend(
                LOCK.decode(op.value, where=op.key)
                for op in then
                if op.key.startswith(LOCK.prefix()) and hasattr(op, "value")
            )
            return await inner(when, then, otherwise)

        scene.store.txn = noted  # type: ignore[method-assign]
        await scene.vms.start(asked(), ORG, PROJECT, "a")
        assert [lock.node_id for lock in seen] == ["replica-holder"]

    play(story)


def test_v50_a_machine_that_another_program_put_is_found_by_its_name() -> None:
    async def story(scene: Scene) -> None:
        view = await scene.made("other")
        stored = await VM.get(scene.raw, org=ORG, project=PROJECT, vm=view.id)
        assert stored is not None
        for number in (1, 2):
            vm = msgspec.structs.replace(stored.value, id=f"theirs-{number}", name="Theirs")
            put = VM.put(vm, org=ORG, project=PROJECT, vm=vm.id)
            revision = await scene.raw.put(put.key, put.value)
            while scene.view.vms.revision < revision:
                await scene.clock.sleep(0.1)
            if number == 1:
                found = await scene.vms.get(MEMBER_OF_ACME, ORG, PROJECT, "theirs")
                assert found.id == "theirs-1"
        with pytest.raises(Conflict, match="2 machines have this name; name one by its id: theirs-1, theirs-2"):
            await scene.vms.get(MEMBER_OF_ACME, ORG, PROJECT, "theirs")

    play(story)


def test_v45_the_advice_about_a_lock_can_be_pasted_whatever_another_program_wrote() -> None:
    async def story(scene: Scene) -> None:
        org, id_ = "acme $(reboot)", "v 1"
        record = VirtualMachine(id=id_, name="a", org=org, project=PROJECT, spec=SMALL, created_at=0.0)
        lock = LOCK.put(LockInfo(timestamp=10**18, node_id="n" * 100_000), org=org, project=PROJECT, vm=id_)
        await scene.raw.txn([], [VM.put(record, org=org, project=PROJECT, vm=id_), lock])
        with pytest.raises(LockHeld) as refused:
            await scene.vms.start(Request(HOSTLER), org, PROJECT, id_)
        said = str(refused.value)
        assert said.endswith(f"hostler store delete '{lock.key}'")
        assert len(said) < 500
        (found,) = await locks_without_lease(scene.raw)
        assert found.next.endswith(f"hostler store delete '{lock.key}'")

    play(story)

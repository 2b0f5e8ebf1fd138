"""Writing: the audit, repeating with an Idempotency-Key, lost answers, and a store that is out of reach."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from service_scene import ADMIN, MEMBER_OF_ACME, ORG, PROJECT, SMALL, Scene, asked, contents, play

from hostler.engine import idempotent_writer
from hostler.engine.cluster_id import cluster_id
from hostler.engine.idempotent_writer import instants
from hostler.errors import Conflict, Invalid, KeyReused, Unavailable, Uncertain
from hostler.keys.families import ANSWERED, CLUSTER
from hostler.model.vm_api import VmCreate, VmUpdate

WISH = VmCreate(name="a", spec=SMALL)
DAY = 86400.0


def keyed(key: str = "k", fingerprint: str = "f", **more: Any) -> Any:
    return asked(key=key, fingerprint=fingerprint, **more)


def test_a_repeated_request_is_answered_alike_and_done_once() -> None:
    async def story(scene: Scene) -> None:
        first = await scene.vms.create(keyed(), ORG, PROJECT, WISH)
        await scene.vms.update(asked(), ORG, PROJECT, "a", VmUpdate(name="b"))
        before = await contents(scene.raw)
        again = await scene.vms.create(keyed(), ORG, PROJECT, WISH)
        assert not first.replayed
        assert again.replayed
        assert (again.value, again.revision, again.status) == (first.value, first.revision, first.status)
        assert await contents(scene.raw) == before

    play(story)


STEPS: dict[str, Any] = {
    "update": lambda s, r: s.vms.update(r, ORG, PROJECT, "a", VmUpdate(cpus=2)),
    "update to the same": lambda s, r: s.vms.update(r, ORG, PROJECT, "a", VmUpdate(cpus=1)),
    "stop": lambda s, r: s.vms.stop(r, ORG, PROJECT, "a"),
    "start": lambda s, r: s.vms.start(r, ORG, PROJECT, "a"),
    "reset": lambda s, r: s.vms.reset(r, ORG, PROJECT, "a"),
    "snapshot": lambda s, r: s.vms.snapshot(r, ORG, PROJECT, "a", "one"),
    "delete": lambda s, r: s.vms.delete(r, ORG, PROJECT, "a"),
}


@pytest.mark.parametrize("verb", STEPS)
def test_every_write_can_be_repeated_also_after_others_wrote(verb: str) -> None:
    async def story(scene: Scene) -> None:
        await scene.made()
        first = await STEPS[verb](scene, keyed())
        if verb != "delete":
            await scene.vms.update(asked(), ORG, PROJECT, "a", VmUpdate(cpus=7))
        before = await contents(scene.raw)
        again = await STEPS[verb](scene, keyed())
        assert (again.value, again.revision, again.status) == (first.value, first.revision, first.status)
        assert again.replayed
        assert await contents(scene.raw) == before

    play(story)


def test_a_key_stands_for_one_request_of_one_caller() -> None:
    async def story(scene: Scene) -> None:
        await scene.vms.create(keyed(), ORG, PROJECT, WISH)
        before = await contents(scene.raw)
        with pytest.raises(KeyReused):
            await scene.vms.create(keyed(fingerprint="g"), ORG, PROJECT, VmCreate(name="b", spec=SMALL))
        with pytest.raises(KeyReused):
            await scene.vms.update(keyed(fingerprint="g"), ORG, PROJECT, "a", VmUpdate(cpus=2))
        assert await contents(scene.raw) == before
        other = await scene.vms.create(
            asked(ADMIN, key="k", fingerprint="g"), ORG, PROJECT, VmCreate(name="b", spec=SMALL)
        )
        assert not other.replayed

    play(story)


@pytest.mark.parametrize("key", ["", "a/b", "x" * 256, "a\n"])
def test_a_key_that_cannot_be_is_refused(key: str) -> None:
    async def story(scene: Scene) -> None:
        with pytest.raises(Invalid, match="Idempotency-Key"):
            await scene.vms.create(keyed(key), ORG, PROJECT, WISH)
        assert await contents(scene.raw) == {}

    play(story)


@pytest.mark.parametrize("seed", range(20))
def test_the_same_request_sent_many_times_at_once_makes_one_machine(seed: int) -> None:
    async def story(scene: Scene) -> None:
        scene.store.faults.slow = 0.5
        both = (scene, scene.another())
        tries = (both[n % 2].vms.create(keyed(), ORG, PROJECT, WISH) for n in range(10))
        answers = await asyncio.gather(*tries)
        assert len({answer.value.id for answer in answers}) == 1
        assert [answer.replayed for answer in answers].count(False) == 1
        counts = await scene.counts()
        assert (counts["vms"], counts["names"], counts["audits"]) == (1, 1, 1)

    play(story, seed=seed)


@pytest.mark.slow
def test_answers_are_kept_for_a_day_and_no_more_than_an_hour_longer() -> None:
    async def story(scene: Scene) -> None:
        await scene.vms.create(keyed("early"), ORG, PROJECT, WISH)
        await scene.clock.sleep(3590)
        await scene.vms.stop(keyed("late"), ORG, PROJECT, "a")
        await scene.clock.sleep(11)
        await scene.vms.start(keyed("next"), ORG, PROJECT, "a")
        (early, late, after) = [
            (await ANSWERED.get(scene.raw, user="mia", life=0, request=name)) for name in ("early", "late", "next")
        ]
        assert early is not None
        assert late is not None
        assert after is not None
        assert early.lease == late.lease != after.lease
        await scene.clock.sleep(DAY - 12)
        assert await scene.writer.replay(keyed("late")) is not None
        await scene.clock.sleep(3600 + 2)
        assert await scene.writer.replay(keyed("early")) is None
        assert await scene.writer.replay(keyed("late")) is None

    play(story)


def test_no_lease_carries_more_answers_than_one_transaction_should_delete(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(scene: Scene) -> None:
        monkeypatch.setattr(idempotent_writer, "LEASE_LOAD", 3)
        for number in range(7):
            await scene.vms.create(keyed(f"k{number}"), ORG, PROJECT, VmCreate(name=f"a{number}", spec=SMALL))
        leases = [entry.lease for entry in (await ANSWERED.list(scene.raw)).entries]
        assert sorted(leases.count(lease) for lease in set(leases)) == [1, 3, 3]

    play(story)


def test_a_lease_that_was_lost_is_replaced() -> None:
    async def story(scene: Scene) -> None:
        await scene.vms.create(keyed("k1"), ORG, PROJECT, WISH)
        assert scene.writer._lease is not None
        await scene.writer._lease.revoke()
        await scene.vms.stop(keyed("k2"), ORG, PROJECT, "a")
        assert [entry.parts["request"] for entry in (await ANSWERED.list(scene.raw)).entries] == ["k2"]

    play(story)


# Lost answers


def test_a_create_whose_answer_was_lost_is_found_by_its_audit() -> None:
    async def story(scene: Scene) -> None:
        scene.store.script("txn", "lost", prefix="/plasmavmc/vms/")
        written = await scene.vms.create(asked(), ORG, PROJECT, WISH)
        assert await scene.vms.get(MEMBER_OF_ACME, ORG, PROJECT, "a") == written.value
        assert (await scene.counts())["audits"] == 1

    play(story)


def test_a_create_that_never_arrived_is_uncertain_and_repeating_it_makes_one_machine() -> None:
    async def story(scene: Scene) -> None:
        scene.store.script("txn", "never", prefix="/plasmavmc/vms/")
        with pytest.raises(Uncertain, match="Idempotency-Key"):
            await scene.vms.create(keyed(), ORG, PROJECT, WISH)
        assert (await scene.counts())["vms"] == 0
        assert not (await scene.vms.create(keyed(), ORG, PROJECT, WISH)).replayed
        assert (await scene.vms.create(keyed(), ORG, PROJECT, WISH)).replayed
        assert (await scene.counts())["vms"] == 1

    play(story)


def test_a_write_that_a_full_store_answered_was_not_made_and_the_caller_learns_what_is_full() -> None:
    async def story(scene: Scene) -> None:
        full = Uncertain(
            "etcd Txn: etcd's database is full (2.0 GiB of 2.0 GiB); run hostler store repair", answered=True
        )

        async def refuse(*_: object, **__: object) -> None:
            raise full

        scene.store.txn = refuse  # type: ignore[method-assign,assignment]
        before = scene.clock.now()
        with pytest.raises(Unavailable, match="nothing was written; etcd Txn: etcd's database is full"):
            await scene.vms.create(keyed(), ORG, PROJECT, WISH)
        assert scene.clock.now() == before, "one read decides"

    play(story)


def test_a_write_that_nobody_can_look_up_is_uncertain_and_its_repetition_tells() -> None:
    async def story(scene: Scene) -> None:
        scene.store.script("txn", "lost", prefix="/plasmavmc/vms/")
        scene.store.script("get", "unavailable", prefix="/hostler/v1/audit/", times=3)
        with pytest.raises(Uncertain):
            await scene.vms.create(keyed(), ORG, PROJECT, WISH)
        again = await scene.vms.create(keyed(), ORG, PROJECT, WISH)
        assert again.replayed
        assert (await scene.counts())["vms"] == 1

    play(story)


def test_a_store_that_is_known_to_be_away_is_not_asked_what_became_of_a_write(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(scene: Scene) -> None:
        txn, looks = scene.store.txn, []

        async def lost(*args: Any) -> Any:
            scene.healthy = False
            await txn(*args)
            raise Uncertain("store: no answer")

        async def look(key: str) -> None:
            looks.append(key)

        monkeypatch.setattr(scene.store, "txn", lost)
        monkeypatch.setattr(scene.store, "get", look)
        with pytest.raises(Uncertain, match="Idempotency-Key"):
            await scene.vms.create(keyed(), ORG, PROJECT, WISH)
        assert looks == []
        monkeypatch.undo()
        scene.healthy = True
        assert (await scene.vms.create(keyed(), ORG, PROJECT, WISH)).replayed

    play(story)


@pytest.mark.parametrize("seed", range(30))
def test_repeating_until_it_is_answered_makes_one_machine_of_each_wish_whatever_is_lost(seed: int) -> None:
    async def story(scene: Scene) -> None:
        faults = scene.store.faults
        faults.lost = faults.never = faults.unavailable = faults.slow = 0.15

        async def client(number: int) -> tuple[str, int]:
            wanted = VmCreate(name=f"vm{number}", spec=SMALL)
            while True:
                try:
                    written = await scene.vms.create(keyed(f"k{number}"), ORG, PROJECT, wanted)
                except (Uncertain, Unavailable):
                    await scene.clock.sleep(0.1)
                else:
                    return written.value.id, written.revision

        answers = await asyncio.gather(*(client(number % 5) for number in range(15)))
        for fault in ("lost", "never", "unavailable", "slow"):
            setattr(faults, fault, 0.0)
        assert len(set(answers)) == 5
        counts = await scene.counts()
        assert (counts["vms"], counts["names"], counts["audits"], counts["answers"]) == (5, 5, 5, 5)

    play(story, seed=seed)


# A store that is out of reach


def test_while_the_store_is_known_to_be_out_of_reach_writes_are_refused_at_once() -> None:
    async def story(scene: Scene) -> None:
        await scene.made()
        before = await contents(scene.raw)
        scene.healthy = False
        scene.store.down()
        for request in (asked(), keyed()):
            for step in STEPS.values():
                with pytest.raises(Unavailable, match="out of reach"):
                    await step(scene, request)
            with pytest.raises(Unavailable, match="out of reach"):
                await scene.vms.create(request, ORG, PROJECT, WISH)
        assert await contents(scene.raw) == before

    play(story)


def test_others_that_keep_writing_end_in_a_conflict_and_not_in_a_hang() -> None:
    async def story(scene: Scene) -> None:
        view = await scene.made()
        key = (await scene.raw.range("/plasmavmc/vms/")).items[0].key
        tries = 0
        inner = scene.raw.txn

        async def beaten(*args: Any) -> Any:
            nonlocal tries
            tries += 1
            kv = await scene.raw.get(key)
            assert kv is not None
            await scene.raw.put(key, kv.value)
            return await inner(*args)

        scene.raw.txn = beaten  # type: ignore[method-assign, assignment]
        with pytest.raises(Conflict, match="try again"):
            await scene.vms.stop(asked(), ORG, PROJECT, view.id)
        assert tries == 4
        assert 0.01 < scene.clock.now() < 2

    play(story)


def test_instants_sort_as_time_does() -> None:
    walls = [1_767_225_600.0 + n * 7919.37 for n in range(1000)]
    assert [instants(wall) for wall in walls] == sorted(instants(wall) for wall in walls)
    assert instants(1_767_225_600.25) == ("2026-01-01", "00:00:00.250000")


# The id of the control plane


@pytest.mark.parametrize("fault", ["lost", "never", "unavailable"])
def test_all_get_the_same_id_of_the_control_plane(fault: Any) -> None:
    async def story(scene: Scene) -> None:
        scene.store.script("txn", fault, prefix=CLUSTER.fill(), nth=2, times=2)
        scene.store.faults.slow = 1.0  # so that all of them look before one has written

        async def asking() -> str:
            while True:
                try:
                    return await cluster_id(scene.store, scene.clock, scene.new_id)
                except Unavailable:
                    await scene.clock.sleep(0.1)

        assert len(set(await asyncio.gather(*(asking() for _ in range(8))))) == 1

    play(story)

"""`hostler replica` and `hostler leader`: what they refuse, what they show, and the parts they are made of."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

import hostler
from hostler.drivers.store.memory import MemoryStore
from hostler.drivers.ttl.store import StoreTtlStorage
from hostler.engine.elections import Elections
from hostler.engine.replica_records import Presence
from hostler.entry.campaign import CampaignConfig, Leading, stand
from hostler.entry.cli import main
from hostler.entry.cli.show import span
from hostler.entry.leader import look, takeovers
from hostler.entry.replica import count
from hostler.errors import Conflict, LeadershipLost, Unavailable
from hostler.keys.families import DEMONSTRATION, FENCE, LEADER, REPLICA
from hostler.kit.clock import SystemClock
from hostler.kit.virtual_loop import VirtualClock, run_virtual
from hostler.model.replica import LeaderRecord, ReplicaRecord, Tally
from hostler.ports.store import Put
from hostler.wiring import open_store, open_ttl_storage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from hostler.ports.store import Lease

FIRST = LEADER.fill(n=1)
ME = ReplicaRecord(address="here:1", holder="me", ttl=0.4, started_at=1.0)


@pytest.fixture
async def storage() -> AsyncIterator[StoreTtlStorage]:
    async with StoreTtlStorage(MemoryStore()) as opened:
        yield opened


async def until_present(store: MemoryStore, record: ReplicaRecord | None) -> None:
    async with asyncio.timeout(30):
        while True:
            entry = await REPLICA.get(store, holder="me")
            if (entry.value if entry else None) == record:
                return
            await asyncio.sleep(0.005)


# What is refused


@pytest.mark.parametrize(
    "arguments",
    [
        ("--ttl", "0"),
        ("--ttl", "-1"),
        ("--ttl", "nan"),
        ("--ttl", "inf"),
        ("--ttl", "soon"),
        ("--replicas", "0"),
        ("--address", ""),
        ("--address", "here"),
        ("--address", "here:0"),
        ("--address", "here:65536"),
        ("--address", ":1"),
        ("--address", "two words:1"),
        ("--address", "line\nbreak:1"),
        ("--address", "x" * 300 + ":1"),
        ("--store", "bogus://x"),
        ("--store", "sqlite://relative.db"),
        ("--store", "redis://"),
    ],
)
def test_a_replica_that_cannot_be_is_refused_at_once(
    arguments: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = () if "--store" in arguments else ("--store", f"sqlite://{tmp_path}/store.db")
    assert main(["replica", *arguments, *store]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_looking_for_a_leader_creates_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for more in ((), ("--watch",)):
        assert main(["leader", "--store", f"sqlite://{tmp_path}/store.db", *more]) == 3
        assert "no such file" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_record_that_is_none_is_damage_and_not_absence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite://{tmp_path}/store.db"
    main(["store", "put", FIRST, "nonsense", "--store", url])
    assert main(["leader", "--store", url]) == 8
    assert main(["leader", "--watch", "--store", url]) == 8
    assert FIRST in capsys.readouterr().err


# What is shown


def test_where_nobody_leads_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite://{tmp_path}/store.db"
    main(["store", "put", "/x", "y", "--store", url])
    capsys.readouterr()
    assert main(["leader", "--store", url]) == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "no leader" in shown.err
    assert main(["leader", "--store", url, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"leader": None, "others": [], "standing_by": []}


async def test_the_scene_has_the_leader_the_other_holders_and_who_stands_by(storage: StoreTtlStorage) -> None:
    store = storage.store
    elections, began = Elections(storage), SystemClock().now()
    leading = await elections.acquire(FIRST, "one:1", ttl=30)
    second = await elections.acquire(LEADER.fill(n=2), "two:1", ttl=30)
    claim = LeaderRecord(address="three:1", holder="h3", fence=0)
    assert leading is not None
    assert second is not None
    await store.txn(
        [],
        [
            LEADER.put(claim, n=3),
            REPLICA.put(
                ReplicaRecord(
                    address="one:1", holder=elections.holder, ttl=30, started_at=1, key=1, fence=1, held_at=2
                ),
                holder=elections.holder,
            ),
            REPLICA.put(ReplicaRecord(address="three:1", holder="h3", ttl=30, started_at=1), holder="h3"),
            Put(REPLICA.fill(holder="h4"), b"unreadable"),
        ],
    )
    scene = await look(storage)
    assert scene.leader is not None
    assert (scene.leader.address, scene.leader.fence, scene.leader.key) == ("one:1", leading.fence, 1)
    assert scene.leader.age_s is not None
    assert scene.leader.age_s > 1e9
    assert scene.leader.time_left_s is not None
    assert began + 30 - SystemClock().now() <= scene.leader.time_left_s <= 30
    assert [(other.address, other.key) for other in scene.others] == [("two:1", 2)]
    assert scene.others[0].age_s is None or scene.others[0].fence == 1
    assert scene.standing_by is not None
    assert [waiting.address for waiting in scene.standing_by] == ["three:1"], "a claim is no leadership yet"
    await elections.aclose()


async def test_each_change_of_leader_is_told_once_and_a_claim_is_none(storage: StoreTtlStorage) -> None:
    elections = Elections(storage)
    troubles: list[str] = []
    async with aclosing(takeovers(storage, troubles.append)) as changes:
        assert await anext(changes) is None
        leadership = await elections.acquire(FIRST, "one:1", ttl=30)
        assert leadership is not None
        told = await asyncio.wait_for(anext(changes), 30)
        assert told is not None
        assert (told.address, told.fence) == ("one:1", leadership.fence)
        await leadership.release()
        assert await asyncio.wait_for(anext(changes), 30) is None
    assert troubles == []


@pytest.mark.slow
async def test_a_storage_that_does_not_answer_is_said_once_and_looked_at_again(
    storage: StoreTtlStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, failures = storage.get, [Unavailable("storage: away"), Unavailable("storage: away")]

    async def failing(key: str) -> str | None:
        if failures:
            raise failures.pop()
        return await right(key)

    monkeypatch.setattr(storage, "get", failing)
    troubles: list[str] = []
    async with aclosing(takeovers(storage, troubles.append)) as changes:
        assert await asyncio.wait_for(anext(changes), 30) is None
    assert troubles == ["storage: away; retrying"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "?"),
        (0.2, "0 s"),
        (59.4, "59 s"),
        (60, "1 min 0 s"),
        (3599, "59 min 59 s"),
        (3600, "1 h 0 min"),
        (86_400 * 3 + 7200, "3 d 2 h"),
    ],
)
def test_a_span_is_told_in_two_units(seconds: float | None, text: str) -> None:
    assert span(seconds) == text


@pytest.mark.parametrize("kind", ["memory", "sqlite", "file"])
async def test_every_embedded_store_tells_how_long_a_record_still_lives(kind: str, tmp_path: Path) -> None:
    url = "memory://" if kind == "memory" else f"{kind}://{tmp_path}/store"
    async with open_ttl_storage(url) as storage:
        assert isinstance(storage, StoreTtlStorage)
        assert await storage.time_left("key") is None
        await storage.insert_if_not_exist("key", "value", ttl=30)
        left = await storage.time_left("key")
        assert left is not None
        assert 25 < left <= 30
        await storage.insert_if_not_exist("for ever", "value", ttl=0)
        assert await storage.time_left("for ever") is None


# The tally


async def test_the_tally_counts_on_from_leader_to_leader_and_an_old_leader_writes_nothing(
    storage: StoreTtlStorage,
) -> None:
    elections = Elections(storage)
    old = await elections.acquire(FIRST, "one:1", ttl=30)
    assert old is not None
    assert await count(storage.store, old) == Tally(count=1, fence=1, holder=elections.holder)
    await old.release()
    with pytest.raises(LeadershipLost, match="nothing was written"):
        await count(storage.store, old)
    new = await elections.acquire(FIRST, "two:1", ttl=30)
    assert new is not None
    with pytest.raises(LeadershipLost):
        await count(storage.store, old)
    assert await count(storage.store, new) == Tally(count=2, fence=2, holder=elections.holder)
    await elections.aclose()


async def test_a_tally_that_somebody_else_wrote_meanwhile_is_left_alone(
    storage: StoreTtlStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    elections = Elections(storage)
    leadership = await elections.acquire(FIRST, "one:1", ttl=30)
    assert leadership is not None
    right = storage.store.txn

    async def late(*arguments: object) -> object:
        await storage.store.put(DEMONSTRATION.fill(), DEMONSTRATION.encode(Tally(count=7, fence=1, holder="x")))
        return await right(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(storage.store, "txn", late)
    assert await count(storage.store, leadership) is None
    monkeypatch.undo()
    tally = await count(storage.store, leadership)
    assert tally is not None
    assert tally.count == 8
    await elections.aclose()


# The record of a replica that runs


async def test_a_replica_is_present_from_open_to_close_and_leaves_nothing() -> None:
    async with MemoryStore() as store:
        presence = Presence(store, ME)
        presence.open()
        await until_present(store, ME)
        await presence.aclose()
        await until_present(store, None)


async def test_what_a_replica_holds_is_told_and_taken_back() -> None:
    async with StoreTtlStorage(MemoryStore()) as storage:
        store = storage.store
        assert isinstance(store, MemoryStore)
        elections = Elections(storage)
        leadership = await elections.acquire(LEADER.fill(n=2), "here:1", ttl=30)
        assert leadership is not None

        class Standing:
            pass

        standing = Standing()
        standing.leadership = leadership  # type: ignore[attr-defined]
        presence = Presence(store, ME)
        presence.open()
        await presence.start(standing)  # type: ignore[arg-type]
        async with asyncio.timeout(30):
            while (entry := await REPLICA.get(store, holder="me")) is None or entry.value.key is None:
                await asyncio.sleep(0.005)
        assert (entry.value.key, entry.value.fence) == (2, leadership.fence)
        assert entry.value.held_at is not None
        await presence.stop()
        await until_present(store, ME)
        await presence.aclose()
        await elections.aclose()


def test_a_replica_whose_lease_lapsed_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with MemoryStore(clock=VirtualClock()) as store:
            leases: list[Lease] = []
            right = store.grant

            async def granted(ttl: float) -> Lease:
                leases.append(await right(ttl))
                return leases[-1]

            monkeypatch.setattr(store, "grant", granted)
            presence = Presence(store, ME, clock=VirtualClock())
            presence.open()
            await until_present(store, ME)
            await leases[0].revoke()
            await until_present(store, None)
            await until_present(store, ME)
            assert len(leases) == 2
            await presence.aclose()
            await until_present(store, None)

    run_virtual(story)  # in real time a busy machine lets leases of 0.4 s lapse by itself


async def test_presence_survives_a_store_that_fails_and_closes_in_time_when_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with MemoryStore() as store:
        right, failing = store.txn, [True]

        async def sometimes(*arguments: object) -> object:
            if failing[0]:
                raise Unavailable("store: away")
            return await right(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(store, "txn", sometimes)
        presence = Presence(store, ME)
        presence.open()
        await asyncio.sleep(0.05)
        assert await REPLICA.get(store, holder="me") is None
        failing[0] = False
        await until_present(store, ME)
        failing[0] = True
        await asyncio.wait_for(presence.aclose(), 30)


async def test_the_fence_stays_when_everything_else_is_gone(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/store.db"
    async with open_ttl_storage(url) as storage:
        elections = Elections(storage)
        await elections.acquire(FIRST, "one:1", ttl=30)
        await elections.aclose()
    async with open_store(url) as store:
        assert [kv.key for kv in (await store.range("")).items] == [FENCE.fill(n=1)]


def test_every_public_name_is_there() -> None:
    for name in hostler.__all__:
        assert getattr(hostler, name) is not None
    assert hostler.Replica.__module__ == "hostler.engine.replica"
    with pytest.raises(AttributeError, match="Nobody"):
        hostler.Nobody  # noqa: B018


def test_r32_a_replica_that_gets_no_key_in_time_ends_with_a_problem_that_names_the_way_out() -> None:
    async def story() -> None:
        async with MemoryStore() as store:
            storage, told = StoreTtlStorage(store), list[str]()
            async with aclosing(Elections(storage)) as elections:
                assert await elections.acquire(LEADER.fill(n=1), "other:1", ttl=20) is not None
                plan = CampaignConfig(address="me:1", ttl=20, acquisition_timeout=0.05)
                problem = await stand(
                    storage, plan, [], leading=Leading(told.append), asked=asyncio.Event(), tell=told.append
                )
        assert isinstance(problem, Conflict)
        assert "held by others after 0.05 s" in str(problem)
        assert "hostler replica --wait" in str(problem)

    asyncio.run(story())

"""Copies, restores and activations: one store is in service, and no number is given out twice."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

from hostler.drivers.store.file import FileStore
from hostler.drivers.store.memory import MemoryStore
from hostler.drivers.store.sqlite import SqliteStore
from hostler.engine.access import audit
from hostler.engine.cluster_id import StoreGuard, objection, read_identity, seen_now
from hostler.engine.elections import Elections
from hostler.engine.request import HOSTLER
from hostler.engine.transfer import epoch as epochs
from hostler.engine.transfer import restore as restoring
from hostler.engine.transfer.copy import copy, source_of
from hostler.engine.transfer.epoch import FENCE_STEP, activate
from hostler.engine.transfer.restore import restore
from hostler.engine.view import View
from hostler.entry.backup import Backup, write_backup
from hostler.errors import Compacted, Conflict, Refused
from hostler.keys.families import ALIVE, AUDIT, CLUSTER, COMMAND, EPOCH, FENCE, FILLING, LEADER, MEMBER, MOVED
from hostler.kit.clock import SystemClock
from hostler.model.access import Audit
from hostler.model.inventory import Capacity
from hostler.model.node import (
    Cluster,
    EpochKind,
    Heartbeat,
    LastControlPlane,
    Lifecycle,
    NodeRecord,
    OffConfirmation,
    VmCommand,
)
from hostler.model.vm import VmSpec
from hostler.ports.store import Put

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from hostler.engine.transfer.copy import Copied
    from hostler.engine.transfer.restore import Restored
    from hostler.ports.store import Store

STORES = ("sqlite", "file", "memory")


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochs, "SETTLE", 0.0)


@asynccontextmanager
async def a_store(kind: str, folder: Path, name: str = "store") -> AsyncIterator[Store]:
    made = {
        "sqlite": lambda: SqliteStore(folder / f"{name}.db"),
        "file": lambda: FileStore(str(folder / f"{name}.json")),
        "memory": MemoryStore,
    }[kind]()
    async with made as store:
        yield store


async def fill_plane(store: Store, fence: int = 8) -> None:
    """What a control plane leaves behind that was stopped in good order."""
    node = NodeRecord(
        node="r1-b1",
        lifecycle=Lifecycle.ON_DUTY,
        capacity=Capacity(cpus=1, memory_mib=1),
        off=OffConfirmation(by="ada", at=1.0),
        registered_at=1.0,
    )
    await store.txn([], [CLUSTER.put(Cluster(id="c1", created_at=1.0)), FENCE.put(fence, n=1)])
    command = VmCommand(org="o", project="p", vm="v", spec=VmSpec(cpus=1, memory_mib=1))
    await store.txn([], [COMMAND.put(command, node="r1-b1", vm="v")])
    await store.txn([], [MEMBER.put(node, node="r1-b1"), Put("/other", b"x")])


async def copied(source: Store, target: Store, *, keep: bool = False, overwrite: bool = False) -> Copied:
    return await copy(
        source,
        target,
        ("sqlite:///one", "etcd://two"),
        prefix="",
        overwrite=overwrite,
        with_leased=False,
        keep_source=keep,
        report=lambda _: None,
    )


async def backed_up(store: Store, path: Path) -> Backup:
    source = await source_of(store, "one", "", with_leased=False)
    await write_backup(path, source, prefix="", engine="x", force=False, report=lambda _: None)
    return Backup(path, "")


async def restored(
    store: Store, backup: Backup, *, replace: bool = False, clock: SystemClock | None = None
) -> Restored:
    tools = {"name": "two", "report": lambda _: None, "clock": clock or SystemClock()}
    return await restore(store, backup, "", merge=False, replace=replace, **tools)  # type: ignore[arg-type]


async def next_fence(store: Store) -> int:
    from hostler.wiring import ttl_storage_on

    elections = Elections(ttl_storage_on(store))
    leadership = await elections.acquire(LEADER.fill(n=1), "here", ttl=5)
    assert leadership is not None
    await elections.aclose()
    return leadership.fence


async def test_a_copy_marks_its_source_and_begins_an_epoch() -> None:
    async with MemoryStore() as one, MemoryStore() as two:
        await fill_plane(one)
        done = await copied(one, two)
        mark = await MOVED.get(one)
        assert mark is not None
        assert mark.value.to == "etcd://two"
        old, new = await read_identity(one), await read_identity(two)
        assert old.cluster is not None
        assert new.cluster is not None
        assert done.cluster == new.cluster.value
        assert (new.cluster.value.id, new.moved) == ("c1", None)
        assert mark.value.epoch == new.cluster.value.epoch > old.cluster.value.epoch == 1
        begun = await EPOCH.get(two, epoch=new.cluster.value.epoch)
        assert begun is not None
        assert (begun.value.begun_by, begun.value.source) == (EpochKind.COPY, "sqlite:///one")
        assert (new.fence, (await two.get("/other")).value) == (8, b"x")  # type: ignore[union-attr]
        # A node that obeyed the copy obeys nothing older, whether the mark is there or not.
        last = seen_now(new, None)
        assert "were moved to etcd://two" in objection(last, old)
        await one.delete(MOVED.fill())
        assert "older (epoch 1)" in objection(last, await read_identity(one))


async def test_nodes_are_awaited_after_a_copy_and_old_confirmations_are_void() -> None:
    async with MemoryStore() as one, MemoryStore() as two:
        await fill_plane(one)
        await copied(one, two)
        node = await MEMBER.get(two, node="r1-b1")
        assert node is not None
        assert (node.value.awaited, node.value.off) == (True, None)


@pytest.mark.parametrize("key", [LEADER.fill(n=1), ALIVE.fill(node="r1-b1")])
async def test_a_store_with_processes_on_it_is_not_moved(key: str) -> None:
    async with MemoryStore() as one, MemoryStore() as two:
        await fill_plane(one)
        await one.put(key, Heartbeat(holder="h", started_at=1.0).encode(), lease=await one.grant(60))
        with pytest.raises(Refused, match="stop every up, replica and agent on it first"):
            await copied(one, two)
        assert not (await two.range("")).items
        await copied(one, two, keep=True)  # to look at it is fine
        assert await MOVED.get(one) is None
        mark = await MOVED.get(two)
        assert mark is not None
        assert mark.value.read_only


async def test_what_was_moved_is_not_copied_a_second_time() -> None:
    async with MemoryStore() as one, MemoryStore() as two, MemoryStore() as three:
        await fill_plane(one)
        await copied(one, two)
        with pytest.raises(Refused, match="hostler store activate"):
            await copied(one, three)
        assert not (await three.range("")).items


async def test_a_copy_that_was_killed_after_the_mark_goes_on() -> None:
    class Killed(Exception):
        pass

    async with MemoryStore() as one, MemoryStore() as two:
        await fill_plane(one)
        put = two.txn

        async def dying(when: object, then: object, otherwise: object = ()) -> object:
            if any(getattr(each, "key", "") == CLUSTER.fill() for each in then):  # type: ignore[attr-defined]
                raise Killed
            return await put(when, then, otherwise)  # type: ignore[arg-type]

        two.txn = dying  # type: ignore[method-assign, assignment]
        with pytest.raises(Killed):
            await copied(one, two)
        two.txn = put  # type: ignore[method-assign]
        assert await MOVED.get(one) is not None
        assert await two.get(FILLING.fill()) is not None  # nothing starts on either
        with pytest.raises(Conflict):
            await activate(two, "two")
        await copied(one, two)
        found, mark = await read_identity(two), await MOVED.get(one)
        assert found.cluster is not None
        assert mark is not None
        assert mark.value.epoch == found.cluster.value.epoch


async def test_activation_makes_the_source_newer_than_its_copy() -> None:
    async with MemoryStore() as one, MemoryStore() as two:
        await fill_plane(one)
        await copied(one, two)
        last = seen_now(await read_identity(two), None)
        begun, mark = await activate(one, "one")
        assert mark is not None
        identity = await read_identity(one)
        assert objection(last, identity) == ""
        assert identity.cluster is not None
        assert identity.cluster.value == begun.cluster
        assert await next_fence(one) == begun.fence + 1 > 8 + FENCE_STEP
        assert "older (epoch" in objection(seen_now(identity, last), await read_identity(two))
        node = await MEMBER.get(one, node="r1-b1")
        assert node is not None
        assert node.value.awaited
        command = await COMMAND.get(one, node="r1-b1", vm="v")
        assert command is not None
        assert command.value.unconfirmed, "etcd may have been restored by its own tools"
        copied_command = await COMMAND.get(two, node="r1-b1", vm="v")
        assert copied_command is not None
        assert not copied_command.value.unconfirmed, "a copy has what the source had last"


@pytest.mark.parametrize("kind", STORES)
async def test_after_a_restore_fences_and_revisions_go_on_above_all_that_were_given_out(
    kind: str, tmp_path: Path
) -> None:
    async with a_store(kind, tmp_path, "one") as one:
        await fill_plane(one)
        for number in range(30):
            await one.put("/other", str(number).encode())
        backup = await backed_up(one, tmp_path / "backup")
        for number in range(20):  # what happened after the backup
            last_revision = await one.put("/other", str(number).encode())
        assert await next_fence(one) == 9
    async with a_store(kind, tmp_path, "two") as two:
        done = await restored(two, backup)
        assert done.revisions_go_on
        found = await read_identity(two)
        assert found.cluster is not None
        assert found.cluster.value.restored_at is not None
        assert done.fence == found.fence > 8 + FENCE_STEP
        assert min(kv.mod_revision for kv in (await two.range("")).items) > last_revision
        with pytest.raises(Compacted):
            async with two.watch("", start_revision=last_revision) as events:
                await anext(events)
        assert await next_fence(two) == done.fence + 1
        command = await COMMAND.get(two, node="r1-b1", vm="v")
        assert command is not None
        assert command.value.unconfirmed
    if kind != "memory":
        async with a_store(kind, tmp_path, "two") as again:
            assert (await again.status()).revision > last_revision
            assert await again.put("/other", b"y") > last_revision


@pytest.mark.parametrize("skips", [True, False], ids=["revisions go on", "revisions begin at 1, as in etcd"])
async def test_the_audit_gives_no_revision_for_lines_of_the_store_before(tmp_path: Path, skips: bool) -> None:
    """A line said "before 448, after 5": 448 is of the store before, 5 is the number of the restore's own write."""
    line = Audit(who="ada", verb="vm.create", subject="/s", before=448, at=2.0)
    new = Audit(who="ada", verb="vm.delete", subject="/s", before=9, at=3.0)
    async with MemoryStore() as one:
        await fill_plane(one)
        await AUDIT.create(one, line, day="2026-11-15", write="10:00:00.000000-a")
        backup = await backed_up(one, tmp_path / "backup")
    async with MemoryStore() as two:
        if skips:
            await restored(two, backup)
        else:
            with patch.object(restoring, "continue_revisions", return_value=False):
                await restored(two, backup)
        added = await AUDIT.create(two, new, day="2026-11-15", write="11:00:00.000000-b")
        view = View(two, clock=SystemClock())
        page = await audit.page(two, HOSTLER, view, audit.AuditFilter(), limit=10, clock=SystemClock())
        assert [(found.verb, found.before, found.after) for found in page.items] == [
            ("vm.create", 448, 0),
            ("vm.delete", 9, added.create_revision),
        ]


async def test_a_restore_over_a_newer_state_goes_on_above_that(tmp_path: Path) -> None:
    async with MemoryStore() as store:
        await fill_plane(store)
        backup = await backed_up(store, tmp_path / "backup")
        await FENCE.get(store, n=1)
        await store.txn([], [FENCE.put(20, n=1), Put("/younger", b"y")])
        before = (await store.status()).revision
        with pytest.raises(Conflict, match="there are keys"):
            await restored(store, backup)
        done = await restored(store, backup, replace=True)
        assert done.fence > 20 + FENCE_STEP
        assert await store.get("/younger") is None
        assert (await store.status()).revision > before


class At(SystemClock):
    def __init__(self, wall: float) -> None:
        self._wall = wall

    def wall(self) -> float:
        return self._wall


async def test_two_restores_of_one_backup_give_out_different_fences(tmp_path: Path) -> None:
    async with MemoryStore() as store:
        await fill_plane(store)
        backup = await backed_up(store, tmp_path / "backup")
    given_out: list[int] = []
    for second in range(2):
        at = At(2_000_000_000.0 + 60.0 * second)
        async with MemoryStore() as fresh:
            await restored(fresh, backup, clock=at)
            given_out += [await next_fence(fresh), await next_fence(fresh)]
    assert given_out == sorted(set(given_out))


async def test_an_embedded_store_skips_revisions(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "a.db") as store:
        await fill_plane(store)
        await store.raise_revision(5_000_000)
        assert await store.check() == []
        assert await store.put("/a", b"1") == 5_000_001
        async with store.watch("", start_revision=5_000_001) as events:
            assert (await anext(events)).kv.key == "/a"


# A process of the control plane that runs


class Kept:
    def __init__(self, last: LastControlPlane | None = None) -> None:
        self.last = last

    async def read(self) -> LastControlPlane | None:
        return self.last

    async def write(self, last: LastControlPlane) -> None:
        self.last = last


async def test_replacing_by_a_backup_of_no_control_plane_keeps_the_identity_and_needs_an_idle_store(
    tmp_path: Path,
) -> None:
    async with MemoryStore() as plain:
        await plain.put("/other", b"y")
        backup = await backed_up(plain, tmp_path / "backup")
    async with MemoryStore() as store:
        await fill_plane(store)
        lease = await store.grant(60)
        await store.put(ALIVE.fill(node="r1-b1"), Heartbeat(holder="h", started_at=1.0).encode(), lease=lease)
        with pytest.raises(Refused, match="stop every up, replica and agent on it first"):
            await restored(store, backup, replace=True)
        assert await MEMBER.get(store, node="r1-b1") is not None
        await lease.revoke()
        await restored(store, backup, replace=True)
        found = await read_identity(store)
        assert found.cluster is not None
        assert (found.cluster.value.id, found.fence) == ("c1", 8), "fences would be given out again"
        assert await MEMBER.get(store, node="r1-b1") is None


def guard_of(store: Store, kept: Kept, *, accept: bool = False) -> StoreGuard:
    return StoreGuard(store, kept, clock=SystemClock(), new_id=lambda: "new", accept=accept, look_every=0.001)


async def test_a_process_that_served_a_control_plane_starts_on_no_empty_store() -> None:
    kept = Kept()
    async with MemoryStore() as store:
        await fill_plane(store)
        await guard_of(store, kept).check()
    assert kept.last is not None
    assert kept.last == LastControlPlane(cluster="c1", fence=8, revision=kept.last.revision)
    async with MemoryStore() as empty:
        with pytest.raises(Refused, match="was emptied, or it is a different store"):
            await guard_of(empty, kept).check()
        assert not (await empty.range("")).items
        await guard_of(empty, kept, accept=True).check()
        assert kept.last is not None
        assert kept.last == LastControlPlane(cluster="new", revision=kept.last.revision)


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("emptied", "was emptied, or it is a different store"),
        ("older", "older \\(fence 3\\)"),
        ("foreign", "belongs to cluster c2"),
        ("moved", "moved to etcd://two"),
    ],
)
async def test_a_running_process_notices_that_its_store_became_another_one(what: str, why: str) -> None:
    async with MemoryStore() as store, MemoryStore() as two:
        await fill_plane(store)
        guard = guard_of(store, Kept())
        await guard.check()
        if what == "emptied":
            await store.delete(CLUSTER.fill())
        elif what == "older":
            await store.txn([], [FENCE.put(3, n=1)])
        elif what == "foreign":
            await store.txn([], [CLUSTER.put(Cluster(id="c2", created_at=1.0))])
        else:
            await copied(store, two)
        with pytest.raises(Refused, match=why):
            await guard.run()


async def at_revision(store: Store, revision: int) -> None:
    """Fill the store as that of one and the same control plane, under one fence."""
    await fill_plane(store)
    while await store.put("/other", b"x") < revision:
        pass


async def test_an_older_store_with_the_same_fence_is_refused_also_after_a_restart() -> None:
    kept = Kept()
    async with MemoryStore() as store, MemoryStore() as older:
        await at_revision(store, 40)
        await at_revision(older, 20)
        await guard_of(store, kept).check()
        with pytest.raises(Refused, match=r"older \(revision 20\) than .* \(revision 40\)"):
            await guard_of(older, kept).check()
        await activate(older, "older")
        await guard_of(older, kept).check()
        assert kept.last is not None
        assert kept.last.revision < 40, "the new epoch counts its own revisions"


async def test_the_successor_of_a_process_whose_store_went_back_refuses_it_too() -> None:
    kept = Kept()
    async with MemoryStore() as store, MemoryStore() as older:
        await at_revision(store, 10)
        await at_revision(older, 20)
        guard = guard_of(store, kept)
        await guard.check()
        await at_revision(store, 40)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(guard.run(), 0.05)
        assert kept.last is not None
        assert kept.last.revision < 20, "a revision alone is written once a minute"
        guard._store = older
        with pytest.raises(Refused, match="went back from revision 4. to 20"):
            await guard.run()
        for revision in (20, 60):  # processes that do not know better write to it
            await at_revision(older, revision)
            with pytest.raises(Refused, match="older .it was put back to an older state. than .* .revision 4"):
                await guard_of(older, kept).check()
        await guard_of(older, kept, accept=True).check()
        await guard_of(older, kept).check()


async def test_no_leadership_has_a_lower_fence_than_one_that_was_seen() -> None:
    from hostler.wiring import ttl_storage_on

    async with MemoryStore() as store:
        await store.txn([], [FENCE.put(7, n=1)])
        first, second = (Elections(ttl_storage_on(store), rng=random.Random(1)) for _ in range(2))
        assert await first.acquire(LEADER.fill(n=1), "a", ttl=5) is not None
        assert await second.acquire(LEADER.fill(n=1), "b", ttl=5) is None  # it sees fence 8
        await first.aclose()
        await store.delete_prefix("sysvvm/")
        with pytest.raises(Refused, match="holds 0, but fence 8 is already in use"):
            await second.acquire(LEADER.fill(n=1), "b", ttl=5)
        assert await LEADER.get(store, n=1) is None
        await second.aclose()


async def test_a_newer_epoch_counts_its_fences_by_itself() -> None:
    last = LastControlPlane(cluster="c1", epoch=1, fence=8)
    async with MemoryStore() as store:
        await store.txn([], [CLUSTER.put(Cluster(id="c1", created_at=1.0, epoch=2)), FENCE.put(3, n=1)])
        identity = await read_identity(store)
        assert objection(last, identity) == ""
        assert seen_now(identity, last) == LastControlPlane(cluster="c1", epoch=2, fence=3, revision=identity.revision)

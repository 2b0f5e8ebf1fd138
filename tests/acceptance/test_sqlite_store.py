"""What the embedded store promises beyond the shared suite: several processes, hostile files, its own upkeep."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import apsw
import pytest
from harness import pace
from harness.artefacts import safe

from hostler import Closed, Damaged, Delete, Get, Invalid, LeaseGone, Put, Unavailable, Version
from hostler.drivers.store.sqlite import SqliteStore, schema
from hostler.drivers.store.sqlite.reader import end_of_prefix
from hostler.drivers.store.sqlite.writer import Purge

WATCHER = """
import asyncio, json, sys, time, hostler
async def main():
    async with hostler.open_store(sys.argv[1]) as store, store.watch("/w/") as watch:
        print("ready", flush=True)
        async for event in watch:
            print(json.dumps([event.kv.value.decode(), time.clock_gettime(time.CLOCK_MONOTONIC)]), flush=True)
asyncio.run(main())
"""

WRITER = """
import asyncio, sys, hostler
async def main():
    async with hostler.open_store(sys.argv[1]) as store:
        for n in range(int(sys.argv[3])):
            await store.put(f"{sys.argv[2]}{n}", b"x")
asyncio.run(main())
"""

GRANTER = """
import asyncio, sys, hostler
async def main():
    store = await hostler.open_store(sys.argv[1]).__aenter__()
    lease = await store.grant(float(sys.argv[2]))
    await store.put("/leased", b"x", lease=lease)
    print(lease.id, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


def child(program: str, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", program, *args], stdout=subprocess.PIPE, text=True)


async def upkeep(store: SqliteStore) -> None:
    """What comes every ten seconds by itself, now, to its end."""
    before = store._forgetting
    store._purge = True
    store._look()
    async with asyncio.timeout(30):
        while store._forgetting is before or store._forgetting is None:
            await asyncio.sleep(0.01)
        await store._forgetting


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hostler.db"


async def test_another_process_sees_an_event_within_50_ms(path: Path) -> None:
    async with SqliteStore(path) as store:
        watcher = child(WATCHER, f"sqlite://{path}")
        try:
            assert watcher.stdout is not None
            assert await asyncio.to_thread(watcher.stdout.readline) == "ready\n"
            late: list[float] = []
            began = time.monotonic()
            for n in range(60):
                await store.put("/w/k", str(n).encode())
                written = time.clock_gettime(time.CLOCK_MONOTONIC)
                value, seen = json.loads(await asyncio.to_thread(watcher.stdout.readline))
                assert value == str(n)
                late.append(seen - written)
            pace.check(sorted(late)[int(len(late) * 0.9)], 0.05, since=began, what="an event (p90)")
        finally:
            watcher.kill()
            watcher.wait()


async def test_a_watch_gets_its_own_and_other_processes_changes_in_one_order(path: Path) -> None:
    async with SqliteStore(path) as store, store.watch("/w/") as watch:
        writers = [child(WRITER, f"sqlite://{path}", f"/w/{name}/", "150") for name in "abc"]
        for n in range(150):
            await store.put(f"/w/own/{n}", b"x")
        revisions = [(await anext(watch)).kv.mod_revision for _ in range(600)]
        assert revisions == list(range(2, 602))
        assert [await asyncio.to_thread(writer.wait) for writer in writers] == [0, 0, 0]


async def test_a_suspended_process_in_mid_commit_makes_the_others_unavailable_not_uncertain(path: Path) -> None:
    async with SqliteStore(path, timeout=0.5) as store:
        held = schema.open_lock(path)
        with schema.write_turn(path, held):
            with pace.within(1.0, "the refusal"), pytest.raises(Unavailable, match="no turn to write"):
                await store.put("a", b"1")
            assert await store.get("a") is None
        os.close(held)
        await store.put("b", b"2")
        assert await store.get("a") is None, "a request that was taken back must never be done"


async def test_a_lease_ends_although_its_granter_was_killed(path: Path) -> None:
    async with SqliteStore(path) as store:
        began = time.monotonic()
        granter = child(GRANTER, f"sqlite://{path}", "1.0")
        assert granter.stdout is not None
        await asyncio.to_thread(granter.stdout.readline)
        granted = time.monotonic()
        granter.send_signal(signal.SIGKILL)
        granter.wait()
        async with store.watch("/leased", start_revision=1) as watch:
            assert (await anext(watch)).type == "put"
            assert (await asyncio.wait_for(anext(watch), 30)).type == "delete"
        ended = time.monotonic()
        safe(ended - began >= 1.0, f"a lease of 1 s ended after {ended - began:.2f} s")
        pace.check(ended - granted, 1.0 + store.lease_lateness(1.0), since=granted, what="the life of a lease")


async def test_a_lease_keeps_its_time_over_a_restart(path: Path) -> None:
    async with SqliteStore(path) as store:
        lease = await store.grant(300)
        await store.put("a", b"1", lease=lease)
        before = await lease.remaining()
    async with SqliteStore(path) as store:
        after = store.remaining(lease.id)
        assert before - 60 < after <= before


class ShiftedClock:
    """The machine's time, moved."""

    def __init__(self, *, boot: float = 0.0, calendar: float = 0.0) -> None:
        self.boot, self.calendar = boot, calendar

    def now(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME) + self.boot

    def wall(self) -> float:
        return time.time() + self.calendar

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@pytest.mark.parametrize("calendar", [-86_400.0, 86_400.0])
async def test_a_jump_of_the_calendar_changes_no_lease(path: Path, calendar: float) -> None:
    async with SqliteStore(path) as store:
        lease = await store.grant(300)
    async with SqliteStore(path, clock=ShiftedClock(calendar=calendar)) as store:
        assert 200 < store.remaining(lease.id) <= 300


@pytest.mark.parametrize(
    ("calendar", "least", "most"), [(100.0, 150.0, 200.5), (-500.0, 250.0, 300.0), (600.0, 0.0, 0.0)]
)
async def test_after_a_reboot_the_calendar_decides_within_the_ttl(
    path: Path, monkeypatch: pytest.MonkeyPatch, calendar: float, least: float, most: float
) -> None:
    async with SqliteStore(path) as store:
        lease = await store.grant(300)
        await store.put("a", b"1", lease=lease)
    monkeypatch.setattr("hostler.drivers.store.local_store.boot_id", lambda: "another boot")
    async with SqliteStore(path, clock=ShiftedClock(boot=-1e6, calendar=calendar)) as store:
        assert least <= store.remaining(lease.id) <= most
        if most == 0.0:
            with pytest.raises(LeaseGone):
                await store.put("b", b"1", lease=lease.id)
            assert await store.get("a") is None


async def test_a_file_that_was_replaced_or_removed_is_not_written_to(path: Path) -> None:
    async with SqliteStore(path) as store:
        await store.put("a", b"1")
        path.rename(path.with_suffix(".moved"))
        with pytest.raises(Damaged, match="gone"):
            await store.put("a", b"2")
        path.write_bytes(b"something else")
        with pytest.raises(Damaged, match="another file"):
            await store.put("a", b"3")
        assert path.read_bytes() == b"something else"


async def test_a_flipped_byte_in_a_value_is_an_error_not_a_value(path: Path) -> None:
    async with SqliteStore(path) as store:
        await store.put("a", b"precious" * 10)
        await store.put("b", b"sound")
    data = bytearray(path.read_bytes())
    at = data.index(b"preciousprecious")
    data[at + 3] ^= 1
    path.write_bytes(data)
    async with SqliteStore(path) as store:
        with pytest.raises(Damaged, match="'a' is damaged"):
            await store.get("a")
        assert (await store.get("b")).value == b"sound"  # type: ignore[union-attr]
        assert any("'a'" in problem for problem in await store.check())


async def test_a_cut_or_scribbled_file_is_named_and_left_alone(path: Path) -> None:
    async with SqliteStore(path) as store:
        for n in range(200):
            await store.put(f"{n}", b"x" * 1000)
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"garbage" + whole[7:], whole[:50]):
        path.write_bytes(damaged)
        with pytest.raises(Damaged, match="hostler.db"):
            async with SqliteStore(path):
                pass
        assert path.read_bytes() == damaged


async def test_a_database_of_another_program_is_refused_and_unchanged(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(Invalid, match="another program"):
        async with SqliteStore(path):
            pass
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path], "something was left beside it"


async def test_a_file_of_a_newer_hostler_is_refused(path: Path) -> None:
    async with SqliteStore(path):
        pass
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(Invalid, match="format 99"):
        async with SqliteStore(path):
            pass


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="folder does not exist"):
        async with SqliteStore(tmp_path / "nowhere" / "hostler.db"):
            pass


async def test_the_file_is_for_its_owner_only(path: Path) -> None:
    async with SqliteStore(path) as store:
        await store.put("a", b"1")
        for file in path.parent.iterdir():
            assert file.stat().st_mode & 0o077 == 0, file


async def test_history_is_forgotten_by_size_and_the_file_stays_bounded(path: Path) -> None:
    async with SqliteStore(path, history_mib=0.5) as store:
        for n in range(300):
            await store.txn([], [Put(f"k{i}", bytes([n % 256]) * 2000) for i in range(10)])
        await upkeep(store)
        assert (await store.status()).compact_revision >= 250
        rows = store._reader._cursor.execute("SELECT count(*) FROM log").fetchall()[0][0]
        assert rows < 500
        assert len((await store.range("k")).items) == 10
        assert await store.check() == []


async def test_history_is_forgotten_by_age(path: Path) -> None:
    async with SqliteStore(path) as store:
        for n in range(20):
            await store.put("a", str(n).encode())
    async with SqliteStore(path, history_age=5, clock=ShiftedClock(calendar=100)) as store:
        async with asyncio.timeout(10):
            while (await store.status()).compact_revision < 20:
                await asyncio.sleep(0.02)
        assert (await store.get("a")).version == 20  # type: ignore[union-attr]


async def test_a_purge_that_was_interrupted_goes_on_after_reopening(path: Path) -> None:
    async with SqliteStore(path) as store:
        for n in range(60):
            await store.txn([], [Put(f"k{i}", str(n).encode()) for i in range(100)])
        store._poller.cancel()  # type: ignore[union-attr]
        await store.compact(60)
    async with SqliteStore(path) as store:
        async with asyncio.timeout(10):
            while store._reader.purge_pending():
                await asyncio.sleep(0.02)
        rows = store._reader._cursor.execute("SELECT count(*) FROM log").fetchall()[0][0]
        assert rows <= 300
        page = await store.range("k", limit=1000, revision=60)
        assert {kv.value for kv in page.items} == {b"58"}


async def test_two_stores_in_one_process_race_and_one_wins(path: Path) -> None:
    async with SqliteStore(path) as one, SqliteStore(path) as two:
        for n in range(100):
            results = await asyncio.gather(
                *(store.txn([Version(f"k{n}") == 0], [Put(f"k{n}", b"x")]) for store in (one, two))
            )
            assert sorted(result.succeeded for result in results) == [False, True]


@pytest.mark.parametrize(
    ("prefix", "end"),
    [
        ("a", "b"),
        ("a/", "a0"),
        ("\ud7ff", "\ue000"),
        ("a\U0010ffff", "b"),
        ("\U0010ffff", b"\xff"),
        ("", b"\xff"),
    ],
)
def test_the_end_of_a_prefix_is_a_character_or_beyond_all(prefix: str, end: str | bytes) -> None:
    assert end_of_prefix(prefix) == end


async def test_a_reader_opens_a_file_while_its_lock_is_held(path: Path) -> None:
    async with SqliteStore(path) as store:
        await store.put("a", b"1")
    held = schema.open_lock(path)
    with schema.write_turn(path, held):
        async with SqliteStore(path, timeout=1) as store:
            assert (await store.get("a")).value == b"1"  # type: ignore[union-attr]
            with pytest.raises(Unavailable, match="no turn"):
                await store.put("a", b"2")
    os.close(held)


async def test_a_transaction_of_reads_waits_for_no_writer(path: Path) -> None:
    held = schema.open_lock(path)
    async with SqliteStore(path, timeout=1) as store:
        await store.txn([], [Put("a", b"1"), Put("b", b"2")])
        await store.delete("b")
        with schema.write_turn(path, held):
            result = await store.txn([], [Get("b"), Get("a"), Get("a"), Get("c")])
            with pytest.raises(Unavailable, match="no turn"):
                await store.txn([], [Get("a"), Delete("a")])
    os.close(held)
    gone, first, again, never = result.responses
    assert (gone, never) == (None, None)
    assert first == again
    assert first.value == b"1"  # type: ignore[union-attr]
    assert (result.succeeded, result.revision) == (True, first.create_revision + 1)  # type: ignore[union-attr]


@pytest.mark.parametrize("many", [1, 8, 9, 100])
async def test_a_transaction_of_reads_sees_one_instant(path: Path, many: int) -> None:
    keys = [f"k{i}" for i in range(many)]
    async with SqliteStore(path) as store, SqliteStore(path) as other:
        writing = asyncio.create_task(_written_together(other, keys))
        for _ in range(50):
            result = await store.txn([], [Get(key) for key in keys])
            found = {kv.mod_revision for kv in result.responses if kv is not None}  # type: ignore[union-attr]
            assert len(found) <= 1
            assert all(revision <= result.revision for revision in found)
            await asyncio.sleep(0)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


async def _written_together(store: SqliteStore, keys: list[str]) -> None:
    number = 0
    while True:
        number += 1
        await store.txn([], [Put(key, str(number).encode()) for key in keys])


async def test_a_store_can_be_opened_again_after_it_was_closed(path: Path) -> None:
    store = SqliteStore(path)
    for n in range(3):
        async with store:
            await store.put("a", str(n).encode())
    async with store:
        assert (await store.get("a")).version == 3  # type: ignore[union-attr]


async def test_a_close_that_was_cancelled_still_closes(path: Path) -> None:
    store = await SqliteStore(path).__aenter__()
    closing = asyncio.create_task(store.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    with pytest.raises(Closed):
        await store.get("a")
    await store.aclose()


async def test_upkeep_outlives_an_error_of_the_engine(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with SqliteStore(path) as store:
        lease = await store.grant(2.0)
        await store.put("a", b"1", lease=lease)
        sound = store._reader._connection

        class Failing:
            failed = 0

            def pragma(self, _: str) -> object:
                self.failed += 1
                raise apsw.IOError("disk I/O error")

        failing = Failing()
        monkeypatch.setattr(store._reader, "_connection", failing)
        async with asyncio.timeout(30):
            while not failing.failed:
                await asyncio.sleep(0.01)
        monkeypatch.setattr(store._reader, "_connection", sound)
        async with asyncio.timeout(30):
            while await store.get("a") is not None:
                await asyncio.sleep(0.01)


async def test_closing_ends_a_long_read(path: Path) -> None:
    async with SqliteStore(path) as store:
        for n in range(40):
            await store.txn([], [Put(f"k{n}/{i}", b"x" * 1000) for i in range(128)])
    store = await SqliteStore(path).__aenter__()
    started = time.monotonic()
    await asyncio.gather(*(store.check() for _ in range(10)))
    all_of_them = (time.monotonic() - started) * 100
    checking = asyncio.gather(*(store.check() for _ in range(1_000)), return_exceptions=True)
    await asyncio.sleep(0.05)
    with pace.within(all_of_them / 8, "closing"):
        await store.aclose()
    checking.cancel()
    await asyncio.gather(checking, return_exceptions=True)


def test_a_program_that_could_not_open_a_locked_store_ends(path: Path) -> None:
    held = schema.open_lock(path)
    program = "import asyncio, sys, hostler\nasyncio.run(hostler.open_store(sys.argv[1]).__aenter__())"
    with schema.write_turn(path, held):
        done = subprocess.run(
            [sys.executable, "-c", program, f"sqlite://{path}?timeout=0.5"],
            capture_output=True,
            timeout=20,
            check=False,
        )
    os.close(held)
    assert b"holds its lock" in done.stderr


async def test_opening_a_file_whose_lock_is_held_ends_at_the_deadline(path: Path) -> None:
    held = schema.open_lock(path)
    with schema.write_turn(path, held), pytest.raises(Unavailable, match="holds its lock"):
        async with SqliteStore(path, timeout=0.3):
            pass
    os.close(held)
    async with SqliteStore(path) as store:
        await store.put("a", b"1")


async def test_upkeep_leaves_a_young_store_its_whole_history(path: Path) -> None:
    async with SqliteStore(path) as store:
        await store.put("a", b"1")
        await upkeep(store)
        await store.put("a", b"2")
        assert (await store.status()).compact_revision == 0
        assert await store.get("a", revision=1) is None


async def test_writers_and_other_processes_are_served_while_much_is_forgotten(path: Path) -> None:
    async with SqliteStore(path) as store, SqliteStore(path) as other:
        for n in range(300):
            await store.txn([], [Put(f"k{i}", str(n).encode()) for i in range(100)])
        await store.delete_prefix("k1")
        async with store.watch("w") as watch:
            await store.compact(300)
            took, since = [], time.monotonic()
            for n in range(50):
                began = time.monotonic()
                await other.put("w", str(n).encode())
                event = await asyncio.wait_for(anext(watch), 30)
                took.append(time.monotonic() - began)
                assert event.kv.value == str(n).encode()
            pace.check(max(took), 0.5, since=since, what="a write and its event")
        await upkeep(store)
        assert not store._reader.purge_pending()
        rows = store._reader._cursor.execute("SELECT count(*) FROM log").fetchall()[0][0]
        assert rows < 600, "at most the versions that stand, those of the last revisions, and what was put meanwhile"
        assert len((await store.range("k", limit=1000)).items) == 89
        assert await store.check() == []


async def test_a_file_whose_history_was_forgotten_gives_its_pages_back(path: Path) -> None:
    async with SqliteStore(path) as store:
        for n in range(120):
            await store.txn([], [Put(f"k{i}", bytes([n]) * 10_000) for i in range(50)])
        large = (await store.status()).size_bytes
        await store.compact(120)
        await upkeep(store)
        await upkeep(store)
        assert store._reader.free_pages() == 0
        assert (await store.status()).size_bytes < large - 20_000_000


async def test_forgetting_may_be_interrupted_after_any_step(path: Path) -> None:
    async with SqliteStore(path) as store:
        for n in range(12):
            await store.txn([], [Put(f"k{i}", str(n).encode()) for i in range(20)])
        await store.delete_prefix("k1")
        revision = await store.put("last", b"")
        store._poller.cancel()  # type: ignore[union-attr]
        await store.compact(revision)
    steps = 0
    while True:
        async with SqliteStore(path) as store:
            store._poller.cancel()  # type: ignore[union-attr]
            rows, deleted, purged = store._far_reader.unreachable(7)
            work = [
                *(Purge(rows=[row]) for row in rows),
                *(Purge(deleted=[each]) for each in deleted),
                Purge(purged=purged),
            ]
            for step in work[: 1 + steps % (len(work) + 1)]:  # and then the power fails
                await store._committer.submit(step)
            steps += 1
            assert await store.check() == []
            if not store._reader.purge_pending():
                break
    async with SqliteStore(path) as store:
        left = store._reader._cursor.execute("SELECT count(*) FROM log").fetchall()[0][0]
        assert left == len((await store.range("")).items) == 10

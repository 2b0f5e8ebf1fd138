"""The state file under several processes, kill -9, damage, a full disk, a suspended peer and people's hands."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import statistics
import subprocess
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from dose import dose
from harness import pace
from harness.artefacts import safe

import hostler
from hostler.drivers.store.file import FileStore, disk
from hostler.drivers.store.file.state import Bounds
from hostler.errors import Compacted, Damaged, HostlerError, Invalid, LeaseGone, Unavailable, Uncertain
from hostler.kit import fsync
from hostler.ports.store import Lease, Put, Store, Version
from hostler.testing import servers

WITHIN = 30.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.json"


def opened(path: Path, timeout: float = 30.0) -> Store:
    return hostler.open_store(f"file://{path}?timeout={timeout}")


@contextlib.asynccontextmanager
async def child(code: str, *args: object) -> AsyncIterator[Process]:
    """Another process that runs `code`; ended with the test."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, *map(str, args), stdout=PIPE, stdin=PIPE)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def line(process: Process) -> str:
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), WITHIN)).decode().strip()


async def eventually(what: Callable[[], object], within: float = WITHIN) -> None:
    deadline = time.monotonic() + within
    while not what():
        assert time.monotonic() < deadline, "did not happen in time"
        await asyncio.sleep(0.01)


async def works(path: Path) -> None:
    """A new process can write and read."""
    async with opened(path) as store:
        await store.put("works", b"yes")
    async with opened(path) as store:
        kv = await store.get("works")
        assert kv is not None
        assert kv.value == b"yes"


# Several processes

COUNTER = """
import asyncio, sys, hostler
async def main(url, times):
    async with hostler.open_store(url) as store:
        done = 0
        while done < times:
            kv = await store.get("/counter")
            version, value = (0, 0) if kv is None else (kv.version, int(kv.value))
            put = hostler.Put("/counter", b"%d" % (value + 1))
            done += (await store.txn([hostler.Version("/counter") == version], [put])).succeeded
asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


async def test_processes_that_count_together_lose_no_count(path: Path) -> None:
    times = dose(test=15, full=150)
    async with contextlib.AsyncExitStack() as stack:
        children = [await stack.enter_async_context(child(COUNTER, f"file://{path}?timeout=30", times)) for _ in "abc"]
        for process in children:
            assert await process.wait() == 0
    async with opened(path) as store:
        kv = await store.get("/counter")
        assert kv is not None
        assert (kv.value, kv.version) == (b"%d" % (3 * times), 3 * times)


PUTTER = """
import asyncio, sys, time, hostler
async def main(url):
    async with hostler.open_store(url) as store:
        print("open", flush=True)
        for line in iter(sys.stdin.readline, ""):
            await store.put("/beat", b"%f" % time.clock_gettime(time.CLOCK_BOOTTIME))
            print(time.clock_gettime(time.CLOCK_BOOTTIME), flush=True)
asyncio.run(main(sys.argv[1]))
"""


async def test_another_process_sees_an_event_within_50_ms(path: Path) -> None:
    late: list[float] = []
    async with child(PUTTER, f"file://{path}") as process:
        assert process.stdin is not None
        async with opened(path) as store, store.watch("/beat") as watch:
            assert await line(process) == "open"
            began = time.monotonic()
            for _ in range(40):
                process.stdin.write(b"\n")
                await asyncio.wait_for(anext(watch), WITHIN)
                seen = time.clock_gettime(time.CLOCK_BOOTTIME)
                late.append(seen - float(await line(process)))
    pace.check(statistics.median(late), 0.05, since=began, what="an event")


async def test_a_read_sees_what_another_store_wrote_before_it_began(path: Path) -> None:
    async with opened(path) as one, opened(path) as other:
        for number in range(20):
            await one.put("a", b"%d" % number)
            kv = await other.get("a")
            assert kv is not None
            assert kv.value == b"%d" % number
            await other.txn([Version("b") == number], [Put("b", b"")])
            assert (await one.range("b")).items[0].version == number + 1


async def test_a_watch_entered_after_anothers_write_does_not_see_it(path: Path) -> None:
    async with opened(path) as one, opened(path) as other:
        for number in range(5):
            await one.put("a", b"%d" % number)
            async with other.watch("a") as watch:
                revision = await one.put("a", b"next")
                assert (await asyncio.wait_for(anext(watch), WITHIN)).kv.mod_revision == revision


async def test_a_watch_that_a_batch_of_another_process_outran_is_told(path: Path) -> None:
    bounds = Bounds(revisions=5)
    async with FileStore(str(path), bounds=bounds) as one, FileStore(str(path)) as other:
        await one.put("a", b"")
        async with other.watch("a") as watch:
            await asyncio.gather(*(one.put("a", b"") for _ in range(50)))
            with pytest.raises(Compacted):
                await asyncio.wait_for(anext(watch), WITHIN)


async def test_a_watch_on_a_store_without_a_file_sees_the_first_write_of_another(path: Path) -> None:
    async with opened(path) as one, opened(path) as other, one.watch("") as watch:
        await other.put("a", b"")
        assert (await asyncio.wait_for(anext(watch), WITHIN)).kv.key == "a"


BUSY = """
import asyncio, sys, hostler
async def main(url, name, times):
    async with hostler.open_store(url) as store:
        lease = await store.grant(60)
        for number in range(times):
            await asyncio.gather(*(store.put(f"/busy/{name}/{part}", b"%d" % number, lease=lease) for part in range(3)))
            if number % 5 == 4:
                await store.delete_prefix(f"/busy/{name}/")
            if number % 7 == 6:
                await lease.revoke()
                lease = await store.grant(60)
asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


async def test_watches_in_every_process_see_every_revision_once_while_all_of_them_write(path: Path) -> None:
    times = dose(test=20, full=300)

    async def follow(store: Store, until: int) -> list[tuple[int, str, str]]:
        seen: list[tuple[int, str, str]] = []
        async with store.watch("/", start_revision=2) as watch:
            while not seen or seen[-1][0] < until:
                event = await asyncio.wait_for(anext(watch), WITHIN)
                seen.append((event.kv.mod_revision, event.type, event.kv.key))
        return seen

    async with opened(path, 30) as one, opened(path, 30) as other, contextlib.AsyncExitStack() as stack:
        children = [await stack.enter_async_context(child(BUSY, f"file://{path}?timeout=30", n, times)) for n in "ab"]
        async with one.watch("/") as live:
            for number in range(times):
                await asyncio.gather(one.put("/one", b"%d" % number), other.put("/other", b"%d" % number))
            for process in children:
                assert await process.wait() == 0
            last = await one.put("/last", b"")
            joined: list[tuple[int, str, str]] = []
            while not joined or joined[-1][0] < last:
                event = await asyncio.wait_for(anext(live), WITHIN)
                joined.append((event.kv.mod_revision, event.type, event.kv.key))
        stories = await asyncio.gather(follow(one, last), follow(other, last))
        assert stories[0] == stories[1]
        assert sorted({revision for revision, _, _ in stories[0]}) == list(range(2, last + 1))
        assert joined == stories[0][-len(joined) :]
        states = [(await store.range("")).items for store in (one, other)]
        assert states[0] == states[1]


async def test_writers_that_come_together_share_a_save(path: Path) -> None:
    async with opened(path) as store:
        await asyncio.gather(*(store.put(f"{number}", b"") for number in range(64)))
        assert json.loads(path.read_bytes())["saved"] <= 3


# Kill -9

VICTIM = """
import asyncio, os, signal, sys, threading, hostler
from hostler.drivers.store.file import disk

class Fatal:
    \"\"\"os, until the nth call: then the process dies, before the call or after it.\"\"\"
    def __init__(self, nth, after):
        self.left, self.after, self.armed = nth, after, False
    def __getattr__(self, name):
        real = getattr(os, name)
        if name not in ("open", "write", "fsync", "rename", "unlink") or "reader" in threading.current_thread().name:
            return real
        def call(*args):
            if not self.armed:
                return real(*args)
            self.left -= 1
            if self.left == 0 and not self.after:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return real(*(args if name != "write" or self.left else (args[0], bytes(args[1])[:10])))
            finally:
                if self.left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
        return call

async def main(url, nth, after):
    fatal = disk.os = Fatal(nth, after)
    async with hostler.open_store(url) as store:
        print(await store.put("/k", b"old"), flush=True)
        fatal.armed = True
        print(await store.put("/k", b"new"), flush=True)
        fatal.armed = False
asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "after"))
"""


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_writer_killed_at_any_step_leaves_the_old_state_or_the_new_one(path: Path, when: str) -> None:
    outcomes: list[str] = []
    for nth in range(1, 30):
        async with child(VICTIM, f"file://{path}", nth, when) as process:
            acknowledged = (await process.communicate())[0].split()
            survived = process.returncode == 0
        async with opened(path) as store:
            kv = await store.get("/k")
            assert kv is not None
            assert kv.value in (b"old", b"new")
            if len(acknowledged) == 2:
                assert kv.value == b"new"
            outcomes.append(kv.value.decode())
            assert await store.put("/next", b"") == kv.mod_revision + 1
        assert {entry.name for entry in path.parent.iterdir()} == {"state.json", "state.json.lock"}
        if survived:
            break
    assert survived, "the writer makes more steps than this test knows"
    turned = outcomes.index("new")
    assert turned >= 4
    assert outcomes == ["old"] * turned + ["new"] * (len(outcomes) - turned)


async def test_a_save_is_durable_before_it_has_the_name_and_the_name_before_it_is_told(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    class Watched:
        def __getattr__(self, name: str) -> object:
            real = getattr(os, name)
            if name not in ("write", "fsync", "rename"):
                return real

            def call(*args: object) -> object:
                folder = name == "fsync" and os.path.isdir(f"/proc/self/fd/{args[0]}")
                done.append("fsync folder" if folder else name)
                return real(*args)

            return call

    async with opened(path) as store:
        for module in (disk, fsync):
            monkeypatch.setattr(module, "os", Watched())
        await store.put("a", b"")
        told = list(done)
    assert told == ["write", "fsync", "rename", "fsync folder"]


# Damage

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut in the middle": lambda data: data[: len(data) // 2],
    "cut at the end": lambda data: data[:-3],
    "zeros": lambda data: b"\0" * len(data),
    "not UTF-8": lambda data: data.replace(b"value", b"v\xffl\xfee"),
    "two states": lambda data: data + data,
    "a revision is gone": lambda data: data.replace(b'"revision":3', b'"revision":4'),
    "merge markers": lambda data: b"<<<<<<< ours\n" + data,
}
FOREIGN: dict[str, bytes] = {
    "another program's JSON": b'{"vms": {}, "handles": {}}',
    "a list": b"[]",
    "a newer version": b'{"format": "hostler state", "version": 99}',
}


async def _filled(path: Path) -> bytes:
    async with opened(path) as store:
        for number in range(3):
            await store.put(f"/{number}", b"value")
    return path.read_bytes()


@pytest.mark.parametrize("kind", [*DAMAGE, *FOREIGN])
async def test_a_file_that_cannot_be_trusted_is_refused_by_name_and_left_alone(path: Path, kind: str) -> None:
    good = await _filled(path)
    bad = DAMAGE[kind](good) if kind in DAMAGE else FOREIGN[kind]
    assert bad != good
    path.write_bytes(bad)
    with pytest.raises(Damaged if kind in DAMAGE else Invalid, match=str(path)):
        async with opened(path):
            pass
    assert path.read_bytes() == bad


@pytest.mark.parametrize("kind", DAMAGE)
async def test_a_file_damaged_while_open_stops_the_store_until_it_is_repaired(path: Path, kind: str) -> None:
    good = await _filled(path)
    async with opened(path) as store, store.watch("") as watch:
        bad = DAMAGE[kind](good)
        path.write_bytes(bad)
        with pytest.raises(Damaged, match=str(path)):
            await store.get("/1")
        with pytest.raises(Damaged, match=str(path)):
            await store.put("/1", b"")
        assert path.read_bytes() == bad
        path.write_bytes(good)
        assert await store.put("/1", b"again") == 5
        assert (await asyncio.wait_for(anext(watch), WITHIN)).kv.mod_revision == 5


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda path: path.parent / "missing" / "state.json", Invalid),
        (lambda path: (path.mkdir(), path)[1], Invalid),
        (lambda path: (path.write_text(""), path / "state.json")[1], Invalid),
        (lambda path: (path.symlink_to(path), path)[1], HostlerError),
        (lambda path: path.parent / ("n" * 300), Invalid),
    ],
    ids=["no folder", "a folder", "below a file", "a loop of links", "too long"],
)
async def test_a_path_that_cannot_be_is_refused_by_name(
    path: Path, make: Callable[[Path], Path], expected: type[Exception]
) -> None:
    target = make(path)
    with pytest.raises(expected, match=str(path.parent)):
        async with opened(target):
            pass


@pytest.mark.parametrize("url", ["file://", "file:///", "file://host/x", "file:///x?colour=red", "file:///x?history=0"])
def test_a_url_that_cannot_be_is_refused(url: str) -> None:
    with pytest.raises(Invalid):
        hostler.open_store(url)


# People's hands


async def test_an_edit_in_place_is_read_and_built_upon(path: Path) -> None:
    await _filled(path)
    async with opened(path) as store:
        await store.get("/1")
        path.write_bytes(path.read_bytes().replace(b'"key":"/1","text":"value"', b'"key":"/1","json":{"by":"hand"}'))
        kv = await store.get("/1")
        assert kv is not None
        assert kv.value == b'{"by":"hand"}'
        await store.put("/9", b"")
    assert b'"key":"/1","json":{"by":"hand"}' in path.read_bytes()


async def test_a_deleted_file_stops_the_store_until_it_is_put_back(path: Path) -> None:
    await _filled(path)
    async with opened(path) as store:
        path.rename(path.with_suffix(".bak"))
        with pytest.raises(Unavailable, match="restore it"):
            await store.get("/1")
        with pytest.raises(Unavailable, match="restore it"):
            await store.put("/1", b"")
        assert not path.exists()
        path.with_suffix(".bak").rename(path)
        assert await store.put("/1", b"") == 5


@pytest.mark.parametrize("writer", ["itself", "another"])
async def test_an_older_copy_put_in_place_is_refused_and_left_alone(path: Path, writer: str) -> None:
    old = await _filled(path)
    async with opened(path) as store, opened(path) as other:
        await (store if writer == "itself" else other).put("/1", b"newer")
        await store.get("/1")
        spare = path.with_suffix(".old")
        spare.write_bytes(old)
        spare.rename(path)
        with pytest.raises(Damaged, match="older"):
            await store.get("/1")
        with pytest.raises(Damaged, match="older"):
            await store.put("/1", b"")
        assert path.read_bytes() == old
    await works(path)


async def test_a_deleted_lock_file_does_not_let_two_write_at_once(path: Path) -> None:
    async with opened(path) as one, opened(path) as other:
        for number in range(10):
            lock = path.with_suffix(".json.lock")
            lock.unlink(missing_ok=True)
            await asyncio.gather(one.put("a", b"%d" % number), other.put("b", b"%d" % number))
        assert (await one.range("")).revision == 21
        assert [kv.version for kv in (await other.range("")).items] == [10, 10]


async def test_the_files_are_for_their_owner_alone(path: Path) -> None:
    before = os.umask(0)
    try:
        await works(path)
    finally:
        os.umask(before)
    assert [entry.stat().st_mode & 0o777 for entry in path.parent.iterdir()] == [0o600, 0o600]


async def test_a_link_to_the_file_stays_a_link_and_shares_its_lock(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "elsewhere" / "link.json"
    link.parent.mkdir()
    link.symlink_to(path)
    async with opened(path) as one, opened(link) as other:
        await asyncio.gather(one.put("a", b""), other.put("b", b""))
        assert len((await one.range("")).items) == 2
    assert link.is_symlink()
    assert [entry.name for entry in link.parent.iterdir()] == ["link.json"]


# The disk


@contextlib.asynccontextmanager
async def small_disk(folder: Path) -> AsyncIterator[Path]:
    """A file system of 256 KiB."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder], check=True)
    try:
        yield folder / "state.json"
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


async def test_a_full_disk_is_told_loses_nothing_and_works_again_once_there_is_room(tmp_path: Path) -> None:
    async with small_disk(tmp_path / "disk") as path, opened(path) as store:
        await store.put("/kept", b"k" * 1_000)
        filler = path.parent / "filler"
        with contextlib.suppress(OSError):
            filler.write_bytes(b"\0" * 10**6)
        before = path.read_bytes()
        for _ in range(2):
            with pytest.raises(Unavailable, match=r"no space.*nothing was written"):
                await store.put("/more", b"m" * 10_000)
        assert path.read_bytes() == before
        assert {entry.name for entry in path.parent.iterdir()} == {"state.json", "state.json.lock", "filler"}
        assert [kv.key for kv in (await store.range("")).items] == ["/kept"]
        filler.unlink()
        assert await store.put("/more", b"m" * 10_000) == 3
        await works(path)


async def test_a_disk_that_became_read_only_can_still_be_read(tmp_path: Path) -> None:
    async with small_disk(tmp_path / "disk") as path:
        async with opened(path) as store:
            await _leased(store, "/a", 0.2)
            await store.put("/b", b"1")
        subprocess.run(["mount", "-o", "remount,ro", path.parent], check=True)
        await asyncio.sleep(0.3)
        async with opened(path) as store:
            assert await store.get("/b") is not None
            with pytest.raises(Unavailable, match="may not write"):
                await store.put("/b", b"2")
            subprocess.run(["mount", "-o", "remount,rw", path.parent], check=True)
            await store.put("/b", b"2")
            assert await store.get("/a") is None


@pytest.mark.parametrize(
    ("call", "number", "expected"),
    [
        ("write", errno.ENOSPC, Unavailable),
        ("write", errno.EDQUOT, Unavailable),
        ("write", errno.EFBIG, Unavailable),
        ("write", errno.EIO, Unavailable),
        ("fsync", errno.EIO, Unavailable),
        ("rename", errno.EACCES, Unavailable),
        ("sync folder", errno.EIO, Uncertain),
    ],
)
async def test_an_error_of_the_disk_is_told_for_what_it_is(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, expected: type[HostlerError]
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    async with opened(path) as store:
        await store.put("a", b"1")
        with monkeypatch.context() as broken:
            if call == "sync folder":
                broken.setattr(disk, "sync_folder", fail)
            else:
                broken.setattr(os, call, fail)
            with pytest.raises(expected) as raised:
                await store.put("a", b"2")
        assert "nothing was written" in str(raised.value) or expected is Uncertain
        kv = await store.get("a")
        assert kv is not None
        assert kv.value == (b"2" if expected is Uncertain else b"1")
        assert not path.with_suffix(".json.tmp").exists()
        await store.put("a", b"3")
    await works(path)


# A peer that does not move

HOLDER = """
import fcntl, os, sys
fd = os.open(sys.argv[1] + ".lock", os.O_RDWR | os.O_CREAT, 0o600)
fcntl.flock(fd, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


async def test_a_lock_held_by_a_suspended_process_makes_writes_unavailable_and_leaves_reads(path: Path) -> None:
    await _filled(path)
    async with child(HOLDER, path) as process:
        assert await line(process) == "held"
        servers.suspend(process.pid)
        async with opened(path, timeout=0.3) as store:
            with pace.within(0.7, "the refusal"), pytest.raises(Unavailable):
                await store.put("/late", b"")
            assert len((await store.range("/")).items) == 3
            process.kill()
            await process.wait()
            assert await store.put("/next", b"") == 5
            assert await store.get("/late") is None


# Leases

GRANTER = """
import asyncio, sys, hostler
async def main(url, ttl):
    async with hostler.open_store(url) as store:
        lease = await store.grant(ttl)
        await store.put("/leased", b"", lease=lease)
        print(lease.id, flush=True)
        await asyncio.sleep(600)
asyncio.run(main(sys.argv[1], float(sys.argv[2])))
"""


async def test_a_lease_of_a_killed_process_ends_on_time_in_another_and_is_seen_by_its_watch(path: Path) -> None:
    async with opened(path) as store, store.watch("/leased") as watch:
        began = time.monotonic()
        async with child(GRANTER, f"file://{path}", 1.5) as process:
            assert (await asyncio.wait_for(anext(watch), WITHIN)).type == "put"
            granted = time.monotonic()
            process.kill()
        assert (await asyncio.wait_for(anext(watch), WITHIN)).type == "delete"
        ended = time.monotonic()
        safe(ended - began >= 1.5, f"a lease of 1.5 s ended after {ended - began:.2f} s")
        pace.check(ended - granted, 1.5 + store.lease_lateness(1.5), since=granted, what="the life of a lease")


async def test_a_lease_keeps_the_time_it_had_left_while_nobody_has_the_store_open(path: Path) -> None:
    async with child(GRANTER, f"file://{path}", 300) as process:
        id_ = int(await line(process))
        process.kill()
    await asyncio.sleep(0.5)
    async with FileStore(str(path)) as store:
        left = await store.remaining(id_)
        assert 200 < left < 299.5
        await asyncio.sleep(0.5)
        await store.keep_alive(id_)
        assert await store.remaining(id_) > left


async def _leased(store: Store, key: str, ttl: float) -> Lease:
    """A key with a lease that is over soon; a machine that is busy may need several tries to write it before."""
    while True:
        lease = await store.grant(ttl)
        with contextlib.suppress(LeaseGone):
            await store.put(key, b"1", lease=lease)
            return lease


async def test_a_lease_that_ended_while_nobody_had_the_store_open_is_gone_when_it_opens(path: Path) -> None:
    async with opened(path) as store:
        lease = await _leased(store, "/leased", 0.1)
    await asyncio.sleep(0.2)
    async with opened(path) as store:
        assert await store.get("/leased") is None
        with pytest.raises(LeaseGone):
            await store.put("/leased", b"", lease=lease)


async def test_ten_thousand_leases_do_not_slow_a_read(path: Path) -> None:
    async with opened(path, timeout=60) as store:
        await asyncio.gather(*(store.grant(3600) for _ in range(10_000)))
        await store.put("a", b"")
        with pace.within(0.6, "1000 reads"):
            for _ in range(1_000):
                await store.get("a")
        assert (await store.status()).details["leases"] == "10000"


async def test_status_tells_the_size_of_the_file(path: Path) -> None:
    async with opened(path) as store:
        assert (await store.status()).size_bytes == 0
        await store.put("a", b"x" * 10_000)
        status = await store.status()
        assert (status.engine, status.size_bytes) == ("file", path.stat().st_size)


async def test_a_store_that_is_closed_keeps_no_file_open(path: Path) -> None:
    async with opened(path) as store, opened(path) as other:
        for number in range(5):
            await store.put("a", b"%d" % number)
            await other.put("a", b"%d" % number)
    del store, other

    def held() -> list[str]:
        return [
            name
            for fd in os.listdir("/proc/self/fd")
            if (name := os.readlink(f"/proc/self/fd/{fd}") if os.path.exists(f"/proc/self/fd/{fd}") else "").startswith(
                str(path)
            )
        ]

    await eventually(lambda: not held())

"""Readers of the state file against saves that happen while they read."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hostler.drivers.store.file import FileStore, disk
from hostler.drivers.store.file.disk import write_lock
from hostler.errors import Closed, Unavailable

WITHIN = 30.0


class Held(FileStore):
    """A store whose reader, told so, has read the file but does not come back with it."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), timeout=WITHIN)
        self.go, self.has_read = threading.Event(), threading.Event()
        self.go.set()

    def _load(self, known: Any) -> Any:
        found = super()._load(known)
        if "reader" in threading.current_thread().name:
            self.has_read.set()
            assert self.go.wait(WITHIN)
        return found

    def hold(self) -> None:
        self.has_read.clear()
        self.go.clear()

    async def reading(self) -> None:
        async with asyncio.timeout(WITHIN):
            while not self.has_read.is_set():
                await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def pair(path: Path) -> AsyncIterator[tuple[Held, FileStore]]:
    async with FileStore(str(path)) as other:
        await other.put("a", b"0")
        async with Held(path) as store:
            try:
                yield store, other
            finally:
                store.go.set()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.json"


async def value(store: FileStore) -> bytes:
    kv = await store.get("a")
    assert kv is not None
    return kv.value


async def test_a_read_does_not_settle_for_what_an_earlier_read_has_found(path: Path) -> None:
    async with pair(path) as (store, other):
        store.hold()
        await other.put("a", b"1")
        first = asyncio.ensure_future(value(store))
        await store.reading()
        await other.put("a", b"2")
        second = asyncio.ensure_future(value(store))
        await asyncio.sleep(0)
        store.go.set()
        assert (await first, await second) == (b"1", b"2") or (await first, await second) == (b"2", b"2")


async def test_a_save_of_our_own_that_overtakes_a_read_is_not_undone_by_it(path: Path) -> None:
    async with pair(path) as (store, other), store.watch("") as watch:
        await store.put("b", b"")  # from here on its writer knows the file
        assert (await asyncio.wait_for(anext(watch), WITHIN)).kv.key == "b"
        store.hold()
        await other.put("a", b"1")
        reader = asyncio.ensure_future(value(store))
        await store.reading()
        for number in range(2, 5):
            await store.put("a", b"%d" % number)
        store.go.set()
        assert await reader == b"4"
        assert await value(store) == b"4"
        seen = [(await asyncio.wait_for(anext(watch), WITHIN)).kv.value for _ in range(4)]
        assert seen == [b"1", b"2", b"3", b"4"]


async def test_a_read_that_outlives_its_deadline_is_unavailable(path: Path) -> None:
    async with pair(path) as (store, other):
        store.hold()
        await other.put("a", b"1")
        store._timeout = 0.05
        with pytest.raises(Unavailable, match="could not be read within"):
            await store.get("a")


async def test_a_read_that_is_under_way_when_the_store_is_closed_ends_with_closed(path: Path) -> None:
    async with pair(path) as (store, other):
        store.hold()
        await other.put("a", b"1")
        reader = asyncio.ensure_future(value(store))
        await store.reading()
        closing = asyncio.ensure_future(store.aclose())
        await asyncio.sleep(0)
        store.go.set()
        await closing
        with pytest.raises(Closed):
            await reader


async def test_what_a_reader_has_seen_of_another_process_cannot_vanish_with_the_power(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(path) as (store, other):
        await other.put("a", b"1")

        def fail(*_: object) -> None:
            raise OSError(5, "I/O error")

        with monkeypatch.context() as broken:
            broken.setattr(disk, "sync_folder", fail)
            with pytest.raises(Unavailable):
                await store.get("a")
        assert await value(store) == b"1"


async def test_a_tight_loop_of_reads_leaves_the_event_loop_to_writers(path: Path) -> None:
    async with FileStore(str(path)) as store:
        writer = asyncio.ensure_future(store.put("a", b"1"))
        async with asyncio.timeout(WITHIN):
            while not writer.done():
                await store.get("a")


async def test_only_one_of_many_readers_reads_the_file(path: Path) -> None:
    async with pair(path) as (store, other):
        reads = 0
        real = store._load

        def counting(known: Any) -> Any:
            nonlocal reads
            reads += 1
            return real(known)

        store._load = counting  # type: ignore[method-assign]
        await other.put("a", b"1")
        assert await asyncio.gather(*(value(store) for _ in range(50))) == [b"1"] * 50
        assert reads <= 2


async def test_a_store_without_watches_or_leases_rests(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    real = os.stat

    def counting(*args: Any, **kwargs: Any) -> os.stat_result:
        nonlocal looks
        looks += str(args[0]) == str(path)
        return real(*args, **kwargs)

    async with FileStore(str(path)) as store:
        await store.put("a", b"")
        monkeypatch.setattr(os, "stat", counting)
        await asyncio.sleep(0.5)
        monkeypatch.undo()
    assert looks <= 4


def free(path: Path) -> bool:
    """Whether nobody holds the lock that the next writer would take."""
    fd = os.open(f"{path}.lock", os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def test_who_waited_for_a_lock_file_that_was_deleted_locks_the_one_that_is_there(path: Path) -> None:
    inside, leave = threading.Event(), threading.Event()

    def wait_for_it() -> None:
        with write_lock(str(path)):
            inside.set()
            leave.wait(WITHIN)

    waiter = threading.Thread(target=wait_for_it)
    with write_lock(str(path)):
        waiter.start()
        while not _blocked_on_flock(waiter):
            time.sleep(0.001)
        os.unlink(f"{path}.lock")
    assert inside.wait(WITHIN)
    assert not free(path)
    leave.set()
    waiter.join()
    assert free(path)


def _blocked_on_flock(thread: threading.Thread) -> bool:
    with open("/proc/locks", encoding="ascii") as locks:
        waiting = any("->" in lock and "FLOCK" in lock and f" {os.getpid()} " in lock for lock in locks)
    return waiting and thread.is_alive()


def test_a_child_forked_while_the_lock_is_held_does_not_keep_it(path: Path) -> None:
    reading, writing = os.pipe()
    with write_lock(str(path)):
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
    try:
        assert free(path)
    finally:
        os.close(writing)
        os.waitpid(child, 0)
        os.close(reading)


async def test_a_lease_that_is_due_is_ended_by_a_read_even_if_the_clock_stands_still(path: Path) -> None:
    class Standing:
        """Time that moves when told; who sleeps on it sleeps for good."""

        at = 1_000.0

        def now(self) -> float:
            return self.at

        def wall(self) -> float:
            return self.at

        async def sleep(self, seconds: float) -> None:  # noqa: ARG002 - it is for good
            await asyncio.get_running_loop().create_future()

    clock = Standing()
    async with FileStore(str(path), clock=clock) as store:
        lease = await store.grant(10)
        await store.put("a", b"", lease=lease)
        clock.at += 9.9
        assert await store.get("a") is not None
        clock.at += 0.1
        async with asyncio.timeout(WITHIN):
            while await store.get("a") is not None:
                await asyncio.sleep(0.001)
        assert await lease.remaining() == 0.0

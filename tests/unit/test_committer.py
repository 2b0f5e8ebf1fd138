"""Group commit: who shares a batch, and what a writer is told whose time is up."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import pytest
from harness.pace import patience

from hostler.drivers.store.committer import Committer, Request
from hostler.errors import Closed, Conflict, Unavailable, Uncertain

WITHIN = 30.0
SOON = 0.35
"""A deadline that passes, and that the thread has begun before (`patience`)."""


class Disk:
    """Takes batches of words; can be held up before a batch's turn and inside of a batch."""

    def __init__(self, timeout: float = WITHIN) -> None:
        self.batches: list[list[str]] = []
        self.published: list[list[str]] = []
        self.turn, self.batch = threading.Event(), threading.Event()
        self.turn.set()
        self.batch.set()
        self.waiting, self.running = threading.Event(), threading.Event()
        self.failure: BaseException | None = None
        self.committer: Committer[str, list[str]] = Committer(
            "disk", self._run, self.published.append, turn=self._turn, timeout=timeout
        )

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        self.waiting.set()
        assert self.turn.wait(WITHIN)
        yield
        self.waiting.clear()

    def _run(self, batch: Sequence[Request[str]]) -> list[str]:
        self.running.set()
        assert self.batch.wait(WITHIN)
        if self.failure is not None:
            raise self.failure
        for request in batch:
            if request.work == "refused":
                request.error = Conflict("refused")
            else:
                request.result = request.work.upper()
        self.batches.append([request.work for request in batch])
        return self.batches[-1]


@contextlib.asynccontextmanager
async def opened(timeout: float = WITHIN) -> AsyncIterator[Disk]:
    disk = Disk(timeout)
    disk.committer.start()
    try:
        yield disk
    finally:
        disk.turn.set()
        disk.batch.set()
        await disk.committer.aclose()


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN):
        while not what():
            await asyncio.sleep(0.001)


async def test_writers_that_come_together_share_a_batch_and_get_their_own_answers() -> None:
    async with opened() as disk:
        answers = await asyncio.gather(
            *(disk.committer.submit(word) for word in ("a", "refused", "b")), return_exceptions=True
        )
    assert (answers[0], answers[2]) == ("A", "B")
    assert isinstance(answers[1], Conflict)
    assert disk.batches == [["a", "refused", "b"]]


async def test_writers_that_come_during_a_batch_share_the_next_one() -> None:
    async with opened() as disk:
        disk.batch.clear()
        first = asyncio.ensure_future(disk.committer.submit("a"))
        await until(disk.running.is_set)
        rest = [asyncio.ensure_future(disk.committer.submit(word)) for word in "bcd"]
        await asyncio.sleep(0)
        disk.batch.set()
        assert await asyncio.gather(first, *rest) == ["A", "B", "C", "D"]
    assert disk.batches == [["a"], ["b", "c", "d"]]


async def test_a_writer_who_returns_finds_its_batch_published() -> None:
    async with opened() as disk:
        await disk.committer.submit("a")
        assert disk.published == [["a"]]


@pytest.mark.slow
async def test_a_deadline_that_passes_before_the_turn_is_unavailable_and_really_not_written() -> None:
    async with opened(patience(SOON)) as disk:
        disk.turn.clear()
        with pytest.raises(Unavailable):
            await disk.committer.submit("late")
        disk.turn.set()
        disk.committer._timeout = WITHIN
        assert await disk.committer.submit("next") == "NEXT"
    assert disk.batches == [["next"]]


@pytest.mark.slow
async def test_a_deadline_that_passes_behind_another_batch_is_unavailable_and_really_not_written() -> None:
    async with opened(patience(SOON)) as disk:
        disk.batch.clear()
        first = asyncio.ensure_future(disk.committer.submit("first"))
        await until(disk.running.is_set)
        with pytest.raises(Unavailable):
            await disk.committer.submit("late")
        with pytest.raises(Uncertain):
            await first
    assert disk.batches == [["first"]]


@pytest.mark.slow
async def test_a_deadline_that_passes_inside_the_batch_is_uncertain() -> None:
    async with opened(patience(SOON)) as disk:
        disk.batch.clear()
        with pytest.raises(Uncertain):
            await disk.committer.submit("a")
    assert disk.batches == [["a"]]


async def test_what_a_batch_raises_is_every_writers_outcome_and_the_next_batch_is_not_harmed() -> None:
    async with opened() as disk:
        disk.failure = Unavailable("disk: full")
        failed = await asyncio.gather(*(disk.committer.submit(word) for word in "ab"), return_exceptions=True)
        assert failed == [disk.failure, disk.failure]
        assert disk.published == []
        disk.failure = None
        assert await disk.committer.submit("c") == "C"


async def test_a_turn_that_cannot_be_had_is_every_writers_outcome() -> None:
    def refuse() -> contextlib.AbstractContextManager[object]:
        raise Unavailable("lock: not permitted")

    committer: Committer[str, list[str]] = Committer("disk", lambda _: [], lambda _: None, turn=refuse, timeout=WITHIN)
    committer.start()
    with pytest.raises(Unavailable, match="not permitted"):
        await committer.submit("a")
    await committer.aclose()


async def test_a_writer_cancelled_before_its_turn_writes_nothing() -> None:
    async with opened() as disk:
        disk.turn.clear()
        cancelled = asyncio.ensure_future(disk.committer.submit("a"))
        await until(disk.waiting.is_set)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        disk.turn.set()
        assert await disk.committer.submit("b") == "B"
    assert [word for batch in disk.batches for word in batch] == ["b"]


async def test_a_writer_cancelled_inside_a_batch_does_not_harm_its_neighbours() -> None:
    async with opened() as disk:
        disk.batch.clear()
        cancelled, other = (asyncio.ensure_future(disk.committer.submit(word)) for word in "ab")
        await until(disk.running.is_set)
        cancelled.cancel()
        await asyncio.sleep(0)
        disk.batch.set()
        assert await other == "B"
        assert cancelled.cancelled()


async def test_closing_finishes_what_was_handed_over_and_refuses_the_rest() -> None:
    disk = Disk()
    disk.committer.start()
    writer = asyncio.ensure_future(disk.committer.submit("a"))
    await asyncio.sleep(0)
    await disk.committer.aclose()
    assert await writer == "A"
    with pytest.raises(Closed):
        await disk.committer.submit("b")
    await disk.committer.aclose()
    assert not any(thread.name == "disk" for thread in threading.enumerate())


async def test_closing_does_not_wait_for_ever_for_a_turn_and_tells_the_writer() -> None:
    disk = Disk(timeout=0.1)
    disk.committer.start()
    disk.turn.clear()
    writer = asyncio.ensure_future(disk.committer.submit("a"))
    await until(disk.waiting.is_set)
    await asyncio.wait_for(disk.committer.aclose(), WITHIN)
    with pytest.raises(Unavailable):
        await writer
    disk.turn.set()
    await until(lambda: not any(thread.name == "disk" for thread in threading.enumerate()))
    assert disk.batches == []


async def test_a_committer_that_was_not_started_refuses() -> None:
    with pytest.raises(Closed):
        await Disk().committer.submit("a")

"""The killer, on real processes: a loss is the end of one that does not stop, and of no other.

Every process keeps a record by its own clock: what it said and when, when its killer decided to end it and by which
deadline, and the longest time for which its event loop got no turn. Safety is judged by that record, which a busy
machine does not spoil: a killer that is early is wrong on any machine. Only how late it is is judged at the machine's
pace.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import pytest
from harness.artefacts import safe
from harness.pace import check, patience, slowdown

from hostler.engine.self_fencing import GRACE, LOOK, overdue_at
from hostler.testing import servers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

SHORT = 0.6
"""Seconds of a leadership's life where the test waits for its end."""
LONG = 2.0
"""Where it must be renewed in time: a machine that stands still for a second does not end it."""
START = 10.0
"""Seconds for an interpreter to start."""

PROGRAM = """
import asyncio, os, sys, time
from hostler import Replica, ReplicaConfig, open_ttl_storage
from hostler.engine import self_fencing
from hostler.testing import BreakableTtlStorage

TTL = {ttl}
RECORD = os.open({record!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
kill = self_fencing._kill

def now():
    return time.clock_gettime(time.CLOCK_BOOTTIME)

def say(what, at=None):
    os.write(RECORD, f"{{what}} {{now() if at is None else at}}\\n".encode())

def decide(overdue):
    say("decided")
    say("due", min(map(self_fencing.overdue_at, overdue)))
    kill(overdue)

self_fencing._kill = decide

async def tick():
    longest, before = 0.1, now()
    while True:
        await asyncio.sleep(0.01)
        before, gap = now(), now() - before
        if gap > longest:
            longest = gap
            say("stalled", gap)

class Stuck:
    name = "stuck"
    async def start(self, standing):
        pass
    async def run(self):
        await asyncio.Event().wait()
    async def stop(self):
        await asyncio.Event().wait()

async def main():
    ticking = asyncio.create_task(tick())
    async with open_ttl_storage("memory://") as raw:
        storage = BreakableTtlStorage(raw)
        replica = Replica(ReplicaConfig(ip="10.0.0.1"), storage, [Stuck()] if {stuck} else [])
        problem = await replica.launch(TTL, 0)
        assert problem.error is None, problem.error
        leadership = replica.leadership
        say("deadline", leadership.deadline)
        say("leads")
{story}
    ticking.cancel()

asyncio.run(main())
say("ends")
"""


class Child(NamedTuple):
    """A process, its record, and the life of its leadership."""

    process: subprocess.Popen[bytes]
    file: Path
    ttl: float
    began: float

    def record(self) -> dict[str, float]:
        """What it wrote down, the last of each kind."""
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return {what: float(value) for what, _, value in (line.partition(" ") for line in lines)}

    def wait_for(self, what: str, within: float = START) -> float:
        end = time.monotonic() + patience(within)
        while what not in (record := self.record()):
            assert time.monotonic() < end, f"{what}: not within {within:g} s; {record}"
            assert self.process.poll() is None or what in self.record(), f"it ended before {what}: {self.errors()}"
            time.sleep(0.005)
        return record[what]

    def errors(self) -> str:
        assert self.process.stderr is not None
        return f"{self.record()} {self.process.stderr.read(65536).decode(errors='replace')}"

    def ended(self, within: float) -> float:
        """When it had ended, on the clock of its record. Whether that was in time is judged by the record."""
        self.process.wait(patience(within + START))
        return time.clock_gettime(time.CLOCK_BOOTTIME)


@contextmanager
def started(folder: Path, story: str, *, ttl: float, stuck: bool = False) -> Iterator[Child]:
    """A process that leads and then does what the story says."""
    file = folder / f"record-{len(list(folder.iterdir()))}"
    file.touch()
    story = textwrap.indent(textwrap.dedent(story), " " * 8)
    text = PROGRAM.format(ttl=ttl, stuck=stuck, record=str(file), story=story)
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, "-c", text], stderr=subprocess.PIPE)
    try:
        yield Child(process, file, ttl, began)
    finally:
        process.kill()
        process.communicate()


def killed_in_time(child: Child, ended_at: float, due: float) -> None:
    """It was ended by its killer: not before it was due, by its own record, and not long after."""
    record = child.record()
    assert child.process.returncode == 1, record
    safe("decided" in record, "a process that lost its leadership ended otherwise than by its killer", record=record)
    safe(record["decided"] >= due, "the killer ended a process before it was due", record=record, due=due)
    look = min(child.ttl / GRACE / 4, LOOK)
    check(record["decided"] - due, look + 0.1, since=child.began, what="the killer's decision")
    check(ended_at - record["decided"], 0.5, since=child.began, what="the end after the decision")


def test_a_process_whose_event_loop_spins_is_dead_a_quarter_after_its_loss(tmp_path: Path) -> None:
    with started(tmp_path, "while True: pass", ttl=SHORT) as child:
        child.wait_for("leads")
        ended_at = child.ended(within=SHORT * 1.25)
        killed_in_time(child, ended_at, child.record()["deadline"] + SHORT / 4)
        assert "sysvvm/1/1 was lost and the process did not stop in time" in child.errors()


def test_it_kills_although_nobody_reads_what_it_says(tmp_path: Path) -> None:
    story = """
    os.set_blocking(2, False)
    try:
        while True:
            os.write(2, b"x" * 65536)
    except BlockingIOError:
        pass
    os.set_blocking(2, True)
    say("full")
    while True:
        pass
    """
    with started(tmp_path, story, ttl=SHORT) as child:
        child.wait_for("full")
        ended_at = child.ended(within=SHORT * 1.25)
        killed_in_time(child, ended_at, child.record()["deadline"] + SHORT / 4)


@pytest.mark.usefixtures("beside")
def test_a_process_that_slept_past_its_life_is_dead_as_soon_as_it_wakes(tmp_path: Path) -> None:
    with started(tmp_path, "await asyncio.Event().wait()", ttl=SHORT) as child:
        child.wait_for("leads")
        servers.suspend(child.process.pid)
        time.sleep(SHORT * 1.25 + 0.1)
        record = child.record()
        safe("decided" not in record, "it was ended before it slept", record=record)
        woke, since = time.clock_gettime(time.CLOCK_BOOTTIME), time.monotonic()
        os.kill(child.process.pid, signal.SIGCONT)
        ended_at = child.ended(within=1.0)
        record = child.record()
        assert child.process.returncode == 1, record
        safe(record["decided"] >= max(woke, record["due"]), "the killer was early", record=record)
        check(ended_at - woke, 0.3, since=since, what="the end of a process that woke too late")


# Those that wait and use no processor run beside the tests above.


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Child]]:
    stories = {
        "napped": (f"await asyncio.sleep(1.5 * TTL); assert leadership.held{RELEASED}", LONG, False),
        "renewed": (f"await asyncio.sleep(1.5 * TTL); assert leadership.held{RELEASED}", LONG, False),
        "released": ("await replica.shutdown(); say('released'); await asyncio.sleep(2 * TTL)", SHORT, False),
        "stuck": (DISPLACED, LONG, True),
        "stays": (STAYS, SHORT, False),
    }
    folder = tmp_path_factory.mktemp("killer")
    children: dict[str, Child] = {}
    managers = {name: started(folder, story, ttl=ttl, stuck=stuck) for name, (story, ttl, stuck) in stories.items()}
    try:
        for name, manager in managers.items():
            children[name] = manager.__enter__()
        napped = children["napped"]
        napped.wait_for("leads")
        servers.suspend(napped.process.pid)
        time.sleep(LONG / 4)
        os.kill(napped.process.pid, signal.SIGCONT)
        yield children
    finally:
        for name in children:
            managers[name].__exit__(None, None, None)


RELEASED = "; await replica.shutdown()"
DISPLACED = """
await raw.compare_and_swap("sysvvm/1/1", leadership.record, "somebody else", ttl=60)
await problem.wait()
say("lost", leadership.lost_at)
await replica.shutdown()
say("stopped")
"""
STAYS = """
storage.mood = "hang"
await problem.wait()
storage.hear()
await replica.shutdown()
say("stopped")
await asyncio.Event().wait()
"""


def lived(child: Child, *, napped: float = 0.0) -> None:
    """It was not ended by its killer.

    A process that gets no processor for most of its leadership's life does lose it, and must be ended then: that is no
    fault. But only its own record can say so, a record of a stall that is long enough; and then the calibration loop
    must have seen that the machine was slow.
    """
    child.ended(within=1.5 * LONG + START)
    record = child.record()
    if child.process.returncode == 0:
        assert "ends" in record, record
        return
    stalled = record.get("stalled", 0.0)
    safe(
        stalled - napped > child.ttl / 2, "a leadership that was renewed was ended", record=record, said=child.errors()
    )
    assert slowdown(child.began) > 2.0, f"it stood still for {stalled:.2f} s on a machine that was not slow: {record}"


def test_a_process_that_slept_a_little_goes_on(beside: dict[str, Child]) -> None:
    lived(beside["napped"], napped=LONG / 4)


def test_renewals_keep_a_process_alive(beside: dict[str, Child]) -> None:
    lived(beside["renewed"])


def test_an_orderly_release_never_kills(beside: dict[str, Child]) -> None:
    child = beside["released"]
    child.wait_for("released")
    child.ended(within=2 * SHORT + START)
    record = child.record()
    safe("decided" not in record, "a leadership that was released ended the process", record=record)
    assert child.process.returncode == 0, child.errors()


def test_a_process_whose_services_do_not_stop_is_dead_a_quarter_after_its_loss(beside: dict[str, Child]) -> None:
    child = beside["stuck"]
    lost = child.wait_for("lost")
    child.ended(within=LONG / 4)
    assert "stopped" not in child.record()
    killed_in_time(child, child.record()["decided"], lost + LONG / 4)


def test_a_loss_that_was_shut_down_in_time_ends_the_process_all_the_same(beside: dict[str, Child]) -> None:
    """Whoever lost must exit; a program that stays has not understood."""
    child = beside["stays"]
    child.wait_for("stopped")
    child.ended(within=SHORT)
    record = child.record()
    killed_in_time(child, record["decided"], record["due"])


@pytest.mark.parametrize(("lost_at", "due"), [(None, 12.0), (5.0, 7.0), (11.0, 12.0)])
def test_the_grace_counts_from_the_loss_and_no_later_than_from_the_deadline(lost_at: float | None, due: float) -> None:
    class Seen:
        deadline, ttl = 10.0, 8.0

    seen = Seen()
    seen.lost_at = lost_at  # type: ignore[attr-defined]
    assert overdue_at(seen) == due  # type: ignore[arg-type]

"""The killer, on real processes: a loss is the end of one that does not stop, and of no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from tries import in_some_try

from hostler.engine.killer import overdue_at

if TYPE_CHECKING:
    from collections.abc import Iterator

TTL = 2.0
MARGIN = 1.5
"""Seconds that a busy machine may be late."""
LEISURE = 30.0
"""For what is not about time: an interpreter that ends."""

PROGRAM = """
import asyncio, os, sys, time
from hostler import Replica, ReplicaConfig, open_ttl_storage
from hostler.testing import BreakableTtlStorage

TTL = {ttl}

def say(what):
    print(what, time.clock_gettime(time.CLOCK_BOOTTIME), flush=True)

class Stuck:
    name = "stuck"
    async def start(self, standing):
        pass
    async def run(self):
        await asyncio.Event().wait()
    async def stop(self):
        await asyncio.Event().wait()

async def main():
    async with open_ttl_storage("memory://") as raw:
        storage = BreakableTtlStorage(raw)
        replica = Replica(ReplicaConfig(ip="10.0.0.1"), storage, [Stuck()] if {stuck} else [])
        problem = await replica.launch(TTL, 0)
        assert problem.error is None, problem.error
        leadership = replica.leadership
        say("leads")
{story}

asyncio.run(main())
say("ends")
"""


@contextmanager
def process(story: str, *, stuck: bool = False, ttl: float = TTL) -> Iterator[subprocess.Popen[str]]:
    """A process that leads and then does what the story says; it has said that it leads."""
    text = PROGRAM.format(ttl=ttl, stuck=stuck, story=textwrap.indent(textwrap.dedent(story), " " * 8))
    child = subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ}
    )
    try:
        assert said(child, "leads")
        yield child
    finally:
        child.kill()
        child.communicate()


def said(child: subprocess.Popen[str], what: str) -> float:
    """The next line: when it was said."""
    assert child.stdout is not None
    line = child.stdout.readline()
    assert line.startswith(f"{what} "), line or (child.stderr.read() if child.stderr else "")
    return float(line.split()[1])


def ended(child: subprocess.Popen[str], *, within: float) -> float:
    """When the process had ended, which must be soon."""
    child.wait(within)
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@in_some_try
def test_a_process_whose_event_loop_spins_is_dead_a_quarter_after_its_loss() -> None:
    story = """
    say(f"deadline {leadership.deadline}")
    while True:
        pass
    """
    with process(story) as child:
        assert child.stdout is not None
        deadline = float(child.stdout.readline().split()[1])
        at = ended(child, within=TTL * 1.25 + MARGIN)
        assert child.returncode == 1
        assert deadline + TTL / 4 <= at <= deadline + TTL / 4 + MARGIN
        assert child.stderr is not None
        assert "sysvvm/1/1 was lost and the process did not stop in time" in child.stderr.read()


@in_some_try
def test_a_process_whose_services_do_not_stop_is_dead_a_quarter_after_its_loss() -> None:
    story = """
    await raw.compare_and_swap("sysvvm/1/1", leadership.record, "somebody else", ttl=60)
    await problem.wait()
    say(f"lost {leadership.lost_at}")
    await replica.shutdown()
    say("stopped")
    """
    with process(story, stuck=True) as child:
        lost = said(child, "lost")
        at = ended(child, within=TTL / 4 + MARGIN)
        assert child.returncode == 1
        assert lost + TTL / 4 <= at <= lost + TTL / 4 + MARGIN


@in_some_try
def test_a_process_that_slept_past_its_life_is_dead_as_soon_as_it_wakes() -> None:
    with process("await asyncio.Event().wait()") as child:
        os.kill(child.pid, signal.SIGSTOP)
        time.sleep(TTL * 1.25 + 0.3)
        assert child.poll() is None
        os.kill(child.pid, signal.SIGCONT)
        woke = time.clock_gettime(time.CLOCK_BOOTTIME)
        assert ended(child, within=MARGIN) - woke < MARGIN
        assert child.returncode == 1


@in_some_try
def test_a_process_that_slept_a_little_goes_on() -> None:
    with process("await asyncio.sleep(2 * TTL); assert leadership.held; await replica.shutdown()") as child:
        os.kill(child.pid, signal.SIGSTOP)
        time.sleep(TTL / 4)
        os.kill(child.pid, signal.SIGCONT)
        assert said(child, "ends")
        child.wait(LEISURE)
        assert child.returncode == 0


@in_some_try
def test_renewals_keep_a_process_alive() -> None:
    with process("await asyncio.sleep(4 * TTL); assert leadership.held; await replica.shutdown()", ttl=1.5) as child:
        assert said(child, "ends")
        child.wait(LEISURE)
        assert child.returncode == 0


@in_some_try
def test_an_orderly_release_never_kills() -> None:
    with process("await replica.shutdown(); say('released'); await asyncio.sleep(2 * TTL)", ttl=0.8) as child:
        assert said(child, "released")
        assert said(child, "ends")
        child.wait(LEISURE)
        assert child.returncode == 0


@in_some_try
def test_a_loss_that_was_shut_down_in_time_ends_the_process_all_the_same() -> None:
    """Whoever lost must exit; a program that stays has not understood."""
    story = """
    storage.mood = "hang"
    await problem.wait()
    storage.hear()
    await replica.shutdown()
    say("stopped")
    await asyncio.Event().wait()
    """
    with process(story, ttl=1.0) as child:
        said(child, "stopped")
        ended(child, within=MARGIN)
        assert child.returncode == 1


@in_some_try
def test_it_kills_although_nobody_reads_what_it_says() -> None:
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
    with process(story, ttl=1.0) as child:
        said(child, "full")
        ended(child, within=1.25 + MARGIN)
        assert child.returncode == 1


@pytest.mark.parametrize(("lost_at", "due"), [(None, 12.0), (5.0, 7.0), (11.0, 12.0)])
def test_the_grace_counts_from_the_loss_and_no_later_than_from_the_deadline(lost_at: float | None, due: float) -> None:
    class Seen:
        deadline, ttl = 10.0, 8.0

    seen = Seen()
    seen.lost_at = lost_at  # type: ignore[attr-defined]
    assert overdue_at(seen) == due  # type: ignore[arg-type]

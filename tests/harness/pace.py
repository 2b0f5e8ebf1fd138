"""The pace of the machine: a calibration loop that runs beside the tests, and time limits as ratios to it.

A process of its own sleeps a little, works a little, and writes down how long that took. Compared with its best time
in this run, that tells how much slower the machine is at this moment: others use the processors, or it stood still.
A scheduler favours a process that has just slept, so the loop also counts the processes that want a processor: one
that works all the time gets a fair share of the processors, and no more. A claim about time is `within(2.0)`: two
seconds at the machine's own pace. Code that is slow by itself does not slow the loop down, and fails.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE = "TEST_PACE"
"""The file that the loop writes to; the workers of a run read it there."""
SLEEP, WORK = 0.3, 200_000
"""One tick: seconds of sleep, then as many turns of a loop."""
LOOKS = 5
"""How often in a tick the processes that want a processor are counted."""
_TICK = struct.Struct("<dd")
_HEAD = struct.Struct("<Qd")
_TICKS = 1 << 15


def _loop(path: str) -> None:
    """Write ticks until the parent is gone. One tick: when it ended, and by how many seconds it was late."""
    parent = os.getppid()
    with Path(path).open("r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
    best, count, processors = float("inf"), 0, len(os.sched_getaffinity(0))
    while os.getppid() == parent:
        began = time.monotonic()
        wanting = 0
        for _ in range(LOOKS):
            time.sleep(SLEEP / LOOKS)
            wanting += _wanting()
        woke = time.monotonic()
        for _ in range(WORK):
            pass
        ended = time.monotonic()
        best = min(best, ended - woke)
        share = wanting / LOOKS / processors
        late = slowdown_of_tick(worked=(ended - woke) / best, share=share, slept=(woke - began) / SLEEP)
        _TICK.pack_into(memory, _HEAD.size + count % _TICKS * _TICK.size, ended, late)
        count += 1
        _HEAD.pack_into(memory, 0, count, best)


def slowdown_of_tick(*, worked: float, share: float, slept: float) -> float:
    """Return how much slower the machine was, by the work of a tick, the processes per processor, and its sleep."""
    return max(worked, share, 1.0) + max(0.0, slept - 1.0)


def _wanting() -> int:
    """Return how many processes and threads run, or wait for a processor, without this one."""
    return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0]) - 1


class Pace:
    """The calibration loop, as the process that runs the tests starts and stops it."""

    def __init__(self) -> None:
        handle, name = tempfile.mkstemp(prefix="hostler-pace-")
        os.truncate(handle, _HEAD.size + _TICKS * _TICK.size)
        os.close(handle)
        self._file = Path(name)
        self._process = subprocess.Popen([sys.executable, "-S", "-E", __file__, name], stdin=subprocess.DEVNULL)
        self.pid = self._process.pid
        os.environ[VARIABLE] = name

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._file.unlink(missing_ok=True)


def slowdown(since: float) -> float:
    """Return how many times slower than at its best the machine was since an instant of the monotonic clock."""
    name = os.environ.get(VARIABLE)
    if not name or not Path(name).exists():
        return 1.0
    data = Path(name).read_bytes()
    count, _ = _HEAD.unpack_from(data, 0)
    found = []
    for number in range(count - 1, max(-1, count - _TICKS), -1):
        at, late = _TICK.unpack_from(data, _HEAD.size + number % _TICKS * _TICK.size)
        found.append(late)
        if at < since:
            break
    if not count:  # its first tick is not over
        return 1.0
    silent = time.monotonic() - _last(data, count)
    if silent > 3 * SLEEP:  # the loop itself stands still: so does everything
        found.append(silent / SLEEP)
    return max(1.0, sum(found) / len(found)) if found else 1.0


def _last(data: bytes, count: int) -> float:
    return float(_TICK.unpack_from(data, _HEAD.size + (count - 1) % _TICKS * _TICK.size)[0])


@contextlib.contextmanager
def within(seconds: float, what: str = "it") -> Iterator[None]:
    """The block must take no longer than `seconds`, times how much slower the machine was meanwhile."""
    began = time.monotonic()
    yield
    check(time.monotonic() - began, seconds, since=began, what=what)


def check(took: float, limit: float, *, since: float, what: str = "it") -> None:
    """Fail if `took` is more than `limit` at the pace that the machine had since an instant."""
    if took <= limit:
        return
    slower = slowdown(since)
    assert took <= limit * slower, (
        f"{what} took {took:.2f} s; {limit:g} s at a machine {slower:.1f} times slower is too long"
    )


def patience(seconds: float) -> float:
    """Return the seconds to wait for what takes `seconds` at most: longer where the machine is slow at this moment.

    For what must come at all. That it comes soon is claimed with `within`.
    """
    return seconds * max(2.0, 2.0 * slowdown(time.monotonic() - 1.0))


if __name__ == "__main__":
    _loop(sys.argv[1])

"""Scenario runs spread over processes. The caller may stop at any time; no process is left running."""

from __future__ import annotations

import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import IO, TYPE_CHECKING, cast

import msgspec

from hostler.errors import HostlerError
from hostler.kit.plural import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Run(msgspec.Struct, frozen=True):
    """One scenario with one seed."""

    what: str
    """A name in the library, or the path of a file."""
    seed: int


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run."""

    run: Run
    passed: bool
    broken: tuple[str, ...] = ()
    text: str = ""
    """The first violation."""
    cpu: float = 0.0
    virtual: float = 0.0


def ran(run: Run) -> Ran:
    """Run the scenario in this process."""
    from hostler.sim.scenario.library import find
    from hostler.sim.scenario.run import run_scenario

    begun = time.process_time()
    outcome = run_scenario(find(run.what), run.seed, kept=False)
    first = outcome.violations[:1]
    return Ran(
        run=run,
        passed=outcome.passed,
        broken=tuple(sorted(outcome.broken)),
        text=f"at {first[0].at:g} s: {first[0].component}: {first[0].text}" if first else "",
        cpu=time.process_time() - begun,
        virtual=outcome.counters["virtual_seconds"],
    )


def crew(runs: Sequence[Run], jobs: int) -> Iterator[Ran]:
    """Yield the results in the order in which the runs end. Closing the generator ends the processes."""
    if jobs <= 1 or len(runs) <= 1:
        yield from map(ran, runs)
        return
    left = list(reversed(runs))
    workers: list[_Worker] = []
    ready = selectors.DefaultSelector()
    try:
        for _ in range(min(jobs, len(runs))):
            worker = _Worker()
            workers.append(worker)
            ready.register(worker.answers, selectors.EVENT_READ, worker)
            worker.hand(left.pop())
        while ready.get_map():
            for key, _ in ready.select():
                worker = key.data
                found = worker.receive()
                if left and worker.alive:
                    worker.hand(left.pop())
                else:
                    ready.unregister(worker.answers)
                yield found
        if left:
            undone = counted(len(left), "run was", "runs were")
            raise HostlerError(f"simulation: every process has ended, and {undone} not done; try --jobs 1")
    finally:
        ready.close()
        for worker in workers:
            worker.end()


class _Worker:
    """A process that does one run after another."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._run: Run | None = None
        self.alive = True

    @property
    def answers(self) -> IO[bytes]:
        return cast("IO[bytes]", self._process.stdout)

    def hand(self, run: Run) -> None:
        self._run = run
        with suppress(BrokenPipeError):  # the process has died; `receive` reports that
            stdin = cast("IO[bytes]", self._process.stdin)
            stdin.write(msgspec.json.encode(run) + b"\n")
            stdin.flush()

    def receive(self) -> Ran:
        """Return the result of the current run. If the process has died, return a failed run that says so."""
        line = self.answers.readline()
        if line.endswith(b"\n"):
            return msgspec.json.decode(line, type=Ran)
        self.alive = False
        text = f"the process that ran it ended with {self._process.wait()}"
        return Ran(run=cast("Run", self._run), passed=False, broken=("nothing_broke",), text=text)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


def _work() -> None:
    """Run what arrives on stdin until it closes. Ignore interrupts, which the parent process handles."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in sys.stdin.buffer:
        run = msgspec.json.decode(line, type=Run)
        try:
            found = ran(run)
        except Exception as error:  # noqa: BLE001 - reported to the parent, because stderr of this process is discarded
            text = f"{type(error).__name__}: {error}"
            found = Ran(run=run, passed=False, broken=("nothing_broke",), text=text)
        sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _work()

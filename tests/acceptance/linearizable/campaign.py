"""Several client processes against one store, and the verdict on what they recorded."""

from __future__ import annotations

import contextlib
import signal
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import running
from client_process import Orders
from harness import pace
from harness.artefacts import safe

from hostler.testing import check_linearizable, read_history, servers
from hostler.testing.history import unexpected_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostler.testing import Call, Violation

PROGRAM = Path(__file__).with_name("client_process.py")


class Process:
    """A client process; its errors go to a file beside its journal."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self.killed = False
        self._errors = Path(f"{orders.journal}.stderr")
        with self._errors.open("wb") as errors:
            self._process = running.fork_server().start(
                [msgspec.json.encode(orders).decode()], script=PROGRAM, stderr=errors.fileno()
            )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def ready(self) -> bool:
        """Its store is open; or it has ended."""
        return Path(f"{self.orders.journal}.ready").exists() or not self.running

    def kill(self) -> None:
        """SIGKILL, unless it has ended by itself."""
        if self.running:
            self.killed = True
            self._process.kill()
        self._process.wait()

    def suspend(self) -> None:
        """SIGSTOP: it keeps what it holds, locks too."""
        servers.suspend(self._process.pid)

    def resume(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def check(self) -> None:
        """Wait for its end; AssertionError if it was not a good one."""
        code = self._process.wait(pace.patience(40))
        assert self.killed or code == 0, f"{self.orders.name} ended with {code}:\n{self._errors.read_text()}"


class Campaign:
    """`count` processes of `clients` clients each; a process that was killed can be replaced."""

    def __init__(
        self,
        url: str,
        directory: Path,
        *,
        count: int,
        clients: int,
        keys: int,
        calls: int,
        seconds: float,
        pause: float = 0.0,
        broken: str = "",
    ) -> None:
        self.url, self.directory = url, directory
        self._shape = {"clients": clients, "keys": keys, "calls": calls, "pause": pause, "broken": broken}
        self.processes: list[Process] = []
        for _ in range(count):
            self.add()
        self._begin(seconds)

    def _begin(self, seconds: float) -> None:
        """Once all are ready, so that the time is for calls, however long a busy machine takes to start them."""
        end = time.monotonic() + pace.patience(20)
        while not all(process.ready for process in self.processes):
            assert time.monotonic() < end, "they do not start"
            time.sleep(0.02)
        self.began = time.monotonic()
        go = self.directory / "go"
        go.with_suffix(".new").write_text(str(self.began + seconds))
        go.with_suffix(".new").rename(go)

    def add(self) -> Process:
        """One more process, for the time that is left."""
        name = f"p{len(self.processes)}"
        orders = Orders(
            url=self.url,
            journal=str(self.directory / f"{name}.jsonl"),
            name=name,
            seed=len(self.processes),
            **self._shape,  # type: ignore[arg-type]
        )
        self.processes.append(Process(orders))
        return self.processes[-1]

    @property
    def running(self) -> list[Process]:
        """The processes that still go on."""
        return [process for process in self.processes if process.running]

    def history(self) -> list[Call]:
        """What all of them recorded, once they have ended well."""
        for process in self.processes:
            process.check()
        return read_history(path for path in sorted(self.directory.glob("*.jsonl")))

    def stop(self) -> None:
        """End what still runs."""
        for process in self.processes:
            process.kill()


@contextlib.contextmanager
def campaign(url: str, directory: Path, **shape: object) -> Iterator[Campaign]:
    """A campaign that leaves no process behind."""
    entered = Campaign(url, directory, **shape)  # type: ignore[arg-type]
    try:
        yield entered
    finally:
        entered.stop()


def check(history: list[Call], **options: Any) -> None:
    """Fail unless it was enough to mean something, and one store can have answered like that."""
    violation = judge(history, **options)
    safe(violation is None, f"not linearizable: {violation}", history=history)


def judge(history: list[Call], *, least_done: float, since: float, title: str) -> Violation | None:
    """Say what was recorded, make sure that it was enough to mean something, and check it.

    `least_done`: calls that must have been answered on a machine that is not slow.
    """
    least = int(least_done / pace.slowdown(since))
    outcomes = Counter(call.outcome for call in history)
    written = sum(call.outcome == "done" and call.writes for call in history)
    print(f"{title}: {len(history)} calls, {dict(outcomes)}, {written} acknowledged writes")
    assert not unexpected_errors(history), unexpected_errors(history)[:3]
    assert outcomes["done"] >= least, f"only {outcomes['done']} calls were answered, not {least}"
    assert written >= least // 5, f"only {written} writes were acknowledged"
    started = time.monotonic()
    violation = check_linearizable(history)
    print(f"{title}: checked in {time.monotonic() - started:.2f} s")
    return violation

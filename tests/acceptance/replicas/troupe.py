"""Replicas as real processes, and two witnesses beside them: who led when, and what was written under which fence."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Self

from harness import pace
from harness.artefacts import safe
from up_process import PROGRAM, ForkedServer

from hostler.errors import HostlerError
from hostler.keys.families import DEMONSTRATION, LEADER, REPLICA
from hostler.model.replica import LeaderRecord, Tally
from hostler.ports.ttl import StoreBacked, Watchable
from hostler.testing.servers import ServerProcess
from hostler.wiring import open_ttl_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from hostler.ports.ttl import TtlStorage

SCRIPT = Path(__file__).parent / "stubborn_process.py"
START = 15.0
"""Seconds that a process may take for what takes a second: `until` waits longer where the machine is slow."""
TTL = 3.0
"""Seconds that a leader may stand still on a machine that is busy with other tests."""
LONG = 20.0
"""The ttl where nobody waits for its end."""


async def until(condition: Callable[[], object], within: float, what: str | Callable[[], str]) -> float:
    """Wait for it; the instant (monotonic) at which it was seen. `what` is asked for once the time is over."""
    patience = pace.patience(within)
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end, f"not within {patience:g} s: {what if isinstance(what, str) else what()}"
        await asyncio.sleep(0.01)
    return time.monotonic()


class ReplicaProcess(ForkedServer):
    """`hostler replica`, or the test script in one of its modes; forked, unless something is to run it."""

    def __init__(
        self,
        url: str,
        address: str,
        folder: Path,
        *,
        ttl: float,
        mode: str | None = None,
        before: Sequence[str] = (),
        arguments: Sequence[str] = (),
    ) -> None:
        self.address = address
        own = [
            "replica",
            "--demonstration",
            "--store",
            url,
            "--ttl",
            f"{ttl:g}",
            "--address",
            address,
            "--wait",
            *arguments,
        ]
        log = folder / f"{address.replace(':', '-')}-{len(list(folder.glob('*.log')))}.log"
        if before:
            ServerProcess.__init__(self, [*before, *PROGRAM, *own], log)
        elif mode is None:
            super().__init__(own, log)
        else:
            super().__init__([mode, url, f"{ttl:g}", address], log, script=SCRIPT)

    def __repr__(self) -> str:
        return f"<{self.address}: {self.tail(5)}>"

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    def said(self, text: str) -> bool:
        return text in self.log.read_text(errors="replace")

    async def says(self, text: str, within: float = START) -> float:
        """Wait until it has said so; it must not end before."""
        await until(
            lambda: self.said(text) or not self.running, within, lambda: f"{self.address} says {text!r}: {self.tail()}"
        )
        assert self.said(text), f"{self.address} ended with {self.code} without saying {text!r}: {self.tail()}"
        return time.monotonic()

    async def ends(self, within: float) -> int:
        """Wait for its end; the exit code."""
        await until(lambda: not self.running, within, lambda: f"{self.address} ends: {self.threads()} {self.tail()}")
        assert self.code is not None
        return self.code

    def stop(self) -> float:
        """SIGTERM; when."""
        self.signal(signal.SIGTERM)
        return time.monotonic()

    def threads(self) -> list[str]:
        """The state of each thread and the processor time it has had, in ticks."""
        found = []
        for stat in Path(f"/proc/{self.pid}/task").glob("*/stat"):
            with contextlib.suppress(OSError):
                fields = stat.read_text().rpartition(")")[2].split()
                found.append(f"{fields[0]} {fields[11]}+{fields[12]}")
        return found


@contextlib.contextmanager
def writers_kept_out(url: str) -> Iterator[None]:
    """On the embedded store: nobody is inside a commit meanwhile. Nothing elsewhere."""
    if not url.startswith("sqlite:"):
        yield
        return
    descriptor = os.open(url.removeprefix("sqlite://") + ".lock", os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class Change:
    """Somebody leads (or nobody) since `at`."""

    def __init__(self, record: LeaderRecord | None) -> None:
        self.at, self.record = time.monotonic(), record

    def __repr__(self) -> str:
        return f"{self.at:.3f}: {self.record and (self.record.address, self.record.fence)}"


class Stage:
    """One storage, the processes on it and the witnesses. Everything is ended when it is left."""

    def __init__(self, url: str, folder: Path, *, ttl: float = TTL) -> None:
        self.url, self.folder, self.ttl = url, folder, ttl
        self.processes: list[ReplicaProcess] = []
        self.changes: list[Change] = []
        self.tallies: list[Tally] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._storage: TtlStorage = open_ttl_storage(url)

    async def __aenter__(self) -> Self:
        await self._storage.__aenter__()
        if isinstance(self._storage, StoreBacked):
            store = self._storage.store
            for prefix in (LEADER.prefix(), REPLICA.prefix(), DEMONSTRATION.fill()):
                await store.delete_prefix(prefix)
            started = asyncio.Event()
            self._tasks.append(asyncio.create_task(self._watch_tallies(started)))
            await started.wait()
        for number in (1, 2):  # what a killed leader of another test left
            left = await self._storage.get(LEADER.fill(n=number))
            if left is not None:
                await self._storage.compare_and_delete(LEADER.fill(n=number), left)
        self._tasks.append(asyncio.create_task(self._watch_leaders()))
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
        for task in self._tasks:
            task.cancel()
        outcomes = await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._storage.aclose()
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    # Players

    def start(
        self, address: str, *, mode: str | None = None, before: Sequence[str] = (), arguments: Sequence[str] = ()
    ) -> ReplicaProcess:
        process = ReplicaProcess(
            self.url, address, self.folder, ttl=self.ttl, mode=mode, before=before, arguments=arguments
        )
        self.processes.append(process)
        return process

    async def troupe(self, size: int) -> list[ReplicaProcess]:
        """`size` replicas, of which one leads and the others have said that they stand by; the leader first."""
        processes = [self.start(f"r{number}:1") for number in range(1, size + 1)]
        for process in processes:
            await until(
                lambda: process.said("leading with") or process.said("leads with"),  # noqa: B023
                START,
                lambda: f"{process.address} has found its place: {process.tail()}",  # noqa: B023
            )
        leader = await self.leader()
        return sorted(processes, key=lambda process: process is not leader)

    async def leader(self) -> ReplicaProcess:
        """The process that leads, by the record; waits until there is one, and until it knows that it leads."""
        await until(lambda: self._leads() is not None, START, lambda: f"somebody leads: {self.processes}")
        process = self._leads()
        assert process is not None
        return process

    def _leads(self) -> ReplicaProcess | None:
        record = self.changes[-1].record if self.changes else None
        if record is None:
            return None
        process = next(p for p in reversed(self.processes) if p.address == record.address)
        return process if process.said(f"leading with fence {record.fence}") else None

    def suspend(self, process: ReplicaProcess) -> float:
        """SIGSTOP, on the embedded store outside a commit (docs/decisions/0004); when."""
        with writers_kept_out(self.url):
            process.suspend()
            return time.monotonic()

    # Witnesses

    @property
    def keeps_data(self) -> bool:
        """Whether there is a tally: the storage is a store."""
        return isinstance(self._storage, StoreBacked)

    @property
    def fence(self) -> int:
        """The highest fence that has led."""
        return max((change.record.fence for change in self.changes if change.record), default=0)

    def terms(self) -> list[str]:
        """Who has led, in order."""
        return [change.record.address for change in self.changes if change.record]

    async def led_by_another(self, fence: int, within: float) -> Change:
        """Wait for a leader with a higher fence."""
        await until(
            lambda: self.fence > fence, within, lambda: f"a leader after fence {fence}: {self.changes} {self.processes}"
        )
        return next(change for change in self.changes if change.record and change.record.fence > fence)

    async def counted(self, more: int = 3) -> int:
        """Wait until the leader of now has written so much more; its fence."""
        await self.leader()
        seen = Counter(tally.fence for tally in self.tallies)

        def enough() -> bool:  # the witness may learn of a new leader a moment after everybody else
            return Counter(tally.fence for tally in self.tallies)[self.fence] >= seen[self.fence] + more

        await until(enough, START, lambda: f"{more} more writes under fence {self.fence}")
        return self.fence

    async def written(self, more: int) -> None:
        """Wait until so much more was written, under whatever fence."""
        enough = len(self.tallies) + more
        await until(
            lambda: len(self.tallies) >= enough, START, lambda: f"{more} more writes: {self.changes} {self.processes}"
        )

    def check_fences(self) -> None:
        """No write came after one of a higher fence, and no fence led twice."""
        fences = [tally.fence for tally in self.tallies]
        self.safe(fences == sorted(fences), f"a write of an older leader got through: {turns(self.tallies)}")
        holders = {(tally.fence, tally.holder) for tally in self.tallies}
        self.safe(len(holders) == len(set(fences)), f"two holders of one fence: {holders}")
        led = [change.record.fence for change in self.changes if change.record]
        self.safe(led == sorted(led), f"fences went back: {led}")

    def check_tally(self) -> None:
        """Nothing was counted twice or left out, over all takeovers."""
        self.check_fences()
        counts = [tally.count for tally in self.tallies]
        self.safe(counts == list(range(1, len(counts) + 1)), f"the tally went wrong: {turns(self.tallies)}")

    def safe(self, holds: object, claim: str) -> None:
        """Fail unless that holds; who led and what was written is kept."""
        safe(holds, claim, leaders=self.changes, writes=self.tallies)

    async def _watch_leaders(self) -> None:
        seen: str | None = None
        while True:
            with contextlib.suppress(HostlerError):
                if isinstance(self._storage, Watchable):
                    now = await self._storage.wait_change(LEADER.fill(n=1), seen, within=5)
                else:
                    await asyncio.sleep(0.02)
                    now = await self._storage.get(LEADER.fill(n=1))
                record = None if now is None else LeaderRecord.decode(now.encode())
                if now != seen and (record is None or record.fence):
                    self.changes.append(Change(record))
                seen = now
                continue
            await asyncio.sleep(0.02)

    async def _watch_tallies(self, started: asyncio.Event) -> None:
        assert isinstance(self._storage, StoreBacked)
        async with self._storage.store.watch(DEMONSTRATION.fill()) as watch:
            started.set()
            async for event in watch:
                if event.type == "put":
                    self.tallies.append(DEMONSTRATION.decode(event.kv.value))


def turns(tallies: Iterable[Tally]) -> str:
    """The writes as runs of one fence: `fence×count`."""
    runs: list[tuple[int, int, int]] = []
    for tally in tallies:
        if runs and runs[-1][0] == tally.fence:
            runs[-1] = (tally.fence, runs[-1][1], tally.count)
        else:
            runs.append((tally.fence, tally.count, tally.count))
    return ", ".join(f"fence {fence}: {first}–{last}" for fence, first, last in runs)

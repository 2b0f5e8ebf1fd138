"""Rounds of: start a writer, kill it at some instant, open what it left, compare with what it was told."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
from harness import pace
from harness.artefacts import Unsafe, keep
from ledger import Ledger
from writing_process import now

import hostler

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = Path(__file__).with_name("writing_process.py")
INSTANTS = ("running", "opening", "running", "compacting", "running", "expiring")
ROUNDS_PER_STORE = 12
WIDTHS = {"sqlite": (1, 1, 300, 20_000), "file": (1, 1, 300)}
"""Of values, in bytes. Wide ones make SQLite move its log into the database every few hundred writes."""


class WarmProcess:
    """Forks writers; they die with it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", sys.executable, str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **order: Any) -> dict[str, Any]:
        """One order, one answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def stop(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


@contextlib.contextmanager
def warm_process() -> Iterator[WarmProcess]:
    process = WarmProcess()
    try:
        yield process
    finally:
        process.stop()


class Subject:
    """One store that is crashed again and again."""

    def __init__(self, engine: str, directory: Path) -> None:
        self.engine, self.directory = engine, directory
        directory.mkdir()
        self.path = directory / ("store.db" if engine == "sqlite" else "state.json")
        self.url = f"{engine}://{self.path}"
        self.ledger = Ledger()
        self.journals = directory.with_name(directory.name + "-journals")
        self.journals.mkdir()
        self._round = 0
        self.expired = 0

    def crash(self, warm: WarmProcess, rng: random.Random, instant: str) -> None:
        """Let a writer write and kill it at an instant of that kind."""
        self._round += 1
        journal = self.journals / f"{self._round}.jsonl"
        order = {
            "url": self.url + rng.choice(("", "?history_age=0")),  # the latter compacts by itself when it opens
            "journal": str(journal),
            "seed": rng.random(),
            "compacting": instant == "compacting",
            "width": rng.choice(WIDTHS[self.engine]),
        }
        pid = warm.ask(**order)["pid"]
        try:
            self._await_instant(journal, instant, rng)
        finally:
            os.kill(pid, signal.SIGKILL)
        status = warm.ask(wait=pid)["status"]
        error = Path(f"{journal}.error")
        assert status == -signal.SIGKILL, (
            f"the writer ended by itself: {error.read_text() if error.exists() else status}"
        )
        if journal.exists():
            self.ledger.read(journal, now())

    def _await_instant(self, journal: Path, instant: str, rng: random.Random) -> None:
        if instant == "opening":
            self._await_note(journal, b'"opening"')
            pause(rng.uniform(0, 0.02))
            return
        self._await_note(journal, b'"open"')
        if instant == "compacting":
            self._await_note(journal, b'"compacting"')
            pause(
                rng.choice((rng.uniform(0, 0.005), rng.uniform(0, 0.06)))
            )  # while it is asked for, or while it is done
        elif instant == "expiring":
            self._await_note(journal, b'"leased"')
            pause(0.05 + rng.uniform(-0.01, 0.02))
        else:
            pause(rng.uniform(0, 0.15))

    def _await_note(self, journal: Path, note: bytes) -> None:
        end = time.monotonic() + pace.patience(20)
        while not (journal.exists() and note in journal.read_bytes()):
            if Path(f"{journal}.error").exists():
                raise AssertionError(Path(f"{journal}.error").read_text())
            assert time.monotonic() < end, f"the writer never came to {note!r}"
            time.sleep(0.0005)

    async def inspect(self, *, await_expiry: bool) -> None:
        """Open what was left and compare."""
        try:
            async with hostler.open_store(self.url) as store:
                await self.ledger.check(store)
                if await_expiry:
                    self.expired += await self.ledger.await_expiry(store)
            self._check_files()
        except AssertionError as error:
            for journal in self.journals.glob("*.jsonl"):
                keep(f"journal-{journal.stem}", journal.read_text(errors="replace"))
            raise Unsafe(str(error)) from error

    def _check_files(self) -> None:
        names = {path.name for path in self.directory.iterdir()}
        name = self.path.name
        if self.engine == "sqlite":
            assert names <= {name, f"{name}-wal", f"{name}-shm", f"{name}.lock"}, names
            connection = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READWRITE)
            assert connection.pragma("integrity_check") == "ok"
            connection.close()
        else:
            assert names <= {name, f"{name}.lock", f"{name}.tmp"}, names
            if self.path.exists():
                json.loads(self.path.read_bytes())


def pause(seconds: float) -> None:
    """Short and exact: the instant of a kill is what these rounds are about."""
    end = time.perf_counter() + max(0.0, seconds)
    if seconds > 0.002:
        time.sleep(seconds - 0.001)
    while time.perf_counter() < end:
        pass

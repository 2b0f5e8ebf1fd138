"""Power loss, as far as it can be had without cutting the power.

A recording layer under SQLite keeps every write, truncation, deletion and sync, in order, together with the instants at
which writers were told that their write is done. From that, disks are made as a power failure at any instant could
leave them: what was synced is there; of what was not, each write is there, is not, or is torn into sectors. Each such
disk must open and hold everything that was acknowledged before the failure, and nothing torn.

What it proves: the store asks for the right syncs at the right time, and recovers from any subset of the rest. What it
cannot prove: that kernel and disk do what a sync promises.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import time
from typing import TYPE_CHECKING, Any

import apsw
import pytest
from dose import dose, rotation
from harness import pace
from harness.artefacts import Unsafe, keep
from ledger import Ledger
from writing_process import Writer

import hostler

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECTOR = 512
FOLDER = "."


class Tape:
    """What happened, in order: ("write", file, offset, data), ("sync", file), ("acknowledged", note)…"""

    def __init__(self, directory: Path) -> None:
        self.directory = f"{directory}/"
        self.events: list[tuple[Any, ...]] = []

    def note(self, *event: Any) -> None:
        self.events.append(event)


class TapedFile(apsw.VFSFile):
    def __init__(self, tape: Tape, name: Any, flags: list[int]) -> None:
        super().__init__("unix", name, flags)
        path = name if isinstance(name, str) else name.filename() if name is not None else ""
        self._tape = tape if path.startswith(tape.directory) else Tape(path)
        self._name = path.removeprefix(tape.directory)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - SQLite's names
        super().xWrite(data, offset)
        self._tape.note("write", self._name, offset, bytes(data))

    def xTruncate(self, size: int) -> None:  # noqa: N802
        super().xTruncate(size)
        self._tape.note("truncate", self._name, size)

    def xSync(self, flags: int) -> None:  # noqa: N802
        super().xSync(flags)
        self._tape.note("sync", self._name)


class TapedDisk(apsw.VFS):
    """SQLite's default way to the disk, for as long as it is registered."""

    def __init__(self, tape: Tape) -> None:
        super().__init__("hostler-tape", "unix", makedefault=True)
        self._tape = tape

    def xOpen(self, name: Any, flags: list[int]) -> TapedFile:  # noqa: N802
        return TapedFile(self._tape, name, flags)

    def xDelete(self, name: str, sync_directory: bool) -> None:  # noqa: N802
        super().xDelete(name, sync_directory)
        self._tape.note("delete", name.removeprefix(self._tape.directory))


class TapedWriter(Writer):
    """The writer of the crash rounds, in this process, its notes on the tape."""

    def __init__(self, order: dict[str, Any], tape: Tape) -> None:
        super().__init__(order | {"journal": "/dev/null"})
        self._tape = tape

    def note(self, what: str, **more: Any) -> None:
        self._tape.note("acknowledged", {"what": what, **more})


def tape_names(tape: Tape, monkeypatch: pytest.MonkeyPatch) -> None:
    """Record what the driver does to names, which goes past SQLite."""
    rename, fsync = os.rename, os.fsync

    def taped_rename(source: Any, target: Any) -> None:
        rename(source, target)
        tape.note("rename", *(str(name).removeprefix(tape.directory) for name in (source, target)))

    def taped_fsync(descriptor: int) -> None:
        fsync(descriptor)
        if os.readlink(f"/proc/self/fd/{descriptor}") == tape.directory.rstrip("/"):
            tape.note("sync", FOLDER)

    monkeypatch.setattr(os, "rename", taped_rename)
    monkeypatch.setattr(os, "fsync", taped_fsync)


@pytest.fixture
async def tape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tape:
    """A few thousand writes with compactions, checkpoints and leases, recorded; then the store is closed."""
    directory = tmp_path / "recorded"
    directory.mkdir()
    tape = Tape(directory)
    disk = TapedDisk(tape)
    tape_names(tape, monkeypatch)
    try:
        writer = TapedWriter({"url": f"sqlite://{directory}/store.db", "seed": 7, "compacting": True}, tape)
        running = asyncio.create_task(writer.run())
        end = time.monotonic() + pace.patience(30)
        while sum(event[0] == "truncate" or event[:2] == ("sync", "store.db") for event in tape.events) < 6:
            assert time.monotonic() < end, "six checkpoints did not happen"
            assert not running.done(), running.exception()
            await asyncio.sleep(0.02)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    finally:
        disk.unregister()
        monkeypatch.undo()
    assert ("rename", "store.db.new", "store.db") in tape.events
    return tape


def disk_after(events: list[tuple[Any, ...]], rng: random.Random) -> dict[str, bytearray]:
    """The files after a power failure: what was synced, and of the rest whatever `rng` lets through."""
    last_sync: dict[str, int] = {}
    for place, event in enumerate(events):
        if event[0] in ("sync", "delete"):
            last_sync[event[1]] = place
    mood = rng.choice(("nothing", "everything", "some", "torn"))
    files: dict[str, bytearray] = {}
    for place, event in enumerate(events):
        kind, name = event[0], event[1]
        if kind == "acknowledged":
            continue
        synced = place <= last_sync.get(FOLDER if kind == "rename" else name, -1)
        if not synced and (mood == "nothing" or (mood in ("some", "torn") and rng.random() < 0.5)):
            continue
        if kind == "write":
            torn = not synced and mood == "torn"
            write(files.setdefault(name, bytearray()), event[2], event[3], rng if torn else None)
        elif kind == "truncate":
            del files.setdefault(name, bytearray())[event[2] :]
        elif kind == "delete":
            files.pop(name, None)
        elif kind == "rename" and name in files:
            files[event[2]] = files.pop(name)
    return files


def write(file: bytearray, offset: int, data: bytes, rng: random.Random | None) -> None:
    if len(file) < offset + len(data):
        file.extend(bytes(offset + len(data) - len(file)))
    for start, end in sectors(offset, len(data)):
        if rng is None or rng.random() < 0.5:
            file[start:end] = data[start - offset : end - offset]


def sectors(offset: int, length: int) -> Iterator[tuple[int, int]]:
    start = offset
    while start < offset + length:
        end = min(offset + length, (start // SECTOR + 1) * SECTOR)
        yield start, end
        start = end


async def inspect_after(events: list[tuple[Any, ...]], rng: random.Random, directory: Path) -> Ledger:
    """Fail the power after these events, open what is left, compare with what was acknowledged."""
    directory.mkdir()
    for name, content in disk_after(events, rng).items():
        (directory / name).write_bytes(content)
    ledger = Ledger()
    for event in events:
        if event[0] == "acknowledged":
            ledger.take(event[1])
    try:
        async with hostler.open_store(f"sqlite://{directory}/store.db") as store:
            await ledger.check(store)
            assert await store.check() == []  # type: ignore[attr-defined]
    except AssertionError as error:
        keep("tape", [event if event[0] != "write" else (*event[:3], len(event[3])) for event in events])
        raise Unsafe(str(error)) from error
    shutil.rmtree(directory)
    return ledger


async def test_after_a_power_failure_all_that_was_acknowledged_is_there(tape: Tape, tmp_path: Path) -> None:
    failures = dose(test=30, full=500)
    rng = random.Random(rotation())
    acknowledged = 0
    for number in range(failures):
        before = tape.events[: rng.randrange(len(tape.events))]
        ledger = await inspect_after(before, rng, tmp_path / f"disk-{number}")
        acknowledged += ledger.acknowledged
    print(f"sqlite: {failures} power failures over {len(tape.events)} events, {acknowledged} acknowledged writes found")
    assert acknowledged > 100 * failures


async def test_a_power_failure_while_the_store_is_made_leaves_one_that_opens(tape: Tape, tmp_path: Path) -> None:
    rng = random.Random(12)
    opened = next(place for place, event in enumerate(tape.events) if event == ("acknowledged", {"what": "open"}))
    assert opened > 5
    for point in [*range(0, opened - 8, 6), *range(opened - 8, opened + 8)]:
        for again in range(dose(test=1, full=4)):
            await inspect_after(tape.events[:point], rng, tmp_path / f"disk-{point}-{again}")


async def test_the_power_failures_would_notice_a_missing_sync(tape: Tape, tmp_path: Path) -> None:
    """The proof can fail: the same without the syncs of the log."""
    events = [event for event in tape.events if event[:2] != ("sync", "store.db-wal")]
    lost = 0
    for number in range(12):
        rng = random.Random(number)
        before = events[: rng.randrange(len(events) // 2, len(events))]
        try:
            await inspect_after(before, rng, tmp_path / f"disk-{number}")
        except (AssertionError, hostler.HostlerError):
            lost += 1
    assert lost >= 4

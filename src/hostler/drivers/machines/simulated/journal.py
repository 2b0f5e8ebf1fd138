"""A place in a folder: a journal of steps, one JSON line each.

    place       {"place": id, "boot": id}: written once; `boot` is the boot on whose clock the journal's instants are
    journal     a head, then steps; each step is one write(2) to the end of the file
    lock        held with flock by the process that has the place open

The journal is compacted, without its history, when it is opened and when it has grown to three times its size. A last
line without a line end was never written. There is no fsync: what the kernel has accepted outlives the process, and a
power failure, which the kernel does not outlive, ends the machines too. Hence after a boot all machines are stopped,
and a journal that the power failure damaged is valid up to the damage.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from hostler.drivers.machines.simulated.host import (
    Contents,
    Deleted,
    Discarded,
    Held,
    Interval,
    Kept,
    Moved,
    Reinstated,
    Row,
    SimulatedHost,
    switched_off,
)
from hostler.errors import Closed, Damaged, Invalid, Unavailable
from hostler.kit.clock import SystemClock, boot_id
from hostler.kit.file_lock import FileLock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hostler.drivers.machines.simulated.host import Step

GROWTH_BYTES = 16 * 2**20
_BATCH = 1_000


class Identity(msgspec.Struct, frozen=True):
    """Content of the file `place`."""

    place: str
    boot: str


class Head(msgspec.Struct, frozen=True, tag="head", tag_field="is"):
    """The first line of a journal."""

    next_number: int


class Runs(msgspec.Struct, frozen=True, tag="runs", tag_field="is"):
    """Intervals of a machine that had ended when the journal was compacted."""

    vm: str
    ended: list[tuple[float, float]]


Line: TypeAlias = Row | Moved | Deleted | Held | Kept | Reinstated | Discarded | Head | Runs
_lines = msgspec.json.Decoder(Line)
_identity = msgspec.json.Decoder(Identity)
_encoder = msgspec.json.Encoder()


class FileHost(SimulatedHost):
    """A place in `folder`, created if missing. Another process sees the same machines once this one has closed it."""

    def __init__(self, folder: str | Path, *, boot: str | None = None) -> None:
        """Set up the place.

        `boot` names the span in which the clock's instants are comparable; by default the host's boot.
        """
        super().__init__()
        self._folder = Path(folder)
        self._boot = boot
        self._known: Identity | None = None
        self._journal = -1
        self._lock: FileLock | None = None
        self._size = self._compact_size = 0

    @property
    def id(self) -> str:
        if self._known is None:
            raise Closed(f"simulated machines in {self._folder}: their place id is known once the folder was opened")
        return self._known.place

    def _taken_error(self) -> Unavailable:
        return Unavailable(
            f"simulated machines in {self._folder}: another process has them open; stop that agent first, or give this"
            " one another folder"
        )

    def _load(self) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._take_lock()
            try:
                self._read_all()
            except BaseException:
                self._release()
                raise
        except OSError as error:
            raise _failure_of(self._folder, "cannot be opened", error) from None

    def _take_lock(self) -> None:
        lock = FileLock.acquire(self._folder / "lock")
        if lock is None:
            raise self._taken_error()
        self._lock = lock

    def _read_all(self) -> None:
        boot = self._boot or boot_id()
        known = _read_identity(self._folder)
        same = known is not None and known.boot == boot
        self.contents = _read_journal(self._folder, whole=same)
        if not same:
            _stop_all(self.contents)
        self._compact()
        if not same:
            known = Identity(known.place if known else secrets.token_hex(8), boot)
            _write_identity(self._folder, known)
        self._known = known

    def _release(self) -> None:
        if self._journal >= 0:
            os.close(self._journal)
        if self._lock is not None:
            self._lock.release()
        self._journal, self._lock = -1, None

    def _write(self, steps: Sequence[Step]) -> None:
        if self._journal < 0:
            raise Unavailable(f"simulated machines in {self._folder}: the journal is not open; open the place again")
        data = b"".join(_encoder.encode(step) + b"\n" for step in steps)
        if self._size > 2 * self._compact_size + GROWTH_BYTES:
            try:
                self._compact()
            except OSError:  # the existing journal is still valid; try again when it has grown as much again
                self._compact_size = self._size
        try:
            written = os.write(self._journal, data)
        except OSError as error:
            raise _failure_of(self._folder, "cannot be written; nothing was changed", error) from None
        if written != len(data):
            self._take_back(written)
        self._size += written

    def _take_back(self, written: int) -> None:
        """Remove a step that was written only partly. Always raises Unavailable."""
        try:
            os.ftruncate(self._journal, self._size)
        except OSError as error:
            os.close(self._journal)  # the part must stay the last line, or everything after it is damaged
            self._journal = -1
            raise _failure_of(self._folder, "cannot be written; open the place again", error) from None
        raise Unavailable(
            f"simulated machines in {self._folder}: the disk accepted only {written} bytes of a step; nothing was"
            " changed, free some space and try again"
        )

    def _compact(self) -> None:
        """Write a new journal without history, and continue with it."""
        name, temporary = self._folder / "journal", self._folder / "journal.tmp"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            size = 0
            for data in _chunks(self.contents):
                size += len(data)
                if os.write(fd, data) != len(data):
                    raise OSError("the disk accepted only a part")
            os.rename(temporary, name)
        except BaseException:
            os.close(fd)
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        if self._journal >= 0:
            os.close(self._journal)
        self._journal, self._size, self._compact_size = fd, size, size


def read_intervals(folder: str | Path, *, now: float | None = None) -> Mapping[str, Sequence[Interval]]:
    """Return when each machine of a `FileHost` ran, deleted ones too; another process may have it open.

    Instants are on the clock of this host (`SystemClock.now()`), as of `now`. Empty if they ran before the last boot.
    """
    folder = Path(folder)
    instant = SystemClock().now() if now is None else now
    try:
        known = _read_identity(folder)
        if known is None or known.boot != boot_id():
            return {}
        contents = _read_journal(folder, whole=True)
    except OSError as error:
        raise _failure_of(folder, "cannot be read", error) from None
    for row in contents.lapsed_rows(instant):
        contents.apply(row)
    found = {vm: contents.intervals(vm) for vm in (*contents.ended_intervals(), *contents.rows)}
    return {vm: intervals for vm, intervals in found.items() if intervals}


def _read_identity(folder: Path) -> Identity | None:
    try:
        return _identity.decode((folder / "place").read_bytes())
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Damaged(
            f"simulated machines: {folder}/place was not written by Hostler ({error}); use another folder, or delete"
            " this one with its machines"
        ) from None


def _write_identity(folder: Path, identity: Identity) -> None:
    # Durable, unlike the journal: the place keeps its id over a power failure, as the disks of machines would.
    temporary = folder / "place.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, _encoder.encode(identity))
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(temporary, folder / "place")


def _read_journal(folder: Path, *, whole: bool) -> Contents:
    """Read the journal. `whole`: no power failure can have damaged it, so damage is an error."""
    contents = Contents()
    try:
        data = (folder / "journal").read_bytes()
    except FileNotFoundError:
        return contents
    for line in _decode_lines(folder, data[: data.rfind(b"\n") + 1], whole=whole):
        if isinstance(line, Head):
            contents.next_number = line.next_number
        elif isinstance(line, Runs):
            contents.remember(line.vm, line.ended)
        else:
            contents.apply(line)
    return contents


def _decode_lines(folder: Path, data: bytes, *, whole: bool) -> Iterator[Line]:
    try:
        yield from _lines.decode_lines(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        pass
    else:
        return
    for number, text in enumerate(data.split(b"\n")[:-1], 1):
        try:
            yield _lines.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            if not whole:
                return
            raise Damaged(
                f"simulated machines: {folder}/journal, line {number}, was not written by Hostler ({error}); remove"
                " that line if you know what it was, or delete the folder with its machines"
            ) from None


def _stop_all(contents: Contents) -> None:
    """Apply the effect of a boot of the host."""
    contents.held_until = None
    for row in list(contents.rows.values()):
        if row.on is not None:
            contents.apply(switched_off(row, row.on, detail="its node was switched off"))
        elif row.memory:
            contents.apply(msgspec.structs.replace(row, memory=False))
    contents.forget_runs()


def _chunks(contents: Contents) -> Iterator[bytes]:
    """Yield the journal whose sum is `contents`, in pieces."""
    pending: list[bytes] = []
    for line in _summary(contents):
        pending.append(_encoder.encode(line))
        if len(pending) == _BATCH:
            yield b"\n".join(pending) + b"\n"
            pending.clear()
    if pending:
        yield b"\n".join(pending) + b"\n"


def _summary(contents: Contents) -> Iterator[Line]:
    yield Head(contents.next_number)
    if contents.held_until is not None:
        yield Held(contents.held_until)
    yield from contents.kept.values()  # first: each takes the machine of its id out of service
    yield from contents.rows.values()
    for vm, runs in contents.ended_intervals().items():
        yield Runs(vm, list(runs))


def _failure_of(folder: Path, what: str, error: OSError) -> Unavailable | Invalid:
    if isinstance(error, NotADirectoryError | FileExistsError):
        return Invalid(f"simulated machines in {folder}: {what}: {error.strerror}; name a folder")
    return Unavailable(f"simulated machines in {folder}: {what}: {error.strerror or error}; fix it and try again")

"""`machine.json`: the record of a machine, with everything that cannot be observed.

It is written before and after each step, atomically. The state of a machine follows from the record, from whether its
process lives, and from QEMU's messages (`machine.py`).

The folder of a node is read once, when its driver opens.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta, field

from hostler.drivers.machines.qemu import process
from hostler.drivers.machines.qemu.folder import ALIVE, MachineFolder, folder_name
from hostler.drivers.machines.qemu.pid_lookup import Run  # noqa: TC001 - msgspec reads annotations at run time
from hostler.errors import Damaged, Invalid, Unavailable
from hostler.kit.clock import boot_id
from hostler.kit.fsync import sync_folder
from hostler.model.image import Image  # noqa: TC001 - as above
from hostler.model.record import Record
from hostler.model.vm import (
    Access,
    MachineState,
    VmSpec,
)
from hostler.ports.machines import Label  # noqa: TC001 - as above

if TYPE_CHECKING:
    from pathlib import Path

    from hostler.drivers.machines.qemu.folder import NodeFolder

FILE = "machine.json"
Number = Annotated[int, Meta(ge=0)]


class Life(enum.StrEnum):
    """How complete a machine is."""

    CREATING = "creating"
    WHOLE = "whole"
    DELETING = "deleting"


class Begun(enum.StrEnum):
    """A change of power that began and is not known to have ended."""

    NOTHING = ""
    STARTING = "starting"
    STOPPING = "stopping"


class MemoryFit(Record, frozen=True, kw_only=True):
    """Properties that saved memory depends on: a machine that differs in one of them cannot resume from it."""

    cpus: int
    memory_mib: int
    accelerator: str
    version: str
    """Of QEMU."""


class SnapshotRecord(Record, frozen=True, kw_only=True):
    """A snapshot."""

    tag: str
    """Its name inside the disk, generated: names of users are never part of a command."""
    taken_at: float
    memory: MemoryFit | None = None
    """None: the snapshot has only the disk."""


class Restoring(Record, frozen=True, kw_only=True):
    """A restore that has begun."""

    snapshot: str
    number: int


class MachineRecord(Record, frozen=True, kw_only=True):
    """The content of the state file."""

    kind = "machine"

    label: Label
    name: str = ""
    marks: dict[str, str] = field(default_factory=dict)
    """The plan's tags, for users."""
    spec: VmSpec
    """The spec it runs with, or would start with."""
    fenced: bool = False
    number: Annotated[int, Meta(ge=1)]
    """Number of the machine on this node, unique among existing machines.

    User id, addresses and tap are derived from it.
    """
    life: Life = Life.CREATING
    begun: Begun = Begun.NOTHING
    image: Image
    mac: str
    port: int | None = None
    """Loopback port of the guest's SSH server; reused for as long as it is free."""
    host: str = ""
    """Address of the guest as seen from this node."""
    host_key: str
    """The public key."""
    disk_bytes: Number = 0
    run: Run | None = None
    """Its process. The field is cleared once the end of that process was seen and recorded."""
    ran: bool = False
    """Whether it ever ran: it is not new."""
    available_at: float | None = None
    """Since when its probe succeeds in this run, in seconds since 1970."""
    failed: bool = False
    detail: str = ""
    """Why it is off, if that was not requested."""
    resets: Number = 0
    restored: Number = 0
    restoring: Restoring | None = None
    resume: str = ""
    """Snapshot whose memory the next start resumes; empty: it boots."""
    snapshots: dict[str, SnapshotRecord] = field(default_factory=dict)
    saving: str = ""
    """Tag that may exist inside the disk without a snapshot."""
    tags: Number = 0
    """Number of tags assigned so far."""
    moved: Number = 0
    move_is_over: bool = False
    """That move cannot begin again."""
    arriving: bool = False
    arrived: bool = False
    """All data has arrived, and the machine may run once it is started."""
    departing: bool = False
    """It is being sent: its guest may be paused for that."""
    departed: bool = False
    instance: str = ""
    """Instance id that its guest knows, if it came from another node."""
    retained: str = ""
    """Name that it is retained under, if it is in the folder of retained machines."""
    retained_at: float = 0.0
    warmed: bool = False
    """This run began with a saved state, so its guest waits for its identity."""

    @property
    def vm(self) -> str:
        return self.label.vm

    @property
    def user(self) -> str:
        """The login user."""
        return self.spec.user or self.image.user


def write(folder: Path, record: MachineRecord) -> None:
    """Write the record to the file, durably and atomically. Unavailable: the file is unchanged."""
    try:
        _replace(folder, record.encode())
    except OSError as error:
        raise Unavailable(
            f"machine {record.vm!r}: cannot write its state in {folder}: {error.strerror}; fix the cause and try again"
        ) from None


def read(folder: Path) -> MachineRecord:
    """Read the record. Damaged: it is missing or unreadable; nothing is changed."""
    path = folder / FILE
    try:
        return MachineRecord.decode(path.read_bytes())
    except FileNotFoundError:
        raise Damaged(f"{folder}: {FILE} is missing; restore it, or remove the folder if it is not needed") from None
    except (OSError, Invalid) as error:
        raise Damaged(f"{path}: cannot be read: {error}; correct it, or remove the folder") from None


def _replace(folder: Path, data: bytes) -> None:
    draft = folder / f".{FILE}"
    try:
        draft.unlink()  # left by a killed process
    except FileNotFoundError:
        pass
    except IsADirectoryError:  # made by a QEMU that its guest has compromised
        with contextlib.closing(MachineFolder(folder)) as held_folder:
            held_folder.forget(draft.name)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(folder / FILE)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(folder)


LAPSED = "its fence was not extended, so it stopped by itself"
HOST_BOOTED = "its node was switched off"


def state_of(record: MachineRecord, *, alive: bool) -> MachineState:
    """Return the state by the record and by whether the process lives."""
    if record.life is not Life.WHOLE:
        return MachineState.CREATING
    if record.arriving:
        return MachineState.ARRIVING
    if record.departed:
        return MachineState.DEPARTED
    if not alive:
        return MachineState.FAILED if record.failed else MachineState.STOPPED
    if record.begun is Begun.NOTHING:
        return MachineState.RUNNING
    return MachineState(record.begun)


def access_of(record: MachineRecord) -> Access | None:
    """Return how to log in; None: it was never started."""
    if not record.host or not record.port:
        return None
    return Access(host=record.host, port=record.port, user=record.user, host_keys=(record.host_key,))


def detail_off(record: MachineRecord) -> str:
    """Return the detail of a machine that does not run."""
    if record.life is Life.DELETING:
        return "its deletion is incomplete"
    if record.detail:
        return record.detail
    return "" if record.restoring is None else f"a restore to {record.restoring.snapshot!r} is incomplete"


def why_off(record: MachineRecord, *, shut_down: bool, held: bool, said: str) -> tuple[bool, str]:
    """Return whether an ended process failed, and the detail to report."""
    if record.begun is Begun.STOPPING or shut_down or record.life is not Life.WHOLE:
        return False, ""
    if record.fenced and not held:
        return False, LAPSED
    if record.run is not None and record.run.boot_id != boot_id():
        return False, HOST_BOOTED
    if record.run is None:  # its start began and never reached a process
        return False, ""
    return True, f"its process ended: {said or 'no message'}"


NUMBER = "number"
"""File with the machine's number, next to its record: it identifies tap and group if the record is unreadable."""
_log = logging.getLogger("hostler.qemu")


class Content(msgspec.Struct):
    """Content of a node's folder."""

    machines: list[tuple[MachineFolder, MachineRecord]] = msgspec.field(default_factory=list)
    broken: dict[str, Damaged] = msgspec.field(default_factory=dict)
    """Errors of records that cannot be read, by folder name."""
    numbers: set[int] = msgspec.field(default_factory=set)
    """Numbers in use, also of machines whose record cannot be read."""
    is_known: bool = True
    """Whether `numbers` is complete."""


def read_machines(place: NodeFolder) -> Content:
    """Read all machines. A record that cannot be read stays as it is and does not hide the others."""
    content = Content()
    for folder in place.machines():
        try:
            record = read(folder.path)
            if folder_name(record.vm) != folder.path.name:
                raise Damaged(f"{folder.path}: it contains machine {record.vm!r}, whose folder has another name")
        except Damaged as error:
            content.broken[folder.path.name] = error
            _log.warning("%s%s", error, "; its process runs" if _lives(folder) else "")
            number = number_of(folder)
            content.is_known = content.is_known and number is not None
            content.numbers |= {number} if number else set()
        else:
            content.machines.append((folder, record))
            content.numbers.add(record.number)
    return content


def _lives(folder: MachineFolder) -> bool:
    with suppress(Unavailable):
        return process.alive(folder)
    return False


def number_of(folder: MachineFolder) -> int | None:
    """Return the machine's number. 0: the folder never was a machine, because `alive` is missing. None: not known."""
    try:
        if ALIVE not in os.listdir(folder.path):
            return 0
        return int(folder.read_ours(NUMBER, 32))
    except (OSError, ValueError, Unavailable):
        return None

"""`machine.json`: the record of a machine, with everything that cannot be observed.

It is written before and after each step, atomically. The state of a machine follows from the record, from whether its
process lives, and from QEMU's messages (`machine.py`).
"""

from __future__ import annotations

import contextlib
import enum
import os
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, field

from hostler.drivers.machines.qemu.folder import MachineFolder
from hostler.drivers.machines.qemu.pid_lookup import Run  # noqa: TC001 - msgspec reads annotations at run time
from hostler.errors import Damaged, Invalid, Unavailable
from hostler.kit.fsync import sync_folder
from hostler.model.image import Image  # noqa: TC001 - as above
from hostler.model.record import Record
from hostler.model.vm import VmSpec  # noqa: TC001 - as above
from hostler.ports.machines import Label  # noqa: TC001 - as above

if TYPE_CHECKING:
    from pathlib import Path

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

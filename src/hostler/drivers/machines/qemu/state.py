"""`machine.json`: what is known of a machine beside what can be seen of it.

Written before and after each step, whole or not at all. What a machine is follows from it, from whether its process
lives, and from what QEMU says (`machine.py`).
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
    """How much of it there is."""

    CREATING = "creating"
    WHOLE = "whole"
    DELETING = "deleting"


class Begun(enum.StrEnum):
    """A change of power that was begun, and of which it is not known that it was done."""

    NOTHING = ""
    STARTING = "starting"
    STOPPING = "stopping"


class Fit(Record, frozen=True, kw_only=True):
    """What saved memory fits: a machine that differs in any of it cannot go on with it."""

    cpus: int
    memory_mib: int
    accelerator: str
    version: str
    """Of QEMU."""


class Kept(Record, frozen=True, kw_only=True):
    """A snapshot."""

    tag: str
    """Its name inside the disk: ours, for names of users go into no command."""
    taken_at: float
    memory: Fit | None = None
    """None: it holds the disk alone."""


class Restoring(Record, frozen=True, kw_only=True):
    """A restore that was begun."""

    snapshot: str
    number: int


class MachineRecord(Record, frozen=True, kw_only=True):
    """The state file."""

    kind = "machine"

    label: Label
    name: str = ""
    marks: dict[str, str] = field(default_factory=dict)
    """The plan's tags, for people."""
    spec: VmSpec
    """What it runs with, or would start with."""
    fenced: bool = False
    number: Annotated[int, Meta(ge=1)]
    """Of this place's machines: no two that exist share it. User id, addresses and the tap follow from it."""
    life: Life = Life.CREATING
    begun: Begun = Begun.NOTHING
    image: Image
    mac: str
    port: int | None = None
    """The loopback port that leads to the server inside; kept for as long as it can be had."""
    host: str = ""
    """Where it answers, from this node."""
    host_key: str
    """The public part."""
    disk_bytes: Number = 0
    run: Run | None = None
    """Its process. It stays until the end of that process was seen, and said."""
    ran: bool = False
    """At any time before: it is no new one."""
    available_at: float | None = None
    """Since when it has kept its image's promise in this run, since 1970."""
    failed: bool = False
    detail: str = ""
    """Why it is off, if nobody asked for it."""
    resets: Number = 0
    restored: Number = 0
    restoring: Restoring | None = None
    resume: str = ""
    """The snapshot whose memory the next start goes on with; empty: it boots."""
    snapshots: dict[str, Kept] = field(default_factory=dict)
    saving: str = ""
    """A tag that may be inside the disk though no snapshot has it."""
    tags: Number = 0
    """How many were given out."""
    moved: Number = 0
    move_is_over: bool = False
    """That move is not begun again."""
    arriving: bool = False
    arrived: bool = False
    """All of what arrives is here, and may run once it is started."""
    departing: bool = False
    """It is being sent: its guest may be paused for that."""
    departed: bool = False
    instance: str = ""
    """What its guest knows it by, if it came from another place."""
    retained: str = ""
    """In the folder of retained machines: the name that it is kept under."""
    retained_at: float = 0.0
    warmed: bool = False
    """This run began with a saved state, so its guest waits to be told who it is."""

    @property
    def vm(self) -> str:
        return self.label.vm

    @property
    def user(self) -> str:
        """As whom one logs in."""
        return self.spec.user or self.image.user


def write(folder: Path, record: MachineRecord) -> None:
    """Let the file hold the record, also after a loss of power. Unavailable: it holds what it held."""
    try:
        _replace(folder, record.encode())
    except OSError as error:
        raise Unavailable(
            f"machine {record.vm!r}: its state cannot be written in {folder}: {error.strerror}; see to it and try again"
        ) from None


def read(folder: Path) -> MachineRecord:
    """Damaged: there is no record, or none that can be read; what is there is left as it is."""
    path = folder / FILE
    try:
        return MachineRecord.decode(path.read_bytes())
    except FileNotFoundError:
        raise Damaged(f"{folder}: there is no {FILE} in it; if nothing of it is needed, remove the folder") from None
    except (OSError, Invalid) as error:
        raise Damaged(f"{path}: it cannot be read: {error}; put it right, or remove the folder") from None


def _replace(folder: Path, data: bytes) -> None:
    draft = folder / f".{FILE}"
    try:
        draft.unlink()  # of somebody who was killed
    except FileNotFoundError:
        pass
    except IsADirectoryError:  # of a QEMU that a guest has taken over
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

"""Folders of machines: the node's folder, and in it one for each machine.

    place       {"place": id}: written once
    lock        held with flock by the process that has the folder open
    hold        until when fenced machines may run (`PlaceFolder.hold`)
    vms/NAME    a machine's folder: QEMU's working directory, so that names in it are short and relative
    retained/NAME  the folder of a retained machine; it is renamed there and back

QEMU's user (`privileges`) may create files in a machine's folder, but cannot replace the agent's files. So nothing
there is opened through a link, and a file that the agent writes is either its own or created again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
import stat
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec

from hostler.drivers.machines.qemu import dead_mans_switch
from hostler.errors import Closed, Damaged, Invalid, Unavailable
from hostler.kit.clock import boot_id
from hostler.kit.file_lock import FileLock
from hostler.kit.fsync import sync_folder

if TYPE_CHECKING:
    from types import TracebackType

ALIVE, LOG = "alive", "qemu.log"
QMP_SOCKET, SERIAL_SOCKET, GUEST_SOCKET = "qmp.sock", "serial.sock", "guest.sock"
LOG_BYTES, LOG_KEPT_BYTES = 1024 * 1024, 64 * 1024
"""Size of QEMU's log above which it is cut, and what is left then."""
SAID_BYTES = 600
"""How much of QEMU's last messages is reported."""
_GONE = ".gone-"
_AS_IT_IS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
_TIMESTAMP = re.compile(r"^\d{4}-\d\d-\d\dT\S+ ")


def folder_name(vm: str) -> str:
    """Return the id itself where it is plain, otherwise a name derived from it. Two ids never share a name."""
    if _PLAIN.fullmatch(vm):
        return vm
    return "x" + hashlib.sha256(vm.encode()).hexdigest()  # longer than any plain name


class MachineFolder:
    """The folder of one machine, which may not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1

    def __repr__(self) -> str:
        return f"MachineFolder({str(self.path)!r})"

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def descriptor(self) -> int:
        """Descriptor of the folder, kept open: `/proc/self/fd/N/NAME` is short enough for a socket.

        Unavailable: it is gone.
        """
        if self._descriptor < 0:
            try:
                self._descriptor = os.open(self.path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except OSError as error:
                raise _failure_of(self.path, "cannot be opened", error) from None
        return self._descriptor

    def create(self) -> None:
        """Create the folder, with the file whose lock shows that the process lives. Repeatable."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(self.open_ours(ALIVE))
        except OSError as error:
            raise _failure_of(self.path, "cannot be created", error) from None

    async def remove(self) -> None:
        """Remove the folder with its content. It disappears at once; what a crash leaves is removed by `_sweep`."""
        self.close()
        doomed = self.path.with_name(f"{_GONE}{self.name}-{secrets.token_hex(4)}")
        try:
            self.path.rename(doomed)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _failure_of(self.path, "cannot be removed", error) from None
        await asyncio.to_thread(_remove, doomed)

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor; the next use opens it again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def open_ours(self, name: str, flags: int = os.O_RDWR) -> int:
        """Open a file that only the agent writes. It is created again if it is missing, a link, or another user's.

        OSError, as `open` raises it.
        """
        for _ in range(8):
            try:
                descriptor = os.open(name, flags & ~os.O_TRUNC | _AS_IT_IS, dir_fd=self.descriptor)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ELOOP, errno.ENXIO):
                    raise
            else:
                if _is_ours(os.fstat(descriptor)):
                    if flags & os.O_TRUNC:
                        os.ftruncate(descriptor, 0)
                    return descriptor
                os.close(descriptor)
            self.forget(name)
            with contextlib.suppress(FileExistsError):  # another process has just created it
                return os.open(name, flags | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=self.descriptor)
        raise FileExistsError(errno.EEXIST, "another process keeps creating it", name)

    def read_ours(self, name: str, size: int) -> bytes:
        """Return the beginning of a file that only the agent writes.

        OSError: it cannot be read, is a link, or another user's.
        """
        descriptor = os.open(name, os.O_RDONLY | _AS_IT_IS, dir_fd=self.descriptor)
        try:
            if not _is_ours(os.fstat(descriptor)):
                raise PermissionError(errno.EPERM, "it is a link, or another user's file", name)
            return os.read(descriptor, size)
        finally:
            os.close(descriptor)

    def forget(self, *names: str) -> None:
        """Remove files, or what replaced them, if they exist."""
        for name in names:
            try:
                os.unlink(name, dir_fd=self.descriptor)
            except FileNotFoundError:
                pass
            except IsADirectoryError:
                self._put_aside(name)

    def forget_foreign(self, *names: str, folders: bool = False) -> None:
        """Remove files of these names that are links or another user's. `folders`: the agent's own folders stay."""
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
                is_folder = folders and stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
                if not is_folder and not _is_ours(status):
                    self.forget(name)

    def _put_aside(self, name: str) -> None:
        """Move a folder of any size away at once. What a crash leaves of it is removed by `_sweep`."""
        doomed = self.path.parent / f"{_GONE}{self.name}-{secrets.token_hex(4)}"
        os.rename(name, doomed, src_dir_fd=self.descriptor)
        threading.Thread(target=_remove, args=(doomed,), daemon=True).start()

    def cut_log(self) -> None:
        """Cut QEMU's log when it is too large. QEMU appends, so it continues after the kept part."""
        try:
            descriptor = os.open(LOG, os.O_RDWR | os.O_APPEND | _AS_IT_IS, dir_fd=self.descriptor)
        except (OSError, Unavailable):
            return
        try:
            status = os.fstat(descriptor)
            if _is_ours(status) and status.st_size > LOG_BYTES:
                kept = os.pread(descriptor, LOG_KEPT_BYTES, status.st_size - LOG_KEPT_BYTES)
                os.ftruncate(descriptor, 0)
                os.write(descriptor, kept)
        except OSError:
            pass  # the disk is full, and the cut has freed some space
        finally:
            os.close(descriptor)

    def said(self) -> str:
        """Return QEMU's last messages in one line; they may be empty."""
        try:
            descriptor = os.open(LOG, os.O_RDONLY | _AS_IT_IS, dir_fd=self.descriptor)
        except (OSError, Unavailable):
            return ""
        try:
            size = os.fstat(descriptor).st_size
            text = os.pread(descriptor, 4 * SAID_BYTES, max(0, size - 4 * SAID_BYTES)).decode(errors="replace")
        finally:
            os.close(descriptor)
        lines = [_TIMESTAMP.sub("", line.strip()) for line in text.splitlines()]
        said = "; ".join(line for line in lines if line)
        return "".join(letter if letter.isprintable() else " " for letter in said)[-SAID_BYTES:].strip()


class Identity(msgspec.Struct, frozen=True):
    """Content of the file `place`."""

    place: str


class NodeFolder:
    """The folder of one node. While open, no other process has it open. A context manager."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self._id = ""
        self._lock: FileLock | None = None

    @property
    def id(self) -> str:
        """Id of the folder; it stays the same for as long as the machines exist."""
        if not self._id:
            raise Closed(f"machines in {self.path}: their place id is known once the folder was opened")
        return self._id

    @property
    def hold_path(self) -> Path:
        return self.path / "hold"

    @property
    def machines_path(self) -> Path:
        return self.path / "vms"

    @property
    def retained_path(self) -> Path:
        return self.path / "retained"

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Create the folder if missing, and lock it. Unavailable: another process has it open."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.machines_path.mkdir(mode=0o700, exist_ok=True)
            self.retained_path.mkdir(mode=0o700, exist_ok=True)
            self._take_lock()
            try:
                self._id = _read_identity(self.path) or _new_identity(self.path)
                self._sweep()
            except BaseException:
                self.close()
                raise
        except OSError as error:
            raise _failure_of(self.path, "cannot be opened", error) from None

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def machine(self, vm: str) -> MachineFolder:
        """Return the folder of a machine; it may not exist."""
        return MachineFolder(self.machines_path / folder_name(vm))

    def machines(self) -> list[MachineFolder]:
        """Return the folders of existing machines, sorted by name."""
        return _folders(self.machines_path)

    def retained(self, name: str) -> MachineFolder:
        """Return the folder of the machine that is retained under that name; it may not exist."""
        return MachineFolder(self.retained_path / folder_name(name))

    def all_retained(self) -> list[MachineFolder]:
        """Return the folders of retained machines, sorted by name."""
        return _folders(self.retained_path)

    def rename(self, old: MachineFolder, new: MachineFolder) -> None:
        """Move a machine's folder out of service, or back, atomically. Unavailable: it was not moved."""
        old.close()
        try:
            if new.path.exists():
                raise FileExistsError(errno.EEXIST, "the target exists", os.fspath(new.path))
            old.path.rename(new.path)
            for path in (new.path.parent, old.path.parent):
                sync_folder(path)
        except OSError as error:
            raise _failure_of(old.path, f"cannot be renamed to {new.path}", error) from None

    def hold(self, until: float) -> None:
        """Let fenced machines run until that instant of the clock since the host's boot. The last call counts."""
        draft = self.path / ".hold"
        try:
            draft.write_text(dead_mans_switch.hold_text(boot_id(), until), encoding="ascii")
            draft.replace(self.hold_path)  # no fsync: after a loss of power the hold is of another boot, and void
        except OSError as error:
            raise _failure_of(self.hold_path, "cannot be written; the previous hold stays in force", error) from None

    def held(self, now: float) -> bool:
        """Return whether fenced machines may run."""
        until = dead_mans_switch.held_until(os.fspath(self.hold_path), boot_id())
        return until is not None and now < until

    def _take_lock(self) -> None:
        lock = FileLock.acquire(self.path / "lock")
        if lock is None:
            raise Unavailable(
                f"machines in {self.path}: another process has them open; stop that agent first, or give this one"
                " another folder"
            )
        self._lock = lock

    def _sweep(self) -> None:
        """Remove what interrupted removals left."""
        for folder in (self.machines_path, self.retained_path):
            for entry in os.scandir(folder):
                if entry.name.startswith(_GONE):
                    _remove(Path(entry.path))


def _folders(path: Path) -> list[MachineFolder]:
    try:
        names = sorted(entry.name for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False))
    except OSError as error:
        raise _failure_of(path, "cannot be read", error) from None
    return [MachineFolder(path / name) for name in names if not name.startswith(".")]


def _is_ours(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_nlink == 1


def _remove(path: Path) -> None:
    # What cannot be removed now (a file still open elsewhere on a network disk) is removed at the next open.
    try:
        shutil.rmtree(path, ignore_errors=True)
    except RecursionError:  # the guest nested folders too deeply for Python
        subprocess.run(["rm", "-rf", "--", os.fspath(path)], check=False, stderr=subprocess.DEVNULL)


def _read_identity(path: Path) -> str:
    try:
        return msgspec.json.decode((path / "place").read_bytes(), type=Identity).place
    except FileNotFoundError:
        return ""
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Damaged(
            f"machines in {path}: the file `place` was not written by Hostler ({error}); use another folder, or delete"
            " this one with its machines"
        ) from None


def _new_identity(path: Path) -> str:
    identity = Identity(secrets.token_hex(8))
    draft = path / ".place"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, msgspec.json.encode(identity))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    draft.replace(path / "place")
    sync_folder(path)
    return identity.place


def _failure_of(path: Path, what: str, error: OSError) -> Unavailable | Invalid:
    if isinstance(error, NotADirectoryError | FileExistsError):
        return Invalid(f"machines in {path}: {what}: {error.strerror}; name a folder")
    return Unavailable(f"machines in {path}: {what}: {error.strerror or error}; fix the cause and try again")

"""The least rights that a guest's process can have.

Where the agent may change users (root), every machine has its own user and group, which are in no user database. Its
process can read its own disk and seed and the shared images, and nothing else of the agent. Elsewhere it runs as the
agent's user. In all cases it can never gain rights (no-new-privileges) and leaves no core file, and QEMU's sandbox
forbids the rest (`command.py`).

The machine's folder belongs to the agent and is sticky: the process creates its sockets there, but cannot replace the
agent's files. The folders above it may be inaccessible to the process, because names relative to the working directory
need no access to them. Only `-pidfile` resolves every folder above, so it is not used. `qemu-img` runs on a disk that a
guest had with the guest's rights (`wrap`), not with the agent's.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import resource
import stat
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hostler.drivers.machines.qemu.folder import MachineFolder
from hostler.errors import Invalid, Unavailable

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

USUAL_UIDS = range(1_879_048_192, 2_147_483_647)
"""32-bit user ids that neither distributions nor systemd nor containers assign."""
FEW_UIDS = range(40_000, 60_000)
"""For containers that map only the first 65,536 ids."""
OPEN_FILES = 4096
"""Of one machine's process: with user-mode networking every connection of the guest is one."""
THREADS = 512
"""In addition to one per CPU. The limit counts per user, so it is set only where the machine has its own user."""

WRITES = ("disk.qcow2",)
READS = ("seed.iso", "fw")

_CHOWN, _DAC_OVERRIDE, _FOWNER, _KILL, _SETGID, _SETUID, _SETPCAP = 0, 1, 3, 5, 6, 7, 8
_NEEDED = (_CHOWN, _DAC_OVERRIDE, _FOWNER, _KILL, _SETGID, _SETUID, _SETPCAP)
NET_ADMIN = 12


class Privileges(msgspec.Struct, frozen=True, kw_only=True):
    """The user and groups of a machine's process."""

    uid: int | None = None
    """Its own user, and group of the same number; None: it runs as the agent's user."""
    groups: tuple[int, ...] = ()
    """Additional groups: at most that of the accelerator."""

    def wrap(self, argv: Sequence[str], *, cpus: int = 1) -> list[str]:
        """Return the command that runs `argv` with these rights.

        Each step replaces the process, so its id stays the same.
        """
        files = _at_most(resource.RLIMIT_NOFILE, OPEN_FILES)
        limits = ["prlimit", "--core=0:0", f"--nofile={files}:{files}"]
        drop = ["setpriv", "--no-new-privs"]
        if self.uid is not None:
            tasks = _at_most(resource.RLIMIT_NPROC, THREADS + cpus)
            limits += [f"--nproc={tasks}:{tasks}"]
            groups = [f"--groups={','.join(map(str, self.groups))}"] if self.groups else ["--clear-groups"]
            drop += [f"--reuid={self.uid}", f"--regid={self.uid}", *groups]
            drop += ["--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all"]
        return [*limits, "--", *drop, "--", *argv]

    def own(self, folder: Path, *, writes: Iterable[str] = WRITES, reads: Sequence[str] = READS) -> None:
        """Let the process write `writes` and read `reads` in its folder, if they exist. Repeat it for new files.

        Files shared with other machines (more than one link) are not changed. Unavailable: it failed.
        """
        if self.uid is None:
            return
        try:
            os.chown(folder, 0, self.uid, follow_symlinks=False)
            folder.chmod(0o1770)
            with closing(MachineFolder(folder)) as ours:
                ours.forget_foreign(*reads, folders=True)  # left by a QEMU that its guest had compromised
            for name in writes:
                self._give(folder / name, self.uid, 0o600)
            for name in reads:
                if self._give(folder / name, 0, 0o440):
                    for inner in sorted((folder / name).iterdir()):
                        self._give(inner, 0, 0o440)
        except OSError as error:
            raise Unavailable(f"{folder}: cannot be given to user {self.uid}: {error.strerror}") from None

    def _give(self, path: Path, uid: int, mode: int) -> bool:
        """Change owner and mode; return whether it is a folder, which stays the agent's and whose content is next."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        assert self.uid is not None  # noqa: S101 - checked by `own`
        try:
            status = os.fstat(descriptor)
            if stat.S_ISDIR(status.st_mode):
                os.fchown(descriptor, 0, self.uid)
                os.fchmod(descriptor, 0o750)
                return True
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                os.fchown(descriptor, uid, self.uid)
                os.fchmod(descriptor, mode)
            return False
        finally:
            os.close(descriptor)


def environment() -> dict[str, str]:
    """Return the environment of processes started for a machine or an image: the agent's own may contain secrets."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}


def has_capabilities(*numbers: int, status: str | None = None) -> bool:
    """Return whether this process has all of these capabilities, under any user."""
    if status is None:
        try:
            status = Path("/proc/self/status").read_text(encoding="ascii")
        except OSError:  # this system has no capabilities
            return False
    effective = next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:")), 0)
    return all(effective >> number & 1 for number in numbers)


def may_change_users() -> bool:
    """Return whether machines can have their own users here."""
    return os.geteuid() == 0 and has_capabilities(*_NEEDED)


def users_here(text: str | None) -> range | None:
    """Return the user ids for machines by the setting `qemu_uids`; None: they all run as the agent's user.

    Invalid: not a range, or this host (a container) does not map these ids.
    """
    uids = None if text is None else uids_of(text)
    if not may_change_users():
        return None
    if uids is None:
        return next((usual for usual in (USUAL_UIDS, FEW_UIDS) if _is_mapped(usual)), None)
    if not _is_mapped(uids):
        raise Invalid(f"qemu_uids {text!r}: these users are not mapped here; see /proc/self/uid_map for those that are")
    return uids


def rights_for(
    folder: Path, place: str, number: int, uids: range | None, *, groups: tuple[int, ...] = ()
) -> Privileges:
    """Return the rights of the machine in `folder`, which are stable: the folder's group is its user (`Rights.own`).

    A new machine gets a user that no other machine in the parent folder has. Unavailable: all are taken.
    """
    if uids is None:
        return Privileges()
    held = _group_of(folder)
    if held is None or held not in uids:
        neighbours = {_group_of(other) for other in folder.parent.iterdir() if other != folder}
        held = pick_uid(place, number, uids, taken=neighbours)
    return Privileges(uid=held, groups=groups)


def uids_of(text: str) -> range:
    """Parse `FIRST-LAST`. Invalid: it is not such a range."""
    first, _, last = text.partition("-")
    try:
        uids = range(int(first), int(last) + 1)
    except ValueError:
        uids = range(0)
    if len(uids) == 0 or uids[0] < 1000 or uids[-1] > 2**32 - 3:
        raise Invalid(f"qemu_uids {text!r}: must be FIRST-LAST, such as 200000-299999, above 999")
    return uids


def pick_uid(place: str, number: int, uids: range, *, taken: Container[int | None] = ()) -> int:
    """Return a user for machine `number` of `place`: a stable one, unless it is taken here or anywhere on the host.

    Different nodes begin the search at different ids. Unavailable: all are taken.
    """
    digest = hashlib.sha256(f"{place}/{number}".encode()).digest()
    start = int.from_bytes(digest[:8], "big")
    running = _running_uids()
    for step in range(min(len(uids), 100_000)):
        uid = uids[(start + step) % len(uids)]
        if uid not in taken and uid not in running and not _is_somebody(uid):
            return uid
    raise Unavailable(f"users {uids[0]}-{uids[-1]}: all are taken; widen qemu_uids")


def accelerator_groups(accelerator: str, device: str = "/dev/kvm") -> tuple[int, ...]:
    """Return the group that lets a process use the accelerator, if it needs one."""
    if accelerator != "kvm":
        return ()
    with suppress(OSError):
        status = Path(device).stat()
        if status.st_mode & 0o006 != 0o006 and status.st_mode & 0o060 == 0o060 and status.st_gid != 0:
            return (status.st_gid,)
    return ()


def _group_of(folder: Path) -> int | None:
    try:
        return folder.lstat().st_gid
    except OSError:
        return None


def _running_uids() -> set[int]:
    found = set()
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            with suppress(OSError):  # the process has just ended
                found.add(entry.stat().st_uid)
    return found


def _is_somebody(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _is_mapped(uids: range) -> bool:
    """Return whether the user namespace maps them all."""
    try:
        lines = Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines()
    except OSError:
        return True
    spans = [(int(first), int(count)) for first, _, count in (line.split() for line in lines)]
    return any(first <= uids[0] and uids[-1] < first + count for first, count in spans)


def _at_most(kind: int, wanted: int) -> int:
    hard = resource.getrlimit(kind)[1]
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)

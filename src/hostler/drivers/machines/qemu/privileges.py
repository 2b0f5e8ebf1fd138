"""What a machine's process can reach: the files of its machine, the accelerator, and its share of the host.

Where the agent may change users (root), every machine has its own user and group, which are in no user database. Its
process can read its own disk and seed and the shared images, and nothing else of the agent. Elsewhere it runs as the
agent's user. In all cases it can never gain rights (no-new-privileges) and leaves no core file, and QEMU's sandbox
forbids the rest (`command.py`).

The machine's folder belongs to the agent and is sticky: the process creates its sockets there, but cannot replace the
agent's files. The folders above it may be inaccessible to the process, because names relative to the working directory
need no access to them. Only `-pidfile` resolves every folder above, so it is not used. `qemu-img` runs on a disk that a
guest had with the guest's rights (`wrap`), not with the agent's.

Memory, CPU share and threads are limited. Each machine gets its own control group where the agent may create one;
otherwise only its niceness is set, which limits the CPU share. Groups are created below the agent's group, so that
limits of the agent include the machines. That is done only if the agent's group is the root of its tree or was
delegated to the agent: another owner, who uses the group to monitor or end the agent, would lose track of moved
processes. (In a version 2 tree a group with processes cannot have limited children; there the parent group is used.)

The memory limit stops a runaway process. It does not measure the guest, whose memory is set by `-m`.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import math
import os
import re
import stat
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hostler.drivers.machines.qemu.folder import MachineFolder
from hostler.drivers.privileges import THREADS
from hostler.errors import Unavailable
from hostler.kit.processes import USED, CgroupBase, cgroup_bases, has_capabilities

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from hostler.drivers.privileges import Privileges

WRITES = ("disk.qcow2",)
READS = ("seed.iso", "fw")


def own_files(
    rights: Privileges, folder: Path, *, writes: Iterable[str] = WRITES, reads: Sequence[str] = READS
) -> None:
    """Let a process with these rights write `writes` and read `reads` in its folder, if they exist.

    Repeat it for new files. Files shared with other machines (more than one link) are not changed. Unavailable: it
    failed.
    """
    user = rights.uid
    if user is None:
        return
    try:
        os.chown(folder, 0, user, follow_symlinks=False)
        folder.chmod(0o1770)
        with closing(MachineFolder(folder)) as ours:
            ours.forget_foreign(*reads, folders=True)  # left by a QEMU that its guest had compromised
        for name in writes:
            _give(folder / name, user, user, 0o600)
        for name in reads:
            if _give(folder / name, 0, user, 0o440):
                for inner in sorted((folder / name).iterdir()):
                    _give(inner, 0, user, 0o440)
    except OSError as error:
        raise Unavailable(f"{folder}: cannot be given to user {user}: {error.strerror}") from None


def _give(path: Path, owner: int, group: int, mode: int) -> bool:
    """Change owner and mode; return whether it is a folder, which stays the agent's and whose content is next."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            os.fchown(descriptor, 0, group)
            os.fchmod(descriptor, 0o750)
            return True
        if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
            os.fchown(descriptor, owner, group)
            os.fchmod(descriptor, mode)
        return False
    finally:
        os.close(descriptor)


def accelerator_groups(accelerator: str, device: str = "/dev/kvm") -> tuple[int, ...]:
    """Return the group that lets a process use the accelerator, if it needs one."""
    if accelerator != "kvm":
        return ()
    with suppress(OSError):
        status = Path(device).stat()
        if status.st_mode & 0o006 != 0o006 and status.st_mode & 0o060 == 0o060 and status.st_gid != 0:
            return (status.st_gid,)
    return ()


OVERHEAD_MIB = 1280
"""Memory of QEMU in addition to the guest's: up to 1 GiB of translated code, devices, buffers of a snapshot."""
USUAL_SHARE = 100
NICE_STEP = 1.25
"""Factor by which one step of niceness changes a CPU share."""
SYS_NICE = 23
TRIES = 3
_GROUP = re.compile(r"(hostler-[0-9a-f]{12})-([0-9]+)")
ENDS_WITHIN, PACE = 2.0, 0.02
"""Seconds for which an ended process may still be visible; seconds between two checks."""


class GroupLimits(msgspec.Struct, frozen=True):
    """Resources of a machine that limits are computed from."""

    memory_mib: int
    cpus: int = 1
    share: int = USUAL_SHARE


class ControlGroups:
    """Limits of the machines of one node. `folder`: the node's folder, where the groups in use are recorded."""

    def __init__(self, folder: Path, place: str, *, proc: Path = Path("/proc"), within: Path = Path("/")) -> None:
        self._kept = folder / "cgroups"
        self.name = f"hostler-{hashlib.sha256(place.encode()).hexdigest()[:12]}"
        self._proc, self._within = proc, within
        self.bases: tuple[CgroupBase, ...] = ()
        self._remembering = threading.Lock()  # machines are limited in several threads at once

    @property
    def about(self) -> str:
        """Description for the properties of the node."""
        if not self.bases:
            return "nice"
        controllers = sorted({name for base in self.bases for name in base.controllers}, key=USED.index)
        cpu = "" if "cpu" in controllers else "; nice"
        return f"cgroup v{self.bases[0].version}: {', '.join(controllers)}{cpu}"

    async def open(self) -> None:
        """Find out which resources can be limited on this host."""
        await asyncio.to_thread(self._open)

    async def apply(self, number: int, pid: int, shape: GroupLimits) -> None:
        """Limit the process of machine `number`. Repeat it if its size or the agent's own group changed.

        Never raises.
        """
        await asyncio.to_thread(self._apply, number, pid, shape)

    async def release(self, number: int) -> None:
        """Remove the groups of a machine whose process has ended."""
        end = time.monotonic() + ENDS_WITHIN
        while await asyncio.to_thread(self._remove, {f"{self.name}-{number}"}):
            if time.monotonic() > end:
                return
            await asyncio.sleep(PACE)  # an ending process closes its files before it leaves its group

    async def reclaim(self, kept: Container[int]) -> None:
        """Remove groups left by earlier processes, of machines not in `kept` and of nodes that may be gone.

        A group with a process in it cannot be removed. A group that is about to get a process is created again by
        `apply`.
        """
        await asyncio.to_thread(self._reclaim, kept)

    def _open(self) -> None:
        found = [base for base in cgroup_bases(self._proc, self._within) if self._is_usable(base)]
        self.bases = tuple(found)

    def _is_usable(self, base: CgroupBase) -> bool:
        trial = Path(base.path) / f"{self.name}-trial-{os.getpid()}"
        try:
            trial.mkdir()
        except OSError:
            return False
        with suppress(OSError):
            trial.rmdir()
        return True

    def _apply(self, number: int, pid: int, shape: GroupLimits) -> None:
        done = {name for base in self.bases if self._enter(base, number, pid, shape) for name in base.controllers}
        if "cpu" not in done:
            self._be_nice(pid, shape.share)

    def _enter(self, base: CgroupBase, number: int, pid: int, shape: GroupLimits) -> bool:
        self._remember(base.path)
        group = Path(base.path) / f"{self.name}-{number}"
        for _ in range(TRIES):
            try:
                group.mkdir(exist_ok=True)
                for file, value in settings_of(base, shape).items():
                    (group / file).write_text(value, encoding="ascii")
                (group / "cgroup.procs").write_text(str(pid), encoding="ascii")
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ENODEV):  # another process removed it as a leftover
                    continue
                break  # the machine runs with fewer limits
            return True
        with suppress(OSError):
            group.rmdir()
        return False

    def _be_nice(self, pid: int, share: int) -> None:
        nice = nice_of(share, may_raise=has_capabilities(SYS_NICE))
        with suppress(OSError):  # where the kernel schedules by session, the session's niceness counts
            (self._proc / str(pid) / "autogroup").write_text(str(nice), encoding="ascii")
        seen: set[int] = set()
        while tasks := self._tasks(pid) - seen:  # threads inherit it: when no new thread appears, all have it
            seen |= tasks
            for task in tasks:
                with suppress(OSError):
                    os.setpriority(os.PRIO_PROCESS, task, nice)

    def _tasks(self, pid: int) -> set[int]:
        try:
            return {int(name) for name in os.listdir(self._proc / str(pid) / "task")}
        except OSError:
            return set()

    def remembered(self) -> list[str]:
        try:
            return self._kept.read_text(encoding="utf-8").splitlines()
        except OSError:
            return []

    def _remember(self, path: str) -> None:
        with self._remembering:
            known = self.remembered()
            if path not in known:
                fresh = self._kept.with_suffix(".new")
                fresh.write_text("".join(f"{line}\n" for line in [*known, path]), encoding="utf-8")
                fresh.replace(self._kept)

    def _reclaim(self, kept: Container[int]) -> None:
        for path in {*self.remembered(), *(base.path for base in self.bases)}:
            with suppress(OSError):  # that group is gone with everything below it
                found = [match for match in map(_GROUP.fullmatch, os.listdir(path)) if match]
                self._remove({match[0] for match in found if match[1] != self.name or int(match[2]) not in kept})

    def _remove(self, names: set[str]) -> bool:
        """Remove groups; return whether one is left because it has a process in it."""
        left = False
        for path in {*self.remembered(), *(base.path for base in self.bases)}:
            for name in names:
                try:
                    (Path(path) / name).rmdir()
                except OSError as error:
                    left = left or error.errno == errno.EBUSY
        return left


def settings_of(base: CgroupBase, shape: GroupLimits) -> dict[str, str]:
    """Return the files of a machine's group and the values to write."""
    memory = str((shape.memory_mib + shape.memory_mib // 16 + OVERHEAD_MIB) * 2**20)
    pids = str(THREADS + shape.cpus)
    if base.version == 2:
        every = {
            "memory": ("memory.max", memory),
            "cpu": ("cpu.weight", str(min(max(shape.share, 1), 10_000))),
            "pids": ("pids.max", pids),
        }
    else:
        every = {
            "memory": ("memory.limit_in_bytes", memory),
            "cpu": ("cpu.shares", str(min(max(shape.share * 1024 // USUAL_SHARE, 2), 262_144))),
            "pids": ("pids.max", pids),
        }
    return dict(every[name] for name in base.controllers)


def nice_of(share: int, *, may_raise: bool) -> int:
    """Return the niceness whose CPU share is nearest."""
    nice = round(-math.log(share / USUAL_SHARE) / math.log(NICE_STEP))
    return min(max(nice, -15 if may_raise else 0), 19)

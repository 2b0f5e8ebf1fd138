"""Processes of this host: programs that are started and ended, the user and the control groups of a process."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hostler.kit.tasks import run_to_end

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence


USED = ("memory", "cpu", "pids")
"""The controllers of control groups that Hostler limits processes with."""


def command_ending_with_us(argv: Sequence[str], by: signal.Signals = signal.SIGKILL) -> list[str]:
    """Return the command that runs `argv` and gets that signal when this process ends. Put changes of user before it.

    The new process itself requests the signal. If this process has ended by then, it is no longer the parent and
    nothing is run.
    """
    still_ours = '[ "$PPID" = "$0" ] || exit 1; exec "$@"'
    return [
        "setpriv",
        f"--pdeathsig={by.name.removeprefix('SIG')}",
        "--",
        "sh",
        "-c",
        still_ours,
        f"{os.getpid()}",
        *argv,
    ]


async def end_process(process: asyncio.subprocess.Process, by: signal.Signals = signal.SIGKILL) -> None:
    """Send the signal and wait for the end, even if the caller is cancelled. Repeatable.

    Not by `process.kill()`: before Python 3.13 it first polls whether the process has ended, and that poll takes the
    exit status from the event loop, which then warns of an unknown child and makes up a status (CPython 87744).
    """
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, by)
        await run_to_end(process.wait())


def users_pids(uid: int) -> list[int]:
    """Return the ids of all processes of that user."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and runs_as(uid, int(name))]


def runs_as(uid: int, pid: int) -> bool:
    """Return whether a process runs as that user.

    `status` is read because a process can make its entry belong to root.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return False
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return str(uid) in fields.get("Uid", "").split() and fields.get("State", "Z").split()[0] not in ("Z", "X")


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


class CgroupBase(msgspec.Struct, frozen=True):
    """A control group whose children are the groups of machines."""

    path: str
    version: int
    controllers: tuple[str, ...]


def cgroup_bases(proc: Path, within: Path) -> list[CgroupBase]:
    """Return where groups for the `USED` controllers can be created, according to the kernel's tables."""
    try:
        own = [line.split(":", 2) for line in (proc / "self/cgroup").read_text(encoding="utf-8").splitlines()]
        mounts = [line.split() for line in (proc / "self/mountinfo").read_text(encoding="utf-8").splitlines()]
    except OSError:
        return []
    paths = {name: path for _, names, path in own for name in names.split(",")}
    found: list[CgroupBase] = []
    for mount in mounts:
        kind = mount[mount.index("-") + 1]
        if kind == "cgroup":
            names = tuple(name for name in USED if name in mount[-1].split(",") and name in paths)
            group = Path(_below(mount, paths[names[0]], within)) if names else None
            if group is not None and (group == Path(_below(mount, mount[3], within)) or _is_handed_over(group)):
                found.append(CgroupBase(str(group), 1, names))
        elif kind == "cgroup2" and "" in paths:
            base = _unified(Path(_below(mount, paths[""], within)))
            found += [base] if base is not None else []
    found.sort(key=lambda base: (base.version, base.path))
    counted: set[str] = set()
    kept = []
    for base in found:  # a hierarchy may be mounted twice
        if fresh := tuple(name for name in base.controllers if name not in counted):
            counted.update(fresh)
            kept.append(CgroupBase(base.path, base.version, fresh))
    return kept


def _below(mount: list[str], path: str, within: Path) -> str:
    """Return the folder of the group that the kernel calls `path`: a mount may show only a part of the tree."""
    shown, at = mount[3], mount[4].encode().decode("unicode_escape")
    inside = path[len(shown) :] if shown != "/" and path.startswith(shown) else path
    return str(within / at.lstrip("/") / inside.lstrip("/"))


def _unified(own: Path) -> CgroupBase | None:
    """Return the nearest version 2 group that can limit its children: the agent's own if it is empty, or its parent."""
    for group in (own, own.parent):
        if group is not own and not _is_handed_over(group):
            break
        with suppress(OSError):
            there = (group / "cgroup.controllers").read_text(encoding="ascii").split()
            names = tuple(name for name in USED if name in there)
            control = group / "cgroup.subtree_control"
            if not names:
                continue
            if not set(names) <= set(control.read_text(encoding="ascii").split()):
                control.write_text(" ".join(f"+{name}" for name in names), encoding="ascii")
            return CgroupBase(str(group), 2, names)
    return None


def _is_handed_over(group: Path) -> bool:
    """Return whether a manager (systemd with Delegate=yes) delegated the group to this process."""
    if os.geteuid() != 0:
        return os.access(group / "cgroup.procs", os.W_OK) and os.access(group, os.W_OK)
    for name in ("trusted.delegate", "user.delegate"):
        with suppress(OSError):
            return os.getxattr(group, name) == b"1"
    return False

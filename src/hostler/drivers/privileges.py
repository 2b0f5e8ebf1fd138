"""The least rights that a process of a machine or of a slice can have.

Where the agent may change users (root), each of them has its own user and group, which are in no user database.
Elsewhere it runs as the agent's user. In all cases it can never gain rights (no-new-privileges) and leaves no core
file.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import resource
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hostler.errors import Invalid, Unavailable
from hostler.kit.processes import has_capabilities

if TYPE_CHECKING:
    from collections.abc import Container, Sequence


USUAL_UIDS = range(1_879_048_192, 2_147_483_647)
"""32-bit user ids that neither distributions nor systemd nor containers assign."""
FEW_UIDS = range(40_000, 60_000)
"""For containers that map only the first 65,536 ids."""
OPEN_FILES = 4096
"""Of one machine's process: with user-mode networking every connection of the guest is one."""
THREADS = 512
"""In addition to one per CPU. The limit counts per user, so it is set only where the machine has its own user."""
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
    """Return the rights of the machine in `folder`, which are stable: the folder's group is its user (`own_files`).

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
        if uid not in taken and uid not in running and not _is_known_user(uid):
            return uid
    raise Unavailable(f"users {uids[0]}-{uids[-1]}: all are taken; widen qemu_uids")


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


def _is_known_user(uid: int) -> bool:
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

"""What a machine's process can reach: the files of its machine, the accelerator, and its share of the host.

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

import os
import stat
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hostler.drivers.machines.qemu.folder import MachineFolder
from hostler.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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

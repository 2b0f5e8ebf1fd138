"""Identity of a machine: its host key, created once, and the seed with everything else, written before each start."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from hostler.drivers.machines.qemu.seed import Identity, firmware_files, hostname_of, nocloud_iso, public_part
from hostler.errors import Damaged, Unavailable
from hostler.model.image import Seeding

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hostler.drivers.machines.qemu.folder import MachineFolder
    from hostler.drivers.machines.qemu.machine import QemuMachine
    from hostler.drivers.machines.qemu.network import Attached

KEY = "host_key"
FIRMWARE, ISO = "fw", "seed.iso"


def private_key(folder: Path) -> str:
    """Return the private host key of the machine in that folder. Damaged: it is lost."""
    try:
        return (folder / KEY).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise Damaged(
            f"{folder / KEY}: cannot read the host key: {error}; restore the file, or delete the machine"
        ) from None


def keep_identity(folder: MachineFolder, private: str) -> str:
    """Give the machine in that folder a host key that was created elsewhere; return its public part."""
    with _told(folder.path / KEY):
        _write(folder.descriptor, KEY, private.encode())
    return public_part(private)


def instance_of(machine: QemuMachine) -> str:
    """Return the instance id, which a machine keeps for life, also when migrated; a clone gets another one."""
    return machine.record.instance or f"{machine.site.place}-{machine.record.number}"


def check_keys(keys: tuple[str, ...]) -> None:
    """Check the SSH keys. Invalid: one could be parsed as something other than a key."""
    Identity(instance="a", hostname="a", user="a", host_key="", ssh_keys=keys, mac="52:54:00:00:00:00")


def lay_seed(machine: QemuMachine, attached: Attached) -> dict[str, Any]:
    """Write the seed to the machine's folder; return the parts that the command line must name."""
    record, folder = machine.record, machine.folder.path
    if record.image.seeding is Seeding.NONE:
        return {}
    identity = Identity(
        instance=instance_of(machine),
        hostname=hostname_of(record.name, record.vm),
        user=record.user,
        ssh_keys=record.spec.ssh_keys,
        host_key=private_key(folder),
        mac=record.mac,
        ip4=attached.ip4,
        gw4=attached.gw4,
        ip6=attached.ip6,
        gw6=attached.gw6,
        dns=attached.dns,
        user_data=record.spec.user_data,
        network_config=record.spec.network_config,
    )
    if record.image.seeding is Seeding.CLOUD_INIT:
        with _told(folder / ISO):
            machine.folder.forget(ISO)
            _write(machine.folder.descriptor, ISO, nocloud_iso(identity))
        return {"iso": True}
    files = firmware_files(identity)
    with _told(folder / FIRMWARE), _firmware(machine.folder) as place:
        for left in set(os.listdir(place)) - set(files):
            os.unlink(left, dir_fd=place)
        for name, content in files.items():
            _write(place, name, content)
    return {"firmware": tuple(sorted(files))}


@contextmanager
def _firmware(folder: MachineFolder) -> Iterator[int]:
    """Open the folder of firmware files; it is the agent's own.

    What a process of the guest put in its place is removed.
    """
    folder.forget_foreign(FIRMWARE, folders=True)
    with suppress(FileExistsError):
        os.mkdir(FIRMWARE, mode=0o700, dir_fd=folder.descriptor)
    place = os.open(FIRMWARE, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder.descriptor)
    try:
        if os.fstat(place).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "another user created it")
        yield place
    finally:
        os.close(place)


def _write(place: int, name: str, content: bytes) -> None:
    """Write a file owned by the agent: the guest's process can read it but cannot replace it."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=place)
    fresh = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=place)
    with open(fresh, "wb") as file:
        file.write(content)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unavailable(f"{path}: cannot be written: {error.strerror}; fix the cause and try again") from None

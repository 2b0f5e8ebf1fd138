"""Who a machine is: its host key, which is made once, and the seed that tells it all else, laid before each start."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hostler.drivers.machines.qemu.seed import Identity, firmware_files, hostname_of, nocloud_iso, public_part
from hostler.errors import Damaged
from hostler.model.image import Seeding

if TYPE_CHECKING:
    from pathlib import Path

    from hostler.drivers.machines.qemu.machine import QemuMachine
    from hostler.drivers.machines.qemu.network import Attached

KEY = "host_key"
FIRMWARE, ISO = "fw", "seed.iso"


def private_key(folder: Path) -> str:
    """Of the machine in that folder. Damaged: it is lost."""
    try:
        return (folder / KEY).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise Damaged(
            f"{folder / KEY}: the host key cannot be read: {error}; put it back, or delete the machine"
        ) from None


def keep_identity(folder: Path, private: str) -> str:
    """Let the machine in that folder have a host key that was made elsewhere; its public part."""
    _write(folder / KEY, private.encode())
    return public_part(private)


def instance_of(machine: QemuMachine) -> str:
    """Stays the same for a machine's life, wherever it goes; a copy of it has another."""
    return machine.record.instance or f"{machine.site.place}-{machine.record.number}"


def check_keys(keys: tuple[str, ...]) -> None:
    """Invalid: one that could be read as something else than a key."""
    Identity(instance="a", hostname="a", user="a", host_key="", ssh_keys=keys, mac="52:54:00:00:00:00")


def lay_seed(machine: QemuMachine, attached: Attached) -> dict[str, Any]:
    """Put the seed into the machine's folder; what of it the command line must name."""
    record, folder = machine.record, machine.folder.path
    if record.image.seeding is Seeding.NONE:
        return {}
    identity = Identity(
        instance=instance_of(machine),
        hostname=hostname_of(record.name, record.vm),
        user=record.image.user,
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
        _write(folder / ISO, nocloud_iso(identity))
        return {"iso": True}
    files = firmware_files(identity)
    (folder / FIRMWARE).mkdir(mode=0o700, exist_ok=True)
    for left in set(os.listdir(folder / FIRMWARE)) - set(files):
        (folder / FIRMWARE / left).unlink()
    for name, content in files.items():
        _write(folder / FIRMWARE / name, content)
    return {"firmware": tuple(sorted(files))}


def _write(path: Path, content: bytes) -> None:
    """A file of our own: the guest's process can read it, and replaces nothing."""
    with suppress(FileNotFoundError):
        path.unlink()
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(content)

"""Creates, resizes and destroys machines. The caller of each function holds the machine's lock.

The identity of a machine is its host key, created once, and the seed with everything else, written before each start.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from hostler.drivers.machines.qemu import state
from hostler.drivers.machines.qemu.disk import GIB, lay
from hostler.drivers.machines.qemu.folder import MachineFolder
from hostler.drivers.machines.qemu.images.folder import LINKED
from hostler.drivers.machines.qemu.privileges import own_files
from hostler.drivers.machines.qemu.snapshot import copy_disk
from hostler.drivers.machines.qemu.state import Begun, Life, MachineRecord
from hostler.drivers.machines.seed import Identity, firmware_files, hostname_of, nocloud_iso, public_part
from hostler.errors import Damaged, NotFound, Refused, Unavailable
from hostler.kit.fsync import sync_folder
from hostler.kit.tasks import run_to_end
from hostler.model.image import Seeding

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hostler.drivers.machines.qemu.folder import NodeFolder
    from hostler.drivers.machines.qemu.machine import QemuMachine
    from hostler.drivers.machines.qemu.network import Attached
    from hostler.model.image import Image
    from hostler.model.vm import VmSpec
    from hostler.ports.machines import MachinePlan

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
    with _translate_errors(folder.path / KEY):
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
        with _translate_errors(folder / ISO):
            machine.folder.forget(ISO)
            _write(machine.folder.descriptor, ISO, nocloud_iso(identity))
        return {"iso": True}
    files = firmware_files(identity)
    with _translate_errors(folder / FIRMWARE), _firmware(machine.folder) as place:
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
def _translate_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unavailable(f"{path}: cannot be written: {error.strerror}; fix the cause and try again") from None


DRAFT = ".new-"
TAKEN = frozenset({
    "root", "daemon", "bin", "sys", "sync", "games", "man", "lp", "mail", "news", "uucp", "proxy", "www-data", "backup",
    "list", "irc", "nobody", "_apt", "sshd", "messagebus", "adm", "tty", "disk", "kmem", "dialout", "fax", "voice",
    "cdrom", "floppy", "tape", "sudo", "audio", "dip", "operator", "src", "shadow", "utmp", "video", "sasl", "plugdev",
    "staff", "users", "nogroup", "wheel",
})  # fmt: skip
"""Users and groups that an image may contain; another user of that name cannot be created."""


def new_record(plan: MachinePlan, number: int, image: Image, host_key: str) -> MachineRecord:
    """Return the record of a machine that does not exist yet."""
    return MachineRecord(
        label=plan.label,
        name=plan.name,
        marks=plan.tags,
        spec=plan.spec,
        fenced=plan.fenced,
        number=number,
        image=image,
        mac=new_mac(),
        host_key=host_key,
        disk_bytes=disk_bytes(plan.spec, image),
    )


def new_folder(place: NodeFolder, record: MachineRecord, files: dict[str, bytes]) -> MachineFolder:
    """Create the folder of a new machine together with its record, atomically."""
    folder = place.machine(record.vm)
    draft = MachineFolder(place.machines_path / f"{DRAFT}{secrets.token_hex(8)}")
    try:
        draft.create()
        for name, content in files.items():
            with open(draft.open_ours(name), "wb") as file:
                file.write(content)
        state.write(draft.path, record)
        draft.path.rename(folder.path)
        sync_folder(place.machines_path)
    except OSError as error:
        raise Unavailable(
            f"machine {record.vm!r}: its folder {folder.path} cannot be created: {error.strerror}; fix it and retry"
        ) from None
    finally:
        draft.close()
        shutil.rmtree(draft.path, ignore_errors=True)
    return folder


def sweep(place: NodeFolder) -> None:
    """Remove drafts that were left when the creation of a folder was interrupted."""
    for path in place.machines_path.glob(f"{DRAFT}*"):
        shutil.rmtree(path, ignore_errors=True)


def check(plan: MachinePlan, image: Image, user: str | None = None) -> None:
    """Check the plan against its image. Refused, Invalid: impossible. `user`: the user that its disk already has."""
    if plan.spec.memory_mib < image.memory_mib:
        raise Refused(
            f"machine {plan.label.vm!r}: its image needs {image.memory_mib} MiB of memory, but its spec has"
            f" {plan.spec.memory_mib}; give it more"
        )
    check_keys(plan.spec.ssh_keys)
    wanted = plan.spec.user or image.user
    if user is not None and wanted != user:
        raise Refused(
            f"machine {plan.label.vm!r}: its login user is {user!r} and cannot be changed to {wanted!r}; create another"
            " machine"
        )
    if wanted == image.user:
        return
    if image.seeding is Seeding.NONE:
        raise Refused(f"machine {plan.label.vm!r}: its image has the fixed user {image.user!r}; leave the user empty")
    if wanted in TAKEN:
        raise Refused(f"machine {plan.label.vm!r}: user name {wanted!r} is reserved; log in as another user")


def new_mac() -> str:
    """Return a locally administered address."""
    return "52:54:00:" + ":".join(f"{byte:02x}" for byte in secrets.token_bytes(3))


def disk_bytes(spec: VmSpec, image: Image) -> int:
    """Return the virtual size of the disk: the requested size, but at least that of the image."""
    return max(image.disk_bytes, spec.disk_gib * GIB)


async def make(machine: QemuMachine, origin: QemuMachine | None) -> None:
    """Create the disk and files of a machine. Everything is created again, because existing files may be incomplete."""
    site, path = machine.site, machine.folder.path
    if origin is None:
        try:
            image = await run_to_end(site.images.link_into(machine.record.spec.image, path))
        except NotFound as error:
            raise Refused(str(error)) from None
        machine.change(image=image, disk_bytes=disk_bytes(machine.record.spec, image))
    own_files(machine.rights, path)
    await site.hook("create.disk:before")
    if origin is None:
        await lay(machine.disk, path, machine.record.image.disk_format, machine.record.disk_bytes)
    else:
        assert machine.record.spec.origin is not None  # noqa: S101 - it has an origin
        async with origin.lock:
            _share_image(origin, machine)
            await copy_disk(origin, machine.record.spec.origin.snapshot, machine)
        own_files(machine.rights, path)
        machine.change(disk_bytes=await machine.disk.grow(machine.record.disk_bytes))
    own_files(machine.rights, path)
    await site.hook("create.done:before")
    machine.change(life=Life.WHOLE)
    await site.hook("create.done:after")


def _share_image(origin: QemuMachine, machine: QemuMachine) -> None:
    """Base the machine on the files of its origin's image. Refused: the origin no longer exists."""
    if origin.gone or origin.record.life is not Life.WHOLE:
        raise Refused(f"machine {machine.vm!r}: its origin, machine {origin.vm!r}, was deleted; clone another one")
    try:
        for file, name in LINKED.items():
            link = machine.folder.path / name
            link.unlink(missing_ok=True)
            if file in origin.record.image.files:
                link.hardlink_to(origin.folder.path / name)
    except OSError as error:
        raise Unavailable(
            f"machine {machine.vm!r}: cannot link the image files of machine {origin.vm!r}: {error.strerror}; try again"
        ) from None


async def reshape(machine: QemuMachine, plan: MachinePlan) -> None:
    """Apply the plan's spec to a machine that is off."""
    record = machine.record
    default = machine.site.images.default
    if (plan.spec.image or default) != (record.spec.image or default):
        raise Refused(
            f"machine {machine.vm!r}: it was created from image {record.spec.image or default!r} and cannot be changed"
            f" to {plan.spec.image or default!r}; create another machine"
        )
    check(plan, record.image, record.user)
    if (record.spec, record.name, record.fenced) == (plan.spec, plan.name, plan.fenced) and not record.failed:
        machine.change(detail="", marks=plan.tags)
        return
    size = disk_bytes(plan.spec, record.image)
    if size > record.disk_bytes and record.restoring is None:
        machine.site.check_room(machine.vm)
        size = await machine.disk.grow(size)
    await machine.site.hook("create.shaped:before")
    machine.change(
        spec=plan.spec,
        name=plan.name,
        marks=plan.tags,
        fenced=plan.fenced,
        disk_bytes=max(size, record.disk_bytes),
        failed=False,
        detail="",
        begun=Begun.NOTHING,
    )
    await machine.site.hook("create.shaped:after")


async def destroy(machine: QemuMachine) -> None:
    """Remove everything of a machine: process, port, tap, group and files."""
    site = machine.site
    await site.hook("delete.begun:before")
    machine.note(life=Life.DELETING)
    await site.hook("delete.begun:after")
    await machine.off(within=0)
    await site.hook("delete.off:after")
    await machine.detach()
    await site.hook("delete.done:before")
    await run_to_end(machine.folder.remove())
    await site.hook("delete.done:after")

"""Creates, resizes and destroys machines. The caller of each function holds the machine's lock."""

from __future__ import annotations

import secrets
import shutil
from typing import TYPE_CHECKING

from hostler.drivers.machines.qemu import state
from hostler.drivers.machines.qemu.disk import GIB
from hostler.drivers.machines.qemu.folder import MachineFolder
from hostler.drivers.machines.qemu.identity import check_keys
from hostler.drivers.machines.qemu.images.folder import LINKED
from hostler.drivers.machines.qemu.overlay import lay
from hostler.drivers.machines.qemu.privileges import own_files
from hostler.drivers.machines.qemu.snapshot import copy_disk
from hostler.drivers.machines.qemu.state import Begun, Life, MachineRecord
from hostler.errors import NotFound, Refused, Unavailable
from hostler.kit.fsync import sync_folder
from hostler.kit.tasks import run_to_end
from hostler.model.image import Seeding

if TYPE_CHECKING:
    from hostler.drivers.machines.qemu.folder import NodeFolder
    from hostler.drivers.machines.qemu.machine import QemuMachine
    from hostler.model.image import Image
    from hostler.model.vm import VmSpec
    from hostler.ports.machines import MachinePlan

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

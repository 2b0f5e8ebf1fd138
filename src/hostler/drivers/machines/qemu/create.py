"""Making a machine, giving it another shape, and destroying it. Each is called with the machine's lock held."""

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
from hostler.drivers.machines.qemu.shielded import whole
from hostler.drivers.machines.qemu.snapshot import copy_disk
from hostler.drivers.machines.qemu.state import Begun, Life, MachineRecord
from hostler.errors import NotFound, Refused, Unavailable
from hostler.kit.fsync import sync_folder
from hostler.model.image import Seeding

if TYPE_CHECKING:
    from hostler.drivers.machines.qemu.folder import PlaceFolder
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
"""Users and groups that an image may have; another one of that name cannot be made."""


def new_record(plan: MachinePlan, number: int, image: Image, host_key: str) -> MachineRecord:
    """Of a machine of which nothing is there but the intent."""
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


def new_folder(place: PlaceFolder, record: MachineRecord, files: dict[str, bytes]) -> MachineFolder:
    """The folder of a new machine. It is there with its record, or not at all."""
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
            f"machine {record.vm!r}: its folder {folder.path} cannot be made: {error.strerror}; see to it and try again"
        ) from None
    finally:
        draft.close()
        shutil.rmtree(draft.path, ignore_errors=True)
    return folder


def sweep(place: PlaceFolder) -> None:
    """Remove what is left of a making that was cut off before there was anything."""
    for path in place.machines_path.glob(f"{DRAFT}*"):
        shutil.rmtree(path, ignore_errors=True)


def check(plan: MachinePlan, image: Image, user: str | None = None) -> None:
    """Refused, Invalid: a machine of that image cannot be so. `user`: who is on its disk already."""
    if plan.spec.memory_mib < image.memory_mib:
        raise Refused(
            f"machine {plan.label.vm!r}: its image needs {image.memory_mib} MiB of memory, and it would have"
            f" {plan.spec.memory_mib}; give it more"
        )
    check_keys(plan.spec.ssh_keys)
    wanted = plan.spec.user or image.user
    if user is not None and wanted != user:
        raise Refused(
            f"machine {plan.label.vm!r}: one logs into it as {user!r}, and that cannot become {wanted!r}; make another"
            " machine"
        )
    if wanted == image.user:
        return
    if image.seeding is Seeding.NONE:
        raise Refused(
            f"machine {plan.label.vm!r}: its image cannot be told who logs in; that is {image.user!r}, so leave it out"
        )
    if wanted in TAKEN:
        raise Refused(
            f"machine {plan.label.vm!r}: {wanted!r} is a name that systems have for themselves; log in as another user"
        )


def new_mac() -> str:
    """A locally administered address."""
    return "52:54:00:" + ":".join(f"{byte:02x}" for byte in secrets.token_bytes(3))


def disk_bytes(spec: VmSpec, image: Image) -> int:
    """What the guest sees: as large as was asked for, and no smaller than what it begins with."""
    return max(image.disk_bytes, spec.disk_gib * GIB)


async def make(machine: QemuMachine, origin: QemuMachine | None) -> None:
    """Give it what it stands on. All of it is made anew, for what is there may be half of something."""
    site, path = machine.site, machine.folder.path
    if origin is None:
        try:
            image = await whole(site.images.link_into(machine.record.spec.image, path))
        except NotFound as error:
            raise Refused(str(error)) from None
        machine.change(image=image, disk_bytes=disk_bytes(machine.record.spec, image))
    machine.rights.own(path)
    await site.hook("create.disk:before")
    if origin is None:
        await lay(machine.disk, path, machine.record.image.disk_format, machine.record.disk_bytes)
    else:
        assert machine.record.spec.origin is not None  # noqa: S101 - it has an origin
        async with origin.lock:
            _share_image(origin, machine)
            await copy_disk(origin, machine.record.spec.origin.snapshot, machine)
        machine.rights.own(path)
        machine.change(disk_bytes=await machine.disk.grow(machine.record.disk_bytes))
    machine.rights.own(path)
    await site.hook("create.done:before")
    machine.change(life=Life.WHOLE)
    await site.hook("create.done:after")


def _share_image(origin: QemuMachine, machine: QemuMachine) -> None:
    """Let it stand on what the origin stands on. Refused: there is no origin any more."""
    if origin.gone or origin.record.life is not Life.WHOLE:
        raise Refused(f"machine {machine.vm!r}: machine {origin.vm!r}, which it would be a copy of, has been deleted")
    try:
        for file, name in LINKED.items():
            link = machine.folder.path / name
            link.unlink(missing_ok=True)
            if file in origin.record.image.files:
                link.hardlink_to(origin.folder.path / name)
    except OSError as error:
        raise Unavailable(
            f"machine {machine.vm!r}: it cannot stand on what machine {origin.vm!r} does: {error.strerror}; try again"
        ) from None


async def reshape(machine: QemuMachine, plan: MachinePlan) -> None:
    """Let one that is off have the plan's shape."""
    record = machine.record
    default = machine.site.images.default
    if (plan.spec.image or default) != (record.spec.image or default):
        raise Refused(
            f"machine {machine.vm!r}: it stands on the image {record.spec.image or default!r}, and cannot be put on"
            f" {plan.spec.image or default!r}; make another machine"
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
    """Leave nothing of it: no process, port, tap, group or file."""
    site = machine.site
    await site.hook("delete.begun:before")
    machine.note(life=Life.DELETING)
    await site.hook("delete.begun:after")
    await machine.off(within=0)
    await site.hook("delete.off:after")
    await machine.detach()
    await site.hook("delete.done:before")
    await whole(machine.folder.remove())
    await site.hook("delete.done:after")

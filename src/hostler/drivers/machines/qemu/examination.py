"""Checks of `hostler doctor`: QEMU, acceleration, images and disk space."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING

from hostler.drivers.machines.qemu.acceleration import stored_verdict
from hostler.drivers.machines.qemu.images.folder import ImageFolder
from hostler.drivers.privileges import users_here
from hostler.errors import HostlerError
from hostler.kit.plural import counted
from hostler.ports.machine_driver import Finding, Level

if TYPE_CHECKING:
    from pathlib import Path

    from hostler.settings import Settings

QEMU = "qemu-system-x86_64"
TOOLS = (QEMU, "qemu-img", "setpriv")
GET_QEMU = "install it: apt-get install --no-install-recommends qemu-system-x86 qemu-utils"
WITHIN = 10.0
SHARE = 20
"""At most one part in this many of the disk is reserved."""


async def examine(settings: Settings, *, used: bool) -> list[Finding]:
    """Check this host. A host without QEMU has no findings if no setting uses it."""
    images = settings.data / "images"
    if not used and not images.exists() and shutil.which(QEMU) is None:
        return []
    return [
        await _qemu(used=used),
        *_acceleration(settings),
        await _images(settings, images, used=used),
        *_room(settings),
    ]


async def _qemu(*, used: bool) -> Finding:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    level = Level.FAIL if used else Level.WARN
    if missing:
        return Finding("qemu", level, f"{', '.join(missing)}: not installed", GET_QEMU)
    try:
        async with asyncio.timeout(WITHIN):
            process = await asyncio.create_subprocess_exec(
                QEMU, "--version", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
            )
            said, _ = await process.communicate()
    except (OSError, TimeoutError) as error:
        return Finding("qemu", level, f"{QEMU} does not report its version: {error}", "reinstall it")
    first = said.decode(errors="replace").partition("\n")[0].strip()
    return Finding(
        "qemu", Level.OK if process.returncode == 0 else level, first or f"{QEMU}: code {process.returncode}"
    )


def _acceleration(settings: Settings) -> list[Finding]:
    given = settings.driver_options
    if given["accelerator"]:
        return [Finding("acceleration", Level.OK, f"{given['accelerator']}, as the settings say")]
    try:
        known = stored_verdict(settings.data / "images", uids=users_here(given["qemu_uids"]))
    except HostlerError as error:
        what, _, advice = str(error).partition("; ")
        return [Finding("acceleration", Level.FAIL, what, advice)]
    if known is None:
        return [Finding("acceleration", Level.OK, "not tested yet; the first start of a machine does")]
    slow = known.accelerator == "tcg"
    advice = "guests run about 10 times slower than with KVM" if slow else ""
    return [Finding("acceleration", Level.WARN if slow else Level.OK, f"{known.accelerator}: {known.why}", advice)]


async def _images(settings: Settings, folder: Path, *, used: bool) -> Finding:
    try:
        images = ImageFolder(folder, machines=folder.parent / "machines", default=settings.image)
        found, damaged = await images.list(), await images.damaged()
    except HostlerError as error:
        what, _, advice = str(error).partition("; ")
        return Finding("images", Level.FAIL, what, advice)
    for name, why in damaged.items():
        what, _, advice = why.partition("; ")
        return Finding("images", Level.FAIL, f"{name!r}: {what}", advice)
    names = ", ".join(f"{named.name} ({counted(named.used_by, 'machine')})" for named in found)
    if settings.image in {named.name for named in found}:
        return Finding("images", Level.OK, names)
    missing = f"no image {settings.image!r}, the default of machines that name none"
    advice = f"hostler image build {settings.image}" if settings.image in ("tiny", "debian") else "hostler image add"
    return Finding("images", Level.WARN if used else Level.OK, f"{names}; {missing}" if names else missing, advice)


def _room(settings: Settings) -> list[Finding]:
    path = settings.data
    if not path.exists():
        return []
    usage = shutil.disk_usage(path)
    kept = min(settings.driver_options["disk_reserve_gib"] * 2**30, usage.total / SHARE)
    if usage.free >= kept:
        return []
    what = f"{usage.free / 2**30:.1f} GiB free, {kept / 2**30:.1f} GiB reserved: no more machines are created"
    return [Finding("room", Level.WARN, what, "delete machines, snapshots or images, or get a larger disk")]

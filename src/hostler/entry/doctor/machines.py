"""Checks of machine drivers: QEMU, acceleration, images and disk space; or the Hetzner token."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING

from hostler.entry.doctor.result import Finding, Level
from hostler.errors import HostlerError
from hostler.keys.node import ALIVE, MEMBER
from hostler.kit.plural import counted
from hostler.model.node import HOST, HOST_SHARE, Lifecycle
from hostler.model.vm import MachineState
from hostler.wiring import hetzner_answers, known_acceleration, open_images

if TYPE_CHECKING:
    from pathlib import Path

    from hostler.engine.view import View
    from hostler.model.node import NodeRecord
    from hostler.ports.store import Store
    from hostler.settings import Settings

QEMU = "qemu-system-x86_64"
TOOLS = (QEMU, "qemu-img", "setpriv")
GET_QEMU = "install it: apt-get install --no-install-recommends qemu-system-x86 qemu-utils"
WITHIN = 10.0
SHARE = 20
"""At most one part in this many of the disk is reserved."""


async def machines(settings: Settings) -> list[Finding]:
    """Check this host, or Hetzner Cloud. A host without QEMU has no findings if no setting uses it."""
    if settings.machines == "hetzner":
        return [await _hetzner(settings)]
    used = settings.machines == "qemu"
    images = settings.data / "images"
    if not used and not images.exists() and shutil.which(QEMU) is None:
        return []
    return [
        await _qemu(used=used),
        *_acceleration(settings),
        await _images(settings, images, used=used),
        *_room(settings),
    ]


async def _hetzner(settings: Settings) -> Finding:
    try:
        async with asyncio.timeout(WITHIN):
            return Finding("hetzner", Level.OK, f"the token is accepted: {await hetzner_answers(settings)}")
    except TimeoutError:
        return Finding("hetzner", Level.FAIL, f"Hetzner Cloud does not answer within {WITHIN:g} s", "try again")
    except HostlerError as error:
        what, _, advice = str(error).partition("; ")
        return Finding("hetzner", Level.FAIL, what, advice)


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
    if settings.accelerator:
        return [Finding("acceleration", Level.OK, f"{settings.accelerator}, as the settings say")]
    try:
        known = known_acceleration(settings.data / "images", settings.qemu_uids)
    except HostlerError as error:
        what, _, advice = str(error).partition("; ")
        return [Finding("acceleration", Level.FAIL, what, advice)]
    if known is None:
        return [Finding("acceleration", Level.OK, "not tested yet; the first start of a machine does")]
    accelerator, why = known
    advice = "guests run about 10 times slower than with KVM" if accelerator == "tcg" else ""
    level = Level.WARN if accelerator == "tcg" else Level.OK
    return [Finding("acceleration", level, f"{accelerator}: {why}", advice)]


async def _images(settings: Settings, folder: Path, *, used: bool) -> Finding:
    try:
        images = open_images(folder, default=settings.image)
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
    kept = min(settings.disk_reserve_gib * 2**30, usage.total / SHARE)
    if usage.free >= kept:
        return []
    what = f"{usage.free / 2**30:.1f} GiB free, {kept / 2**30:.1f} GiB reserved: no more machines are created"
    return [Finding("room", Level.WARN, what, "delete machines, snapshots or images, or get a larger disk")]


async def refusals(store: Store) -> list[Finding]:
    """Report live nodes that do not accept machines."""
    alive = {entry.parts["node"] for entry in (await ALIVE.list(store, strict=False)).entries}
    return [
        Finding(
            "nodes",
            Level.WARN,
            f"{entry.value.node} accepts no machines: {entry.value.refuses}",
            "fix that on the node",
        )
        for entry in (await MEMBER.list(store, strict=False)).entries
        if entry.value.refuses and entry.parts["node"] in alive
    ]


async def shared_hosts(store: Store) -> list[Finding]:
    """Report every host on which one node offers the whole capacity and another a share.

    Placement counts machines on any of its nodes against the nodes that offer the whole host. A share is always
    offered.
    """
    hosts: dict[str, list[NodeRecord]] = {}
    for entry in (await MEMBER.list(store, strict=False)).entries:
        record = entry.value
        if record.facts.get(HOST) and record.lifecycle is not Lifecycle.DECOMMISSIONED:
            hosts.setdefault(record.facts[HOST], []).append(record)
    found = []
    for records in hosts.values():
        whole = sorted(record.node for record in records if not record.facts.get(HOST_SHARE))
        shares = sorted(record.node for record in records if record.facts.get(HOST_SHARE))
        if whole and shares:
            both = f"{', '.join(whole)} and {', '.join(shares)}"
            what = f"{both} are on one host: the former offer all of its capacity, the latter a share"
            advice = (
                f"set nodes = {len(records)} (HOSTLER_NODES) for each of these agents, or give them one data folder"
            )
            found.append(Finding("nodes", Level.WARN, what, advice))
    return found


def paused(view: View) -> list[Finding]:
    """Return a finding for every guest that is paused because its node has no free disk space."""
    advice = "free some space on its node, or enlarge it; the guest then resumes"
    found = []
    for entry in view.handles.entries.values():
        handle = entry.value
        if handle.paused and handle.state is MachineState.RUNNING:
            vm = view.vms.get(org=entry.parts["org"], project=entry.parts["project"], vm=entry.parts["vm"])
            name = f"{entry.parts['org']}/{entry.parts['project']}/{handle.id if vm is None else vm.value.name}"
            found.append(Finding("machines", Level.WARN, f"{name} on {handle.node} is paused: {handle.detail}", advice))
    return found

"""What the machines of a node share: options, folder, clock, network, limits, acceleration and free space."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from pathlib import Path  # noqa: TC003 - msgspec reads annotations at run time
from typing import TYPE_CHECKING

import msgspec

from hostler.drivers.machines.qemu import acceleration
from hostler.drivers.machines.qemu.command import BINARY
from hostler.drivers.machines.qemu.migration.protocol import HostTraits, processor
from hostler.drivers.machines.qemu.network import network_of
from hostler.drivers.machines.qemu.privileges import ControlGroups
from hostler.drivers.machines.qemu.state import MemoryFit
from hostler.drivers.privileges import Privileges, rights_for, users_here
from hostler.errors import Closed, Unavailable
from hostler.kit.processes import environment

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Container, Mapping

    from hostler.drivers.machines.qemu.folder import NodeFolder
    from hostler.drivers.machines.qemu.images.folder import ImageFolder
    from hostler.drivers.machines.qemu.machine import QemuMachine
    from hostler.kit.clock import Clock
    from hostler.model.vm import VmSpec


class QemuOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the QEMU driver. The defaults suit most nodes."""

    network: str = "user"
    """`user`, `isolated`, `bridge` or `bridge:NAME` (docs/networking.md)."""
    data: Path | None = None
    """Folder that Hostler's own `bridge` belongs to."""
    prefix6: str | None = None
    """IPv6 prefix of a bridge, if not the bridge's own."""
    uids: str | None = None
    """`FIRST-LAST`: user ids for machines, where the agent may change users."""
    accelerator: str | None = None
    """`kvm` or `tcg`; None: a probe decides."""
    reserve_gib: float = 2.0
    reserve_share: float = 0.05
    """New machines are refused while less disk is free than the lesser of the two: running machines need space too."""
    cpu_overcommit: int = 8
    """Guest CPUs offered per CPU of the host: few guests use theirs all the time."""
    shared_by: int = 1
    """Number of nodes that share this host's resources."""
    siblings: Path | None = None
    """Folder with one folder per node of this host; their number counts where it is larger than `shared_by`."""
    cpus: int | None = None
    memory_mib: int | None = None
    disk_gib: int | None = None
    """Capacity of the node, if not that of the whole host."""


GIB, MIB = 2**30, 2**20
TIDY_EVERY = 5.0
"""Seconds between two checks of log sizes: a guest can make its QEMU write messages at any rate."""
SOME_ROOM = 32 * MIB
"""Free space above which a guest that was paused for lack of space may try again."""


class NodeContext:
    """Shared objects of one node's machines while the driver is open."""

    def __init__(
        self,
        folder: NodeFolder,
        images: ImageFolder,
        options: QemuOptions,
        *,
        clock: Clock,
        step: Callable[[str], Awaitable[None]] | None,
        tell: Callable[[str], None],
    ) -> None:
        self.folder, self.images, self.options, self.clock, self.tell = folder, images, options, clock, tell
        self._uids = users_here(options.uids)
        self.network = network_of(
            *(options.network, options.prefix6),
            place=folder.id,
            uids=self._uids,
            folder=folder.path,
            data=options.data,
        )
        self.limits = ControlGroups(folder.path, folder.id)
        self._step = step
        self._version = ""
        self._probing = asyncio.Lock()
        self._opened = self.closed = False
        self._tidying: asyncio.Task[None] | None = None
        self.machines: Mapping[str, QemuMachine] = {}
        """Machines by id; owned by the driver."""

    @property
    def place(self) -> str:
        return self.folder.id

    async def open(self, numbers: Container[int], *, is_all: bool = True) -> None:
        """Set up what all machines share; remove what is left of machines that no longer exist.

        `is_all`: whether `numbers` contains all existing machines. If not, nothing is removed.
        """
        await self.network.open()
        await self.limits.open()
        if is_all:
            await self.network.reclaim(numbers)
            await self.limits.reclaim(numbers)
        self._opened = True
        self._tidying = asyncio.create_task(self._tidy(), name="machines: tidying")

    async def aclose(self, *, empty: bool) -> None:
        """Close; `empty`: no machine was left when last read."""
        if self._tidying is not None:
            self._tidying.cancel()
            await asyncio.gather(self._tidying, return_exceptions=True)
        await self.network.aclose(empty=empty and self._opened)

    async def _tidy(self) -> None:
        while True:
            await self.clock.sleep(TIDY_EVERY)
            for machine in list(self.machines.values()):
                if machine.alive:
                    machine.folder.cut_log()

    async def release(self, number: int) -> None:
        """Release the network and limits of a machine that is off."""
        await self.network.detach(number)
        await self.limits.release(number)

    async def hook(self, name: str) -> None:
        """Call the step hook before or after an internal step."""
        if self._step is not None:
            await self._step(name)

    def check_open(self) -> None:
        """Raise Closed if the driver was closed during a verb: another process may own the folder now."""
        if self.closed:
            raise Closed("machines: the driver was closed during the call; open it again")

    def ports_of_others(self, vm: str) -> set[int]:
        """Return the ports that other machines use, or used last and will try again."""
        return {port for name, other in self.machines.items() if name != vm and (port := other.record.port)}

    def rights(self, folder: Path, number: int) -> Privileges:
        """Return the rights of a machine's processes. `acceleration.with_device` adds those of its accelerator."""
        return rights_for(folder, self.place, number, self._uids)

    def held(self) -> bool:
        """Return whether fenced machines may run."""
        return self.folder.held(self.clock.now())

    # Acceleration and version

    def known_accelerator(self) -> str | None:
        if self.options.accelerator:
            return self.options.accelerator
        known = acceleration.stored_verdict(self.images.path, uids=self._uids)
        return None if known is None else known.accelerator

    def known_acceleration(self) -> str:
        """Return a description for users."""
        if self.options.accelerator:
            return f"{self.options.accelerator}: as configured"
        known = acceleration.stored_verdict(self.images.path, uids=self._uids)
        return "not tried yet" if known is None else f"{known.accelerator}: {known.why}"

    async def accelerator(self, files: Path) -> str:
        """Return the accelerator: the known one, or the result of a probe with the kernel in that folder."""
        async with self._probing:
            known = self.known_accelerator()
            if known is None:
                known = (await acceleration.verdict(self.images.path, files, uids=self._uids)).accelerator
            return known

    async def version(self) -> str:
        """Return QEMU's version. Unavailable: QEMU is not installed."""
        if not self._version:
            self._version = await qemu_version()
        return self._version

    async def here(self, accelerator: str = "") -> HostTraits:
        """Return everything that saved memory depends on, with that accelerator or the known one."""
        accelerator = accelerator or self.known_accelerator() or "tcg"
        return HostTraits(
            accelerator=accelerator,
            version=await self.version(),
            processor=processor(accelerator),
            network=self.network.kind,
        )

    async def fit(self, spec: VmSpec) -> MemoryFit:
        """Return which machines can resume memory that is saved now."""
        here = await self.here()
        return MemoryFit(cpus=spec.cpus, memory_mib=spec.memory_mib, accelerator=here.accelerator, version=here.version)

    # Free space

    def pressure(self) -> str:
        """Return why nothing new may begin; empty: there is enough space."""
        usage = shutil.disk_usage(self.folder.path)
        reserve = min(self.options.reserve_gib * GIB, self.options.reserve_share * usage.total)
        if usage.free >= reserve:
            return ""
        return (
            f"the disk of {self.folder.path} is almost full: {usage.free / MIB:.0f} MiB are free, and the last"
            f" {reserve / MIB:.0f} MiB are reserved for existing machines"
        )

    def check_room(self, vm: str) -> None:
        """Check the free space. Unavailable: nothing new may begin now."""
        if why := self.pressure():
            raise Unavailable(f"machine {vm!r}: {why}; free some space and try again")

    def has_some_room(self) -> bool:
        return shutil.disk_usage(self.folder.path).free >= SOME_ROOM


async def qemu_version() -> str:
    """Return QEMU's version. Unavailable: QEMU is not installed."""
    try:
        process = await asyncio.create_subprocess_exec(
            *(BINARY, "--version"),
            env=environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise Unavailable(f"{BINARY}: cannot be run: {error.strerror}; install qemu-system-x86 and try again") from None
    said = (await process.communicate())[0].decode(errors="replace")
    found = re.search(r"version (\S+)", said)
    return found[1] if found else "unknown"


def host_memory_mib() -> int:
    """Return the total memory of this host."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // MIB

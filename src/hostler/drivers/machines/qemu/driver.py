"""The verbs of the machines port, implemented with QEMU processes.

A verb records what it begins, does it, and records that it is done. Repeated, it continues from the recorded state.
Verbs of one machine run one at a time. `create`, `power` and `snapshot` implement them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakValueDictionary

import msgspec

from hostler.drivers.machines import validation
from hostler.drivers.machines.channel import Connection, MachineLog, PortChannels
from hostler.drivers.machines.qemu import create as making
from hostler.drivers.machines.qemu import power, process, retaining, snapshot, state
from hostler.drivers.machines.qemu.create import KEY
from hostler.drivers.machines.qemu.folder import NodeFolder, folder_name
from hostler.drivers.machines.qemu.machine import QemuMachine
from hostler.drivers.machines.qemu.migration.send import Moving
from hostler.drivers.machines.qemu.node_context import GIB, NodeContext, QemuOptions, host_memory_mib
from hostler.drivers.machines.qemu.retaining import RetainedFolder, Retaining
from hostler.drivers.machines.qemu.state import Life
from hostler.drivers.machines.seed import new_host_key
from hostler.errors import Closed, Damaged, HostlerError, NotFound, Refused, Unavailable
from hostler.kit.clock import SystemClock, boot_id
from hostler.kit.tasks import Closing
from hostler.model.inventory import Capacity
from hostler.model.node import HOST, HOST_SHARE, ImageNeeds
from hostler.model.vm import MachineState
from hostler.ports.machines import ChannelKind, Offer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from hostler.drivers.machines.qemu.images.folder import ImageFolder
    from hostler.drivers.machines.qemu.migration.incoming import IncomingMigration
    from hostler.drivers.machines.qemu.state import Content
    from hostler.kit.clock import Clock
    from hostler.model.image import Image
    from hostler.ports.machine_driver import Named
    from hostler.ports.machines import Channel, Machine, MachinePlan

REATTACH_WITHIN = 5.0
"""Seconds to wait for each machine when the driver opens; after that it keeps trying in the background."""
_log = logging.getLogger("hostler.qemu")


class QemuMachines(Closing, Moving, Retaining):
    """The machines of one node, each a QEMU process with its own folder."""

    def __init__(
        self,
        folder: str | Path,
        *,
        images: ImageFolder,
        options: QemuOptions | None = None,
        clock: Clock | None = None,
        step: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        """Set up the driver.

        `step` is awaited before and after internal steps with their name (`start.begun:before`).
        """
        self.clock = clock or SystemClock()
        self._folder = NodeFolder(Path(folder))
        self._images, self._options, self._step = images, options or QemuOptions(), step
        self._site: NodeContext | None = None
        self._machines: dict[str, QemuMachine] = {}
        self._broken: dict[str, Damaged] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._listeners: list[Callable[[str], None]] = []
        self._arrivals: dict[str, IncomingMigration] = {}
        self._kept: dict[str, RetainedFolder] = {}
        self._damaged: list[Damaged] = []
        """Errors of retained machines that cannot be read."""
        self._keeping = asyncio.Lock()
        self._next_number = 1
        self._probing: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return "qemu"

    @property
    def place(self) -> str:
        return self._folder.id

    @property
    def fences(self) -> bool:
        return True

    # Opening and closing

    async def __aenter__(self) -> Self:
        self._folder.open()
        try:
            site = NodeContext(
                self._folder, self._images, self._options, clock=self.clock, step=self._step, tell=self._tell
            )
            site.machines = self._machines
            self._site = site
            content = self._read(site)
            await site.open(content.numbers, is_all=content.is_known)
            await asyncio.gather(*(self._reconnect_to(machine) for machine in self._machines.values()))
            if site.known_accelerator() is None:
                self._probing = asyncio.create_task(self._probe(site), name="machines: acceleration")
        except BaseException:
            await self.aclose()
            raise
        return self

    async def _probe(self, site: NodeContext) -> None:
        """Probe the acceleration, so that the node can report it before the first machine starts."""
        with suppress(HostlerError):
            await site.accelerator(self._images.files(""))

    async def aclose(self) -> None:
        """Close the driver; the machines keep running."""
        site, self._site = self._site, None
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)
            self._probing = None
        machines, self._machines = self._machines, {}
        try:
            if site is not None:
                site.closed = True
                await asyncio.gather(*(machine.detach() for machine in machines.values()))
                await site.aclose(empty=not machines and not self._broken)
        finally:
            self._broken, self._kept, self._damaged = {}, {}, []
            self._folder.close()

    def _read(self, site: NodeContext) -> Content:
        making.sweep(self._folder)
        content = state.read_machines(self._folder)
        for folder, record in content.machines:
            self._machines[record.vm] = QemuMachine(site, folder, record, self._lock(record.vm))
        self._broken = content.broken
        self._kept, self._damaged, numbers = retaining.read(self._folder)
        self._next_number = max(content.numbers | numbers, default=0) + 1
        return content

    async def _reconnect_to(self, machine: QemuMachine) -> None:
        """Reconnect to a machine that an earlier process created."""
        if not process.alive(machine.folder):
            machine.record_unexpected_end()
            with suppress(Unavailable):  # its next start reports it again
                await machine.leave_none()
            return
        try:
            await machine.attach(within=REATTACH_WITHIN)
            await self._settle_move(machine)
        except HostlerError as error:
            machine.unheard(str(error))
        if machine.state is MachineState.RUNNING:
            machine.climb(asks=True)

    # The verbs

    def listen(self, changed: Callable[[str], None]) -> None:
        self._listeners.append(changed)

    async def offer(self) -> Offer:
        site, options = self._require_open(), self._options
        usage = shutil.disk_usage(self._folder.path)
        images = await self._images.list()
        named = {item.name for item in images}
        accelerator = site.known_acceleration()
        facts = {
            "acceleration": accelerator,
            "version": f"QEMU {await site.version()}",
            "network": site.network.about,
            "limits": site.limits.about,
        }
        shared_by = await asyncio.to_thread(_sharing, options)
        if shared_by > 1:
            facts[HOST_SHARE] = f"one of {shared_by} nodes on its host"
        facts[HOST] = boot_id()
        damaged = [str(error) for error in (*(self._broken[name] for name in sorted(self._broken)), *self._damaged)]
        damaged += (await self._images.damaged()).values()
        if damaged:
            facts["damaged"] = "; ".join(damaged)
        return Offer(
            capacity=Capacity(
                cpus=options.cpus or max(1, (os.cpu_count() or 1) * options.cpu_overcommit // shared_by),
                memory_mib=options.memory_mib or host_memory_mib() // shared_by,
                disk_gib=options.disk_gib or usage.total // GIB // shared_by,
            ),
            images=tuple(sorted(named | ({""} if self._images.default in named else set()))),
            image_needs={item.name: _needs(item, self._images.default) for item in images},
            facts=facts,
            refuses=site.pressure(),
        )

    async def create(self, plan: MachinePlan) -> Machine:
        self._require_open()
        validation.check_plan(plan, None)
        vm = plan.label.vm
        async with self._verb(vm) as site:
            machine = self._machines.get(vm)
            if machine is not None and machine.record.label != plan.label:
                raise Refused(
                    f"machine {vm!r}: it carries another label ({machine.record.label}); change it from its own node"
                )
            if machine is None or machine.record.life is not Life.WHOLE:
                machine = await self._make(site, plan, machine)
            elif not machine.alive and machine.state in (MachineState.STOPPED, MachineState.FAILED):
                await making.reshape(machine, plan)
            return machine.seen()

    async def _make(self, site: NodeContext, plan: MachinePlan, begun: QemuMachine | None) -> QemuMachine:
        """Create a machine that does not exist or is incomplete."""
        vm, origin = plan.label.vm, self._origin(plan)
        site.check_room(vm)
        image = self._image(plan) if origin is None else origin.record.image
        making.check(plan, image, None if origin is None else origin.record.user)
        if begun is not None and begun.record.life is Life.DELETING:
            await self._destroy(begun)
            begun = None
        if begun is None:
            await site.hook("create.begun:before")
            begun = self._begin(site, plan, image)
            await site.hook("create.begun:after")
        else:
            begun.change(spec=plan.spec, name=plan.name, marks=plan.tags, fenced=plan.fenced, image=image)
        await making.make(begun, origin)
        return begun

    def _begin(self, site: NodeContext, plan: MachinePlan, image: Image, **fields: Any) -> QemuMachine:
        """Create the folder and record of a new machine."""
        vm, key = plan.label.vm, new_host_key()
        record = msgspec.structs.replace(making.new_record(plan, self._next_number, image, key.public), **fields)
        self._next_number += 1
        files = {KEY: key.private.encode(), state.NUMBER: b"%d\n" % record.number}
        folder = making.new_folder(self._folder, record, files)
        machine = self._machines[vm] = QemuMachine(site, folder, record, self._lock(vm))
        return machine

    def _image(self, plan: MachinePlan) -> Image:
        try:
            return self._images.find(plan.spec.image)[0]
        except NotFound as error:  # NotFound would mean that the machine does not exist
            raise Refused(f"machine {plan.label.vm!r}: {error}") from None

    def _origin(self, plan: MachinePlan) -> QemuMachine | None:
        wanted = plan.spec.origin
        if wanted is None:
            return None
        origin = self._machines.get(wanted.vm)
        if origin is None or wanted.snapshot not in origin.record.snapshots:
            raise Refused(
                f"machine {plan.label.vm!r}: its origin, snapshot {wanted.snapshot!r} of machine {wanted.vm!r}, is not"
                " on this node"
            )
        return origin

    async def start(self, vm: str) -> Machine:
        async with self._verb(vm):
            machine = self._whole(vm)
            await power.start(machine)
            return machine.seen()

    async def stop(self, vm: str, *, grace: float) -> Machine:
        self._require_open()
        validation.check_seconds("grace", grace)
        async with self._verb(vm):
            machine = self._require_machine(vm)
            await power.stop(machine, grace)
            return machine.seen()

    async def reset(self, vm: str, number: int) -> Machine:
        self._require_open()
        validation.check_number(number)
        async with self._verb(vm):
            machine = self._require_machine(vm)
            await power.reset(machine, number)
            return machine.seen()

    async def delete(self, vm: str) -> None:
        async with self._verb(vm):
            machine = self._machines.get(vm)
            if machine is not None:
                await self._destroy(machine)

    async def inspect(self, vm: str) -> Machine | None:
        self._require_open()
        validation.check_text("machine", vm)
        machine = self._machines.get(vm)
        if machine is None:
            self._check_readable(vm)
            return None
        return machine.seen()

    async def list(self) -> Sequence[Machine]:
        self._require_open()
        return [machine.seen() for machine in self._machines.values()]

    async def snapshot(self, vm: str, name: str) -> Machine:
        self._require_open()
        validation.check_text("snapshot", name)
        async with self._verb(vm):
            machine = self._here(vm)
            await snapshot.snapshot(machine, name)
            return machine.seen()

    async def restore(self, vm: str, name: str, number: int) -> Machine:
        self._require_open()
        validation.check_text("snapshot", name)
        validation.check_number(number)
        async with self._verb(vm):
            machine = self._here(vm)
            await snapshot.restore(machine, name, number)
            return machine.seen()

    async def drop_snapshot(self, vm: str, name: str) -> Machine:
        self._require_open()
        validation.check_text("snapshot", name)
        async with self._verb(vm):
            machine = self._require_machine(vm)
            await snapshot.drop_snapshot(machine, name)
            return machine.seen()

    def channel(self, vm: str, kind: ChannelKind) -> Channel:
        async def find() -> Channel:
            if kind in (ChannelKind.ARRIVAL_STATE, ChannelKind.ARRIVAL_DISK):
                return self._incoming_channel(vm, kind)
            self._require_open()
            machine = self._require_machine(vm)
            if kind is ChannelKind.LOG:
                return MachineLog(machine.said)
            if not machine.alive:
                raise NotFound(f"machine {vm!r}: it is off and has no {kind}; start it first")
            return await machine.console() if kind is ChannelKind.CONSOLE else self._ssh(machine)

        return PortChannels(find)

    def _ssh(self, machine: QemuMachine) -> Channel:
        access = machine.access
        if access is None:
            raise NotFound(f"machine {machine.vm!r}: it has no address")
        return Connection(f"machine {machine.vm!r}", access.host, access.port)

    async def hold(self, seconds: float, *, since: float | None = None) -> None:
        site = self._require_open()
        validation.check_finite("hold", seconds)
        asked = self.clock.now()
        if since is not None:
            validation.check_finite("since", since)
            asked = min(asked, since)
        await site.hook("hold.done:before")
        self._folder.hold(asked + max(0.0, seconds))
        await site.hook("hold.done:after")

    async def overdue(self, late: float) -> Sequence[str]:
        self._require_open()
        return await asyncio.to_thread(self._overdue, list(self._machines.values()), self.clock.now() - late)

    # Inside

    def _overdue(self, machines: Sequence[QemuMachine], instant: float) -> Sequence[str]:
        """Return the overdue machines. It reads files, which may block."""
        if self._folder.held(instant):
            return ()
        return tuple(each.vm for each in machines if each.record.fenced and process.alive(each.folder))

    @asynccontextmanager
    async def _verb(self, vm: str) -> AsyncIterator[NodeContext]:
        """Run verbs that change a machine one at a time."""
        self._require_open()
        validation.check_text("machine", vm)
        async with self._lock(vm):
            site = self._require_open()
            self._check_readable(vm)
            if (machine := self._machines.get(vm)) is not None:
                machine.look()
            yield site

    def _lock(self, vm: str) -> asyncio.Lock:
        lock = self._locks.get(vm)
        if lock is None:
            lock = self._locks[vm] = asyncio.Lock()
        return lock

    def _require_open(self) -> NodeContext:
        if self._site is None:
            raise Closed("machines: this verb needs the driver to be open; enter it with `async with` first")
        return self._site

    def _check_readable(self, vm: str) -> None:
        """Raise Damaged if the machine has a folder whose record cannot be read."""
        error = self._broken.get(folder_name(vm))
        if error is not None and vm not in self._machines:
            raise Damaged(str(error))

    def _require_machine(self, vm: str) -> QemuMachine:
        machine = self._machines.get(vm)
        if machine is None:
            raise NotFound(f"machine {vm!r}: not found on this node")
        return machine

    def _whole(self, vm: str) -> QemuMachine:
        machine = self._require_machine(vm)
        if machine.record.life is not Life.WHOLE:
            raise Refused(f"machine {vm!r}: its creation is incomplete; create it again")
        return machine

    async def _destroy(self, machine: QemuMachine) -> None:
        try:
            await making.destroy(machine)
        finally:
            if not machine.folder.path.exists() and self._machines.get(machine.vm) is machine:
                machine.gone = True
                self._arrivals.pop(machine.vm, None)
                del self._machines[machine.vm]

    def _tell(self, vm: str) -> None:
        for listener in self._listeners:
            listener(vm)


def _needs(named: Named, default: str) -> ImageNeeds:
    image = named.image
    return ImageNeeds(
        memory_mib=image.memory_mib,
        disk_gib=-(-image.disk_bytes // GIB),
        user=image.user,
        default=named.name == default,
        seeding=image.seeding.value,
    )


def _sharing(options: QemuOptions) -> int:
    """Return how many nodes share this host. A stopped agent's node counts, because its machines stay."""
    if options.siblings is None:
        return options.shared_by
    with suppress(OSError):
        return max(options.shared_by, sum(1 for one in options.siblings.iterdir() if one.is_dir()))
    return options.shared_by

"""Converts servers to machines of the port, with their readiness from boot to the first login.

A server that was available when the process ended is available when the process starts again. The probe only has to
confirm that.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from hostler.drivers.machines.hetzner.api_types import address_of, state_of
from hostler.drivers.machines.hetzner.labels import unpack_key, vm_hash
from hostler.drivers.machines.hetzner.power import AVAILABLE
from hostler.drivers.machines.readiness import Ascent
from hostler.errors import Damaged, Unavailable
from hostler.model.image import Image, Probe, Seeding
from hostler.model.vm import Access, MachineState, Readiness, Step
from hostler.ports.machines import Machine, RetainedMachine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostler.drivers.machines.hetzner.api_types import Server
    from hostler.drivers.machines.hetzner.context import HetznerContext, LocalState
    from hostler.drivers.machines.hetzner.descriptor import HetznerOptions
    from hostler.drivers.machines.hetzner.labels import Card
    from hostler.drivers.machines.hetzner.power import Power
    from hostler.kit.clock import Clock


class _Nobody:
    """Stand-in for the guest channel, which these servers do not have."""

    async def line(self, *prefixes: str, within: float) -> str:
        raise Unavailable(f"no guest channel: no {prefixes} within {within:g} s")

    async def send(self, text: str) -> None:
        raise Unavailable(f"no guest channel: {text!r} was not sent")


class _Way:
    """Readiness of one server while it runs."""

    def __init__(self, server: int, now: Readiness) -> None:
        self.server, self.now = server, now
        self.task: asyncio.Task[None] | None = None


class Readinesses:
    """Readiness by server: a server that is seen running is probed until it answers."""

    def __init__(self, options: HetznerOptions, kept: LocalState, *, clock: Clock, told: Callable[[str], None]) -> None:
        self._options, self._kept, self._clock, self._told = options, kept, clock, told
        self._ways: dict[str, _Way] = {}
        self._image = Image(
            digest="0" * 64,
            files={},
            disk_bytes=0,
            user=options.user,
            seeding=Seeding.CLOUD_INIT,
            probe=Probe.SSH if options.probe else Probe.NONE,
            boot_seconds=options.boot_seconds,
            source="Hetzner Cloud",
            made_at=0.0,
        )

    def of(self, vm: str, server: int, access: Access | None, *, runs: bool) -> Readiness | None:
        """Return the readiness of a server; None: it does not run."""
        way = self._ways.get(vm)
        if not runs or (way is not None and way.server != server):
            self.forget(vm)
            way = None
        if not runs:
            return None
        if way is None:
            way = self._begin(vm, server, access)
        return way.now

    def forget(self, vm: str) -> None:
        """Reset the readiness of a machine; its next boot is probed again."""
        self._kept.not_ready(vm)
        way = self._ways.pop(vm, None)
        if way is not None and way.task is not None:
            way.task.cancel()

    async def aclose(self) -> None:
        """Stop all probes. The recorded readiness stays."""
        tasks = [way.task for way in self._ways.values() if way.task is not None]
        self._ways.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _begin(self, vm: str, server: int, access: Access | None) -> _Way:
        probes = self._options.probe and access is not None
        step = Step.BOOTING if self._options.probe else Step.AVAILABLE
        way = self._ways[vm] = _Way(server, Readiness(step=step, since=self._clock.wall()))
        if probes and access is not None:
            since = self._kept.ready_since(vm, server)

            def told(now: Readiness) -> None:
                silent = now.step is Step.BOOTING and not now.cause
                if way.now.step is Step.AVAILABLE and (silent or now.step is Step.AVAILABLE):
                    return  # it was available before, and no probe contradicts that
                if now != way.now:
                    way.now = now
                    self._remember(vm, server, now)
                    self._told(vm)

            ascent = Ascent(self._image, access, _Nobody(), clock=self._clock, told=told)
            way.now = ascent.now if since is None else Readiness(step=Step.AVAILABLE, since=since)
            way.task = asyncio.create_task(ascent.climb(asks=False), name=f"hetzner: readiness of {vm}")
        return way

    def _remember(self, vm: str, server: int, now: Readiness) -> None:
        if now.step is Step.AVAILABLE:
            self._kept.ready(vm, server, now.since)
        else:
            self._kept.not_ready(vm)


_log = logging.getLogger("hostler.machines")


class MachineMapping:
    """Machines and retained machines, read from Hetzner Cloud."""

    def __init__(self, site: HetznerContext, power: Power, readiness: Readinesses) -> None:
        self._site, self._power, self._readiness, self._options = site, power, readiness, site.options

    async def names(self, card: Card) -> Sequence[str]:
        """Return the names of the complete snapshots."""
        if not card.snapshots:
            return ()
        found = await self._power.snapshots(card.key)
        return tuple(dict.fromkeys(each.name for each in found if each.status == AVAILABLE))

    async def machine(self, server: Server) -> Machine:
        card = self._site.card(server)
        if card is None:
            raise Unavailable(f"server {server.name}: another client removed its labels; inspect the machine")
        return self._machine_of(server, card, await self.names(card))

    async def retained(self, card: Card) -> RetainedMachine:
        """Return the description of a retained machine."""
        return RetainedMachine(
            name=card.retained,
            label=card.label,
            spec=self._site.kept.spec_of(card),
            snapshots=tuple(await self.names(card)),
            retained_at=float(card.retained_at),
        )

    async def all(self) -> Sequence[Machine]:
        """Return all machines in service, from one listing."""
        cards: list[tuple[Server, Card]] = []
        for server in await self._site.looks.all():
            try:
                card = self._site.card(server)
            except Damaged as error:
                _log.warning("%s", error)
                continue
            if card is not None and not card.retained:
                cards.append((server, card))
        names: dict[str, list[str]] = {}
        for found in await self._site.api.snapshots() if any(card.snapshots for _, card in cards) else ():
            if found.status == AVAILABLE and found.name not in names.setdefault(found.vm_hash, []):
                names[found.vm_hash].append(found.name)
        return [
            self._machine_of(server, card, names.get(vm_hash(card.key), ()) if card.snapshots else ())
            for server, card in cards
        ]

    def _machine_of(self, server: Server, card: Card, snapshots: Sequence[str]) -> Machine:
        state = state_of(server.status, card)
        host = address_of(server, ipv4=self._options.ipv4)
        key = unpack_key(card.host_key)
        access = None
        if host and not card.life:
            access = Access(host=host, port=self._options.ssh_port, user=card.user, host_keys=(key,) if key else ())
        return Machine(
            label=card.label,
            id=f"hcloud-{server.id}",
            state=state,
            spec=self._site.kept.spec_of(card),
            tags=card.tags,
            cloud_status=server.status,
            address=host,
            detail=f"a restore to {card.restoring_to!r} is incomplete" if card.restoring else "",
            resets=card.resets,
            restored=card.restored,
            snapshots=tuple(snapshots),
            readiness=self._readiness.of(card.label.vm, server.id, access, runs=state is MachineState.RUNNING),
            access=access,
        )

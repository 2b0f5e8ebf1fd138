"""Readiness of running servers, from boot to the first login.

A server that was available when the process ended is available when the process starts again. The probe only has to
confirm that.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hostler.drivers.machines.qemu.readiness import Ascent
from hostler.errors import Unavailable
from hostler.model.image import Image, Probe, Seeding
from hostler.model.vm import Readiness, Step

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.drivers.machines.hetzner.local_state import LocalState
    from hostler.drivers.machines.hetzner.options import HetznerOptions
    from hostler.kit.clock import Clock
    from hostler.model.vm import Access


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

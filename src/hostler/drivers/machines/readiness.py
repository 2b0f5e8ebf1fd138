"""Readiness: the progress of a running machine until its user can log in.

First the guest's own channel is read, where it has one: a forwarded port accepts connections before a server listens in
the guest, and frequent probes starve a small server. Then its port is probed, one attempt at a time at growing
intervals. Every step has a deadline. A step that missed it reports the observed cause and continues.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

import asyncssh

from hostler.errors import HostlerError
from hostler.kit.host import have_a_name
from hostler.kit.rate_limit import Backoff
from hostler.model.image import Probe, Seeding
from hostler.model.vm import Readiness, Step

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.kit.clock import Clock
    from hostler.model.image import Image
    from hostler.model.vm import Access

READY, ANSWER = "hostler ready", "pong"
ANSWERS_WITHIN = 20.0
"""For one attempt: an emulated guest needs seconds for a key exchange."""
ASKED_EVERY = 5.0


class Guest(Protocol):
    """The channel to the guest."""

    async def line(self, *prefixes: str, within: float) -> str: ...

    async def send(self, text: str) -> None: ...


class Ascent:
    """The readiness of one machine in one run. `told` is called with every step and every cause."""

    def __init__(
        self, image: Image, access: Access, guest: Guest, *, clock: Clock, told: Callable[[Readiness], None]
    ) -> None:
        self._image, self._access, self._guest, self._clock, self._told = image, access, guest, clock, told
        self.now = Readiness(step=Step.BOOTING, since=clock.wall())
        self._reached_at = clock.now()
        self._backoff = Backoff(first=0.1, most=3.0)

    async def climb(self, *, asks: bool) -> None:
        """Watch until it is available.

        `asks`: the guest may have been up for long, so it is asked instead of waited for.
        """
        probe = self._image.probe
        self._told(self.now)
        if probe is not Probe.NONE:
            if self._image.seeding is Seeding.FIRMWARE or probe is Probe.AGENT:
                await self._follow_agent(asks=asks)
            if probe is not Probe.AGENT:
                await self._follow_port()
        self._reach(Step.AVAILABLE)

    async def _follow_agent(self, *, asks: bool) -> None:
        while True:
            try:
                if asks:
                    await self._guest.send("ping")
                await self._guest.line(READY, ANSWER, within=ASKED_EVERY)
            except (HostlerError, TimeoutError):
                self._late("the guest did not report that it is up; check its console")
                await self._clock.sleep(0.05)  # a closed channel fails at once
            else:
                self._reach(Step.NETWORK)
                return

    async def _follow_port(self) -> None:
        while True:
            seen = await self._probe_port()
            if not seen:
                return
            self._late(seen)
            await self._clock.sleep(self._backoff.next())

    async def _probe_port(self) -> str:
        """Probe the port; return why the machine is not available; empty: it is."""
        where = f"{self._access.host} port {self._access.port}"
        try:
            async with asyncio.timeout(ANSWERS_WITHIN):
                found = await (self._first_byte() if self._image.probe is Probe.TCP else self._host_key())
        except (OSError, TimeoutError, asyncssh.ConnectionLost) as error:
            return f"{where}: no server answers: {_reason_of(error)}"
        except (asyncssh.Error, ValueError) as error:
            self._reach(Step.SSH)
            return f"{where}: the server that answers is not its SSH server: {_reason_of(error)}"
        wanted = [_bare(text) for text in self._access.host_keys]
        if not wanted or self._image.probe is Probe.TCP or found in wanted:
            return ""
        self._reach(Step.SSH)
        return f"{where}: the server answers with another host key than that of the machine"

    async def _first_byte(self) -> str:
        reader, writer = await asyncio.open_connection(self._access.host, self._access.port)
        try:
            if not await reader.read(1):
                raise ConnectionResetError("the connection was closed")
        finally:
            writer.close()
        return ""

    async def _host_key(self) -> str:
        """Return the host key that the server presents before login; the probe needs no account in the guest."""
        have_a_name()
        key = await asyncssh.get_server_host_key(
            self._access.host, self._access.port, server_host_key_algs=["ssh-ed25519"], config=None
        )
        return "" if key is None else _bare(key.export_public_key().decode())

    def _reach(self, step: Step) -> None:
        if _ORDER.index(step) > _ORDER.index(self.now.step):
            self.now = Readiness(step=step, since=self._clock.wall())
            self._reached_at = self._clock.now()
            self._told(self.now)

    def _late(self, cause: str) -> None:
        if self._clock.now() - self._reached_at < self._image.boot_seconds or cause == self.now.cause:
            return
        self.now = Readiness(step=self.now.step, since=self.now.since, cause=cause)
        self._told(self.now)


_ORDER = tuple(Step)


def _bare(key: str) -> str:
    """Return a public key without its comment."""
    return " ".join(key.split()[:2])


def _reason_of(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {ANSWERS_WITHIN:g} s"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__

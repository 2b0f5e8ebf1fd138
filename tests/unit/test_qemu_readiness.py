"""The way of a machine to its user: what is waited for, what is seen, and what is said when it is late."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncssh
import pytest

from hostler.drivers.machines.readiness import Ascent
from hostler.errors import Unavailable
from hostler.kit.clock import SystemClock
from hostler.model.image import Image, Probe, Seeding
from hostler.model.vm import Access, Readiness, Step

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

BOOTING, NETWORK, SSH, AVAILABLE = Step.BOOTING, Step.NETWORK, Step.SSH, Step.AVAILABLE


class Guest:
    """A guest's channel: `says` after so many seconds, and answers pings if it is `up`."""

    def __init__(self, *, says: float | None = 0.0, up: bool = False) -> None:
        self._says, self._up = says, up
        self.heard: list[str] = []

    async def line(self, *prefixes: str, within: float) -> str:
        if self._up and "ping" in self.heard and "pong" in prefixes:
            return "pong"
        if self._says is None:
            await asyncio.sleep(min(within, 0.02))
            raise Unavailable("nothing came")
        await asyncio.sleep(self._says)
        return f"{prefixes[0]} 1.0"

    async def send(self, text: str) -> None:
        self.heard.append(text)


def image(probe: Probe = Probe.SSH, **changes: Any) -> Image:
    fields: dict[str, Any] = {
        "digest": "0" * 64,
        "files": {},
        "disk_bytes": 1,
        "user": "u",
        "seeding": Seeding.FIRMWARE,
        "probe": probe,
        "boot_seconds": 0.05,
        "source": "a test",
        "made_at": 0.0,
    }
    return Image(**(fields | changes))


class Climb:
    """An ascent and what it told."""

    def __init__(self, image: Image, guest: Guest, port: int, keys: tuple[str, ...] = ()) -> None:
        self.told: list[Readiness] = []
        access = Access(host="127.0.0.1", port=port, user="u", host_keys=keys)
        self._ascent = Ascent(image, access, guest, clock=SystemClock(), told=self.told.append)

    async def run(self, *, asks: bool = False, within: float = 20.0) -> list[Step]:
        async with asyncio.timeout(within):
            await self._ascent.climb(asks=asks)
        return [readiness.step for readiness in self.told if not readiness.cause]

    async def late(self) -> Readiness:
        """What it says once it is late."""
        task = asyncio.create_task(self.run())
        try:
            async with asyncio.timeout(20):
                while not (self.told and self.told[-1].cause):
                    await asyncio.sleep(0.01)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return self.told[-1]


@asynccontextmanager
async def answering(banner: bytes) -> AsyncIterator[int]:
    """A port where somebody says something, and hangs up."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(banner)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@asynccontextmanager
async def ssh_server(key: asyncssh.SSHKey) -> AsyncIterator[int]:
    server = await asyncssh.listen("127.0.0.1", 0, server_host_keys=[key])
    try:
        yield server.get_port()
    finally:
        server.close()
        await server.wait_closed()


def public(key: asyncssh.SSHKey) -> str:
    return key.export_public_key().decode().strip() + " a comment"


async def test_it_is_available_once_the_server_that_was_made_for_it_answers() -> None:
    key = asyncssh.generate_private_key("ssh-ed25519")
    async with ssh_server(key) as port:
        climb = Climb(image(), Guest(), port, (public(key),))
        assert await climb.run() == [BOOTING, NETWORK, AVAILABLE]
        assert climb.told[-1].since >= climb.told[0].since


async def test_another_host_key_is_not_the_machine() -> None:
    key, other = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
    async with ssh_server(other) as port:
        late = await Climb(image(), Guest(), port, (public(key),)).late()
    assert late.step is SSH
    assert "another host key" in late.cause


async def test_what_is_no_ssh_server_is_said() -> None:
    async with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 400) as port:
        late = await Climb(image(), Guest(), port).late()
    assert late.step in (NETWORK, SSH)
    assert late.cause


async def test_a_port_that_takes_connections_and_says_nothing_is_not_the_machine() -> None:
    async with answering(b"") as port:
        late = await Climb(image(), Guest(), port).late()
    assert late.step is NETWORK
    assert "no server answers" in late.cause


async def test_a_guest_that_says_nothing_is_late_and_still_booting() -> None:
    late = await Climb(image(), Guest(says=None), 1).late()
    assert late.step is BOOTING
    assert "did not report that it is up" in late.cause


async def test_a_guest_that_may_be_up_for_long_is_asked() -> None:
    guest = Guest(says=None, up=True)
    assert await Climb(image(Probe.AGENT), guest, 1).run(asks=True) == [BOOTING, NETWORK, AVAILABLE]
    assert guest.heard == ["ping"]
    quiet = Guest()
    await Climb(image(Probe.AGENT), quiet, 1).run()
    assert quiet.heard == [], "one that boots is left in peace"


@pytest.mark.parametrize(
    ("probe", "steps"), [(Probe.NONE, [BOOTING, AVAILABLE]), (Probe.AGENT, [BOOTING, NETWORK, AVAILABLE])]
)
async def test_an_image_that_promises_less_is_held_to_less(probe: Probe, steps: list[Step]) -> None:
    assert await Climb(image(probe), Guest(), 1).run() == steps


@pytest.mark.parametrize("seeding", list(Seeding))
async def test_a_guest_that_shall_say_so_itself_is_not_available_before_it_does(seeding: Seeding) -> None:
    late = await Climb(image(Probe.AGENT, seeding=seeding), Guest(says=None), 1).late()
    assert late.step is BOOTING
    assert await Climb(image(Probe.AGENT, seeding=seeding), Guest(), 1).run() == [BOOTING, NETWORK, AVAILABLE]


async def test_of_a_tcp_server_one_byte_is_enough() -> None:
    async with answering(b"x") as port:
        assert (await Climb(image(Probe.TCP), Guest(), port).run())[-1] is AVAILABLE
    async with answering(b"") as port:
        assert (await Climb(image(Probe.TCP), Guest(), port).late()).step is NETWORK


async def test_an_image_without_a_channel_is_asked_at_its_port() -> None:
    key = asyncssh.generate_private_key("ssh-ed25519")
    async with ssh_server(key) as port:
        climb = Climb(image(seeding=Seeding.CLOUD_INIT), Guest(says=None), port, (public(key),))
        assert await climb.run() == [BOOTING, AVAILABLE]

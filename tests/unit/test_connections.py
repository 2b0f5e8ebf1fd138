"""Connections within limits: who is dropped for whom, and what happens where no file is left."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trustme

from hostler.kit import connections
from hostler.kit.connections import AcceptLoop, ConnectionLimits, InboundConnection, limits_of, listen

SMALL = ConnectionLimits(total=8, per_source=3, unproven=4, unproven_per_source=3, reserve=1)


class Echo(asyncio.Protocol):
    """Says what it hears. `prove` proves the peer, `admin` one with a reserved place, `busy` is not waited for."""

    def __init__(self, connection: InboundConnection) -> None:
        self._connection = connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        if data in {b"prove", b"admin"}:
            data = b"yes" if self._connection.prove(reserved=data == b"admin") else b"no"
        elif data == b"busy":
            self._connection.is_waiting = lambda: False
        self._transport.write(data)


class Peer:
    """The other side of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def says(self, word: bytes) -> bytes:
        """Return what the other side answers; nothing: it has ended the connection."""
        try:
            self._writer.write(word)
            async with asyncio.timeout(30):
                return await self._reader.read(100)
        except ConnectionError:
            return b""

    def close(self) -> None:
        self._writer.close()


class Port:
    """An accept loop at a free port, and peers that come from addresses of choice."""

    def __init__(self, listener: socket.socket, accepting: AcceptLoop) -> None:
        self.listener, self.accepting = listener, accepting
        self._peers: list[Peer] = []

    async def peer(self, source: str = "127.0.0.1", **more: Any) -> Peer:
        port = self.listener.getsockname()[1]
        peer = Peer(*await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0), **more))
        self._peers.append(peer)
        return peer

    def close(self) -> None:
        for peer in self._peers:
            peer.close()
        self.accepting.close()
        self.listener.close()


@asynccontextmanager
async def opened(limits: ConnectionLimits = SMALL, **more: Any) -> AsyncIterator[Port]:
    listener = listen("127.0.0.1")
    port = Port(listener, AcceptLoop(listener, Echo, limits, **more))
    port.accepting.start()
    try:
        yield port
    finally:
        port.close()
        await port.accepting.wait_closed()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


async def test_the_oldest_unproven_peer_goes_for_the_newest() -> None:
    async with opened() as port:
        peers = [await port.peer(f"127.0.0.{number}") for number in range(1, 5)]
        assert [await peer.says(b"here") for peer in peers] == [b"here"] * 4
        newest = await port.peer("127.0.0.9")
        assert await newest.says(b"here") == b"here"
        assert await peers[0].says(b"here") == b""
        assert await peers[1].says(b"here") == b"here"
        await until(lambda: len(port.accepting) == 4)
        assert port.accepting.counts.crowded == 1


async def test_an_address_pushes_out_its_own_first() -> None:
    async with opened() as port:
        other = await port.peer("127.0.0.9")
        assert await other.says(b"here") == b"here"
        peers = [await port.peer() for _ in range(20)]
        assert await peers[-1].says(b"here") == b"here"
        assert await other.says(b"here") == b"here"
        await until(lambda: len(port.accepting) == 4)


async def test_of_all_addresses_the_one_that_has_most_makes_room() -> None:
    async with opened() as port:
        patient = await port.peer("127.0.0.9")
        assert await patient.says(b"here") == b"here"
        many = [await port.peer("127.0.0.1") for _ in range(3)]
        assert [await peer.says(b"here") for peer in many] == [b"here"] * 3
        newest = await port.peer("127.0.0.2")
        assert await newest.says(b"here") == b"here"
        assert await many[0].says(b"here") == b""
        assert await patient.says(b"here") == b"here", "it is the oldest, but the only one of its address"


async def test_of_many_connections_few_go_on_at_once_and_reserved_ones_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CALM", 1)
    monkeypatch.setattr(connections, "AT_ONCE", 2)
    served: list[int] = []
    async with opened() as port:
        first = await port.peer()
        assert await first.says(b"here") == b"here"
        (inbound,) = port.accepting.unproven
        assert not inbound.take_turn(lambda: served.append(0)), "there is one connection only"
        admin = await port.peer("127.0.0.2")
        assert await admin.says(b"here") == b"here"
        reserved = list(port.accepting.unproven)[1]
        assert await admin.says(b"admin") == b"yes"
        for number in range(1, 6):
            assert inbound.take_turn(lambda number=number: served.append(number))  # type: ignore[misc]
        assert not reserved.take_turn(lambda: served.append(0))
        seen = []
        for _ in range(4):
            seen.append(len(served))
            await asyncio.sleep(0)
        assert seen == [0, 2, 4, 5]
        assert served == [1, 2, 3, 4, 5]


async def test_who_is_being_served_is_not_dropped_and_then_the_newest_goes() -> None:
    async with opened() as port:
        peers = [await port.peer(f"127.0.0.{number}") for number in range(1, 5)]
        assert [await peer.says(b"busy") for peer in peers] == [b"busy"] * 4
        assert await (await port.peer("127.0.0.9")).says(b"here") == b""
        assert [await peer.says(b"here") for peer in peers] == [b"here"] * 4


async def test_proven_peers_are_kept_and_the_last_place_is_in_reserve() -> None:
    async with opened() as port:
        proven = [await port.peer(f"127.0.0.{number}") for number in range(1, 4)]
        assert [await peer.says(b"prove") for peer in proven] == [b"yes"] * 3
        late = await port.peer("127.0.0.8")
        assert await late.says(b"prove") == b"no"
        administrator = await port.peer("127.0.0.8")
        assert await administrator.says(b"admin") == b"yes"
        for _ in range(10):
            await port.peer("127.0.0.9")
        await until(lambda: len(port.accepting) <= 8)
        assert [await peer.says(b"here") for peer in (*proven, administrator)] == [b"here"] * 4


async def test_one_address_has_some_proven_places_unless_it_is_exempt_or_reserved_one() -> None:
    limits = limits_of(64, 3)
    async with opened(limits) as port:
        assert [await (await port.peer()).says(b"prove") for _ in range(4)] == [b"yes"] * 3 + [b"no"]
        assert await (await port.peer()).says(b"admin") == b"yes"
        assert await (await port.peer("127.0.0.2")).says(b"prove") == b"yes"
    async with opened(limits, exempt=lambda source: source == "127.0.0.1") as port:
        assert [await (await port.peer()).says(b"prove") for _ in range(6)] == [b"yes"] * 6


async def test_places_of_peers_that_have_gone_are_free() -> None:
    async with opened() as port:
        for _ in range(3):
            peers = [await port.peer() for _ in range(3)]
            assert [await peer.says(b"prove") for peer in peers] == [b"yes"] * 3
            for peer in peers:
                peer.close()
            await until(lambda: len(port.accepting) == 0)
        assert port.accepting.counts.crowded == 0


class Starved:
    """A listener that has no file for the next connections."""

    def __init__(self, listener: socket.socket, kind: int) -> None:
        self.listener, self.kind, self.asked, self.starves = listener, kind, 0, True

    def fileno(self) -> int:
        return self.listener.fileno()

    def accept(self) -> tuple[socket.socket, Any]:
        self.asked += 1
        if self.starves:
            raise OSError(self.kind, "no file")
        return self.listener.accept()


@pytest.mark.parametrize("kind", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
async def test_without_a_file_accepting_pauses_drops_who_waits_and_goes_on(
    kind: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "PAUSE", 0.05)
    async with opened() as port:
        first = await port.peer()
        proven = await port.peer()
        assert (await first.says(b"here"), await proven.says(b"prove")) == (b"here", b"yes")
        starved = Starved(port.listener, kind)
        monkeypatch.setattr(port.accepting, "_listener", starved)
        began = time.monotonic()
        peer = await port.peer("127.0.0.2")
        await until(lambda: starved.asked >= 3)
        assert time.monotonic() - began >= 0.1, "it pauses between two tries"
        assert (await first.says(b"here"), await proven.says(b"here")) == (b"", b"here")
        starved.starves = False
        assert await peer.says(b"here") == b"here"
        assert port.accepting.counts.starved == starved.asked - port.accepting.counts.accepted + 2 - 1
    assert not caplog.records


async def test_who_is_late_is_dropped_and_it_is_told_with_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SWEEP_EVERY", 0.02)
    told: list[str] = []
    async with opened(tell=told.append) as port:
        peers = [await port.peer(f"127.0.0.{number}") for number in range(1, 4)]
        assert [await peer.says(b"here") for peer in peers] == [b"here"] * 3
        for connection in list(port.accepting.unproven)[:2]:
            connection.is_late = lambda _: True
        assert [await peer.says(b"") for peer in peers[:2]] == [b"", b""]
        await until(lambda: told)
        for connection in port.accepting.unproven:
            connection.is_late = lambda _: True
        assert await peers[2].says(b"") == b""
    assert len(told) == 1, "one line a minute"
    assert "2 that sent nothing in time" in told[0]
    assert port.accepting.counts.late == 3


async def test_a_tls_handshake_that_is_not_done_counts_and_can_be_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    import ssl

    authority, server = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    async with opened(tls=server) as port:
        silent = [await port.peer() for _ in range(10)]
        good = await port.peer(ssl=client)
        assert await good.says(b"here") == b"here"
        await until(lambda: len(port.accepting) == 3)
        monkeypatch.setattr(connections, "HANDSHAKE_WITHIN", 0.05)
        late = await port.peer("127.0.0.2")
        assert await late.says(b"") == b""
        assert await silent[0].says(b"") == b""
        assert await good.says(b"here") == b"here"


async def test_an_ipv6_proxy_is_exempt_though_others_count_by_their_network() -> None:
    listener = listen("::1")
    accepting = AcceptLoop(listener, Echo, limits_of(64, 3), exempt=lambda source: source == "::1")
    accepting.start()
    port = listener.getsockname()[1]
    peers = [Peer(*await asyncio.open_connection("::1", port)) for _ in range(6)]
    assert [await peer.says(b"prove") for peer in peers] == [b"yes"] * 6
    for peer in peers:
        peer.close()
    accepting.close()
    listener.close()


def test_limits_keep_their_proportions_where_files_are_few() -> None:
    limits = limits_of(8192, 2048)
    assert limits == ConnectionLimits()
    assert limits.within(1 << 20) == limits
    small = limits.within(512)
    assert (small.total, small.unproven, small.reserve) == (512, 128, 32)
    assert small.unproven_per_source <= small.unproven

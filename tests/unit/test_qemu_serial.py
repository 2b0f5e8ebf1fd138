"""The serial ports, with somebody else at the other end of the sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from qemu_scene import PATIENCE, Peer, listening

from hostler.drivers.machines.qemu import process, serial
from hostler.drivers.machines.qemu.folder import GUEST_SOCKET, SERIAL_SOCKET, MachineFolder
from hostler.drivers.machines.qemu.serial import CHANNEL_BYTES, LINE_BYTES, LINES_KEPT, GuestChannel, Serial
from hostler.errors import HostlerError, Invalid, NotFound, Unavailable


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[MachineFolder]:
    # Longer than a socket's path may be: it must not matter.
    made = MachineFolder(tmp_path / ("deep" * 20) / ("deeper" * 20))
    made.path.mkdir(parents=True)
    yield made
    made.close()


# The console


@asynccontextmanager
async def console_of(folder: MachineFolder, **options: int) -> AsyncIterator[tuple[Serial, Peer]]:
    async with listening(folder, SERIAL_SOCKET) as peer:
        port = Serial(folder, **options)
        await port.connect(PATIENCE)
        await peer.came.wait()
        yield port, peer
        await port.aclose()


async def heard(channel: serial.Console, end: bytes) -> bytes:
    found = b""
    async with asyncio.timeout(PATIENCE):
        while end not in found:
            piece = await channel.read()
            assert piece, found
            found += piece
    return found


async def test_everybody_hears_the_console_and_may_type(folder: MachineFolder) -> None:
    async with console_of(folder) as (port, peer), port.attach() as one, port.attach() as two:
        peer.say(b"login: ")
        assert await heard(one, b"login: ") == b"login: "
        assert await heard(two, b"login: ") == b"login: "
        await one.write(b"root\n")
        await two.write(b"pw\n")
        data = b""
        while len(data) < 8:
            data += await peer.read()
        assert data == b"root\npw\n"


async def test_who_comes_late_first_sees_the_last_of_what_was_said_also_to_an_earlier_agent(
    folder: MachineFolder,
) -> None:
    async with console_of(folder) as (port, peer):
        peer.say(b"booted\n")
        async with port.attach() as first:
            await heard(first, b"booted\n")
        async with port.attach() as late:
            assert await late.read() == b"booted\n"
    async with console_of(folder) as (port, peer), port.attach() as later:
        peer.say(b"still here\n")
        assert await heard(later, b"here\n") == b"booted\nstill here\n"
        assert port.tail(5) == b"here\n"


@pytest.mark.slow
async def test_a_slow_console_loses_the_oldest_and_holds_up_nobody(folder: MachineFolder) -> None:
    async with console_of(folder, rate=2**30) as (port, peer), port.attach() as slow, port.attach() as quick:
        total = 0
        for number in range(100):
            peer.say(f"{number:04d}".encode() * 1000)
            total += len(await quick.read())
        while total < 400_000:
            total += len(await quick.read())
        held = await slow.read()
        assert len(held) == CHANNEL_BYTES
        assert held.endswith(b"0099")


async def test_a_console_ends_with_its_machine_after_all_was_read(folder: MachineFolder) -> None:
    async with console_of(folder) as (port, peer):
        async with port.attach() as channel:
            peer.say(b"bye")
            assert peer.writer is not None
            peer.writer.close()
            assert await heard(channel, b"bye") == b"bye"
            assert await channel.read() == b""
            await channel.write(b"anybody?")
        with pytest.raises(NotFound, match="it is off"):
            await port.attach().__aenter__()
        with pytest.raises(Unavailable):
            await port.write(b"x")


async def test_a_console_that_was_left_is_over_for_who_still_reads(folder: MachineFolder) -> None:
    async with console_of(folder) as (port, _):
        channel = port.attach()
        async with channel:
            reading = asyncio.ensure_future(channel.read())
            await asyncio.sleep(0)
        assert await reading == b""


async def test_typing_waits_while_the_guest_takes_nothing_and_goes_on_when_it_does(folder: MachineFolder) -> None:
    async with console_of(folder) as (port, peer), port.attach() as channel:
        assert peer.reader is not None
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        typed = b"0123456789abcdef" * 2**16
        typing = asyncio.ensure_future(channel.write(typed))
        await asyncio.sleep(0.05)
        assert not typing.done()
        peer.reader._transport.resume_reading()  # type: ignore[attr-defined]
        taken = 0
        while taken < len(typed):
            taken += len(await peer.read())
        await typing
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        typing = asyncio.ensure_future(channel.write(typed))
        await asyncio.sleep(0.02)
        peer.hang_up()
        async with asyncio.timeout(PATIENCE):
            await typing


async def test_a_flood_is_read_at_the_rate_that_is_allowed(folder: MachineFolder) -> None:
    async with console_of(folder, rate=100_000) as (port, peer):
        sent = 2_000_000
        peer.say(b"x" * sent)
        read = 0
        took = port.receive

        def count(data: bytes) -> None:
            nonlocal read
            read += len(data)
            took(data)

        port.receive = count  # type: ignore[method-assign]
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await asyncio.sleep(0.2)
        assert 0 < read <= 25_000 + len(serial._buffer) + 100_000 * (loop.time() - begun)
        async with asyncio.timeout(PATIENCE):
            while read < 60_000:  # it is held up, and goes on
                await asyncio.sleep(0.01)


def on_disk(folder: MachineFolder) -> int:
    return sum(path.stat().st_size for path in folder.path.glob("serial.log*"))


@pytest.mark.slow
async def test_the_log_never_has_more_than_its_bound_on_disk_and_keeps_at_least_half_of_it(
    folder: MachineFolder,
) -> None:
    async with console_of(folder, log_bytes=10_000, rate=2**30) as (port, peer), port.attach() as channel:
        for number in range(120):
            peer.say(f"{number:05d}".encode() * (number % 7 * 50 + 1))
            await channel.read()
            port._log.flush()
            assert on_disk(folder) <= 10_000
        peer.say(b"y" * 50_000 + b"end")
        await heard(channel, b"end")
        tail = port.tail(10_000)
        assert on_disk(folder) <= 10_000
        assert 5_000 <= len(tail) <= 10_000
        assert tail.endswith(b"yyend")
    assert {path.stat().st_mode & 0o777 for path in folder.path.glob("serial.log*")} == {0o600}


async def test_the_log_is_written_through_no_link_and_a_log_that_cannot_be_written_stops_nothing(
    folder: MachineFolder, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (folder.path / serial.LOG).symlink_to(victim)
    async with console_of(folder) as (port, peer), port.attach() as channel:
        peer.say(b"one")
        await heard(channel, b"one")
        assert port.tail() == b"one"
    (folder.path / serial.LOG).unlink()
    (folder.path / serial.LOG).mkdir()
    async with console_of(folder) as (port, peer), port.attach() as channel:
        peer.say(b"two")
        await heard(channel, b"two")
        assert port.tail() == b""
    assert victim.read_text() == "precious"


# The guest's channel


async def all_of(works: Iterator[Awaitable[None]]) -> None:
    for work in works:
        await work


@asynccontextmanager
async def guest_of(folder: MachineFolder, rate: int = 2**20) -> AsyncIterator[tuple[GuestChannel, Peer]]:
    async with listening(folder, GUEST_SOCKET) as peer:
        channel = GuestChannel(folder, rate=rate)
        await channel.connect(PATIENCE)
        await peer.came.wait()
        yield channel, peer
        await channel.aclose()


async def test_a_line_is_heard_whenever_and_in_whatever_pieces_it_comes(folder: MachineFolder) -> None:
    async with guest_of(folder) as (channel, peer):
        peer.say(b"noise\nhostler re")
        waiting = asyncio.ensure_future(channel.line("hostler ready", "pong", within=PATIENCE))
        await asyncio.sleep(0.01)
        peer.say(b"ady 1.5\r\npong\nrest")
        assert await waiting == "hostler ready 1.5"
        await asyncio.sleep(0.01)
        assert await channel.line("hostler ready", "pong", within=PATIENCE) == "pong"
        with pytest.raises(Unavailable, match="did not send 'rest' within"):
            await channel.line("rest", within=0.01)
        peer.say(b"\n")
        assert await channel.line("rest", within=PATIENCE) == "rest"


async def test_garbage_of_any_length_is_bounded_and_what_follows_it_is_heard(folder: MachineFolder) -> None:
    async with guest_of(folder, rate=2**30) as (channel, peer):
        peer.say(
            b"hostler ready " + b"\xff\x00" * 200_000 + b"\nok " + b"x" * (LINE_BYTES - 3) + b"\n" + b"z" * LINE_BYTES
        )
        assert await channel.line("", within=PATIENCE) == "ok " + "x" * (LINE_BYTES - 3)
        assert len(channel._begun) <= LINE_BYTES
        peer.say(b"z\n" + b"spam\n" * 10_000 + b"hostler ready\n")
        await channel.line("hostler ready", within=PATIENCE)
        peer.say(b"spam\n" * 10_000)
        await asyncio.sleep(0.05)
        assert len(channel._lines) <= LINES_KEPT


async def test_what_the_guest_is_told_is_one_line(folder: MachineFolder) -> None:
    async with guest_of(folder) as (channel, peer):
        await channel.send("go 1700000000")
        assert await peer.read() == b"go 1700000000\n"
        for text in ("a\nb", "\x1b", "x" * (LINE_BYTES + 1)):
            with pytest.raises(Invalid):
                await channel.send(text)


async def test_a_guest_that_does_not_listen_or_is_off_is_unavailable(folder: MachineFolder) -> None:
    async with guest_of(folder) as (channel, peer):
        assert peer.reader is not None
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        sends = (channel.send("x" * LINE_BYTES, within=0.05) for _ in range(10_000))
        with pytest.raises(Unavailable, match="does not read its input"):
            await all_of(sends)
        waiting = asyncio.ensure_future(channel.line("x", within=PATIENCE))
        await asyncio.sleep(0)
        peer.hang_up()
        with pytest.raises(Unavailable, match="it is off"):
            await waiting
        with pytest.raises(HostlerError):
            await channel.send("x")


async def test_a_port_can_be_connected_again_and_connecting_may_be_cancelled(folder: MachineFolder) -> None:
    channel = GuestChannel(folder)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await channel.connect(PATIENCE)
    async with listening(folder, GUEST_SOCKET) as peer:
        for _ in range(2):
            peer.came.clear()
            await channel.connect(PATIENCE)
            await peer.came.wait()
            peer.say(b"hello\n")
            assert await channel.line("hello", within=PATIENCE) == "hello"
            await channel.aclose()
            assert not channel.connected
    assert not process.alive(folder)

"""How a machine is handed over: what both sides say to each other. `departure` sends, `arrival` receives.

The state's door speaks one line each way first. A `Manifest` asks for room: what comes, from where, and who it is; the
answer names the attempt or says why not. Then QEMU's own stream follows, both ways. When all of it is there, the door
is opened once more, with a `Seal` of that attempt: only its answer makes what arrived a machine that may run.

The disk's door is an NBD export of the new disk, which stands on the same image: only what differs from it is copied.

What a guest has said to others over QEMU's own network stack (`user`) is lost with the process that it ran in: those
connections end. On a bridge it keeps its address, and its connections.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from hostler.drivers.machines.qemu.state import Fit  # noqa: TC001 - msgspec reads annotations at run time
from hostler.errors import Invalid, Refused, Unavailable
from hostler.model.image import Digest  # noqa: TC001 - as above
from hostler.model.record import Record
from hostler.model.vm import VmSpec  # noqa: TC001 - as above

if TYPE_CHECKING:
    from hostler.ports.machines import Channel

LINE_BYTES = 4 * 2**20
"""Of a first line: user-data is the largest part of it."""
LINE_WITHIN = 60.0
PUMP_BYTES = 256 * 1024
DISK_BYTES_AT_MOST = 2**60


class Manifest(Record, frozen=True, kw_only=True):
    """What comes."""

    kind = "manifest of a move"
    concealed = frozenset({"host_key"})

    vm: str
    number: Annotated[int, Meta(ge=1)]
    live: bool
    """Memory and devices too; else the disk alone, of a machine that is off."""
    spec: VmSpec
    """What it runs with."""
    name: str = ""
    fit: Fit
    processor: str
    """What the guest sees of it."""
    network: str
    """The kind of network: QEMU keeps state for some of them."""
    digest: Digest
    """Of the image."""
    disk_bytes: Annotated[int, Meta(ge=0, le=DISK_BYTES_AT_MOST)]
    resets: int = 0
    restored: int = 0
    instance: str
    """What the guest knows itself by."""
    mac: Annotated[str, Meta(pattern=r"^[0-9a-f]{2}(:[0-9a-f]{2}){5}$")]
    host_key: str
    """The private key of its SSH server: it stays the same machine."""


class Seal(Record, frozen=True, kw_only=True):
    """All that was announced has been sent, and was taken."""

    vm: str
    attempt: str


class Request(Record, frozen=True, kw_only=True):
    """The first line. One of them."""

    kind = "request of a move"

    manifest: Manifest | None = None
    seal: Seal | None = None


class Answer(Record, frozen=True, kw_only=True):
    """The line that answers it."""

    kind = "answer to a move"

    attempt: str = ""
    """It may come, or it is whole."""
    refused: str = ""
    unavailable: str = ""

    def checked(self) -> str:
        """The attempt. Refused, Unavailable: what the other side said."""
        if self.refused:
            raise Refused(self.refused)
        if self.unavailable or not self.attempt:
            raise Unavailable(self.unavailable or "the other node did not say whether it takes the machine; try again")
        return self.attempt


class Place(Record, frozen=True, kw_only=True):
    """What matters of a place to memory that comes from another."""

    accelerator: str
    version: str
    processor: str
    network: str


def objection(manifest: Manifest, vm: str, number: int, here: Place) -> str:
    """Why that cannot come here; empty: it can."""
    if (manifest.vm, manifest.number) != (vm, number):
        return f"machine {vm!r}: move {number} is expected, but {manifest.vm!r} came as move {manifest.number}"
    if not manifest.live:
        return ""
    there = Place(
        accelerator=manifest.fit.accelerator,
        version=manifest.fit.version,
        processor=manifest.processor,
        network=manifest.network,
    )
    words = {"version": "QEMU", "accelerator": "acceleration", "processor": "processor", "network": "network"}
    for field, word in words.items():
        if getattr(there, field) != getattr(here, field):
            return (
                f"its memory does not fit there: {word} is {getattr(there, field)!r} where it runs, and"
                f" {getattr(here, field)!r} where it shall go; move it while it is off, or allow to stop it"
            )
    return ""


def processor(accelerator: str, info: str | None = None) -> str:
    """What a guest sees of the processor: with KVM the host's own, otherwise what QEMU makes of it."""
    if accelerator != "kvm":
        return "max"
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace") if info is None else info
    lines = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    first = {name.strip(): value.strip() for name, _, value in lines}
    return " ".join(first.get(name, "") for name in ("vendor_id", "cpu family", "model", "stepping", "flags"))


# Lines and streams


class Lines:
    """The first line of a stream that comes in pieces."""

    def __init__(self, subject: str) -> None:
        self._subject, self._held = subject, bytearray()

    def add(self, data: bytes) -> tuple[bytes, bytes] | None:
        """The line and what came behind it, once there is one. Invalid: it is longer than any can be."""
        self._held += data
        line, end, rest = bytes(self._held).partition(b"\n")
        if len(line) > LINE_BYTES:
            raise Invalid(f"{self._subject}: its first line is longer than {LINE_BYTES} bytes; that is no move of ours")
        return (line, rest) if end else None


async def ask(channel: Channel, request: Request, subject: str) -> str:
    """Say the first line; the attempt that the answer names. Refused, Unavailable: as it says, or it did not come."""
    lines = Lines(subject)
    try:
        async with asyncio.timeout(LINE_WITHIN):
            await channel.write(request.encode() + b"\n")
            while True:
                data = await channel.read()
                if not data:
                    raise Unavailable(f"{subject}: the other node ended the connection; see its log, and try again")
                if found := lines.add(data):
                    return Answer.decode(found[0]).checked()
    except TimeoutError:
        raise Unavailable(f"{subject}: the other node did not answer within {LINE_WITHIN:g} s; try again") from None


async def pump(channel: Channel, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry bytes both ways until the process behind reader and writer has ended its side, or the channel breaks."""

    async def out() -> None:
        while data := await reader.read(PUMP_BYTES):
            await channel.write(data)

    async def back() -> None:
        while data := await channel.read():
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()  # QEMU hears that nothing more comes, and ends its own side when it is done

    sending, receiving = asyncio.ensure_future(out()), asyncio.ensure_future(back())
    try:
        await asyncio.wait({sending, receiving}, return_when=asyncio.FIRST_COMPLETED)
        if not sending.done() and receiving.exception() is None:
            await asyncio.wait({sending})
    finally:
        for task in (sending, receiving):
            task.cancel()
        await asyncio.gather(sending, receiving, return_exceptions=True)
        writer.close()


class Gate:
    """A socket in a machine's folder that leads to a channel: its process comes in once."""

    def __init__(self, path: Path, channel: Channel, subject: str) -> None:
        """`path` is short, or the kernel does not take it as a socket's."""
        self._path, self._channel, self._subject = path, channel, subject
        self._server: asyncio.Server | None = None
        self._pumping: asyncio.Task[None] | None = None
        self._closing = False

    async def open(self, group: int | None) -> None:
        """Listen; only we and the group may come in."""
        self._path.unlink(missing_ok=True)
        try:
            self._server = await asyncio.start_unix_server(self._came, self._path)
            if group is not None:
                os.chown(self._path, -1, group, follow_symlinks=False)
            self._path.chmod(0o600 if group is None else 0o660)
        except OSError as error:
            await self.aclose()
            raise Unavailable(f"{self._subject}: {error.strerror}; nothing was changed, try again") from None

    def check(self) -> None:
        """Unavailable: who came in has gone, or the channel has."""
        if self._pumping is not None and self._pumping.done():
            error = None if self._pumping.cancelled() else self._pumping.exception()
            why = "the connection ended" if error is None else f"{error}" or type(error).__name__
            raise Unavailable(f"{self._subject}: {why}; the machine stays where it is, try again")

    async def aclose(self) -> None:
        """Let nobody in, and end who is."""
        self._closing = True
        if self._server is not None:
            self._server.close()
        self._path.unlink(missing_ok=True)
        if self._pumping is not None:
            self._pumping.cancel()
            await asyncio.gather(self._pumping, return_exceptions=True)

    def _came(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._pumping is not None or self._closing:
            writer.close()
            return
        self._pumping = asyncio.ensure_future(pump(self._channel, reader, writer))

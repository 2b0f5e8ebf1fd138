"""The protocol of a migration. `outgoing` and `send` are the source, `incoming` is the target.

The state channel begins with one line in each direction. A `Manifest` announces the machine: its content, origin and
identity; the answer names the attempt or the reason of a refusal. Then QEMU's own stream follows, in both directions.
When everything was sent, the channel is opened again with a `Seal` of that attempt. Only its answer turns the received
data into a machine that may run.

The disk channel is an NBD export of the new disk, which is based on the same image: only the differences are copied.

Connections of a guest over QEMU's own network stack (`user`) end with its old process. On a bridge the guest keeps its
address and its connections.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from hostler.drivers.machines.qemu.state import MemoryFit  # noqa: TC001 - msgspec reads annotations at run time
from hostler.errors import Invalid, Refused, Unavailable
from hostler.kit.host import LEAVE_FILE
from hostler.model.image import Digest  # noqa: TC001 - as above
from hostler.model.record import Record
from hostler.model.vm import VmSpec  # noqa: TC001 - as above

if TYPE_CHECKING:
    from hostler.ports.machines import Channel

LINE_BYTES = 4 * 2**20
"""Maximum of a first line: user-data is its largest part."""
LINE_WITHIN = 60.0
PUMP_BYTES = 256 * 1024
DISK_BYTES_AT_MOST = 2**60


class Manifest(Record, frozen=True, kw_only=True):
    """Announcement of a machine."""

    kind = "manifest of a move"
    concealed = frozenset({"host_key"})

    vm: str
    number: Annotated[int, Meta(ge=1)]
    live: bool
    """Whether memory and devices are sent too; otherwise only the disk of a machine that is off."""
    spec: VmSpec
    """The spec it runs with."""
    name: str = ""
    fit: MemoryFit
    processor: str
    """The processor as the guest sees it."""
    network: str
    """Kind of network: QEMU keeps state for some of them."""
    digest: Digest
    """Digest of the image."""
    disk_bytes: Annotated[int, Meta(ge=0, le=DISK_BYTES_AT_MOST)]
    resets: int = 0
    restored: int = 0
    instance: str
    """Instance id that the guest knows."""
    mac: Annotated[str, Meta(pattern=r"^[0-9a-f]{2}(:[0-9a-f]{2}){5}$")]
    host_key: str
    """Private key of its SSH server: the machine keeps its identity."""


class Seal(Record, frozen=True, kw_only=True):
    """Confirmation that everything announced was sent and accepted."""

    vm: str
    attempt: str


class Request(Record, frozen=True, kw_only=True):
    """The first line, with exactly one of the fields."""

    kind = "request of a move"

    manifest: Manifest | None = None
    seal: Seal | None = None


class Answer(Record, frozen=True, kw_only=True):
    """The answer to the first line."""

    kind = "answer to a move"

    attempt: str = ""
    """The machine may be sent, or is complete."""
    refused: str = ""
    unavailable: str = ""

    def checked(self) -> str:
        """Return the attempt. Refused, Unavailable: the answer of the other side."""
        if self.refused:
            raise Refused(self.refused)
        if self.unavailable or not self.attempt:
            raise Unavailable(self.unavailable or "the target node did not answer whether it accepts it; try again")
        return self.attempt


class HostTraits(Record, frozen=True, kw_only=True):
    """Properties of a node that incoming memory depends on."""

    accelerator: str
    version: str
    processor: str
    network: str


def objection(manifest: Manifest, vm: str, number: int, here: HostTraits) -> str:
    """Return why the machine cannot be received here; empty: it can."""
    if (manifest.vm, manifest.number) != (vm, number):
        return f"machine {vm!r}: move {number} is expected, but {manifest.vm!r} was announced as move {manifest.number}"
    if not manifest.live:
        return ""
    there = HostTraits(
        accelerator=manifest.fit.accelerator,
        version=manifest.fit.version,
        processor=manifest.processor,
        network=manifest.network,
    )
    words = {"version": "QEMU", "accelerator": "acceleration", "processor": "processor", "network": "network"}
    for field, word in words.items():
        if getattr(there, field) != getattr(here, field):
            return (
                f"its memory does not fit there: {word} is {getattr(there, field)!r} on its node, but"
                f" {getattr(here, field)!r} on the target; move it while it is off, or allow stopping it"
            )
    return ""


def processor(accelerator: str, info: str | None = None) -> str:
    """Return the processor as a guest sees it: with KVM the host's, otherwise QEMU's model."""
    if accelerator != "kvm":
        return "max"
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace") if info is None else info
    lines = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    first = {name.strip(): value.strip() for name, _, value in lines}
    return " ".join(first.get(name, "") for name in ("vendor_id", "cpu family", "model", "stepping", "flags"))


# Lines and streams


class FirstLine:
    """Collects the first line of a stream that arrives in pieces."""

    def __init__(self, subject: str) -> None:
        self._subject, self._held = subject, bytearray()

    def add(self, data: bytes) -> tuple[bytes, bytes] | None:
        """Return the line and the rest once the line is complete. Invalid: it is too long."""
        self._held += data
        line, end, rest = bytes(self._held).partition(b"\n")
        if len(line) > LINE_BYTES:
            raise Invalid(f"{self._subject}: its first line is longer than {LINE_BYTES} bytes; not a Hostler migration")
        return (line, rest) if end else None


async def ask(channel: Channel, request: Request, subject: str) -> str:
    """Send the first line; return the attempt in the answer. Refused, Unavailable: the answer, or none came."""
    lines = FirstLine(subject)
    try:
        async with asyncio.timeout(LINE_WITHIN):
            await channel.write(request.encode() + b"\n")
            while True:
                data = await channel.read()
                if not data:
                    raise Unavailable(f"{subject}: the other node closed the connection; check its log, and try again")
                if found := lines.add(data):
                    return Answer.decode(found[0]).checked()
    except TimeoutError:
        raise Unavailable(f"{subject}: the other node did not answer within {LINE_WITHIN:g} s; try again") from None


async def pump(channel: Channel, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy bytes both ways until the process behind reader and writer closes its side, or the channel breaks."""

    async def out() -> None:
        while data := await reader.read(PUMP_BYTES):
            await channel.write(data)

    async def back() -> None:
        while data := await channel.read():
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()  # QEMU sees the end of the stream, and closes its own side when it is done

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
    """A socket in a machine's folder that leads to a channel: its process connects once."""

    def __init__(self, path: Path, channel: Channel, subject: str) -> None:
        """Set up the gate. `path` must be short enough for a socket."""
        self._path, self._channel, self._subject = path, channel, subject
        self._server: asyncio.Server | None = None
        self._pumping: asyncio.Task[None] | None = None
        self._closing = False

    async def open(self, group: int | None) -> None:
        """Listen; only the agent and the group may connect."""
        self._path.unlink(missing_ok=True)
        try:
            self._server = await asyncio.start_unix_server(self._came, self._path, **LEAVE_FILE)
            if group is not None:
                os.chown(self._path, -1, group, follow_symlinks=False)
            self._path.chmod(0o600 if group is None else 0o660)
        except OSError as error:
            await self.aclose()
            raise Unavailable(f"{self._subject}: {error.strerror}; nothing was changed, try again") from None

    def check(self) -> None:
        """Raise Unavailable if the process or the channel has disconnected."""
        if self._pumping is not None and self._pumping.done():
            error = None if self._pumping.cancelled() else self._pumping.exception()
            why = "the connection ended" if error is None else f"{error}" or type(error).__name__
            raise Unavailable(f"{self._subject}: {why}; the machine stays where it is, try again")

    async def aclose(self) -> None:
        """Stop listening, and close the connection."""
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

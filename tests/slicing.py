"""What tests of slices share: artifacts to run, and a caller that speaks the protocol itself."""

from __future__ import annotations

import asyncio
import hashlib
import textwrap
import zipfile
from pathlib import Path
from typing import Any

import msgspec

from hostler.drivers.artifacts.folder import FolderArtifacts
from hostler.drivers.artifacts.wheel import describe_wheel
from hostler.kit.frames import frame, read_frame
from hostler.ports.calls import Call, Cancel, Denied, End, Failed, FromWorker, Hello, Item, Result, Welcome

TOKEN = "a-caller"
TOKENS = frozenset({hashlib.sha256(TOKEN.encode()).hexdigest()})


async def publish(root: Path, artifact: str, source: str, **more: Any) -> FolderArtifacts:
    """A module, as that artifact."""
    name = artifact.split(":")[1]
    file = root / "made" / artifact.replace(":", "_") / f"{name}.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(textwrap.dedent(source), encoding="utf-8")
    artifacts = FolderArtifacts(root / "repository")
    await artifacts.publish(msgspec.structs.replace(describe_wheel(file, artifact), **more), file)
    return artifacts


def make_wheel(folder: Path, name: str, version: str, source: str, requires: tuple[str, ...] = ()) -> Path:
    """A pure one with one module."""
    info = f"{name}-{version}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {one}\n" for one in requires)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", textwrap.dedent(source))
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


class Caller:
    """One connection, and the answers that come on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, address: str, token: str = TOKEN) -> Caller:
        host, _, port = address.rpartition(":")
        caller = cls(*await asyncio.open_connection(host, int(port)))
        caller.send(Hello(token))
        said = await caller.hear()
        assert isinstance(said, Welcome), said
        return caller

    def send(self, message: msgspec.Struct) -> None:
        self.writer.write(frame(msgspec.msgpack.encode(message)))

    async def hear(self) -> Welcome | Denied | Result | Item | End | Failed | None:
        async with asyncio.timeout(60):
            payload = await read_frame(self.reader)
        return None if payload is None else msgspec.msgpack.decode(payload, type=FromWorker)

    async def call(self, method: str, *, within: float | None = 60.0, number: int = 1, **arguments: Any) -> Any:
        """The result; a list, of a stream; Failed, if it failed."""
        self.send(Call(number, method, msgspec.json.encode(arguments), within))
        return await self.answer()

    async def answer(self) -> Any:
        items = []
        while True:
            match await self.hear():
                case Result(value=value):
                    return msgspec.json.decode(value)
                case Item(value=value):
                    items.append(msgspec.json.decode(value))
                case End():
                    return items
                case other:
                    return other

    def cancel(self, number: int = 1) -> None:
        self.send(Cancel(number))

    async def close(self) -> None:
        self.writer.close()


async def call(address: str, method: str, **arguments: Any) -> Any:
    """On a connection of its own."""
    caller = await Caller.connect(address)
    try:
        return await caller.call(method, **arguments)
    finally:
        await caller.close()

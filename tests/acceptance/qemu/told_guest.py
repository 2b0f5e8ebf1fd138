"""The tiny guest under a bare QEMU, told who it is by the product's seed; nothing else of the driver is in the way."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import asyncssh
from harness.pace import patience

from hostler.drivers.machines.seed import Identity, firmware_files, new_host_key
from hostler.testing import servers

if TYPE_CHECKING:
    from types import TracebackType

    from hostler.model.image import Image

SOME = 20.0
"""Seconds, at most, for a step that takes three where nothing else runs: `patience(SOME)`."""
KEY = asyncssh.generate_private_key("ssh-ed25519")
HOST_KEY = new_host_key()
FILL = (
    "i=1024; while [ $i -gt 0 ]; do fallocate -l ${i}M /fill$i || i=$((i/2)); i=$((i-1)); done;"
    " cat /dev/zero > /last; sync"
)
"""Fills a guest's disk, all but the last mebibytes without writing them."""


def identity(**changes: Any) -> Identity:
    """A usual one, on QEMU's own network."""
    usual: dict[str, Any] = {
        "instance": "first",
        "hostname": "tiny-one",
        "user": "hostler",
        "host_key": HOST_KEY.private,
        "ssh_keys": (KEY.export_public_key().decode().strip(),),
        "mac": "52:54:00:aa:bb:cc",
        "ip4": "10.0.2.15/24",
        "gw4": "10.0.2.2",
        "dns": "10.0.2.3",
        **changes,
    }
    return Identity(**usual)


def overlay(image: Path, disk: Path, size: str) -> None:
    """A disk of that size over the image's."""
    argv = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", str(image / "disk"), str(disk), size]
    subprocess.run(argv, check=True)


class ToldGuest:
    """Runs from entering to leaving, and is paused before its first instruction until `go_on`."""

    def __init__(
        self,
        folder: Path,
        image: Image,
        files: Path,
        disk: Path | None,
        who: Identity | None,
        *,
        append: str = "",
        more: tuple[str, ...] = (),
    ) -> None:
        folder.mkdir()
        self.folder, self._image, self._files, self._disk, self._who = folder, image, files, disk, who
        self._append, self._more = append, more
        self._process: asyncio.subprocess.Process | None = None
        self._writers: list[asyncio.StreamWriter] = []
        [self.port] = servers.free_ports(1)  # not one that the kernel gives to somebody before QEMU has it

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *self._argv(), cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        try:
            async with asyncio.timeout(patience(SOME)):
                self._qmp, self._tell_qmp = await self._door("qmp.sock")
                self._channel, self._tell_channel = await self._door("guest.sock")
                self.console, self.type = await self._door("console.sock")
                await self._qmp.readline()
                await self.execute("qmp_capabilities")
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        for writer in self._writers:
            writer.close()
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    def _argv(self) -> list[str]:
        argv = [
            *("qemu-system-x86_64", "-machine", "q35", "-accel", "tcg", "-cpu", "max", "-m", "128", "-smp", "1", "-S"),
            *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
            *("-kernel", str(self._files / "kernel"), "-initrd", str(self._files / "initrd")),
            *("-append", f"{self._image.append} {self._append}"),
            *("-netdev", f"user,id=n0,hostfwd=tcp:127.0.0.1:{self.port}-:22"),
            *("-device", "virtio-net-pci,netdev=n0,romfile="),
            *("-chardev", "socket,id=console,path=console.sock,server=on,wait=off", "-serial", "chardev:console"),
            *("-chardev", "socket,id=guest,path=guest.sock,server=on,wait=off", "-serial", "chardev:guest"),
            *("-chardev", "socket,id=qmp,path=qmp.sock,server=on,wait=off", "-mon", "chardev=qmp,mode=control"),
        ]
        if self._disk is not None:
            node = {"driver": "qcow2", "node-name": "disk", "file": {"driver": "file", "filename": str(self._disk)}}
            argv += ["-blockdev", json.dumps(node), "-device", "virtio-blk-pci,drive=disk"]
        for name, content in firmware_files(self._who).items() if self._who else ():
            (self.folder / name).write_bytes(content)
            argv += ["-fw_cfg", f"name=opt/hostler/{name},file={name}"]
        return [*argv, *self._more]

    async def _door(self, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        held = os.open(self.folder, os.O_PATH)  # the path of a test's folder may be longer than a socket's can be
        try:
            while True:
                with suppress(FileNotFoundError, ConnectionRefusedError):
                    reader, writer = await asyncio.open_unix_connection(f"/proc/self/fd/{held}/{name}")
                    self._writers.append(writer)
                    return reader, writer
                assert self._process is not None
                assert self._process.returncode is None, "QEMU ended"
                await asyncio.sleep(0.02)
        finally:
            os.close(held)

    async def execute(self, command: str, **arguments: Any) -> Any:
        """A command of QMP, and what it returns."""
        self._tell_qmp.write(json.dumps({"execute": command, "arguments": arguments}).encode())
        while True:
            said = json.loads(await self._qmp.readline())
            if "event" not in said:
                assert "return" in said, said
                return said["return"]

    async def go_on(self) -> None:
        await self.execute("cont")

    async def stall(self, seconds: float) -> None:
        """Let its process stand still, as on a host that has much else to do."""
        assert self._process is not None
        with suppress(ProcessLookupError):
            servers.suspend(self._process.pid)
            await asyncio.sleep(seconds)
            os.kill(self._process.pid, signal.SIGCONT)

    async def line(self) -> str:
        """What the guest says next on its channel; empty: it went off."""
        async with asyncio.timeout(patience(SOME)):
            return (await self._channel.readline()).decode().strip()

    def tell(self, text: str) -> None:
        """On its channel."""
        self._tell_channel.write(f"{text}\n".encode())

    async def ended(self) -> int:
        """How QEMU ended, by itself."""
        assert self._process is not None
        async with asyncio.timeout(patience(SOME)):
            return await self._process.wait()

    async def run(self, command: str, *, key: asyncssh.SSHKey = KEY) -> str:
        """What a command says to who logs in, and its exit status if that is not 0; with the host key that we made."""
        known = asyncssh.import_known_hosts(f"* {HOST_KEY.public}")
        async with (
            asyncio.timeout(patience(SOME)),
            asyncssh.connect(
                "127.0.0.1",
                self.port,
                username="hostler",
                client_keys=[key],
                known_hosts=known,
                config=None,
                agent_path=None,
            ) as connection,
        ):
            done = await connection.run(command)
        return f"{done.stdout}{done.stderr}".strip() + (f" [{done.exit_status}]" if done.exit_status else "")

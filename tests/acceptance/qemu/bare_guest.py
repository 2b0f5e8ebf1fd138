"""A tiny guest as bare as can be: what is under test (rights, network, limits) and nothing else of the driver."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Self

import asyncssh
from harness.pace import patience

from hostler.drivers.machines.qemu.privileges import own_files

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from hostler.drivers.machines.qemu.images.folder import ImageFolder
    from hostler.drivers.machines.qemu.network import Attached
    from hostler.drivers.privileges import Privileges

BOOT_WITHIN = 20.0
SANDBOX = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"


class BareGuest:
    """Runs from entering to leaving; entered, it can be logged into."""

    def __init__(self, folder: Path, images: ImageFolder, rights: Privileges, attached: Attached, mac: str) -> None:
        self.folder, self._rights, self._attached, self._mac = folder, rights, attached, mac
        self.key = asyncssh.generate_private_key("ssh-ed25519")
        self._host_key = asyncssh.generate_private_key("ssh-ed25519")
        self.process: subprocess.Popen[bytes] | None = None
        self._image = images.find("tiny")

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    async def __aenter__(self) -> Self:
        try:
            await asyncio.to_thread(self._start)
            async with asyncio.timeout(patience(BOOT_WITHIN)):
                await self._ready()
        except BaseException:
            self.kill()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    async def run(self, command: str) -> str:
        """What the command says, and its exit status if that is not 0."""
        known = asyncssh.import_known_hosts(f"* {self._host_key.export_public_key().decode()}")
        async with (
            asyncio.timeout(patience(BOOT_WITHIN)),
            asyncssh.connect(
                self._attached.host,
                self._attached.port,
                username="hostler",
                client_keys=[self.key],
                known_hosts=known,
                config=None,
                agent_path=None,
            ) as connection,
        ):
            done = await connection.run(command)
        return str(done.stdout).strip() + (f" [{done.exit_status}]" if done.exit_status else "")

    def _start(self) -> None:
        image, files = self._image
        for name in ("kernel", "initrd"):
            os.link(files / name, self.folder / name) if _same_device(files, self.folder) else shutil.copy(
                files / name, self.folder
            )
        shutil.copy(files / "disk", self.folder / "disk.qcow2")
        seed = {
            "hostname": "bare",
            "authorized_keys": self.key.export_public_key().decode(),
            "host_key": self._host_key.export_private_key().decode(),
            "user": "hostler",
            "mac": self._mac,
            "seed": secrets.token_hex(32),
            "instance": "bare",
            **{name: getattr(self._attached, name) for name in ("ip4", "gw4", "dns", "ip6", "gw6")},
        }
        (self.folder / "fw").mkdir()
        words = []
        for name, text in seed.items():
            if text:
                (self.folder / "fw" / name).write_text(text)
                words += ["-fw_cfg", f"name=opt/hostler/{name},file=fw/{name}"]
        own_files(self._rights, self.folder)
        argv = [
            *("qemu-system-x86_64", "-M", "q35", "-accel", "tcg", "-cpu", "max", "-m", "128", "-smp", "1"),
            *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-sandbox", SANDBOX),
            *("-kernel", "kernel", "-initrd", "initrd", "-append", image.append, "-serial", "null"),
            *("-chardev", "socket,id=guest,path=guest.sock,server=on,wait=on", "-serial", "chardev:guest"),
            *("-netdev", self._attached.netdev, "-device", f"virtio-net-pci,netdev=n0,mac={self._mac},romfile="),
            *("-blockdev", "driver=qcow2,node-name=disk,file.driver=file,file.filename=disk.qcow2"),
            *("-device", "virtio-blk-pci,drive=disk", *words),
        ]
        with (self.folder / "qemu.log").open("wb") as log:
            self.process = subprocess.Popen(
                self._rights.wrap(argv),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=self._attached.descriptors,
            )

    async def _ready(self) -> None:
        assert self.process is not None
        folder = os.open(self.folder, os.O_PATH)  # the path of a test's folder may be longer than a socket's can be
        try:
            while True:
                # The socket exists a moment before QEMU listens on it.
                with suppress(FileNotFoundError, ConnectionRefusedError):
                    reader, writer = await asyncio.open_unix_connection(f"/proc/self/fd/{folder}/guest.sock")
                    break
                if self.process.poll() is not None:
                    raise AssertionError(f"QEMU ended: {(self.folder / 'qemu.log').read_text()}")
                await asyncio.sleep(0.02)
        finally:
            os.close(folder)
        try:
            while not (line := await reader.readline()).startswith(b"hostler ready"):
                assert line, "the guest went off"
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


def _same_device(one: Path, other: Path) -> bool:
    return one.stat().st_dev == other.stat().st_dev


async def until(ask: object, within: float = 30.0) -> bool:
    """Whether `ask()` becomes true in time."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        if ask():  # type: ignore[operator]
            return True
        await asyncio.sleep(0.05)
    return False

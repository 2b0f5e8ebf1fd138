"""The bare side: the command line of a machine, run by QEMU without Hostler.

The command line and the files are those of a machine that the control plane created, so that it is the same guest with
the same devices. Only the option to wait before the first instruction is left out, and each guest has its own port.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import asyncssh
import msgspec

from bench.machines_plane import WITHIN, Way, working_in
from hostler.errors import NotFound, Unavailable
from hostler.model.vm import Power

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.machines_plane import RealPlane

LINKED = ("base", "kernel", "initrd")
DISK, SEED = "disk.qcow2", "fw"
READY = b"hostler ready"
GLANCE = 0.002
_FORWARD = re.compile(r"(hostfwd=tcp:127\.0\.0\.1:)\d+(-:22)")


class Recipe(msgspec.Struct, frozen=True):
    """How a machine is run."""

    argv: tuple[str, ...]
    folder: Path
    """Its files, before its guest has written to them."""

    @property
    def accelerator(self) -> str:
        return self.argv[self.argv.index("-accel") + 1]

    def command(self, port: int) -> list[str]:
        """Return the command to run in a copy of the folder."""
        return [_FORWARD.sub(rf"\g<1>{port}\g<2>", word) for word in self.argv if word != "-S"]

    def lay(self, folder: Path) -> None:
        """Copy the files."""
        _copy(self.folder, folder)
        shutil.copytree(self.folder / SEED, folder / SEED)


def _copy(folder: Path, into: Path) -> None:
    into.mkdir(mode=0o700)
    for name in LINKED:
        if (folder / name).exists():
            (into / name).hardlink_to(folder / name)
    shutil.copyfile(folder / DISK, into / DISK)


async def learn_recipe(plane: RealPlane, into: Path, *, memory_mib: int) -> Recipe:
    """Return the recipe of a machine of that size, as the control plane runs it; the machine is deleted afterwards."""
    view, _ = await plane.create_machine(power=Power.OFF, memory_mib=memory_mib)
    made = plane.folder_of(view.id)
    await asyncio.to_thread(_copy, made, into)  # before it starts, so that its disk is unwritten
    await plane.start_machine(view.id)
    await asyncio.to_thread(shutil.copytree, made / SEED, into / SEED)
    argv = command_line(made)
    await plane.gone(view.id)
    return Recipe(tuple(argv), into)


def command_line(folder: Path) -> list[str]:
    """Return the command line of the QEMU that runs in that folder. NotFound: there is none."""
    for pid in working_in(folder):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]
            if words and Path(words[0]).name.startswith("qemu-system-"):
                return words
    raise NotFound(f"{folder}: no QEMU runs in it")


async def boot(recipe: Recipe, folders: Sequence[Path]) -> list[Way]:
    """Run one guest per folder at the same time, until each accepts logins; then end them."""
    for folder in folders:
        await asyncio.to_thread(recipe.lay, folder)
    ports = _free_ports(len(folders))
    guests: list[_Guest] = []
    try:
        at = time.time()
        guests += [_Guest(recipe.command(port), folder, port) for folder, port in zip(folders, ports, strict=True)]
        async with asyncio.timeout(WITHIN):
            return list(await asyncio.gather(*(guest.way(at) for guest in guests)))
    except TimeoutError:
        raise Unavailable(f"bare QEMU: not available within {WITHIN:g} s; try again on a less busy host") from None
    finally:
        for guest in guests:
            guest.end()
        for folder in folders:
            await asyncio.to_thread(shutil.rmtree, folder)


class _Guest:
    def __init__(self, argv: list[str], folder: Path, port: int) -> None:
        self._folder, self._port = folder, port
        with (folder / "qemu.log").open("wb") as log:
            self._process = subprocess.Popen(
                argv, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    async def way(self, at: float) -> Way:
        qmp = await self._connect("qmp.sock")
        guest = await self._connect("guest.sock")
        try:
            await qmp[0].readline()  # its greeting: the work before the first instruction is done
            began = time.time()
            while not (line := await guest[0].readline()).startswith(READY):
                if not line:
                    raise self._end_error()
            ready = time.time()
            await asyncssh.get_server_host_key(
                "127.0.0.1", self._port, server_host_key_algs=["ssh-ed25519"], config=None
            )
            return Way(began - at, ready - at, time.time() - at)
        finally:
            for _, writer in (qmp, guest):
                writer.close()

    async def _connect(self, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        held = os.open(self._folder, os.O_PATH)  # the path may be longer than a socket address allows
        try:
            while True:
                with suppress(FileNotFoundError, ConnectionRefusedError):
                    return await asyncio.open_unix_connection(f"/proc/self/fd/{held}/{name}")
                if self._process.poll() is not None:
                    raise self._end_error()
                await asyncio.sleep(GLANCE)
        finally:
            os.close(held)

    def _end_error(self) -> Unavailable:
        said = " ".join((self._folder / "qemu.log").read_text(errors="replace").split())[-300:]
        return Unavailable(f"bare QEMU: ended before its guest was up: {said or 'no output'}")

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def _free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()

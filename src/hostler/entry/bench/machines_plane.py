"""A control plane with real machines: `hostler up` as a process, asked over its API as anybody would."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
import time
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hostler.client import Client
from hostler.entry.bench.plane_process import PATIENCE, started
from hostler.entry.first_image import TINY
from hostler.errors import NotFound
from hostler.model.api import VmCreate
from hostler.model.vm import Power, Step, VmSpec
from hostler.settings import load
from hostler.wiring import open_images

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from hostler.entry.bench.plane_process import Process
    from hostler.model.api import VmView
    from hostler.settings import Settings

ORG = PROJECT = "default"
WITHIN = 600.0
"""Seconds for what takes some: a guest that is emulated, beside nine others."""
MEMORY_MIB = 128
CPU_OVERCOMMIT = "100"
"""Many of the machines rest."""


class Way(msgspec.Struct, frozen=True):
    """How one machine became available; seconds since it was asked for. NaN: that step was not seen."""

    began: float
    """Its guest was let go."""
    ready: float
    """Its guest said that it is up."""
    available: float
    """Who asked for it knows that it can be logged into."""

    @property
    def outside(self) -> float:
        """What is not the guest's boot: before its first instruction, and after its word."""
        return self.began + self.available - self.ready


class RealPlane:
    """While it runs."""

    def __init__(self, settings: Settings, process: Process, client: Client) -> None:
        self.settings, self.process, self._client = settings, process, client
        self._names = (f"bench-{number}" for number in itertools.count(1))

    async def made(
        self, *, power: Power = Power.ON, memory_mib: int = MEMORY_MIB, image: str = TINY
    ) -> tuple[VmView, Way | None]:
        """A new machine; if it is to run, once it is available, and how that came."""
        spec = VmSpec(cpus=1, memory_mib=memory_mib, image=image)
        at = time.time()
        view = await self._client.vms.create(
            ORG, PROJECT, VmCreate(name=next(self._names), spec=spec, power=power)
        )  # fmt: skip
        return await self._there(view.id, at) if power is Power.ON else (await self._settled(view.id), None)

    async def started(self, vm: str) -> tuple[VmView, Way]:
        """One that was off, once it is available."""
        at = time.time()
        await self._client.vms.start(ORG, PROJECT, vm)
        return await self._there(vm, at)

    async def gone(self, *vms: str) -> None:
        """Machines that are not needed any more."""

        async def away(vm: str) -> None:
            with suppress(NotFound):
                await self._client.vms.delete(ORG, PROJECT, vm)
                await self._client.vms.wait(ORG, PROJECT, vm, gone=True, within=WITHIN)

        await asyncio.gather(*(away(vm) for vm in vms))

    async def all_gone(self) -> None:
        """None is left."""
        await self.gone(*[view.id async for view in self._client.vms.list(ORG, PROJECT)])

    def folder_of(self, vm: str) -> Path:
        """Where the node has that machine's files. NotFound: nowhere."""
        for found in (self.settings.data / "machines").glob(f"*/vms/{vm}"):
            return found
        raise NotFound(f"machine {vm}: it has no folder below {self.settings.data}")

    async def _settled(self, vm: str) -> VmView:
        view = await self._client.vms.wait(ORG, PROJECT, vm, settled=True, within=WITHIN)
        assert view is not None  # noqa: S101 - only who waits for its end is told so
        return view

    async def _there(self, vm: str, at: float) -> tuple[VmView, Way]:
        seen: dict[Step, float] = {}

        def look(view: VmView) -> None:
            if view.readiness is not None:
                seen.setdefault(view.readiness.step, view.readiness.since)

        view = await self._client.vms.wait(ORG, PROJECT, vm, available=True, within=WITHIN, on_change=look)
        now = time.time()
        assert view is not None  # noqa: S101 - as above
        nan = float("nan")
        return view, Way(seen.get(Step.BOOTING, nan) - at, seen.get(Step.NETWORK, nan) - at, now - at)


@asynccontextmanager
async def real_plane(folder: Path, images: Path | None, tell: Callable[[str], None]) -> AsyncIterator[RealPlane]:
    """One in that folder, with the tiny guest of `images`, or one of its own; it leaves no machine."""
    data = folder / "data"
    data.mkdir(mode=0o700)
    await have_image(data / "images", images, tell)
    environ = {"HOSTLER_CONFIG": os.devnull, "HOSTLER_DATA": str(data), "HOSTLER_CPU_OVERCOMMIT": CPU_OVERCOMMIT}
    settings = load({"data": str(data), "machines": "qemu"}, {**os.environ, **environ})
    arguments = ["hostler", "up", "--machines", "qemu", "--listen", "127.0.0.1:0", "--log-level", "warning"]
    async with AsyncExitStack() as stack:
        stack.callback(kill_below, folder)  # what is left if something went wrong
        process = await stack.enter_async_context(started(arguments, environ))
        url = await process.says("ready ", within=5 * PATIENCE)
        token = (data / "admin.token").read_text(encoding="ascii").strip()
        client = await stack.enter_async_context(Client(url, token))
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, signal.raise_signal, signal.SIGINT)  # which is seen to
        stack.callback(loop.remove_signal_handler, signal.SIGTERM)
        plane = RealPlane(settings, process, client)
        yield plane
        if not process.reading.done():
            await plane.all_gone()


async def have_image(folder: Path, images: Path | None, tell: Callable[[str], None]) -> None:
    """The tiny guest in a folder of images: of `images`, or a new one."""
    if images is not None:
        named = {item.name for item in await open_images(images).list()}
        if TINY not in named:
            raise NotFound(f"images in {images}: there is no {TINY!r}; build it there: hostler image build tiny")
        ignored = shutil.ignore_patterns("cache", "scratch", "parts", "warm")
        await asyncio.to_thread(shutil.copytree, images, folder, ignore=ignored)
    else:
        tell("building the tiny guest")
        await open_images(folder).build(TINY, TINY, progress=lambda what, *_: tell(f"tiny guest: {what}"))


def working_in(folder: Path) -> list[int]:
    """Processes whose working directory is that folder, or below it."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):  # it ended, or is none of ours
            if Path(os.readlink(f"/proc/{name}/cwd")).is_relative_to(folder):
                found.append(int(name))
    return found


def kill_below(folder: Path) -> None:
    """End what still works in a folder of ours."""
    for pid in working_in(folder):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

"""A control plane with real machines: `hostler up` as a process, used over its API."""

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

from bench.plane_process import PATIENCE, run_process
from hostler.client import Client
from hostler.errors import NotFound
from hostler.model.vm import Power, Step, VmSpec
from hostler.model.vm_api import VmCreate
from hostler.settings import load
from hostler.wiring import open_images

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from bench.plane_process import Process
    from hostler.model.vm_api import VmView
    from hostler.settings import Settings

ORG = PROJECT = "default"
WITHIN = 600.0
"""Time limit in seconds for slow steps, such as an emulated guest next to nine others."""
MEMORY_MIB = 128
TINY = "tiny"
"""The image of all machines of the benchmarks."""
CPU_OVERCOMMIT = "100"
"""Many of the machines are idle."""


class Way(msgspec.Struct, frozen=True):
    """How one machine became available, in seconds since the request. NaN: that step was not observed."""

    began: float
    """The guest executed its first instruction."""
    ready: float
    """The guest reported that it is up."""
    available: float
    """The client knows that the machine accepts logins."""

    @property
    def outside(self) -> float:
        """Return the time outside the guest's boot: before its first instruction, and after it reported ready."""
        return self.began + self.available - self.ready


class RealPlane:
    """A running control plane."""

    def __init__(self, settings: Settings, process: Process, client: Client) -> None:
        self.settings, self.process, self._client = settings, process, client
        self._names = (f"bench-{number}" for number in itertools.count(1))

    async def create_machine(
        self, *, power: Power = Power.ON, memory_mib: int = MEMORY_MIB, image: str = TINY
    ) -> tuple[VmView, Way | None]:
        """Create a machine. If it is to run, wait until it is available, and return how that went."""
        spec = VmSpec(cpus=1, memory_mib=memory_mib, image=image)
        at = time.time()
        view = await self._client.vms.create(
            ORG, PROJECT, VmCreate(name=next(self._names), spec=spec, power=power)
        )  # fmt: skip
        return await self._there(view.id, at) if power is Power.ON else (await self._wait_until_settled(view.id), None)

    async def start_machine(self, vm: str) -> tuple[VmView, Way]:
        """Start a machine that is off, and wait until it is available."""
        at = time.time()
        await self._client.vms.start(ORG, PROJECT, vm)
        return await self._there(vm, at)

    async def gone(self, *vms: str) -> None:
        """Delete machines, and wait until they are gone."""

        async def away(vm: str) -> None:
            with suppress(NotFound):
                await self._client.vms.delete(ORG, PROJECT, vm)
                await self._client.vms.wait(ORG, PROJECT, vm, gone=True, within=WITHIN)

        await asyncio.gather(*(away(vm) for vm in vms))

    async def all_gone(self) -> None:
        """Delete all machines."""
        await self.gone(*[view.id async for view in self._client.vms.list(ORG, PROJECT)])

    def folder_of(self, vm: str) -> Path:
        """Return the folder of that machine's files. NotFound: there is none."""
        for found in (self.settings.data / "machines").glob(f"*/vms/{vm}"):
            return found
        raise NotFound(f"machine {vm}: no folder below {self.settings.data}")

    async def _wait_until_settled(self, vm: str) -> VmView:
        view = await self._client.vms.wait(ORG, PROJECT, vm, settled=True, within=WITHIN)
        assert view is not None  # noqa: S101 - None only if the wait is for its end
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
    """Run a control plane in that folder, with the tiny guest of `images` or a new one; it leaves no machine behind."""
    data = folder / "data"
    data.mkdir(mode=0o700)
    await have_image(data / "images", images, tell)
    environ = {"HOSTLER_CONFIG": os.devnull, "HOSTLER_DATA": str(data), "HOSTLER_CPU_OVERCOMMIT": CPU_OVERCOMMIT}
    settings = load({"data": str(data), "machines": "qemu"}, {**os.environ, **environ})
    arguments = ["hostler", "up", "--machines", "qemu", "--listen", "127.0.0.1:0", "--log-level", "warning"]
    async with AsyncExitStack() as stack:
        stack.callback(kill_below, folder)  # processes left over after an error
        process = await stack.enter_async_context(run_process(arguments, environ))
        url = await process.says("ready ", within=5 * PATIENCE)
        token = (data / "admin.token").read_text(encoding="ascii").strip()
        client = await stack.enter_async_context(Client(url, token))
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, signal.raise_signal, signal.SIGINT)  # SIGINT ends the run cleanly
        stack.callback(loop.remove_signal_handler, signal.SIGTERM)
        plane = RealPlane(settings, process, client)
        yield plane
        if not process.reading.done():
            await plane.all_gone()


async def have_image(folder: Path, images: Path | None, tell: Callable[[str], None]) -> None:
    """Provide the tiny guest in a folder of images: copied from `images`, or built."""
    if images is not None:
        named = {item.name for item in await open_images(images).list()}
        if TINY not in named:
            raise NotFound(f"images in {images}: no image {TINY!r}; build it there: hostler image build tiny")
        ignored = shutil.ignore_patterns("cache", "scratch", "parts", "warm")
        await asyncio.to_thread(shutil.copytree, images, folder, ignore=ignored)
    else:
        tell("building the tiny guest")
        await open_images(folder).build(TINY, TINY, progress=lambda what, *_: tell(f"tiny guest: {what}"))


def working_in(folder: Path) -> list[int]:
    """Return processes whose working directory is that folder or below it."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):  # it has ended, or belongs to another user
            if Path(os.readlink(f"/proc/{name}/cwd")).is_relative_to(folder):
                found.append(int(name))
    return found


def kill_below(folder: Path) -> None:
    """Kill the processes that still run in a folder of the benchmark."""
    for pid in working_in(folder):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

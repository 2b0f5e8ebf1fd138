"""Machines that are handed from one place to another: all of it goes, or it stays; never does it run twice."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from apart import run_apart
from dose import rotates
from guest_login import node, plan, run
from harness.pace import patience
from up_process import HostlerProcess
from warm_image import OPTIONS, warm_images

from hostler.drivers.machines.qemu import state
from hostler.drivers.machines.qemu.driver import QemuMachines
from hostler.drivers.machines.qemu.images.folder import ImageFolder
from hostler.drivers.machines.qemu.migration import outgoing
from hostler.errors import HostlerError, NotFound, Refused, Unavailable
from hostler.model.vm import MachineState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from hostler.ports.machines import Channel, ChannelKind

pytestmark = [pytest.mark.timeout(300), rotates(2, "src/hostler/drivers/machines/qemu")]
VM = "traveller"
BOOT = "cat /proc/sys/kernel/random/boot_id"
LOAD = "(while :; do dd if=/dev/urandom of=/tmp/load bs=64k count=128; sync; done) > /dev/null 2>&1 & "


@pytest.fixture(scope="module")
def images() -> ImageFolder:
    return warm_images()


class Steps:
    """Does something when a step of a driver is reached, once."""

    def __init__(self) -> None:
        self.at = ""
        self.does: Callable[[], None] = lambda: None

    async def __call__(self, name: str) -> None:
        if name == self.at:
            self.at = ""
            self.does()


class Pair:
    """Two places on one host."""

    def __init__(self, folder: Path, images: ImageFolder) -> None:
        self.folder, self.images = folder, images
        self.steps = Steps()
        self.names = ["here", "there"]
        self.here, self.there = map(self._driver, self.names)

    def _driver(self, name: str) -> QemuMachines:
        return QemuMachines(self.folder / name, images=self.images, options=OPTIONS, step=self.steps)

    def to_there(self, door: ChannelKind) -> Channel:
        return self.there.channel(VM, door)

    async def send(self, number: int, **options: bool) -> MachineState:
        return (await self.here.send(VM, number, self.to_there, **options)).state

    async def reopen(self) -> None:
        """As by agents that were stopped and started."""
        await self.here.aclose()
        await self.there.aclose()
        self.here, self.there = [await self._driver(name).__aenter__() for name in self.names]

    def turn(self) -> None:
        """The next one goes the other way."""
        self.here, self.there = self.there, self.here
        self.names.reverse()

    async def state(self) -> tuple[MachineState | None, MachineState | None]:
        found = [await machines.inspect(VM) for machines in (self.here, self.there)]
        one, other = (None if machine is None else machine.state for machine in found)
        return one, other


@asynccontextmanager
async def pair(folder: Path, images: ImageFolder) -> AsyncIterator[Pair]:
    both = Pair(folder, images)
    await both.here.__aenter__()
    await both.there.__aenter__()
    try:
        await both.here.create(plan(VM))
        yield both
    finally:
        for machines in (both.here, both.there):
            await machines.delete(VM)
            await machines.aclose()


def pid_of(folder: Path) -> int:
    """Of the machine's process."""
    run = state.read(folder / "vms" / VM).run
    assert run is not None
    return run.pid


def instance_in(folder: Path) -> str:
    """What the machine's guest is told about whose life it leads."""
    return (folder / "vms" / VM / "fw" / "instance").read_text(encoding="ascii")


async def test_a_running_machine_goes_with_its_memory_disk_and_name(images: ImageFolder, tmp_path: Path) -> None:
    """Though it writes all the while."""
    async with pair(tmp_path, images) as both:
        await both.here.start(VM)
        boot = await run(both.here, VM, f"echo kept > file; sudo date -s @1000 > /dev/null; {LOAD} {BOOT}")
        keys = (await both.here.inspect(VM)).access.host_keys  # type: ignore[union-attr]

        assert (await both.there.receive(plan(VM), 1)).state is MachineState.ARRIVING
        with pytest.raises(Refused, match="its migration to this node is incomplete"):
            await both.there.start(VM)
        assert await both.send(1) is MachineState.DEPARTED
        assert await both.state() == (MachineState.DEPARTED, MachineState.ARRIVING)
        assert (await both.there.receive(plan(VM), 1)).moved == 1, "what is whole is not thrown away"
        assert await both.send(1) is MachineState.DEPARTED, "said again, it is done"

        await both.reopen()
        assert await both.state() == (MachineState.DEPARTED, MachineState.ARRIVING)
        await both.there.start(VM)
        await both.here.delete(VM)
        assert await run(both.there, VM, f"{BOOT}; cat file; hostname") == f"{boot}\nkept\n{VM}"
        arrived = await both.there.inspect(VM)
        assert arrived is not None
        assert arrived.access is not None
        assert arrived.access.host_keys == keys
        assert arrived.moved == 1
        assert abs(int(await run(both.there, VM, "date +%s")) - time.time()) < 10, "it was told what time it is"

        # It leaves again, and its agent decides otherwise: it goes on where it was, though its agent was another one.
        both.turn()
        await both.there.receive(plan(VM), 2)
        assert await both.send(2) is MachineState.DEPARTED
        await both.reopen()
        await both.there.delete(VM)
        await both.here.start(VM)
        assert await run(both.here, VM, f"{BOOT}; echo more >> file; sync; cat file") == f"{boot}\nkept\nmore"
        with pytest.raises(Refused, match="is over"):
            await both.send(2)


async def test_a_machine_that_is_off_goes_with_its_disk_and_its_snapshots_stay(
    images: ImageFolder, tmp_path: Path
) -> None:
    async with pair(tmp_path, images) as both:
        await both.here.start(VM)
        await run(both.here, VM, "echo kept > file; sync")
        with pytest.raises(Refused, match="it is running"):
            await both.send(1, live=False)
        await both.here.stop(VM, grace=20)
        instance = instance_in(tmp_path / "here")
        await both.here.snapshot(VM, "before")
        await both.there.receive(plan(VM), 1)
        assert await both.send(1, live=False) is MachineState.DEPARTED
        arrived = await both.there.inspect(VM)
        assert arrived is not None
        assert arrived.state is MachineState.ARRIVING
        assert arrived.snapshots == ()
        await both.reopen()
        await both.here.delete(VM)
        await both.there.start(VM)
        assert await run(both.there, VM, "cat file") == "kept"
        assert instance_in(tmp_path / "there") == instance, "its guest would take itself for a copy"


async def test_what_fails_on_the_way_leaves_it_running_where_it_was(images: ImageFolder, tmp_path: Path) -> None:
    """At every step, by an error there, by the death of the other QEMU, and by being cancelled."""
    async with pair(tmp_path, images) as both:
        await both.here.start(VM)
        boot = await run(both.here, VM, f"echo kept > file; sync; {BOOT}")

        def fail() -> None:
            raise Unavailable("as the test wants it")

        def kill() -> None:
            os.kill(pid_of(tmp_path / "there"), signal.SIGKILL)

        ends = [
            ("receive.opened:before", fail), ("send.open:after", kill), ("send.disk:after", fail),
            ("send.disk:after", kill), ("send.held:after", kill), ("send.held:after", fail),
            ("send.memory:after", kill), ("send.memory:after", fail),
            ("send.switched:after", kill), ("receive.sealed:before", fail), ("send.done:before", fail),
        ]  # fmt: skip
        for number, (at, does) in enumerate(ends, 1):
            await both.there.receive(plan(VM), number)
            both.steps.at, both.steps.does = at, does
            with pytest.raises(HostlerError):
                await both.send(number)
            assert both.steps.at == "", f"{at} was never reached"
            assert (await both.state())[0] is MachineState.RUNNING
            if at != "send.done:before":
                with pytest.raises(Refused, match="its migration to this node is incomplete"):
                    await both.there.start(VM)
            assert await run(both.here, VM, BOOT) == boot, f"after {at}"

        await both.there.receive(plan(VM), 50)
        reached = asyncio.Event()
        both.steps.at, both.steps.does = "send.memory:after", reached.set
        sending = asyncio.ensure_future(both.send(50))
        await reached.wait()
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        assert await run(both.here, VM, BOOT) == boot

        # Its own process dies half way: it is off at once, though the task that waits for its end has not run, and
        # starts from its disk.
        def kill_unseen() -> None:
            both.here._machines[VM].later("watch", None)
            os.kill(pid_of(tmp_path / "here"), signal.SIGKILL)

        await both.there.receive(plan(VM), 51)
        both.steps.at, both.steps.does = "send.memory:after", kill_unseen
        with pytest.raises(HostlerError):
            await both.send(51)
        assert (await both.state())[0] is MachineState.FAILED
        await both.here.start(VM)
        assert await run(both.here, VM, "cat file") == "kept"

        # The other one dies when it has all of it: it starts from the disk that it was sent.
        await both.there.receive(plan(VM), 52)
        await run(both.here, VM, "echo more >> file")
        assert await both.send(52) is MachineState.DEPARTED
        kill()
        await both.here.delete(VM)
        async with asyncio.timeout(patience(10)):
            while both.there._machines[VM].alive:
                await asyncio.sleep(0.01)
        await both.there.start(VM)
        assert (await run(both.there, VM, "cat file")).startswith("kept")


async def test_a_machine_that_cannot_come_is_refused_and_runs_on(images: ImageFolder, tmp_path: Path) -> None:
    async with pair(tmp_path, images) as both:
        with pytest.raises(Refused, match="it already exists here"):
            await both.here.receive(plan(VM), 1)
        spec = msgspec.structs.replace(plan(VM).spec, image="no-such-image")
        with pytest.raises(Refused, match="no-such-image"):
            await both.there.receive(msgspec.structs.replace(plan(VM), spec=spec), 1)
        await both.here.start(VM)
        with pytest.raises(HostlerError):
            await both.send(1)
        await both.there.receive(plan(VM), 3)
        with pytest.raises(Refused, match="is expected"):
            await both.send(2)
        network = both.there._site.network  # type: ignore[union-attr]
        network.__class__ = type("Elsewhere", (type(network),), {"kind": "bridge"})
        with pytest.raises(Refused, match="move it while it is off"):
            await both.send(3)
        assert (await both.state())[0] is MachineState.RUNNING
        await run(both.here, VM, "true")


STEPS = [
    "send.open:after", "send.disk:after", "send.held:after", "send.memory:after", "send.switched:after",
    "receive.sealed:after",
]  # fmt: skip


async def test_agents_that_are_killed_on_the_way_leave_it_running_where_it_was(
    images: ImageFolder, tmp_path: Path
) -> None:
    try:
        await kill_agents_at_every_step(images, tmp_path)
    finally:
        for name in ("here", "there"):
            async with node(tmp_path / name, images):
                pass


async def kill_agents_at_every_step(images: ImageFolder, tmp_path: Path) -> None:
    both = Pair(tmp_path, images)
    async with both.here as here:
        await here.create(plan(VM))
        await here.start(VM)
        boot = await run(here, VM, f"echo kept > file; sync; {BOOT}")
    for number, step in enumerate([*STEPS, "send.done:after"], 1):
        assert await agents(tmp_path, number, step) == -signal.SIGKILL
        both = Pair(tmp_path, images)
        async with both.here, both.there:
            if step == "send.done:after":
                assert await both.state() == (MachineState.DEPARTED, MachineState.ARRIVING)
                await both.there.start(VM)
                await both.here.delete(VM)
                assert await run(both.there, VM, f"cat file; {BOOT}") == f"kept\n{boot}"
                await both.there.delete(VM)
            else:
                assert (await both.state())[0] is MachineState.RUNNING
                assert await run(both.here, VM, BOOT) == boot, f"after {step}"
                if step != "receive.sealed:after":
                    with pytest.raises(Refused, match="its migration to this node is incomplete"):
                        await both.there.start(VM)
                await both.there.delete(VM)


async def agents(folder: Path, number: int, step: str) -> int:
    """How a process ends that has both of them, and is killed at that step."""
    script = Path(__file__).with_name("moving_agents.py")
    process = HostlerProcess("moving", folder, VM, number, step, folder=folder, script=script)
    try:
        return await process.ends(patience(15))
    finally:
        process.kill()


async def test_a_session_on_a_bridge_goes_on_while_its_machine_moves(images: ImageFolder, tmp_path: Path) -> None:
    """In namespaces of its own, which end with the process."""
    del images
    found = await run_apart(Path(__file__).parent / "moving_session.py", tmp_path, within=patience(30))
    assert found["same boot"] is True
    assert found["moves"] == 2
    assert found["lines lost"] == 0
    assert found["lines"] > 20


async def bare(images: ImageFolder, user: str, sector: bytes = b"") -> str:
    """An image `tiny`, another one for each user: machines run their firmware, and its first sector. Its digest."""
    async with images.scratch() as scratch:
        (scratch.path / "raw").write_bytes(sector.ljust(2**20, b"\0"))
        subprocess.run(["qemu-img", "convert", "-O", "qcow2", "raw", "disk"], cwd=scratch.path, check=True)
        (scratch.path / "raw").unlink()
        fields = {"disk_bytes": 2**20, "user": user, "seeding": "none", "probe": "none", "source": "a test"}
        return (await images.register("tiny", scratch, fields | {"memory_mib": 64})).image.digest


async def test_a_machine_whose_image_was_rebuilt_starts_and_moves(tmp_path: Path) -> None:
    images = ImageFolder(tmp_path / "images", machines=tmp_path)
    old = await bare(images, "old")
    async with pair(tmp_path, images) as both:
        assert await bare(images, "new") != old
        await both.there.receive(plan(VM), 1)
        assert await both.send(1, live=False) is MachineState.DEPARTED
        await both.here.delete(VM)
        both.turn()
        await both.here.stop(VM, grace=0)
        await both.here.start(VM)
        await both.there.receive(plan(VM), 2)
        assert await both.send(2) is MachineState.DEPARTED
        await both.there.start(VM)
        await both.here.delete(VM)
        assert await both.state() == (None, MachineState.RUNNING)
        arrived = tmp_path / both.names[1] / "vms" / VM
        assert state.read(arrived).image.digest == old
        assert (arrived / "base").samefile(images.holding(old)[1] / "disk")
        await both.there.delete(VM)
        images.sweep()  # nobody stands on it any more
        with pytest.raises(NotFound):
            images.holding(old)


WRITER = bytes.fromhex("fa b80010 8ed8 66ff060000 050001 3d0050 72f1 ebec").ljust(510, b"\0") + b"\x55\xaa"
"""Counts in each of the 64 pages from 64 KiB on, over and over, and does nothing else."""


async def memory_of(machines: QemuMachines, at: int, size: int) -> bytes:
    """What the guest has there now."""
    machine = machines._machines[VM]
    await machine.execute("pmemsave", {"val": at, "size": size, "filename": "memory"})
    return (machine.folder.path / "memory").read_bytes()


async def test_all_that_an_emulated_guest_wrote_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if its memory has to be sent more than once, as one that writes more than the way takes."""
    monkeypatch.setitem(outgoing.PARAMETERS, "max-bandwidth", 2**19)
    images = ImageFolder(tmp_path / "images", machines=tmp_path)
    await bare(images, "writer", WRITER)
    async with pair(tmp_path, images) as both:
        await both.here.start(VM)
        async with asyncio.timeout(patience(10)):
            while not any(await memory_of(both.here, 0x4F000, 4)):
                await asyncio.sleep(0.02)
        await both.there.receive(plan(VM), 1)
        assert await both.send(1) is MachineState.DEPARTED
        sent, arrived = [await memory_of(machines, 0, 2**20) for machines in (both.here, both.there)]
        old = [at for at in range(0, 2**20, 4096) if sent[at : at + 4096] != arrived[at : at + 4096]]
        assert old == [], f"{len(old)} pages are not as they were when it stopped"
        await both.there.start(VM)
        async with asyncio.timeout(patience(10)):
            while await memory_of(both.there, 0x10000, 4) == arrived[0x10000:0x10004]:
                await asyncio.sleep(0.02)

"""A machine as its driver knows it. Plain programs stand for QEMU."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from qemu_opened import Opened, empty_images, plan
from qemu_scene import PATIENCE, SLEEP, eventually

from hostler.drivers.machines.qemu import driver as driver_module
from hostler.drivers.machines.qemu import machine, node_context, pid_lookup, process, state
from hostler.drivers.machines.qemu.folder import LOG, LOG_BYTES, LOG_KEPT_BYTES, MachineFolder
from hostler.drivers.machines.qemu.network import UserNetwork
from hostler.drivers.machines.qemu.privileges import ControlGroups
from hostler.drivers.machines.qemu.state import NUMBER
from hostler.drivers.machines.readiness import Ascent
from hostler.errors import Unavailable
from hostler.model.vm import MachineState, Readiness, Step

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hostler.drivers.machines.qemu import QemuMachines
    from hostler.drivers.machines.qemu.pid_lookup import Run

FREE = """
import fcntl, os, time
while not os.path.exists("go"):
    time.sleep(0.002)
for name in os.listdir("/proc/self/fd"):
    if os.path.exists(f"/proc/self/fd/{name}") and os.path.samefile(f"/proc/self/fd/{name}", "alive"):
        fcntl.flock(int(name), fcntl.LOCK_UN)
print("free", flush=True)
os.execvp("sleep", ["sleep", "600"])
"""
"""Lets go of the lock that says that it lives, once it shall."""


@pytest.fixture
async def opened(tmp_path: Path) -> Opened:
    return Opened(tmp_path / "node", await empty_images(tmp_path / "images"))


@asynccontextmanager
async def spawned(folder: Path, *argv: str) -> AsyncIterator[Run]:
    """A process of that machine, of which its driver does not know."""
    held = MachineFolder(folder)
    run = await process.spawn(held, argv or SLEEP)
    try:
        yield run
    finally:
        for found in (pid_lookup.process_of_run(held, run), *pid_lookup.holders(held)):
            if found is not None:
                with found:
                    found.kill()
        await process._reap(held)
        held.close()


def is_there(run: Run) -> bool:
    try:
        return pid_lookup.ProcessInfo.at(run.pid).state not in "ZX"
    except ProcessLookupError:
        return False


def of(machines: QemuMachines, vm: str = "a") -> machine.QemuMachine:
    return machines._machines[vm]


# A process that nobody knows of


async def test_a_process_of_which_the_driver_does_not_know_is_stopped_all_the_same(opened: Opened) -> None:
    async with opened() as machines:
        await machines.create(plan())
        async with spawned(opened.of("a")) as run:
            assert (await machines.stop("a", grace=0)).state is MachineState.STOPPED
            assert not is_there(run)


async def test_a_process_of_which_the_driver_does_not_know_is_not_restored_under_or_started_twice(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "ATTACH_WITHIN", 0.05)
    monkeypatch.setattr(machine.QemuMachine.attach, "__kwdefaults__", {"within": 0.05})
    async with opened() as machines:
        await machines.create(plan())
        await machines.snapshot("a", "s")
        async with spawned(opened.of("a")) as run:
            with pytest.raises(Unavailable, match="its process hangs"):  # not Conflict, for ever
                await machines.start("a")
            assert of(machines).state is MachineState.STARTING
            assert (await machines.restore("a", "s", 1)).state is MachineState.STOPPED
            assert not is_there(run)


# One that a guest has taken over


async def test_one_that_let_go_of_its_lock_while_nobody_looked_is_ended_at_once(opened: Opened) -> None:
    async with opened() as machines:
        await machines.create(plan())
    folder = opened.of("a")
    async with spawned(folder, sys.executable, "-I", "-S", "-c", FREE) as run:
        state.write(folder, msgspec.structs.replace(state.read(folder), run=run))
        (folder / "go").touch()
        await eventually(lambda: not process.alive(MachineFolder(folder)))
        async with opened() as machines:
            assert (await machines.inspect("a")).state is MachineState.FAILED  # type: ignore[union-attr]
            assert not is_there(run)


async def test_one_that_lets_go_of_its_lock_is_stopped_all_the_same(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "REATTACH_WITHIN", 0.05)
    async with opened() as machines:
        await machines.create(plan())
    folder = opened.of("a")
    async with spawned(folder, sys.executable, "-I", "-S", "-c", FREE) as run:
        state.write(folder, msgspec.structs.replace(state.read(folder), run=run))
        async with opened() as machines:
            assert of(machines).alive
            (folder / "go").touch()
            await eventually(lambda: not process.alive(of(machines).folder))
            assert (await machines.stop("a", grace=0)).state is MachineState.STOPPED
            assert not is_there(run)


# Numbers of what cannot be read


async def test_what_cannot_be_read_keeps_its_number_and_what_it_has_of_the_host(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Any] = []

    async def reclaim(_: ControlGroups, numbers: Any) -> None:
        kept.append(numbers)

    monkeypatch.setattr(ControlGroups, "reclaim", reclaim)
    async with opened() as machines:
        for vm in ("a", "b"):
            await machines.create(plan(vm))
    (opened.of("b") / state.FILE).write_bytes(b"torn")
    async with opened() as machines:
        assert kept[-1] == {1, 2}
        await machines.create(plan("c"))
        assert of(machines, "c").record.number == 3
    (opened.of("b") / NUMBER).unlink()
    before = len(kept)
    async with opened():
        assert len(kept) == before, "nobody knows what would be taken away"
    (opened.of("b") / NUMBER).symlink_to("/etc/hostname")
    async with opened():
        assert len(kept) == before
    (opened.folder / "vms" / "of somebody").mkdir()
    (opened.of("b") / NUMBER).unlink()
    (opened.of("b") / NUMBER).write_text("2")
    async with opened():
        assert kept[-1] == {1, 2, 3}


# Opening that fails


@pytest.mark.parametrize("step", ["read", "reclaim"])
async def test_a_driver_that_cannot_be_opened_leaves_its_network_and_takes_nothing_from_machines(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    left: list[bool] = []

    async def leave(_: UserNetwork, *, empty: bool) -> None:
        left.append(empty)

    def fail(*_: Any) -> Any:
        raise Unavailable("not now")

    monkeypatch.setattr(UserNetwork, "aclose", leave)
    with monkeypatch.context() as patch:
        patch.setattr(state, "read_machines", fail) if step == "read" else patch.setattr(ControlGroups, "reclaim", fail)
        with pytest.raises(Unavailable, match="not now"):
            await opened().__aenter__()
    assert left == [False]
    async with opened():
        pass
    assert left == [False, True]


# What grows


async def test_what_qemu_says_without_end_is_cut_while_it_runs(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_context, "TIDY_EVERY", 0.01)
    monkeypatch.setattr(driver_module, "REATTACH_WITHIN", 0.05)
    async with opened() as machines:
        await machines.create(plan())
    folder = opened.of("a")
    async with spawned(folder, "sh", "-c", f"yes | head -c {LOG_BYTES + 2}; echo the last; exec sleep 600"):
        log = folder / LOG
        await eventually(lambda: log.stat().st_size > LOG_BYTES + 2)
        async with opened() as machines:
            assert of(machines).alive
            await eventually(lambda: log.stat().st_size == LOG_KEPT_BYTES)
            assert MachineFolder(folder).said().endswith("the last")
            assert log.stat().st_blocks * 512 < 2 * LOG_KEPT_BYTES


# A guest that waits for room


class Qemu:
    """A monitor that says that the guest waits."""

    connected = True

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def execute(self, command: str, *_: Any, **__: Any) -> dict[str, str]:
        self.asked.append(command)
        return {"status": "io-error"}

    async def aclose(self) -> None: ...


@pytest.mark.parametrize("field", ["departing", "departed"])
async def test_a_guest_that_is_being_sent_is_not_let_go_on_here(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    monkeypatch.setattr(machine, "RETRY_EVERY", 0.005)
    async with opened() as machines:
        await machines.create(plan())
        one, qemu = of(machines), Qemu()
        one.alive, one._link.monitor = True, qemu  # type: ignore[assignment]
        one.change(**{field: True})
        one._event("BLOCK_IO_ERROR", {"nospace": True})
        assert one.seen().paused is (one.state is MachineState.RUNNING)
        await eventually(lambda: len(qemu.asked) > 3)
        assert set(qemu.asked) == {"query-status"}
        one.change(**{field: False})
        await eventually(lambda: "cont" in qemu.asked)
        one.alive = False


# How far it is


async def test_one_that_runs_is_booting_from_the_first_look(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ascent, "climb", lambda *_, **__: asyncio.sleep(0))
    told: list[str] = []
    async with opened() as machines:
        machines.listen(told.append)
        await machines.create(plan())
        one = of(machines)
        assert one.seen().readiness is None
        one.alive = True
        one.touch()
        seen = one.seen()
        assert seen.state is MachineState.RUNNING
        assert seen.readiness is not None
        assert seen.readiness.step is Step.BOOTING
        one.change(host="127.0.0.1", port=22)
        one._link.guest = object()  # type: ignore[assignment]
        one.climb(asks=False)
        began = one.seen().readiness
        assert began is not None
        assert began.step is Step.BOOTING
        assert told == [], "nothing has changed for who looks"
        one._record_readiness(Readiness(step=Step.AVAILABLE, since=1.0))
        one.climb(asks=False)  # as after a reset
        assert told == ["a", "a"]
        again = one.seen().readiness
        assert again is not None
        assert again.step is Step.BOOTING
        one._link.guest = None
        one.alive = False


async def test_a_link_waits_for_nobody_who_is_gone(opened: Opened) -> None:
    async with opened() as machines:
        await machines.create(plan())
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(Unavailable, match="has just disconnected"):
                of(machines)._link.console()


async def test_one_that_hangs_up_while_its_driver_is_closed_is_not_called_again(opened: Opened) -> None:
    async with opened() as machines:
        await machines.create(plan())
        one = of(machines)
        one.alive = True
        one.later("watch", _hung_up_while_cancelled(one))
        await asyncio.sleep(0)
    one._hung_up()
    assert one._tasks == {}
    assert [task for task in asyncio.all_tasks() if "reach" in task.get_name()] == []


async def _hung_up_while_cancelled(one: machine.QemuMachine) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        one._hung_up()

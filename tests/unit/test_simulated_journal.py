"""The folder in which simulated machines outlive their agent."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from dose import dose
from harness.pace import patience
from hypothesis import given, settings
from hypothesis import strategies as st

from hostler import Damaged, HostlerError, Invalid, Unavailable
from hostler.drivers.machines.simulated import journal
from hostler.kit.clock import SystemClock
from hostler.model.vm import MachineState, VmSpec
from hostler.ports.machines import Label, Machine, MachinePlan
from hostler.testing import FileHost, SimulatedMachines, read_intervals

STOPPED, RUNNING = MachineState.STOPPED, MachineState.RUNNING


def plan(vm: str = "a", **changes: Any) -> MachinePlan:
    fields = {"label": Label("org", "project", vm, "cluster"), "spec": VmSpec(cpus=1, memory_mib=64)}
    return MachinePlan(**(fields | changes))  # type: ignore[arg-type]


def opened(folder: Path, **options: Any) -> SimulatedMachines:
    return SimulatedMachines(FileHost(folder, **options))


async def all_of(machines: SimulatedMachines) -> dict[str, Machine]:
    return {machine.label.vm: machine for machine in await machines.list()}


async def filled(folder: Path) -> dict[str, Machine]:
    async with opened(folder) as m:
        await m.hold(600)
        for vm in ("a", "b", "c", "d"):
            await m.create(plan(vm, fenced=vm == "a"))
        await m.start("a")
        await m.start("b")
        await m.snapshot("b", "s")
        await m.reset("b", 3)
        await m.stop("b", grace=0)
        await m.restore("b", "s", 2)
        await m.delete("d")
        return await all_of(m)


async def test_the_folder_is_the_owners_alone(tmp_path: Path) -> None:
    await filled(tmp_path / "deep" / "node")
    assert (tmp_path / "deep" / "node").stat().st_mode & 0o777 == 0o700
    for file in (tmp_path / "deep" / "node").iterdir():
        assert file.stat().st_mode & 0o077 == 0, file
    assert {file.name for file in (tmp_path / "deep" / "node").iterdir()} == {"place", "journal", "lock"}


async def test_a_second_process_is_told_which_folder_is_taken(tmp_path: Path) -> None:
    code = f"""
import asyncio
from hostler.drivers.machines.simulated import FileHost, SimulatedMachines
async def main():
    async with SimulatedMachines(FileHost({str(tmp_path)!r})):
        pass
asyncio.run(main())
"""
    async with opened(tmp_path):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "Unavailable" in done.stderr
    assert str(tmp_path) in done.stderr
    assert "another process has them open" in done.stderr
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_a_child_that_was_forked_keeps_nobody_out(tmp_path: Path) -> None:
    read, write = os.pipe()
    try:
        async with opened(tmp_path):
            child = os.fork()
            if child == 0:
                os.close(write)
                os.read(read, 1)
                os._exit(0)
        async with opened(tmp_path):
            pass
    finally:
        os.close(write)
        os.waitpid(child, 0)
        os.close(read)


async def test_a_last_line_that_lacks_its_end_was_never_written(tmp_path: Path) -> None:
    before = await filled(tmp_path)
    whole = (tmp_path / "journal").read_bytes()
    async with opened(tmp_path) as m:
        await m.create(plan("new"))
    grown = (tmp_path / "journal").read_bytes()
    assert grown.count(b"\n") > 1
    for torn in (whole + b'{"is":"mach', whole + b"{", whole + b'{"is":"deleted","vm":"a"}'):
        (tmp_path / "journal").write_bytes(torn)
        assert {vm: m.state for vm, m in before.items()}
        async with opened(tmp_path) as m:
            assert await all_of(m) == before
            await m.create(plan("e"))
        async with opened(tmp_path) as m:
            assert set(await all_of(m)) == {*before, "e"}


@pytest.mark.slow
async def test_every_torn_journal_is_the_state_at_some_step(tmp_path: Path) -> None:
    states: list[dict[str, MachineState]] = [{}]

    async def look(_: str) -> None:
        states.append({row.vm: row.state for row in m._place.contents.rows.values()})

    m = SimulatedMachines(FileHost(tmp_path))
    m.step = look
    async with m:
        for vm in ("a", "b"):
            await m.create(plan(vm))
            await m.start(vm)
        await m.stop("a", grace=0.001)
        await m.delete("b")
        whole = (tmp_path / "journal").read_bytes()
    for size in range(0, len(whole), 3):
        (tmp_path / "journal").write_bytes(whole[:size])
        async with opened(tmp_path) as again:
            assert {vm: machine.state for vm, machine in (await all_of(again)).items()} in states


async def test_a_damaged_line_is_an_error_that_names_it(tmp_path: Path) -> None:
    await filled(tmp_path)
    lines = (tmp_path / "journal").read_bytes().split(b"\n")
    for bad in (b"nonsense", b'{"is":"moved"}', b'{"is":"never heard of"}', b"\x00\x00", b'{"is":"held","until":"x"}'):
        damaged = b"\n".join([*lines[:2], bad, *lines[2:]])
        (tmp_path / "journal").write_bytes(damaged)
        with pytest.raises(Damaged, match="line 3"):
            await opened(tmp_path).__aenter__()
        with pytest.raises(Damaged, match="line 3"):
            read_intervals(tmp_path)
        assert (tmp_path / "journal").read_bytes() == damaged, "it was changed"
    (tmp_path / "journal").write_bytes(b"\n".join(lines))
    async with opened(tmp_path) as m:
        assert len(await m.list()) == 3


async def test_after_a_power_failure_a_damaged_journal_is_good_up_to_the_damage(tmp_path: Path) -> None:
    await filled(tmp_path)
    data = (tmp_path / "journal").read_bytes()
    (tmp_path / "journal").write_bytes(data + b"\0" * 100 + b"\nx\n")
    async with opened(tmp_path, boot="another") as m:
        assert set(await all_of(m)) == {"a", "b", "c"}


async def test_a_foreign_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "inside"):
        with pytest.raises(Invalid, match="name a folder"):
            await opened(folder).__aenter__()
    assert (tmp_path / "file").read_text() == "mine"
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / "place").write_text("mine")
    with pytest.raises(Damaged, match="node/place"):
        await opened(tmp_path / "node").__aenter__()
    assert (tmp_path / "node" / "place").read_text() == "mine"


async def test_after_a_boot_every_machine_is_stopped_and_nothing_is_held(tmp_path: Path) -> None:
    before = await filled(tmp_path)
    async with opened(tmp_path) as m:
        await m.start("b")
        place = m.place
    for _ in range(2):
        async with opened(tmp_path, boot="next") as m:
            after = await all_of(m)
            assert m.place == place
            assert {machine.state for machine in after.values()} == {STOPPED}
            assert m.intervals("a") == m.intervals("b") == m.intervals("d") == [], "of a clock that is no more"
            assert (after["b"].resets, after["b"].restored, after["b"].snapshots) == (3, 2, ("s",))
            assert after["b"].id == before["b"].id
            with pytest.raises(Unavailable, match="not held"):
                await m.start("a")
    assert read_intervals(tmp_path) == {}, "they ran before the last boot"


async def test_a_machine_that_was_begun_before_a_boot_is_still_only_begun(tmp_path: Path) -> None:
    async with opened(tmp_path) as m:
        m.script("create", "half")
        with pytest.raises(HostlerError):
            await m.create(plan())
    async with opened(tmp_path, boot="next") as m:
        assert (await all_of(m))["a"].state is MachineState.CREATING
        assert (await m.create(plan())).state is STOPPED


async def test_two_places_have_ids_of_their_own(tmp_path: Path) -> None:
    async with opened(tmp_path / "a") as a, opened(tmp_path / "b") as b:
        assert a.place != b.place


# Reading along


@pytest.mark.slow
async def test_intervals_are_read_while_the_place_is_in_use(tmp_path: Path) -> None:
    began, held = SystemClock().now(), patience(0.5)  # longer than it takes to start them
    async with opened(tmp_path) as m:
        await m.hold(held)
        for vm in ("a", "b", "c"):
            await m.create(plan(vm, fenced=vm == "a"))
        for vm in ("a", "b"):
            await m.start(vm)
        await m.delete("b")
        assert read_intervals(tmp_path, now=began)["a"] == m.intervals("a")
        found = read_intervals(tmp_path, now=began + 60)
        assert set(found) == {"a", "b"}
        ((start, end),) = found["a"]
        assert began < start
        assert end is not None
        assert began + held <= end < began + 60, "it ended by itself, and nobody has looked"
        await asyncio.sleep(end - SystemClock().now() + 0.05)
        assert read_intervals(tmp_path) == {vm: m.intervals(vm) for vm in ("a", "b")}
        assert m.intervals("a") == [(start, end)]
        await m.inspect("a")
        assert read_intervals(tmp_path)["a"] == [(start, end)]
    async with opened(tmp_path) as m:
        assert read_intervals(tmp_path) == {vm: m.intervals(vm) for vm in ("a", "b")} == found
    assert read_intervals(tmp_path / "none") == {}


async def test_a_journal_that_has_grown_is_written_anew_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "GROWTH_BYTES", 2_000)
    async with opened(tmp_path) as m:
        await m.create(plan("b"))
        await m.start("b")
        for number in range(1, 300):
            await m.hold(600)
            await m.create(plan("a", fenced=True))
            await m.start("a")
            await m.stop("a", grace=0)
            await m.reset("b", number)
            if number % 50 == 0:
                assert read_intervals(tmp_path) == {vm: m.intervals(vm) for vm in ("a", "b")}
        before, runs = await all_of(m), m.intervals("a")
        assert len(runs) == 299
        assert (tmp_path / "journal").stat().st_size < 3 * 299 * 60 + 10_000
    async with opened(tmp_path) as m:
        assert await all_of(m) == before
        assert m.intervals("a") == runs
        assert not (tmp_path / "journal.tmp").exists()


# A disk that does not take it


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch, takes: int | None) -> Iterator[None]:
    """A disk that takes `takes` bytes of a write, or refuses it."""
    real = os.write

    def write(fd: int, data: bytes) -> int:
        if takes is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data[:takes])

    with monkeypatch.context() as patch:
        patch.setattr(journal.os, "write", write)
        yield


@pytest.mark.parametrize("takes", [None, 0, 7])
async def test_a_full_disk_changes_nothing(tmp_path: Path, takes: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    before = await filled(tmp_path)
    async with opened(tmp_path) as m:
        with full_disk(monkeypatch, takes):
            for verb in (m.create(plan("e")), m.start("c"), m.delete("c"), m.snapshot("c", "t"), m.hold(1)):
                with pytest.raises(Unavailable, match="nothing was\\s+changed"):
                    await verb
            assert await all_of(m) == before
        await m.create(plan("e"))
    async with opened(tmp_path) as m:
        assert set(await all_of(m)) == {"a", "b", "c", "e"}
    with full_disk(monkeypatch, takes), pytest.raises(Unavailable):
        await opened(tmp_path).__aenter__()
    async with opened(tmp_path) as m:
        assert set(await all_of(m)) == {"a", "b", "c", "e"}


async def test_a_step_that_can_neither_be_written_nor_taken_back_closes_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await filled(tmp_path)

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async with opened(tmp_path) as m:
        with full_disk(monkeypatch, 9), monkeypatch.context() as patch:
            patch.setattr(journal.os, "ftruncate", broken)
            with pytest.raises(Unavailable, match="open the place again"):
                await m.delete("c")
        with pytest.raises(Unavailable, match="open the place again"):
            await m.delete("c")
    async with opened(tmp_path) as m:
        assert await all_of(m) == before


# Killed for real

WORKER = """
import asyncio, random, sys
from hostler.drivers.machines.simulated import FileHost, SimulatedMachines, journal
from hostler.errors import HostlerError
from hostler.model.vm import VmSpec
from hostler.ports.machines import Label, MachinePlan

journal.GROWTH_BYTES = 20_000

async def main(folder, seed):
    rng = random.Random(seed)
    async with SimulatedMachines(FileHost(folder), rng=rng) as m:
        print("open", flush=True)
        while True:
            vm = f"vm-{rng.randrange(5)}"
            plan = MachinePlan(label=Label("o", "p", vm, "c"), spec=VmSpec(cpus=rng.randrange(1, 5), memory_mib=64))
            verb = rng.choice([
                lambda: m.create(plan), lambda: m.start(vm), lambda: m.start(vm), lambda: m.stop(vm, grace=0.0001),
                lambda: m.delete(vm), lambda: m.snapshot(vm, "s"), lambda: m.restore(vm, "s", rng.randrange(1, 10**6)),
                lambda: m.reset(vm, rng.randrange(1, 10**6)), lambda: m.hold(100),
            ])
            try:
                await verb()
            except HostlerError:
                pass

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


@pytest.mark.slow
async def test_a_process_that_is_killed_anywhere_leaves_a_place_that_opens(tmp_path: Path) -> None:
    seen: dict[str, list[Any]] = {}
    for seed in range(dose(test=6, full=200)):
        worker = subprocess.Popen([sys.executable, "-c", WORKER, str(tmp_path), str(seed)], stdout=subprocess.PIPE)
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"open\n"
        end = time.monotonic() + 0.02 + 0.05 * (seed % 5)
        while time.monotonic() < end:
            _check_history(read_intervals(tmp_path), seen)
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        worker.stdout.close()
        now = SystemClock().now()
        found = read_intervals(tmp_path, now=now)
        _check_history(found, seen)
        async with opened(tmp_path) as m:
            assert {vm: m.intervals(vm) for vm in found} == dict(found)
            for vm, machine in (await all_of(m)).items():
                on = bool(m.intervals(vm)) and m.intervals(vm)[-1][1] is None
                assert on == (machine.state in (RUNNING, MachineState.STARTING, MachineState.STOPPING))


def _check_history(found: Any, seen: dict[str, list[Any]]) -> None:
    """Intervals follow each other, and what was over stays as it was."""
    for vm, intervals in found.items():
        for (start, end), (next_start, _) in itertools.pairwise(intervals):
            assert end is not None
            assert start <= end <= next_start
        over = [interval for interval in intervals if interval[1] is not None]
        before = seen.get(vm, [])
        if before and len(before) <= len(over) < 900:
            assert over[: len(before)] == before
        seen[vm] = over


# Hostile names


@settings(max_examples=dose(test=60, full=2000), deadline=None)
@given(texts=st.lists(st.text(max_size=40), min_size=6, max_size=6))
def test_no_text_breaks_the_journal(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("hostile")
    vm, org, name, snapshot, image, user_data = texts

    async def main() -> None:
        spec = VmSpec(cpus=1, memory_mib=1, image=image, user_data=user_data)
        async with opened(folder) as m:
            await m.create(plan("bystander"))
            made = False
            try:
                await m.create(plan(label=Label(org, "p", vm), spec=spec, name=name))
                made = True
                await m.snapshot(vm, snapshot)
                await m.start(vm)
            except Invalid:
                pass
            before = await all_of(m)
            assert set(before) == {"bystander", vm} if made else {"bystander"}
            lines = (folder / "journal").read_bytes().split(b"\n")
            assert lines[-1] == b""
            for line in lines[:-1]:
                assert isinstance(msgspec.json.decode(line), dict)
        async with opened(folder) as m:
            assert await all_of(m) == before

    asyncio.run(main())


@pytest.mark.parametrize("text", ["\ud800", "", "x" * 1025, 5, None, b"bytes"])
async def test_a_name_that_cannot_be_is_refused_and_leaves_nothing(text: Any, tmp_path: Path) -> None:
    async with opened(tmp_path) as m:
        await m.create(plan())
        before = (tmp_path / "journal").read_bytes()
        with pytest.raises(Invalid):
            await m.create(plan(label=Label("o", "p", text)))
        for verb in (m.snapshot("a", text), m.restore("a", text, 1), m.drop_snapshot("a", text), m.start(text)):
            with pytest.raises(Invalid):
                await verb
        with pytest.raises(Invalid):
            await m.delete(text)
        for number in (0, -1, True, 1.5, 2**63, "1"):
            with pytest.raises(Invalid):
                await m.reset("a", number)  # type: ignore[arg-type]
        assert (tmp_path / "journal").read_bytes() == before


@pytest.mark.parametrize(
    "text", ["\n", '"}\n{"is":"deleted","vm":"a"}\n', "a\x00b", "\u2028", "../../etc/passwd", "é" * 400]
)
async def test_a_name_that_looks_like_a_line_is_a_name(text: str, tmp_path: Path) -> None:
    async with opened(tmp_path) as m:
        await m.create(plan())
        await m.create(plan(text, name=text))
        await m.start(text)
        await m.snapshot(text, text)
        before = await all_of(m)
        assert set(before) == {"a", text}
    async with opened(tmp_path) as m:
        assert await all_of(m) == before
    assert {file.name for file in tmp_path.iterdir()} == {"place", "journal", "lock"}

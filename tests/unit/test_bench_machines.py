"""The parts of `python -m bench machines`: what is compared with what, and how it is judged."""

from __future__ import annotations

import asyncio
import math
import os
import sys
from pathlib import Path

import pytest

from bench import machines
from bench.__main__ import main
from bench.machines import PARTS
from bench.machines_bare import Recipe, boot, command_line
from bench.machines_many import IDLE_BYTES, idle_disk
from bench.machines_plane import Way, kill_below, working_in
from bench.machines_start import Pair, at_once_rows, one_rows
from hostler.errors import Invalid, NotFound, Unavailable

ARGV = (
    "qemu-system-x86_64",
    *("-accel", "tcg", "-S", "-no-shutdown"),
    *("-netdev", "user,id=n0,ipv6=off,hostfwd=tcp:127.0.0.1:4022-:22"),
)


def way(began: float, ready: float, available: float) -> Way:
    return Way(began, ready, available)


def test_one_machine_is_judged_by_its_ratio_and_by_what_is_not_the_guests() -> None:
    pairs = [
        Pair([way(0.15, 4.0, 4.40)], [way(0.05, 3.7, 4.0)], 0.05),
        Pair([way(0.16, 4.0, 4.35)], [way(0.06, 3.9, 4.2)], 0.07),
        Pair([way(0.20, 9.0, 9.50)], [way(0.05, 3.7, 4.0)], 0.06),  # somebody else was at work
    ]
    ratio, more, cpu, first, last, own = one_rows(pairs)
    assert ratio.found == pytest.approx(1.10)
    assert (ratio.wanted, ratio.at_most) == (1.10, True)
    assert more.found == pytest.approx(400)
    assert cpu.found == pytest.approx(60)
    assert (first.found, first.other) == (pytest.approx(160), pytest.approx(50))
    assert (last.found, last.other) == (pytest.approx(400), pytest.approx(300))
    assert own.found == pytest.approx(200)
    assert (own.wanted, own.reached) == (100, False)


def test_a_step_that_was_not_seen_counts_nowhere() -> None:
    nan = float("nan")
    unseen = Pair([way(0.1, nan, 4.0)], [way(0.05, 3.7, 4.0)])
    assert not any("own share" in row.what for row in one_rows([unseen]))
    seen = Pair([way(0.1, 3.6, 4.0)], [way(0.05, 3.7, 4.0)])
    own = one_rows([unseen, seen])[-1]
    assert own.found == pytest.approx(150)
    assert all(math.isfinite(row.found) for row in one_rows([unseen, seen]))


def test_several_at_once_are_as_late_as_the_last_of_them() -> None:
    pair = Pair([way(0, 1, 2), way(0, 1, 12)], [way(0, 1, 10), way(0, 1, 3)])
    (row,) = at_once_rows([pair])
    assert row.found == pytest.approx(1.2)
    assert row.reached is False
    assert row.what.startswith("2 at once")


def test_the_bare_side_runs_the_same_command_without_waiting_on_a_port_of_its_own(tmp_path: Path) -> None:
    recipe = Recipe(ARGV, tmp_path / "recipe")
    assert recipe.accelerator == "tcg"
    words = recipe.command(5022)
    assert words == [word.replace("4022", "5022") for word in ARGV if word != "-S"]
    (tmp_path / "recipe" / "fw").mkdir(parents=True)
    for name in ("base", "kernel", "disk.qcow2", "fw/hostname"):
        (tmp_path / "recipe" / name).write_text(name)
    for name in ("one", "two"):
        recipe.lay(tmp_path / name)
    (tmp_path / "one" / "disk.qcow2").write_text("written by its guest")
    assert (tmp_path / "two" / "disk.qcow2").read_text() == "disk.qcow2"
    assert (tmp_path / "two" / "base").samefile(tmp_path / "recipe" / "base")
    assert (tmp_path / "two" / "fw" / "hostname").read_text() == "fw/hostname"


async def test_a_bare_qemu_that_ends_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "recipe" / "fw").mkdir(parents=True)
    (tmp_path / "recipe" / "disk.qcow2").touch()
    argv = (sys.executable, "-S", "-c", "print('no such device')")
    with pytest.raises(Unavailable, match="no such device"):
        await boot(Recipe(argv, tmp_path / "recipe"), [tmp_path / "bare"])
    assert not (tmp_path / "bare").exists()
    assert working_in(tmp_path) == []


async def test_what_works_in_a_folder_is_found_and_ended(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no QEMU"):
        command_line(tmp_path)
    process = await asyncio.create_subprocess_exec("sleep", "60", cwd=tmp_path)
    assert working_in(tmp_path) == [process.pid]
    with pytest.raises(NotFound, match="no QEMU"):
        command_line(tmp_path)
    kill_below(tmp_path)
    assert await process.wait() == -9


async def test_the_command_line_is_that_of_qemu_alone(tmp_path: Path) -> None:
    fake = tmp_path / "qemu-system-none"
    fake.symlink_to(sys.executable)
    program = "import sys; print(flush=True); sys.stdin.read()"
    process = await asyncio.create_subprocess_exec(
        fake, "-c", program, "a b", cwd=tmp_path, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    await process.stdout.readline()
    assert command_line(tmp_path) == [str(fake), "-c", program, "a b"]
    kill_below(tmp_path)
    await process.wait()


def test_no_more_machines_than_memory_allows() -> None:
    assert machines.fitting(10, 256, 100_000) == 10
    assert machines.fitting(10, 256, 2000) == 5
    assert machines.fitting(1, 256, 500) == 1
    with pytest.raises(Invalid, match="too little"):
        machines.fitting(10, 256, 600)
    assert 0 < machines.free_memory_mib() < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**20


def test_the_guest_that_rests_is_on_a_disk_that_images_take() -> None:
    disk = idle_disk()
    assert len(disk) == IDLE_BYTES
    assert disk[510:512] == b"\x55\xaa"
    assert disk[450], "the first partition has a kind"


@pytest.mark.parametrize("parts", ["", "all", "one,", "one,nothing"])
def test_a_part_that_does_not_exist_is_refused(parts: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["machines", "--parts", parts]) == 2
    assert ",".join(PARTS) in capsys.readouterr().err
    assert PARTS == machines.PARTS


def test_a_folder_without_the_tiny_guest_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["machines", "--parts", "make", "--images", str(tmp_path)]) != 0
    assert "build it there" in capsys.readouterr().err

"""A power switch that is a program: what its end means, whatever way it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest
from harness import pace
from up_process import HostlerProcess, token_told, until, well

from hostler.drivers.power.program import INHERITED, CommandPower
from hostler.entry.control_plane import ControlPlaneProcess
from hostler.entry.doctor.host import power
from hostler.errors import Unavailable, Uncertain
from hostler.ports.machine_driver import Level
from hostler.ports.power import Power
from hostler.settings import load
from hostler.wiring import open_power, open_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Scripts:
    """Programs that an operator could have written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: list[str] = []

    def script(self, text: str, name: str = "off") -> str:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o700)
        return str(path)

    def power(self, text: str, *arguments: str, timeout: float = 30.0) -> CommandPower:
        return CommandPower([self.script(text), *(arguments or ("{node}",))], timeout=timeout, tell=self.told.append)


@pytest.fixture
def scripts(tmp_path: Path) -> Scripts:
    return Scripts(tmp_path)


async def test_status_0_says_that_the_node_is_off_and_3_that_it_is_out_of_reach(scripts: Scripts) -> None:
    assert await scripts.power("echo asking; echo port 3 is off").switch_off("r1-b3") is True
    assert await scripts.power("exit 3").switch_off("r1-b3") is False
    assert scripts.told == [
        "power of node r1-b3: off: port 3 is off",
        "power of node r1-b3: the command does not reach it, without output",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo no answer from 10.0.0.7 >&2; exit 1", "ended with status 1: no answer from 10.0.0.7;"),
        ("exit 2", "ended with status 2, without output;"),
        ("exit 127", "ended with status 127"),
        ("kill -KILL $$", "was ended by SIGKILL"),
        ("kill -SEGV $$", "was ended by SIGSEGV"),
        ("nosuchcommand", "ended with status 127"),
    ],
)
async def test_whatever_else_it_ends_with_the_node_may_be_on_or_off(scripts: Scripts, text: str, said: str) -> None:
    with pytest.raises(Uncertain, match="the node may be on or off") as caught:
        await scripts.power(text).switch_off("r1-b3")
    assert said in str(caught.value)
    assert scripts.told == [str(caught.value)]


def runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def pids(folder: Path) -> list[int]:
    """Of what a script has written there, once it has."""
    file = folder / "pids"
    while not file.exists() or len(file.read_text().split()) < 2:
        await asyncio.sleep(0.01)
    return [int(pid) for pid in file.read_text().split()]


async def gone(started: list[int]) -> None:
    await until(lambda: not any(map(runs, started)), 60.0, lambda: f"the end of {started}")


HANGS = 'trap "" TERM; sleep 600 & echo $$ $! > {folder}/pids; echo waiting for the strip; wait'


async def test_a_command_that_hangs_is_ended_with_all_that_it_started(scripts: Scripts) -> None:
    hanging = scripts.power(HANGS.format(folder=scripts.folder), timeout=3.0)
    with pytest.raises(Uncertain, match=r"did not end within 3 s: waiting for the strip;"):
        await hanging.switch_off("r1-b3")
    await gone(await pids(scripts.folder))


async def test_who_gives_up_ends_the_command(scripts: Scripts) -> None:
    task = asyncio.create_task(scripts.power(HANGS.format(folder=scripts.folder)).switch_off("r1-b3"))
    started = await pids(scripts.folder)
    assert all(map(runs, started))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await gone(started)


async def test_what_a_command_leaves_in_the_background_is_not_waited_for(scripts: Scripts) -> None:
    leaves = f"sleep 300 & echo $$ $! > {scripts.folder}/pids; echo off"
    with pace.within(0.5, "switching off"):
        assert await scripts.power(leaves).switch_off("r1-b3") is True
    _, left = await pids(scripts.folder)
    os.kill(left, signal.SIGKILL)


async def test_a_command_that_never_stops_talking_is_heard_to_its_end(scripts: Scripts) -> None:
    long = f"{sys.executable} -c \"print('x' * 5_000_000); print('y' * 1000)\"; printf 'off\\033[2J\\377\\n\\n'"
    assert await scripts.power(long).switch_off("r1-b3") is True
    assert scripts.told == ["power of node r1-b3: off: off?[2J�"]
    with pytest.raises(Uncertain):
        await scripts.power(f"{sys.executable} -c \"print('y' * 1000)\"; exit 9").switch_off("r1-b3")
    assert len(scripts.told[1]) < 450


async def test_the_name_is_an_argument_of_its_own_and_no_shell_reads_it(scripts: Scripts) -> None:
    node = "r1-b3; touch x $(id) 'a b'"
    tells = scripts.power('for each in "$@"; do echo "<$each>"; done | tr "\\n" " "', "-v", "{node}", "a b", "{node}")
    assert await tells.switch_off(node) is True
    assert scripts.told == [f"power of node {node}: off: <-v> <{node}> <a b> <{node}>"]
    assert await tells.switch_off("-rf") is False
    assert "would take this name for an option" in scripts.told[1]


async def test_a_command_knows_nothing_of_our_secrets_and_reads_nothing(
    scripts: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HCLOUD_TOKEN", "secret")
    monkeypatch.setenv("HOSTLER_REDIS", "redis://:secret@h")
    tells = scripts.power("cat; pwd; env | cut -d= -f1 | tr '\\n' ' '")
    assert await tells.switch_off("r1-b3") is True
    names = scripts.told[0].rpartition(": ")[2].split()
    assert "PATH" in names
    assert set(names) <= {*INHERITED, "PWD", "SHLVL", "_", "OLDPWD"}


@pytest.mark.parametrize("program", ["/no/such/program", "nosuchprogram", "/etc/passwd", "/"])
async def test_a_command_that_cannot_be_started_switched_nothing_off(program: str) -> None:
    told: list[str] = []
    with pytest.raises(Unavailable, match="cannot be started"):
        await CommandPower([program, "{node}"], tell=told.append).switch_off("r1-b3")
    assert told[0].endswith("; correct power_command")


async def test_many_nodes_are_switched_off_at_once_and_no_file_stays_open(scripts: Scripts) -> None:
    switch = scripts.power('case "$1" in *7) exit 3;; *8) exit 1;; esac')
    await switch.switch_off("r1-b0")
    before = len(os.listdir("/proc/self/fd"))
    answers = await asyncio.gather(*(switch.switch_off(f"r1-b{n}") for n in range(20)), return_exceptions=True)
    assert [type(answer).__name__ if isinstance(answer, Exception) else answer for answer in answers] == [
        "Uncertain" if n % 10 == 8 else n % 10 != 7 for n in range(20)
    ]
    assert len(os.listdir("/proc/self/fd")) <= before  # what another test left may have been collected meanwhile


# Where it is used


def test_without_a_command_there_is_no_switch() -> None:
    assert open_power((), timeout=1.0, tell=print) is None
    switch: Power | None = open_power(("/off", "{node}"), timeout=1.0, tell=print)
    assert isinstance(switch, CommandPower)


async def test_the_leader_has_the_switch_that_the_settings_name() -> None:
    settings = load({}, {}, toml="power_command = ['/off', '{node}']\npower_grace = 7\npower_timeout = 9")
    async with open_store("memory://") as store:
        plane = ControlPlaneProcess(store, settings)
        nodes = next(each for each in plane.controllers() if each.name == "nodes")
        assert isinstance(nodes._power, CommandPower)  # type: ignore[attr-defined]
        assert (nodes._power._command, nodes._power._timeout) == (("/off", "{node}"), 9.0)  # type: ignore[attr-defined]
        assert nodes._power_rules.grace == 7.0  # type: ignore[attr-defined]
        await plane._hasher.aclose()


def test_the_doctor_sees_whether_the_command_can_be_run(scripts: Scripts) -> None:
    def says(program: str) -> tuple[Level, str]:
        (finding,) = power(load({"power_command": [program, "{node}"]}, {}, toml=""))
        return finding.level, finding.what

    assert power(load({}, {}, toml="")) == []
    good = scripts.script("exit 0")
    assert says(good) == (Level.OK, f"{good}, 30 s after a node became unreachable, for at most 60 s")
    assert says("sh")[0] is Level.OK
    assert says("/no/such/program") == (Level.FAIL, "/no/such/program not found")
    assert says("bin/off") == (Level.FAIL, "bin/off is not an absolute path")
    os.chmod(good, 0o600)
    assert says(good) == (Level.FAIL, f"{good} cannot be run")
    os.chmod(good, 0o707)
    assert says(good) == (Level.FAIL, f"{good}: writable by all users")


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[list[HostlerProcess]]:
    started: list[HostlerProcess] = []
    yield started
    for process in started:
        process.kill()


async def test_a_node_that_falls_silent_is_switched_off_and_its_machine_runs_elsewhere(
    scripts: Scripts, processes: list[HostlerProcess]
) -> None:
    folder, store = scripts.folder, f"sqlite://{scripts.folder}/hostler.db"
    off = scripts.script(f'echo "$1" >> {folder}/switched; echo port of $1 is off')
    times = ("--node-ttl", 8, "--fencing-time", 60)

    def start(*arguments: object, **environ: str) -> HostlerProcess:
        processes.append(HostlerProcess(*arguments, "--store", store, *times, folder=folder, environ=environ))
        return processes[-1]

    replica = start(
        *("replica", "--listen", "127.0.0.1:0", "--data", folder / "replica"),
        HOSTLER_POWER_COMMAND=f"{off} {{node}}",
        HOSTLER_POWER_GRACE="0.5",
    )
    await replica.says("leading with fence")
    admin = {
        "HOSTLER_SERVER": await replica.url("serving"),
        "HOSTLER_TOKEN": token_told(replica.text),
    }
    first = start("agent", "--node", "r1-a", "--data", folder / "a")
    await first.says("registered\n")
    await well("vm", "create", "web", "--wait", **admin)
    await start("agent", "--node", "r1-b", "--data", folder / "b").says("registered\n")
    first.kill()
    await replica.says("power of node r1-a: off: port of r1-a is off")
    while (found := (await well("vm", "show", "web", "-o", "json", **admin)).json)["node"] != "r1-b":
        await asyncio.sleep(0.05)
    assert (folder / "switched").read_text() == "r1-a\n"
    assert found["phase"] in ("placed", "creating", "starting", "running")

"""A management board that speaks IPMI: ipmitool against boards on loopback, and tools that say anything."""

from __future__ import annotations

import asyncio
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ipmi_boards
import pytest
from harness.pace import patience
from ipmi_boards import GUID, PASSWORD, USER

from hostler.drivers.power import BmcPower, IpmiAddress, IpmiBmc
from hostler.errors import Unavailable, Uncertain
from hostler.wiring import open_power

NODE = "r1-b3"


@pytest.fixture(scope="module")
def boards() -> Iterator[dict[str, tuple[str, int]]]:
    """Address and port of each kind. The address is one of the loopback network that no other program uses."""
    address = f"127.{random.randrange(1, 255)}.{random.randrange(255)}.{random.randrange(1, 255)}"
    program = [sys.executable, ipmi_boards.__file__, address]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found: dict[str, tuple[str, int]] = {}
        for line in iter(process.stdout.readline, "ready\n"):
            assert line, "the boards ended before they were ready"
            kind, _, port = line.strip().partition("=")
            found[kind] = address, int(port)
        yield found
        process.kill()


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    file.chmod(0o600)
    return file


def switch(
    place: tuple[str, int], file: Path, told: list[str], more: str = "", *, within: float = 20.0, timeout: float = 60.0
) -> BmcPower:
    url = f"ipmi://{USER}@{place[0]}:{place[1]}?password_file={file}{more}"
    by_url: Any = open_power((), {NODE: url}, timeout=1.0, tell=told.append)
    board = by_url.power_of(NODE).board
    return BmcPower(board, timeout=timeout, request_within=within, every=0.25, tell=told.append)


@pytest.mark.parametrize("kind", ["honest", "slow", "off already"])
async def test_a_node_is_off_once_its_board_says_so(
    boards: dict[str, tuple[str, int]], password_file: Path, kind: str
) -> None:
    told: list[str] = []
    assert await switch(boards[kind], password_file, told).switch_off(NODE) is True
    host, port = boards[kind]
    assert told == [f"power of node {NODE}: off, as read back from ipmi://{host}:{port}"]


@pytest.mark.slow
async def test_answers_that_lie_or_are_lost(boards: dict[str, tuple[str, int]], password_file: Path) -> None:
    told: list[str] = []
    answers = patience(1.25)  # five tools at once, and boards that share one thread

    async def play(kind: str) -> str:
        within, timeout = (1.2 * answers, 60.0) if kind == "loses" else (answers, 2 * answers)
        try:
            return f"{await switch(boards[kind], password_file, told, within=within, timeout=timeout).switch_off(NODE)}"
        except (Unavailable, Uncertain) as error:
            return f"{type(error).__name__} {str(error).rpartition('; ')[2]}"

    kinds = ("lies", "loses", "lies and loses", "silent", "refuses")
    ends = dict(zip(kinds, await asyncio.gather(*map(play, kinds)), strict=True))
    assert ends == {
        "lies": "Uncertain the node may be on or off",
        "loses": "True",
        "lies and loses": "Uncertain the node may be on or off",
        "silent": "Uncertain the node may be on or off",
        "refuses": "Unavailable check the board",
    }
    assert PASSWORD not in "".join(told)


async def test_a_state_is_read_without_changing_it(boards: dict[str, tuple[str, int]], password_file: Path) -> None:
    for more in ("", f"&uuid={str(GUID).upper()}", "&cipher=3&privilege=operator"):
        assert await switch(boards["read"], password_file, [], more).read_state() == "on"


async def test_what_is_not_the_nodes_board_is_asked_for_nothing(
    boards: dict[str, tuple[str, int]], password_file: Path
) -> None:
    told: list[str] = []
    with pytest.raises(Unavailable, match=", not '0'; correct the URL: this is another system"):
        await switch(boards["read"], password_file, told, "&uuid=0").switch_off(NODE)
    password_file.write_text("wrong")
    with pytest.raises(Unavailable, match="check address, user, password_file and cipher"):
        await switch(boards["read"], password_file, told).switch_off(NODE)
    password_file.chmod(0o644)
    with pytest.raises(Unavailable, match="accessible to other users; run chmod 600"):
        await switch(boards["read"], password_file, told).switch_off(NODE)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as deaf:
        deaf.bind(("127.0.0.1", 0))
        password_file.chmod(0o600)
        with pytest.raises(Unavailable, match=r"did not end within 0\.3 s"):
            await switch(deaf.getsockname(), password_file, told, within=0.3).switch_off(NODE)
    password_file.write_text(PASSWORD)
    assert await switch(boards["read"], password_file, told).read_state() == "on"


# Tools that say anything

READS_OFF = "echo Chassis Power is off"
TAKES = "echo Chassis Power Control: Down/Off"
SAID_OF_THE_STATE = {
    "off": (READS_OFF, True),
    "a warning before it": (f"echo IANA PEN registry open failed >&2; {READS_OFF}", True),
    "off, and a failure": (f"{READS_OFF}; exit 1", Unavailable),
    "on and off": (f"echo Chassis Power is on; {READS_OFF}", Unavailable),
    "nothing": ("exit 0", Unavailable),
    "another sentence": ("echo the Chassis Power is off, maybe", Unavailable),
    "killed": (f"{READS_OFF}; kill -9 $$", Unavailable),
    "nonsense": ("head -c 100000 /dev/zero; echo off", Unavailable),
}


@pytest.mark.parametrize(("says", "means"), SAID_OF_THE_STATE.values(), ids=SAID_OF_THE_STATE)
async def test_only_one_sentence_of_a_tool_that_succeeds_means_off(
    tmp_path: Path, password_file: Path, says: str, means: object
) -> None:
    tool = tmp_path / "tool"
    tool.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\ncase "$*" in *status) {says};; *) {TAKES};; esac\n')
    tool.chmod(0o700)
    address = IpmiAddress(host="10.0.0.7", port=623, user=USER, password_file=str(password_file), cipher=17)
    power = BmcPower(IpmiBmc(address, program=str(tool)), every=0.0)
    if means is True:
        assert await power.switch_off(NODE) is True
    else:
        with pytest.raises(Unavailable):
            await power.switch_off(NODE)
    asked = (tmp_path / "asked").read_text().splitlines()
    begins = f"-I lanplus -H 10.0.0.7 -p 623 -U {USER} -f {password_file} -L ADMINISTRATOR -C 17 chassis power"
    assert asked[:2] == [f"{begins} {verb}" for verb in (("status", "off") if means is True else ("status",))]


async def test_without_the_tool_nothing_is_asked(password_file: Path) -> None:
    address = IpmiAddress(host="10.0.0.7", port=623, user=USER, password_file=str(password_file))
    with pytest.raises(Unavailable, match="cannot be started: no such file or directory; install ipmitool"):
        await BmcPower(IpmiBmc(address, program="/no/such/ipmitool")).switch_off(NODE)

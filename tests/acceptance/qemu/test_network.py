"""Guests are reached as they shall be, and reach no more than they shall."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from apart import run_apart
from bare_guest import BareGuest
from guest_login import node, plan, run
from harness.pace import patience
from warm_image import warm_images

from hostler.drivers.machines.qemu import firewall
from hostler.drivers.machines.qemu.network import Attached, network_of, port_was_taken
from hostler.drivers.machines.qemu.privileges import ControlGroups, GroupLimits, settings_of
from hostler.drivers.privileges import rights_for, users_here
from hostler.testing.servers import find_binary

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hostler.drivers.machines.qemu.images.folder import ImageFolder

MAC = "02:00:00:00:00:01"
SHAPE = GroupLimits(128, 1, 50)


@asynccontextmanager
async def secret() -> AsyncIterator[int]:
    """A service of this host that trusts whoever is on its loopback."""

    async def tell(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"secret\n")
        writer.close()

    server = await asyncio.start_server(tell, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.timeout(300)
async def test_a_guest_is_logged_into_through_a_loopback_port_and_does_not_reach_the_loopback_itself(
    tmp_path: Path, images: ImageFolder
) -> None:
    uids, place = users_here("30000-30099"), str(tmp_path)  # which no other test's rules are about
    folder = _folder(tmp_path)
    network, limits = network_of("user", None, place=place, uids=uids), ControlGroups(tmp_path, place)
    await network.open()
    await limits.open()
    attached = await network.attach(1, MAC)
    try:
        async with (
            secret() as port,
            BareGuest(folder, images, rights_for(folder, place, 1, uids), attached, MAC) as guest,
        ):
            await limits.apply(1, guest.pid, SHAPE)
            listening = f"nc -w 5 10.0.2.2 {port} < /dev/null 2>&1; true"
            said = await guest.run(listening)
            if uids is None:  # nobody can close it, so it is told
                assert "guests reach this host's loopback" in network.about
            else:
                assert network.about == "user"
                assert "refused" in said
                await network.aclose(empty=True)
            assert await guest.run(listening) == "secret"
            await limits.reclaim(())  # takes away nothing that holds a process
            _check_limits(guest.pid, limits)
    finally:
        await network.aclose(empty=True)
    await limits.release(1)
    assert not _groups(limits)


@pytest.mark.timeout(300)
async def test_an_isolated_guest_is_logged_into_and_reaches_nothing(tmp_path: Path) -> None:
    async with secret() as port, node(tmp_path, warm_images(), network="isolated") as machines:
        await machines.create(plan("one"))
        await machines.start("one")
        heard, resolved = await asyncio.gather(
            run(machines, "one", f"nc -w 3 10.0.2.2 {port} < /dev/null 2>&1", check=False),
            run(machines, "one", "nslookup localhost 10.0.2.3 2>&1", check=False),
        )
        assert "secret" not in heard
        assert "timed out" in resolved


@pytest.mark.timeout(300)
async def test_a_guest_on_a_bridge_has_an_address_of_its_own_and_is_held_to_it(
    tmp_path: Path, images: ImageFolder
) -> None:
    """In namespaces of its own, which end with the process."""
    assert firewall.find_nft(), "nft: not installed; run scripts/setup test"
    script = Path(__file__).parent / "bridge_process.py"
    found = await run_apart(script, _folder(tmp_path), within=patience(30))
    no_bridge, no_address = found.pop("refused")
    assert "not found; create it: ip link add br0 type bridge" in no_bridge
    assert "no IPv6 address with a prefix of 64 bits; give it one" in no_address
    assert "another process still has it open" in found.pop("twice")
    assert found == {
        "about": "bridge br0",
        "address": "fd00:77::11:22ff:fe33:4455/64",
        "hostname": "bare",
        "own address": "answered",
        "other address": "silence",
        "other address, unfiltered": "answered",
        "rules while kept": [1],
        "rules left": [],
        "bridge keeps its MAC": True,
        "tap left": False,
    }


async def test_rules_of_a_place_whose_folder_was_deleted_are_taken_away_by_the_next_one(tmp_path: Path) -> None:
    uids = users_here("30100-30199")
    if uids is None:  # then there are no rules
        return
    assert firewall.find_nft(), "nft: not installed; run scripts/setup test"
    folders = [tmp_path / name for name in ("gone", "stays", "next")]
    networks = []
    for folder in folders:
        folder.mkdir()
        networks.append(network_of("user", None, place=str(folder), uids=uids, folder=folder))
    for network in networks[:2]:
        await network.open()
    folders[0].rmdir()
    await networks[2].open()
    tables = subprocess.run([firewall.find_nft(), "list", "tables"], check=True, capture_output=True, text=True).stdout
    assert [firewall.table_name(str(folder)) in tables for folder in folders] == [False, True, True]
    for network in networks:
        await network.aclose(empty=True)


async def test_somebody_who_was_faster_with_a_port_is_told_from_other_failures(tmp_path: Path) -> None:
    network = network_of("user", None, place=str(tmp_path), uids=None)
    with socket.socket() as taker:
        while True:  # another process of this machine may be faster than this test, too
            first = await network.attach(1, MAC)
            with contextlib.suppress(OSError):
                taker.bind(("127.0.0.1", first.port))
                break
        taker.listen()
        assert port_was_taken(_said_by_qemu(first))
        again = await network.attach(1, MAC, port=first.port)
        assert again.port != first.port
        assert not port_was_taken(_said_by_qemu(again))
    assert (await network.attach(1, MAC, port=first.port)).port == first.port


def _said_by_qemu(attached: Attached) -> str:
    """What it says on a start, which an unknown image ends."""
    argv = [find_binary("qemu-system-x86_64"), *("-M", "none", "-nodefaults", "-display", "none", "-S")]
    argv += ["-netdev", attached.netdev, "-device", "loader,file=/nonexistent"]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60).stderr


def _folder(tmp_path: Path) -> Path:
    folder = tmp_path / "vms" / "one"
    folder.mkdir(parents=True, mode=0o700)
    return folder


def _check_limits(pid: int, limits: ControlGroups) -> None:
    """What the node says of its limits is what holds the process."""
    for base in limits.bases:
        group = Path(base.path) / f"{limits.name}-1"
        assert str(pid) in (group / "cgroup.procs").read_text().split()
        for file, value in settings_of(base, SHAPE).items():
            assert (group / file).read_text().strip() == value
    if "nice" in limits.about:
        assert os.getpriority(os.PRIO_PROCESS, pid) == 3


def _groups(limits: ControlGroups) -> list[Path]:
    return [group for path in limits.remembered() for group in Path(path).glob(f"{limits.name}-*")]

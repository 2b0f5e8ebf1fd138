"""A guest on a bridge: reached by its IPv6 address, held to it, and nothing of it left when its process is killed.

python bridge_process.py FOLDER

Run it inside `unshare --net --mount --pid`: all that it makes ends with it. The last line it prints is what it found.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from bare_guest import BareGuest, until
from tiny_image import FOLDER

from hostler.drivers.machines.qemu import firewall
from hostler.drivers.machines.qemu.bridge import tap_name
from hostler.drivers.machines.qemu.images.folder import ImageFolder
from hostler.drivers.machines.qemu.network import network_of
from hostler.drivers.privileges import rights_for, users_here
from hostler.errors import Refused, Unavailable
from hostler.testing.servers import find_binary

PLACE, MAC = "a place of the test", "02:11:22:33:44:55"
PING = "sudo ping -c 1 -W 2 {} fd00:77::1 > /dev/null && echo answered || echo silence"

DETECTED = "while ip -o -6 addr show eth0 | grep fd00:77::bad | grep -q tentative; do sleep 0.1; done"
"""Until the guest has found its new address to be nobody else's."""


def ip(*words: str) -> str:
    return subprocess.run([find_binary("ip"), *words], check=True, capture_output=True, text=True).stdout


def mac_of_bridge() -> str:
    return str(json.loads(ip("-j", "link", "show", "br0"))[0]["address"])


async def refusals() -> list[str]:
    """What is said where there is no such bridge, and where it has no address."""
    said = []
    for _ in range(2):
        net = network_of("bridge:br0", None, place=PLACE, uids=None)
        try:
            await net.attach(9, MAC)
        except Refused as error:
            said.append(str(error))
        if len(said) == 1:
            ip("link", "add", "br0", "type", "bridge", "forward_delay", "0")
    return said


async def main(folder: Path) -> dict[str, object]:
    ip("link", "set", "lo", "up")
    found: dict[str, object] = {"refused": await refusals()}
    ip("addr", "add", "fd00:77::1/64", "dev", "br0", "nodad")
    ip("link", "set", "br0", "up")
    uids = users_here(None)
    net = network_of("bridge:br0", "fd00:77::/64", place=PLACE, uids=uids)
    await net.open()
    found["about"] = net.about
    attached = await net.attach(1, MAC)
    found["address"] = attached.ip6
    rights = rights_for(folder, PLACE, 1, uids)
    async with BareGuest(folder, ImageFolder(FOLDER), rights, attached, MAC) as guest:
        net.close_descriptors(attached)
        try:
            await net.attach(1, MAC)
        except Unavailable as error:
            found["twice"] = str(error)
        found["hostname"] = await guest.run("hostname")
        known = mac_of_bridge()
        found["own address"] = await guest.run(PING.format(""))
        await guest.run("sudo ip addr add fd00:77::bad/64 dev eth0")
        spoofed = PING.format("-I fd00:77::bad")
        await guest.run(DETECTED)
        found["other address"] = await guest.run(spoofed)
        table = firewall.table_name(PLACE, 1)
        await firewall.remove("netdev", [table])
        found["other address, unfiltered"] = await guest.run(spoofed)
        await firewall.apply(firewall.guest_rules(table, tap_name(PLACE, 1), MAC, []))
    await net.reclaim({1})
    found["rules while kept"] = list(await firewall.machine_tables(PLACE))
    await net.reclaim(set())
    found["rules left"] = list(await firewall.machine_tables(PLACE))
    found["bridge keeps its MAC"] = mac_of_bridge() == known
    found["tap left"] = not await until(lambda: tap_name(PLACE, 1) not in ip("link"))
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(Path(sys.argv[1])))))

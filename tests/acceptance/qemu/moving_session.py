"""A guest on a bridge moves from one place to another and back, under load, while somebody is logged in and counts.

python moving_session.py FOLDER

Run it inside `unshare --net --mount --pid`: all that it makes ends with it. The last line it prints is what it found.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import msgspec
from guest_login import available, login, plan, run
from guests import repeat
from harness.pace import patience
from warm_image import FOLDER, OPTIONS

from hostler.drivers.machines.qemu.driver import QemuMachines
from hostler.drivers.machines.qemu.images.folder import ImageFolder
from hostler.testing.servers import find_binary

VM = "traveller"
BOOT = "cat /proc/sys/kernel/random/boot_id"
COUNT = "i=0; " + repeat("i=$((i+1)); echo $i", every=0.02)
LOAD = f"({repeat('dd if=/dev/zero of=/tmp/load bs=64k count=32', every=0.2)}) > /dev/null 2>&1 < /dev/null &"
"""Changes memory all the time, and leaves the host's processors to others."""


def ip(*words: str) -> None:
    subprocess.run([find_binary("ip"), *words], check=True)


async def main(folder: Path) -> dict[str, object]:
    ip("link", "set", "lo", "up")
    ip("link", "add", "br0", "type", "bridge", "forward_delay", "0")
    ip("addr", "add", "fd00:77::1/64", "dev", "br0", "nodad")
    ip("link", "set", "br0", "up")
    options = msgspec.structs.replace(OPTIONS, network="bridge:br0")
    images = ImageFolder(FOLDER)
    lines: list[int] = []
    async with (
        QemuMachines(folder / "here", images=images, options=options) as here,
        QemuMachines(folder / "there", images=images, options=options) as there,
    ):
        await here.create(plan(VM))
        await here.start(VM)
        boot = await run(here, VM, f"{LOAD} {BOOT}")
        connection = await login(await available(here, VM))
        session = await connection.create_process(COUNT)

        async def listen() -> None:
            async for line in session.stdout:
                lines.append(int(line))  # noqa: PERF401 - each as it comes

        listening = asyncio.ensure_future(listen())
        await heard(lines, 10)
        moves = 0
        for one, other in ((here, there), (there, here)):
            await other.receive(plan(VM), moves + 1)
            await one.send(VM, moves + 1, lambda door, other=other: other.channel(VM, door))  # type: ignore[misc]
            await other.start(VM)
            await one.delete(VM)
            moves += 1
            await heard(lines, 10)
        same = await run(here, VM, BOOT) == boot
        listening.cancel()
        connection.abort()
        await here.delete(VM)
    lost = sum(after - before - 1 for before, after in pairwise(lines))
    return {"same boot": same, "moves": moves, "lines": len(lines), "lines lost": lost}


async def heard(lines: list[int], more: int) -> None:
    """Until the session has said so many more lines."""
    wanted = len(lines) + more
    async with asyncio.timeout(patience(10)):
        while len(lines) < wanted:
            await asyncio.sleep(0.02)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(Path(sys.argv[1])))))

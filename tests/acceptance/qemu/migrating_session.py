"""A guest on a bridge is migrated and back, under load, by the command line, while somebody is logged in and counts.

python migrating_session.py FOLDER

Run it inside `unshare --net --mount --pid`: the whole control plane is in there, and ends with it. The last line it
prints is what it found.
"""

from __future__ import annotations

import asyncio
import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import asyncssh
from moving_plane import NODES, MovingPlane, Watch
from moving_session import BOOT, COUNT, LOAD, heard, ip
from warm_image import FOLDER

from hostler.drivers.machines.qemu.images.folder import ImageFolder

if TYPE_CHECKING:
    from hostler.model.vm_api import VmView

BRIDGE = {"HOSTLER_NETWORK": "bridge:br0"}


async def main(folder: Path) -> dict[str, object]:
    ip("link", "set", "lo", "up")
    ip("link", "add", "br0", "type", "bridge", "forward_delay", "0")
    ip("addr", "add", "fd00:77::1/64", "dev", "br0", "nodad")
    ip("link", "set", "br0", "up")
    lines: list[int] = []
    environs = dict.fromkeys(NODES, BRIDGE)
    async with MovingPlane(folder, ImageFolder(FOLDER), environs) as plane, Watch(plane):
        await plane.cli("vm", "create", "web", "--memory", "128M", "--wait")
        boot = await plane.inside("web", f"{LOAD} {BOOT}")
        view = await plane.seen("web", lambda view: view.available)
        connection = await login(view, folder / "state" / "hostler" / "ssh" / "id_ed25519")
        session = await connection.create_process(COUNT)

        async def listen() -> None:
            async for line in session.stdout:
                lines.append(int(line))  # noqa: PERF401 - each as it comes

        listening = asyncio.ensure_future(listen())
        await heard(lines, 10)
        moves = 0
        nodes = [view.node]
        for _ in range(2):
            (other,) = set(NODES) - {nodes[-1]}
            await plane.cli("vm", "migrate", "web", "--to", other, "--wait")
            after = await plane.seen("web", lambda view: view.settled and view.available)
            nodes.append(after.node)
            moves += after.access == view.access
            await heard(lines, 10)
            await plane.check_only_on(other, view.id)
        same = await plane.inside("web", BOOT) == boot
        listening.cancel()
        connection.abort()
    lost = sum(after - before - 1 for before, after in pairwise(lines))
    return {"same boot": same, "moves": moves, "nodes": nodes, "lines": len(lines), "lines lost": lost}


async def login(view: VmView, key: Path) -> asyncssh.SSHClientConnection:
    """To the guest's own address, past the control plane."""
    assert view.access is not None
    known = asyncssh.import_known_hosts("".join(f"* {key}\n" for key in view.access.host_keys))
    async with asyncio.timeout(60):
        return await asyncssh.connect(
            view.access.host,
            view.access.port,
            username=view.access.user,
            client_keys=[str(key)],
            known_hosts=known,
            config=None,
            agent_path=None,
        )


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(Path(sys.argv[1])))))

"""A machine on a disk that fills up and is freed again. Run in network, mount and process namespaces of its own.

    python full_disk_process.py FOLDER

Mounts a small tmpfs at FOLDER, which nobody else sees and which is gone with this process, and prints one JSON line.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path

from driven import SOME, driver, is_available, plan, run, until
from harness.pace import patience
from warm_image import FOLDER, OPTIONS

from hostler.drivers.machines.qemu.images.folder import ImageFolder
from hostler.drivers.machines.qemu.machine import RETRY_EVERY
from hostler.testing.servers import find_binary

MIB = 2**20
LEFT, WRITTEN = 12, 60
"""MiB that are left when the guest begins to write, and that it writes."""


async def main(folder: Path) -> dict[str, object]:
    images = ImageFolder(FOLDER)
    copied = sum(path.stat().st_size for path in images.files("tiny").iterdir() if path.is_file())
    size = copied // MIB + 256
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}m", "tmpfs", str(folder)], check=True)
    subprocess.run([find_binary("ip"), "link", "set", "lo", "up"], check=True)
    found: dict[str, object] = {}
    told: list[str] = []
    async with driver(folder / "node", images, reserve_gib=0.02, accelerator=OPTIONS.accelerator) as machines:
        machines.listen(told.append)
        await machines.create(plan("a", disk_gib=1))
        await machines.start("a")
        await until(machines, "a", is_available)
        filler = folder / "filler"
        filler.write_bytes(bytes(shutil.disk_usage(folder).free - LEFT * MIB))
        told.clear()
        writing = asyncio.create_task(
            run(machines, "a", f"dd if=/dev/zero of=big bs=1M count={WRITTEN} conv=fsync 2>/dev/null; wc -c < big")
        )
        full = await until(machines, "a", lambda machine: machine.detail != "")
        found |= {"state": full.state, "detail": full.detail, "told": "a" in told}
        found["refuses"] = (await machines.offer()).refuses
        await asyncio.sleep(2 * RETRY_EVERY)  # it is let try again, in vain
        found["still"] = (await until(machines, "a", lambda _: True)).detail == full.detail and not writing.done()
        filler.unlink()
        found["written"] = await asyncio.wait_for(writing, patience(SOME))
        found["detail after"] = (await until(machines, "a", lambda machine: machine.detail == "")).detail
        found["refuses after"] = (await machines.offer()).refuses
        found["readable"] = await run(machines, "a", "dmesg | grep -ci 'I/O error' || true")
        await machines.delete("a")
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(Path(sys.argv[1])))))

"""Guests on Hostler's own bridge, one booted and one from a saved state, logged into as labs are.

python lab_process.py FOLDER

Run it inside `unshare --net --mount --pid`: all that it makes ends with it. The last line it prints is what it found.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import asyncssh
from guest_login import KEY, SOME, available
from guests import KEYS
from harness.pace import patience
from warm_image import CPUS, FOLDER, MEMORY_MIB, OPTIONS

from hostler.drivers.machines.qemu import ImageFolder, QemuMachines, QemuOptions, saved_state
from hostler.drivers.machines.qemu.bridge import tap_name
from hostler.entry.labs import lab_network
from hostler.model.vm import VmSpec
from hostler.ports.machines import Label, MachinePlan
from hostler.settings import load
from hostler.testing.servers import find_binary

REDIS = "redis://127.0.0.1:1"
SAYS = (
    "id -un; pwd; sudo id -u; cat /sys/class/net/eth0/address; hostname; stat -c '%U %a' .ssh/authorized_keys;"
    f" grep -c {saved_state.ARGUMENT} /proc/cmdline; ls /home"
)
WITHOUT = ("--inh-caps=-net_admin", "--bounding-set=-net_admin")


def ip(*words: str) -> str:
    return subprocess.run([find_binary("ip"), *words], check=True, capture_output=True, text=True).stdout


def seen_through_the_door(data: Path) -> tuple[str, str]:
    """The network that labs of this folder get, and why there is none."""
    settings = load({"data": data, "machines": "qemu", "redis": REDIS}, {}, cwd=data)
    found = lab_network(settings)
    network = settings.with_driver_options(**found.options).driver_options["network"]
    return network, f"{found.why}; {found.advice}".strip("; ")


def bridges() -> list[str]:
    return sorted(link["ifname"] for link in json.loads(ip("-j", "link", "show", "type", "bridge")))


def refused(folder: Path) -> list[str]:
    """What somebody without the right is told."""
    argv = [find_binary("setpriv"), *WITHOUT, sys.executable, __file__, "refused", str(folder)]
    found: list[str] = json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)
    return [*found, *bridges()]


def twice(folder: Path) -> dict[str, object]:
    """One bridge for each data folder, whoever comes first and however often."""
    one, other = folder / "one", folder / "other"
    for data in (one, other, one, other):
        data.mkdir(exist_ok=True)
        assert seen_through_the_door(data) == ("bridge", "")
    mine, theirs = bridges()
    prefix = (one / "bridge6").read_text().strip()
    (address,) = (
        entry
        for entry in json.loads(ip("-j", "-6", "address", "show", mine))[0]["addr_info"]
        if entry["scope"] == "global"
    )
    return {
        "names": [mine, theirs[:2], len(theirs)],
        "address": address["local"] == prefix.removesuffix("/64") + "1" and not address.get("tentative"),
        "up": "UP" in json.loads(ip("-j", "link", "show", mine))[0]["flags"],
    }


async def logged_in(machines: QemuMachines, vm: str, memory_mib: int) -> dict[str, object]:
    """What a machine is to who logs in at port 22 of its address, and after how many seconds that could be."""
    spec = VmSpec(cpus=CPUS, memory_mib=memory_mib, ssh_keys=KEYS, user="student")
    await machines.create(MachinePlan(label=Label("labs", "joe", vm), spec=spec, name=vm))
    begun = time.monotonic()
    await machines.start(vm)
    access = await available(machines, vm)
    known = asyncssh.import_known_hosts(f"* {access.host_keys[0]}")
    usual = {"client_keys": [KEY], "known_hosts": known, "config": None, "agent_path": None}
    async with asyncio.timeout(patience(SOME)), asyncssh.connect(access.host, username="student", **usual) as student:
        seconds = time.monotonic() - begun
        said = str((await student.run(SAYS)).stdout).split("\n")[:-1]
    try:
        async with asyncio.timeout(patience(SOME)), asyncssh.connect(access.host, username="hostler", **usual):
            other = "let in"
    except asyncssh.PermissionDenied:
        other = "refused"
    seen = await machines.inspect(vm)
    assert seen is not None
    return {
        "said": [*said[:3], *said[4:]],
        "mac": said[3] == machines._machines[vm].record.mac,
        "access": [access.user, access.port, access.host == seen.address],
        "the image's own user": other,
        "seconds": round(seconds, 2),
    }


async def main(folder: Path) -> dict[str, object]:
    ip("link", "set", "lo", "up")
    found: dict[str, object] = {"refused": refused(folder), "twice": twice(folder)}
    options = QemuOptions(accelerator=OPTIONS.accelerator, network="bridge", data=folder / "one")
    async with QemuMachines(folder / "machines", images=ImageFolder(FOLDER), options=options) as machines:
        found["network"] = (await machines.offer()).facts["network"]
        found["cold"] = await logged_in(machines, "cold", MEMORY_MIB + 8)
        ip("link", "delete", "hostler0")  # by somebody who knows nothing of it
        found["warm"] = await logged_in(machines, "warm", MEMORY_MIB)
        members = [link["ifname"] for link in json.loads(ip("-j", "link", "show", "master", "hostler0"))]
        found["members"] = members == [tap_name(machines.place, 2)]
        for vm in ("cold", "warm"):
            await machines.delete(vm)
    found["left standing"] = "hostler0" in bridges()
    return found


if __name__ == "__main__":
    if sys.argv[1] == "refused":
        print(json.dumps(seen_through_the_door(Path(sys.argv[2]))))
    else:
        print(json.dumps(asyncio.run(main(Path(sys.argv[1])))))

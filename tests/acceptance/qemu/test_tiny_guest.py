"""The tiny guest keeps its contract (docs/images.md): booted for real, without the driver."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import time
from typing import TYPE_CHECKING

import asyncssh
import pytest
from dose import rotates
from harness.pace import check, patience
from told_guest import FILL, KEY, SOME, ToldGuest, identity, overlay

from hostler.drivers.machines.qemu.images.build import build_tiny, package_cache

if TYPE_CHECKING:
    from pathlib import Path

    from hostler.drivers.machines.qemu.images.folder import ImageFolder

pytestmark = [pytest.mark.timeout(300), rotates(2, "src/hostler/drivers/machines/qemu")]
STALLS = 120
SCRIPT = "#!/bin/sh\necho ran >> /root/ran\n"


async def test_a_machine_is_who_it_was_told_and_keeps_what_was_written(images: ImageFolder, tmp_path: Path) -> None:
    image, files = images.find("tiny")
    disk = tmp_path / "disk.qcow2"
    overlay(files, disk, "3G")
    other = asyncssh.generate_private_key("ssh-ed25519")
    keys = tuple(key.export_public_key().decode().strip() for key in (KEY, other))
    who = identity(ssh_keys=keys, user_data=SCRIPT, ip6="fd00:7::2/64", gw6="fe80::7")
    async with ToldGuest(tmp_path / "1", image, files, disk, who) as guest:
        await guest.go_on()
        assert (await guest.line()).startswith("hostler ready ")
        said = (
            await guest.run(
                "hostname; cat /etc/hostname; cat /sys/class/net/eth0/address;"
                " id -u; sudo id -u; sudo -u hostler id -u;"
                " ip -o -4 addr show eth0 | grep -c 10.0.2.15/24;"
                " ip -o -6 addr show eth0 | grep fd00:7::2/64 | grep -c -v tentative;"
                " ip -4 route | grep default; ip -6 route | grep default; cat /etc/resolv.conf"
            )
        ).splitlines()
        assert said[:6] == ["tiny-one", "tiny-one", "52:54:00:aa:bb:cc", "1000", "0", "1000"]
        assert said[6:8] == ["1", "1"]
        assert said[8].startswith("default via 10.0.2.2 ")
        assert said[9].startswith("default via fe80::7 dev eth0")
        assert said[10:] == ["nameserver 10.0.2.3"]
        assert int(await guest.run("df -m / | awk 'END {print $2}'")) > 2500, "the disk's real size"
        assert "Permission denied" in await guest.run("cat /root/ran")
        assert await guest.run("until sudo test -s /root/ran; do sleep 0.1; done; sudo cat /root/ran") == "ran"
        reseeded = await guest.run("echo seed | sudo reseed; echo $?; echo seed | reseed; echo $?")
        assert reseeded.split() == ["0", "1"], "root can, and only root may"
        own = asyncssh.generate_private_key("ssh-ed25519")
        public = own.export_public_key().decode().strip()
        await guest.run("echo home > f; echo tmp > /tmp/f; sudo sh -c 'echo etc > /etc/f'")
        await guest.run(f"echo '{public}' >> .ssh/authorized_keys")
        assert await guest.run("id -u", key=other) == "1000"

        await check_channel(guest)
        await check_console(guest)
        # Something that takes its time to end is waited for, and what it wrote then is there.
        slow = "trap 'sleep 0.3; echo ended > ended; exit' TERM; while :; do sleep 0.1; done"
        await guest.run(f"({slow}) > /dev/null 2>&1 < /dev/null &")
        began = time.monotonic()
        await guest.execute("system_powerdown")
        assert await guest.ended() == 0
        # Busybox's own way takes two seconds more on a quiet machine.
        check(time.monotonic() - began, 2.0, since=began, what="switching itself off")

    who = identity(user_data=SCRIPT, mac="52:54:00:aa:bb:dd", hostname="renamed")
    async with ToldGuest(tmp_path / "2", image, files, disk, who) as guest:
        await guest.go_on()
        assert (await guest.line()).startswith("hostler ready ")
        said = await guest.run("cat f /tmp/f /etc/f ended; sudo cat /root/ran; hostname; sudo dmesg | grep -c recovery")
        assert said.split() == ["home", "tmp", "etc", "ended", "ran", "renamed", "0", "[1]"], "user-data ran once"
        assert await guest.run("id -u", key=own) == "1000", "a key that the user wrote stays"
        with pytest.raises(asyncssh.PermissionDenied):
            await guest.run("id -u", key=other)
        await guest.run("sync")

    async with ToldGuest(tmp_path / "3", image, files, disk, identity(instance="clone", user_data=SCRIPT)) as guest:
        await guest.go_on()
        assert (await guest.line()).startswith("hostler ready ")
        again = "until [ $(sudo cat /root/ran | wc -l) = 2 ]; do sleep 0.1; done; cat f"
        assert await guest.run(again) == "home", "a clone has the disk, and runs its user-data"
        await guest.run(f"sudo sh -c '{FILL}'")
        assert "No space left" in await guest.run("sudo sh -c 'echo more > /more'")

    # More keys than the room that the old ones leave, and ours the last: half of them would lock us out.
    many = (*(f"ssh-ed25519 AAAA{number:060}" for number in range(200)), keys[0])
    async with ToldGuest(tmp_path / "4", image, files, disk, identity(ssh_keys=many, hostname="full")) as guest:
        await guest.go_on()
        assert (await guest.line()).startswith("hostler ready ")
        assert await guest.run("hostname; cat f") == "full\nhome", "a full disk locks nobody out"


async def check_channel(guest: ToldGuest) -> None:
    guest.tell("ping")
    assert await guest.line() == "pong"
    guest.tell("nonsense $(reboot)")
    guest.tell("clock 2000000000")
    assert await guest.line() == "clock set"
    assert int(await guest.run("date +%s")) - 2_000_000_000 in range(200)


async def check_console(guest: ToldGuest) -> None:
    """Whoever is at the serial port is the user, not root."""
    guest.type.write(b"\nid -u; echo 'en''d'\n")
    heard = b""
    async with asyncio.timeout(patience(SOME)):
        while b"\nend" not in heard:
            heard += await guest.console.read(4096)
    assert b"\n1000\r" in heard
    guest.type.write(b"exit\n")


async def test_a_template_waits_and_becomes_the_machine_that_it_is_told_to_be(
    images: ImageFolder, tmp_path: Path
) -> None:
    image, files = images.find("tiny")
    saved = tmp_path / "saved"
    for name, size in (("template", "1G"), ("machine", "2G")):
        overlay(files, tmp_path / name, size)
    template = ToldGuest(tmp_path / "t", image, files, tmp_path / "template", None, append="hostler.template")
    async with template as guest:
        await guest.go_on()
        assert await guest.line() == "hostler template"
        await guest.execute("stop")
        await guest.execute("migrate", uri=f"exec:cat > {saved}")
        async with asyncio.timeout(patience(SOME)):
            while (await guest.execute("query-migrate"))["status"] != "completed":
                await asyncio.sleep(0.05)
    restored = ToldGuest(
        tmp_path / "m",
        image,
        files,
        tmp_path / "machine",
        identity(seed=b"other random numbers" * 3),
        append="hostler.template",
        more=("-incoming", f"exec:cat {saved}"),
    )
    async with restored as guest:
        async with asyncio.timeout(patience(SOME)):
            while (await guest.execute("query-status"))["status"] == "inmigrate":
                await asyncio.sleep(0.02)
        await guest.go_on()
        guest.tell("go 2000000000")
        assert (await guest.line()).startswith("hostler ready ")
        said = await guest.run("hostname; cat /sys/class/net/eth0/address; df -m / | awk 'END {print $2}'; date +%s")
        name, mac, size, now = said.split()
        assert (name, mac) == ("tiny-one", "52:54:00:aa:bb:cc")
        assert int(size) > 1500, "of its own disk, not of the template's"
        assert int(now) - 2_000_000_000 in range(200)

    # The same machine once more, from the power switch: its kernel is still told to be a template's.
    again = ToldGuest(tmp_path / "a", image, files, tmp_path / "machine", identity(), append="hostler.template")
    async with again as guest:
        await guest.go_on()
        assert (await guest.line()).startswith("hostler ready "), "who has an identity does not wait for one"


async def test_a_probe_says_that_it_booted_and_switches_itself_off(images: ImageFolder, tmp_path: Path) -> None:
    """Though its host stands still again and again while its kernel looks for a timer."""
    image, files = images.find("tiny")
    async with ToldGuest(tmp_path / "p", image, files, None, None, append="hostler.probe") as guest:
        said = asyncio.ensure_future(guest.console.read())
        await guest.go_on()
        for _ in range(STALLS):
            await guest.stall(0.06)
            await asyncio.sleep(0.002)
        async with asyncio.timeout(patience(SOME)):
            assert b"hostler booted" in await said
        assert await guest.ended() == 0


async def test_a_disk_that_is_none_is_told_as_such(images: ImageFolder, tmp_path: Path) -> None:
    image, files = images.find("tiny")
    disk = tmp_path / "disk.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", str(disk), "1G"], check=True)
    async with ToldGuest(tmp_path / "d", image, files, disk, identity()) as guest:
        await guest.go_on()
        assert (
            await guest.line() == "hostler failed the disk cannot be mounted: there is no ext4 on it, or a damaged one"
        )
        assert await guest.ended() == 0


async def test_what_is_built_again_is_the_same(images: ImageFolder, tmp_path: Path) -> None:
    image, _ = images.find("tiny")
    heard: list[tuple[str, int, int | None]] = []
    fields = await build_tiny(tmp_path / "again", lambda *said: heard.append(said), cache=package_cache())
    for name, digest in image.files.items():
        assert hashlib.sha256((tmp_path / "again" / name).read_bytes()).hexdigest() == digest, name
    assert fields["append"] == image.append
    assert list(dict.fromkeys(what for what, _, _ in heard)) == ["packages", "unpack", "system", "disk"]
    assert sorted(path.name for path in (tmp_path / "again").iterdir()) == ["disk", "initrd", "kernel"]

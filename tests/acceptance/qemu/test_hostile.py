"""Guests that do as they like, and users who write what they like: neither reaches further than its own machine."""

from __future__ import annotations

import asyncio
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from driven import driver, is_available, plan, run, until
from harness.pace import check, patience
from real_plane import SOME, RealPlane, command_line, seen, working_below
from told_guest import FILL
from warm_image import OPTIONS, warm_images

from hostler.drivers.machines.qemu.serial import LOG, LOG_BYTES, OLDER_LOG
from hostler.errors import Invalid, Refused
from hostler.model.vm import MachineState, Power, Step, VmSpec
from hostler.model.vm_api import VmCreate, VmPhase

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from typing import TypeAlias

    from hostler.client import Client
    from hostler.drivers.machines.qemu.images.folder import ImageFolder

    Inside: TypeAlias = Callable[[str, str], Awaitable[str]]

ORG = PROJECT = "default"
NASTY = "-drive file=/etc/passwd,if=none \"x' ;rm -rf $(id) `id` ü☠ %s"
"""What a name may be: anything without a slash and control characters. (The slashes are taken out below.)"""
NAME = NASTY.replace("/", "")[:63]
TAKEN = (NAME, "-drive", "--help", "a b", "'", '"', "x,y=z", "; rm", "$(id)", "☠", "é" * 63, "a" * 63, "%2e%2e")
NOT_TAKEN = ("", "..", "a\nb", "a\x00b", "\x1b[2J", "../x", "a/b", "a" * 64, "a\x7fb")
OPTION_WORDS = frozenset((
    "-name", "-machine", "-accel", "-cpu", "-smp", "-m", "-object", "-nodefaults", "-no-user-config", "-display", "-S",
    "-no-shutdown", "-sandbox", "-msg", "-chardev", "-mon", "-serial", "-device", "-blockdev", "-fw_cfg", "-netdev",
    "-kernel", "-initrd", "-append", "-loadvm", "-incoming",
))  # fmt: skip
VALUE = re.compile(r"[A-Za-z0-9 ._:,=/+\-{}\[\]\"']*")
MARKS = ("etc", "passwd", "drive file", "rm -rf", "$(", "`", "☠", "ü", "HOSTILE", "evil")


def check_command_line(pid: int) -> list[str]:
    """Its options are those that we have words for, each as often as we say it, and nothing that a user wrote."""
    words = command_line(pid)
    assert Path(words[0]).name == "qemu-system-x86_64"
    options = [word for word in words[1:] if word.startswith("-")]
    assert set(options) <= OPTION_WORDS, set(options) - OPTION_WORDS
    for single in ("-name", "-blockdev", "-netdev", "-sandbox", "-m", "-kernel", "-append", "-mon"):
        assert options.count(single) == 1, single
    for word in words:
        assert VALUE.fullmatch(word), word
        assert not any(mark in word for mark in MARKS), word
    return words


@pytest.fixture(scope="module")
def images() -> ImageFolder:
    return warm_images()


# Users


async def test_what_a_machine_is_called_and_told_stays_data_and_one_that_ignores_its_button_is_switched_off(
    tmp_path: Path, images: ImageFolder
) -> None:
    folder = tmp_path / "node"
    vm = "../evil -drive file=/etc/passwd,\n'\"☠"
    script = "#!/bin/sh\nhostname > /root/told\necho 'HOSTILE $(id)' >> /root/told\n"
    keys = (*plan("x").spec.ssh_keys, 'command="rm -rf /",no-pty ssh-ed25519 AAAA $(id)')
    async with driver(folder, images, accelerator=OPTIONS.accelerator) as machines:
        for key in ("ssh-ed25519 AAAA\nssh-ed25519 BBBB evil", "", "a\x00b"):
            with pytest.raises((Invalid, Refused)):
                await machines.create(plan(vm, ssh_keys=(key,)))
        assert await machines.list() == []
        await machines.create(plan(vm, ssh_keys=keys, user_data=script, network_config="HOSTILE: -drive\n"))
        await machines.start(vm)
        (pid,) = working_below(folder)
        cold = check_command_line(pid)
        hostname = await run(machines, vm, "hostname")
        assert hostname == "evil-drive-file-etc-passwd"
        assert await run(machines, vm, "cat /etc/hostname; grep -c evil /etc/hosts") == f"{hostname}\n1"
        told = "until sudo grep -q HOSTILE /root/told; do sleep 0.2; done; sudo cat /root/told"
        assert await run(machines, vm, told) == f"{hostname}\nHOSTILE $(id)", "its script ran, once, as it was written"
        # Also what it is started from later is called by a word of ours.
        name = "-loadvm evil,\n☠ $(id)"
        assert (await machines.snapshot(vm, name)).snapshots == (name,)
        await machines.restore(vm, name, 1)
        await machines.start(vm)
        (pid,) = working_below(folder)
        again = check_command_line(pid)
        assert [word for word in again if word not in cold and not word.startswith("user,")] == ["-loadvm", "s1"]

        # A guest that does not listen to its power button.
        await until(machines, vm, is_available)
        await run(machines, vm, "sudo killall -STOP acpid")
        began = time.monotonic()
        assert (await machines.stop(vm, grace=2)).state is MachineState.STOPPED
        assert time.monotonic() - began >= 2, "it had its time"
        assert working_below(folder) == []
        await machines.delete(vm)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["node"]
        assert list((folder / "vms").iterdir()) == []


# Both, through the product


@pytest.fixture
def plane(tmp_path: Path, images: ImageFolder) -> Iterator[RealPlane]:
    plane = RealPlane(tmp_path, images)
    try:
        plane.start("--nodes", 1)
        yield plane
    finally:
        plane.end()


async def check_names(client: Client) -> None:
    """Names that cannot be are refused at the door; the others are names, and nothing else."""
    spec = VmSpec(cpus=1, memory_mib=128)
    for name in NOT_TAKEN:
        with pytest.raises(Invalid):
            await client.vms.create(ORG, PROJECT, VmCreate(name=name, spec=spec, power=Power.OFF))
    for name in TAKEN[1:]:
        made = await client.vms.create(ORG, PROJECT, VmCreate(name=name, spec=spec, power=Power.OFF))
        assert made.name == name
        assert re.fullmatch(r"[0-9a-f-]{32,36}", made.id)
    keys = VmSpec(cpus=1, memory_mib=128, ssh_keys=("ssh-ed25519 AAAA\nevil",))
    with pytest.raises(Invalid, match="one line"):
        await client.vms.create(ORG, PROJECT, VmCreate(name="keys", spec=keys))
    elsewhere = VmSpec(cpus=1, memory_mib=128, image="../../../etc/passwd")
    await client.vms.create(ORG, PROJECT, VmCreate(name="image", spec=elsewhere))
    for name in TAKEN[1:]:
        view = await client.vms.wait(ORG, PROJECT, name, phase=VmPhase.STOPPED)
        assert view is not None
        assert view.name == name
        await client.vms.delete(ORG, PROJECT, view.id)
    image = await seen(client, "image", lambda view: view.detail)
    assert "image" in image.detail
    assert image.phase in (VmPhase.FAILED, VmPhase.PENDING, VmPhase.CREATING, VmPhase.PLACED)
    await client.vms.delete(ORG, PROJECT, "image")
    await client.vms.wait(ORG, PROJECT, "image", gone=True)


async def fills_its_disk(client: Client, inside: Inside) -> None:
    """That is its own trouble: it runs, and can be logged into."""
    filled = await inside("bad", f"sudo sh -c '{FILL}' 2> /dev/null; df /")
    assert "100%" in filled, filled
    assert await inside("bad", "echo more > more || echo no room") == "no room"
    view = await client.vms.get(ORG, PROJECT, "bad")
    assert (view.phase, view.detail, view.available) == (VmPhase.RUNNING, "", True)


async def floods(plane: RealPlane, client: Client, bad: str, inside: Inside) -> None:
    """What comes out of it is bounded on disk and in what it costs, and others are served as ever."""
    assert plane.up is not None
    folder = plane.folder_of(bad)

    async def takes_snapshot(name: str) -> float:
        began = time.monotonic()
        await client.vms.snapshot(ORG, PROJECT, NAME, name)
        await seen(client, NAME, lambda view: view.snapshots.get(name) is not None)
        return time.monotonic() - began

    quiet = await takes_snapshot("quiet")
    await inside("bad", f"sudo sh -c '{quoted(FLOOD)}' > /dev/null 2>&1")
    cpu, began = cpu_seconds(plane.up.pid), time.monotonic()
    loud = time.monotonic()
    # Both guests and the control plane share the cores with the flood.
    check(await takes_snapshot("loud"), 4 * quiet + 2, since=loud, what="a snapshot beside the flood")
    # By then more has come out of it than is kept: twice a full half of the log was put aside.
    halves: set[tuple[int, int]] = set()
    while len(halves) < 2 or time.monotonic() - began < WATCHED:
        assert time.monotonic() - began < patience(SOME), f"not enough came out of it: {halves}"
        await asyncio.sleep(0.05)
        if (folder / OLDER_LOG).exists():
            halves.add(((aside := (folder / OLDER_LOG).stat()).st_ino, aside.st_mtime_ns))
    used = (cpu_seconds(plane.up.pid) - cpu) / (time.monotonic() - began)
    assert used < 0.6, f"the control plane was busy for {used:.0%} of the time"
    kept = sum((folder / name).stat().st_size for name in (LOG, OLDER_LOG) if (folder / name).exists())
    assert kept <= LOG_BYTES + 64 * 1024
    view = await client.vms.get(ORG, PROJECT, "bad")
    assert (view.phase, view.detail) == (VmPhase.RUNNING, "")
    assert await inside("bad", "sudo touch /run/quiet; sudo killall -q yes head; echo quiet") == "quiet"


FLOOD = """
goes_on() { [ ! -e /run/quiet ]; }
(while goes_on; do yes 'a line of the flood'; done > /dev/ttyS0) &
(while goes_on; do head -c 3000 /dev/urandom; head -c 100000 /dev/zero; echo; echo pong evil; done > /dev/ttyS1) &
"""
"""Text without end on the console; on its channel to us garbage, lines without end, and words that we wait for."""
OTHER_KEY = "sed -i 's,^if \\[ -e $identity/host_key/raw \\]; then,if false; then,' /lib/hostler/start"
RESTART = "(sleep 1; echo b > /proc/sysrq-trigger) > /dev/null 2>&1 &"
MUTE = """#!/bin/sh
PATH=/bin
echo >> /boots
sync
[ $(wc -l < /boots) -lt 2 ] && echo b > /proc/sysrq-trigger
while :; do sleep 1000; done
"""
"""Takes the place of what the guest begins as: it restarts itself once more, and then says nothing at all."""
BOOT_SECONDS = 4
WATCHED = 2.0


async def has_impatient_image(plane: RealPlane, images: ImageFolder) -> None:
    """The tiny guest once more, as an image whose deadlines are soon over."""
    image, files = images.find("tiny")
    about = ("--seeding", "firmware", "--user", image.user, "--memory", "128M", "--append", image.append)
    kernel = ("--kernel", files / "kernel", "--initrd", files / "initrd")
    await plane.cli("image", "add", "impatient", files / "disk", *about, *kernel, "--boot-seconds", f"{BOOT_SECONDS}s")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.timeout(300)
async def test_guests_and_names_of_the_worst_kind_harm_nobody_but_themselves(
    plane: RealPlane, images: ImageFolder
) -> None:
    await has_impatient_image(plane, images)

    async def inside(vm: str, command: str) -> str:
        return (await plane.cli("vm", "ssh", "--", vm, command)).out.strip()

    async with plane.client() as client:
        await check_names(client)
        labels = ("-l", "app=-drive ☠")
        await asyncio.gather(
            plane.cli("vm", "create", "bad", "--image", "impatient", "--memory", "128M", "--wait"),
            plane.cli("vm", "create", "--memory", "128M", *labels, "--wait", "--", NAME),
        )
        bad, good = await client.vms.get(ORG, PROJECT, "bad"), await client.vms.get(ORG, PROJECT, NAME)
        assert good.labels == {"app": "-drive ☠"}
        processes = {vm.id: plane.process_of(vm.id) for vm in (bad, good)}
        for pid in processes.values():
            check_command_line(pid)
        assert re.fullmatch(
            r"drive-file-etcpasswd-if-none-x-rm-rf-id-id-[a-z0-9-]*[a-z0-9]", await inside(NAME, "hostname")
        )

        await fills_its_disk(client, inside)
        await floods(plane, client, bad.id, inside)

        # It answers with a key that is not the one that was made for it.
        script = f"rm /fill* /last; sync; {OTHER_KEY}; cat > /mute; chmod 755 /mute; sync; {RESTART}"
        await plane.cli("vm", "ssh", "bad", f"sudo sh -c '{quoted(script)}'", stdin=MUTE)
        other = await seen(client, "bad", lambda view: view.readiness and "host key" in view.readiness.cause)
        assert other.readiness is not None
        assert other.readiness.step is Step.SSH
        assert "another host key" in other.readiness.cause
        assert not other.available
        assert "another host key" in (await plane.cli("vm", "show", "bad")).out
        refused = await plane.cli("vm", "ssh", "bad", "true", code=255)
        assert "host key" in refused.err

        # It restarts itself again and again, and then says nothing at all.
        typed = "sudo cp /mute /lib/hostler/start; sync; sudo sh -c 'echo b > /proc/sysrq-trigger'\r"
        await plane.cli("vm", "console", "bad", stdin=f"\r{typed}")
        restless = await seen(client, "bad", lambda view: "restarted itself" in view.detail)
        assert restless.phase is VmPhase.RUNNING
        # What is said may still be about the boot before: one restart may be several resets. Wait until it stays said.
        async with asyncio.timeout(patience(SOME)):
            shown = ""
            while not ("did not report that it is up" in shown and "restarted itself" in shown):
                mute = await seen(
                    client, "bad", lambda view: view.readiness and "did not report" in view.readiness.cause
                )
                assert mute.readiness is not None
                assert (mute.readiness.step, mute.phase) == (Step.BOOTING, VmPhase.RUNNING)
                assert "did not report that it is up" in mute.readiness.cause
                shown = (await plane.cli("vm", "show", "bad")).out

        # Nobody else has noticed, and nothing was multiplied.
        assert {vm.id: plane.process_of(vm.id) for vm in (bad, good)} == processes
        assert await inside(NAME, "echo fine") == "fine"
        await plane.cli("vm", "delete", "--yes", "--wait", "--", "bad", NAME)
        assert working_below(plane.data) == []


def quoted(text: str) -> str:
    return text.replace("'", "'\\''")

"""Whether guests run on the processor itself is found out with a real guest, and whoever asks leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness.pace import patience
from told_guest import SOME

from hostler.drivers.machines.qemu import acceleration
from hostler.drivers.machines.qemu.privileges import accelerator_groups
from hostler.drivers.privileges import Privileges, users_here

if TYPE_CHECKING:
    from hostler.drivers.machines.qemu.images.folder import ImageFolder

ASKS = """
import asyncio, sys
from pathlib import Path
from hostler.drivers.machines.qemu import acceleration
acceleration.DEVICE = sys.argv[2]
asyncio.run(acceleration.verdict(Path(sys.argv[1]), Path(sys.argv[1]), uids=None))
"""


@pytest.mark.timeout(300)
async def test_the_verdict_is_found_without_holding_anybody_up_and_stays(images: ImageFolder, tmp_path: Path) -> None:
    _, files = images.find("tiny")
    users = users_here(None)
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0.005)

    beating = asyncio.ensure_future(beat())
    began = time.monotonic()
    async with asyncio.timeout(patience(SOME)):
        found = await acceleration.verdict(tmp_path, files, uids=users)
    took = time.monotonic() - began
    beating.cancel()
    assert found.accelerator in ("kvm", "tcg")
    assert found.why
    assert beats > min(took, 1.0) / 0.005 / 20, "the loop went on meanwhile"
    assert acceleration.stored_verdict(tmp_path, uids=users) == found
    assert await acceleration.verdict(tmp_path, files, uids=users) == found
    if not may_open_the_device():
        assert found.accelerator == "tcg"
        assert acceleration.DEVICE in found.why
    assert not list(files.glob("core*"))


@pytest.mark.timeout(300)
async def test_a_probe_has_no_more_rights_than_a_machine(
    images: ImageFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that only we may open is none for the guest: QEMU says so, whatever we took its mode for."""
    looks_open = tmp_path / "kvm"
    looks_open.touch()
    looks_open.chmod(0o666)
    opens = may_open_the_device()
    is_there = Path(acceleration.DEVICE).exists()
    monkeypatch.setattr(acceleration, "DEVICE", str(looks_open))
    async with asyncio.timeout(patience(SOME)):
        found = await acceleration.verdict(tmp_path, images.files("tiny"), uids=users_here(None))
    if not opens:
        assert found.accelerator == "tcg"
        assert ("Permission denied" if is_there else "No such file") in found.why
    assert not (tmp_path / acceleration.STAGE).exists()


async def test_a_probe_whose_process_is_killed_ends_with_it(tmp_path: Path) -> None:
    for name in ("kernel", "initrd", "kvm"):
        (tmp_path / name).touch()
    qemu = tmp_path / acceleration.BINARY
    qemu.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/draft; mv {tmp_path}/draft {tmp_path}/pid\nexec sleep 600\n")
    qemu.chmod(0o755)
    asking = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", ASKS, str(tmp_path), str(tmp_path / "kvm")),
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    async with asyncio.timeout(patience(SOME)):
        while not (tmp_path / "pid").exists():
            assert asking.returncode is None, "it ended without a probe"
            await asyncio.sleep(0.02)
    probe = Path("/proc") / (tmp_path / "pid").read_text().strip()
    assert is_running(probe)
    asking.send_signal(signal.SIGKILL)
    await asking.wait()
    async with asyncio.timeout(patience(SOME)):
        while is_running(probe):
            await asyncio.sleep(0.02)


def may_open_the_device() -> bool:
    """As the user that a machine would have."""
    uids = users_here(None)
    user = [] if uids is None else Privileges(uid=uids[0], groups=accelerator_groups("kvm")).wrap([])
    opens = f"import os; os.open({acceleration.DEVICE!r}, os.O_RDWR)"
    return subprocess.run([*user, "/usr/bin/python3", "-c", opens], capture_output=True, check=False).returncode == 0


def is_running(process: Path) -> bool:
    try:
        return ") Z" not in (process / "stat").read_text()
    except OSError:
        return False

"""Acceleration is found by running a guest; here QEMU is a script that boots, hangs or breaks."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hostler.drivers.machines.qemu import acceleration
from hostler.drivers.privileges import users_here
from hostler.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

BOOTS = "echo 'hostler booted'"
BREAKS = "echo 'Assertion failed: msrs' >&2; exit 134"
HANGS = "echo booting; exec sleep 600"
UIDS = range(3_000_000, 3_000_100)


class Host:
    """A host with a device, an image, and a QEMU that does as the test says and counts."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place, self.image, self.tools = folder / "place", folder / "image", folder / "tools"
        for path in (self.place, self.image, self.tools):
            path.mkdir()
        for name in ("kernel", "initrd"):
            (self.image / name).write_bytes(b"x")
        self.device = folder / "kvm"
        self.device.touch()
        self._count = folder / "runs"
        monkeypatch.setenv("PATH", f"{self.tools}:{os.environ['PATH']}")
        monkeypatch.setattr(acceleration, "DEVICE", str(self.device))
        self.qemu(BOOTS)

    def qemu(self, does: str) -> None:
        path = self.tools / acceleration.BINARY
        path.write_text(f"#!/bin/sh\necho $$ >> {self._count}\n{does}\n")
        path.chmod(0o755)
        os.utime(path, ns=(time.time_ns(), time.time_ns()))

    @property
    def runs(self) -> list[int]:
        return [int(line) for line in self._count.read_text().split()] if self._count.exists() else []

    async def verdict(self, uids: range | None = None) -> acceleration.Verdict:
        return await acceleration.verdict(self.place, self.image, uids=uids)

    def remembered(self, uids: range | None = None) -> acceleration.Verdict | None:
        return acceleration.stored_verdict(self.place, uids=uids)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


async def test_a_guest_that_boots_is_the_proof_and_is_remembered(host: Host) -> None:
    found = await host.verdict()
    assert (found.accelerator, found.why) == ("kvm", "a guest booted")
    assert host.remembered() == found
    assert await host.verdict() == found
    assert len(host.runs) == 1
    assert (host.place / acceleration.FILE).stat().st_mode & 0o777 == 0o600
    assert not (host.place / acceleration.STAGE).exists()


async def test_a_guest_that_breaks_is_told_with_its_last_words(host: Host) -> None:
    host.qemu(BREAKS)
    found = await host.verdict()
    assert found.accelerator == "tcg"
    assert found.why.endswith("Assertion failed: msrs")
    assert (await host.verdict()) == found
    assert len(host.runs) == 1


async def test_a_guest_that_hangs_is_given_up_and_ended(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.qemu(HANGS)
    for name in ("WITHIN", "WITHIN_UNDER_LOAD"):
        monkeypatch.setattr(acceleration, name, 0.2)
    found = await host.verdict()
    assert found.accelerator == "tcg"
    assert "did not boot within" in found.why
    assert not is_running(host.runs[0])


async def test_without_an_image_it_is_not_known_and_not_remembered(host: Host, tmp_path: Path) -> None:
    for files in (None, tmp_path / "nothing"):
        found = await acceleration.verdict(host.place, files, uids=None)
        assert (found.accelerator, found.why) == ("tcg", acceleration.NO_IMAGE)
    assert host.remembered() is None
    assert (await host.verdict()).accelerator == "kvm"


async def test_without_a_device_nothing_is_tried_until_there_is_one(host: Host) -> None:
    host.device.unlink()
    found = await host.verdict()
    assert (found.accelerator, found.why) == ("tcg", f"{host.device} does not exist")
    assert host.remembered() == found
    assert not host.runs
    host.device.touch()
    assert host.remembered() is None
    assert (await host.verdict()).accelerator == "kvm"


async def test_another_qemu_is_another_question(host: Host) -> None:
    host.qemu(BREAKS)
    assert (await host.verdict()).accelerator == "tcg"
    host.qemu(BOOTS)
    assert host.remembered() is None
    assert (await host.verdict()).accelerator == "kvm"


@pytest.mark.parametrize("what", ["kernel", "processor"])
async def test_another_kernel_or_processor_is_another_question(
    host: Host, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    await host.verdict()
    if what == "kernel":
        name = os.uname()
        changed = os.uname_result((name.sysname, name.nodename, "9.9.9", name.version, name.machine))
        monkeypatch.setattr(os, "uname", lambda: changed)
    else:
        monkeypatch.setattr(acceleration, "_processor", lambda: "another")
    assert host.remembered() is None
    await host.verdict()
    assert len(host.runs) == 2


async def test_a_guest_that_failed_may_be_at_fault_itself_so_another_one_is_tried(host: Host) -> None:
    host.qemu("grep -q good kernel && " + BOOTS)
    assert (await host.verdict()).accelerator == "tcg"
    (host.image / "kernel").write_bytes(b"good")
    assert (await host.verdict()).accelerator == "kvm"
    (host.image / "kernel").write_bytes(b"bad again")
    assert (await host.verdict()).accelerator == "kvm", "that one booted is proof enough"
    assert len(host.runs) == 2


async def test_who_asks_at_once_waits_for_one_probe(host: Host) -> None:
    host.qemu("sleep 0.2; " + BOOTS)
    found = await asyncio.gather(*(host.verdict() for _ in range(4)))
    assert {verdict.accelerator for verdict in found} == {"kvm"}
    assert len(host.runs) == 1


async def test_a_probe_that_is_cancelled_leaves_no_process(host: Host) -> None:
    host.qemu(HANGS)
    asking = asyncio.ensure_future(host.verdict())
    async with asyncio.timeout(30):
        while not host.runs:
            await asyncio.sleep(0.01)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert not is_running(host.runs[0])
    host.qemu(BOOTS)
    assert (await host.verdict()).accelerator == "kvm", "its lock was let go"


async def test_what_is_remembered_badly_is_not_remembered(host: Host) -> None:
    (host.place / acceleration.FILE).write_text('{"accelerator": "kvm"}')
    assert host.remembered() is None
    assert (await host.verdict()).accelerator == "kvm"


async def test_without_qemu_there_is_no_verdict(host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="install qemu-system-x86"):
        await host.verdict()
    assert host.remembered() is None


# As whom guests run


@pytest.fixture
def open_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """One whose QEMU any user may run."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        host = Host(Path(folder), monkeypatch)
        host.device.chmod(0o666)
        for path in (host.tools, *host.image.iterdir()):
            path.chmod(0o755)
        yield host


async def test_a_probe_runs_as_a_machine_would_and_hears_nothing_of_us(
    open_host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_A_TEST", "s")
    monkeypatch.setattr(acceleration, "WITHIN", 60.0)  # it says what it sees, however busy this machine is
    (open_host.tools / acceleration.BINARY).write_text(
        "#!/bin/sh\necho $(id -u) $(id -g) $(id -G) secret=$SECRET_OF_A_TEST $(grep -c . kernel)"
        " $(grep NoNewPrivs /proc/self/status)\n"
    )
    uids = users_here(None)
    found = await open_host.verdict(uids)
    user, group, groups, secret, kernel, _, kept = found.why.rpartition("booted: ")[2].split()
    assert (secret, kernel, kept) == ("secret=", "1", "1")
    if uids is None:
        assert int(user) == os.geteuid()
    else:
        assert int(user) in uids
        assert user == group == groups, "no other group, root's least of all"


async def test_a_device_that_only_we_may_open_is_none_for_machines_with_users_of_their_own(host: Host) -> None:
    host.device.chmod(0o600)
    found = await host.verdict(UIDS)
    assert found.accelerator == "tcg"
    assert found.why.startswith(
        f"{host.device} may not be opened by the users of the machines; give it a separate group"
    )
    assert not host.runs
    assert host.remembered(UIDS) == found
    assert host.remembered(None) is None, "for who runs machines as himself it is another question"


async def test_a_device_that_machines_may_open_by_now_is_another_question(host: Host) -> None:
    host.device.chmod(0o600)
    await host.verdict(UIDS)
    host.device.chmod(0o666)
    assert host.remembered(UIDS) is None


async def test_a_verdict_is_found_where_no_image_was_ever_kept(host: Host) -> None:
    found = await acceleration.verdict(host.place / "images", host.image, uids=None)
    assert (found.accelerator, acceleration.stored_verdict(host.place / "images", uids=None)) == ("kvm", found)


async def test_a_place_that_cannot_be_written_is_told(host: Host) -> None:
    (host.place / "images").touch()
    with pytest.raises(Unavailable, match=acceleration.LOCK):
        await acceleration.verdict(host.place / "images", host.image, uids=None)


async def test_what_a_killed_probe_left_is_no_hindrance(host: Host) -> None:
    left = host.place / acceleration.STAGE
    left.mkdir()
    (left / "kernel").write_bytes(b"old")
    host.qemu("grep -q old kernel || " + BOOTS)
    assert (await host.verdict()).accelerator == "kvm"
    assert not left.exists()

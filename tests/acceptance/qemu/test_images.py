"""Images with the real tools: what must not be followed is refused, and whoever is killed leaves nothing that stays."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from hostler.drivers.machines.qemu.images.folder import ImageFolder
from hostler.errors import Refused

JSON = 'json:{{"driver":"raw","file":{{"driver":"file","filename":"{}"}}}}'


@pytest.fixture
def own(tmp_path: Path) -> ImageFolder:
    """A folder of images of the test's own."""
    return ImageFolder(tmp_path / "images", machines=tmp_path / "machines")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "a file of the host"
    path.write_bytes(b"secret" * 100_000)
    return path


def qemu_img(*arguments: str | Path) -> None:
    if shutil.which("qemu-img") is None:
        pytest.fail("these tests need qemu-img; install the package qemu-utils")
    subprocess.run(["qemu-img", *map(str, arguments)], check=True, capture_output=True)


def file_system(path: Path) -> Path:
    """A raw disk with a file system and something in it."""
    with path.open("wb") as file:
        file.truncate(8 * 2**20)
    mke2fs = shutil.which("mke2fs", path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    assert mke2fs is not None, "these tests need mke2fs; install the package e2fsprogs"
    subprocess.run([mke2fs, "-q", "-F", "-t", "ext4", str(path)], check=True, capture_output=True)
    return path


async def added(images: ImageFolder, source: Path, **options: str) -> str:
    named = await images.add("one", str(source), sha256=None, options=options, progress=lambda *_: None)
    return named.image.disk_format


# What is taken, and what is not


@pytest.mark.parametrize(
    "options", ["compat=0.10", "compat=1.1", "cluster_size=2M", "extended_l2=on", "compression_type=zstd"]
)
async def test_a_qcow2_of_any_kind_is_taken(own: ImageFolder, tmp_path: Path, options: str) -> None:
    qemu_img("create", "-q", "-f", "qcow2", "-o", options, tmp_path / "disk", "1G")
    assert await added(own, tmp_path / "disk") == "qcow2"
    assert own.find("one")[0].disk_bytes == 2**30


async def test_a_raw_disk_and_its_copies_in_other_formats_are_told_apart(own: ImageFolder, tmp_path: Path) -> None:
    disk = file_system(tmp_path / "disk")
    assert await added(own, disk) == "raw"
    assert (own.files("one") / "disk").read_bytes() == disk.read_bytes()
    qemu_img("convert", "-c", "-O", "qcow2", disk, tmp_path / "packed")
    assert await added(own, tmp_path / "packed") == "qcow2"
    for kind in ("vmdk", "vdi", "vhdx", "vpc"):
        qemu_img("convert", "-O", kind, disk, tmp_path / kind)
        with pytest.raises(Refused, match=f"convert -f {kind}"):
            await added(own, tmp_path / kind)


@pytest.mark.parametrize("how", ["by its path", "by json", "by json that was not looked at", "by a data file"])
async def test_an_image_that_stands_on_a_file_of_the_host_is_refused(
    own: ImageFolder, tmp_path: Path, secret: Path, how: str
) -> None:
    disk = tmp_path / "disk"
    create = ("create", "-q", "-f", "qcow2")
    if how == "by its path":
        qemu_img(*create, "-b", secret, "-F", "raw", disk, "1M")
    elif how == "by json":
        qemu_img(*create, "-b", JSON.format(secret), "-F", "raw", disk, "1M")
    elif how == "by json that was not looked at":
        qemu_img(*create, "-u", "-b", JSON.format("/dev/tcp"), "-F", "raw", disk, "1M")
    else:
        qemu_img(*create, "-o", f"data_file={tmp_path / 'data'},data_file_raw=on", disk, "1M")
    with pytest.raises(Refused, match="never followed"):
        await added(own, disk)
    assert await own.list() == []


async def test_a_raw_disk_that_is_a_qcow2_inside_stays_raw(own: ImageFolder, tmp_path: Path, secret: Path) -> None:
    """A guest can write what it likes to its disk; only the format that was noted counts."""
    disk = file_system(tmp_path / "disk")
    qemu_img("create", "-q", "-f", "qcow2", "-b", secret, "-F", "raw", tmp_path / "evil", "1M")
    assert await added(own, disk) == "raw"
    head = (tmp_path / "evil").read_bytes()[:512]
    disk.write_bytes(head + disk.read_bytes()[512:])
    with pytest.raises(Refused):
        await added(own, disk)


async def test_a_damaged_image_is_refused(own: ImageFolder, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    qemu_img("convert", "-O", "qcow2", file_system(tmp_path / "raw"), disk)
    whole = disk.read_bytes()
    disk.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(Refused, match="get the file again|ends before its tables"):
        await added(own, disk)
    spoilt = bytearray(whole)
    at = int.from_bytes(whole[40:48], "big")
    spoilt[at : at + 8] = (0x8000_0000_0001_2345).to_bytes(8, "big")  # the first entry points to no cluster
    disk.write_bytes(spoilt)
    with pytest.raises(Refused):
        await added(own, disk)


async def test_a_kernel_must_be_one(own: ImageFolder, images: ImageFolder, tmp_path: Path) -> None:
    disk = file_system(tmp_path / "disk")
    with pytest.raises(Refused, match="not a Linux kernel"):
        await added(own, disk, kernel=str(disk))
    await added(own, disk, kernel=str(images.files("tiny") / "kernel"), append="root=/dev/vda")
    assert (own.files("one") / "kernel").read_bytes() == (images.files("tiny") / "kernel").read_bytes()


# Killed


class Killing:
    """One verb on one folder, in processes that die at a chosen step."""

    def __init__(self, folder: Path, verb: str, source: Path) -> None:
        self.folder = folder
        script = Path(__file__).with_name("image_crash_process.py")
        self._process = subprocess.Popen(
            [sys.executable, script, verb, folder, source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def at(self, step: int) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{step}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


async def has_old(images: ImageFolder) -> None:
    async with images.scratch() as scratch:
        (scratch.path / "disk").write_bytes(b"old")
        fields = {"disk_format": "raw", "disk_bytes": 3, "user": "u", "seeding": "none", "probe": "none", "source": "s"}
        await images.register("old", scratch, fields)


async def check_whole(images: ImageFolder) -> set[str]:
    """Every image that has a name is all there; the names."""
    found = await images.list()
    for named in found:
        for file, digest in named.image.files.items():
            path = images.path / named.image.digest / file
            assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
            assert path.stat().st_mode & 0o777 == 0o444
    return {named.name for named in found}


async def check_nothing_left(images: ImageFolder) -> None:
    assert list((images.path / "scratch").iterdir()) == []
    named = {one.image.digest for one in await images.list()}
    assert {entry.name for entry in images.path.iterdir() if len(entry.name) == 64} == named
    assert all(not entry.name.startswith(".") for entry in (images.path / "names").iterdir())


async def test_a_kill_at_any_step_of_add_leaves_what_the_next_call_sweeps(own: ImageFolder, tmp_path: Path) -> None:
    source = file_system(tmp_path / "source")
    await has_old(own)
    with Killing(tmp_path, "add", source) as killing:
        steps = 0
        while (ended := killing.at(steps + 1)) == "killed":
            steps += 1
            assert await check_whole(own) <= {"old", "new"}
            if "new" in await check_whole(own):
                await own.remove("new")
            own.sweep()  # else its steps would be among those of the next try
            await check_nothing_left(own)
        assert ended == "done"
        assert steps > 30
        await own.remove("new")
        assert [killing.at(step) for step in (steps // 2, steps // 3, 10**6)] == ["killed", "killed", "done"]
    assert await check_whole(own) == {"old", "new"}
    await check_nothing_left(own)


async def test_a_kill_at_any_step_of_remove_leaves_it_whole_or_gone(own: ImageFolder, tmp_path: Path) -> None:
    await has_old(own)
    with Killing(tmp_path, "remove", tmp_path) as killing:
        steps = 0
        while (ended := killing.at(steps + 1)) == "killed":
            steps += 1
            assert await check_whole(own) <= {"old"}
            await has_old(own)
            assert await check_whole(own) == {"old"}
            await check_nothing_left(own)
        assert ended == "done"
        assert steps > 8
    assert await check_whole(own) == set()
    await check_nothing_left(own)


async def test_a_kill_at_any_step_of_linking_is_made_good_by_the_next_try(own: ImageFolder, tmp_path: Path) -> None:
    await has_old(own)
    machine = tmp_path / "machines" / "n" / "vms" / "m"
    machine.mkdir(parents=True)
    with Killing(tmp_path, "link", machine) as killing:
        steps = 0
        while (ended := killing.at(steps + 1)) == "killed":
            steps += 1
            if (machine / "base").exists():
                with pytest.raises(Refused, match="in use by m"):
                    await own.remove("old")
                (machine / "base").unlink()
        assert ended == "done"
        assert steps > 3
    assert (machine / "base").samefile(own.files("old") / "disk")
    assert [entry.name for entry in machine.iterdir()] == ["base"]


async def test_a_download_that_was_killed_goes_on_where_it_was(
    own: ImageFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("http_proxy", raising=False)
    content = file_system(tmp_path / "disk").read_bytes()
    half, asked = len(content) // 2, []

    async def give(request: web.Request) -> web.StreamResponse:
        asked.append(request.headers.get("Range"))
        start = int((asked[-1] or "bytes=0-")[6:-1])
        headers = {"ETag": '"1"', "Content-Length": str(len(content) - start)}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        answer = web.StreamResponse(status=206 if start else 200, headers=headers)
        await answer.prepare(request)
        if start:
            await answer.write(content[start:])
        else:
            await answer.write(content[:half])
            await asyncio.sleep(60)
        return answer

    app = web.Application()
    app.router.add_get("/disk", give)
    sha256 = hashlib.sha256(content).hexdigest()
    part = own.path / "parts" / f"{sha256}.part"
    async with TestServer(app) as server:
        command = ["-m", "hostler", "image", "add", "one", str(server.make_url("/disk")), "--sha256", sha256]
        command += ["--data", str(tmp_path)]
        loading = await asyncio.create_subprocess_exec(sys.executable, *command)
        end = time.monotonic() + 60
        while time.monotonic() < end and not (part.exists() and part.stat().st_size == half):
            await asyncio.sleep(0.02)
        loading.kill()
        await loading.wait()
        again = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=subprocess.DEVNULL)
        assert await again.wait() == 0
    assert asked == [None, f"bytes={half}-"]
    assert (own.files("one") / "disk").read_bytes() == content
    assert list(part.parent.iterdir()) == []
    await check_nothing_left(own)


def test_what_is_mounted_into_a_scratch_folder_is_not_swept_with_it(tmp_path: Path) -> None:
    """A build as root mounts devices of this machine into what it makes; it may be killed before it takes them out."""
    host, left = tmp_path / "host", tmp_path / "images" / "scratch" / "left"
    for folder in (host, left / "dev"):
        folder.mkdir(parents=True)
    (host / "file").touch()
    code = (
        "import subprocess, sys, pathlib\n"
        "from hostler.drivers.machines.qemu.images.folder import ImageFolder\n"
        f"subprocess.run(['mount', '--bind', {str(host)!r}, {str(left / 'dev')!r}], check=True)\n"
        f"ImageFolder({str(tmp_path / 'images')!r}).sweep()\n"
    )
    alone = ["unshare", "--mount", "--propagation", "private"] + ([] if os.geteuid() == 0 else ["--map-root-user"])
    subprocess.run([*alone, sys.executable, "-c", code], check=True)
    assert (host / "file").exists()
    assert left.exists()
    ImageFolder(tmp_path / "images").sweep()
    assert (host / "file").exists()
    assert not left.exists(), "nothing is mounted there any more"


async def test_a_build_that_was_killed_is_swept_and_done_by_the_next(images: ImageFolder, tmp_path: Path) -> None:
    """The packages are here already: the fixture has built the same image."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    folder = tmp_path / "data" / "images"
    command = [sys.executable, "-m", "hostler", "image", "build", "tiny", "--data", str(tmp_path / "data")]
    building = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        end = time.monotonic() + 60
        while time.monotonic() < end and not any((folder / "scratch").glob("*/*")):
            await asyncio.sleep(0.01)
        await asyncio.sleep(random.Random(seed).uniform(0, 1.5))
    finally:
        os.kill(building.pid, signal.SIGKILL)
        building.wait()
    own = ImageFolder(folder)
    assert await check_whole(own) <= {"tiny"}
    named = await own.build("tiny", "tiny", progress=lambda *_: None)
    assert named.image.digest == images.find("tiny")[0].digest, "the same packages make the same image"
    await check_nothing_left(own)

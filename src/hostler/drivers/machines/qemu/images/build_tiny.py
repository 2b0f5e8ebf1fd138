"""Makes the tiny guest from Debian's packages: a kernel, busybox and dropbear. Needs no root.

    kernel   the cloud kernel, unpacked, so that it starts at once
    initrd   the whole system, written by ourselves (`system`); what runs in it is in `guest`
    disk     an empty ext4, which keeps what is written over the system

The same packages give the same bytes, so an image that is built again is the same image.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from typing import TYPE_CHECKING, Any

from hostler.drivers.machines.qemu.images import elf, initrd, kernel
from hostler.drivers.machines.qemu.images.packages import Packages, run
from hostler.errors import Refused
from hostler.model.image import Probe, Seeding

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hostler.ports.images import Progress

KERNEL = "linux-image-cloud-amd64"
"""Stands for the newest of its kind."""
PROGRAMS = ("busybox-static", "dropbear-bin", "e2fsprogs")
APPEND = "console=ttyS0 quiet mitigations=off cryptomgr.notests no_timer_check panic=-1"
"""`no_timer_check`: a host that stands still for a moment is no reason to panic; an emulated guest would count too few
ticks of its timer."""
DISK_BYTES = 2**30
MEMORY_MIB = 128
BOOT_SECONDS = 120.0

_WANTED_OF_KERNEL = re.compile(r"^/boot/vmlinuz-|/lib/modules/[^/]+/(kernel/.*\.ko(\.xz)?|modules\.builtin)$")
_WANTED = re.compile(r"/s?bin/(busybox|dropbear|dropbearkey|dropbearconvert|mke2fs)$")
_EXT4 = (
    "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,"
    "dir_nlink,extra_isize,metadata_csum"
)
_UUID = "5d3bd2fc-5e0c-4f0e-8d1e-686f73746c65"
_MADE_AT = "1700000000"


async def build_tiny(into: Path, progress: Progress, *, cache: Path) -> dict[str, Any]:
    """Write `disk`, `kernel` and `initrd` into a folder; what they are as fields of `Image`, without the digests.

    Packages stay in `cache`, for the next time. Refused: a tool is missing, or apt has no such packages. Unavailable:
    not now.
    """
    packages = Packages(cache)
    progress("packages", 0, None)
    async with packages.locked():
        image, others = await packages.find(KERNEL, PROGRAMS)
        await packages.fetch([image, *others], lambda done, total: progress("packages", done, total))
        progress("unpack", 0, None)
        of_kernel, *of_others = await asyncio.gather(
            packages.files(image, _WANTED_OF_KERNEL),
            *(packages.files(package, _WANTED, initrd.LIBRARY) for package in others),
        )
    files = {path: content for part in of_others for path, content in part.items()}
    progress("system", 0, None)
    await asyncio.to_thread(into.mkdir, mode=0o700, parents=True, exist_ok=True)
    applets = await _applets(into, files)
    await asyncio.to_thread(_write_kernel, into, of_kernel)
    await asyncio.to_thread(_write_system, into, files, of_kernel, applets)
    progress("disk", 0, None)
    await _make_disk(into, files)
    named = [package for package in others if package.name in PROGRAMS]
    return {
        "disk_format": "qcow2",
        "disk_bytes": DISK_BYTES,
        "append": APPEND,
        "user": initrd.USER,
        "seeding": Seeding.FIRMWARE,
        "probe": Probe.SSH,
        "warm": True,
        "memory_mib": MEMORY_MIB,
        "boot_seconds": BOOT_SECONDS,
        "source": f"packages of Debian: {', '.join(str(package) for package in (image, *named))}",
        "made_at": time.time(),
    }


def _write_kernel(into: Path, files: Mapping[str, bytes]) -> None:
    packed = next((content for path, content in files.items() if path.startswith("/boot/")), b"")
    _write(into / "kernel", kernel.unpacked(packed))


def _write_system(into: Path, files: Mapping[str, bytes], of_kernel: Mapping[str, bytes], applets: list[str]) -> None:
    _write(into / "initrd", initrd.initrd(files, of_kernel, applets))


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o600)


async def _applets(into: Path, files: Mapping[str, bytes]) -> list[str]:
    """The names that busybox goes by, as it says itself."""
    path = into / "busybox"
    try:
        await asyncio.to_thread(_put_program, path, initrd.executable(files, "busybox"))
        status, output, _ = await run(str(path), "--list")
    except OSError as error:
        raise Refused(f"tiny image: {error.strerror}: build it on a machine with an x86-64 processor") from None
    finally:
        path.unlink(missing_ok=True)
    if status != 0 or not output:
        raise Refused("tiny image: Debian's busybox does not run here; build it on a machine with an x86-64 processor")
    return [name for name in output.decode().split() if name != "busybox"]


async def _make_disk(into: Path, files: Mapping[str, bytes]) -> None:
    """An ext4 without a trace of the host or the time, in the fewest blocks that hold it."""
    raw, tools = into / "disk.raw", into / "tools"
    try:
        loader = await asyncio.to_thread(_put_tools, tools, files)
        await asyncio.to_thread(_put_hole, raw)
        await _do(
            "mke2fs",
            *(str(loader), "--library-path", str(tools), str(tools / "mke2fs"), "-q", "-F", "-t", "ext4", "-O", _EXT4),
            *("-b", "4096", "-I", "256", "-i", "16384", "-m", "1", "-J", "size=16", "-L", "hostler", "-U", _UUID),
            *("-E", f"hash_seed={_UUID},lazy_itable_init=0,lazy_journal_init=0,root_owner=0:0", str(raw)),
            env={"MKE2FS_CONFIG": "/dev/null", "E2FSPROGS_FAKE_TIME": _MADE_AT},
        )
        await _do("qemu-img", "qemu-img", "convert", "-f", "raw", "-O", "qcow2", str(raw), str(into / "disk"))
        await asyncio.to_thread((into / "disk").chmod, 0o600)
    finally:
        raw.unlink(missing_ok=True)
        shutil.rmtree(tools, ignore_errors=True)


async def _do(what: str, *argv: str, env: dict[str, str] | None = None) -> None:
    status, _, errors = await run(*argv, env=env)
    if status != 0:
        raise Refused(f"tiny image: {what} cannot make its disk: {errors.strip()[:500] or 'it did not say why'}")


def _put_tools(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Debian's mke2fs with its own libraries, so that the host's matter nothing; the loader that starts it."""
    folder.mkdir(mode=0o700)
    tool = initrd.executable(files, "mke2fs")
    for name, content in {**initrd.libraries_of(files, [tool]), "mke2fs": tool}.items():
        _put_program(folder / name, content)
    return folder / (elf.interpreter(tool) or "").rsplit("/", 1)[-1]


def _put_program(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o700)


def _put_hole(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(DISK_BYTES)

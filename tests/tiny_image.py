"""The tiny guest of a test run: built by whichever worker needs it first, in a folder of images that all workers share.

It is kept for the next run, and built anew where anything changed that it is made from: the code of the driver and of
its images, QEMU, or what apt knows of packages.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import subprocess
import sys
from pathlib import Path

import running

import hostler.drivers.machines.qemu
from hostler.drivers.machines.qemu.images.folder import ImageFolder
from hostler.errors import NotFound

FOLDER = Path(__file__).parent.parent / ".local" / "images"
NAME = "tiny"


_APT = Path("/var/lib/apt/lists")


@functools.cache
def made_from() -> str:
    """Return a digest of all that guests and their saved states are made from."""
    digest = hashlib.sha256(sys.version.encode())
    driver = Path(hostler.drivers.machines.qemu.__file__).parent
    for path in sorted(path for path in driver.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        digest.update(f"{path.relative_to(driver)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    for path in sorted(_APT.glob("*_Packages*")):
        digest.update(f"{path.name} {path.stat().st_mtime_ns} {path.stat().st_size}\n".encode())
    said = subprocess.run(["qemu-system-x86_64", "--version"], capture_output=True, check=False).stdout
    return hashlib.sha256(digest.digest() + said).hexdigest()


def tiny_images() -> ImageFolder:
    """A folder of images that has `tiny`. What tests add to it has names of their own, and is removed again."""
    images = ImageFolder(FOLDER)
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER.parent / "images.run").open("a+", encoding="ascii") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        turn.seek(0)
        if turn.read() != made_from() or not _has(images):
            running.in_a_loop_of_its_own(images.build("tiny", NAME, progress=lambda *_: None))
            turn.seek(0)
            turn.truncate()
            turn.write(made_from())
    return images


def _has(images: ImageFolder) -> bool:
    try:
        images.find(NAME)
    except NotFound:
        return False
    return True

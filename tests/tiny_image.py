"""The tiny guest of a test run: built once, by whichever worker needs it first, and kept for the next run.

It is built by the product, from packages that stay in its cache, in a folder of images that all workers share. So a new
kernel or a changed guest is used from the next run on, and an unchanged one costs some seconds.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path

from hostler.drivers.machines.qemu.images.folder import ImageFolder

FOLDER = Path(__file__).parent.parent / ".local" / "images"
NAME = "tiny"


def tiny_images() -> ImageFolder:
    """A folder of images that has `tiny`. What tests add to it has names of their own, and is removed again."""
    images = ImageFolder(FOLDER)
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER.parent / "images.run").open("a+", encoding="ascii") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        turn.seek(0)
        run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or f"pid{os.getpid()}"
        if turn.read() != run:
            asyncio.run(images.build("tiny", NAME, progress=lambda *_: None))
            turn.seek(0)
            turn.truncate()
            turn.write(run)
    return images

"""A tiny guest that is kept booted, apart from the one that other tests boot: one saved state for all workers.

It is kept for the next run, and made anew where anything changed that it is made from (`tiny_image.made_from`).
"""

from __future__ import annotations

import fcntl
import shutil

import running
import tiny_image

from hostler.drivers.machines.qemu.images.folder import ImageFolder
from hostler.drivers.machines.qemu.node_context import QemuOptions
from hostler.drivers.machines.qemu.saved_state import warmer

FOLDER = tiny_image.FOLDER.parent / "images-warm"
OPTIONS = QemuOptions(accelerator="tcg")
"""A verdict would cost each test some seconds."""
CPUS, MEMORY_MIB = 1, 128


def warm_images() -> ImageFolder:
    """A folder of images with `tiny`, kept booted with one cpu and 128 MiB."""
    images = ImageFolder(FOLDER, warmer=warmer(FOLDER, accelerator=OPTIONS.accelerator))
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "run").open("a+", encoding="ascii") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        turn.seek(0)
        if turn.read() != tiny_image.made_from() or not list(FOLDER.glob(f"*/warm/{CPUS}x{MEMORY_MIB}/*.state")):
            _link(images)
            running.in_a_loop_of_its_own(
                images.warm("tiny", cpus=CPUS, memory_mib=MEMORY_MIB, progress=lambda *_: None)
            )
            turn.seek(0)
            turn.truncate()
            turn.write(tiny_image.made_from())
    return images


def _link(images: ImageFolder) -> None:
    """Let it have the present tiny guest."""
    image, files = tiny_image.tiny_images().find("tiny")
    place = images.place
    place.make()
    there = place.image(image.digest)
    if not there.exists():
        shutil.rmtree(there.with_suffix(".draft"), ignore_errors=True)
        shutil.copytree(files, there.with_suffix(".draft"), ignore=shutil.ignore_patterns("warm"))
        there.with_suffix(".draft").rename(there)
    with place.locked(alone=True):
        place.call("tiny", image.digest)
    images.sweep()

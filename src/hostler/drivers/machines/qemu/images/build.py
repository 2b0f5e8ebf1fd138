"""Builds an image from packages, unless the existing one was built from the same packages."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from hostler.drivers.machines.qemu.images.build_tiny import build_tiny
from hostler.errors import Invalid

if TYPE_CHECKING:
    from hostler.drivers.machines.qemu.images.folder import ImageFolder
    from hostler.ports.images import Named, Progress

KINDS = ("tiny", "debian")


def package_cache() -> Path:
    """Return the folder of downloaded packages: among the user's caches, because every data folder can use them."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if cache.startswith("/") else Path.home() / ".cache") / "hostler" / "packages"


async def build(folder: ImageFolder, kind: str, name: str, progress: Progress) -> Named:
    """Build an image of that kind from the newest packages, under that name."""
    if kind not in KINDS:
        raise Invalid(f"image kind {kind!r}: unknown; known are {', '.join(KINDS)}")
    async with folder.scratch() as scratch:
        if kind == "tiny":
            fields = await build_tiny(scratch.path, progress, cache=package_cache())
        else:
            from hostler.drivers.machines.qemu.images.build_debian import DebianBuild

            making = DebianBuild(scratch, progress, cache=package_cache())
            known = await folder.made_from(await making.source())
            if known is not None:
                return await folder.call(name, known)
            fields = await making.build()
        return await folder.register(name, scratch, fields)

"""Makes an image from packages, unless the one that there is was made from the same."""

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
    """Where packages are kept: with the user's other caches, because every data folder can use them."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if cache.startswith("/") else Path.home() / ".cache") / "hostler" / "packages"


async def build(folder: ImageFolder, kind: str, name: str, progress: Progress) -> Named:
    """Let the image of that name be one of that kind, of the newest packages."""
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

"""The first image of a data folder: built on the first start, so that machines can be created at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.drivers.machines.qemu.images.folder import ImageFolder
from hostler.errors import HostlerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.settings import Settings

TINY = "tiny"


async def first_image(settings: Settings, tell: Callable[[str], None], *, needed: bool) -> None:
    """Build the tiny image if there is no image; if `needed`, also if only the default image is missing.

    A failure is reported and does not prevent the start: an image can be added at any time.
    """
    images = ImageFolder(settings.data / "images", machines=settings.data / "machines", default=settings.image)
    try:
        names = {named.name for named in await images.list()}
        if names and (not needed or settings.image in names or settings.image != TINY):
            return
        said: set[str] = set()

        def progress(what: str, done: int, total: int | None) -> None:  # noqa: ARG001 - one line per part is enough
            if what not in said:
                said.add(what)
                tell(f"image {TINY}: {what}")

        tell(f"image {TINY}: building it once from Debian packages …")
        made = await images.build(TINY, TINY, progress=progress)
        tell(f"image {TINY}: ready, {made.size / 2**20:.0f} MiB")
    except HostlerError as error:
        tell(f"no image: {error}; machines wait for an image: hostler image build tiny, or hostler image add")

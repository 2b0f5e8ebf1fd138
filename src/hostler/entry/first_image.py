"""The first image of a data folder: made on the first start, so that there is something to make machines of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.errors import HostlerError
from hostler.wiring import open_images

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.settings import Settings

TINY = "tiny"


async def first_image(settings: Settings, tell: Callable[[str], None], *, needed: bool) -> None:
    """Make the tiny guest if there is no image at all; if one is `needed`, also where only the default is missing.

    What goes wrong is told, and is no reason not to start: an image can be added at any time.
    """
    if settings.machines != "qemu":
        return
    images = open_images(settings.data / "images", default=settings.image)
    try:
        names = {named.name for named in await images.list()}
        if names and (not needed or settings.image in names or settings.image != TINY):
            return
        said: set[str] = set()

        def progress(what: str, done: int, total: int | None) -> None:  # noqa: ARG001 - a line for each thing is enough
            if what not in said:
                said.add(what)
                tell(f"image {TINY}: {what}")

        tell(f"image {TINY}: making it, once, from Debian's packages …")
        made = await images.build(TINY, TINY, progress=progress)
        tell(f"image {TINY}: there, {made.size / 2**20:.0f} MiB")
    except HostlerError as error:
        tell(f"no image: {error}; machines wait until there is one: hostler image build tiny, or hostler image add")

"""Images of a node: looked up by name, stored by content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from hostler.model.image import Image  # noqa: TC001 - msgspec reads annotations at run time

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    Progress = Callable[[str, int, int | None], None]
    """Receives the current activity, the amount done, and the total amount (None: not known)."""


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """An image and its name."""

    name: str
    image: Image
    size: int
    """Bytes on disk."""
    used_by: int
    """Number of machines whose disks use it."""
    warm: tuple[str, ...] = ()
    """Shapes that are kept booted: `1x128` is one CPU and 128 MiB."""


class Images(Protocol):
    """The image store of a node.

    Every verb may be repeated and may be interrupted at any point. Several processes may use a folder at the same time.

    Refused: impossible (not an image, a wrong checksum, an image in use). NotFound: no image has that name.
    Unavailable: not now, for example because a server does not answer; downloaded data is kept for the next attempt.
    """

    async def list(self) -> Sequence[Named]:
        """Return all readable images, ordered by name."""

    async def damaged(self) -> Mapping[str, str]:
        """Return the names of the unreadable images, and why each cannot be read."""

    async def add(
        self, name: str, source: str, *, sha256: str | None, options: dict[str, str], progress: Progress
    ) -> Named:
        """Add a disk image from a path or a URL. A URL needs a checksum. `options`: fields of `Image`, as text."""

    async def build(self, kind: str, name: str, *, progress: Progress) -> Named:
        """Build an image: `tiny` or `debian`. Building it again is fast unless newer packages exist."""

    async def remove(self, name: str) -> None:
        """Delete the name, and the content if this was its last name. Refused: a machine uses the image."""

    async def warm(self, name: str, *, cpus: int, memory_mib: int, progress: Progress) -> Named:
        """Keep the image booted in a shape, so that a machine of that shape starts in a fraction of the time."""

    def files(self, name: str) -> Path:
        """Return the folder of its files. NotFound."""

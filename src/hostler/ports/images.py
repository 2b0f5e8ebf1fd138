"""Images of a node: found by name, kept by content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from hostler.model.image import Image  # noqa: TC001 - msgspec reads annotations at run time

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    Progress = Callable[[str, int, int | None], None]
    """What is being done, how much of it is done, and of how much (None: not known)."""


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """An image, and how it is called."""

    name: str
    image: Image
    size: int
    """Bytes on disk."""
    used_by: int
    """Machines that stand on it."""
    warm: tuple[str, ...] = ()
    """Shapes that are kept booted: `1x128` is one cpu and 128 MiB."""


class Images(Protocol):
    """The port. Every verb may be repeated and interrupted anywhere. Several processes may use a folder at once.

    Refused: this cannot be (no image, a wrong checksum, one that is in use). NotFound: there is none of that name.
    Unavailable: not now, such as a server that does not answer; what was loaded stays for the next try.
    """

    async def list(self) -> Sequence[Named]:
        """All that can be read, in order of their names."""

    async def damaged(self) -> Mapping[str, str]:
        """The names of the others, and why they cannot be read."""

    async def add(
        self, name: str, source: str, *, sha256: str | None, options: dict[str, str], progress: Progress
    ) -> Named:
        """Take a disk image from a path or a URL. A URL needs its checksum. `options`: fields of `Image`, as text."""

    async def build(self, kind: str, name: str, *, progress: Progress) -> Named:
        """Make one: `tiny` or `debian`. The same again is fast, unless there are newer packages."""

    async def remove(self, name: str) -> None:
        """Forget the name, and the content if that was its last. Refused: a machine stands on it."""

    async def warm(self, name: str, *, cpus: int, memory_mib: int, progress: Progress) -> Named:
        """Keep it booted in a shape, so that a machine of that shape starts in a fraction of the time."""

    def files(self, name: str) -> Path:
        """Where its files are. NotFound."""

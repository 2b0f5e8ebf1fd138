"""Where artifacts come from: a folder, or an index over HTTP. What is fetched is what was published, or nothing is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class ArtifactInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One that is there."""

    artifact: str
    """`group:name:version`."""
    file: str
    """Its file's name: a wheel, or a module."""
    sha256: str
    size: int
    module: str
    """What is imported."""
    requires: tuple[str, ...] = ()
    """Other packages that it needs, as its wheel says; Hostler itself left out."""
    published_at: float = 0.0


class Artifacts(Protocol):
    """A repository. Errors: NotFound (no such artifact), Refused (its checksum is wrong), Unavailable (not now)."""

    async def find(self, artifact: str) -> ArtifactInfo:
        """What is known of it."""
        ...

    async def list(self, base: str = "") -> Sequence[ArtifactInfo]:
        """All of them, or all versions of `group:name`, in order."""
        ...

    async def fetch(self, artifact: str, to: Path) -> ArtifactInfo:
        """Put its file into the folder `to`, whole and checked, or not at all."""
        ...

    async def publish(self, info: ArtifactInfo, source: Path) -> ArtifactInfo:
        """Put one there. Publishing the same again is fine. Conflict: another file stands under that name."""
        ...

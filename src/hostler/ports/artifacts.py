"""Repositories of artifacts: a folder, or an index over HTTP. A fetch returns exactly what was published, or fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class ArtifactInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One published artifact."""

    artifact: str
    """`group:name:version`."""
    file: str
    """File name: a wheel, or a module."""
    sha256: str
    size: int
    module: str
    """The module to import."""
    requires: tuple[str, ...] = ()
    """Other packages that its wheel requires, except Hostler itself."""
    published_at: float = 0.0


class Artifacts(Protocol):
    """A repository of artifacts.

    Errors: NotFound (no such artifact), Refused (wrong checksum), Unavailable (retry later).
    """

    async def find(self, artifact: str) -> ArtifactInfo:
        """Return the metadata of an artifact."""
        ...

    async def list(self, base: str = "") -> Sequence[ArtifactInfo]:
        """Return all artifacts, or all versions of `group:name`, in order."""
        ...

    async def fetch(self, artifact: str, to: Path) -> ArtifactInfo:
        """Write the artifact's file into the folder `to`, complete and with a verified checksum, or not at all."""
        ...

    async def publish(self, info: ArtifactInfo, source: Path) -> ArtifactInfo:
        """Publish an artifact.

        Publishing the same file again is allowed. Conflict: another file is already published under that name.
        """
        ...

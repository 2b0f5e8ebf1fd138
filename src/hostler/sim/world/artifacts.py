"""The artifact repository of a world: it contains every artifact, and none has a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.errors import Refused
from hostler.model.deployment import Artifact
from hostler.ports.artifacts import ArtifactInfo

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_SUM = "0" * 64


class EveryArtifact:
    """A repository that finds every artifact."""

    async def find(self, artifact: str) -> ArtifactInfo:
        name = Artifact.parse(artifact).name
        return ArtifactInfo(artifact=artifact, file=f"{name}.py", sha256=_SUM, size=0, module=name)

    async def list(self, base: str = "") -> Sequence[ArtifactInfo]:  # noqa: ARG002 - there is no end of them
        return ()

    async def fetch(self, artifact: str, to: Path) -> ArtifactInfo:
        raise Refused(f"{artifact}: cannot be fetched to {to}; in a simulation artifacts have no files")

    async def publish(self, info: ArtifactInfo, source: Path) -> ArtifactInfo:
        raise Refused(f"{info.artifact}: {source} cannot be published; in a simulation artifacts have no files")

"""`client.artifacts`: the artifacts of slices."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from hostler.errors import Invalid, Refused
from hostler.model.artifact_api import ArtifactPage, ArtifactView

if TYPE_CHECKING:
    from hostler.client.pages import Pages
    from hostler.client.transport import HttpTransport

CHUNK = 1024 * 1024


class Artifacts:
    """The artifact repository of the control plane. A published artifact never changes."""

    def __init__(self, wire: HttpTransport) -> None:
        self._wire = wire

    async def get(self, artifact: str) -> ArtifactView:
        """Return the metadata of `group:name:version`. NotFound: it is not published."""
        return await self._wire.read(ArtifactView, "artifacts", artifact)

    def list(self, *, limit: int | None = None, after: str | None = None) -> Pages[ArtifactPage, ArtifactView]:
        """List all artifacts: `await` a page of `limit`, or `async for` over all."""
        return self._wire.pages(ArtifactPage, "artifacts", limit=limit, after=after)

    async def publish(self, artifact: str, file: str | Path, *, name: str | None = None) -> ArtifactView:
        """Publish a wheel or a module. The same file again is allowed. Conflict: the name has a different file."""
        path = Path(file)
        if not await asyncio.to_thread(path.is_file):
            raise Invalid(f"{path}: no such file; check the path")
        return await self._wire.upload(
            ArtifactView, "artifacts", artifact, "file", file=path, query={"name": name or path.name}
        )

    async def fetch(self, artifact: str, to: str | Path) -> Path:
        """Download the file into the folder `to`: complete and verified, or not at all."""
        info = await self.get(artifact)
        if Path(info.file).name != info.file or info.file.startswith("."):
            raise Refused(f"artifact {artifact}: its file name {info.file!r} is not a plain name; publish it again")
        folder, found, size = Path(to), hashlib.sha256(), 0
        fresh = folder / f".{info.file}.{secrets.token_hex(4)}"
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        try:
            with fresh.open("xb") as out:
                async with self._wire.stream(self._wire.address.to("artifacts", artifact, "file"), {}) as content:
                    async for chunk in content.iter_chunked(CHUNK):
                        size += len(chunk)
                        if size > info.size:
                            break
                        found.update(chunk)
                        await asyncio.to_thread(out.write, chunk)
            if size != info.size or found.hexdigest() != info.sha256:
                raise Refused(f"artifact {artifact}: the download is not what was published; fetch it again")
            fresh.replace(folder / info.file)
        finally:
            fresh.unlink(missing_ok=True)
        return folder / info.file

"""`client.artifacts`: what slices are made of."""

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
    from hostler.client.transport import Wire

CHUNK = 1024 * 1024


class Artifacts:
    """The control plane's repository. What is published there stays as it is."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def get(self, artifact: str) -> ArtifactView:
        """What is known of `group:name:version`. NotFound: it is not there."""
        return await self._wire.read(ArtifactView, "artifacts", artifact)

    def list(self, *, limit: int | None = None, after: str | None = None) -> Pages[ArtifactPage, ArtifactView]:
        """All of them: `await` a page of `limit`, or `async for` over every one."""
        return self._wire.pages(ArtifactPage, "artifacts", limit=limit, after=after)

    async def publish(self, artifact: str, file: str | Path, *, name: str | None = None) -> ArtifactView:
        """Put a wheel or a module there. The same again is fine. Conflict: another file stands under that name."""
        path = Path(file)
        if not await asyncio.to_thread(path.is_file):
            raise Invalid(f"{path}: there is no such file")
        return await self._wire.upload(
            ArtifactView, "artifacts", artifact, "file", file=path, query={"name": name or path.name}
        )

    async def fetch(self, artifact: str, to: str | Path) -> Path:
        """Its file in the folder `to`: whole and checked, or not at all."""
        info = await self.get(artifact)
        if Path(info.file).name != info.file or info.file.startswith("."):
            raise Refused(f"artifact {artifact}: its file is called {info.file!r}, which is no plain name")
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
                raise Refused(f"artifact {artifact}: what came is not what was published; fetch it again")
            fresh.replace(folder / info.file)
        finally:
            fresh.unlink(missing_ok=True)
        return folder / info.file

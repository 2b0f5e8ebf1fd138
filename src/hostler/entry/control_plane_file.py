"""The file in which a data folder keeps the control plane that it last obeyed or served."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hostler.entry.data_dir import DataFolder
from hostler.errors import Damaged, Invalid, Unavailable
from hostler.kit.fsync import sync_folder
from hostler.model.node import LastControlPlane

if TYPE_CHECKING:
    from pathlib import Path

NAME = "control-plane.json"


class ControlPlaneFile:
    """A `Memory` (`engine.cluster_id`) in one file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME

    async def read(self) -> LastControlPlane | None:
        """Return the content of the file; None if it does not exist. Damaged: the content is not readable."""
        try:
            data = await asyncio.to_thread(self.path.read_bytes)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unavailable("read", error) from None
        try:
            return LastControlPlane.decode(data)
        except Invalid as error:
            raise Damaged(f"{self.path}: {error}") from None

    async def write(self, last: LastControlPlane) -> None:
        """Replace the file; a reader sees the old one or the new one, also after a power failure."""
        try:
            await asyncio.to_thread(self._replace, last.encode().decode())
        except OSError as error:
            raise self._unavailable("written", error) from None

    def _replace(self, text: str) -> None:
        folder = self.path.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        DataFolder(folder).write(self.path, text)
        sync_folder(folder)

    def _unavailable(self, what: str, error: OSError) -> Unavailable:
        return Unavailable(f"{self.path}: cannot be {what}: {error.strerror}; check the disk and its permissions")

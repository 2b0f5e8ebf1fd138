"""HTTP API types for artifacts, shared by the server, the client and the CLI."""

from __future__ import annotations

from hostler.model.record import Record
from hostler.model.rollout import ArtifactRecord


class ArtifactView(ArtifactRecord, frozen=True, kw_only=True):
    """An artifact of the control plane's repository."""


class ArtifactPage(Record, frozen=True, kw_only=True):
    """A page of artifacts, ordered by group, name and version."""

    items: tuple[ArtifactView, ...]
    after: str | None = None
    """Cursor of the next page; None: this is the last page."""

"""What the HTTP API gives about artifacts: shared by the server, the client and the command line."""

from __future__ import annotations

from hostler.model.record import Record
from hostler.model.rollout import ArtifactRecord


class ArtifactView(ArtifactRecord, frozen=True, kw_only=True):
    """An artifact of the control plane's repository."""


class ArtifactPage(Record, frozen=True, kw_only=True):
    """Some of them, in the order of group, name and version."""

    items: tuple[ArtifactView, ...]
    after: str | None = None
    """Where the next page begins; None: this is the last."""

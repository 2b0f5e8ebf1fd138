"""What the HTTP API gives about artifacts: shared by the server, the client and the command line."""

from __future__ import annotations

from hostler.model.record import Record


class ArtifactView(Record, frozen=True, kw_only=True):
    """An artifact of the control plane's repository."""

    artifact: str
    """`group:name:version`."""
    file: str
    """Its file's name: a wheel, or a module."""
    sha256: str
    size: int
    module: str
    """What is imported."""
    requires: tuple[str, ...] = ()
    """Other packages that it needs."""
    published_at: float = 0.0


class ArtifactPage(Record, frozen=True, kw_only=True):
    """Some of them, in the order of group, name and version."""

    items: tuple[ArtifactView, ...]
    after: str | None = None
    """Where the next page begins; None: this is the last."""

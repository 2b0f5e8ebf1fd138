"""Artifact repositories by the setting `artifacts`, and the packing of artifacts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hostler.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aiohttp import Fingerprint

    from hostler.drivers.artifacts.http import HttpArtifacts
    from hostler.kit.clock import Clock
    from hostler.ports.artifacts import ArtifactInfo, Artifacts
    from hostler.settings import Settings


def open_artifacts(settings: Settings, *, clock: Clock | None = None) -> Artifacts:
    """Return the repository that the settings name: a folder, or an index over HTTP. It need not be closed."""
    if "://" not in settings.artifacts:
        from hostler.drivers.artifacts.folder import FolderArtifacts

        return FolderArtifacts(Path(settings.artifacts), clock=clock)
    from hostler.drivers.artifacts.http import HttpArtifacts

    return HttpArtifacts(settings.artifacts, token=_token(settings.artifacts_token), ca=settings.artifacts_ca)


def artifacts_of_replica(url: str, *, ticket: str, pin: Fingerprint | None) -> HttpArtifacts:
    """Return the repository of one replica, for another process of its control plane.

    `ticket` grants one file; `pin` is the digest of the replica's certificate.
    """
    from hostler.drivers.artifacts.http import OURS, HttpArtifacts

    return HttpArtifacts(f"{url}{OURS}", ticket=ticket, pin=pin)


def artifacts_in_order(found: Iterable[ArtifactInfo], base: str = "") -> Sequence[ArtifactInfo]:
    """Return artifacts in order of group, name and version; all of them, or those of `group:name`."""
    from hostler.drivers.artifacts.metadata import in_order

    return in_order(found, base)


def _token(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise Invalid(f"artifacts_token {file}: cannot be read: {reason}") from None
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise Invalid(f"artifacts_token {file}: must contain exactly the token, in one line")
    return token


def describe_artifact(path: Path, artifact: str, *, file: str = "") -> ArtifactInfo:
    """Return the metadata of a file as that artifact. Invalid: the file cannot be that artifact."""
    from hostler.drivers.artifacts.wheel import described

    return described(path, artifact, file=file)


def slice_source(path: Path) -> tuple[Path, str]:
    """Return the import path and the module name to run a slice from its source."""
    from hostler.drivers.artifacts.pack import source_of

    return source_of(path)


def pack_artifact(
    source: Path, to: Path, *, group: str | None = None, version: str | None = None
) -> tuple[ArtifactInfo, Path]:
    """Pack a folder, a wheel or a module for publication; files that have to be built go into `to`."""
    from hostler.drivers.artifacts.pack import pack

    packed = pack(source, to, group=group, version=version)
    return packed.info, packed.path

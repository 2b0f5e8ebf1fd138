"""Slices of a node, the repositories of their artifacts, and their calls."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hostler.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractAsyncContextManager

    from aiohttp import Fingerprint

    from hostler.drivers.artifacts.http import HttpArtifacts
    from hostler.drivers.calling.gateway import Asks, Gateway
    from hostler.drivers.calling.listener import Listener
    from hostler.drivers.slices.process.driver import ProcessSlices
    from hostler.kit.clock import Clock
    from hostler.ports.calls import Questions, Told, WorkerConnections
    from hostler.ports.slices import ArtifactInfo, Artifacts
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
    from hostler.drivers.artifacts.wheel import describe_wheel

    return describe_wheel(path, artifact, file=file)


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


def open_lines(token: str, *, caller: str) -> WorkerConnections:
    """Return connections to workers that admit callers with this token; close them with `aclose`."""
    from hostler.drivers.calling.connection_pool import TcpConnectionPool

    return TcpConnectionPool(token, caller=caller)


def open_questions(token: str) -> Questions:
    """Return a client that queries routers for their measurements; close it with `aclose`."""
    from hostler.drivers.calling.listener import TcpQuestions

    return TcpQuestions(token)


def telling(
    host: str, told: Callable[[int], Told], admitted: Callable[[str], bool]
) -> AbstractAsyncContextManager[Listener]:
    """Return the listener that the leader queries; its `address` is known once it is entered."""
    from hostler.drivers.calling.listener import Listener

    return Listener(host, told, admitted)


def gateway(path: Path, token: str, ask: Asks) -> AbstractAsyncContextManager[Gateway]:
    """Return the socket through which slices of this node call others."""
    from hostler.drivers.calling.gateway import Gateway

    return Gateway(path, token, ask)


HEALTHY = 0.8
"""Share of the activation limit within which a slice must become healthy, so that the reason can still be reported."""


async def why_no_slice_users(settings: Settings) -> tuple[str, str]:
    """Return why slices have no separate users here, and what to do; empty: they have, or need none."""
    from hostler.drivers.privileges import users_here
    from hostler.drivers.slices.process.privileges import Allowing

    required = settings.slice_users == "required"
    allowing = Allowing(
        str(settings.data), sys.executable, users_here(settings.driver_options["qemu_uids"]), required=True
    )
    why = await allowing.why_not()
    if not why and required and os.geteuid() != 0:
        why = "the agent is not root and cannot change users"
    if not why and settings.slice_users == "auto":
        why, advice = await allowing.why_not_confined()
        return (f"slices are refused: {why}", advice) if why else ("", "")
    return (why.replace("it runs", "slices run", 1), allowing.advice) if why else ("", "")


def open_slices(
    settings: Settings,
    folder: Path,
    artifacts: Artifacts,
    *,
    node: str,
    clock: Clock | None = None,
    ask: Asks | None = None,
) -> ProcessSlices:
    """Return the slices of one node, kept in `folder`, to be entered with `async with`; leaving it stops them.

    `artifacts`: where their files come from. `ask` handles their calls of other slices (`Router.ask`). One process at a
    time has a folder open. Instances that a killed process left running are adopted.
    """
    from hostler.drivers.privileges import users_here
    from hostler.drivers.slices.process.driver import ProcessSlices, SliceOptions

    options = SliceOptions(
        node=node,
        host=settings.slice_listen,
        packages=settings.slice_packages or "",
        uids=users_here(settings.driver_options["qemu_uids"]),
        users_required=settings.slice_users == "required",
        as_owner=settings.slice_users == "owner",
        hidden=settings.data,
        disk_mib=settings.slice_disk_mib,
        healthy_within=HEALTHY * settings.slice_activating_limit,
    )
    open_gateway = None if ask is None else lambda path, token: gateway(path, token, ask)
    return ProcessSlices(folder, artifacts, options, clock=clock, open_gateway=open_gateway)

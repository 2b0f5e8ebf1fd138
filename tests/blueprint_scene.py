"""Blueprints for tests: short to write, on a store in memory, with a repository that has what it is told."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import msgspec
from environment import env_on

from hostler.engine.deployments.service import BlueprintService
from hostler.engine.idempotent_writer import Writer
from hostler.errors import NotFound
from hostler.kit.clock import SystemClock
from hostler.model.deployment import Blueprint, SliceSpec
from hostler.ports.slices import ArtifactInfo

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hostler.entry.server.services import Services


class SaidArtifacts:
    """A repository that has every artifact but those that it lacks."""

    def __init__(self, *lacks: str) -> None:
        self.lacks = set(lacks)
        self.asked: list[str] = []

    async def find(self, artifact: str) -> ArtifactInfo:
        self.asked.append(artifact)
        if artifact in self.lacks:
            raise NotFound(f"artifact {artifact}: not found")
        return ArtifactInfo(artifact=artifact, file="x.py", sha256="0" * 64, size=1, module="x")

    async def list(self, base: str = "") -> Sequence[ArtifactInfo]:
        raise NotImplementedError

    async def fetch(self, artifact: str, to: Path) -> ArtifactInfo:
        raise NotImplementedError

    async def publish(self, info: ArtifactInfo, source: Path) -> ArtifactInfo:
        raise NotImplementedError


def spec(artifact: str, instances: int = 1, *needs: str, **more: Any) -> SliceSpec:
    """`a:1` is `org:a:1`, and a slice that is needed `a` for `org:a`."""
    return SliceSpec(
        artifact=f"org:{artifact}", instances=instances, needs=tuple(f"org:{need}" for need in needs), **more
    )


def blueprint(*slices: SliceSpec) -> Blueprint:
    return Blueprint(slices=slices)


def changed(one: SliceSpec, **more: Any) -> SliceSpec:
    return msgspec.structs.replace(one, **more)


def believing(services: Services) -> BlueprintService:
    """A blueprint service on the same store, to which every artifact is in the repository."""
    clock = SystemClock()
    writer = Writer(services.store, clock=clock, new_id=lambda: secrets.token_hex(8))
    return BlueprintService(services.store, writer, services.view, SaidArtifacts(), env_on(clock))

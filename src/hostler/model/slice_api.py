"""HTTP API types for slices: instances, endpoints, calls, measurements and artifacts.

The rules are those of `hostler.model.vm_api`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

from hostler.model.deployment import SliceState
from hostler.model.record import Record
from hostler.model.rollout import ArtifactRecord


class SliceInstanceView(Record, frozen=True, kw_only=True):
    """One instance of a slice."""

    instance: int
    state: SliceState
    ready: bool
    since: int
    restarts: int
    template: int
    why: str


class SliceView(Record, frozen=True, kw_only=True):
    """Instances of one artifact on one node."""

    node: str
    artifact: str
    state: SliceState
    """State of the most advanced instance."""
    instances: tuple[SliceInstanceView, ...]
    methods: tuple[str, ...]
    revision: int


class SlicePage(Record, frozen=True, kw_only=True):
    """A page of slices, ordered by node and artifact."""

    items: tuple[SliceView, ...]
    after: str | None
    revision: int


class SliceLog(Record, frozen=True, kw_only=True):
    """Recent output of an instance. The slice controls it, so it may contain control characters; show it as text."""

    node: str
    artifact: str
    instance: int
    text: str
    after: str
    """Position of its end; pass it to get later output."""
    skipped: int
    """Number of bytes before it that were omitted because they were too many or are no longer stored."""


class EndpointView(Record, frozen=True, kw_only=True):
    """Address of a method of an instance."""

    artifact: str
    method: str
    instance: int
    node: str
    address: str
    idempotent: bool
    streams: bool
    revision: int


class EndpointPage(Record, frozen=True, kw_only=True):
    """A page of endpoints, ordered by artifact, method and instance."""

    items: tuple[EndpointView, ...]
    after: str | None
    revision: int


# Calls


class Arguments(Record, frozen=True, kw_only=True):
    """The arguments of a call: a JSON object by argument name. It is passed on unparsed; the slice decodes it."""

    text: bytes

    schema: ClassVar[dict[str, Any]] = {"title": "Arguments", "type": "object", "description": "By their names."}

    @classmethod
    def decode(cls, data: bytes, *, strict: bool = False) -> Self:  # noqa: ARG003 - the fields are not known here
        """Accept any bytes; the slice validates them."""
        return cls(text=data)


# Measurements


class VersionCalls(Record, frozen=True, kw_only=True):
    """Calls of one version, over all routers. The last four fields have one element per second with calls."""

    artifact: str
    calls: int
    """Number of calls since `since`, as a gate counts them."""
    errors: int
    p95_ms: float
    """p95 latency of the last minute, but not before `since`."""
    in_flight: float
    since: float
    at: tuple[int, ...]
    """Seconds since 1970, ascending."""
    called: tuple[int, ...]
    failed: tuple[int, ...]
    latency_ms: tuple[float, ...]
    """p95 latency."""


class SliceCalls(Record, frozen=True, kw_only=True):
    """Calls of a slice, by version."""

    base: str
    versions: tuple[VersionCalls, ...]


class BlueprintCalls(Record, frozen=True, kw_only=True):
    """Recent measurements of the routers for the slices of a blueprint. They are not stored."""

    name: str
    now: float
    kept: int
    """Seconds of history that routers keep."""
    slices: tuple[SliceCalls, ...]


# Artifacts


class ArtifactView(ArtifactRecord, frozen=True, kw_only=True):
    """An artifact of the control plane's repository."""


class ArtifactPage(Record, frozen=True, kw_only=True):
    """A page of artifacts, ordered by group, name and version."""

    items: tuple[ArtifactView, ...]
    after: str | None = None
    """Cursor of the next page; None: this is the last page."""

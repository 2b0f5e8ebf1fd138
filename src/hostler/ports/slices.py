"""Drivers that run slice instances on a node, as processes or simulated, and the repositories of their artifacts.

The agent decides the state transitions (`engine/slices`); a driver only carries them out. Every verb is idempotent: a
caller that was killed repeats it. A driver keeps no desired state: what it lists is what runs.

A repository is a folder, or an index over HTTP. A fetch returns exactly what was published, or fails.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from hostler.model.deployment import SliceSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path


class ArtifactInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One published artifact."""

    artifact: str
    """`group:name:version`."""
    file: str
    """File name: a wheel, or a module."""
    sha256: str
    size: int
    module: str
    """The module to import."""
    requires: tuple[str, ...] = ()
    """Other packages that its wheel requires, except Hostler itself."""
    published_at: float = 0.0


class Artifacts(Protocol):
    """A repository of artifacts.

    Errors: NotFound (no such artifact), Refused (wrong checksum), Unavailable (retry later).
    """

    async def find(self, artifact: str) -> ArtifactInfo:
        """Return the metadata of an artifact."""
        ...

    async def list(self, base: str = "") -> Sequence[ArtifactInfo]:
        """Return all artifacts, or all versions of `group:name`, in order."""
        ...

    async def fetch(self, artifact: str, to: Path) -> ArtifactInfo:
        """Write the artifact's file into the folder `to`, complete and with a verified checksum, or not at all."""
        ...

    async def publish(self, info: ArtifactInfo, source: Path) -> ArtifactInfo:
        """Publish an artifact.

        Publishing the same file again is allowed. Conflict: another file is already published under that name.
        """
        ...


LAST_WORDS = "its last words: "
"""Marker in the text of why an instance ended: everything after it is the last output of the slice itself."""
MOST_PRINTED = 256 * 1024
"""Maximum number of bytes of an instance's output that one call returns."""


class Method(msgspec.Struct, frozen=True, kw_only=True):
    """A method of a slice."""

    name: str
    idempotent: bool = False
    streams: bool = False


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One instance: the same number of the same artifact is the same instance."""

    artifact: str
    instance: int
    template: int = 0
    settings: SliceSettings = SliceSettings()

    @property
    def id(self) -> str:
        """`group:name:version#3`."""
        return f"{self.artifact}#{self.instance}"


class Life(enum.StrEnum):
    """How far an instance is."""

    LOADED = "loaded"
    """Its code is imported; it takes no calls."""
    ACTIVE = "active"
    """It was started, reported itself healthy, and takes calls."""
    ENDED = "ended"
    """Its process ended by itself, or it reported itself unhealthy."""


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """An instance as observed."""

    run: Run
    life: Life
    methods: tuple[Method, ...] = ()
    address: str = ""
    """`host:port` that takes its calls; empty while it is not active."""
    detail: str = ""
    """Why it ended."""
    about: str = ""
    """Of an instance that exists: its user and its confinement, where they are not as they should be."""
    in_flight: int = 0


class Printed(msgspec.Struct, frozen=True, kw_only=True):
    """Output of an instance: bytes chosen by the slice, which may contain anything."""

    instance: int
    text: bytes
    after: str
    """Position of its end; pass it as `after` to get later output."""
    skipped: int = 0
    """Bytes before it that were requested but left out, because they were too many or are gone."""


@runtime_checkable
class CpuTimes(Protocol):
    """Optional ability of a driver: the processor time that its instances used."""

    def cpu_seconds(self) -> Mapping[str, float]:
        """Return the processor seconds of each instance that has a process, by `Run.id`, including its children.

        The value grows while the process lives.
        """
        ...


class Slices(Protocol):
    """The driver.

    Errors: Refused (repeating it does not help: a wrong checksum, a broken import, `start` raised), NotFound (no such
    artifact), Unavailable (retry later).
    """

    async def load(self, run: Run) -> Running:
        """Fetch and verify the artifact, start its process, import it. An instance that ended is loaded again."""
        ...

    async def activate(self, run: Run) -> Running:
        """Call `start`, wait until the instance is healthy, take calls. Loads it first if necessary."""
        ...

    async def deactivate(self, run: Run, *, grace: float) -> Running:
        """Take no more calls, let calls in progress end within `grace` seconds, call `stop`. It stays loaded."""
        ...

    async def unload(self, run: Run) -> None:
        """End its process and delete those of its files that no other instance uses. No such instance is fine."""
        ...

    async def list(self) -> Sequence[Running]:
        """Return the instances that exist, including those that an earlier process of this node left running."""
        ...

    async def printed(self, artifact: str, instance: int = 0, *, after: str = "") -> Printed:
        """Return the latest output of an instance, over all its restarts, at most `MOST_PRINTED` bytes.

        Includes the output of an instance that is gone, while it is kept. `instance` 0: the one that printed last.
        `after`: only output after that position; an unknown position is ignored. An incomplete character is returned
        later. NotFound: nothing of the instance is here.
        """
        ...

    def listen(self, changed: Callable[[str], None]) -> None:
        """Call `changed(run.id)` when an instance changed by itself."""
        ...

    def admit(self, tokens: frozenset[str]) -> None:
        """Take calls from callers whose token has one of these SHA-256 sums."""
        ...

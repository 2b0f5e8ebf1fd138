"""What runs slices on a node: processes, or in a simulation something that behaves like them.

The agent walks the states (`engine/slices`); here is only what it does there. Every verb is idempotent: whoever was
killed in between repeats it. A driver keeps no wishes: what it lists is what runs.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from hostler.model.deployment import SliceSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


LAST_WORDS = "its last words: "
"""In a text of why an instance ended: what follows, to the end, is what the slice itself printed last."""
MOST_PRINTED = 256 * 1024
"""Bytes of what an instance printed that are told at once."""


class Method(msgspec.Struct, frozen=True, kw_only=True):
    """Something that can be called."""

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
    """Its code is there and was read; it takes no calls."""
    ACTIVE = "active"
    """It was started, said that it is well, and takes calls."""
    ENDED = "ended"
    """Its process ended by itself, or it says that it is not well."""


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """An instance as it is."""

    run: Run
    life: Life
    methods: tuple[Method, ...] = ()
    address: str = ""
    """`host:port` that takes its calls; empty while it is not active."""
    detail: str = ""
    """Why it ended."""
    about: str = ""
    """Of one that is there: as whom it runs and what holds it, where that is not as it should be."""
    in_flight: int = 0


class Printed(msgspec.Struct, frozen=True, kw_only=True):
    """What an instance printed: bytes of its own choice, which may hold anything."""

    instance: int
    text: bytes
    after: str
    """Where it ends: what comes later is asked for with this."""
    skipped: int = 0
    """Bytes before it that were to be told, too, and were too many, or are gone."""


@runtime_checkable
class CpuTimes(Protocol):
    """A driver that knows how much processor time its instances took."""

    def cpu_seconds(self) -> Mapping[str, float]:
        """Of each instance that has a process, by `Run.id`, its children included; it grows while the process lives."""
        ...


class Slices(Protocol):
    """The driver. Errors: Refused (this will not do however often it is tried: a checksum, a broken import, `start`
    that raised), NotFound (no such artifact), Unavailable (not now)."""

    async def load(self, run: Run) -> Running:
        """Fetch and check the artifact, start its process, import it. An instance that ended is loaded anew."""
        ...

    async def activate(self, run: Run) -> Running:
        """Call `start`, wait until it is healthy, take calls. Loads it first where it is not."""
        ...

    async def deactivate(self, run: Run, *, grace: float) -> Running:
        """Take no more calls, let those under way end within `grace` seconds, call `stop`. It stays loaded."""
        ...

    async def unload(self, run: Run) -> None:
        """End its process; what nobody else uses of its files goes too. One that is not there is fine."""
        ...

    async def list(self) -> Sequence[Running]:
        """What is there: also what an earlier process of this node left running."""
        ...

    async def printed(self, artifact: str, instance: int = 0, *, after: str = "") -> Printed:
        """What an instance printed last, in all its lives, `MOST_PRINTED` bytes at most; also of one that is gone,
        while it is kept. 0: the one that printed last. `after`: only what came after that place; one that is not known
        is none. A character that is not complete is told later. NotFound: nothing of it is here."""
        ...

    def listen(self, changed: Callable[[str], None]) -> None:
        """Call `changed(run.id)` when an instance changed by itself."""
        ...

    def admit(self, tokens: frozenset[str]) -> None:
        """Take calls from whoever shows a token with one of these SHA-256 sums."""
        ...

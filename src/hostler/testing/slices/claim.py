"""Definition of a claim about slice drivers, its environment, and the runner of all claims."""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

import msgspec

from hostler.ports.slices import Life, Run, Running, Slices
from hostler.testing.claim import check_all, trying
from hostler.testing.claim import refused as refused  # noqa: PLC0414 - re-exported for claims

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence
    from types import TracebackType

    Body = Callable[["SliceTrial"], Awaitable[None]]

_CHAPTERS = ("basics",)


class OpenSlices(Slices, Protocol):
    """A driver that is entered with `async with`, and closed with `aclose`."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    async def aclose(self) -> None: ...


Crash: TypeAlias = "Callable[[Any, Run], Awaitable[None]]"
Leave: TypeAlias = "Callable[[Any], Awaitable[None]]"


class SliceSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What the suite must know of a driver: what it can run, its speed, and how to break what runs."""

    artifact: str = "org:check:1"
    """An artifact that runs, and has at least one method."""
    other: str = "org:check:2"
    """Another version of it that runs."""
    missing: str | None = "org:check:missing"
    """An artifact that does not exist. None, for this and the next two: claims that need it are skipped."""
    broken: str | None = None
    """An artifact whose load is refused."""
    failing: str | None = None
    """An artifact that loads, but whose start is refused."""
    crash: Crash | None = None
    """Lets the process of an instance end. None: not checked."""
    leave: Leave = lambda slices: slices.aclose()
    """Closes a driver as an agent does before a restart: running instances keep running."""
    within: float = 30.0
    """Seconds in which any single operation ends."""
    notices: float = 10.0
    """Seconds in which the end of a process is noticed."""
    grace: float = 5.0
    points: int = 20
    """Most suspension points at which each operation is cancelled."""
    turn: int = 0
    """A different number selects other suspension points, if there are too many."""


class SliceClaim(msgspec.Struct, frozen=True):
    """One property of every slice driver. `str(claim)` is the claim as text.

    `needs`: the field of the setup that the claim requires.
    """

    name: str
    body: Body
    needs: str = ""
    waits: bool = False

    def __str__(self) -> str:
        return self.name

    async def check(self, open_slices: Callable[[], OpenSlices], *, setup: SliceSetup | None = None) -> None:
        """Check the claim. Raise AssertionError, or the driver's exception, with a note that names the claim."""
        setup = setup or SliceSetup()
        if self.needs and getattr(setup, self.needs) is None:
            return
        async with trying(self.name, within=100 * setup.within):
            trial = SliceTrial(open_slices, setup)
            await trial.open()
            try:
                await self.body(trial)
            finally:
                await trial.tidy()


class SliceTrial:
    """The environment of a claim: an open driver, and private instances."""

    slices: OpenSlices

    def __init__(self, open_slices: Callable[[], OpenSlices], setup: SliceSetup) -> None:
        self._open_slices, self.setup = open_slices, setup
        self._runs: dict[str, Run] = {}
        self._opened: OpenSlices | None = None
        self.changed: list[str] = []
        """The instances that the driver reported."""

    async def open(self) -> OpenSlices:
        """Open the driver."""
        self.slices = self._open_slices()
        await self.slices.__aenter__()
        self.slices.listen(self.changed.append)
        self._opened = self.slices
        return self.slices

    async def reopen(self) -> OpenSlices:
        """Close and open the driver, as a restart of the agent does."""
        if self._opened is not None:
            opened, self._opened = self._opened, None
            await self.setup.leave(opened)
        return await self.open()

    def run(self, number: int = 1, *, artifact: str | None = None, **fields: Any) -> Run:
        """Return an instance of this trial, which is unloaded at its end."""
        run = Run(artifact=artifact or self.setup.artifact, instance=number, **fields)
        self._runs[run.id] = run
        return run

    async def active(self, number: int = 1, **fields: Any) -> tuple[Run, Running]:
        """Return an active instance."""
        run = self.run(number, **fields)
        running = await self.slices.activate(run)
        assert running.life is Life.ACTIVE, f"activated, but {running.life}"
        return run, running

    async def seen(self, run: Run) -> Running | None:
        """Return an instance as it is listed; None: it is not listed."""
        found = [one for one in await self.slices.list() if one.run.id == run.id]
        assert len(found) <= 1, f"{run.id} is listed {len(found)} times"
        return found[0] if found else None

    async def life(self, run: Run) -> Life | None:
        running = await self.seen(run)
        return None if running is None else running.life

    async def crash(self, run: Run) -> None:
        """Let its process end, and wait until that is reported and listed."""
        self.changed.clear()
        crash = self.setup.crash
        assert crash is not None
        await crash(self.slices, run)

        async def noticed() -> bool:
            return run.id in self.changed and await self.life(run) is Life.ENDED

        await self.until(noticed)

    async def until(self, holds: Callable[[], Awaitable[bool]]) -> None:
        """Wait until the condition holds, which it must within the time of the setup."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + self.setup.notices
        while not await holds():
            assert loop.time() < ends, f"not within {self.setup.notices:g} s"
            await asyncio.sleep(0.02)

    async def tidy(self) -> None:
        """Unload what the trial loaded, and close."""
        try:
            if self._opened is None:
                await self.open()
            for run in self._runs.values():
                await self.slices.unload(run)
        finally:
            if self._opened is not None:
                opened, self._opened = self._opened, None
                await opened.__aexit__(None, None, None)


_CLAIMS: list[SliceClaim] = []


def claim(*, needs: str = "", name: str = "") -> Callable[[Body], Body]:
    """Register an async function as a claim; its name, or the given one, is the claim as text."""

    def register(body: Body) -> Body:
        _CLAIMS.append(SliceClaim(name or getattr(body, "__name__", "?"), body, needs))
        return body

    return register


def slice_claims() -> Sequence[SliceClaim]:
    """Return all claims about slice drivers."""
    for chapter in _CHAPTERS:
        importlib.import_module(f"hostler.testing.slices.{chapter}")
    return tuple(_CLAIMS)


async def check_slices(
    open_slices: Callable[[], OpenSlices],
    *,
    setup: SliceSetup | None = None,
    only: Collection[str] | None = None,
) -> None:
    """Check that a driver implements the slices port; raise a group with all failures.

    `open_slices()` returns a driver that is not open yet. Each call returns a new one of the same place, and one at a
    time is open. `only` names the claims to check (see `slice_claims`).
    """
    await check_all("slices", slice_claims(), lambda claim: claim.check(open_slices, setup=setup), only)

"""What a claim about a driver of slices is, what it works with, and how all of them are run."""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

import msgspec

from hostler.ports.slices import Life, Run, Running, Slices
from hostler.testing.claim import check_all, trying
from hostler.testing.claim import refused as refused  # noqa: PLC0414 - one of the words that claims are written in

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence
    from types import TracebackType

    Body = Callable[["SliceTrial"], Awaitable[None]]

_CHAPTERS = ("basics", "ending", "lifetime", "interruption")


class OpenSlices(Slices, Protocol):
    """A driver that is entered with `async with`, and left with `aclose`."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    async def aclose(self) -> None: ...


Crash: TypeAlias = "Callable[[Any, Run], Awaitable[None]]"
Leave: TypeAlias = "Callable[[Any], Awaitable[None]]"


class SliceSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What the suite must know of a driver: what it can run, its pace, and how to break what runs."""

    artifact: str = "org:check:1"
    """One that runs, and has a method at least."""
    other: str = "org:check:2"
    """Another version of it, that runs."""
    missing: str | None = "org:check:missing"
    """One that is nowhere. None, of this and the next two: nothing is claimed of such."""
    broken: str | None = None
    """One whose load is refused."""
    failing: str | None = None
    """One that loads, and whose start is refused."""
    crash: Crash | None = None
    """Let the process of an instance end. None: nothing is claimed of that."""
    leave: Leave = lambda slices: slices.aclose()
    """Close a driver as the end of an agent does that will be started again: what runs runs on."""
    within: float = 30.0
    """Seconds in which any single verb ends."""
    notices: float = 10.0
    """Seconds in which it is noticed that a process ended."""
    grace: float = 5.0
    points: int = 20
    """At how many of its suspensions, at most, each verb is cut."""
    turn: int = 0
    """Another number: other suspensions, where they are too many."""


class SliceClaim(msgspec.Struct, frozen=True):
    """One thing that is true of every driver of slices. `str(claim)` is the claim in words.

    `needs`: the field of the setup without which it is not made.
    """

    name: str
    body: Body
    needs: str = ""
    waits: bool = False

    def __str__(self) -> str:
        return self.name

    async def check(self, open_slices: Callable[[], OpenSlices], *, setup: SliceSetup | None = None) -> None:
        """Try the claim; AssertionError or what the driver raised, with a note that names it."""
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
    """What a claim works with: an open driver, and instances that nobody else has."""

    slices: OpenSlices

    def __init__(self, open_slices: Callable[[], OpenSlices], setup: SliceSetup) -> None:
        self._open_slices, self.setup = open_slices, setup
        self._runs: dict[str, Run] = {}
        self._opened: OpenSlices | None = None
        self.changed: list[str] = []
        """What the driver told of."""

    async def open(self) -> OpenSlices:
        """Open the driver."""
        self.slices = self._open_slices()
        await self.slices.__aenter__()
        self.slices.listen(self.changed.append)
        self._opened = self.slices
        return self.slices

    async def reopen(self) -> OpenSlices:
        """What a restart of the agent does."""
        if self._opened is not None:
            opened, self._opened = self._opened, None
            await self.setup.leave(opened)
        return await self.open()

    def run(self, number: int = 1, *, artifact: str | None = None, **fields: Any) -> Run:
        """An instance of this trial, which is unloaded at its end."""
        run = Run(artifact=artifact or self.setup.artifact, instance=number, **fields)
        self._runs[run.id] = run
        return run

    async def active(self, number: int = 1, **fields: Any) -> tuple[Run, Running]:
        """An instance that is active."""
        run = self.run(number, **fields)
        running = await self.slices.activate(run)
        assert running.life is Life.ACTIVE, f"activated, and {running.life}"
        return run, running

    async def seen(self, run: Run) -> Running | None:
        """An instance as it is listed; None: it is not."""
        found = [one for one in await self.slices.list() if one.run.id == run.id]
        assert len(found) <= 1, f"{run.id} is listed {len(found)} times"
        return found[0] if found else None

    async def life(self, run: Run) -> Life | None:
        running = await self.seen(run)
        return None if running is None else running.life

    async def crash(self, run: Run) -> None:
        """Let its process end, until that was told of and is seen."""
        self.changed.clear()
        crash = self.setup.crash
        assert crash is not None
        await crash(self.slices, run)

        async def noticed() -> bool:
            return run.id in self.changed and await self.life(run) is Life.ENDED

        await self.until(noticed)

    async def until(self, holds: Callable[[], Awaitable[bool]]) -> None:
        """Until it holds, which it must within what the setup says."""
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
    """Make a claim of an async function: its name, or the one given, is the claim in words."""

    def register(body: Body) -> Body:
        _CLAIMS.append(SliceClaim(name or getattr(body, "__name__", "?"), body, needs))
        return body

    return register


def slice_claims() -> Sequence[SliceClaim]:
    """Every claim that is made of a driver of slices."""
    for chapter in _CHAPTERS:
        importlib.import_module(f"hostler.testing.slices.{chapter}")
    return tuple(_CLAIMS)


async def check_slices(
    open_slices: Callable[[], OpenSlices],
    *,
    setup: SliceSetup | None = None,
    only: Collection[str] | None = None,
) -> None:
    """Check that a driver does what the port of slices promises; raises a group with every claim that does not hold.

    `open_slices()` returns a driver that is not open yet; each call gives a new one of the same place, and one at a
    time is open. `only` names the claims to check (see `slice_claims`).
    """
    await check_all("slices", slice_claims(), lambda claim: claim.check(open_slices, setup=setup), only)

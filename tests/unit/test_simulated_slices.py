"""Simulated slices keep what the port promises, in virtual time; and the suite notices what does not."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from hostler.errors import NotFound, Refused, Unavailable
from hostler.kit.virtual_loop import VirtualClock, run_virtual
from hostler.ports.slices import Life, Method, Run, Running
from hostler.testing import SimulatedSlices, SliceClaim, SliceHost, SliceSetup, check_slices, slice_claims

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

RUN = Run(artifact="org:check:1", instance=1)


async def crash(slices: SimulatedSlices, run: Run) -> None:
    slices.place.crash(run.id)


SETUP = SliceSetup(broken="org:check:broken", failing="org:check:failing", crash=crash)


def opener(kind: type[SimulatedSlices] = SimulatedSlices) -> Callable[[], SimulatedSlices]:
    known = ("org:check:1", "org:check:2", "org:check:broken", "org:check:failing")
    place = SliceHost("h", artifacts=known)
    place.refuse("org:check:broken", "load")
    place.refuse("org:check:failing", "activate")
    rng = random.Random(1)
    return lambda: kind(place, clock=VirtualClock(), rng=rng)


@pytest.mark.parametrize("claim", slice_claims(), ids=str)
def test_claim(claim: SliceClaim) -> None:
    run_virtual(lambda: claim.check(opener(), setup=SETUP))


def virtual(play: Callable[[SimulatedSlices], Awaitable[None]], **place: Any) -> None:
    async def main() -> None:
        async with SimulatedSlices(SliceHost("h", **place), clock=VirtualClock(), rng=random.Random(0)) as slices:
            await play(slices)

    run_virtual(main)


# Faults


def test_faults_come_as_often_as_asked_for() -> None:
    async def play(slices: SimulatedSlices) -> None:
        place = slices.place
        place.fault(RUN.artifact, "load", Unavailable("not now"), times=2)
        for _ in range(2):
            with pytest.raises(Unavailable):
                await slices.load(RUN)
        await slices.load(RUN)
        place.refuse(RUN.artifact, "activate", "no")
        for _ in range(3):
            with pytest.raises(Refused, match="no"):
                await slices.activate(RUN)
        place.relent(RUN.artifact)
        assert (await slices.activate(RUN)).life is Life.ACTIVE

    virtual(play)


def test_one_that_is_slow_takes_longer_and_one_out_of_reach_says_so() -> None:
    async def play(slices: SimulatedSlices) -> None:
        clock = VirtualClock()
        slices.place.slow(RUN.artifact, 50)
        began = clock.now()
        await slices.load(RUN)
        assert clock.now() - began > 50
        slices.place.down()
        for verb in (slices.load(RUN), slices.activate(RUN), slices.unload(RUN), slices.list()):
            with pytest.raises(Unavailable):
                await verb
        slices.place.up()
        slices.place.reboot()
        assert await slices.list() == ()

    virtual(play)


def test_artifacts_have_the_methods_that_they_are_given() -> None:
    async def play(slices: SimulatedSlices) -> None:
        assert [method.name for method in (await slices.load(RUN)).methods] == ["a", "b"]
        with pytest.raises(NotFound):
            await slices.deactivate(Run(artifact="org:x:1", instance=1), grace=0)

    virtual(play, methods={RUN.artifact: (Method(name="a"), Method(name="b", streams=True))})


# The suite can fail


class Forgetful(SimulatedSlices):
    async def unload(self, run: Run) -> None:
        """Leaves it there."""


class Silent(SimulatedSlices):
    def listen(self, changed: Callable[[str], None]) -> None:
        """Tells nobody."""


class Restless(SimulatedSlices):
    async def activate(self, run: Run) -> Running:
        """At another address each time."""
        running = await super().activate(run)
        return self.place.put(Running(**{**_fields(running), "address": self.place.address()}))


class Open(SimulatedSlices):
    async def deactivate(self, run: Run, *, grace: float) -> Running:  # noqa: ARG002 - as the port has it
        """Goes on taking calls."""
        return self._row(run)


class Blind(SimulatedSlices):
    async def list(self) -> Any:
        """Knows only the active ones."""
        return [one for one in await super().list() if one.life is Life.ACTIVE]


class Mistaken(SimulatedSlices):
    async def printed(self, artifact: str, instance: int = 0, *, after: str = "") -> Any:
        """Takes the first for the one that printed last."""
        return await super().printed(artifact, instance or 1, after=after)


def _fields(running: Running) -> dict[str, Any]:
    return {name: getattr(running, name) for name in running.__struct_fields__}


@pytest.mark.parametrize("kind", [Forgetful, Silent, Restless, Open, Blind, Mistaken])
def test_the_suite_notices_a_driver_that_does_not_keep_it(kind: type[SimulatedSlices]) -> None:
    async def main() -> None:
        with pytest.raises(ExceptionGroup, match="claims do not hold"):
            await check_slices(opener(kind), setup=SETUP)

    run_virtual(main)

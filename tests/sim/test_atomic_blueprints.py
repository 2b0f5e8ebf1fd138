"""D40: slices of a blueprint that are upgraded each by itself, or all or none, in virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hostler.keys.families import BLUEPRINT, BLUEPRINT_HISTORY, TRACE
from hostler.model.deployment import Atomicity, SliceSpec, SliceState
from hostler.model.rollout import Phase

from .slice_stage import Crashing, Stage, play, spec

if TYPE_CHECKING:
    from hostler.model.rollout import BlueprintRevision

TOGETHER, ALONE = Atomicity.ALL_OR_NOTHING, Atomicity.BEST_EFFORT


def both(web: int, api: int, atomicity: Atomicity) -> tuple[SliceSpec, SliceSpec]:
    return (
        spec(f"org:web:{web}", 2, atomicity=atomicity),
        spec(f"org:api:{api}", 2, atomicity=atomicity),
    )


async def begin(stage: Stage, atomicity: Atomicity) -> None:
    """Both serve; the second version of `api` will not start."""
    await stage.nodes("a", "b")
    await stage.lead()
    await stage.apply(*both(1, 1, atomicity))
    await stage.until(lambda: stage.settled(*both(1, 1, atomicity)))
    stage.low.clear()
    stage.refuses = lambda _, artifact, state: (
        "no such module" if artifact == "org:api:2" and state is SliceState.ACTIVE else ""
    )


async def last(stage: Stage) -> BlueprintRevision:
    entries = (await BLUEPRINT_HISTORY.list(stage.store, blueprint="shop")).entries
    return max((entry.value for entry in entries), key=lambda one: one.number)


async def phase(stage: Stage, base: str, wanted: Phase) -> bool:
    found = await stage.deployment(base)
    return found is not None and found.phase is wanted


def test_d40_best_effort_takes_back_only_the_slice_that_failed() -> None:
    async def story(stage: Stage) -> None:
        await begin(stage, ALONE)
        await stage.apply(*both(2, 2, ALONE))
        await stage.until(lambda: phase(stage, "org:api", Phase.FAILED))
        await stage.until(lambda: stage.settled(spec("org:web:2", 2), spec("org:api:1", 2)))
        await stage.clock.sleep(60)
        assert await stage.settled(spec("org:web:2", 2), spec("org:api:1", 2))
        assert (await last(stage)).number == 2

    play(story)


def test_d40_all_or_nothing_takes_the_whole_revision_back_once() -> None:
    async def story(stage: Stage) -> None:
        await begin(stage, TOGETHER)
        await stage.apply(*both(2, 2, TOGETHER))
        await stage.until(lambda: stage.settled(spec("org:web:2", 2), spec("org:api:1", 2)), what="web is upgraded")

        async def taken_back() -> bool:
            return (await last(stage)).number == 3

        await stage.until(taken_back)
        await stage.until(lambda: stage.settled(*both(1, 1, TOGETHER)))
        await stage.until(lambda: phase(stage, "org:api", Phase.DONE))
        revision = await last(stage)
        assert (revision.rollback_to, revision.by, revision.blueprint.slices) == (1, "leader", both(1, 1, TOGETHER))
        whys = [entry.value.why for entry in (await TRACE.list(stage.store)).entries]
        [said] = [why for why in whys if "is all or nothing" in why]
        assert "org:api failed" in said
        assert "no such module" in said
        await stage.lead()
        await stage.clock.sleep(120)
        assert (await last(stage)).number == 3

    play(story)


def test_d40_nothing_is_taken_back_where_there_was_nothing_before_or_another_slice_failed_earlier() -> None:
    async def story(stage: Stage) -> None:
        stage.refuses = lambda _, artifact, state: "no" if "api" in artifact and state is SliceState.LOADED else ""
        await stage.nodes("a", "b")
        await stage.lead()
        await stage.apply(*both(1, 1, TOGETHER))
        await stage.until(lambda: phase(stage, "org:api", Phase.FAILED))
        await stage.clock.sleep(60)
        assert (await last(stage)).number == 1
        assert any("no earlier revision" in line for line in stage.told)
        await stage.apply(*both(2, 1, TOGETHER))  # api failed in revision 1
        await stage.until(lambda: stage.settled(spec("org:web:2", 2)))
        await stage.clock.sleep(60)
        assert (await last(stage)).number == 2

    play(story)


def test_d40_a_return_that_fails_is_not_taken_back_itself() -> None:
    async def story(stage: Stage) -> None:
        await begin(stage, TOGETHER)
        await stage.apply(*both(2, 2, TOGETHER))
        await stage.until(lambda: stage.settled(spec("org:web:2", 2), spec("org:api:1", 2)))
        stage.refuses = lambda _, artifact, state: (
            "gone" if artifact in {"org:api:2", "org:web:1"} and state is SliceState.ACTIVE else ""
        )
        await stage.until(lambda: phase(stage, "org:web", Phase.FAILED))
        await stage.clock.sleep(120)
        assert (await last(stage)).number == 3
        assert await stage.settled(spec("org:web:2", 2), spec("org:api:1", 2))

    play(story)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_d40_leaders_that_die_at_each_transaction_take_it_back_exactly_once(after: bool) -> None:
    is_over = False
    for step in range(2 if after else 1, 200, 2):

        async def story(stage: Stage, step: int = step) -> None:
            nonlocal is_over
            await begin(stage, TOGETHER)
            mortal = Crashing(stage.store, at=step, after=after)
            await stage.lead(mortal)
            await stage.apply(*both(2, 2, TOGETHER))

            async def ended() -> bool:
                return (await last(stage)).number >= 3 and await stage.settled(*both(1, 1, TOGETHER))

            async def died_or_ended() -> bool:
                return mortal.died.is_set() or await ended()

            await stage.until(died_or_ended)
            is_over = not mortal.died.is_set()
            await stage.lead()
            await stage.until(ended)
            await stage.clock.sleep(40)
            assert [entry.value.rollback_to for entry in (await BLUEPRINT_HISTORY.list(stage.store)).entries] == [
                0,
                0,
                1,
            ]
            stands = await BLUEPRINT.get(stage.store, blueprint="shop")
            assert stands is not None
            assert stands.value.slices == both(1, 1, TOGETHER)
            assert stage.low == {"org:web": 2, "org:api": 2}

        play(story)
        if is_over:
            break
    assert is_over

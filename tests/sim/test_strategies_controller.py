"""Strategies from end to end in virtual time: blueprints in, instances, weights and phases out; leaders come and go."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec
import pytest

from hostler.engine.deployments.call_metrics import Measured
from hostler.keys.families import DEPLOYMENT, ENDPOINT
from hostler.model.deployment import Autoscale, SliceSpec, SliceState, Strategy
from hostler.model.node import Lifecycle
from hostler.model.rollout import Deployment, Phase

from .slice_stage import Crashing, Stage, play, spec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

V1, V2, WEB = "org:web:1", "org:web:2", "org:web"
CANARY = msgspec.convert({"type": "canary", "stages": [{"weight": 10, "hold": 5}, {"weight": 50, "hold": 5}]}, Strategy)
BLUE_GREEN = msgspec.convert({"type": "blue-green", "bake": 2, "keep": 20}, Strategy)
ROLLING = Strategy()
STRATEGIES = {"rolling": ROLLING, "canary": CANARY, "blue-green": BLUE_GREEN}


class Calls:
    """What routers would measure: 100 calls a second, shared out by the weights that stand in the store."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.error_rate: dict[str, float] = {}
        self.in_flight = 0.0
        self.deployment: Deployment | None = None
        self.weights: list[dict[str, int]] = []
        self.phases: list[Phase] = []
        self.unanswered: list[str] = []
        """Weights that gave calls to a version without an endpoint, as they were written."""

    def measured(self, artifact: str) -> Measured:
        deployment, now = self.deployment, self.stage.clock.wall()
        if deployment is None:
            return Measured()
        share = deployment.weights.get(artifact, 0) / 100 if deployment.weights else 1.0
        calls = int((now - deployment.changed_at) * 100 * share)
        errors = int(calls * self.error_rate.get(artifact, 0.0))
        in_flight = self.in_flight if artifact == deployment.artifact else 0.0
        return Measured(calls=calls, errors=errors, in_flight=in_flight, since=deployment.changed_at)

    async def watch(self) -> None:
        async with self.stage.store.watch(DEPLOYMENT.prefix(), start_revision=1) as events:
            async for event in events:
                old = self.deployment
                self.deployment = DEPLOYMENT.entry(event.kv).value if event.type == "put" else None
                if self.deployment is None:
                    continue
                if not self.phases or self.phases[-1] is not self.deployment.phase:
                    self.phases.append(self.deployment.phase)
                if not self.weights or self.weights[-1] != self.deployment.weights:
                    self.weights.append(self.deployment.weights)
                    await self._check(old.weights if old else {}, self.deployment.weights)

    async def _check(self, old: dict[str, int], new: dict[str, int]) -> None:
        for artifact, weight in new.items():
            if weight > old.get(artifact, 0) and not (await ENDPOINT.list(self.stage.store, artifact=artifact)).entries:
                self.unanswered.append(f"{artifact}: {new}")


@asynccontextmanager
async def serving(stage: Stage, strategy: Strategy, instances: int = 4) -> AsyncIterator[Calls]:
    """The first version serves on three nodes, and calls are counted."""
    calls = Calls(stage)
    stage.measured = calls.measured
    watching = asyncio.create_task(calls.watch())
    try:
        await stage.nodes("a", "b", "c")
        await stage.lead()
        await stage.apply(wanted(V1, strategy, instances))
        await stage.until(lambda: stage.settled(wanted(V1, strategy, instances)))
        await stage.until(lambda: at(stage, Phase.DONE))
        for known in (calls.weights, calls.phases, stage.low, stage.most):
            known.clear()
        yield calls
        assert calls.unanswered == []
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def wanted(artifact: str, strategy: Strategy, instances: int = 4) -> SliceSpec:
    return spec(artifact, instances, strategy=strategy)


async def at(stage: Stage, phase: Phase, artifact: str = "", weight: int | None = None) -> bool:
    found = await stage.deployment(WEB)
    if found is None or found.phase is not phase or (artifact and found.artifact != artifact):
        return False
    return weight is None or found.weights.get(found.artifact) == weight


async def ended(stage: Stage, phase: Phase, runs: SliceSpec, artifact: str) -> None:
    """Until the deployment has come to this end, and exactly this runs."""

    async def holds() -> bool:
        found = await stage.deployment(WEB)
        is_there = found is not None and not found.weights and await at(stage, phase, artifact)
        return is_there and await stage.settled(runs)

    await stage.until(holds, what=f"{phase} of {artifact}")


def test_a_rolling_upgrade() -> None:
    async def story(stage: Stage) -> None:
        async with serving(stage, ROLLING) as calls:
            await stage.apply(wanted(V2, ROLLING))
            await ended(stage, Phase.DONE, wanted(V2, ROLLING), V2)
            assert calls.phases == [Phase.ROLLING, Phase.DONE]
            assert calls.weights == [{}]
            assert stage.low[WEB] == 4

    play(story)


def test_a_canary_goes_to_the_end() -> None:
    async def story(stage: Stage) -> None:
        async with serving(stage, CANARY) as calls:
            began = stage.clock.now()
            await stage.apply(wanted(V2, CANARY))
            await stage.until(lambda: at(stage, Phase.CANARY, V2, 10))
            assert len(await stage.ready(V1)) == 4
            assert len(await stage.ready(V2)) == 1
            await stage.until(lambda: at(stage, Phase.CANARY, V2, 50))
            assert (len(await stage.ready(V1)), len(await stage.ready(V2))) == (4, 2)
            await ended(stage, Phase.DONE, wanted(V2, CANARY), V2)
            assert calls.weights == [{V1: 100, V2: 0}, {V1: 90, V2: 10}, {V1: 50, V2: 50}, {V1: 0, V2: 100}, {}]
            assert 10 <= stage.clock.now() - began <= 30
            assert stage.low.get(WEB, 4) >= 4

    play(story)


def test_a_canary_that_fails_its_gate_goes_back_and_stays_there_under_a_new_leader() -> None:
    async def story(stage: Stage) -> None:
        async with serving(stage, CANARY) as calls:
            before = await stage.ready(V1)
            calls.error_rate[V2] = 0.2
            await stage.apply(wanted(V2, CANARY))
            await ended(stage, Phase.FAILED, wanted(V1, CANARY), V2)
            assert calls.weights == [{V1: 100, V2: 0}, {V1: 90, V2: 10}, {V1: 100, V2: 0}, {}]
            assert await stage.ready(V1) == before
            await stage.lead()
            await stage.clock.sleep(40)
            await ended(stage, Phase.FAILED, wanted(V1, CANARY), V2)
            calls.error_rate.clear()
            await stage.apply(wanted(V2, CANARY))
            await ended(stage, Phase.DONE, wanted(V2, CANARY), V2)

    play(story)


def test_blue_green_switches_in_one_write() -> None:
    async def story(stage: Stage) -> None:
        async with serving(stage, BLUE_GREEN) as calls:
            await stage.apply(wanted(V2, BLUE_GREEN))
            await stage.until(lambda: at(stage, Phase.KEEPING, V2, 100))
            assert (len(await stage.ready(V1)), len(await stage.ready(V2))) == (4, 4)
            await ended(stage, Phase.DONE, wanted(V2, BLUE_GREEN), V2)
            assert calls.weights == [{V1: 100, V2: 0}, {V2: 100, V1: 0}, {}]
            assert calls.phases == [Phase.STANDBY, Phase.KEEPING, Phase.DONE]

    play(story)


def test_blue_green_goes_back_at_once_while_the_old_are_kept() -> None:
    async def story(stage: Stage) -> None:
        async with serving(stage, BLUE_GREEN):
            before = await stage.ready(V1)
            await stage.apply(wanted(V2, BLUE_GREEN))
            await stage.until(lambda: at(stage, Phase.KEEPING, V2, 100))
            began = stage.clock.now()
            await stage.apply(wanted(V1, BLUE_GREEN), rollback_to=1)
            await stage.until(lambda: at(stage, Phase.KEEPING, V1, 100))
            assert stage.clock.now() - began < 1
            await ended(stage, Phase.DONE, wanted(V1, BLUE_GREEN), V1)
            assert await stage.ready(V1) == before

    play(story)


@pytest.mark.parametrize("kind", STRATEGIES)
def test_a_version_that_does_not_start_leaves_the_old_one_untouched(kind: str) -> None:
    strategy = STRATEGIES[kind]

    async def story(stage: Stage) -> None:
        async with serving(stage, strategy) as calls:
            before = await stage.ready(V1)
            stage.refuses = lambda _, artifact, state: (
                "no such module" if artifact == V2 and state is SliceState.ACTIVE else ""
            )
            await stage.apply(wanted(V2, strategy))
            await ended(stage, Phase.FAILED, wanted(V1, strategy), V2)
            assert await stage.ready(V1) == before
            assert calls.phases[-1] is Phase.FAILED
            failed = await stage.deployment(WEB)
            assert failed is not None
            assert (failed.previous, failed.weights) == (V1, {})
            assert "no such module" in failed.why
            assert not any(weights.get(V2) for weights in calls.weights)

    play(story)


@pytest.mark.parametrize("kind", STRATEGIES)
@pytest.mark.parametrize("after", [0.0, 0.4, 0.9, 2.5, 8.0, 14.0, 19.0])
def test_going_back_at_any_time_with_a_new_leader_in_between(kind: str, after: float) -> None:
    strategy = STRATEGIES[kind]

    async def story(stage: Stage) -> None:
        async with serving(stage, strategy):
            await stage.apply(wanted(V2, strategy))
            await stage.clock.sleep(after)
            await stage.depose()
            await stage.apply(wanted(V1, strategy), rollback_to=1)
            await stage.lead()
            await ended(stage, Phase.DONE, wanted(V1, strategy), V1)
            assert stage.low.get(WEB, 4) >= 4

    play(story)


@pytest.mark.parametrize("kind", STRATEGIES)
def test_leaders_that_never_last_bring_it_to_the_end(kind: str) -> None:
    strategy = STRATEGIES[kind]

    async def story(stage: Stage) -> None:
        async with serving(stage, strategy):
            await stage.apply(wanted(V2, strategy))
            for turn in range(60):
                await stage.clock.sleep(0.13 * (1 + turn % 7))
                await stage.lead()
            await ended(stage, Phase.DONE, wanted(V2, strategy), V2)
            assert stage.low.get(WEB, 4) >= 4

    play(story)


@pytest.mark.parametrize("fails", [False, True], ids=["well", "badly"])
@pytest.mark.parametrize("kind", ["canary", "blue-green"])
def test_a_leader_that_dies_at_any_transaction_is_followed_by_one_that_goes_on(kind: str, *, fails: bool) -> None:
    """The story is told again and again, the death one transaction further each time, until it ends before that."""
    strategy, told = STRATEGIES[kind], 0
    for step in range(1, 400):
        is_over = False
        runs = wanted(V1 if fails else V2, strategy, 2)

        async def story(stage: Stage, step: int = step, runs: SliceSpec = runs) -> None:
            nonlocal is_over
            async with serving(stage, strategy, 2) as calls:
                if fails and kind == "canary":
                    calls.error_rate[V2] = 0.5
                elif fails:
                    stage.refuses = lambda _, artifact, state: (
                        "no" if artifact == V2 and state is SliceState.LOADED else ""
                    )
                mortal = Crashing(stage.store, at=step, after=bool(step % 2))
                await stage.lead(mortal)
                await stage.apply(wanted(V2, strategy, 2))
                goal = Phase.FAILED if fails else Phase.DONE

                async def has_died_or_ended() -> bool:
                    return mortal.died.is_set() or (await at(stage, goal, V2) and await stage.settled(runs))

                await stage.until(has_died_or_ended)
                is_over = not mortal.died.is_set()
                await stage.lead()
                await ended(stage, goal, runs, V2)
                assert stage.low.get(WEB, 2) >= 2

        play(story)
        told += 1
        if is_over:
            break
    assert is_over
    assert told > 6


@pytest.mark.parametrize("kind", STRATEGIES)
@pytest.mark.parametrize("after", [0.3, 1.0, 4.0, 9.0])
def test_a_node_dies_and_another_is_drained_meanwhile(kind: str, after: float) -> None:
    strategy = STRATEGIES[kind]

    async def story(stage: Stage) -> None:
        async with serving(stage, strategy):
            await stage.nodes("d")
            await stage.apply(wanted(V2, strategy))
            await stage.clock.sleep(after)
            await stage.die("a")
            await stage.lifecycle("b", Lifecycle.DRAINING)
            await ended(stage, Phase.DONE, wanted(V2, strategy), V2)

            async def is_left() -> bool:
                return {node for node, _ in await stage.ready(V2)} == {"c", "d"} and await stage.settled(
                    wanted(V2, strategy)
                )

            await stage.until(is_left)

    play(story)


@pytest.mark.parametrize("instances", [5, 12])
def test_instances_that_fail_together_are_one_try_and_there_are_more(instances: int) -> None:
    async def story(stage: Stage) -> None:
        async with serving(stage, BLUE_GREEN, instances):
            began = stage.clock.now()
            stage.refuses = lambda _, artifact, state: (
                "not yet" if artifact == V2 and state is SliceState.LOADED and stage.clock.now() < began + 2 else ""
            )
            await stage.apply(wanted(V2, BLUE_GREEN, instances))
            await ended(stage, Phase.DONE, wanted(V2, BLUE_GREEN, instances), V2)
            retries = await stage.retries(V2)
            assert retries is not None
            assert retries.total >= 2 * instances
            assert not retries.given_up

    play(story)


def test_the_number_follows_the_calls() -> None:
    auto = Autoscale(min=2, max=9, in_flight=10.0, warm_up=5.0, cool_down=20.0)

    def scaled(instances: int) -> SliceSpec:
        return msgspec.structs.replace(spec(V1, instances), autoscale=auto)

    async def story(stage: Stage) -> None:
        async with serving(stage, ROLLING) as calls:
            calls.in_flight = 65.0
            await stage.apply(scaled(4))
            await stage.until(lambda: stage.settled(scaled(7)))
            calls.in_flight = 1000.0
            await stage.until(lambda: stage.settled(scaled(9)))
            calls.in_flight = 5.0
            began = stage.clock.now()
            await stage.until(lambda: stage.settled(scaled(2)))
            assert stage.clock.now() - began >= 2 * auto.cool_down * 0.7

    play(story)


def test_a_version_that_comes_up_and_then_dies_is_given_up_and_the_old_one_serves() -> None:
    async def story(stage: Stage) -> None:
        await stage.nodes("a", "b", "c")
        await stage.lead()
        await stage.apply(spec(instances=3))
        await stage.until(lambda: stage.settled(spec(instances=3)))
        await stage.apply(spec("org:web:2", instances=3))
        for _ in range(60):
            await stage.clock.sleep(2)
            for (node, artifact, number), one in (await stage.slices()).items():
                if artifact == "org:web:2" and one.state is SliceState.ACTIVE:
                    await stage.crash(node, artifact, number)
        deployment = await stage.deployment("org:web")
        assert deployment is not None
        assert deployment.phase is Phase.FAILED
        assert len(await stage.ready("org:web:1")) == 3

    play(story)


def test_what_was_given_up_is_tried_again_only_if_the_apply_means_it() -> None:
    async def story(stage: Stage) -> None:
        await stage.nodes("a", "b", "c")
        await stage.lead()
        other = spec("org:db:1")
        await stage.apply(spec(instances=2), other)
        await stage.until(lambda: stage.settled(spec(instances=2), other))
        broken = spec(V2, instances=2)
        stage.refuses = lambda _, artifact, state: "no" if (artifact, state) == (V2, SliceState.ACTIVATING) else ""
        await stage.apply(broken, other)

        async def is_given_up() -> bool:
            deployment = await stage.deployment(WEB)
            return deployment is not None and deployment.phase is Phase.FAILED

        await stage.until(is_given_up, within=300)
        first = await stage.deployment(WEB)
        bigger = spec("org:db:1", instances=2)
        await stage.apply(broken, bigger)
        await stage.until(lambda: stage.settled(spec(instances=2), bigger))
        await stage.clock.sleep(60)
        still = await stage.deployment(WEB)
        assert first is not None
        assert still is not None
        assert (still.phase, still.number, still.started_at) == (Phase.FAILED, first.number + 1, first.started_at)
        retries = await stage.retries(V2)
        assert retries is not None
        assert retries.given_up
        stage.refuses = lambda _node, _artifact, _state: ""
        await stage.apply(broken, bigger)  # the very same again
        await stage.until(lambda: stage.settled(broken, bigger))

    play(story)

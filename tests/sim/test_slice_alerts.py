"""D41 from end to end in virtual time: the leader fires and resolves alerts, and leaders come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hostler.engine.deployments.call_metrics import Measured
from hostler.entry.server.feed import item_of
from hostler.keys.families import ALERT, TRACE
from hostler.model.blueprint_api import BlueprintPhase
from hostler.model.deployment import AlertMetric, AlertRule
from hostler.model.rollout import Alert, AlertState

from .slice_stage import Crashing, Stage, play, spec
from .test_rollout_orders import ADMIN, desk

if TYPE_CHECKING:
    from hostler.model.deployment import SliceSpec

WEB = "org:web"
SLOW = AlertRule(name="slow", metric=AlertMetric.P95_MS, above=500.0, after=10.0)
FEW = AlertRule(name="few", metric=AlertMetric.READY, below=2.0, after=5.0)


def web(*alerts: AlertRule, version: int = 1) -> SliceSpec:
    return spec(f"{WEB}:{version}", 2, alerts=alerts)


async def alert(stage: Stage, name: str) -> Alert | None:
    entry = await ALERT.get(stage.store, base=WEB, alert=name)
    return None if entry is None else entry.value


async def is_in(stage: Stage, name: str, state: AlertState | None) -> bool:
    found = await alert(stage, name)
    return (None if found is None else found.state) is state


async def begin(stage: Stage, *alerts: AlertRule) -> dict[str, float]:
    """It serves, and is as slow as is said."""
    slow = {"p95": 20.0}
    stage.measured = lambda _: Measured(p95_ms=slow["p95"], recent_calls=100, since=1.0)
    await stage.nodes("a", "b")
    await stage.lead()
    await stage.apply(web(*alerts))
    await stage.until(lambda: stage.settled(web()))
    return slow


def test_d41_an_alert_fires_and_resolves_with_events_and_reasons_and_outlives_its_leader() -> None:
    async def story(stage: Stage) -> None:
        async with desk(stage) as people:
            slow = await begin(stage, SLOW, FEW)
            await stage.clock.sleep(60)
            assert await alert(stage, "slow") is None
            slow["p95"] = 812.0
            began = stage.clock.now()
            await stage.until(lambda: is_in(stage, "slow", AlertState.FIRING))
            assert 10 <= stage.clock.now() - began <= 15
            found = await alert(stage, "slow")
            assert found is not None
            assert found.why == "alert slow of org:web fires: p95_ms is 812 ms, above 500 ms for 10 s"
            await stage.clock.sleep(1)
            view = await people.service.get(ADMIN, "shop")
            assert (view.firing, view.phase) == (("org:web slow",), BlueprintPhase.READY)
            status = await people.service.status(ADMIN, "shop")
            assert [(one.name, one.firing, one.value) for one in status.slices[0].alerts] == [
                ("slow", True, 812.0),
                ("few", False, None),
            ]
            whys = [entry.value.why for entry in (await TRACE.list(stage.store)).entries if entry.value.what == "alert"]
            assert whys == [found.why]

            stage.measured = lambda _: Measured()  # a new leader knows nothing yet
            await stage.lead()
            await stage.clock.sleep(120)
            assert await is_in(stage, "slow", AlertState.FIRING)
            stage.measured = lambda _: Measured(p95_ms=20.0, recent_calls=100, since=1.0)
            await stage.until(lambda: is_in(stage, "slow", AlertState.RESOLVED))
            await stage.clock.sleep(60)
            found = await alert(stage, "slow")
            assert found is not None
            assert (found.fired, found.why) == (
                1,
                "alert slow of org:web resolves: p95_ms is 20 ms, no longer above 500 ms for 10 s",
            )
            assert (await people.service.get(ADMIN, "shop")).firing == ()

    play(story)


def test_d41_firing_and_resolving_are_events_of_their_own_kind() -> None:
    async def story(stage: Stage) -> None:
        slow = await begin(stage, SLOW)
        slow["p95"] = 900.0
        await stage.until(lambda: is_in(stage, "slow", AlertState.FIRING))
        slow["p95"] = 10.0
        await stage.until(lambda: is_in(stage, "slow", AlertState.RESOLVED))
        await stage.apply(web())
        await stage.until(lambda: is_in(stage, "slow", None))
        told: list[Any] = []
        async with stage.store.watch(ALERT.prefix(), start_revision=1) as events:
            async for event in events:
                told.append(item_of(event, (event.kv.mod_revision, 0)))
                if event.type == "delete":
                    break
        assert [one.kind for one in told] == ["alert"] * 3
        assert b'"state":"firing"' in told[0].text
        assert b'"state":"resolved"' in told[1].text
        assert b'"subject":"org:web/slow"' in told[2].text

    play(story)


def test_d41_too_few_instances_fire_and_alerts_go_with_their_slice() -> None:
    async def story(stage: Stage) -> None:
        await begin(stage, FEW)
        stage.ignores = lambda _node, _artifact, _state: True
        [(node, number), *_] = await stage.ready(f"{WEB}:1")
        await stage.crash(node, f"{WEB}:1", number)
        await stage.until(lambda: is_in(stage, "few", AlertState.FIRING))
        stage.ignores = lambda _node, _artifact, _state: False
        await stage.until(lambda: is_in(stage, "few", AlertState.RESOLVED), within=900)
        await stage.remove()
        await stage.until(lambda: is_in(stage, "few", None))

    play(story)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_d41_leaders_that_die_at_each_transaction_fire_and_resolve_once(after: bool) -> None:
    is_over = False
    for step in range(1, 60):

        async def story(stage: Stage, step: int = step) -> None:
            nonlocal is_over
            slow = await begin(stage, SLOW)
            mortal = Crashing(stage.store, at=step, after=after)
            await stage.lead(mortal)
            for p95, state in ((900.0, AlertState.FIRING), (10.0, AlertState.RESOLVED)):
                slow["p95"] = p95
                for _ in range(40):
                    await stage.clock.sleep(1)
                    if mortal.died.is_set():
                        await stage.lead()
                        mortal = Crashing(stage.store, at=10**9, after=after)
                        is_over = False
                        break
                await stage.until(lambda state=state: is_in(stage, "slow", state))  # type: ignore[misc]
            found = await alert(stage, "slow")
            assert found is not None
            assert found.fired == 1

        is_over = True
        play(story)
        if is_over:
            break
    assert is_over
    assert step > 2

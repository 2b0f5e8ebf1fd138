"""Canaries: shares of the calls, what is measured of them, and what comes of that."""

from __future__ import annotations

import pytest
from strategy_model import V1, V2, V3, Habits, Model, running, slice_spec

from hostler.engine.deployments.call_metrics import Measured, Verdict, judge
from hostler.engine.deployments.strategy import VersionSet
from hostler.model.deployment import Gate, SliceSpec
from hostler.model.rollout import Phase, Retries

CANARY = {"type": "canary", "stages": [{"weight": 10, "hold": 5}, {"weight": 50, "hold": 5}]}


def canary(artifact: str = V2, instances: int = 4, **strategy: object) -> SliceSpec:
    return slice_spec(artifact, instances, strategy=CANARY | strategy)


def under_way(share: int = 10, **strategy: object) -> Model:
    """A canary whose new version gets so much of the calls."""
    model = running(slice_spec(V1, 4))
    model.apply(canary(**strategy))
    for _ in range(60):
        model.step()
        if model.deployment and model.deployment.weights.get(V2) == share:
            return model
        model.world()
    raise AssertionError(model.deployment)


def test_a_canary_goes_through_its_stages_with_exact_weights() -> None:
    model = running(slice_spec(V1, 4))
    model.apply(canary())
    done = model.settle()
    assert done is not None
    assert (done.phase, done.artifact) == (Phase.DONE, V2)
    assert model.weights == [{V1: 100, V2: 0}, {V1: 90, V2: 10}, {V1: 50, V2: 50}, {V1: 0, V2: 100}, {}]
    assert model.ready() == {V2: 4}


def test_the_old_version_is_there_in_full_until_the_new_one_has_all_calls() -> None:
    model = running(slice_spec(V1, 10))
    model.apply(canary(instances=10))
    seen = []
    for _ in range(60):
        model.step()
        assert model.deployment is not None
        share = model.deployment.weights.get(V2)
        if share is not None:
            seen.append((share, model.ready().get(V1, 0), model.there().get(V2, 0)))
        model.world()
    assert {there for share, _, there in seen if share == 0} <= {0, 1}
    assert {ready for share, ready, _ in seen if share in {0, 10, 50}} == {10}
    assert max(there for share, _, there in seen if share == 10) == 5
    assert max(there for share, _, there in seen if share == 50) == 10


def test_none_of_the_new_is_loaded_before_routers_can_know_that_it_gets_no_call() -> None:
    model = running(slice_spec(V1, 4))
    model.apply(canary())
    first = model.aimed()
    assert first.deployment is not None
    assert first.deployment.weights == {V1: 100, V2: 0}
    assert dict(first.wants) == {VersionSet(V1): 4}
    model.deployment = first.deployment
    assert dict(model.aimed().wants) == {VersionSet(V1): 4, VersionSet(V2): 1}


def test_a_stage_gets_its_share_only_when_its_instances_are_ready() -> None:
    model = running(slice_spec(V1, 4))
    model.habits[V2] = Habits(slowness=6)
    model.apply(canary(stages=[{"weight": 50, "hold": 1}]))
    for _ in range(60):
        model.step()
        if model.deployment and model.deployment.weights.get(V2) == 50:
            assert model.ready()[V2] >= 2
            break
        model.world()
    else:
        pytest.fail("it never got its share")


def test_a_stage_is_held_for_its_time() -> None:
    model = under_way(10)
    assert model.deployment is not None
    began = model.now
    while model.deployment.stage == 0:
        model.world()
        model.step()
    assert 5 <= model.now - began <= 6
    assert model.aimed().again == 1.0


def test_without_enough_calls_a_stage_is_held_until_there_were() -> None:
    model = under_way(10)
    model.calls_per_second = 0
    model.counted.clear()
    model.play(100)
    assert model.deployment is not None
    assert (model.deployment.phase, model.deployment.weights[V2]) == (Phase.CANARY, 10)
    model.calls_per_second = 200
    done = model.settle()
    assert done is not None
    assert done.phase is Phase.DONE


def test_calls_from_before_a_stage_do_not_count_for_it() -> None:
    model = under_way(10)
    assert model.deployment is not None
    since = model.deployment.changed_at
    model.now = since + 100
    model.told = lambda _: Measured(calls=10_000, errors=9_000, since=since - 1)
    found = model.aimed().deployment
    assert found is not None
    assert (found.phase, found.stage) == (Phase.CANARY, 0)
    model.told = lambda _: Measured(calls=10_000, errors=9_000, since=since)
    found = model.aimed().deployment
    assert found is not None
    assert found.phase is Phase.BACKING_OUT


@pytest.mark.parametrize("habits", [Habits(error_rate=0.5), Habits(latency_ms=900.0)])
def test_a_new_version_that_fails_its_gate_loses_its_calls_in_one_write_and_goes(habits: Habits) -> None:
    model = running(slice_spec(V1, 4))
    names = sorted(one.name for one in model.instances)
    model.habits[V2] = habits
    model.apply(canary(gate={"max_latency_ms": 500}))
    failed = model.settle()
    assert failed is not None
    assert (failed.phase, failed.artifact, failed.previous) == (Phase.FAILED, V2, V1)
    assert model.weights == [{V1: 100, V2: 0}, {V1: 90, V2: 10}, {V1: 100, V2: 0}, {}]
    assert sorted(one.name for one in model.instances) == names
    assert "calls" in failed.why


def test_what_was_backed_out_of_gets_no_call_while_it_is_on_its_way_out() -> None:
    model = under_way(10)
    model.habits[V2] = Habits(error_rate=0.5)
    model.rng.random = lambda: 0.0  # type: ignore[method-assign]  # nothing that leaves is ever gone
    model.play(20)
    assert model.deployment is not None
    assert model.leaving
    assert (model.deployment.phase, model.deployment.weights) == (Phase.FAILED, {V1: 100, V2: 0})
    model.leaving.clear()
    model.step()
    assert model.deployment.weights == {}


def test_a_gate_is_looked_at_while_the_next_stage_is_still_made_ready() -> None:
    model = under_way(10)
    while model.deployment is not None and model.deployment.stage == 0:
        model.world()
        model.step()
    model.habits[V2] = Habits(slowness=10_000, error_rate=0.5)
    model.play(5)
    assert model.deployment is not None
    assert model.deployment.phase in {Phase.BACKING_OUT, Phase.FAILED}


def test_a_new_version_that_does_not_start_gets_no_call() -> None:
    model = running(slice_spec(V1, 4))
    model.habits[V2] = Habits(starts=False)
    model.apply(canary())
    failed = model.settle()
    assert failed is not None
    assert failed.phase is Phase.FAILED
    assert model.weights == [{V1: 100, V2: 0}, {}]
    assert model.ready() == {V1: 4}


@pytest.mark.parametrize("share", [10, 50, 100])
def test_going_back_takes_all_calls_back(share: int) -> None:
    model = under_way(share)
    model.apply(slice_spec(V1, 4), rollback=True)
    found = model.aimed()
    assert found.deployment is not None
    assert found.deployment.weights == {V1: 100, V2: 0}
    done = model.settle()
    assert done is not None
    assert (done.phase, done.artifact) == (Phase.DONE, V1)
    assert model.ready() == {V1: 4}


def test_what_a_newer_canary_overtakes_gets_no_more_calls() -> None:
    model = under_way(50)
    model.apply(canary(V3))
    found = model.aimed()
    assert found.deployment is not None
    assert (found.deployment.previous, found.deployment.weights) == (V1, {V1: 100, V3: 0})
    done = model.settle()
    assert done is not None
    assert model.ready() == {V3: 4}


def test_a_rolling_upgrade_overtakes_a_canary_and_the_canary_is_gone_before_calls_are_mixed() -> None:
    model = under_way(10)
    model.apply(slice_spec(V3, 4))
    found = model.aimed().deployment
    assert found is not None
    assert (found.phase, found.weights) == (Phase.ROLLING, {V1: 100, V3: 0})
    for _ in range(60):
        model.step()
        assert model.deployment is not None
        if not model.deployment.weights:
            assert V2 not in model.there()
        model.world()
    assert model.ready() == {V3: 4}


def test_a_canary_after_a_half_finished_roll_waits_for_the_old_version() -> None:
    model = running(slice_spec(V1, 4))
    model.apply(slice_spec(V2, 4))
    while model.ready().get(V2, 0) < 2 or model.there().get(V1, 0) > 2:
        model.step()
        model.world()
    model.apply(canary(V3))
    for _ in range(80):
        model.step()
        assert model.deployment is not None
        if not model.deployment.weights and model.deployment.phase is Phase.CANARY:
            assert V3 not in model.there()
        elif model.deployment.weights == {V1: 100, V3: 0}:
            assert model.ready()[V1] == 4
        model.world()
    assert model.ready() == {V3: 4}


def test_a_canary_of_a_version_that_is_broken_takes_its_place() -> None:
    model = running(slice_spec(V1, 4))
    model.habits[V1] = Habits(starts=False)
    model.instances.clear()
    model.retries[V1] = Retries(failures=9, at=model.now)
    model.apply(canary())
    done = model.settle()
    assert done is not None
    assert done.phase is Phase.DONE
    assert model.ready() == {V2: 4}


def test_if_all_of_the_old_die_the_new_are_called_rather_than_nobody() -> None:
    model = running(slice_spec(V1, 4))
    model.apply(canary())
    model.habits[V1] = Habits(slowness=10_000)
    while not model.ready().get(V2):
        model.step()
        model.world()
    assert model.deployment is not None
    assert model.deployment.weights == {V1: 100, V2: 0}
    for one in model.instances:
        one.ready = one.side.artifact == V2
    found = model.aimed()
    assert found.deployment is not None
    assert found.deployment.weights == {}
    assert dict(found.wants)[VersionSet(V2)] == 1


@pytest.mark.parametrize(
    ("measured", "held", "verdict"),
    [
        (Measured(), 0.0, Verdict.HOLD),
        (Measured(), 60.0, Verdict.HOLD),
        (Measured(calls=100), 59.0, Verdict.HOLD),
        (Measured(calls=99), 60.0, Verdict.HOLD),
        (Measured(calls=100), 60.0, Verdict.PASS),
        (Measured(calls=100, errors=10), 60.0, Verdict.PASS),
        (Measured(calls=100, errors=11), 60.0, Verdict.FAIL),
        (Measured(calls=100, errors=11), 0.0, Verdict.FAIL),
        (Measured(calls=99, errors=99), 59.0, Verdict.HOLD),
        (Measured(calls=50, errors=6), 60.0, Verdict.FAIL),
        (Measured(calls=49, errors=49), 60.0, Verdict.HOLD),
        (Measured(calls=100, p95_ms=200.0), 60.0, Verdict.PASS),
        (Measured(calls=100, p95_ms=200.1), 1.0, Verdict.FAIL),
        (Measured(calls=99, p95_ms=900.0), 1.0, Verdict.HOLD),
    ],
)
def test_a_gate(measured: Measured, held: float, verdict: Verdict) -> None:
    gate = Gate(max_error_rate=0.1, max_latency_ms=200.0, min_calls=100)
    assert judge(gate, measured, held=held, hold=60.0)[0] is verdict


def test_a_gate_that_asks_for_no_calls_passes_without_any() -> None:
    gate = Gate(max_error_rate=0.0, min_calls=0)
    assert judge(gate, Measured(), held=1.0, hold=1.0)[0] is Verdict.PASS
    assert judge(gate, Measured(calls=1, errors=1), held=0.0, hold=1.0)[0] is Verdict.FAIL

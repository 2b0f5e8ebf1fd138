"""Blue-green: all of the new beside all of the old, one switch, and a way back."""

from __future__ import annotations

from strategy_model import V1, V2, V3, Habits, Model, running, slice_spec

from hostler.engine.deployments.strategy import VersionSet
from hostler.model.deployment import SliceSpec
from hostler.model.rollout import Phase, Retries

BLUE_GREEN = {"type": "blue-green", "bake": 4, "keep": 10}


def blue_green(artifact: str = V2, instances: int = 3, **strategy: object) -> SliceSpec:
    return slice_spec(artifact, instances, strategy=BLUE_GREEN | strategy)


def until(phase: Phase, model: Model | None = None) -> Model:
    """The model, once its deployment is there."""
    if model is None:
        model = running(slice_spec(V1, 3))
        model.apply(blue_green())
    for _ in range(60):
        model.step()
        if model.deployment and model.deployment.phase is phase:
            return model
        model.world()
    raise AssertionError(model.deployment)


def test_calls_are_switched_in_one_write_and_the_old_go_after_their_time() -> None:
    model = running(slice_spec(V1, 3))
    model.apply(blue_green())
    done = model.settle()
    assert done is not None
    assert (done.phase, done.artifact, done.previous) == (Phase.DONE, V2, "")
    assert model.weights == [{V1: 100, V2: 0}, {V2: 100, V1: 0}, {}]
    assert model.ready() == {V2: 3}


def test_the_new_stand_ready_for_their_time_before_the_switch() -> None:
    model = until(Phase.STANDBY)
    while model.ready().get(V2, 0) < 3:
        model.step()
        model.world()
    model.step()
    began = model.now
    assert 0 < model.aimed().again <= 4
    until(Phase.KEEPING, model)
    assert 4 <= model.now - began <= 5
    assert model.ready() == {V1: 3, V2: 3}


def test_one_that_crashes_meanwhile_begins_the_time_anew() -> None:
    model = until(Phase.STANDBY)
    while not (model.deployment and model.deployment.stage):
        model.step()
        model.world()
    model.now += 3
    crashed = next(one for one in model.instances if one.side.artifact == V2)
    crashed.ready = False
    model.step()
    assert model.deployment.stage == 0
    crashed.ready = True
    model.now += 3
    model.step()
    assert model.deployment.phase is Phase.STANDBY


def test_the_old_stay_for_their_time_to_go_back_to() -> None:
    model = until(Phase.KEEPING)
    began = model.now
    while model.ready().get(V1, 0) == 3:
        model.step()
        model.world()
    assert 10 <= model.now - began <= 12


def test_going_back_while_the_old_are_kept_switches_at_once_and_can_be_gone_back_on() -> None:
    for rollback in (True, False):
        model = until(Phase.KEEPING)
        names = {one.name for one in model.instances}
        for artifact, other in ((V1, V2), (V2, V1)):
            model.apply(blue_green(artifact), rollback=rollback)
            model.step()
            assert model.deployment is not None
            assert model.deployment.phase is Phase.KEEPING
            assert model.deployment.weights == {artifact: 100, other: 0}
            model.world()
        assert {one.name for one in model.instances} == names
        done = model.settle()
        assert done is not None
        assert (done.phase, model.ready()) == (Phase.DONE, {V2: 3})


def test_going_back_when_too_few_of_the_old_are_left_keeps_the_calls_where_they_are_answered() -> None:
    model = until(Phase.KEEPING)
    model.instances = [one for one in model.instances if one.side.artifact == V2]
    model.apply(blue_green(V1))
    found = model.aimed()
    assert found.deployment is not None
    assert (found.deployment.phase, found.deployment.weights) == (Phase.STANDBY, {V2: 100, V1: 0})
    done = model.settle()
    assert done is not None
    assert (done.phase, model.ready()) == (Phase.DONE, {V1: 3})


def test_a_new_version_that_does_not_start_is_backed_out_of_and_the_old_untouched() -> None:
    model = running(slice_spec(V1, 3))
    names = sorted(one.name for one in model.instances)
    model.habits[V2] = Habits(starts=False)
    model.apply(blue_green())
    failed = model.settle()
    assert failed is not None
    assert (failed.phase, failed.previous) == (Phase.FAILED, V1)
    assert model.weights == [{V1: 100, V2: 0}, {}]
    assert sorted(one.name for one in model.instances) == names


def test_a_new_version_that_is_given_up_after_the_switch_gives_the_calls_back() -> None:
    model = until(Phase.KEEPING)
    model.retries[V2] = Retries(failures=5, given_up=True, at=model.now, why="it crashes")
    model.now += 1
    found = model.aimed()
    assert found.deployment is not None
    assert (found.deployment.phase, found.deployment.weights) == (Phase.BACKING_OUT, {V1: 100, V2: 0})
    failed = model.settle()
    assert failed is not None
    assert (failed.phase, model.ready()) == (Phase.FAILED, {V1: 3})


def test_if_all_of_the_new_crash_at_once_the_old_are_called_meanwhile() -> None:
    model = until(Phase.KEEPING)
    for one in model.instances:
        one.ready = one.side.artifact == V1
    model.step()
    assert model.deployment is not None
    assert (model.deployment.phase, model.deployment.weights) == (Phase.KEEPING, {})
    model.world()
    model.step()
    assert model.deployment.weights == {V2: 100, V1: 0}


def test_what_is_overtaken_while_the_old_are_kept_is_what_served() -> None:
    model = until(Phase.KEEPING)
    model.apply(blue_green(V3))
    found = model.aimed()
    assert found.deployment is not None
    assert (found.deployment.previous, found.deployment.weights) == (V2, {V2: 100, V3: 0})
    assert dict(found.spare)[VersionSet(V1)] == 3
    done = model.settle()
    assert done is not None
    assert model.ready() == {V3: 3}


def test_the_number_may_change_meanwhile() -> None:
    model = until(Phase.STANDBY)
    model.apply(blue_green(V2, 5))
    done = model.settle()
    assert done is not None
    assert (done.phase, model.ready()) == (Phase.DONE, {V2: 5})

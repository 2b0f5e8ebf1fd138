"""D33: what a person orders for a rollout that is under way: promote, pause, resume, approve, abort."""

from __future__ import annotations

import msgspec
import pytest
from strategy_model import V1, V2, Habits, Model, running, slice_spec

from hostler.engine.deployments import rollout
from hostler.engine.deployments.call_metrics import Measured
from hostler.model.blueprint_api import RolloutVerb
from hostler.model.deployment import Approval, SliceSpec
from hostler.model.rollout import Deployment, Phase, Promotion, RolloutControl

STAGES = [{"weight": 10, "hold": 30}, {"weight": 50, "hold": 30}]
CANARY = {"type": "canary", "stages": STAGES}
BLUE_GREEN = {"type": "blue-green", "bake": 30, "keep": 300}
V = RolloutVerb


def upgrade(strategy: dict[str, object], instances: int = 4) -> Model:
    model = running(slice_spec(V1, instances))
    model.apply(slice_spec(V2, instances, strategy=strategy))
    return model


def order(model: Model, verb: RolloutVerb, *, everything: bool = False, force: bool = False) -> None:
    now = at(model)
    assert rollout.refusal(verb, now) == ""
    model.deployment = rollout.apply_command(verb, now, by="ada", at=model.now, everything=everything, force=force)


def at(model: Model) -> Deployment:
    assert model.deployment is not None
    return model.deployment


def go(model: Model, steps: int) -> None:
    for _ in range(steps):
        model.step()
        model.world()


def until(model: Model, **weights: int) -> None:
    """Until the new version gets this share."""
    for _ in range(200):
        model.step()
        if at(model).weights.get(V2) == weights["new"]:
            return
        model.world()
    raise AssertionError(at(model))


def test_d33_a_promoted_canary_does_not_wait_for_the_time_of_its_stage() -> None:
    model = upgrade(CANARY)
    until(model, new=10)
    began = model.now
    order(model, V.PROMOTE)
    until(model, new=50)
    assert model.now - began < 30
    order(model, V.PROMOTE)
    assert model.settle() is not None
    assert (at(model).phase, at(model).control) == (Phase.DONE, RolloutControl())
    assert model.now - began < 30
    assert model.weights == [{V1: 100, V2: 0}, {V1: 90, V2: 10}, {V1: 50, V2: 50}, {V1: 0, V2: 100}, {}]


def test_d33_promoted_to_its_end_a_canary_skips_the_other_stages_but_not_the_instances_they_need() -> None:
    model = upgrade(CANARY)
    until(model, new=10)
    order(model, V.PROMOTE, everything=True)
    while at(model).weights.get(V2) != 100:
        assert at(model).weights == {V1: 90, V2: 10}
        go(model, 1)
    assert model.ready()[V2] == 4
    assert {V1: 50, V2: 50} not in model.weights


def test_d33_a_promotion_past_a_gate_that_is_exceeded_is_refused_unless_forced() -> None:
    model = upgrade(CANARY)
    until(model, new=10)
    model.told = lambda artifact: Measured(calls=10, errors=5 if artifact == V2 else 0, since=at(model).changed_at)
    order(model, V.PROMOTE)
    model.step()
    assert (at(model).stage, at(model).weights[V2]) == (0, 10)
    assert at(model).control.promote is None
    assert "5 of 10 calls failed" in at(model).control.answer
    order(model, V.PROMOTE, force=True)
    model.step()
    assert at(model).stage == 1
    assert at(model).why == "promoted to stage 2 of 2 by ada, although 5 of 10 calls failed, and at most 1.00% may"
    assert at(model).control.answer == ""


def test_d33_a_gate_that_fails_takes_back_what_is_promoted_without_force() -> None:
    model = upgrade(CANARY)
    until(model, new=10)
    model.told = lambda artifact: Measured(calls=900, errors=5 if artifact == V1 else 500, since=at(model).changed_at)
    order(model, V.PROMOTE)
    model.step()
    assert at(model).phase is Phase.BACKING_OUT
    assert at(model).control == RolloutControl()


def test_d33_a_paused_canary_keeps_its_share_and_its_gate_still_protects() -> None:
    model = upgrade(CANARY)
    until(model, new=10)
    order(model, V.PAUSE)
    go(model, 100)
    assert (at(model).stage, at(model).weights[V2]) == (0, 10)
    assert rollout.possible(at(model)) == (V.RESUME, V.ABORT)
    assert "paused by ada" in rollout.refusal(V.PROMOTE, at(model))
    order(model, V.RESUME)
    go(model, 3)
    assert at(model).weights[V2] == 50
    order(model, V.PAUSE)
    model.habits[V2] = Habits(error_rate=0.5)
    assert model.settle() is not None
    assert at(model).phase is Phase.FAILED
    assert model.ready() == {V1: 4}


def test_d33_a_paused_canary_that_is_made_ready_gets_no_larger_share() -> None:
    model = upgrade(CANARY)
    model.habits[V2] = Habits(slowness=8)
    until(model, new=0)
    order(model, V.PAUSE)
    go(model, 60)
    assert at(model).weights == {V1: 100, V2: 0}


@pytest.mark.parametrize("surge", [1, 2])
def test_d33_a_paused_rolling_upgrade_replaces_nothing_and_what_dies_comes_again(surge: int) -> None:
    model = upgrade({"type": "rolling", "max_surge": surge}, 6)
    while model.ready().get(V2, 0) < 2:
        go(model, 1)
    order(model, V.PAUSE)
    go(model, 10)
    new, old = model.there()[V2], model.there()[V1]
    assert new < 6
    assert new + old >= 6
    model.instances.remove(next(one for one in model.instances if one.side.artifact == V1))
    go(model, 30)
    assert model.there()[V2] == new
    assert sum(model.ready().values()) >= 6
    assert at(model).phase is Phase.ROLLING
    order(model, V.RESUME)
    assert model.settle() is not None
    assert model.ready() == {V2: 6}


def test_d33_paused_blue_green_neither_switches_nor_lets_the_old_go() -> None:
    model = upgrade(BLUE_GREEN)
    go(model, 5)
    order(model, V.PAUSE)
    go(model, 100)
    assert (at(model).phase, at(model).weights[V1]) == (Phase.STANDBY, 100)
    order(model, V.RESUME)
    go(model, 3)
    assert at(model).phase is Phase.KEEPING
    order(model, V.PAUSE)
    go(model, 500)
    assert model.ready() == {V1: 4, V2: 4}
    order(model, V.RESUME)
    assert model.settle() is not None
    assert model.ready() == {V2: 4}


def test_d33_promoted_blue_green_waits_neither_to_bake_nor_to_keep() -> None:
    model = upgrade(BLUE_GREEN)
    began = model.now
    go(model, 3)
    order(model, V.PROMOTE)
    go(model, 10)
    assert at(model).phase is Phase.KEEPING
    assert at(model).why.endswith("promoted by ada")
    order(model, V.PROMOTE)
    assert model.settle() is not None
    assert at(model).phase is Phase.DONE
    assert model.now - began < 40


def test_d33_promoted_to_its_end_blue_green_is_over_in_one_order() -> None:
    model = upgrade(BLUE_GREEN)
    began = model.now
    go(model, 3)
    order(model, V.PROMOTE, everything=True)
    assert model.settle() is not None
    assert (at(model).phase, model.ready()) == (Phase.DONE, {V2: 4})
    assert model.now - began < 40


def test_d33_with_manual_approval_each_stage_of_a_canary_waits_for_it() -> None:
    model = upgrade({**CANARY, "approval": "manual"})
    for stage, share in enumerate((10, 50)):
        until(model, new=share)
        go(model, 100)
        assert (at(model).stage, at(model).weights[V2], at(model).control.awaiting) == (stage, share, True)
        assert at(model).why.endswith("waiting for approval")
        order(model, V.APPROVE)
        model.step()
        assert at(model).stage == stage + 1
        assert at(model).why.endswith("approved by ada") or share == 50
        assert not at(model).control.approved
    assert model.settle() is not None
    assert (at(model).phase, model.ready()) == (Phase.DONE, {V2: 4})


def test_d33_an_approval_ahead_of_time_does_not_shorten_the_stage_nor_pass_its_gate() -> None:
    model = upgrade({**CANARY, "approval": "manual"})
    until(model, new=10)
    order(model, V.APPROVE)
    go(model, 20)
    assert at(model).stage == 0
    model.habits[V2] = Habits(error_rate=0.5)
    assert model.settle() is not None
    assert at(model).phase is Phase.FAILED


def test_d33_with_manual_approval_blue_green_waits_before_the_switch() -> None:
    model = upgrade({**BLUE_GREEN, "approval": "manual"})
    go(model, 100)
    assert (at(model).phase, at(model).weights[V1], at(model).control.awaiting) == (Phase.STANDBY, 100, True)
    order(model, V.APPROVE)
    model.step()
    assert at(model).phase is Phase.KEEPING
    assert at(model).why.endswith("approved by ada")


@pytest.mark.parametrize("more", [{"max_surge": 1}, {"max_surge": 2}, {"max_surge": 0, "max_unavailable": 1}])
@pytest.mark.parametrize("verb", [V.APPROVE, V.PROMOTE])
def test_d33_with_manual_approval_a_rolling_upgrade_waits_after_its_first_instances(
    more: dict[str, int], verb: RolloutVerb
) -> None:
    model = upgrade({"type": "rolling", "approval": "manual", **more}, 6)
    go(model, 60)
    batch = max(1, more["max_surge"])
    assert model.ready() == {V1: 6 if more["max_surge"] else 5, V2: batch}
    assert at(model).control.awaiting
    order(model, verb)
    assert model.settle() is not None
    assert (at(model).phase, model.ready()) == (Phase.DONE, {V2: 6})


@pytest.mark.parametrize("strategy", [CANARY, BLUE_GREEN, {"type": "rolling"}], ids=lambda one: str(one["type"]))
@pytest.mark.parametrize("after", [1, 4, 8, 34])
def test_d33_an_aborted_upgrade_goes_back_and_is_not_tried_again(strategy: dict[str, object], after: int) -> None:
    model = upgrade(strategy, 8)
    go(model, after)
    if at(model).phase is Phase.DONE:
        return
    order(model, V.PAUSE) if after == 4 else None
    order(model, V.ABORT)
    assert model.settle() is not None
    assert (at(model).phase, model.ready()) == (Phase.FAILED, {V1: 8})
    assert "ada aborted it" in at(model).why
    go(model, 50)
    assert at(model).phase is Phase.FAILED
    assert rollout.possible(at(model)) == ()
    assert "apply the blueprint to try again" in rollout.refusal(V.PROMOTE, at(model))


def test_d33_blue_green_goes_back_though_one_of_the_old_was_lost_and_there_is_no_room_beside_the_new() -> None:
    model = upgrade({**BLUE_GREEN, "bake": 0})
    while at(model).phase is not Phase.KEEPING:
        go(model, 1)
    for _ in range(2):
        model.instances.remove(next(one for one in model.instances if one.side.artifact == V1))
    order(model, V.ABORT)
    assert model.settle() is not None
    assert (at(model).phase, model.ready()) == (Phase.FAILED, {V1: 4})


def test_d33_a_rollback_needs_no_approval() -> None:
    model = running(slice_spec(V1, 4))
    model.apply(slice_spec(V2, 4, strategy={"type": "rolling"}))
    assert model.settle() is not None
    model.apply(slice_spec(V1, 4, strategy={**CANARY, "approval": "manual"}), rollback=True)
    assert model.settle() is not None
    assert (at(model).phase, model.ready()) == (Phase.DONE, {V1: 4})


def test_d33_a_newer_version_is_not_bound_by_orders_for_the_one_before() -> None:
    model = upgrade(CANARY)
    until(model, new=10)
    order(model, V.PAUSE)
    model.apply(slice_spec("org.example:slice:3", 4, strategy=CANARY))
    assert model.settle() is not None
    assert (at(model).phase, at(model).artifact) == (Phase.DONE, "org.example:slice:3")


def test_d33_what_cannot_be_ordered_says_why() -> None:
    first = running(slice_spec(V1, 2))
    for verb in RolloutVerb:
        assert "no rollout is in progress" in rollout.refusal(verb, at(first))
    model = upgrade({"type": "rolling"})
    go(model, 2)
    assert "continues by itself" in rollout.refusal(V.PROMOTE, at(model))
    assert "requires no approval" in rollout.refusal(V.APPROVE, at(model))
    assert "not paused" in rollout.refusal(V.RESUME, at(model))
    order(model, V.ABORT)
    assert "ada aborted it" in rollout.refusal(V.PAUSE, at(model))


def test_d33_values_of_a_later_release_are_read_with_caution() -> None:
    later = msgspec.json.encode({**msgspec.to_builtins(slice_spec(V2)), "strategy": {**CANARY, "approval": "vote"}})
    spec = SliceSpec.decode(later)
    assert spec.strategy.approval not in tuple(Approval)
    model = running(slice_spec(V1, 3))
    model.apply(spec)
    until(model, new=10)
    go(model, 100)
    assert at(model).control.awaiting
    far = RolloutControl.decode(b'{"promote": "twice", "by": "ada"}')
    assert far.promote not in tuple(Promotion)
    model.deployment = msgspec.structs.replace(at(model), control=far)
    model.step()
    assert at(model).stage == 1

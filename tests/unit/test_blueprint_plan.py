"""Plans: what an apply would load, unload and move, and where, and how far a slice is told to be. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from blueprint_scene import changed, spec
from hypothesis import given, settings
from hypothesis import strategies as st

from hostler.engine.deployments import autoscale
from hostler.engine.deployments.plan import MOST, Placed, about, slice_plan
from hostler.engine.deployments.views import InstanceGroup, SliceFacts, blueprint_status, slice_status
from hostler.entry.cli.blueprint.read import _inside
from hostler.model.blueprint_api import BlueprintPhase, SliceChange
from hostler.model.deployment import (
    Autoscale,
    Blueprint,
    SliceSettings,
    SliceSpec,
    SliceState,
    Stage,
    Strategy,
    StrategyKind,
)
from hostler.model.rollout import Deployment, Phase, Retries, SliceDecision
from hostler.model.trace import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostler.model.blueprint_api import SlicePlan, SliceStatus

A1, A2 = spec("a:1", 3), spec("a:2", 3)
S = SliceState


def seen(
    node: str, artifact: str = "a:1", *states: SliceState, settings: SliceSettings | None = None
) -> list[InstanceGroup]:
    with_ = settings or SliceSettings()
    return [InstanceGroup(node, f"org:{artifact}", with_, state, ready=True) for state in states or (S.ACTIVE,)]


class Rows:
    """Places one after the other on these nodes, at most so many on each, those with fewest first."""

    def __init__(self, *nodes: str, each: int = 100) -> None:
        self.nodes, self.each, self.asked = nodes, each, list[tuple[int, dict[str, int]]]()

    def __call__(self, spec: SliceSpec, count: int, there: Mapping[str, int]) -> Placed:  # noqa: ARG002
        self.asked.append((count, dict(there)))
        found: dict[str, int] = {}
        for _ in range(count):
            free = [node for node in self.nodes if found.get(node, 0) + there.get(node, 0) < self.each]
            if not free:
                break
            node = min(free, key=lambda node: (found.get(node, 0) + there.get(node, 0), node))
            found[node] = found.get(node, 0) + 1
        left = count - sum(found.values())
        why = (Reason(subject="n9", why="it is silent"),) if left else ()
        return Placed(tuple((node, number, "fewest") for node, number in found.items()), why, left)


def planned(
    wanted: SliceSpec | None,
    before: SliceSpec | None,
    *there: list[InstanceGroup],
    place: Rows | None = None,
    **more: Any,
) -> SlicePlan:
    known = SliceFacts(base="org:a", spec=wanted, seen=[one for each in there for one in each], **more)
    return slice_plan(known, before, place or Rows("n1", "n2", "n3"))


def on(places: Any) -> dict[str, int]:
    return {place.node: place.instances for place in places}


def test_a_new_slice_is_loaded_where_it_would_be_placed() -> None:
    plan = planned(A1, None)
    assert (plan.what, plan.artifact, plan.previous, plan.instances) == (SliceChange.ADD, "org:a:1", "", 3)
    assert on(plan.load) == {"n1": 1, "n2": 1, "n3": 1}
    assert {place.why for place in plan.load} == {"fewest"}
    assert (plan.unload, plan.move, plan.waiting, plan.how) == ((), (), 0, "starts at once")
    assert planned(spec("a:1", 1, "b", "c"), None).how == "starts once org:b and org:c serves"


def test_what_has_no_node_waits_and_says_why() -> None:
    plan = planned(A1, None, place=Rows("n1", each=1))
    assert (on(plan.load), plan.waiting) == ({"n1": 1}, 2)
    assert plan.passed_over == (Reason(subject="n9", why="it is silent"),)


def test_an_upgrade_replaces_in_place_and_moves_what_finds_another_node() -> None:
    there = [seen("n1"), seen("n2"), seen("n4")]
    plan = planned(A2, A1, *there)
    assert (plan.what, plan.previous) == (SliceChange.UPGRADE, "org:a:1")
    assert on(plan.load) == {"n1": 1, "n2": 1, "n3": 1}
    assert on(plan.unload) == {"n1": 1, "n2": 1, "n4": 1}
    assert [(move.source, move.target, move.instances) for move in plan.move] == [("n4", "n3", 1)]
    assert (plan.to_load, plan.to_unload, plan.to_move) == (3, 3, 1)
    assert plan.how == "rolling: at most 4 instances, at least 3 of them ready"


def test_one_that_is_half_done_is_planned_from_where_it_is() -> None:
    place = Rows("n1", "n2", "n3")
    plan = planned(A2, A2, seen("n1", "a:2"), seen("n2"), seen("n3"), seen("n3", "a:1", S.UNLOADING), place=place)
    assert plan.what is SliceChange.KEEP
    assert place.asked == [(2, {"n1": 1})], "what is of the wished version stays, and counts"
    assert (on(plan.load), on(plan.unload)) == ({"n2": 1, "n3": 1}, {"n2": 1, "n3": 1})


def test_other_settings_replace_the_instances_and_other_bounds_do_not() -> None:
    other = changed(A1, settings=SliceSettings(memory_mib=64))
    plan = planned(other, A1, seen("n1"), seen("n2"), seen("n3", settings=SliceSettings(memory_mib=64)))
    assert (plan.what, on(plan.unload)) == (SliceChange.SETTINGS, {"n1": 1, "n2": 1})
    assert on(plan.load) == {"n1": 1, "n2": 1}
    plan = planned(changed(A1, min_available=1), A1, seen("n1"), seen("n2"), seen("n3"))
    assert (plan.what, plan.load, plan.unload) == (SliceChange.CHANGE, (), ())


def test_fewer_go_where_there_are_most_and_from_emptied_nodes_first() -> None:
    there = [seen("n1", "a:1", S.ACTIVE, S.ACTIVE, S.ACTIVE), seen("n2", "a:1", S.ACTIVE, S.ACTIVE), seen("n3")]
    plan = planned(spec("a:1", 3), spec("a:1", 6), *there)
    assert (plan.what, on(plan.unload), plan.load) == (SliceChange.SCALE, {"n1": 2, "n2": 1}, ())
    plan = planned(spec("a:1", 5), spec("a:1", 6), *there, drained=frozenset(["n3"]))
    assert (on(plan.unload), plan.load, plan.move) == ({"n3": 1}, (), ())


def test_what_is_on_a_node_that_is_emptied_moves_or_stays_where_there_is_no_other() -> None:
    there = [seen("n1"), seen("n2"), seen("n9")]
    plan = planned(A1, A1, *there, drained=frozenset(["n9"]))
    assert [(move.source, move.target, move.why) for move in plan.move] == [("n9", "n3", "n9 is being drained")]
    plan = planned(A1, A1, *there, drained=frozenset(["n9"]), place=Rows())
    assert (plan.load, plan.unload, plan.move, plan.waiting) == ((), (), (), 0), (
        "it serves, though nowhere else would do"
    )


def test_a_slice_that_goes() -> None:
    plan = planned(None, A1, seen("n1"), seen("n2", "a:1", S.ACTIVE, S.FAILED), seen("n3", "a:0"))
    assert (plan.what, plan.artifact, plan.instances, plan.previous_instances) == (SliceChange.REMOVE, "", 0, 3)
    assert on(plan.unload) == {"n1": 1, "n2": 1, "n3": 1}, "what has failed goes already"


def test_a_million_is_planned_by_the_first_of_them() -> None:
    place = Rows("n1")
    plan = planned(spec("a:1", 1_000_000), None, place=Rows("n1", each=MOST))
    assert (sum(on(plan.load).values()), plan.to_load, plan.waiting) == (MOST, 1_000_000, 0)
    plan = planned(spec("a:1", 1_000_000), None, place=Rows("n1", each=10))
    assert plan.waiting == 999_990
    assert not place.asked


def test_no_more_are_planned_than_nodes_take_and_what_is_not_named_is_counted() -> None:
    class Roomy(Rows):
        def __call__(self, spec: SliceSpec, count: int, there: Mapping[str, int]) -> Placed:
            return msgspec.structs.replace(super().__call__(spec, count, there), room=3 * MOST)

    plan = planned(spec("a:1", 20_000), None, place=Roomy("n1", "n2", "n3", each=MOST))
    assert (plan.to_load, plan.waiting) == (15_000, 5_000)
    why = "no node gets more than 5,000 instances of one slice"
    assert plan.passed_over == (Reason(subject="nodes that accept it", why=why),)
    lines = dict(_inside(plan))
    assert lines["load"] == "n1 × 1667, n2 × 1667, n3 × 1666, … and 10,000 more"
    assert lines["wait"] == f"5,000 instances, because no node fits (nodes that accept it: {why})"
    plan = planned(spec("a:1", 15_000), None, place=Roomy("n1", "n2", "n3", each=MOST))
    assert (plan.to_load, plan.waiting, plan.passed_over) == (15_000, 0, ())


@pytest.mark.parametrize(
    ("strategy", "how"),
    [
        (
            Strategy(type=StrategyKind.CANARY, stages=(Stage(weight=10, hold=5), Stage(weight=40))),
            "canary: 10 % for 5 s, 40 % for 60 s and at least 50 calls each, then all;"
            " rollback if more than 1 % of calls fail",
        ),
        (
            Strategy(type=StrategyKind.CANARY),
            "canary: 5 % for 60 s, 25 % for 60 s, 50 % for 60 s and at least 50 calls each, then all",
        ),
        (
            Strategy(type=StrategyKind.BLUE_GREEN, bake=5, keep=30),
            "blue-green: 3 new instances next to the old ones, then all calls switch at once 5 s after the last",
        ),
        (Strategy(max_surge=2, max_unavailable=1), "rolling: at most 5 instances, at least 2 of them ready"),
    ],
)
def test_how_an_upgrade_goes(strategy: Strategy, how: str) -> None:
    assert planned(changed(A2, strategy=strategy), A1).how.startswith(how)


NODES = st.dictionaries(st.sampled_from([f"n{n}" for n in range(6)]), st.integers(1, 5), max_size=6)


@settings(max_examples=60, deadline=None)
@given(NODES, NODES, st.integers(1, 12), st.sets(st.sampled_from(["n0", "n1", "n2"])), st.integers(0, 3))
def test_afterwards_there_are_as_many_as_wished(
    same: dict[str, int], old: dict[str, int], wished: int, drained: set[str], each: int
) -> None:
    there = [seen(node, "a:2", *[S.ACTIVE] * count) for node, count in same.items()]
    there += [seen(node, "a:1", *[S.LOADED] * count) for node, count in old.items()]
    free = [f"n{n}" for n in range(3, 6)]
    plan = planned(spec("a:2", wished), A1, *there, drained=frozenset(drained), place=Rows(*free, each=each))
    load, unload = on(plan.load), on(plan.unload)
    after = dict(same)
    for node in {*same, *old, *load, *unload}:
        gone = unload.get(node, 0) - old.get(node, 0)
        after[node] = same.get(node, 0) + load.get(node, 0) - gone
        assert after[node] >= 0
        assert gone >= 0, "all of the old version goes"
    assert sum(after.values()) + plan.waiting == wished
    assert sum(move.instances for move in plan.move) <= min(sum(load.values()), sum(unload.values()))
    assert all(move.source != move.target for move in plan.move)
    if plan.waiting:
        assert all(unload.get(node, 0) == old.get(node, 0) for node in drained), "nothing moves while some are missing"


# How far it is


def deployment(artifact: str = "a:1", phase: Phase = Phase.DONE, **more: Any) -> Deployment:
    fields: dict[str, Any] = {"number": 1, "started_at": 1.0, "changed_at": 2.0, **more}
    return Deployment(blueprint="shop", artifact=f"org:{artifact}", phase=phase, **fields)


def told(wanted: SliceSpec | None, *there: list[InstanceGroup], **more: Any) -> SliceStatus:
    every = [one for each in there for one in each]
    return slice_status(SliceFacts(base="org:a", spec=wanted, number=1, seen=every, **more))


def test_a_slice_is_ready_only_when_all_is_as_wished() -> None:
    there = [seen("n1"), seen("n2", "a:1", S.ACTIVE, S.ACTIVE)]
    status = told(A1, *there, deployment=deployment())
    assert (status.phase, status.ready, status.wished, status.detail) == (BlueprintPhase.READY, 3, 3, "")
    assert status.versions[0].states == {"ACTIVE": 3}
    assert on(status.versions[0].nodes) == {"n1": 1, "n2": 2}
    crowd = seen("n1", "a:1", S.ACTIVE, S.ACTIVE, S.ACTIVE)
    status = told(A1, crowd, deployment=deployment(), crowded=("n1", "n2"))
    assert status.phase is BlueprintPhase.READY
    assert status.detail == "all of its instances are on node n1, none on n2"
    for other in (
        told(A1, *there),
        told(A2, *there, deployment=deployment()),
        told(A1, *there, seen("n3", "a:1", S.UNLOADING), deployment=deployment()),
        told(A1, *there, seen("n3", "a:0"), deployment=deployment()),
        told(A1, there[0], deployment=deployment()),
        told(A1, *there, deployment=deployment(phase=Phase.ROLLING)),
        told(changed(A1, settings=SliceSettings(cpus=1)), *there, deployment=deployment()),
    ):
        assert other.phase is BlueprintPhase.CHANGING


def test_a_crashed_process_is_not_ready() -> None:
    down = [InstanceGroup("n1", "org:a:1", SliceSettings(), S.ACTIVE, ready=False)]
    status = told(spec("a:1", 1), down, deployment=deployment())
    assert (status.phase, status.ready) == (BlueprintPhase.CHANGING, 0)


def test_a_canary_tells_its_stage_its_weights_and_both_versions() -> None:
    wanted = changed(A2, strategy=Strategy(type=StrategyKind.CANARY))
    weights = {"org:a:1": 75, "org:a:2": 25}
    under_way = deployment(
        "a:2", Phase.CANARY, stage=1, weights=weights, previous="org:a:1", strategy=wanted.strategy, why="held"
    )
    status = told(wanted, seen("n1"), seen("n2"), seen("n3"), seen("n1", "a:2"), deployment=under_way)
    assert (status.phase, status.step, status.stage, status.stages) == (BlueprintPhase.CHANGING, Phase.CANARY, 2, 3)
    last = told(wanted, deployment=deployment("a:2", Phase.CANARY, stage=3, strategy=wanted.strategy))
    assert last.stage == 0, "it is on the way to all"
    assert [(one.artifact, one.weight, one.ready) for one in status.versions] == [
        ("org:a:2", 25, 1),
        ("org:a:1", 75, 3),
    ]
    assert status.detail == "held"


def test_what_waits_says_why() -> None:
    decision = SliceDecision(
        chosen=(), passed_over=(Reason(subject="n2", why="it is being drained"),), waiting=2, at=1.0
    )
    status = told(A1, seen("n1"), deployment=deployment(phase=Phase.STARTING), decision=decision)
    assert status.phase is BlueprintPhase.WAITING
    assert status.detail == "2 instances have no node (n2: it is being drained)"
    needing = spec("a:1", 1, "b")
    status = told(needing, seen("n1", "a:1", S.LOADED), deployment=deployment(), unmet=("org:b",))
    assert (status.phase, status.detail) == (
        BlueprintPhase.WAITING,
        "it needs org:b, which has no active instance",
    )
    whole = [seen("n1"), seen("n2"), seen("n3")]
    status = told(A1, *whole, deployment=deployment(), decision=decision, drained=frozenset(["n3"]))
    assert status.phase is BlueprintPhase.READY
    assert status.detail == "instances on n3 cannot leave: no other node accepts them"
    assert told(A1, *whole, deployment=deployment(), decision=decision).detail == "", "an old decision says nothing"


def test_failures_are_told_and_a_version_that_was_given_up_until_it_is_applied_again() -> None:
    retries = {"org:a:2": Retries(failures=5, given_up=True, not_before=9.0, why="start raised", at=1.0)}
    failed = deployment("a:2", Phase.FAILED, previous="org:a:1", why="org:a:2 failed 5 times")
    status = told(A2, seen("n1"), deployment=failed, retries=retries)
    assert (status.phase, status.detail) == (BlueprintPhase.FAILED, "org:a:2 failed 5 times")
    version = status.versions[0]
    assert (version.failures, version.given_up, version.why, version.retry_at) == (5, True, "start raised", 9.0)
    again = slice_status(SliceFacts(base="org:a", spec=A2, number=2, seen=(), deployment=failed))
    assert again.phase is BlueprintPhase.CHANGING, "the leader has not seen number 2 yet"
    starting = told(A2, deployment=deployment("a:2", Phase.STARTING), retries=retries)
    assert starting.detail == "its first version is starting; failed 5 times in a row: start raised"


def test_a_blueprint_is_as_far_as_its_worst_slice() -> None:
    ready = told(spec("a:1", 1), seen("n1"), deployment=deployment())
    busy = told(A1, deployment=deployment(phase=Phase.STARTING))
    gone = told(None, seen("n1"))
    failed = told(A1, deployment=deployment(phase=Phase.FAILED, why="no"))
    some = Blueprint(slices=(A1,))

    def phase(*slices: SliceStatus) -> tuple[BlueprintPhase, bool]:
        status = blueprint_status("shop", some, 1, 1, slices)
        return status.phase, status.settled

    assert phase(ready) == (BlueprintPhase.READY, True)
    assert phase(ready, busy) == (BlueprintPhase.CHANGING, False)
    assert phase(ready, gone) == (BlueprintPhase.CHANGING, False)
    assert phase(busy, ready, failed) == (BlueprintPhase.FAILED, False)
    left = blueprint_status("shop", None, 1, 0, [gone])
    assert (left.phase, left.detail) == (BlueprintPhase.REMOVING, "it was deleted; 1 slice still to go")


def test_what_follows_the_calls_is_planned_as_the_leader_goes_by_it() -> None:
    """Also where the blueprint names another number: that is only where it begins."""
    auto = Autoscale(min=1, max=20)
    wish = changed(A1, instances=8, autoscale=auto)
    standing = Deployment(
        blueprint="shop", number=1, artifact="org:a:1", phase=Phase.DONE, scale=3, started_at=0.0, changed_at=0.0
    )
    for scale, least in ((3, None), (2, 5), (None, None)):
        one = changed(wish, min_available=least or 0)
        deployment = msgspec.structs.replace(standing, scale=scale)
        known = SliceFacts(
            base="org:a",
            spec=one,
            number=0,
            deployment=deployment,
            seen=seen("n1"),
            retries={},
            unmet=(),
            drained=frozenset(),
        )
        plan = slice_plan(known, changed(A1, autoscale=auto), Rows("n1", "n2"))
        assert plan.instances == autoscale.desired_count(one, scale)


def test_nodes_that_are_a_guess_are_said_to_be() -> None:
    def planned(base: str, *seen_: InstanceGroup) -> SlicePlan:
        known = SliceFacts(
            base=f"org:{base}",
            spec=spec(f"{base}:2", 2),
            number=0,
            deployment=None,
            seen=seen_,
            retries={},
            unmet=(),
            drained=frozenset(),
        )
        return slice_plan(known, None, Rows("n1", "n2"))

    assert about([planned("a")]) == ""
    assert "org:a, org:b" in about([planned("a"), planned("b")])
    assert "org:a" in about([planned("a", *seen("n1"))])

"""Rolling upgrades, and what all upgrades have in common: how they begin, fail and are gone back on."""

from __future__ import annotations

import msgspec
import pytest
from strategy_model import V1, V2, V3, Habits, running, slice_spec
from strategy_model import Model as Cluster

from hostler.engine.deployments.call_metrics import NOTHING
from hostler.engine.deployments.strategy import Count, RolloutSnapshot, VersionSet, aim
from hostler.model.deployment import SliceSettings, Strategy
from hostler.model.rollout import Deployment, Phase, Retries


def test_a_first_version_is_wanted_in_full_at_once_and_done_when_all_are_ready() -> None:
    cluster = Cluster(slice_spec(instances=3))
    first = cluster.aimed()
    assert first.wants == ((VersionSet(V1), 3),)
    assert first.deployment is not None
    assert (first.deployment.phase, first.deployment.previous) == (Phase.STARTING, "")
    done = cluster.settle()
    assert done is not None
    assert (done.phase, done.weights) == (Phase.DONE, {})
    assert cluster.ready() == {V1: 3}


def test_a_first_version_that_does_not_start_is_given_up_and_loaded_no_more() -> None:
    cluster = Cluster(slice_spec())
    cluster.habits[V1] = Habits(starts=False)
    failed = cluster.settle()
    assert failed is not None
    assert failed.phase is Phase.FAILED
    assert "it does not start" in failed.why
    assert cluster.aimed().wants == ()
    # A new apply of the same tries again, whatever was given up before.
    cluster.habits[V1] = Habits()
    cluster.apply(slice_spec())
    done = cluster.settle()
    assert done is not None
    assert done.phase is Phase.DONE


def test_one_more_is_loaded_and_an_old_one_goes_only_once_it_is_ready() -> None:
    cluster = running(slice_spec())
    cluster.habits[V2] = Habits(slowness=5)
    cluster.apply(slice_spec(V2))
    least, most = 3, 3
    while cluster.ready() != {V2: 3} or cluster.there() != {V2: 3}:
        cluster.step()
        least = min(least, sum(cluster.ready().values()))
        most = max(most, sum(cluster.there().values()))
        cluster.world()
    assert (least, most) == (3, 4)
    done = cluster.settle()
    assert done is not None
    assert (done.phase, done.artifact, done.previous, done.weights) == (Phase.DONE, V2, "", {})
    assert set(map(str, cluster.weights)) == {"{}"}


def test_without_surge_one_goes_before_one_comes() -> None:
    strategy = {"max_surge": 0, "max_unavailable": 1}
    cluster = running(slice_spec(strategy=strategy))
    cluster.apply(slice_spec(V2, strategy=strategy))
    most = 0
    for _ in range(40):
        cluster.step()
        most = max(most, sum(cluster.there().values()))
        cluster.world()
    assert most == 3
    assert cluster.ready() == {V2: 3}


def test_where_none_may_be_missing_one_more_is_loaded_although_no_surge_is_allowed() -> None:
    more = {"strategy": {"max_surge": 0, "max_unavailable": 1}, "min_available": 3}
    cluster = running(slice_spec(**more))
    cluster.apply(slice_spec(V2, **more))
    done = cluster.settle()
    assert done is not None
    assert done.phase is Phase.DONE
    assert cluster.ready() == {V2: 3}


def test_an_upgrade_that_does_not_start_leaves_the_old_instances_untouched() -> None:
    cluster = running(slice_spec())
    names = sorted(one.name for one in cluster.instances)
    cluster.habits[V2] = Habits(starts=False)
    cluster.apply(slice_spec(V2))
    failed = cluster.settle()
    assert failed is not None
    assert (failed.phase, failed.artifact, failed.previous) == (Phase.FAILED, V2, V1)
    assert sorted(one.name for one in cluster.instances) == names
    assert cluster.ready() == {V1: 3}
    assert failed.weights == {}


def test_an_upgrade_that_fails_half_way_brings_the_old_version_back_in_full() -> None:
    cluster = running(slice_spec(instances=4))
    cluster.apply(slice_spec(V2, instances=4))
    while cluster.ready().get(V2, 0) < 2 or cluster.there().get(V1, 0) > 2:
        cluster.step()
        cluster.world()
    cluster.habits[V2] = Habits(starts=False)
    failed = cluster.settle()
    assert failed is not None
    assert (failed.phase, failed.previous) == (Phase.FAILED, V1)
    assert cluster.ready() == {V1: 4}
    assert Phase.BACKING_OUT in cluster.phases


def test_backing_out_takes_calls_from_the_new_version_once_the_old_one_is_enough() -> None:
    cluster = running(slice_spec(instances=4))
    cluster.apply(slice_spec(V2, instances=4))
    while cluster.ready().get(V2, 0) < 2:
        cluster.step()
        cluster.world()
    cluster.habits[V1] = Habits(slowness=4)
    cluster.habits[V2] = Habits(starts=False)
    seen = []
    for _ in range(120):
        cluster.step()
        if cluster.deployment and cluster.deployment.phase is Phase.BACKING_OUT:
            seen.append((cluster.ready().get(V1, 0) >= 4, cluster.deployment.weights == {V1: 100, V2: 0}))
        cluster.world()
    assert seen
    assert not any(weighed and not enough for enough, weighed in seen)


def test_what_was_given_up_is_not_tried_again_until_the_blueprint_is_applied() -> None:
    cluster = running(slice_spec())
    cluster.habits[V2] = Habits(starts=False)
    cluster.apply(slice_spec(V2))
    cluster.settle()
    cluster.habits[V2] = Habits()
    cluster.now += 10_000
    assert dict(cluster.aimed().wants) == {VersionSet(V1): 3}
    cluster.apply(slice_spec(V2))
    done = cluster.settle()
    assert done is not None
    assert done.phase is Phase.DONE
    assert cluster.ready() == {V2: 3}


def test_after_a_failed_upgrade_the_old_version_is_kept_up_and_scaled() -> None:
    cluster = running(slice_spec())
    cluster.habits[V2] = Habits(starts=False)
    cluster.apply(slice_spec(V2))
    cluster.settle()
    del cluster.instances[0]
    cluster.settle()
    assert cluster.ready() == {V1: 3}


def test_a_change_of_settings_alone_rolls_whatever_the_strategy() -> None:
    for kind in ("rolling", "canary", "blue-green"):
        cluster = running(slice_spec(strategy={"type": kind}))
        cluster.apply(slice_spec(strategy={"type": kind}, settings={"memory_mib": 64}))
        found = cluster.aimed()
        assert found.deployment is not None
        assert (found.deployment.phase, found.deployment.template) == (Phase.ROLLING, 1)
        assert found.settings == {1: SliceSettings(memory_mib=64)}
        done = cluster.settle()
        assert done is not None
        assert (done.phase, done.weights) == (Phase.DONE, {})
        assert {one.side for one in cluster.instances} == {VersionSet(V1, 1)}
        # Other settings again get another number; the usual ones are 0.
        cluster.apply(slice_spec(settings={"memory_mib": 128}))
        cluster.settle()
        assert {one.side for one in cluster.instances} == {VersionSet(V1, 2)}
        cluster.apply(slice_spec())
        cluster.settle()
        assert {one.side for one in cluster.instances} == {VersionSet(V1)}


def test_settings_that_do_not_start_are_backed_out_of() -> None:
    cluster = running(slice_spec())
    names = sorted(one.name for one in cluster.instances)
    cluster.apply(slice_spec(settings={"memory_mib": 16}))
    cluster.step()
    cluster.retries[V1] = Retries(failures=5, given_up=True, at=cluster.now + 0.5, why="out of memory")
    cluster.now += 1
    failed = cluster.settle()
    assert failed is not None
    assert (failed.phase, failed.previous_template, failed.weights) == (Phase.FAILED, 0, {})
    assert sorted(one.name for one in cluster.instances) == names


def test_a_newer_apply_takes_over_and_what_it_overtakes_goes_first() -> None:
    cluster = running(slice_spec())
    cluster.apply(slice_spec(V2))
    while not cluster.ready().get(V2):
        cluster.step()
        cluster.world()
    cluster.apply(slice_spec(V3))
    found = cluster.aimed()
    assert found.deployment is not None
    assert (found.deployment.artifact, found.deployment.previous) == (V3, V1)
    assert dict(found.spare) == {VersionSet(V2): 1}
    done = cluster.settle()
    assert done is not None
    assert cluster.ready() == {V3: 3}


def test_going_back_in_the_middle_keeps_what_still_serves() -> None:
    cluster = running(slice_spec(instances=5))
    cluster.apply(slice_spec(V2, instances=5))
    while cluster.ready().get(V2, 0) < 2:
        cluster.step()
        cluster.world()
    kept = {one.name for one in cluster.instances if one.side.artifact == V1}
    cluster.apply(slice_spec(instances=5), rollback=True)
    done = cluster.settle()
    assert done is not None
    assert (done.phase, done.artifact) == (Phase.DONE, V1)
    assert cluster.ready() == {V1: 5}
    assert kept <= {one.name for one in cluster.instances}


def test_a_return_that_does_not_come_up_ends_as_failed_and_is_tried_on() -> None:
    cluster = running(slice_spec(instances=3, strategy={"max_surge": 1, "max_unavailable": 1}))
    cluster.apply(slice_spec(V2, strategy={"max_surge": 1, "max_unavailable": 1}))
    while cluster.ready().get(V2, 0) < 1 or cluster.there().get(V1, 0) > 1:
        cluster.step()
        cluster.world()
    cluster.habits[V1] = Habits(starts=False)
    cluster.apply(slice_spec(), rollback=True)
    for _ in range(200):
        cluster.step()
        cluster.world()
    assert cluster.deployment is not None
    assert (cluster.deployment.phase, cluster.deployment.previous) == (Phase.FAILED, V1)
    cluster.habits[V1] = Habits()
    cluster.settle()
    assert cluster.ready() == {V1: 3}


def test_the_same_again_goes_on_as_it_began() -> None:
    cluster = running(slice_spec())
    cluster.apply(slice_spec(V2))
    cluster.play(2)
    began = cluster.deployment
    assert began is not None
    cluster.apply(slice_spec(V2, strategy={"max_surge": 3}))
    found = cluster.aimed().deployment
    assert found is not None
    assert (found.started_at, found.strategy, found.number) == (began.started_at, Strategy(), cluster.number)


def test_fewer_are_wished_for_and_none_below_that_goes() -> None:
    cluster = running(slice_spec(instances=5))
    cluster.apply(slice_spec(instances=2))
    found = cluster.aimed()
    assert (found.wants, found.spare) == (((VersionSet(V1), 2),), ((VersionSet(V1), 3),))
    assert found.deployment is not None
    assert found.deployment.phase is Phase.DONE


def test_fewer_of_a_newer_version_at_once() -> None:
    cluster = running(slice_spec(instances=6))
    cluster.apply(slice_spec(V2, instances=2))
    cluster.settle()
    assert cluster.ready() == {V2: 2}


def test_old_instances_that_crashed_wait_for_their_turn_unless_their_place_is_missing() -> None:
    standing = Deployment(blueprint="b", number=1, artifact=V1, phase=Phase.DONE, started_at=1.0, changed_at=1.0)

    def old(placeable: bool) -> int:
        found = aim(
            RolloutSnapshot(
                slice_spec(V2),
                "b",
                2,
                False,
                standing,
                {VersionSet(V1): Count(there=3, ready=1)},
                retries={},
                measured=lambda _: NOTHING,
                placeable=placeable,
            ),
            now=10.0,
        )
        assert found.spare == ()
        return dict(found.wants).get(VersionSet(V1), 0)

    assert old(placeable=True) == 3
    assert old(placeable=False) == 0


def test_no_blueprint_names_it_all_goes_and_the_record_last() -> None:
    cluster = running(slice_spec())
    cluster.apply(None)
    found = cluster.aimed()
    assert (found.wants, found.spare) == ((), ((VersionSet(V1), 3),))
    assert found.deployment is not None
    assert found.deployment.phase is Phase.REMOVING
    assert cluster.settle() is None
    assert cluster.there() == {}


def test_named_again_while_it_goes_keeps_what_is_still_there() -> None:
    cluster = running(slice_spec())
    cluster.apply(None)
    found = cluster.aimed()
    cluster.deployment = found.deployment
    cluster.leaving.append(cluster.instances.pop())
    cluster.apply(slice_spec())
    assert dict(cluster.aimed().wants) == {VersionSet(V1): 3}
    done = cluster.settle()
    assert done is not None
    assert done.phase is Phase.DONE


@pytest.mark.parametrize("phase", [Phase.ROLLING, Phase.CANARY, Phase.STANDBY])
def test_a_verdict_on_an_earlier_attempt_does_not_count(phase: Phase) -> None:
    standing = Deployment(
        blueprint="b",
        number=2,
        artifact=V2,
        previous=V1,
        phase=phase,
        weights={} if phase is Phase.ROLLING else {V1: 100, V2: 0},
        started_at=50.0,
        changed_at=50.0,
    )
    for at, after in ((49.0, phase), (51.0, Phase.BACKING_OUT)):
        found = aim(
            RolloutSnapshot(
                slice_spec(V2),
                "b",
                2,
                False,
                standing,
                {VersionSet(V1): Count(there=3, ready=3), VersionSet(V2): Count(there=1)},
                retries={V2: Retries(failures=5, given_up=True, at=at)},
                measured=lambda _: NOTHING,
                placeable=True,
            ),
            now=60.0,
        )
        assert found.deployment is not None
        assert found.deployment.phase is after


def test_records_are_what_the_store_can_hold() -> None:
    cluster = running(slice_spec())
    cluster.apply(slice_spec(V2))
    cluster.play(2)
    assert cluster.deployment is not None
    assert msgspec.json.decode(msgspec.json.encode(cluster.deployment), type=Deployment) == cluster.deployment

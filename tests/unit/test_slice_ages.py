"""Instances that have just come up: counted until they have proved themselves, and replaced by nothing before."""

from __future__ import annotations

from hostler.engine.deployments.call_metrics import NOTHING
from hostler.engine.deployments.instance_index import Ages
from hostler.engine.deployments.strategy import Aim, Count, RolloutSnapshot, VersionSet, aim
from hostler.model.deployment import SliceSpec, Strategy, StrategyKind
from hostler.model.rollout import Deployment, Phase

NOW = 1_000.0
OLD, NEW = VersionSet("o:a:1"), VersionSet("o:a:2")


def test_what_came_up_is_fresh_for_a_while() -> None:
    ages = Ages()
    side = ("o:a:1", 0)
    for since in (900, 996, 996, 999):
        ages.add(side, since)
    assert [ages.fresh(side, at, 5.0) for at in (NOW, NOW + 1, NOW + 3.9, NOW + 4)] == [3, 1, 1, 0]
    assert ages.fresh(side, NOW, 0.0) == 0
    assert ages.came("o:a:1", 899, 996) == 3
    ages.drop(side, 996)
    assert ages.fresh(side, NOW, 5.0) == 2


def test_a_clock_far_ahead_is_not_waited_for() -> None:
    ages = Ages()
    ages.add(("o:a:1", 0), int(NOW) + 3_600)
    assert ages.fresh(("o:a:1", 0), NOW, 5.0) == 0


def look(phase: Phase, kind: StrategyKind, weights: dict[str, int], new: Count, stage: int = 0) -> Aim:
    strategy = Strategy(type=kind, max_surge=1, max_unavailable=0, bake=0.0)
    spec = SliceSpec(artifact=NEW.artifact, instances=2, strategy=strategy)
    standing = Deployment(
        blueprint="shop",
        number=2,
        artifact=NEW.artifact,
        previous=OLD.artifact,
        strategy=strategy,
        phase=phase,
        weights=weights,
        stage=stage,
        started_at=NOW - 60,
        changed_at=NOW - 60,
    )
    return aim(
        RolloutSnapshot(
            *(spec, "shop", 2, False, standing, {OLD: Count(there=2, ready=2), NEW: new}),
            retries={},
            measured=lambda _: NOTHING,
            placeable=True,
        ),
        now=NOW,
    )


def test_no_old_instance_goes_for_one_that_has_just_come_up() -> None:
    fresh = look(Phase.ROLLING, StrategyKind.ROLLING, {}, Count(there=1, ready=1, fresh=1))
    assert fresh.spare == ()
    assert fresh.again > 0
    proven = look(Phase.ROLLING, StrategyKind.ROLLING, {}, Count(there=1, ready=1))
    assert dict(proven.spare) == {OLD: 1}


def test_calls_go_over_only_to_what_has_proved_itself() -> None:
    for fresh, expected in ((1, Phase.STANDBY), (0, Phase.KEEPING)):
        found = look(
            Phase.STANDBY,
            StrategyKind.BLUE_GREEN,
            {OLD.artifact: 100, NEW.artifact: 0},
            Count(there=2, ready=2, fresh=fresh),
            stage=1,
        )
        assert found.deployment is not None
        assert found.deployment.phase is expected
        assert found.again > 0

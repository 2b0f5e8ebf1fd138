"""The number of instances follows the calls, if the blueprint asks for it."""

from __future__ import annotations

import msgspec
import pytest
from strategy_model import V1, V2, running, slice_spec

from hostler.engine.deployments.autoscale import EVERY, desired_count, scaled_deployment
from hostler.engine.deployments.call_metrics import NOTHING, Measured
from hostler.model.deployment import SliceSettings, SliceSpec
from hostler.model.rollout import Deployment, Phase

LONG_AGO = 1000.0


def auto(instances: int = 4, *, min_available: int = 0, **more: object) -> SliceSpec:
    asked = {"min": 2, "max": 20, "in_flight": 10.0, "warm_up": 30.0, "cool_down": 120.0}
    return slice_spec(V1, instances, min_available=min_available, autoscale=asked | more)


def deployment(**more: object) -> Deployment:
    usual = Deployment(blueprint="b", number=1, artifact=V1, phase=Phase.DONE, started_at=LONG_AGO, changed_at=LONG_AGO)
    return msgspec.structs.replace(usual, **more)


def after(spec: SliceSpec, standing: Deployment, in_flight: float, *, now: float = 10_000.0, p95: float = 0.0) -> int:
    seen = Measured(calls=1, in_flight=in_flight, p95_ms=p95, since=LONG_AGO)
    return desired_count(spec, scaled_deployment(spec, standing, lambda _: seen, now).scale)


def test_it_is_off_unless_asked_for() -> None:
    spec = slice_spec(V1, 4)
    standing = deployment()
    assert scaled_deployment(spec, standing, lambda _: Measured(in_flight=9999), 10_000.0) is standing
    # No longer asked for: the blueprint's number again.
    assert scaled_deployment(spec, deployment(scale=9), lambda _: NOTHING, 10_000.0).scale is None
    assert desired_count(spec, 9) == 4


@pytest.mark.parametrize(
    ("in_flight", "number"),
    [(40.0, 4), (43.0, 4), (45.0, 5), (61.0, 7), (80.0, 8), (9999.0, 8), (30.0, 3), (10.0, 2), (0.0, 2)],
)
def test_calls_under_way_decide_within_twice_and_half(in_flight: float, number: int) -> None:
    assert after(auto(4), deployment(needed_at=LONG_AGO), in_flight) == number


def test_never_beyond_its_bounds() -> None:
    assert after(auto(15), deployment(), 9999.0) == 20
    assert after(auto(3), deployment(), 0.0) == 2
    assert after(auto(4, min_available=3), deployment(), 0.0) == 3
    assert desired_count(auto(1), None) == 2
    assert desired_count(auto(50), None) == 20


def test_slow_answers_ask_for_more() -> None:
    spec = auto(4, latency_ms=100.0)
    assert after(spec, deployment(), 10.0, p95=99.0) == 2
    assert after(spec, deployment(), 10.0, p95=101.0) == 5
    assert after(spec, deployment(scale=16), 10.0, p95=101.0) == 20
    assert after(auto(4), deployment(), 40.0, p95=9999.0) == 4


def test_after_a_change_there_are_more_only_when_it_has_warmed_up() -> None:
    standing = deployment(scale=6, scaled_at=9_980.0)
    assert after(auto(), standing, 100.0, now=10_000.0) == 6
    assert after(auto(), standing, 100.0, now=10_010.0) == 10


def test_there_are_fewer_only_when_fewer_were_enough_for_long() -> None:
    spec, standing = auto(), deployment(scale=8, scaled_at=5_000.0)
    busy, calm = (Measured(calls=1, in_flight=load, since=LONG_AGO) for load in (80.0, 20.0))
    now, writes = 10_000.0, 0
    for _ in range(300):
        found = scaled_deployment(spec, standing, lambda _: busy, now)
        writes += found != standing
        standing, now = found, now + EVERY
    # That all are needed is written now and then, not at each look.
    assert standing.scale == 8
    assert 15 <= writes <= 25
    ended = now
    while standing.scale == 8:
        standing, now = scaled_deployment(spec, standing, lambda _: calm, now), now + EVERY
    assert standing.scale == 4
    assert 120.0 * 0.7 <= now - ended <= 120.0 + 2 * EVERY
    # One busy look in between, and it must be calm for as long again.
    standing = scaled_deployment(spec, deployment(scale=8, needed_at=now - 100), lambda _: busy, now)
    assert scaled_deployment(spec, standing, lambda _: calm, now + 60).scale == 8


def test_a_new_leader_that_has_not_measured_yet_takes_none_away() -> None:
    spec, standing = auto(), deployment(scale=8)
    assert scaled_deployment(spec, standing, lambda _: NOTHING, 10_000.0).scale == 8
    assert scaled_deployment(spec, standing, lambda _: Measured(since=9_990.0), 10_000.0).scale == 8
    assert scaled_deployment(spec, standing, lambda _: Measured(since=9_880.0), 10_000.0).scale == 4


def test_both_versions_count_while_there_are_two() -> None:
    standing = deployment(artifact=V2, previous=V1, phase=Phase.CANARY)
    spec = msgspec.structs.replace(auto(), artifact=V2)
    loads = {V1: 50.0, V2: 20.0}
    found = scaled_deployment(spec, standing, lambda artifact: Measured(in_flight=loads[artifact], since=1.0), 10_000.0)
    assert found.scale == 7


def test_the_cluster_follows() -> None:
    model = running(auto(4, warm_up=3.0, cool_down=8.0))
    load = 95.0
    model.told = lambda _: Measured(calls=1, in_flight=load, since=LONG_AGO)
    model.play(30)
    assert model.ready() == {V1: 10}
    assert model.aimed().again == EVERY
    load = 5.0
    model.play(80)
    assert model.ready() == {V1: 2}


def test_an_upgrade_keeps_the_number() -> None:
    model = running(auto(4))
    model.told = lambda _: Measured(calls=1, in_flight=30.0, since=model.now - 1)
    assert model.deployment is not None
    model.deployment = msgspec.structs.replace(model.deployment, scale=6, scaled_at=model.now, needed_at=model.now)
    model.settle()
    model.apply(msgspec.structs.replace(auto(4), artifact=V2))
    done = model.settle()
    assert done is not None
    assert done.phase is Phase.DONE
    assert model.ready() == {V2: 6}


def given(spec: SliceSpec, **measured: object) -> int:
    seen = msgspec.structs.replace(Measured(calls=1, since=LONG_AGO), **measured)
    return desired_count(spec, scaled_deployment(spec, deployment(needed_at=LONG_AGO), lambda _: seen, 10_000.0).scale)


def test_d37_the_processors_in_use_decide_if_asked_for() -> None:
    assert given(auto(4, cpu=0.5), cpu=3.0) == 6
    assert given(auto(4, cpu=0.5), cpu=2.1) == 4, "a tenth more is no reason yet"
    assert given(auto(4, cpu=0.5), cpu=99.0) == 8, "never more than twice as many at once"
    assert given(auto(4, cpu=0.5), cpu=3.0, in_flight=70.0) == 7, "the larger need counts"
    assert given(auto(4, cpu=0.5), cpu=2.0, in_flight=1.0) == 4, "few calls, but they take all of it"
    assert given(auto(4), cpu=99.0) == 2, "not asked for"
    small = msgspec.structs.replace(auto(4, cpu=0.5), settings=SliceSettings(cpus=0.5))
    assert given(small, cpu=1.5) == 6, "of what an instance may take"


def test_d37_while_calls_fail_there_are_no_more_unless_asked_for() -> None:
    failing: dict[str, object] = {"recent_calls": 100, "recent_errors": 11}
    assert given(auto(4), in_flight=80.0, **failing) == 4
    assert given(auto(4), in_flight=80.0, recent_calls=100, recent_errors=10) == 8
    assert given(auto(4), in_flight=80.0, recent_calls=19, recent_errors=19) == 8, "a few calls prove nothing"
    assert given(auto(4, max_error_rate=0.5), in_flight=80.0, **failing) == 8
    assert given(auto(4), in_flight=0.0, **failing) == 2, "fewer there may be"
    assert given(auto(4, on_errors="ignore"), in_flight=80.0, **failing) == 8
    assert given(auto(4, on_errors="scale"), in_flight=40.0, **failing) == 5
    assert given(auto(4, on_errors="scale"), in_flight=40.0) == 4


def test_d37_both_versions_count() -> None:
    spec, standing = auto(4, cpu=0.5), deployment(needed_at=LONG_AGO, artifact=V2, previous=V1)
    seen = {V1: Measured(cpu=1.0, since=LONG_AGO), V2: Measured(cpu=2.0, since=LONG_AGO)}
    assert desired_count(spec, scaled_deployment(spec, standing, seen.__getitem__, 10_000.0).scale) == 6

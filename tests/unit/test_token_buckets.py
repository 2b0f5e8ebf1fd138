"""Token buckets: a burst, then a rate; and they stay few."""

from __future__ import annotations

import pytest

from hostler.kit.rate_limit import TokenBuckets


class Time:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_is_followed_by_the_rate() -> None:
    time = Time()
    buckets = TokenBuckets(20.0, 200.0, now=time)
    assert [buckets.take("ada") for _ in range(200)] == [0.0] * 200
    assert buckets.take("ada") == pytest.approx(0.05)
    assert buckets.take("bob") == 0.0, "each name has its own"
    time.now += 0.05
    assert buckets.take("ada") == 0.0
    assert buckets.take("ada") > 0
    taken = 0
    for _ in range(1000):  # ten seconds of a hundred tries each
        time.now += 0.01
        taken += buckets.take("ada") == 0.0
    assert taken == pytest.approx(200, abs=1)
    time.now += 3600
    assert sum(buckets.take("ada") == 0.0 for _ in range(1000)) == 200, "a pause gives no more than a burst"


def test_a_refused_try_costs_nothing() -> None:
    time = Time()
    buckets = TokenBuckets(1.0, 1.0, now=time)
    assert buckets.take("ada") == 0.0
    waits = [buckets.take("ada") for _ in range(100)]
    assert waits == [pytest.approx(1.0)] * 100


def test_a_rate_of_zero_means_no_limit() -> None:
    buckets = TokenBuckets(0.0, 1.0, now=Time())
    assert not any(buckets.take("ada") for _ in range(1000))
    assert not len(buckets)


def test_buckets_stay_few() -> None:
    time = Time()
    buckets = TokenBuckets(1.0, 2.0, now=time, capacity=100)
    for number in range(1000):
        buckets.take(f"address {number}")
    assert len(buckets) <= 100
    time.now += 10
    for number in range(90):
        buckets.take(f"other {number}")
    for _ in range(3):
        buckets.take("other 0")
    assert buckets.take("other 0") > 0, "one that is in use is not forgotten for full ones"

"""D41: alerts of slices: when they fire and resolve, and what a blueprint may say of them."""

from __future__ import annotations

import pytest

from hostler.engine.deployments.alerts import Timed, judge, value_of
from hostler.engine.deployments.blueprint_file import read_blueprint
from hostler.engine.deployments.call_metrics import NOTHING, Measured
from hostler.errors import Invalid
from hostler.model.deployment import AlertMetric, AlertRule

M = AlertMetric
SLOW = AlertRule(name="slow", metric=M.P95_MS, above=100.0, after=10.0)
FEW = AlertRule(name="few", metric=M.READY, below=3.0, after=10.0)


def changes(rule: AlertRule, values: list[float | None], *, fires: bool = False) -> list[tuple[int, bool]]:
    """When the state changes, by the second, of a value for each second."""
    state, found = Timed(fires), []
    for second, value in enumerate(values):
        after = judge(rule, state, value, float(second))
        if after.fires is not state.fires:
            found.append((second, after.fires))
        state = after
    return found


def test_d41_an_alert_fires_after_its_time_and_resolves_after_as_long() -> None:
    assert changes(SLOW, [50.0] * 5 + [150.0] * 20 + [50.0] * 20) == [(15, True), (35, False)]
    assert changes(FEW, [3.0] * 5 + [2.0] * 20 + [3.0] * 20) == [(15, True), (35, False)]
    assert changes(SLOW, [150.0] * 10) == []


def test_d41_a_value_about_the_threshold_does_not_make_it_flap() -> None:
    assert changes(SLOW, [99.0, 101.0] * 100) == []
    assert changes(SLOW, [99.0, 101.0] * 100, fires=True) == []
    assert changes(SLOW, [95.0] * 100, fires=True) == []  # below the threshold, and above 90 % of it
    assert changes(SLOW, [90.0] * 100, fires=True) == [(10, False)]
    own = AlertRule(name="slow", metric=M.P95_MS, above=100.0, clear=20.0, after=10.0)
    assert changes(own, [21.0] * 100, fires=True) == []
    assert changes(own, [20.0] * 100, fires=True) == [(10, False)]


def test_d41_what_is_not_known_changes_nothing() -> None:
    assert changes(SLOW, [None] * 100, fires=True) == []
    assert changes(SLOW, ([150.0] * 9 + [None]) * 10) == []


@pytest.mark.parametrize(
    ("metric", "measured", "value"),
    [
        (M.P95_MS, Measured(p95_ms=250.0, since=1.0), 250.0),
        (M.CPU, Measured(cpu=3.0, since=1.0), 0.375),
        (M.IN_FLIGHT, Measured(in_flight=10.0, since=1.0), 2.5),
        (M.ERROR_RATE, Measured(recent_calls=40, recent_errors=10, since=1.0), 0.25),
        (M.ERROR_RATE, Measured(recent_calls=10, recent_errors=10, since=1.0), None),
        (M.ERROR_RATE, Measured(since=1.0), 0.0),
        (M.ERROR_RATE, NOTHING, None),
        (M.P95_MS, NOTHING, None),
        (M.READY, NOTHING, 4.0),
    ],
)
def test_d41_what_is_measured(metric: AlertMetric, measured: Measured, value: float | None) -> None:
    """Of four instances of two processors each."""
    assert value_of(metric, measured, 4, 2.0) == value


def file(*alerts: str) -> str:
    head = '[[slices]]\nartifact = "o:web:1"\ninstances = 2\n'
    return head + "".join(f"[[slices.alerts]]\n{one}\n" for one in alerts)


def test_d41_a_blueprint_has_alerts() -> None:
    text = file('name = "slow"\nmetric = "p95_ms"\nabove = 500', 'name = "few"\nmetric = "ready"\nbelow = 2\nafter = 5')
    (spec,) = read_blueprint(text, "shop.toml").blueprint.slices
    assert spec.alerts == (
        AlertRule(name="slow", metric=M.P95_MS, above=500.0),
        AlertRule(name="few", metric=M.READY, below=2.0, after=5.0),
    )


@pytest.mark.parametrize(
    ("alerts", "said"),
    [
        (['name = "a"\nmetric = "cpu"'], r"slices\[0\].alerts\[0\]: needs one threshold"),
        (['name = "a"\nmetric = "cpu"\nabove = 1\nbelow = 1'], r"alerts\[0\]: needs one threshold"),
        (['name = "a"\nmetric = "heat"\nabove = 1'], r"alerts\[0\].metric: must be one of error_rate, p95_ms, cpu"),
        (['name = "A b"\nmetric = "cpu"\nabove = 1'], r"alerts\[0\].name: .*lower-case"),
        (['name = "a"\nmetric = "error_rate"\nabove = 5'], "an error rate is from 0 to 1"),
        (['name = "a"\nmetric = "cpu"\nabove = 1\nclear = 2'], r"alerts\[0\].clear: 2 is more than above, 1"),
        (['name = "a"\nmetric = "ready"\nbelow = 2\nclear = 1'], r"alerts\[0\].clear: 1 is less than below, 2"),
        (['name = "a"\nmetric = "cpu"\nabove = 1'] * 2, r"alerts\[1\].name: 'a' is already the name of alerts\[0\]"),
        ([f'name = "a{n}"\nmetric = "cpu"\nabove = 1' for n in range(11)], "has 11, at most 10"),
        (['name = "a"\nmetric = "cpu"\nabove = -1'], r"alerts\[0\].above"),
    ],
)
def test_d41_what_is_no_alert_is_refused_with_its_place(alerts: list[str], said: str) -> None:
    with pytest.raises(Invalid, match=said):
        read_blueprint(file(*alerts), "shop.toml")


def test_d41_a_blueprint_has_few_alerts() -> None:
    alerts = "".join(f'[[slices.alerts]]\nname = "a{n}"\nmetric = "cpu"\nabove = 1\n' for n in range(9))
    slices = [f'[[slices]]\nartifact = "o:s{n}:1"\ninstances = 1\n{alerts}' for n in range(6)]
    read_blueprint("".join(slices[:5]), "shop.toml")
    with pytest.raises(Invalid, match="54 alerts, at most 50 in a blueprint"):
        read_blueprint("".join(slices), "shop.toml")

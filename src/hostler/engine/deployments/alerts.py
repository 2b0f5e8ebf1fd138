"""Alerts of slices: thresholds on the metrics of autoscaling and gates, evaluated by the leader.

An alert fires when its threshold has been crossed for `after` seconds, and resolves when the value has been on the good
side of `clear` for as long. So a value that oscillates around the threshold neither fires nor resolves it. Alert states
are in the store; a new leader, which has no metrics yet, leaves them unchanged. Since when a threshold is crossed is
kept in the leader's memory, like the metrics: a new leader starts to count from zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hostler.engine.deployments import autoscale
from hostler.engine.runtime.guarded_writer import Txn, Why
from hostler.keys.families import ALERT, DEPLOYMENT
from hostler.model.deployment import AlertMetric
from hostler.model.rollout import Alert, AlertState

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.engine.deployments.call_metrics import Measured
    from hostler.engine.deployments.transactions import DesiredSlice
    from hostler.engine.runtime.guarded_writer import GuardedWriter
    from hostler.engine.view import View
    from hostler.keys.entry import Entry
    from hostler.kit.clock import Clock
    from hostler.model.deployment import AlertRule, SliceSpec
    from hostler.model.rollout import Deployment

EVERY = autoscale.EVERY
"""Seconds between two evaluations."""
CLEARED = 0.9
"""Default of `clear`, as a fraction of `above`."""
_UNITS = {AlertMetric.P95_MS: " ms"}


class Timed(msgspec.Struct, frozen=True):
    """State of an alert between two evaluations."""

    fires: bool
    since: float | None = None
    """Since when the value contradicts `fires`; None: it does not."""


def is_crossed(rule: AlertRule, value: float) -> bool:
    """Return whether the value is beyond the threshold."""
    if rule.above is not None:
        return value > rule.above
    return rule.below is not None and value < rule.below


def is_cleared(rule: AlertRule, value: float) -> bool:
    """Return whether the value is good enough for a firing alert to resolve."""
    if rule.above is not None:
        return value <= (rule.above * CLEARED if rule.clear is None else rule.clear)
    least = rule.below if rule.clear is None else rule.clear
    return least is not None and value >= least


def judge(rule: AlertRule, before: Timed, value: float | None, now: float) -> Timed:
    """Return the new state of an alert. `value` None: unknown, and the state does not change."""
    against = value is not None and (is_cleared(rule, value) if before.fires else is_crossed(rule, value))
    if not against:
        return Timed(before.fires)
    since = now if before.since is None else before.since
    return Timed(not before.fires) if now - since >= rule.after else Timed(before.fires, since)


def value_of(metric: AlertMetric, measured: Measured, ready: int, cpus: float) -> float | None:
    """Return the value of a metric; None: unknown. `cpus`: CPUs of one instance."""
    if metric is AlertMetric.READY:
        return float(ready)
    if not measured.since and not measured.calls:
        return None
    if metric is AlertMetric.ERROR_RATE:
        if 0 < measured.recent_calls < autoscale.MIN_CALLS:
            return None
        return measured.recent_errors / measured.recent_calls if measured.recent_calls else 0.0
    found = {
        AlertMetric.P95_MS: measured.p95_ms,
        AlertMetric.CPU: measured.cpu / (max(1, ready) * cpus),
        AlertMetric.IN_FLIGHT: measured.in_flight / max(1, ready),
    }
    return found.get(metric)


def sentence(base: str, rule: AlertRule, value: float, *, fires: bool) -> str:
    """Return a sentence about an alert that fires or resolves."""
    unit = _UNITS.get(rule.metric, "")
    limit = f"above {rule.above:g}" if rule.above is not None else f"below {rule.below:g}"
    what = (
        f"fires: {rule.metric.value} is {value:.4g}{unit}, {limit}{unit}"
        if fires
        else (f"resolves: {rule.metric.value} is {value:.4g}{unit}, no longer {limit}{unit}")
    )
    return f"alert {rule.name} of {base} {what} for {rule.after:g} s"


class Alerts:
    """Evaluation of alerts, for one leadership."""

    def __init__(
        self,
        view: View,
        writing: GuardedWriter,
        measured: Callable[[str], Measured],
        *,
        clock: Clock,
        tell: Callable[[str], None],
    ) -> None:
        self._view, self._writing, self._measured, self._clock, self._tell = view, writing, measured, clock, tell
        self._since: dict[str, dict[str, float]] = {}  # since when a value contradicts the state, by base and alert

    def forget(self, base: str) -> None:
        """Drop what is remembered about a slice that is gone."""
        self._since.pop(base, None)

    async def look(
        self, base: str, desired: DesiredSlice, spec: SliceSpec | None, deployment: Entry[Deployment] | None, ready: int
    ) -> bool:
        """Evaluate the alerts of a slice; return whether one fired, resolved, or was deleted with its rule."""
        rules = {} if spec is None else {rule.name: rule for rule in spec.alerts}
        if not rules:
            self.forget(base)
            if not self._view.alerts.entries:
                return False
        if await self._drop(base, desired, rules):
            return True
        if spec is None or deployment is None:
            return False
        measured = autoscale.combined_metrics(deployment.value, self._measured)
        cpus, now = spec.settings.cpus or 1.0, self._clock.now()
        since = self._since.setdefault(base, {})
        changed = False
        for rule in rules.values():
            entry = self._view.alerts.get(base=base, alert=rule.name)
            fires = entry is not None and entry.value.state is AlertState.FIRING
            value = value_of(rule.metric, measured, ready, cpus)
            timed = judge(rule, Timed(fires, since.get(rule.name)), value, now)
            if timed.fires is not fires and value is not None:
                # If this write fails, the next evaluation still finds the threshold crossed for long enough.
                await self._write(base, desired, deployment, rule, entry, value)
                changed = True
            if timed.since is None:
                since.pop(rule.name, None)
            else:
                since[rule.name] = timed.since
        for name in [name for name in since if name not in rules]:
            del since[name]
        return changed

    async def _drop(self, base: str, desired: DesiredSlice, rules: dict[str, AlertRule]) -> bool:
        """Delete alerts whose rule is gone."""
        prefix = ALERT.prefix(base=base)
        entries = [
            entry
            for key, entry in self._view.alerts.entries.items()
            if key.startswith(prefix) and entry.parts["alert"] not in rules
        ]
        if not entries:
            return False
        txn = Txn([*desired.unchanged(base), *(ALERT.unchanged(entry) for entry in entries)], [])
        txn.then += [ALERT.delete(**entry.parts) for entry in entries]
        names = ", ".join(entry.parts["alert"] for entry in entries)
        why = Why(what="alert", why=f"alert rules removed: {names}", read=(desired.owner, desired.blueprint))
        await self._writing.write(base, DEPLOYMENT.fill(base=base), txn, why)
        return True

    async def _write(  # noqa: PLR0917 - the slice, its spec, the alert
        self,
        base: str,
        desired: DesiredSlice,
        deployment: Entry[Deployment],
        rule: AlertRule,
        entry: Entry[Alert] | None,
        value: float,
    ) -> None:
        fires = entry is None or entry.value.state is not AlertState.FIRING
        text = sentence(base, rule, value, fires=fires)
        alert = Alert(
            blueprint=desired.name,
            rule=rule,
            state=AlertState.FIRING if fires else AlertState.RESOLVED,
            value=value,
            at=self._clock.wall(),
            why=text,
            fired=(0 if entry is None else entry.value.fired) + (1 if fires else 0),
        )
        same = ALERT.absent(base=base, alert=rule.name) if entry is None else ALERT.unchanged(entry)
        txn = Txn([*desired.unchanged(base), same], [ALERT.put(alert, base=base, alert=rule.name)])
        why = Why(what="alert", why=text, read=(deployment, entry))
        await self._writing.write(base, DEPLOYMENT.fill(base=base), txn, why)
        self._tell(text)

"""Metrics of the calls to an artifact, and whether a version proceeds by them. Pure.

They are kept in the leader's memory, never in the store.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import msgspec

from hostler.kit.plural import counted

if TYPE_CHECKING:
    from hostler.model.deployment import Gate
    from hostler.model.rollout import Retries


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics of one artifact, over all routers.

    A gate judges one stage of a canary. Therefore `calls` and `errors` are counted from the `changed_at` of the slice's
    deployment on, or from the time when this leader started to count, if that was later.
    """

    calls: int = 0
    """Calls since `since` that were answered, successfully or not."""
    errors: int = 0
    """Calls of these that failed. Invalid calls (no such method, bad arguments) are not included."""
    p95_ms: float = 0.0
    """p95 latency of the calls in the last minute, but not before `since`; 0: there were none."""
    in_flight: float = 0.0
    """Calls in flight, averaged over the last seconds."""
    recent_calls: int = 0
    """Calls in the last minute, but not before `since`."""
    recent_errors: int = 0
    cpu: float = 0.0
    """CPUs in use by all its instances, averaged over the last seconds."""
    since: float = 0.0
    """The instant from which `calls` and `errors` are counted; 0: not reported, or there are no metrics."""


NOTHING = Measured()
"""No metrics are available."""


class Verdict(enum.Enum):
    """Result of a gate for one stage."""

    HOLD = enum.auto()
    """Too early to decide."""
    PASS = enum.auto()
    FAIL = enum.auto()


def judge(gate: Gate, measured: Measured, *, held: float, hold: float) -> tuple[Verdict, str]:
    """Return the verdict on a stage that has been held for `held` of its `hold` seconds, and the reason.

    The stage fails as soon as there were enough calls to judge. Once its time is over, half as many calls are enough
    to fail it; otherwise a version that drives callers away would be held forever.
    """
    told = measured.calls >= max(1, gate.min_calls)
    late = held >= hold and measured.errors > 0 and measured.calls * 2 >= gate.min_calls
    if (told or late) and measured.errors > gate.max_error_rate * measured.calls:
        return Verdict.FAIL, (
            f"{measured.errors} of {counted(measured.calls, 'call')} failed, and at most {gate.max_error_rate:.2%} may"
        )
    if told and gate.max_latency_ms is not None and measured.p95_ms > gate.max_latency_ms:
        return Verdict.FAIL, (
            f"the p95 latency of calls is {measured.p95_ms:.0f} ms, and the limit is {gate.max_latency_ms:.0f} ms"
        )
    if held < hold:
        return Verdict.HOLD, f"held for {hold:g} s"
    if measured.calls < gate.min_calls:
        return Verdict.HOLD, f"waiting for calls: {measured.calls} of {gate.min_calls}"
    return Verdict.PASS, f"{measured.errors} of {counted(measured.calls, 'call')} failed"


def exceeded_limit(gate: Gate, measured: Measured) -> str:
    """Return which limit of the gate was exceeded, however few calls there were; empty: none."""
    if measured.errors > gate.max_error_rate * measured.calls:
        calls = counted(measured.calls, "call")
        return f"{measured.errors} of {calls} failed, and at most {gate.max_error_rate:.2%} may"
    if gate.max_latency_ms is not None and measured.p95_ms > gate.max_latency_ms:
        return f"the p95 latency of calls is {measured.p95_ms:.0f} ms, and the limit is {gate.max_latency_ms:.0f} ms"
    return ""


def is_given_up(retries: Retries | None, since: float) -> bool:
    """Return whether the leader gave up on an artifact after `since`; an older record belongs to an earlier attempt."""
    return retries is not None and retries.given_up and retries.at > since

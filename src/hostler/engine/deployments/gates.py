"""Decides whether a version proceeds, from the metrics of its stage and the number of its failures. Pure."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from hostler.kit.plural import counted

if TYPE_CHECKING:
    from hostler.engine.deployments.call_metrics import Measured
    from hostler.model.deployment import Gate
    from hostler.model.rollout import Retries


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


def exceeded(gate: Gate, measured: Measured) -> str:
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

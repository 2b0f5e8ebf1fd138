"""Whether a version goes on: what was measured of it at a stage, and how often it failed. Pure."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from hostler.kit.plural import counted

if TYPE_CHECKING:
    from hostler.engine.deployments.call_metrics import Measured
    from hostler.model.deployment import Gate
    from hostler.model.rollout import Retries


class Verdict(enum.Enum):
    """On a stage."""

    HOLD = enum.auto()
    """Too early to say."""
    PASS = enum.auto()
    FAIL = enum.auto()


def judge(gate: Gate, measured: Measured, *, held: float, hold: float) -> tuple[Verdict, str]:
    """Of a stage that has been held for `held` of its `hold` seconds, and why.

    It fails as soon as there were enough calls to tell; once its time is over, half as many are enough to fail it, for
    else a version that keeps callers away would be held for ever.
    """
    told = measured.calls >= max(1, gate.min_calls)
    late = held >= hold and measured.errors > 0 and measured.calls * 2 >= gate.min_calls
    if (told or late) and measured.errors > gate.max_error_rate * measured.calls:
        return Verdict.FAIL, (
            f"{measured.errors} of {counted(measured.calls, 'call')} failed, and at most {gate.max_error_rate:.2%} may"
        )
    if told and gate.max_latency_ms is not None and measured.p95_ms > gate.max_latency_ms:
        return Verdict.FAIL, (
            f"95 of 100 calls took up to {measured.p95_ms:.0f} ms, and may take {gate.max_latency_ms:.0f} ms"
        )
    if held < hold:
        return Verdict.HOLD, f"held for {hold:g} s"
    if measured.calls < gate.min_calls:
        return Verdict.HOLD, f"waits for calls: {measured.calls} of {gate.min_calls}"
    return Verdict.PASS, f"{measured.errors} of {counted(measured.calls, 'call')} failed"


def exceeded(gate: Gate, measured: Measured) -> str:
    """Which limit of the gate was exceeded, however few calls there were; empty: none."""
    if measured.errors > gate.max_error_rate * measured.calls:
        calls = counted(measured.calls, "call")
        return f"{measured.errors} of {calls} failed, and at most {gate.max_error_rate:.2%} may"
    if gate.max_latency_ms is not None and measured.p95_ms > gate.max_latency_ms:
        return f"the p95 latency is {measured.p95_ms:.0f} ms, and may be {gate.max_latency_ms:.0f} ms"
    return ""


def is_given_up(retries: Retries | None, since: float) -> bool:
    """Whether the leader has given an artifact up, after `since`: an older verdict is of an attempt before this one."""
    return retries is not None and retries.given_up and retries.at > since

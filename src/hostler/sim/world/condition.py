"""Conditions under which a host runs: the combined effect of the faults that affect it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hostler.sim.fault import (
    AgentSlow,
    AnswerLost,
    ClockRate,
    Partition,
    ProviderErrors,
    SliceRefuses,
    SlowDisk,
    StoreSlow,
    StoreUnavailable,
    WatchLost,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostler.sim.fault import Fault


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions of one host. The defaults mean no fault."""

    silent: bool = False
    """The host gets no answers."""
    refused: bool = False
    """The store rejects its requests."""
    slow: float = 0.0
    """Probability that a request is slow, by up to `slowest` seconds."""
    slowest: float = 0.0
    lost: float = 0.0
    """Probability that an answer is lost."""
    lagged: float = 0.0
    """Probability that a watch must be restarted."""
    rate: float = 1.0
    """Rate of the host's clock."""
    late: float = 0.0
    """Seconds by which its reports about machines are late."""
    delay: float = 0.0
    """Additional seconds that machine operations take."""
    errors: float = 0.0
    """Probability that a machine operation fails."""
    refuses: tuple[SliceRefuses, ...] = ()
    """Slices that cannot be loaded or started."""


FINE = Conditions()


def conditions(faults: Iterable[Fault]) -> Conditions:
    """Combine faults into conditions. The worst of a kind counts; clock rates multiply."""
    worst: dict[str, float] = {}
    faults = tuple(faults)
    refuses = tuple(fault for fault in faults if isinstance(fault, SliceRefuses))
    rate, silent, refused = 1.0, False, False
    for fault in faults:
        match fault:
            case Partition():
                silent = True
            case StoreUnavailable():
                refused = True
            case StoreSlow(chance=chance, slowest=slowest):
                _worst(worst, slow=chance, slowest=slowest)
            case AnswerLost(chance=chance):
                _worst(worst, lost=chance)
            case WatchLost(chance=chance):
                _worst(worst, lagged=chance)
            case ClockRate(rate=own):
                rate *= own
            case AgentSlow(delay=delay):
                _worst(worst, late=delay)
            case SlowDisk(delay=delay):
                _worst(worst, delay=delay)
            case ProviderErrors(chance=chance):
                _worst(worst, errors=chance)
            case _:
                pass
    if not (worst or silent or refused or rate != 1.0 or refuses):
        return FINE
    return Conditions(silent=silent, refused=refused, rate=rate, refuses=refuses, **worst)


def _worst(found: dict[str, float], **numbers: float) -> None:
    for name, number in numbers.items():
        found[name] = max(number, found.get(name, 0.0))

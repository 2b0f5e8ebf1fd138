"""State change of a component, and its reason."""

from __future__ import annotations

import msgspec

from hostler.sim.hardware.blade import BladeState
from hostler.sim.hardware.cable import CableState
from hostler.sim.hardware.pdu import PduState
from hostler.sim.hardware.tor import TorState

State = BladeState | PduState | TorState | CableState


IN_VAIN = "without effect"
"""Marks the reason of a change that was requested but did not happen."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A change of one component. `before` and `after` are equal if the component ignored a command."""

    component: str
    before: State | None
    """None: the component is new."""
    after: State | None
    """None: the component was removed."""
    why: str
    cause: str
    """For a requested change: the cause that the caller gave. For a consequence: the component that it follows from.
    Empty: a timer expired."""
    at: float

    @property
    def moved(self) -> bool:
        return self.before != self.after

    @property
    def text(self) -> str:
        """`r1/b3: working → off: r1/pdu1 was cut`."""
        after = self.after.text if self.after is not None else "gone"
        before = self.before.text if self.before is not None else "new"
        return (
            f"{self.component}: {before} → {after}: {self.why}" if before != after else f"{self.component}: {self.why}"
        )

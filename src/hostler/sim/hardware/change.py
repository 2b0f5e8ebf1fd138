"""What became different about a component, and because of what."""

from __future__ import annotations

import msgspec

from hostler.sim.hardware.blade import BladeState
from hostler.sim.hardware.cable import CableState
from hostler.sim.hardware.pdu import PduState
from hostler.sim.hardware.tor import TorState

State = BladeState | PduState | TorState | CableState


IN_VAIN = "in vain"
"""In the reason of a change that was asked for and did not happen."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One component's change. `before` and `after` are equal if it was told to change, and did not."""

    component: str
    before: State | None
    """None: it was not there."""
    after: State | None
    """None: it is no longer there."""
    why: str
    cause: str
    """Of what was asked for: what the caller said. Of what followed: the component that it followed from. Empty: it
    was due."""
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

"""A top-of-rack switch: working or stuck. It cannot be switched off; it is off while it has no power."""

from __future__ import annotations

from typing import Literal

from hostler.sim.hardware import switch
from hostler.sim.hardware.event import Stick
from hostler.sim.hardware.switch import Ignored, Switch, SwitchEvent


class TorState(Switch, frozen=True, kw_only=True):
    """Ports reach the network while the tor has power and its uplink is up. `on` is always True."""

    powered: bool = True

    @property
    def carries(self) -> bool:
        return self.powered and self.joined

    @property
    def sound(self) -> bool:
        return self.carries and not self.stuck

    @property
    def word(self) -> Literal["working", "off", "stuck"]:
        if self.stuck:
            return "stuck"
        return "working" if self.carries else "off"

    @property
    def text(self) -> str:
        said = [*(["stuck"] if self.stuck else []), *([] if self.powered else ["no power"])]
        said += [] if self.joined else ["no uplink"]
        return ", ".join(said) or "working"


def step(state: TorState, event: SwitchEvent) -> tuple[TorState, tuple[Ignored, ...]]:
    """Return the next state of the tor. A tor has no position to stick at."""
    return switch.step(state, Stick(event.on) if isinstance(event, Stick) else event)

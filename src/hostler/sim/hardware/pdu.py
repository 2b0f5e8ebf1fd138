"""A power distribution unit: working, off, or stuck."""

from __future__ import annotations

from typing import Literal

from hostler.sim.hardware.switch import Switch, step

__all__ = ["PduState", "step"]


class PduState(Switch, frozen=True, kw_only=True):
    """Ports have power while the pdu is on and fed. A stuck pdu keeps its state, and so do its ports."""

    @property
    def word(self) -> Literal["working", "off", "stuck"]:
        if self.stuck:
            return "stuck"
        return "working" if self.carries else "off"

    @property
    def text(self) -> str:
        if not self.joined:
            return "stuck, no feed" if self.stuck else "no feed"
        return f"stuck at {'on' if self.on else 'off'}" if self.stuck else self.word

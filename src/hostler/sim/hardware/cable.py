"""A cable in a port of a pdu or tor: on, off, or faulted."""

from __future__ import annotations

from typing import Literal

from hostler.sim.hardware.switch import Switch, step

__all__ = ["CableState", "step"]


class CableState(Switch, frozen=True, kw_only=True):
    """A cable carries the power or network of its pdu or tor while its port is on and it is plugged in.

    A faulted cable keeps its state.
    """

    @property
    def word(self) -> Literal["on", "off", "faulted"]:
        if self.stuck:
            return "faulted"
        return "on" if self.carries else "off"

    @property
    def text(self) -> str:
        if not self.joined:
            return "stuck, unplugged" if self.stuck else "unplugged"
        return f"stuck at {'on' if self.on else 'off'}" if self.stuck else self.word

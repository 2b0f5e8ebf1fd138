"""Power switches of nodes.

command   an operator's own program, which knows the power strips or the management boards

Not here: when a node is switched off. The leader's node controller decides that.
"""

from __future__ import annotations

from hostler.drivers.power.command import CommandPower

__all__ = ["CommandPower"]

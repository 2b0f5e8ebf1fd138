"""Whether nodes that became unreachable together are left alone, checked when one is switched off or loses a machine.

The check counts from the store's events, less strictly than the leader: relative to all nodes, and within a slightly
shorter window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hostler.keys.families import ALIVE, BRAKE, COMMAND, MEMBER
from hostler.model.node import POWER, Lifecycle

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.ports.store import Event
    from hostler.sim.world import World

FEW = 2
LATE = 1.0
"""Seconds after which a leader has noticed that a node is unreachable."""
SLACK = 10.0
"""Seconds by which leaders may differ about when that happened."""


class _Off(msgspec.Struct):
    by: str = ""


class _Member(msgspec.Struct):
    lifecycle: str = ""
    off: _Off | None = None


class _Brake(msgspec.Struct):
    released_at: float | None = None


class BrakeWatch:
    """Tracks which nodes are unreachable, and since when."""

    def __init__(self, world: World, violated: Callable[[str, str, float | None], None]) -> None:
        self._world, self._violated = world, violated
        self.looks = 0
        self._members: dict[str, _Member] = {}
        self._since: dict[str, float] = {}
        self._released = False
        self._taken: list[tuple[str, str]] = []

    def heard(self, event: Event) -> None:
        """Handle a change in the store."""
        key, gone = event.kv.key, event.type == "delete"
        if parts := ALIVE.match(key):
            if gone:
                self._since[parts["node"]] = self._world.clock.now()
            else:
                self._since.pop(parts["node"], None)
        elif parts := MEMBER.match(key):
            self._member(parts["node"], None if gone else msgspec.json.decode(event.kv.value, type=_Member))
        elif BRAKE.match(key):
            self._released = not gone and msgspec.json.decode(event.kv.value, type=_Brake).released_at is not None
        elif gone and (parts := COMMAND.match(key)) and parts["node"] in self._since:
            self._taken.append((parts["node"], parts["vm"]))

    def judge(self, exists: Callable[[str], bool]) -> None:
        """Check the VMs taken from nodes in the completed revision. `exists`: the VM record still exists."""
        taken, self._taken = self._taken, []
        for node, vm in taken:
            off = self._members.get(node, _Member()).off
            if exists(vm) and (off is None or off.by == POWER):
                self._check(node, f"vm {vm} was taken from it")

    def _member(self, node: str, member: _Member | None) -> None:
        before = self._members.pop(node, _Member())
        if member is None:
            self._since.pop(node, None)
            return
        self._members[node] = member
        if before.off is None and member.off is not None and member.off.by == POWER:
            self._check(node, "it was switched off")

    def _check(self, node: str, what: str) -> None:
        self.looks += 1
        plan, now = self._world.plan, self._world.clock.now()
        failed = sorted(since for since in self._since.values() if since <= now - LATE)
        of = sum(member.lifecycle != Lifecycle.DECOMMISSIONED for member in self._members.values())
        window = max(0.0, plan.brake_window - SLACK)
        most = max((sum(first <= at <= first + window for at in failed) for first in failed), default=0)
        if not self._released and most > FEW and most > plan.brake_share * of:
            text = f"{what}, though {most} of {of} nodes became unreachable within {window:g} s"
            self._violated(f"node {node}", text, None)

"""How long a slice may stay in a transitional state, and what the leader does when it takes longer."""

from __future__ import annotations

import msgspec

from hostler.model.deployment import SliceState

PATIENCE = 3.0
"""The leader waits this multiple of a step's timeout, because the node fails the step first, at the timeout itself."""

_S = SliceState
_STEP = {
    _S.LOAD: "loading",
    _S.LOADING: "loading",
    _S.ACTIVATE: "activating",
    _S.ACTIVATING: "activating",
    _S.DEACTIVATE: "deactivating",
    _S.DEACTIVATING: "deactivating",
    _S.UNLOAD: "unloading",
    _S.UNLOADING: "unloading",
}
AT_REST = frozenset(SliceState) - frozenset(_STEP)
"""Resting states: the node has nothing to do, and the leader acts next."""
WAY_OUT = dict.fromkeys(_STEP, _S.FAILED) | {_S.LOAD: _S.UNLOAD, _S.UNLOAD: _S.UNLOAD}
"""The state that the leader writes for a stuck instance. An UNLOAD that the node ignores stays and is reported: only
the node can remove what may be running there."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Timeouts of the steps in seconds."""

    loading: float = 120.0
    activating: float = 60.0
    deactivating: float = 30.0
    unloading: float = 120.0
    min_ready: float = 5.0
    """Seconds for which an instance must have been active before it replaces an old one. Earlier failures are forgotten
    once it has been active for twice as long."""
    rebalance_every: float | None = 30.0
    """Seconds between two moves of a slice, and for which a node must have accepted slices first; None: no moves."""

    def of(self, state: SliceState) -> float | None:
        """Return the timeout for a node in this state; None: a resting state."""
        step = _STEP.get(state)
        return None if step is None else float(getattr(self, step))

    def stuck_after(self, state: SliceState) -> float | None:
        """Return the seconds after which the leader considers an instance stuck; None: a resting state."""
        limit = self.of(state)
        return None if limit is None else PATIENCE * limit

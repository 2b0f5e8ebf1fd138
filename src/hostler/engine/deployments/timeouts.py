"""How long a slice may be on its way from one state of rest to the next, and what the leader does beyond it."""

from __future__ import annotations

import msgspec

from hostler.model.deployment import SliceState

PATIENCE = 3.0
"""Times its limit that the leader lets a step take: the node, which fails it at the limit, comes first."""

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
"""The node has nothing to do for these: the leader's turn."""
WAY_OUT = dict.fromkeys(_STEP, _S.FAILED) | {_S.LOAD: _S.UNLOAD, _S.UNLOAD: _S.UNLOAD}
"""What the leader writes of an instance that is stuck. An UNLOAD that nobody takes up stands as it is, and is told of:
nothing but the node can take away what may run there."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, by step."""

    loading: float = 120.0
    activating: float = 60.0
    deactivating: float = 30.0
    unloading: float = 120.0
    min_ready: float = 5.0
    """Seconds for which an instance must have been active before an old one goes for it. Failures before it are
    forgotten after twice as long."""
    rebalance_every: float | None = 30.0
    """Seconds between two moves of a slice, and for which a node must have taken slices to get one; None: no moves."""

    def of(self, state: SliceState) -> float | None:
        """What a node may take for it; None: it is at rest."""
        step = _STEP.get(state)
        return None if step is None else float(getattr(self, step))

    def stuck_after(self, state: SliceState) -> float | None:
        """When the leader takes it for stuck; None: it is at rest."""
        limit = self.of(state)
        return None if limit is None else PATIENCE * limit

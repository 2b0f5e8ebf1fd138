"""The state machine of slices, and how long a slice may stay in a transitional state.

It is the only code that changes a slice's record, and it rejects illegal transitions. The leader and the agent both
write its results, each comparing the revision that it read. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from hostler.errors import Invalid
from hostler.model.deployment import SliceInstance, SliceRecord, SliceState, aggregate, may_move

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostler.model.deployment import SliceSettings


_replace = msgspec.structs.replace
LEAVING = "leaving: "
"""Prefix of `why` from DEACTIVATE on: an instance that is LOADED again after that is still leaving."""
_GOING = (SliceState.DEACTIVATE, SliceState.DEACTIVATING, SliceState.LOADED)


def changed_record(
    record: SliceRecord | None,
    changes: Mapping[int, SliceInstance | None],
    *,
    at: float,
    node_dead: bool = False,
    settings: Mapping[int, SliceSettings] | None = None,
    methods: tuple[str, ...] | None = None,
) -> SliceRecord | None:
    """Return the record after these changes, by number (None: the instance is gone). None: it is empty, delete the key.

    `settings` (by template) are those of new instances; `methods` replaces the methods of the record. Invalid: a change
    is not a legal transition. An instance that stays in its state keeps its `since`, whatever the change contains.
    """
    old = {} if record is None else record.each()
    left = dict(old)
    before = 0 if record is None else record.timestamp
    moving = False
    for number, new in changes.items():
        was = old.get(number)
        state = None if was is None else was.state
        if new is None:
            if was is None:
                continue
            _check(number, state, None, node_dead=node_dead)
            del left[number]
            moving = True
        elif new.state is state:
            left[number] = new if was is None or new.since == was.since else _replace(new, since=was.since)
        else:
            _check(number, state, new.state, node_dead=node_dead)
            left[number] = _tidy(new if was is None else _still_leaving(was, new))
            moving = True
    if not left:
        return None
    # A clock that lags behind the other one must not make a state older than the one before it.
    timestamp = max(before, int(at)) if moving else before
    if timestamp != before:
        for number, one in left.items():
            if not one.since and number in old and old[number].state is one.state:
                left[number] = _replace(one, since=before)
    return SliceRecord(
        state=aggregate(left),
        timestamp=timestamp,
        instances=left,
        settings=_in_use(record, left, settings),
        methods=methods if methods is not None else () if record is None else record.methods,
        unknown=UNSET if record is None else record.unknown,
    )


def since(record: SliceRecord, one: SliceInstance) -> int:
    """Return when an instance of the record entered its state, in seconds since 1970."""
    return one.since or record.timestamp


def whole(record: SliceRecord) -> SliceRecord:
    """Return the record with explicit instances, in case another program wrote it without them."""
    return record if record.instances is not UNSET else _replace(record, instances=dict(record.each()))


def _tidy(one: SliceInstance) -> SliceInstance:
    """Reset the fields of an instance that enters a new state: `since`, and `ready` unless it is active."""
    if not one.since and (one.ready or one.state is SliceState.ACTIVE):
        return one
    return _replace(one, since=0, ready=one.ready or one.state is not SliceState.ACTIVE)


def _still_leaving(was: SliceInstance, new: SliceInstance) -> SliceInstance:
    """Keep the leader's reason for leaving in the status that the node writes."""
    if was.state not in _GOING or new.state not in _GOING or not was.why.startswith(LEAVING) or new.why == was.why:
        return new
    return _replace(new, why=was.why)


def _check(number: int, old: SliceState | None, new: SliceState | None, *, node_dead: bool) -> None:
    if not may_move(old, new, node_dead=node_dead):
        said = [("no slice" if state is None else state.value) for state in (old, new)]
        raise Invalid(f"slice instance {number}: cannot go from {said[0]} to {said[1]}; read it again")


def _in_use(
    record: SliceRecord | None, left: Mapping[int, SliceInstance], more: Mapping[int, SliceSettings] | None
) -> dict[int, SliceSettings]:
    known = {} if record is None else record.settings
    if not known and not more:
        return {}
    known = {**known, **(more or {})}
    used = dict.fromkeys(one.template for one in left.values())
    return {template: known[template] for template in used if template in known}


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

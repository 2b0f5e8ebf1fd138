"""Recorder of decisions: each decision is written by the transaction that carries it out, as one additional Put.

    then = [COMMAND.put(command, node=node, vm=vm), HANDLE.put(handle, **ids)]
    why = Why(what="place", why="placed on r1-b2: …", reasons=…, read=(vm, handle))
    tracer.add(then, why, subject=vm_key, fence=fence)
    await store.txn(when, then)

`Why.read` lists the records that the decision is based on. The newest of them becomes the cause of the decision,
because the writer of that revision also wrote a decision or an audit entry in it. Records that were only compared are
left out.
`Why.cause` names a different cause, or one that was not read: an entry, or the id of a decision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from hostler.engine.idempotent_writer import instants
from hostler.engine.text import clip
from hostler.keys.entry import Entry
from hostler.keys.families import ANSWERED, AUDIT, TRACE
from hostler.model.trace import Impact, Reason, Touch, Trace
from hostler.ports.store import Delete, DeletePrefix, Put

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hostler.engine.runtime.guarded_writer import Why
    from hostler.kit.clock import Clock
    from hostler.ports.store import Operation

MAX_BYTES = 1024
"""Size limit of a decision record. Larger ones lose reasons first, then objects, then text."""
MAX_WHY = 300
MAX_REASONS = 3
MAX_REASON = 120
MAX_TOUCHES = 8
_TRACES = TRACE.prefix()
_UNTOLD = (TRACE.prefix(), AUDIT.prefix(), ANSWERED.prefix())
"""Keys that accompany every write and say nothing about the decision."""


class Tracer:
    """Writes decision records. One per controller. `add` writes nothing unless `kept`."""

    def __init__(self, clock: Clock, new_id: Callable[[], str], actor: str, *, kept: bool = True) -> None:
        self._clock, self._new_id, self.actor, self.kept = clock, new_id, actor, kept
        self._second, self._said = -1, ""

    def add(self, then: list[Operation], why: Why, *, subject: str, fence: int = 0) -> None:
        """Append a decision record to the transaction that does `then`. Call it last, and once. See `put`."""
        if self.kept:
            then.append(self.put(why, subject=subject, then=then, fence=fence))

    def put(self, why: Why, *, subject: str, then: Iterable[Operation] = (), fence: int = 0) -> Put:
        """Return the record of a decision about the object at `subject`, which does `then`. Independent of `kept`.

        `why.read` lists the records that the decision is based on; None stands for a record that did not exist. It
        should contain every record that `then` overwrites or deletes: a record that is missing there counts as new.
        """
        at, cause = self._clock.wall(), why.cause
        id_ = f"{self._instant(at)}-{self._new_id()}"
        trace = Trace(
            id=id_,
            cause=f"@{cause.mod_revision}" if isinstance(cause, Entry) else cause,
            actor=self.actor,
            what=why.what,
            subject=subject,
            why=clip(why.why, MAX_WHY),
            reasons=tuple(map(_short, why.reasons[:MAX_REASONS])),
            touches=_touches(subject, (*why.read, cause) if isinstance(cause, Entry) else why.read, then),
            fence=fence,
            at=at,
        )
        return Put(_TRACES + id_, _encode(trace))

    def _instant(self, at: float) -> str:
        """Return `2026-11-15/10:15:30.123456`.

        The part up to the second is cached, because a busy leader decides often.
        """
        second = int(at)
        if second != self._second:
            day, instant = instants(second)
            self._second, self._said = second, f"{day}/{instant[:-6]}"
        return f"{self._said}{int(at % 1 * 1_000_000):06d}"


def id_of(put: Put) -> str:
    """Return the id of a decision record that is to be written."""
    return put.key[len(_TRACES) :]


def _touches(subject: str, read: Iterable[Entry[Any] | None], then: Iterable[Operation]) -> tuple[Touch, ...]:
    """Return each object once: written objects first; if there are too many, the newest one is kept."""
    before = {entry.key: entry.mod_revision for entry in read if entry is not None}
    found: list[Touch] = []
    for operation in then:
        if isinstance(operation, Put):
            key, impact = operation.key, Impact.MODIFY if operation.key in before else Impact.CREATE
        elif isinstance(operation, Delete):
            key, impact = operation.key, Impact.DELETE
        elif isinstance(operation, DeletePrefix):
            key, impact = operation.prefix, Impact.DELETE
        else:
            continue
        if key.startswith(_UNTOLD):
            continue
        found.append(Touch(key=key, impact=impact, revision=before.pop(key, 0)))
    found += [Touch(key=key, impact=Impact.READ, revision=revision) for key, revision in before.items()]
    if len(found) > MAX_TOUCHES:
        newest = max(found, key=_revision)  # it links the decision to its cause
        own = [touch for touch in found if touch.key == subject and touch is not newest]
        rest = [touch for touch in found if touch.key != subject and touch is not newest]
        found = [newest, *own, *rest][:MAX_TOUCHES]
    return tuple(found)


def _revision(touch: Touch) -> int:
    return touch.revision


def _encode(trace: Trace) -> bytes:
    """Return the record, shortened to the size limit.

    Its parts were validated when it was built; it is not decoded again.
    """
    data = msgspec.json.encode(trace)
    if len(data) > MAX_BYTES:
        trace = msgspec.structs.replace(trace, reasons=trace.reasons[:1])
        data = msgspec.json.encode(trace)
    if len(data) > MAX_BYTES:
        newest = (max(trace.touches, key=_revision),) if trace.touches else ()
        trace = msgspec.structs.replace(trace, reasons=(), touches=newest, why=clip(trace.why, MAX_REASON))
        data = msgspec.json.encode(trace)
    return data


def _short(reason: Reason) -> Reason:
    if len(reason.subject) <= MAX_REASON and len(reason.why) <= MAX_REASON and reason.unknown is msgspec.UNSET:
        return reason
    return Reason(subject=clip(reason.subject, MAX_REASON), why=clip(reason.why, MAX_REASON))

"""Decisions leave a trace in the very transaction that makes them so: one more Put, and no write of its own.

    then = [COMMAND.put(command, node=node, vm=vm), HANDLE.put(handle, **ids)]
    tracer.add(then, what="place", subject=vm_key, why="placed on r1-b2: …", reasons=…, read=[vm, handle], fence=fence)
    await store.txn(when, then)

`read` are the records that were looked at and led to it: the newest of them is what the decision is hung under, for
whoever wrote that left a trace, or a line of the audit, in that very revision. Records that were only compared are
left out. Where another is meant, or one that was not read, `cause` names it: an entry, or the id of a trace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from hostler.engine.idempotent_writer import instants
from hostler.engine.text import clipped
from hostler.keys.access import ANSWERED, AUDIT
from hostler.keys.entry import Entry
from hostler.keys.trace import TRACE
from hostler.model.reason import Reason
from hostler.model.trace import Impact, Touch, Trace
from hostler.ports.store import Delete, DeletePrefix, Put

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hostler.kit.clock import Clock
    from hostler.ports.store import Operation

MAX_BYTES = 1024
"""Of a trace: what is longer loses reasons first, then objects, then words."""
MAX_WHY = 300
MAX_REASONS = 3
MAX_REASON = 120
MAX_TOUCHES = 8
_TRACES = TRACE.prefix()
_UNTOLD = (TRACE.prefix(), AUDIT.prefix(), ANSWERED.prefix())
"""What goes along with every write, and tells nothing of it."""


class Tracer:
    """One per controller. Not `kept`: nothing is written."""

    def __init__(self, clock: Clock, new_id: Callable[[], str], actor: str, *, kept: bool = True) -> None:
        self._clock, self._new_id, self.actor, self.kept = clock, new_id, actor, kept
        self._second, self._said = -1, ""

    def add(
        self,
        then: list[Operation],
        *,
        what: str,
        subject: str,
        why: str = "",
        reasons: Sequence[Reason] = (),
        read: Iterable[Entry[Any] | None] = (),
        cause: str | Entry[Any] = "",
        fence: int = 0,
    ) -> None:
        """Let the transaction that does `then` leave a trace; to be called last, and once. See `put`."""
        if self.kept:
            then.append(
                self.put(
                    what=what,
                    subject=subject,
                    why=why,
                    reasons=reasons,
                    read=read,
                    then=then,
                    cause=cause,
                    fence=fence,
                )
            )

    def put(
        self,
        *,
        what: str,
        subject: str,
        why: str = "",
        reasons: Sequence[Reason] = (),
        read: Iterable[Entry[Any] | None] = (),
        then: Iterable[Operation] = (),
        cause: str | Entry[Any] = "",
        fence: int = 0,
    ) -> Put:
        """The trace of a decision about the object at `subject`, which does `then`. Written even if none are kept.

        `read` are the records it was made from; None stands for one that was not there. Every record that `then`
        writes over or deletes should be among them: what is not counts as new.
        """
        at = self._clock.wall()
        id_ = f"{self._instant(at)}-{self._new_id()}"
        trace = Trace(
            id=id_,
            cause=f"@{cause.mod_revision}" if isinstance(cause, Entry) else cause,
            actor=self.actor,
            what=what,
            subject=subject,
            why=clipped(why, MAX_WHY),
            reasons=tuple(map(_short, reasons[:MAX_REASONS])),
            touches=_touches(subject, (*read, cause) if isinstance(cause, Entry) else read, then),
            fence=fence,
            at=at,
        )
        return Put(_TRACES + id_, _encoded(trace))

    def _instant(self, at: float) -> str:
        """`2026-11-15/10:15:30.123456`: within a second only the end changes, and a busy leader decides often."""
        second = int(at)
        if second != self._second:
            day, instant = instants(second)
            self._second, self._said = second, f"{day}/{instant[:-6]}"
        return f"{self._said}{int(at % 1 * 1_000_000):06d}"


def id_of(put: Put) -> str:
    """The id of a trace that is to be written."""
    return put.key[len(_TRACES) :]


def _touches(subject: str, read: Iterable[Entry[Any] | None], then: Iterable[Operation]) -> tuple[Touch, ...]:
    """Each object once: those that are written first, and among those that are read the newest."""
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
        newest = max(found, key=_revision)  # by it the decision is linked to what led to it
        own = [touch for touch in found if touch.key == subject and touch is not newest]
        rest = [touch for touch in found if touch.key != subject and touch is not newest]
        found = [newest, *own, *rest][:MAX_TOUCHES]
    return tuple(found)


def _revision(touch: Touch) -> int:
    return touch.revision


def _encoded(trace: Trace) -> bytes:
    """As short as it must be. What a trace is made of was checked where it was made: it is not read back here."""
    data = msgspec.json.encode(trace)
    if len(data) > MAX_BYTES:
        trace = msgspec.structs.replace(trace, reasons=trace.reasons[:1])
        data = msgspec.json.encode(trace)
    if len(data) > MAX_BYTES:
        newest = (max(trace.touches, key=_revision),) if trace.touches else ()
        trace = msgspec.structs.replace(trace, reasons=(), touches=newest, why=clipped(trace.why, MAX_REASON))
        data = msgspec.json.encode(trace)
    return data


def _short(reason: Reason) -> Reason:
    if len(reason.subject) <= MAX_REASON and len(reason.why) <= MAX_REASON and reason.unknown is msgspec.UNSET:
        return reason
    return Reason(subject=clipped(reason.subject, MAX_REASON), why=clipped(reason.why, MAX_REASON))

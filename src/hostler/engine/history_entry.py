"""One thing that happened, whoever wrote it down, and what it says of what led to it. Pure."""

from __future__ import annotations

import calendar
import re
import time
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from hostler.errors import Damaged, Invalid
from hostler.keys.access import AUDIT
from hostler.keys.inventory import ACTUAL
from hostler.keys.lab import LAB
from hostler.keys.node import ALIVE, ARRIVAL, COMMAND, MEMBER
from hostler.keys.trace import TRACE
from hostler.keys.vm import HANDLE
from hostler.model.lab import LabEvent
from hostler.model.node import Lifecycle
from hostler.model.trace import Impact, Touch
from hostler.model.trace_api import Sort
from hostler.model.vm import MachineState

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.keys.key import Key
    from hostler.model.reason import Reason
    from hostler.ports.store import KeyValue

OF_AUDIT = "audit/"
"""What ids of wishes begin with."""
OF_REPORT = "report/"
_INSTANT = re.compile(r"(\d{4}-\d{2}-\d{2})/(\d{2}:\d{2}:\d{2})\.(\d{6})", re.ASCII)


class Happening(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened in one revision of the store."""

    id: str
    sort: Sort
    revision: int
    at: float | None
    actor: str
    what: str
    subject: str
    """A key."""
    why: str = ""
    reasons: tuple[Reason, ...] = ()
    touches: tuple[Touch, ...] = ()
    cause: str = ""
    fence: int = 0

    @property
    def led_by(self) -> int:
        """The revision that led to it; 0: none did, or `cause` is the id of what did."""
        if self.cause:
            number = self.cause[1:]
            return int(number) if self.cause[0] == "@" and number.isdecimal() and len(number) < 19 else 0
        if self.sort is not Sort.DECISION:
            return 0
        return max((touch.revision for touch in self.touches), default=0)

    @property
    def led_by_id(self) -> str:
        """The id of what led to it; empty: it is known by its revision, or not at all."""
        return "" if self.cause.startswith("@") else self.cause

    def key_at(self, revision: int) -> str:
        """The key that had this revision when it was decided; empty: it does not say."""
        return next((touch.key for touch in self.touches if touch.revision == revision), "")


def of_trace(kv: KeyValue) -> Happening:
    """A decision. Damaged: nobody can read it."""
    entry = TRACE.entry(kv)
    trace = entry.value
    return Happening(
        id=f"{entry.parts['day']}/{entry.parts['decision']}",  # not what it says of itself: that could be anything
        sort=Sort.DECISION,
        revision=kv.create_revision,
        at=trace.at,
        actor=trace.actor,
        what=trace.what,
        subject=trace.subject,
        why=trace.why,
        reasons=trace.reasons,
        touches=trace.touches,
        cause=trace.cause,
        fence=trace.fence,
    )


def of_audit(kv: KeyValue) -> Happening:
    """Somebody's wish. Damaged: nobody can read it."""
    entry = AUDIT.entry(kv)
    audit = entry.value
    impact = Impact.MODIFY if audit.before else Impact.CREATE
    return Happening(
        id=f"{OF_AUDIT}{entry.parts['day']}/{entry.parts['write']}",
        sort=Sort.WISH,
        revision=kv.create_revision,
        at=audit.at,
        actor=audit.who,
        what=audit.verb,
        subject=audit.subject,
        why=f"wished for by {audit.who}: {audit.verb}",
        touches=(Touch(key=audit.subject, impact=impact, revision=audit.before),),
    )


def made_of(kv: KeyValue) -> Happening | None:
    """A line of the audit, or a trace; None: it is neither, or nobody can read it."""
    try:
        return of_trace(kv) if kv.key.startswith(TRACE.prefix()) else of_audit(kv)
    except (Damaged, Invalid):
        return None


def instant_of(key: str) -> float | None:
    """The time that stands in the key of a trace, or of a line of the audit; None: none does."""
    found = _INSTANT.search(key)
    if found is None:
        return None
    day, clock, micros = found.groups()
    try:
        whole = calendar.timegm(time.strptime(f"{day} {clock}", "%Y-%m-%d %H:%M:%S"))
    except ValueError:
        return None
    return whole + int(micros) / 1_000_000


# What others than the leader write, and leave no trace of. None: it is the leader's own writing.

Said: TypeAlias = tuple[str, str, str, float] | None
"""Who, what, why, and when."""


def _handle(record: Any, parts: dict[str, str]) -> Said:  # noqa: ARG001 - as the others
    if record.state in (MachineState.PENDING, MachineState.PLACED):
        return None
    why = f"it is {record.state.value.lower()}{f': {record.detail}' if record.detail else ''}"
    return record.node or "agent", "seen", why, record.seen_at


def _member(record: Any, parts: dict[str, str]) -> Said:
    if record.lifecycle is Lifecycle.ON_DUTY and record.off is None:
        return None
    said = {Lifecycle.JOINING: "it registered", Lifecycle.SHUTTING_DOWN: "it said that it goes"}
    return parts["node"], "registered", said.get(record.lifecycle, "its agent wrote its record"), record.registered_at


def _alive(record: Any, parts: dict[str, str]) -> Said:
    return parts["node"], "alive", "it gives signs of life", record.started_at


def _command(record: Any, parts: dict[str, str]) -> Said:
    return ("agent", "handed_over", f"handed over to {parts['node']}", 0.0) if record.arrived else None


def _arrival(record: Any, parts: dict[str, str]) -> Said:
    why = f"{parts['node']} cannot take it: {record.refused}"
    return (parts["node"], "refused", why, 0.0) if record.refused else None


def _lab(record: Any, parts: dict[str, str]) -> Said:  # noqa: ARG001 - as the others
    last = record.events[-1] if record.events else None
    if last is None or last.event not in _ASKED:
        return None
    reason = f": {last.reason}" if last.reason else ""
    which = "" if last.lab_id is None else f"lab {last.lab_id} "
    return record.user, f"lab.{last.event.value}", f"{which}{last.event.value} through the queue{reason}", last.at


_ASKED = (
    *(LabEvent.REQUESTED, LabEvent.EXTENDED, LabEvent.STOPPING, LabEvent.STOPPED),
    *(LabEvent.REFUSED, LabEvent.IGNORED, LabEvent.ALREADY),
)
"""What a user is told at once, by whoever takes the request."""
_REPORTS: tuple[tuple[Key[Any], Callable[[Any, dict[str, str]], Said]], ...] = (
    (HANDLE, _handle),
    (ACTUAL, _handle),
    (MEMBER, _member),
    (ALIVE, _alive),
    (COMMAND, _command),
    (ARRIVAL, _arrival),
    (LAB, _lab),
)


def is_reported(key: str) -> bool:
    """Whether others than the leader write there, and leave no trace."""
    return any(key.startswith(family.prefix()) for family, _ in _REPORTS)


def of_report(key: str, revision: int, kv: KeyValue | None) -> Happening | None:
    """What somebody wrote there; `kv`: that, if it is still known. None: that is not what others write."""
    said: Said = ("agent", "seen", "it wrote what is no longer known", 0.0)
    for family, told in _REPORTS:
        parts = family.match(key)
        if kv is None or parts is None:
            continue
        try:
            said = told(family.decode(kv.value, where=key), parts)
        except Damaged:
            said = ("agent", "seen", "nobody can read what it wrote", 0.0)
    if said is None:
        return None
    actor, what, why, at = said
    touch = Touch(key=key, impact=Impact.MODIFY)
    return Happening(
        id=f"{OF_REPORT}{revision}",
        sort=Sort.REPORT,
        revision=revision,
        at=at or None,
        actor=actor,
        what=what,
        subject=key,
        why=why,
        touches=(touch,),
    )

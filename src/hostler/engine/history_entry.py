"""One entry of the history, from any source, with its cause. Pure."""

from __future__ import annotations

import calendar
import re
import time
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from hostler.errors import Damaged, Invalid
from hostler.keys.families import ACTUAL, ALIVE, ARRIVAL, AUDIT, COMMAND, HANDLE, MEMBER, TRACE
from hostler.keys.lab import LAB
from hostler.model.control_api import Sort
from hostler.model.lab import LabEvent
from hostler.model.node import Lifecycle
from hostler.model.trace import Impact, Touch
from hostler.model.vm import MachineState

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.keys.key import Key
    from hostler.model.trace import Reason
    from hostler.ports.store import KeyValue

OF_AUDIT = "audit/"
"""Prefix of the ids of audit log entries."""
OF_REPORT = "report/"
_INSTANT = re.compile(r"(\d{4}-\d{2}-\d{2})/(\d{2}:\d{2}:\d{2})\.(\d{6})", re.ASCII)


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened in one revision of the store."""

    id: str
    sort: Sort
    revision: int
    at: float | None
    actor: str
    what: str
    subject: str
    why: str = ""
    reasons: tuple[Reason, ...] = ()
    touches: tuple[Touch, ...] = ()
    cause: str = ""
    fence: int = 0

    @property
    def led_by(self) -> int:
        """Return the revision that caused it; 0: none did, or `cause` is an id."""
        if self.cause:
            number = self.cause[1:]
            return int(number) if self.cause[0] == "@" and number.isdecimal() and len(number) < 19 else 0
        if self.sort is not Sort.DECISION:
            return 0
        return max((touch.revision for touch in self.touches), default=0)

    @property
    def led_by_id(self) -> str:
        """Return the id of its cause; empty: the cause is known by its revision, or not at all."""
        return "" if self.cause.startswith("@") else self.cause

    def key_at(self, revision: int) -> str:
        """Return the key that had this revision when the decision was made; empty: not recorded."""
        return next((touch.key for touch in self.touches if touch.revision == revision), "")


def of_trace(kv: KeyValue) -> HistoryEntry:
    """Return the entry for a decision. Damaged: the record is unreadable."""
    entry = TRACE.entry(kv)
    trace = entry.value
    return HistoryEntry(
        # the id comes from the key: the record could claim anything
        id=f"{entry.parts['day']}/{entry.parts['decision']}",
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


def of_audit(kv: KeyValue) -> HistoryEntry:
    """Return the entry for a request of a user. Damaged: the record is unreadable."""
    entry = AUDIT.entry(kv)
    audit = entry.value
    impact = Impact.MODIFY if audit.before else Impact.CREATE
    return HistoryEntry(
        id=f"{OF_AUDIT}{entry.parts['day']}/{entry.parts['write']}",
        sort=Sort.WISH,
        revision=kv.create_revision,
        at=audit.at,
        actor=audit.who,
        what=audit.verb,
        subject=audit.subject,
        why=f"requested by {audit.who}: {audit.verb}",
        touches=(Touch(key=audit.subject, impact=impact, revision=audit.before),),
    )


def made_of(kv: KeyValue) -> HistoryEntry | None:
    """Return the entry for an audit log record or a decision; None: it is neither, or unreadable."""
    try:
        return of_trace(kv) if kv.key.startswith(TRACE.prefix()) else of_audit(kv)
    except (Damaged, Invalid):
        return None


def instant_of(key: str) -> float | None:
    """Return the time in the key of a decision or an audit log entry; None: there is none."""
    found = _INSTANT.search(key)
    if found is None:
        return None
    day, clock, micros = found.groups()
    try:
        whole = calendar.timegm(time.strptime(f"{day} {clock}", "%Y-%m-%d %H:%M:%S"))
    except ValueError:
        return None
    return whole + int(micros) / 1_000_000


# Records that agents and users write without a decision record. None: the leader wrote it.

Said: TypeAlias = tuple[str, str, str, float] | None
"""Actor, action, reason and time."""


def _handle(record: Any, parts: dict[str, str]) -> Said:  # noqa: ARG001 - same signature as the others
    if record.state in (MachineState.PENDING, MachineState.PLACED):
        return None
    why = f"it is {record.state.value.lower()}{f': {record.detail}' if record.detail else ''}"
    return record.node or "agent", "seen", why, record.seen_at


def _member(record: Any, parts: dict[str, str]) -> Said:
    if record.lifecycle is Lifecycle.ON_DUTY and record.off is None:
        return None
    said = {Lifecycle.JOINING: "it registered", Lifecycle.SHUTTING_DOWN: "it announced its shutdown"}
    return parts["node"], "registered", said.get(record.lifecycle, "its agent wrote its record"), record.registered_at


def _alive(record: Any, parts: dict[str, str]) -> Said:
    return parts["node"], "alive", "it sends heartbeats", record.started_at


def _command(record: Any, parts: dict[str, str]) -> Said:
    return ("agent", "handed_over", f"handed over to {parts['node']}", 0.0) if record.arrived else None


def _arrival(record: Any, parts: dict[str, str]) -> Said:
    why = f"{parts['node']} cannot take it: {record.refused}"
    return (parts["node"], "refused", why, 0.0) if record.refused else None


def _lab(record: Any, parts: dict[str, str]) -> Said:  # noqa: ARG001 - same signature as the others
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
"""Events that the receiver of a request reports to the user immediately."""
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
    """Return whether writers other than the leader write this key, without a decision record."""
    return any(key.startswith(family.prefix()) for family, _ in _REPORTS)


def of_report(key: str, revision: int, kv: KeyValue | None) -> HistoryEntry | None:
    """Return the entry for a write by an agent or a user; `kv`: the record, if still known.

    None: the leader wrote it.
    """
    said: Said = ("agent", "seen", "it wrote a record that is no longer kept", 0.0)
    for family, told in _REPORTS:
        parts = family.match(key)
        if kv is None or parts is None:
            continue
        try:
            said = told(family.decode(kv.value, where=key), parts)
        except Damaged:
            said = ("agent", "seen", "it wrote an unreadable record", 0.0)
    if said is None:
        return None
    actor, what, why, at = said
    touch = Touch(key=key, impact=Impact.MODIFY)
    return HistoryEntry(
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

"""Texts and causes of decisions about labs. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hostler.model.lab import utc_time

if TYPE_CHECKING:
    from hostler.engine.labs.transactions import LabSnapshot
    from hostler.keys.entry import Entry
    from hostler.model.lab import LabUser

SILENT = "its node is silent"
"""`detail` of a lab whose node is unreachable (`state_machine.seen`)."""
DROPPED = {
    "reshaped": "its template is no longer in use",
    "replaced": "it did not become ready",
    "no_room": "no node had room for it, and labs come first",
    "surplus": "there are more than the pool needs",
    "evicted": "a lab found no room, and labs come first",
}
"""Why a machine of the pool is removed, by the name of its counter."""


def why(what: str, old: LabUser | None, new: LabUser | None) -> str:
    """Return one sentence: the latest news in the record, otherwise what changed in it."""
    if what == "strays":
        return "a machine that does not belong to the lab is removed"
    if what == "forget":
        return "the user has had no lab for so long that the record is deleted"
    lab = None if old is None else old.lab
    if what == "keep" and lab is not None:
        until = "" if lab.expires_at is None else f", until after {utc_time(lab.expires_at)}"
        return f"lab {lab.lab_id}: its machine must run{until}"
    if old is None or new is None:
        return "its machine is deleted"
    last = old.news[-1].number if old.news else 0
    for news in reversed(new.news):
        if news.number > last:
            name = "the lab" if news.lab_id is None else f"lab {news.lab_id}"
            how = " (from the pool)" if what == "claimed" else ""
            return f"{name} is {news.event.value}{how}{': ' if news.reason else ''}{news.reason}"
    seen = new.lab
    if seen is None:
        return "the lab is gone"
    said = [f"its machine is {seen.cloud_status}" if seen.cloud_status else "", seen.detail]
    said.append("it is available" if seen.available else "it is not available")
    return f"lab {seen.lab_id}: {', '.join(part for part in said if part)}"


def cause(seen: LabSnapshot, new: LabUser | None, silence: str) -> Entry[Any] | str:
    """Return the cause of a decision: the newest record that was read, or the outage of its node."""
    old = None if seen.entry is None else seen.entry.value.lab
    lab = None if new is None else new.lab
    if silence and lab is not None and lab.detail == SILENT and (old is None or old.detail != SILENT):
        return silence
    found = [entry for entry in (seen.entry, seen.vm, seen.handle, *seen.strays) if entry is not None]
    return max(found, key=lambda entry: entry.mod_revision) if found else ""

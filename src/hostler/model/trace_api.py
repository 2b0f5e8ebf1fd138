"""HTTP API types for the decision log."""

from __future__ import annotations

from hostler.model.reason import Reason
from hostler.model.record import OpenEnum, Record
from hostler.model.trace import Touch


class Sort(OpenEnum):
    """Origin of an entry."""

    DECISION = "decision"
    """A decision of one of the leader's controllers."""
    WISH = "wish"
    """A user's write, taken from the audit log."""
    REPORT = "report"
    """A write of an agent or lab worker. These leave no entry, so this one is derived from the written record."""


class TraceView(Record, frozen=True, kw_only=True):
    """One entry: a decision, a user's write or a report."""

    id: str
    parent: str = ""
    """Id of the entry that caused this one; empty: unknown."""
    open: bool = False
    """The cause is no longer stored, or the caller may not see it."""
    sort: Sort
    revision: int
    """Store revision of the change."""
    at: float | None = None
    """None: no longer known."""
    actor: str
    """The controller, user or node that acted."""
    what: str
    """`place`, `take`, `silent`, `vm.create`, …"""
    subject: str
    """The affected object, for display: `vm acme/web/www`, `node r1-b2`."""
    why: str = ""
    reasons: tuple[Reason, ...] = ()
    touches: tuple[Touch, ...] = ()
    fence: int = 0
    """Fence of the leader that decided; 0: not a decision of a leader."""


class TracePage(Record, frozen=True, kw_only=True):
    """A page of entries, newest first. A page may be short or empty without being the last."""

    items: tuple[TraceView, ...]
    before: tuple[TraceView, ...] = ()
    """Causes of these entries that are not on this page, newest first."""
    unreadable: int = 0
    """Number of records skipped because they cannot be decoded."""
    after: str | None = None


class WhyView(Record, frozen=True, kw_only=True):
    """The chain of causes behind the current state of an object."""

    object: str
    """`vm acme/web/www`, `node r1-b2`."""
    state: str
    """Current state in words: `runs on r1-b2`."""
    since: float | None = None
    steps: tuple[TraceView, ...] = ()
    """The chain of causes, newest first. The last one is the root cause, if it is still stored."""
    cut: bool = False
    """The chain is longer than the requested limit."""
    border: str = ""
    """States that the store was copied or restored since the object was last written; empty: it was not."""
    filed: str = ""
    """If entries are missing because older audit log entries are in files: which files, and how to read them. Empty
    otherwise, and for callers who may not read the audit log."""

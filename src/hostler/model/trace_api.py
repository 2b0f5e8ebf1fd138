"""What callers are told of decisions."""

from __future__ import annotations

from hostler.model.reason import Reason
from hostler.model.record import OpenEnum, Record
from hostler.model.trace import Touch


class Sort(OpenEnum):
    """Where it comes from."""

    DECISION = "decision"
    """A controller of the leader."""
    WISH = "wish"
    """Somebody's write, from the audit."""
    REPORT = "report"
    """What an agent, or a worker of labs, wrote by itself. It leaves no record: this was made of what it wrote."""


class TraceView(Record, frozen=True, kw_only=True):
    """Something that happened."""

    id: str
    parent: str = ""
    """The id of what led to it; empty: nothing that is known."""
    open: bool = False
    """Something led to it that is no longer kept, or that is not for the caller to see."""
    sort: Sort
    revision: int
    """The store's, in which it happened."""
    at: float | None = None
    """None: it is not known any more."""
    actor: str
    """Who did it: a controller, a user, a node."""
    what: str
    """`place`, `take`, `silent`, `vm.create`, …"""
    subject: str
    """What it is about, for people: `vm acme/web/www`, `node r1-b2`."""
    why: str = ""
    reasons: tuple[Reason, ...] = ()
    touches: tuple[Touch, ...] = ()
    fence: int = 0
    """Of the leader who decided; 0: nobody who leads did it."""


class TracePage(Record, frozen=True, kw_only=True):
    """What happened, newest first. A page may be short, or empty, and not be the last."""

    items: tuple[TraceView, ...]
    before: tuple[TraceView, ...] = ()
    """What led to these and is not among them, newest first."""
    unreadable: int = 0
    """Records on the way that nobody can read."""
    after: str | None = None


class WhyView(Record, frozen=True, kw_only=True):
    """How something came to be as it is."""

    object: str
    """`vm acme/web/www`, `node r1-b2`."""
    state: str
    """As it is now, in words: `runs on r1-b2`."""
    since: float | None = None
    steps: tuple[TraceView, ...] = ()
    """What led there, newest first; the last is its root, if that is still kept."""
    cut: bool = False
    """There is more than was asked for."""
    border: str = ""
    """The store was copied or restored since the object was last written, in words; empty: it was not."""
    filed: str = ""
    """Steps are missing, and older lines of the audit log are in files: which, and how to read them. Empty otherwise,
    and for callers who may not read the audit log."""

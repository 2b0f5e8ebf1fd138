"""What was decided, why, and what came of it: kept in the transaction that made it so.

A trace is linked to what led to it in two ways. `cause` names another trace, or the revision of a write, where whoever
decided knew it. Otherwise the revisions of what was read tell: whoever wrote the newest of them led to this, and left a
trace or an audit record in that very revision. What neither tells was led to by nothing that we know: a node that fell
silent.
"""

from __future__ import annotations

from hostler.model.reason import Reason
from hostler.model.record import OpenEnum, Record


class Impact(OpenEnum):
    """What a decision did with an object."""

    READ = "read"
    CREATE = "create"
    MODIFY = "modify"
    DELETE = "delete"


class Touch(Record, frozen=True, kw_only=True):
    """One object that a decision was about."""

    key: str
    impact: Impact
    revision: int = 0
    """That it had before; 0: it was not there, or nobody had looked."""


class Trace(Record, frozen=True, kw_only=True):
    """`/hostler/v1/traces/{day}/{decision}`: one decision."""

    id: str
    """`{day}/{decision}`, as in its key; others name it as their `cause`."""
    cause: str = ""
    """What led to it, if that was known when it was decided: the id of a trace, or `@42`, whatever revision 42 was."""
    actor: str
    """Who decided: `machines`, `nodes`, `workloads`, `labs`, …"""
    what: str
    """`place`, `take`, `silent`, …"""
    subject: str
    """The key of what it is about."""
    why: str = ""
    """In one sentence."""
    reasons: tuple[Reason, ...] = ()
    """The strongest few; all of them stand with what was decided."""
    touches: tuple[Touch, ...] = ()
    fence: int = 0
    """Of the leader who decided."""
    at: float


class Silent(Record, frozen=True, kw_only=True):
    """`/hostler/v1/silences/{node}`: a node that fell silent, as a leader saw it; taken away when it is back.

    By it a later leader knows which trace tells of the silence that it finds.
    """

    registered_at: float
    """Of the node's record then: a node that came and went unseen has registered anew."""
    trace: str
    """The id."""
    at: float

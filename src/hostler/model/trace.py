"""The decision log: each decision with its reasons, recorded in the same transaction as its effect.

An entry is linked to its cause in two ways. If the controller knew the cause, `cause` names another entry or the
revision of a write. Otherwise the cause follows from the revisions that were read: the writer of the newest of them
caused the decision, and that revision also contains a decision entry or an audit record. If neither applies, the cause
is unknown, for example a node that became unreachable.
"""

from __future__ import annotations

from hostler.model.record import OpenEnum, Record


class Reason(Record, frozen=True, kw_only=True):
    """One consideration: its subject (a node, a rack, a quota) and the result."""

    subject: str
    why: str


class Impact(OpenEnum):
    """How a decision affected an object."""

    READ = "read"
    CREATE = "create"
    MODIFY = "modify"
    DELETE = "delete"


class Touch(Record, frozen=True, kw_only=True):
    """One object that a decision read or changed."""

    key: str
    impact: Impact
    revision: int = 0
    """Its revision before the decision; 0: it did not exist, or was not read."""


class Trace(Record, frozen=True, kw_only=True):
    """`/hostler/v1/traces/{day}/{decision}`: one decision."""

    id: str
    """`{day}/{decision}`, as in the key. Other entries refer to it in `cause`."""
    cause: str = ""
    """Cause, if known at decision time: the id of another entry, or `@42` for whatever was written in revision 42."""
    actor: str
    """The controller that decided: `machines`, `nodes`, `workloads`, `labs`, …"""
    what: str
    """`place`, `take`, `silent`, …"""
    subject: str
    """The key of the object that the decision is about."""
    why: str = ""
    """Explanation in one sentence."""
    reasons: tuple[Reason, ...] = ()
    """The strongest few reasons. The complete list is stored with the decided object."""
    touches: tuple[Touch, ...] = ()
    fence: int = 0
    """Fence of the leader that decided."""
    at: float


class Silent(Record, frozen=True, kw_only=True):
    """`/hostler/v1/silences/{node}`: a node that a leader saw become unreachable; deleted when the node is back.

    It tells a later leader which decision entry describes the outage.
    """

    registered_at: float
    """`registered_at` of the node record at that time. It differs if the node returned and left again unseen."""
    trace: str
    """Id of the decision entry."""
    at: float

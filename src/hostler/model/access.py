"""Access control: roles, tokens, tickets, quotas and the audit log."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType, field

from hostler.model.inventory import Capacity, Rights
from hostler.model.record import OpenEnum, Record

EVERYWHERE = "*"
"""As a membership: all orgs."""
HIDDEN = "…"
"""Shown in place of a value that the reader may not see."""
DEFAULT = "default"
"""The project that every org has, and the org used when a request names none."""


class Role(OpenEnum):
    """A named set of permissions."""

    ADMIN = "admin"
    OPERATOR = "operator"
    MEMBER = "member"
    VIEWER = "viewer"


ROLES: dict[Role, Rights] = {
    Role.ADMIN: Rights(
        manage_accounts=True,
        step_time=True,
        modify_workloads=True,
        modify_inventory=True,
        inject_faults=True,
        perform_repairs=True,
    ),
    Role.OPERATOR: Rights(
        step_time=True, modify_workloads=True, modify_inventory=True, inject_faults=True, perform_repairs=True
    ),
    Role.MEMBER: Rights(modify_workloads=True),
    Role.VIEWER: Rights(),
}


class TokenKind(OpenEnum):
    """Purpose of a token."""

    SESSION = "session"
    API = "api"


class Token(Record, frozen=True, kw_only=True):
    """`/hostler/v1/tokens/{digest}`: the key holds the SHA-256 of the token. The token itself is never stored."""

    id: str
    """Public identifier for listing and revoking; it reveals nothing about the token."""
    user: str
    """The folded name."""
    purpose: TokenKind
    name: str = ""
    created_at: float
    expires_at: float | None = None
    era: str = ""
    """`User.era` (for a session `User.session_era`) at issue time. The token is valid while the two are equal."""


class Audit(Record, frozen=True, kw_only=True):
    """`/hostler/v1/audit/{day}/{write}`: one write, recorded in the same transaction as the write itself.

    The revision that created this record is the revision of the write.
    """

    who: str
    verb: str
    """`vm.create`, `node.drain`, …"""
    subject: str
    """The key that was written."""
    before: int = 0
    """The revision that the write was based on; 0: the key did not exist."""
    at: float
    source: str = ""
    """Client address of the request."""
    name: str = ""
    """Display name of the subject at that time, where the key does not contain it (such as the name of a VM).

    For refused requests (`refused.…`): the route of the last one.
    """
    count: int | UnsetType = UNSET
    """Number of refused requests that this entry counts."""


class AuditFile(Record, frozen=True, kw_only=True):
    """`/hostler/v1/audit-files/{day}/{place}`: entries of the audit log that were moved to a file."""

    host: str
    """The host that has the file."""
    folder: str
    """The folder of the file on that host."""
    lines: int
    """Minimum number of lines in the file."""
    chain: str = ""
    """Hash of the last of these lines."""
    at: float = 0.0
    """When the last of these lines was moved to the file."""


class Answered(Record, frozen=True, kw_only=True):
    """`/hostler/v1/requests/{user}/{life}/{request}`: a write with an Idempotency-Key and its response."""

    fingerprint: str
    """Hash of method, path and body. Reusing the key for a different request is refused."""
    status: int
    body: str
    """JSON."""


class Ticket(Record, frozen=True, kw_only=True):
    """`/hostler/v1/tickets/{digest}`: a short-lived one-time credential for one connection to a machine or terminal.

    The key holds the SHA-256 of the ticket. The record is attached to a lease. The server that accepts the ticket
    deletes the record before it opens the connection.
    """

    vm: str
    org: str
    project: str
    door: str
    """A value of `hostler.ports.machines.ChannelKind`. `terminal`: for the labs of the user `project`; `vm` is empty.

    `web`: the web UI, signed in as `by`; `vm`, `org` and `project` are empty.
    """
    by: str
    """Folded name of the user, or `node:{node}` for an agent."""
    token: str = ""
    """SHA-256 of the token that requested the ticket. The connection is closed when that token ends."""
    expires_at: float
    name: str = ""
    """Name of the VM when the ticket was issued; `revision` is its revision then. Both are for the audit log."""
    revision: int = 0


class Project(Record, frozen=True, kw_only=True):
    """`/hostler/v1/projects/{org}/{project}`: a project created explicitly by an account with that permission.

    Projects older than these records exist as long as they contain something (`hostler.engine.projects`).
    """

    created_at: float
    created_by: str = ""
    """Folded name of the account."""


class Quota(Record, frozen=True, kw_only=True):
    """`/hostler/v1/quotas/{org}/{project}`: limits and usage of a project. Without this record there is no limit.

    `/hostler/v1/org-quotas/{org}`: limits and usage of all projects of an org together.

    Every transaction that changes the usage of the project compares this record. While `counted` is false, such a
    transaction must first count: scan the project and write its usage.
    """

    vms: Annotated[int, Meta(ge=0)] | None = None
    cpus: Annotated[int, Meta(ge=0)] | None = None
    memory_mib: Annotated[int, Meta(ge=0)] | None = None
    disk_gib: Annotated[int, Meta(ge=0)] | None = None
    counted: bool = False
    used_vms: int = 0
    used: Capacity = field(default_factory=lambda: Capacity(cpus=0, memory_mib=0))

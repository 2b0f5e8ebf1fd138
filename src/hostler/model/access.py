"""Who may do what: roles, tokens, and what is kept of each write."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType, field

from hostler.model.inventory import Capacity, Rights
from hostler.model.record import OpenEnum, Record

EVERYWHERE = "*"
"""As a membership: every org."""
HIDDEN = "…"
"""In place of a value that the reader may not see."""
DEFAULT = "default"
"""The project that every org has, and the org of who names none."""


class Role(OpenEnum):
    """A bundle of rights by name."""

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
    """What a token is for."""

    SESSION = "session"
    API = "api"


class Token(Record, frozen=True, kw_only=True):
    """`/hostler/v1/tokens/{digest}`: the key holds the token's SHA-256, and nothing holds the token."""

    id: str
    """For people and for revoking; tells nothing of the token."""
    user: str
    """The folded name."""
    purpose: TokenKind
    name: str = ""
    created_at: float
    expires_at: float | None = None
    era: str = ""
    """Of its account when it was issued (`User.era`, of a session `User.session_era`): it counts while that is so."""


class Audit(Record, frozen=True, kw_only=True):
    """`/hostler/v1/audit/{day}/{write}`: one write, kept in the transaction that made it.

    It led to the revision in which this record was created.
    """

    who: str
    verb: str
    """`vm.create`, `node.drain`, …"""
    subject: str
    """The key that was written."""
    before: int = 0
    """The revision that it was made from; 0: there was nothing."""
    at: float
    source: str = ""
    """Where the request came from."""
    name: str = ""
    """What people called the subject then, where its key does not say it: a machine's name.

    Of refused requests (`refused.…`) the route of the last one.
    """
    count: int | UnsetType = UNSET
    """How many refused requests the line stands for."""


class AuditFile(Record, frozen=True, kw_only=True):
    """`/hostler/v1/audit-files/{day}/{place}`: lines of the audit log that were moved to a file."""

    host: str
    """The machine that has the file."""
    folder: str
    """Its folder there."""
    lines: int
    """How many lines the file has, at least."""
    chain: str = ""
    """The hash of the last of these lines."""
    at: float = 0.0
    """When the last of them was filed."""


class Answered(Record, frozen=True, kw_only=True):
    """`/hostler/v1/requests/{user}/{life}/{request}`: what a write with an Idempotency-Key was, and its answer."""

    fingerprint: str
    """Of method, path and body: the same key with another request is refused."""
    status: int
    body: str
    """JSON."""


class Ticket(Record, frozen=True, kw_only=True):
    """`/hostler/v1/tickets/{digest}`: lets its bearer through one door of one machine, or to a terminal, once, soon.

    The key holds the ticket's SHA-256. Attached to a lease; whoever lets the bearer in deletes it first.
    """

    vm: str
    org: str
    project: str
    door: str
    """Of `hostler.ports.machines.Door`; `terminal`: of the labs of the user `project`, and `vm` is empty.

    `web`: the page, signed in as `by`; vm, org and project are empty.
    """
    by: str
    """The folded name of the user, or `node:{node}` for an agent."""
    token: str = ""
    """The SHA-256 of the token it was issued for: what it opened closes when that one ends."""
    expires_at: float
    name: str = ""
    """What the machine was called when the ticket was issued, and the revision that it had: for the audit log."""
    revision: int = 0


class Project(Record, frozen=True, kw_only=True):
    """`/hostler/v1/projects/{org}/{project}`: a project that an account with that permission created.

    Projects from before there were such records exist as long as something is in them (`hostler.engine.projects`).
    """

    created_at: float
    created_by: str = ""
    """The folded name of the account."""


class Quota(Record, frozen=True, kw_only=True):
    """`/hostler/v1/quotas/{org}/{project}`: how much a project may have, and has. Without one there is no limit.

    `/hostler/v1/org-quotas/{org}`: the same of all projects of an org together.

    It is compared in every transaction that changes what the project has. While it is not `counted`, such a transaction
    first has to count: scan the project, and write what it has.
    """

    vms: Annotated[int, Meta(ge=0)] | None = None
    cpus: Annotated[int, Meta(ge=0)] | None = None
    memory_mib: Annotated[int, Meta(ge=0)] | None = None
    disk_gib: Annotated[int, Meta(ge=0)] | None = None
    counted: bool = False
    used_vms: int = 0
    used: Capacity = field(default_factory=lambda: Capacity(cpus=0, memory_mib=0))

"""HTTP API types for accounts, sessions, tokens, projects, quotas and the audit log.

The rules are those of `hostler.model.vm_api`.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from hostler.model.access import Role, TokenKind
from hostler.model.inventory import Capacity, Rights
from hostler.model.record import Record
from hostler.model.vm_api import MAX_NAME, Name, Seconds


class UserCreate(Record, frozen=True, kw_only=True):
    """A new account. Permissions are given either one by one or as a role."""

    concealed = frozenset(("password",))

    name: Name
    full_name: Annotated[str, Meta(max_length=200)] = ""
    password: Annotated[str, Meta(min_length=8, max_length=1024)] | None = None
    enabled: bool = True
    role: Role | None = None
    rights: Rights | None = None
    memberships: Annotated[tuple[str, ...], Meta(max_length=1000)] = ()


class UserUpdate(Record, frozen=True, kw_only=True):
    """Changes to an account; omitted fields stay unchanged.

    `old_password` is the current password. An account needs it to change its own password.
    """

    concealed = frozenset(("password", "old_password"))

    full_name: Annotated[str, Meta(max_length=200)] | UnsetType = UNSET
    password: Annotated[str, Meta(min_length=8, max_length=1024)] | UnsetType = UNSET
    old_password: Annotated[str, Meta(max_length=1024)] | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET
    role: Role | UnsetType = UNSET
    rights: Rights | UnsetType = UNSET
    memberships: Annotated[tuple[str, ...], Meta(max_length=1000)] | UnsetType = UNSET


class UserView(Record, frozen=True, kw_only=True):
    """An account, without its password."""

    name: str
    full_name: str
    enabled: bool
    protected: bool
    has_password: bool
    rights: Rights
    memberships: tuple[str, ...]
    created_at: float
    revision: int


class UserPage(Record, frozen=True, kw_only=True):
    """A page of accounts, ordered by name."""

    items: tuple[UserView, ...]
    after: str | None
    revision: int


class Login(Record, frozen=True, kw_only=True):
    """Credentials for a new session."""

    concealed = frozenset(("password",))

    name: Annotated[str, Meta(max_length=255)]
    password: Annotated[str, Meta(max_length=1024)]


class TokenCreate(Record, frozen=True, kw_only=True):
    """A new API token."""

    name: Annotated[str, Meta(max_length=MAX_NAME)] = ""
    expires_in: Seconds | None = None


class TokenView(Record, frozen=True, kw_only=True):
    """A token without its secret."""

    id: str
    user: str
    purpose: TokenKind
    name: str
    created_at: float
    expires_at: float | None


class TokenIssued(Record, frozen=True, kw_only=True):
    """A new token. The token itself is shown only here."""

    concealed = frozenset(("token",))

    token: str
    id: str
    user: str
    expires_at: float | None


class TokenPage(Record, frozen=True, kw_only=True):
    """The tokens of an account."""

    items: tuple[TokenView, ...]


class QuotaSet(Record, frozen=True, kw_only=True):
    """Limits of a project; null: no limit."""

    vms: Annotated[int, Meta(ge=0)] | None = None
    cpus: Annotated[int, Meta(ge=0)] | None = None
    memory_mib: Annotated[int, Meta(ge=0)] | None = None
    disk_gib: Annotated[int, Meta(ge=0)] | None = None


class ProjectCreate(Record, frozen=True, kw_only=True):
    """A new project of an org."""

    name: str


class ProjectView(Record, frozen=True, kw_only=True):
    """A project that exists."""

    org: str
    name: str
    created_at: float | None = None
    """None: the project is older than project records, or it is the default project that every org has."""
    created_by: str = ""
    revision: int = 0
    """0: it has no record."""


class ProjectList(Record, frozen=True, kw_only=True):
    """The projects that the caller may see, ordered by org and name."""

    items: tuple[ProjectView, ...]


class QuotaView(Record, frozen=True, kw_only=True):
    """Limits and usage of a project or a whole org. Without a quota, `used` is counted on request."""

    org: str
    project: str
    """Empty: the limits apply to all projects of the org together."""
    limits: QuotaSet
    inherited: QuotaSet = QuotaSet()
    """For a project: the limits of its org, which also apply."""
    used_vms: int
    used: Capacity
    revision: int
    """0: there is no quota."""


# Browsers


class SignIn(Record, frozen=True, kw_only=True):
    """Sign-in to the web UI with exactly one of: name and password, a token, or a ticket of `hostler web`."""

    concealed = frozenset(("password", "token", "ticket"))

    name: Annotated[str, Meta(max_length=255)] | None = None
    password: Annotated[str, Meta(max_length=1024)] | None = None
    token: Annotated[str, Meta(max_length=512)] | None = None
    ticket: Annotated[str, Meta(max_length=512)] | None = None


class BrowserSession(Record, frozen=True, kw_only=True):
    """A session whose token is stored only in a cookie."""

    concealed = frozenset(("csrf",))

    user: UserView
    csrf: str
    """Value of the header `Hostler-Csrf`, required for all requests except reads."""
    expires_at: float


# The audit log


class AuditView(Record, frozen=True, kw_only=True):
    """One entry of the audit log."""

    who: str
    verb: str
    subject: str
    before: int
    """The revision that the write was based on; 0: the key did not exist."""
    after: int
    """The revision of the write; 0: not known, because the store was copied or restored since. Then both numbers refer
    to the previous store."""
    at: float
    source: str
    name: str = ""
    """Display name of the subject, where its key does not contain it; empty: not known, or no longer known."""
    count: int = 1
    """Number of requests that this entry counts: refused requests (`refused.…`) are counted per minute."""


class AuditElsewhere(Record, frozen=True, kw_only=True):
    """Files of the audit log that this server does not have. The server on that host has them."""

    host: str
    folder: str
    first: str
    """The first day, `2026-11-15`."""
    last: str
    lines: int


class AuditPage(Record, frozen=True, kw_only=True):
    """A page of the audit log, ordered by time. A page may be short or empty without being the last."""

    items: tuple[AuditView, ...]
    after: str | None
    elsewhere: tuple[AuditElsewhere, ...] = ()
    """Matching entries may be on these other hosts. Empty: the answer is complete."""

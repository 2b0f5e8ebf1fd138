"""Callers, requests and results of writes, shared by all services."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from hostler.errors import Forbidden, Invalid, Stale
from hostler.model.access import EVERYWHERE, ROLES, Role
from hostler.model.lab import ORG as LABS

if TYPE_CHECKING:
    from hostler.model.inventory import Rights

T = TypeVar("T")

SHARED = {
    "modify_inventory": "nodes and racks serve every org",
    "perform_repairs": "nodes serve every org",
    "inject_faults": "simulated hardware serves every org",
    "step_time": "simulated time is that of every org",
}
"""Rights about resources that belong to no org, and why they require membership everywhere."""
MAX_LIMIT = 1_000
"""Largest number of items on a page."""


class Caller(msgspec.Struct, frozen=True):
    """An authenticated caller. `rights` say which actions are allowed, `memberships` on which projects."""

    name: str
    """The folded name of the account."""
    rights: Rights
    memberships: tuple[str, ...] = ()
    """`*`, `org` or `org/project`."""
    source: str = ""
    """Where the request came from, for the audit log."""
    token: str = ""
    """The id of the token; it does not reveal the token."""
    life: int = 0
    """The revision at which the account was created. It distinguishes a later account of the same name."""

    def sees(self, org: str, project: str) -> bool:
        """Return whether the caller is a member of the project."""
        mine = self.memberships
        return EVERYWHERE in mine or org in mine or f"{org}/{project}" in mine

    def sees_org(self, org: str) -> bool:
        """Return whether the caller is a member of the whole org, and not only of some projects."""
        return EVERYWHERE in self.memberships or org in self.memberships

    def may_change(self, org: str, project: str) -> bool:
        """Return whether the caller may change machines of the project; those of labs require all of the lab org.

        Callers who may not are not shown `user_data`, which may hold passwords, keys or the solutions of a lab.
        """
        return self.rights.modify_workloads and (self.sees_org(org) if org == LABS else self.sees(org, project))

    @property
    def is_administrator(self) -> bool:
        """Return whether the caller manages the accounts of every org. It has no budget, and slots in reserve."""
        return self.rights.manage_accounts and EVERYWHERE in self.memberships

    def require(self, right: str, *, everywhere: bool = False) -> None:
        """Raise Forbidden if the caller lacks this right, or the membership everywhere that it requires.

        Rights on resources that belong to no org (`SHARED`) always require that membership; other rights if
        `everywhere`.
        """
        if not getattr(self.rights, right):
            raise Forbidden(f"{self.name}: the right {right} is missing; ask an administrator for it")
        if (everywhere or right in SHARED) and EVERYWHERE not in self.memberships:
            what = SHARED.get(right, "limits apply to members of an org")
            raise Forbidden(
                f"{self.name}: {what}: that takes {right} and membership in {EVERYWHERE}; ask an administrator"
                f" who is a member of {EVERYWHERE} to do it, or for that membership"
            )

    @property
    def may_deploy(self) -> bool:
        """Return whether the caller may deploy slices. Slices run on every node and have no project."""
        return self.rights.modify_workloads and EVERYWHERE in self.memberships

    def require_deploy(self) -> None:
        """Raise Forbidden if the caller may not deploy."""
        self.require("modify_workloads")
        if not self.may_deploy:
            raise Forbidden(
                f"{self.name}: slices run on every node: that takes modify_workloads and membership in {EVERYWHERE};"
                " ask an administrator"
            )


HOSTLER = Caller("hostler", ROLES[Role.ADMIN], (EVERYWHERE,))
"""The control plane itself, where it acts on its own."""


class Request(msgspec.Struct, frozen=True):
    """A write request."""

    caller: Caller
    key: str | None = None
    """The Idempotency-Key: the same request with the same key is executed once and gets the same response."""
    fingerprint: str = ""
    """Hash of method, path and body: distinguishes a repetition from another request with the same key."""
    if_match: int | None = None
    """The revision that the caller has read; the write happens only if it is still current."""

    def check_match(self, subject: str, present: int) -> None:
        """Raise Stale if the caller read another revision than `present`, that of the record (0: it does not exist)."""
        if self.if_match is not None and self.if_match != present:
            raise Stale(f"{subject}: revision {self.if_match} is not the present one, {present}; read it again")


class Written(msgspec.Struct, Generic[T], frozen=True):
    """The result of a write. `replayed`: it was done before, and this is the response from then."""

    value: T
    revision: int
    """The revision of the record after the write."""
    status: int
    replayed: bool = False


def check_limit(limit: int) -> None:
    """Raise Invalid if the page size is out of range."""
    if not 1 <= limit <= MAX_LIMIT:
        raise Invalid(f"limit {limit}: must be from 1 to {MAX_LIMIT}")

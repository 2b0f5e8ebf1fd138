"""Who asks, what came along with the question, and what a write answers: the same for every door."""

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
"""Rights about what belongs to no org, and why membership everywhere is needed for it."""
MAX_LIMIT = 1_000
"""Of what one page has."""


class Caller(msgspec.Struct, frozen=True):
    """Somebody who was authenticated. `rights` say what they may do, `memberships` to what."""

    name: str
    """The folded name of the account."""
    rights: Rights
    memberships: tuple[str, ...] = ()
    """`*`, `org` or `org/project`."""
    source: str = ""
    """Where the request came from, for the audit."""
    token: str = ""
    """The id of the token; it tells nothing of the token itself."""
    life: int = 0
    """The revision that the account was made in: another of the same name is somebody else."""

    def sees(self, org: str, project: str) -> bool:
        """Whether the project is one of theirs."""
        mine = self.memberships
        return EVERYWHERE in mine or org in mine or f"{org}/{project}" in mine

    def sees_org(self, org: str) -> bool:
        """Whether all of the org is theirs, and not only some of its projects."""
        return EVERYWHERE in self.memberships or org in self.memberships

    def may_change(self, org: str, project: str) -> bool:
        """Whether machines of the project are theirs to change; those of labs are for who has all labs.

        Who may not is not shown what their set-up holds (`user_data`): passwords, keys, a lab's solutions.
        """
        return self.rights.modify_workloads and (self.sees_org(org) if org == LABS else self.sees(org, project))

    @property
    def is_administrator(self) -> bool:
        """Whether they manage the accounts of every org: such callers have no budget, and places in reserve."""
        return self.rights.manage_accounts and EVERYWHERE in self.memberships

    def require(self, right: str, *, everywhere: bool = False) -> None:
        """Forbidden: the caller lacks this one of the `Rights`, or membership everywhere that it takes.

        Rights on what belongs to no org (`SHARED`) always take that membership; other rights if `everywhere`.
        """
        if not getattr(self.rights, right):
            raise Forbidden(f"{self.name}: the right {right} is missing; ask somebody who manages accounts for it")
        if (everywhere or right in SHARED) and EVERYWHERE not in self.memberships:
            what = SHARED.get(right, "limits bound those who are members of an org")
            raise Forbidden(
                f"{self.name}: {what}: that takes {right} and membership in {EVERYWHERE}; ask an administrator"
                f" who is a member of {EVERYWHERE} to do it, or for that membership"
            )

    @property
    def may_deploy(self) -> bool:
        """Whether what runs on every node is theirs to say: slices have no project."""
        return self.rights.modify_workloads and EVERYWHERE in self.memberships

    def require_deploy(self) -> None:
        """Forbidden: the caller may not deploy."""
        self.require("modify_workloads")
        if not self.may_deploy:
            raise Forbidden(
                f"{self.name}: slices run on every node: that takes membership in {EVERYWHERE} beside modify_workloads;"
                " ask somebody who manages accounts"
            )


HOSTLER = Caller("hostler", ROLES[Role.ADMIN], (EVERYWHERE,))
"""The control plane itself, where it acts unasked."""


class Request(msgspec.Struct, frozen=True):
    """A write that somebody asks for."""

    caller: Caller
    key: str | None = None
    """The Idempotency-Key: the same request with the same key is done once, and answered alike."""
    fingerprint: str = ""
    """Of method, path and body: tells a repetition from another request with the same key."""
    if_match: int | None = None
    """The revision that the caller has read; the write happens only if it is still the present one."""

    def check_match(self, subject: str, present: int) -> None:
        """`present`: the revision of what is to be changed, 0 if it is not there. Stale: the caller read another."""
        if self.if_match is not None and self.if_match != present:
            raise Stale(f"{subject}: revision {self.if_match} is not the present one, {present}; read it again")


class Written(msgspec.Struct, Generic[T], frozen=True):
    """A write that is done. `replayed`: it had been done before, and this is the answer that was given then."""

    value: T
    revision: int
    """Of the record that was written, after it."""
    status: int
    replayed: bool = False


def check_limit(limit: int) -> None:
    """Invalid: there is no page of that size."""
    if not 1 <= limit <= MAX_LIMIT:
        raise Invalid(f"limit {limit}: must be from 1 to {MAX_LIMIT}")

"""Rules for granting rights and memberships. Pure.

A caller cannot grant what it lacks, and cannot change an account that has more rights or wider memberships than itself:
setting a password or issuing a token is enough to act as that account.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.errors import Forbidden, Invalid
from hostler.keys.template import MAX_USER, check_part
from hostler.model.access import EVERYWHERE, ROLES, Role
from hostler.model.inventory import Rights

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostler.engine.request import Caller
    from hostler.model.inventory import User

RIGHTS = tuple(name for name in Rights.__struct_fields__ if name != "unknown")


def lacking(held: Rights, wanted: Rights) -> tuple[str, ...]:
    """Return the rights in `wanted` that are not in `held`."""
    return tuple(name for name in RIGHTS if getattr(wanted, name) and not getattr(held, name))


def covers(held: Iterable[str], wanted: str) -> bool:
    """Return whether the memberships `held` include `wanted`."""
    org = wanted.partition("/")[0]
    return any(mine in (EVERYWHERE, wanted, org) for mine in held)


def within_reach(caller: Caller, user: User) -> bool:
    """Return whether the caller has all memberships of the account. Other accounts are treated as nonexistent.

    An account without memberships is visible to members of every org only: a caller with its token or password would
    act as it in any org that it joins later.
    """
    if not user.memberships:
        return EVERYWHERE in caller.memberships
    return all(covers(caller.memberships, membership) for membership in user.memberships)


def check_touch(caller: Caller, user: User) -> None:
    """Raise Forbidden if the account has rights that the caller lacks."""
    missing = lacking(caller.rights, user.rights)
    if missing:
        raise Forbidden(
            f"user {user.name}: may do what {caller.name} may not ({', '.join(missing)});"
            " ask an administrator who has these rights"
        )


def check_gift(caller: Caller, rights: Rights, memberships: Iterable[str]) -> None:
    """Raise Forbidden if the caller would grant what it lacks."""
    missing = lacking(caller.rights, rights)
    if missing:
        raise Forbidden(f"rights: {caller.name} lacks {', '.join(missing)} and cannot grant it")
    outside = [membership for membership in memberships if not covers(caller.memberships, membership)]
    if outside:
        raise Forbidden(f"memberships: {caller.name} is not a member of {outside[0]!r} and cannot grant it")


def check_home_given(caller: Caller, memberships: tuple[str, ...]) -> None:
    """Raise Invalid if a new account would have no membership, so that its creator could not see it."""
    if EVERYWHERE not in caller.memberships and not memberships:
        mine = caller.memberships[0] if caller.memberships else "ORG"
        raise Invalid(f"memberships: {caller.name} creates accounts in its own orgs only; give one, such as {mine!r}")


def check_protected(before: User, after: User) -> None:
    """Raise Forbidden if a protected account would lose something."""
    if not before.protected:
        return
    if not after.enabled:
        raise Forbidden(f"user {before.name}: is protected and cannot be disabled")
    if lacking(after.rights, before.rights):
        raise Forbidden(f"user {before.name}: is protected and cannot lose rights")
    if not all(covers(after.memberships, membership) for membership in before.memberships):
        raise Forbidden(f"user {before.name}: is protected and cannot lose memberships")


def rights_of(role: Role | None, rights: Rights | None) -> Rights | None:
    """Return the requested rights; None: none were requested. Invalid: both a role and rights were given."""
    if role is not None and rights is not None:
        raise Invalid("user: give either a role or rights, not both")
    return ROLES[role] if role is not None else rights


def check_memberships(memberships: tuple[str, ...]) -> tuple[str, ...]:
    """Return the memberships, each once. Invalid: one is neither `*`, `org` nor `org/project`."""
    for membership in memberships:
        if membership == EVERYWHERE:
            continue
        org, slash, project = membership.partition("/")
        check_part(org, "membership: org")
        if org == EVERYWHERE:
            raise Invalid(f"membership {membership!r}: '*' must stand alone, for every org")
        if slash:
            check_part(project, f"membership {org!r}: project", most=MAX_USER)
    return tuple(dict.fromkeys(memberships))

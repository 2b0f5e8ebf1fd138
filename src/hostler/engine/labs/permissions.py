"""What an account may do with labs. Pure.

| caller | may |
|---|---|
| sees `labs/{user}` | see the lab and its events |
| … by the membership `labs/{user}` itself, and has the user's name | start it, stop it, use its terminal: a student |
| … and has `modify_workloads` | all of that, extend it, and send messages to its user: a teacher |

So a student can neither decide how long a lab lives nor create VMs that are not labs. Lab users are case-sensitive and
accounts are not: the name alone, as for a caller who sees all labs, would match every spelling of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.errors import NotFound
from hostler.keys.lab import check_user
from hostler.model.lab import ORG, lab_project
from hostler.model.name import fold

if TYPE_CHECKING:
    from hostler.engine.request import Caller

_RIGHT = "modify_workloads"


def check_seen(caller: Caller, user: str) -> None:
    """Raise NotFound if the caller may not see the user's labs, as if there were none."""
    check_user(user)
    if not caller.sees(ORG, lab_project(user)):
        raise missing(user)


def check_use(caller: Caller, user: str) -> None:
    """Check start, stop and login. Raise Forbidden if it is another user's lab and the permission is missing."""
    check_seen(caller, user)
    if f"{ORG}/{lab_project(user)}" not in caller.memberships or fold(user) != caller.name:
        caller.require(_RIGHT)


def check_change(caller: Caller, user: str) -> None:
    """Check extend and message. Raise Forbidden if the permission is missing, also for one's own lab."""
    check_seen(caller, user)
    caller.require(_RIGHT)


def may_change(caller: Caller) -> bool:
    """Return whether the caller, who may use a lab, may extend it as well."""
    return bool(getattr(caller.rights, _RIGHT))


def missing(user: str) -> NotFound:
    """Return the error for a lab that does not exist or that the caller may not see."""
    return NotFound(f"lab of {user}: not found; see the list of labs")

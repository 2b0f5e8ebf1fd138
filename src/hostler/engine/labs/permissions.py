"""What an account may do about labs. Pure.

| who | may |
|---|---|
| sees `labs/{user}` | see the lab, and what happened to it |
| … by the membership `labs/{user}` itself, and is called as the user | start it, stop it, use its terminal: a student |
| … and has `modify_workloads` | all of that, extend it, and say something to its user: a teacher |

So a student decides neither how long a lab lives, nor makes machines that are no labs. Users of labs are told apart by
case, accounts are not: a name alone, as of somebody who sees all labs, would stand for every spelling of it.
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
    """NotFound: the caller does not see the user's labs, as if there were none."""
    check_user(user)
    if not caller.sees(ORG, lab_project(user)):
        raise missing(user)


def check_use(caller: Caller, user: str) -> None:
    """Start, stop, log in. Forbidden: it is another's lab, and the right to change it is missing."""
    check_seen(caller, user)
    if f"{ORG}/{lab_project(user)}" not in caller.memberships or fold(user) != caller.name:
        caller.require(_RIGHT)


def check_change(caller: Caller, user: str) -> None:
    """Extend, say something. Forbidden: the right is missing, also to one's own lab."""
    check_seen(caller, user)
    caller.require(_RIGHT)


def may_change(caller: Caller) -> bool:
    """Return whether the caller, who may use a lab, may extend it as well."""
    return bool(getattr(caller.rights, _RIGHT))


def missing(user: str) -> NotFound:
    """There is no such lab, or none that the caller sees."""
    return NotFound(f"lab of {user}: not found; look at the list of labs")

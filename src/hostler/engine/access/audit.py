"""Which writes of the audit a caller may see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.engine.access.grant import within_reach
from hostler.engine.history_reader import SKEW
from hostler.keys.access import ORG_QUOTA, PROJECT, QUOTA, TOKEN
from hostler.keys.inventory import USER, WORKLOAD
from hostler.keys.lab import LAB
from hostler.keys.vm import VM
from hostler.model.access import EVERYWHERE
from hostler.model.lab import ORG, lab_project

if TYPE_CHECKING:
    from hostler.engine.access.account_cache import Mirrors
    from hostler.engine.request import Caller
    from hostler.keys.entry import Entry
    from hostler.model.access import Audit


def sees(caller: Caller, written: Entry[Audit], known: Mirrors) -> bool:
    """Whether the write was about a project of the caller's, or about an account within their reach.

    Everything else, also an account or a token that is gone, is for those who belong everywhere.
    """
    audit = written.value
    workload = WORKLOAD.match(audit.subject)
    if workload is not None and EVERYWHERE not in caller.memberships:
        return sees_workload(caller, workload["workload"], written.create_revision, audit.at, known)
    return sees_subject(caller, audit.subject, written.create_revision, known)


def sees_workload(caller: Caller, name: str, revision: int, at: float | None, known: Mirrors) -> bool:
    """Whether what was done to the workload then was about a project of the caller's.

    Its key names no project. What is older than its record was about a namesake, maybe of somebody else: revisions tell
    that, and where a store was filled from another one, all at once, the time does.
    """
    entry = known.workloads.get(workload=name)
    if entry is None or revision < entry.create_revision:
        return False
    if at is not None and at < entry.value.created_at - SKEW:
        return False
    return caller.sees(*entry.value.home)


def sees_subject(caller: Caller, subject: str, revision: int, known: Mirrors) -> bool:
    """The same, of something that was done to the record `subject` in that revision."""
    if EVERYWHERE in caller.memberships:
        return True
    parts = VM.match(subject) or QUOTA.match(subject) or PROJECT.match(subject)
    if parts is not None:
        return caller.sees(parts["org"], parts["project"])
    whole = ORG_QUOTA.match(subject)
    if whole is not None:
        return caller.sees_org(whole["org"])
    lab = LAB.match(subject)
    if lab is not None:
        return caller.sees(ORG, lab_project(lab["user"]))
    token = known.tokens.entries.get(subject) if TOKEN.match(subject) is not None else None
    user = known.users.entries.get(subject if token is None else USER.fill(user=token.value.user))
    # A write from before the account was made was about a namesake, who may have belonged elsewhere.
    if user is None or revision < user.create_revision:
        return False
    return user.parts["user"] == caller.name or within_reach(caller, user.value)

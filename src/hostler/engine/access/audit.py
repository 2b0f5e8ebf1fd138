"""Visibility of audit log entries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.engine.access.grant import within_reach
from hostler.engine.history_reader import SKEW
from hostler.keys.families import ORG_QUOTA, PROJECT, QUOTA, TOKEN, USER, VM, WORKLOAD
from hostler.keys.lab import LAB
from hostler.model.access import EVERYWHERE
from hostler.model.lab import ORG, lab_project

if TYPE_CHECKING:
    from hostler.engine.access.account_cache import Mirrors
    from hostler.engine.request import Caller
    from hostler.keys.entry import Entry
    from hostler.model.access import Audit


def sees(caller: Caller, written: Entry[Audit], known: Mirrors) -> bool:
    """Return whether the write concerns a project of the caller, or an account that the caller may manage.

    Everything else, including deleted accounts and tokens, is visible to members of every org only.
    """
    audit = written.value
    workload = WORKLOAD.match(audit.subject)
    if workload is not None and EVERYWHERE not in caller.memberships:
        return sees_workload(caller, workload["workload"], written.create_revision, audit.at, known)
    return sees_subject(caller, audit.subject, written.create_revision, known)


def sees_workload(caller: Caller, name: str, revision: int, at: float | None, known: Mirrors) -> bool:
    """Return whether a past write to the workload concerned a project of the caller.

    The key of a workload names no project. A write older than its record concerned an earlier workload of the same
    name, possibly of another owner. Revisions show that; in a store that was filled from another one in bulk, the time
    does.
    """
    entry = known.workloads.get(workload=name)
    if entry is None or revision < entry.create_revision:
        return False
    if at is not None and at < entry.value.created_at - SKEW:
        return False
    return caller.sees(*entry.value.home)


def sees_subject(caller: Caller, subject: str, revision: int, known: Mirrors) -> bool:
    """Return whether a write to the record `subject` at that revision concerns the caller."""
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
    # A write from before the account was created concerned an earlier account of that name, possibly elsewhere.
    if user is None or revision < user.create_revision:
        return False
    return user.parts["user"] == caller.name or within_reach(caller, user.value)

"""Which writes of the audit a caller may see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.engine.access.grant import within_reach
from hostler.keys.access import QUOTA, TOKEN
from hostler.keys.inventory import USER
from hostler.keys.vm import VM
from hostler.model.access import EVERYWHERE

if TYPE_CHECKING:
    from hostler.engine.access.known import Mirrors
    from hostler.engine.request import Caller
    from hostler.keys.entry import Entry
    from hostler.model.access import Audit


def sees(caller: Caller, written: Entry[Audit], known: Mirrors) -> bool:
    """Whether the write was about a project of the caller's, or about an account within their reach.

    Everything else, also an account or a token that is gone, is for those who belong everywhere.
    """
    if EVERYWHERE in caller.memberships:
        return True
    subject = written.value.subject
    parts = VM.match(subject) or QUOTA.match(subject)
    if parts is not None:
        return caller.sees(parts["org"], parts["project"])
    token = known.tokens.entries.get(subject) if TOKEN.match(subject) is not None else None
    user = known.users.entries.get(subject if token is None else USER.fill(user=token.value.user))
    # A write from before the account was made was about a namesake, who may have belonged elsewhere.
    if user is None or written.create_revision < user.create_revision:
        return False
    return user.parts["user"] == caller.name or within_reach(caller, user.value)

"""Labs: the names in Redis. Redis is a door, never the truth: nothing here stands in the store."""

from __future__ import annotations

import msgspec

from hostler.errors import Invalid
from hostler.keys.part import check_part

_SPECIAL = frozenset(":*?[]^\\")
"""What would end a name early, or match more than itself in a SCAN."""


def check_user(user: str) -> str:
    """`user`, if it can stand in a name. Invalid: it cannot."""
    check_part(user, "webuserid")
    bad = next((char for char in user if char in _SPECIAL), None)
    if bad is not None:
        raise Invalid(f"webuserid {user!r}: must not hold {bad!r}")
    return user


class LabNames(msgspec.Struct, frozen=True):
    """Every name that Hostler uses in Redis. `prefix` is empty in production, `Test:Xxxx:` in a test namespace."""

    prefix: str = ""

    @property
    def provision(self) -> str:
        """The list of requests for a lab."""
        return f"{self.prefix}vmmanager:provision"

    @property
    def decommission(self) -> str:
        """The list of requests to end one."""
        return f"{self.prefix}vmmanager:decommission"

    @property
    def dead(self) -> str:
        """The list of requests that could not be understood."""
        return f"{self.prefix}vmmanager:dead"

    @property
    def servers(self) -> str:
        """The pattern of all server records, for SCAN."""
        return f"{self.prefix}vmmanager:servers:*"

    def server(self, user: str) -> str:
        """The record of a user's lab."""
        return f"{self.prefix}vmmanager:servers:{check_user(user)}"

    def user_of(self, name: str) -> str:
        """The user whose server record has this name."""
        start = self.prefix + "vmmanager:servers:"
        if not name.startswith(start):
            raise Invalid(f"Redis key {name!r}: it is no server record; those begin with {start}")
        return check_user(name.removeprefix(start))

    def events(self, user: str) -> str:
        """The stream that tells a user's front end what happened."""
        return f"{self.prefix}vmmanager:events:{check_user(user)}"

    def processing(self, queue: str, worker: str) -> str:
        """The list of what a worker has taken from a queue (`provision`, `decommission`) and not acknowledged."""
        if queue not in ("provision", "decommission"):
            raise Invalid(f"queue {queue!r}: must be provision or decommission")
        return f"{self.prefix}vmmanager:processing:{queue}:{check_part(worker, 'worker')}"

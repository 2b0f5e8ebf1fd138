"""Labs: the names in Redis, which is a door and never the truth; and the families of our own in the store."""

from __future__ import annotations

import unicodedata
from contextlib import suppress

import msgspec

from hostler.errors import Invalid
from hostler.keys.key import Key
from hostler.keys.segment import check_part
from hostler.model.lab import LabCatalogue, LabUser, LabWorker

LAB = Key("/hostler/v1/labs/{user:user}", LabUser)
LAB_WORKER = Key("/hostler/v1/lab-workers/{worker}", LabWorker)
"""Attached to the worker's lease: gone means that it may be dead, and that nothing it still sends is written."""
LAB_CATALOGUE = Key("/hostler/v1/lab-catalogues/{name}", LabCatalogue)
"""One, called `default`."""

FIRST = "vmmanager:"
"""What every name in Redis begins with, after the prefix of a test namespace."""
MOST = 255
"""Characters of a web user id."""
_UNPRINTABLE = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))


def check_user(user: str) -> str:
    """`user`, if it is a web user id: printable text of 1 to 255 characters. Invalid: it is none."""
    if not isinstance(user, str) or not user:
        raise Invalid("webuserid: must be a text that is not empty")
    if len(user) > MOST:
        raise Invalid(f"webuserid {user[:80]!r}…: has {len(user)} characters, at most {MOST} are allowed")
    if not (user.isascii() and user.isprintable()):
        barred = next((char for char in user if unicodedata.category(char) in _UNPRINTABLE), None)
        if barred is not None:
            raise Invalid(f"webuserid {user[:80]!r}: must not hold {barred!r}, which cannot be printed")
    return user


def user_of_request(raw: bytes) -> str | None:
    """Return the user of a request; None: it names no valid web user id."""
    with suppress(msgspec.DecodeError, ValueError, RecursionError, Invalid):
        request = msgspec.json.decode(raw)
        user = request.get("webuserid") if isinstance(request, dict) else None
        return check_user(user) if isinstance(user, str) else None
    return None


class LabNames(msgspec.Struct, frozen=True):
    """Every name that Hostler uses in Redis. `prefix` is empty in production, `Test:Xxxx:` in a test namespace.

    A name ends with the web user id as it was sent: a front end makes the same name of it. No family begins as another
    one does, and nothing follows the id, so each name is that of one user in one family.
    """

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

    def generation(self, user: str) -> str:
        """The revision of the store that the user's record, or its absence, was made of."""
        return f"{self.prefix}vmmanager:generation:{check_user(user)}"

    @property
    def generations(self) -> str:
        """The pattern of all of these, for SCAN."""
        return f"{self.prefix}vmmanager:generation:*"

    @property
    def waiting(self) -> str:
        """The sorted set of users whose labs wait, by the time they asked: ZRANK is the position."""
        return f"{self.prefix}vmmanager:waiting"

    @property
    def workers(self) -> str:
        """The set of workers that may hold requests."""
        return f"{self.prefix}vmmanager:workers"

    @property
    def epoch(self) -> str:
        """A random word: when it is gone or another, what was written may be lost."""
        return f"{self.prefix}vmmanager:epoch"

    def busy(self, queue: str) -> str:
        """The hash of users with a request of that queue in work, and of who works it."""
        return f"{self.prefix}vmmanager:busy:{_check_queue(queue)}"

    def next(self, queue: str) -> str:
        """What the lists of a queue begin with that hold the later requests of a user who has one in work."""
        return f"{self.prefix}vmmanager:next:{_check_queue(queue)}:"

    def processing(self, queue: str, worker: str) -> str:
        """The list of what a worker has taken from a queue (`provision`, `decommission`) and not acknowledged."""
        return f"{self.prefix}vmmanager:processing:{_check_queue(queue)}:{check_part(worker, 'worker')}"


def _check_queue(queue: str) -> str:
    if queue not in ("provision", "decommission"):
        raise Invalid(f"queue {queue!r}: must be provision or decommission")
    return queue

"""Labs: the key names in Redis, which is never the source of truth, and the families in the store."""

from __future__ import annotations

import unicodedata
from contextlib import suppress

import msgspec

from hostler.errors import Invalid
from hostler.keys.key import Key
from hostler.keys.template import check_part
from hostler.model.lab import LabCatalogue, LabUser, LabWorker

LAB = Key("/hostler/v1/labs/{user:user}", LabUser)
LAB_WORKER = Key("/hostler/v1/lab-workers/{worker}", LabWorker)
"""Attached to the worker's lease. When it is gone, the worker may be dead, and none of its later writes succeed."""
LAB_CATALOGUE = Key("/hostler/v1/lab-catalogues/{name}", LabCatalogue)
"""There is one, called `default`."""

FIRST = "vmmanager:"
"""Beginning of every name in Redis, after the prefix of a test namespace."""
MOST = 255
"""Maximum length of a web user id in characters."""
_UNPRINTABLE = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))


def check_user(user: str) -> str:
    """Return `user` if it is a valid web user id: printable text of 1 to 255 characters. Invalid: it is not."""
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

    A name ends with the web user id as it was sent, so a front end can build the same name. No family is a prefix of
    another one, and nothing follows the id, so each name belongs to one user in one family.
    """

    prefix: str = ""

    @property
    def provision(self) -> str:
        """The list of requests for a lab."""
        return f"{self.prefix}vmmanager:provision"

    @property
    def decommission(self) -> str:
        """The list of requests to end a lab."""
        return f"{self.prefix}vmmanager:decommission"

    @property
    def dead(self) -> str:
        """The dead-letter queue: requests that could not be parsed."""
        return f"{self.prefix}vmmanager:dead"

    @property
    def servers(self) -> str:
        """The pattern of all server records, for SCAN."""
        return f"{self.prefix}vmmanager:servers:*"

    def server(self, user: str) -> str:
        """The record of a user's lab."""
        return f"{self.prefix}vmmanager:servers:{check_user(user)}"

    def user_of(self, name: str) -> str:
        """Return the user whose server record has this name."""
        start = self.prefix + "vmmanager:servers:"
        if not name.startswith(start):
            raise Invalid(f"Redis key {name!r}: not a server record; those begin with {start}")
        return check_user(name.removeprefix(start))

    def events(self, user: str) -> str:
        """The stream of lab events for a user's front end."""
        return f"{self.prefix}vmmanager:events:{check_user(user)}"

    def generation(self, user: str) -> str:
        """The revision of the store that the user's record, or its absence, was made from."""
        return f"{self.prefix}vmmanager:generation:{check_user(user)}"

    @property
    def generations(self) -> str:
        """The pattern of all generation keys, for SCAN."""
        return f"{self.prefix}vmmanager:generation:*"

    @property
    def waiting(self) -> str:
        """The sorted set of users on the waiting list, by the time of their request: ZRANK is the position."""
        return f"{self.prefix}vmmanager:waiting"

    @property
    def workers(self) -> str:
        """The set of workers that may hold requests."""
        return f"{self.prefix}vmmanager:workers"

    @property
    def epoch(self) -> str:
        """A random text: when it is gone or different, published records may be lost."""
        return f"{self.prefix}vmmanager:epoch"

    def busy(self, queue: str) -> str:
        """The hash of users with a request of that queue in work, and the worker of each."""
        return f"{self.prefix}vmmanager:busy:{_check_queue(queue)}"

    def next(self, queue: str) -> str:
        """Prefix of the lists that hold later requests of users who have a request of that queue in work."""
        return f"{self.prefix}vmmanager:next:{_check_queue(queue)}:"

    def processing(self, queue: str, worker: str) -> str:
        """The list of requests that a worker took from a queue and did not acknowledge."""
        return f"{self.prefix}vmmanager:processing:{_check_queue(queue)}:{check_part(worker, 'worker')}"


def _check_queue(queue: str) -> str:
    if queue not in ("provision", "decommission"):
        raise Invalid(f"queue {queue!r}: must be provision or decommission")
    return queue

"""What a failed request to etcd means: the translation of its errors, and what a full etcd proves.

All known errors of the server are in one table, by their text, because several share a code. An error that is not in it
has an unknown outcome: harmless for a read, `Uncertain` for a write.

etcd executes no write that needs space while its alarm NOSPACE is active: a request that is sent after the alarm was
observed and is answered with "database space exceeded" wrote nothing. The one write that crosses the quota is executed
and gets the same answer, so a request that was sent before the alarm was observed may have been written.
"""

from __future__ import annotations

import enum
import math
import re
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from hostler.drivers.store.etcd import rpc_pb2 as pb
from hostler.drivers.store.etcd.codec import STATUS
from hostler.errors import Damaged, Forbidden, FutureRevision, HostlerError, Invalid, LeaseGone, TooLarge, Unavailable
from hostler.kit.plural import sized
from hostler.ports.store import FULL

if TYPE_CHECKING:
    from hostler.drivers.store.etcd.cluster import Endpoint


class Fate(enum.Enum):
    """The outcome of a request that failed."""

    NOT_SENT = "nothing happened; another member may do better"
    BUSY = "nothing happened; later"
    TOKEN = "nothing happened; the token is no longer good"  # noqa: S105 - not a secret
    FULL = "the database is full"
    COMPACTED = "nothing happened; the revision is compacted"
    EXISTS = "the lease exists already"
    NO_AUTH = "nothing happened; the server knows no users"
    REFUSED = "nothing happened, and never will"
    UNKNOWN = "it may have happened"


_FATES = {
    # Returned before anything is proposed to the cluster.
    "etcdserver: no leader": Fate.NOT_SENT,
    "etcdserver: not capable": Fate.NOT_SENT,
    "etcdserver: rpc not supported for learner": Fate.NOT_SENT,
    "etcdserver: too many requests": Fate.BUSY,
    "etcdserver: invalid auth token": Fate.TOKEN,
    "etcdserver: revision of auth store is old": Fate.TOKEN,
    "etcdserver: user name is empty": Fate.TOKEN,
    "etcdserver: authentication is not enabled": Fate.NO_AUTH,
    # Returned when it is applied, with the same result on every member.
    "etcdserver: mvcc: required revision has been compacted": Fate.COMPACTED,
    "etcdserver: lease already exists": Fate.EXISTS,
    "etcdserver: mvcc: database space exceeded": Fate.FULL,
}
_REFUSALS: dict[str, tuple[type[HostlerError], str]] = {
    "etcdserver: key is not provided": (Invalid, "a key is empty"),
    "etcdserver: duplicate key given in txn request": (Invalid, "the transaction writes a key twice"),
    "etcdserver: too many operations in txn request": (
        TooLarge,
        "more operations than the server allows in one transaction; split it",
    ),
    "etcdserver: request is too large": (TooLarge, "over the server's limit for one request; split it"),
    "etcdserver: mvcc: required revision is a future revision": (FutureRevision, "the revision has not happened yet"),
    "etcdserver: requested lease not found": (LeaseGone, "the lease expired or was revoked; grant a new one"),
    "etcdserver: too large lease TTL": (Invalid, "the ttl is over the server's limit"),
    "etcdserver: permission denied": (Forbidden, "the user has no permission for these keys; ask for a role that has"),
    "etcdserver: authentication failed, invalid user ID or password": (
        Forbidden,
        "wrong user or password; correct them in the store's URL",
    ),
    "etcdserver: corrupt cluster": (Damaged, "the cluster reports corruption; an operator must check its alarms"),
}
_NEVER_SENT = ("failed to connect to all addresses", "DNS resolution failed")


def fate(error: grpc.aio.AioRpcError) -> Fate:
    """Return the outcome of the request."""
    details = error.details() or ""
    known = _FATES.get(details)
    if known is not None:
        return known
    if details in _REFUSALS:
        return Fate.REFUSED
    code = error.code()
    if code is grpc.StatusCode.UNAVAILABLE and details.startswith(_NEVER_SENT):
        return Fate.NOT_SENT
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
        return Fate.REFUSED
    if code is grpc.StatusCode.PERMISSION_DENIED:
        return Fate.REFUSED
    return Fate.UNKNOWN


def refusal(subject: str, error: grpc.aio.AioRpcError) -> HostlerError:
    """Return the error for the fate REFUSED."""
    kind, words = _REFUSALS.get(error.details() or "", (None, ""))
    if kind is not None:
        return kind(f"{subject}: {words}")
    if error.code() is grpc.StatusCode.PERMISSION_DENIED:
        return Forbidden(f"{subject}: the server does not allow it ({error.details()})")
    if "larger than max" in (error.details() or ""):
        return TooLarge(f"{subject}: {error.details()}; split it")
    return Unavailable(f"{subject}: {words_of(error)}")


def words_of(error: grpc.aio.AioRpcError) -> str:
    """Return the error text of the server or connection, in short; without "; ", which precedes advice in messages."""
    return f"{error.code().name}: {(error.details() or 'no details').splitlines()[0].replace('; ', ', ')}"


DEFAULT_QUOTA = 2 * 2**30
"""etcd's default, if `--quota-backend-bytes` is not given."""
_KNOWN_FOR = 10.0
"""Seconds for which an observed alarm counts; after that it may have been cleared elsewhere."""
_FRESH_FOR = 1.0
"""Seconds after which the size is read again."""
_WITHIN = 1.0
_ALARM = re.compile(r"alarm:(\w+)")
ADVICE = "run hostler store repair"


def alarms_of(status: pb.StatusResponse) -> tuple[str, ...]:
    """Return the active alarms, each once."""
    return tuple(sorted({name for text in status.errors for name in _ALARM.findall(text)}))


class Fullness:
    """The observed fullness. `quota`: bytes, if the store's URL names it; servers before 3.6 do not report it."""

    def __init__(self, quota: int | None = None) -> None:
        self._quota = quota
        self._seen_at = -math.inf
        self.said = "etcd's database is full"

    def stands(self, now: float) -> bool:
        """Return whether a request that is sent now certainly writes nothing if it is answered with NOSPACE."""
        return now - self._seen_at < _KNOWN_FOR

    def clear(self) -> None:
        """Record that a write has just succeeded."""
        self._seen_at = -math.inf

    def quota(self, status: pb.StatusResponse) -> int | None:
        """Return the quota in bytes: from the server, else the URL, else etcd's default.

        None: full below the default.
        """
        known = status.dbSizeQuota or self._quota
        assumed = None if FULL in alarms_of(status) and status.dbSize < DEFAULT_QUOTA else DEFAULT_QUOTA
        return known or assumed

    def is_assumed(self, status: pb.StatusResponse) -> bool:
        """Return whether neither the server nor the URL names the quota."""
        return not (status.dbSizeQuota or self._quota)

    async def look(self, endpoint: Endpoint, now: float) -> None:
        """Read alarm and size of a member that has just answered NOSPACE."""
        if now - self._seen_at < _FRESH_FOR:
            return
        try:
            status: pb.StatusResponse = await endpoint.stubs[STATUS.index](pb.StatusRequest(), timeout=_WITHIN)
        except grpc.aio.AioRpcError:
            return
        quota = self.quota(status)
        of = "" if quota is None else f" of {sized(quota)}"
        self.said = f"etcd's database is full ({sized(status.dbSize)}{of})"
        if FULL in alarms_of(status):
            self._seen_at = now

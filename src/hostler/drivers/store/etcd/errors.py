"""Translation of etcd's errors.

All known errors of the server are in one table, by their text, because several share a code. An error that is not in it
has an unknown outcome: harmless for a read, `Uncertain` for a write.
"""

from __future__ import annotations

import enum

import grpc
import grpc.aio

from hostler.errors import Damaged, Forbidden, FutureRevision, HostlerError, Invalid, LeaseGone, TooLarge, Unavailable


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

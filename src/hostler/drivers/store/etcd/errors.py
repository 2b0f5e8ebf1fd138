"""What each of etcd's errors means to the one who called.

Everything the server can say is in one table, by its words, for several share a code. What is not in it is unknown:
harmless for a read, `Uncertain` for a write.
"""

from __future__ import annotations

import enum

import grpc
import grpc.aio

from hostler.errors import Damaged, Forbidden, FutureRevision, HostlerError, Invalid, LeaseGone, TooLarge, Unavailable


class Fate(enum.Enum):
    """What became of a request that got no good answer."""

    NOT_SENT = "nothing happened; another member may do better"
    BUSY = "nothing happened; later"
    TOKEN = "nothing happened; the token is no longer good"  # noqa: S105 - no secret
    FULL = "the database is full"
    COMPACTED = "nothing happened; the revision is compacted"
    EXISTS = "the lease exists already"
    NO_AUTH = "nothing happened; the server knows no users"
    REFUSED = "nothing happened, and never will"
    UNKNOWN = "it may have happened"


_FATES = {
    # Said before anything is proposed to the cluster.
    "etcdserver: no leader": Fate.NOT_SENT,
    "etcdserver: not capable": Fate.NOT_SENT,
    "etcdserver: rpc not supported for learner": Fate.NOT_SENT,
    "etcdserver: too many requests": Fate.BUSY,
    "etcdserver: invalid auth token": Fate.TOKEN,
    "etcdserver: revision of auth store is old": Fate.TOKEN,
    "etcdserver: user name is empty": Fate.TOKEN,
    "etcdserver: authentication is not enabled": Fate.NO_AUTH,
    # Said when it is applied, with the same result on every member.
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
    "etcdserver: permission denied": (Forbidden, "the user has no right to these keys; ask for a role that has"),
    "etcdserver: authentication failed, invalid user ID or password": (
        Forbidden,
        "wrong user or password; correct them in the store's URL",
    ),
    "etcdserver: corrupt cluster": (Damaged, "the cluster reports corruption; an operator must look at its alarms"),
}
_NEVER_SENT = ("failed to connect to all addresses", "DNS resolution failed")


def fate(error: grpc.aio.AioRpcError) -> Fate:
    """What became of the request."""
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
    """The error for the fate REFUSED."""
    kind, words = _REFUSALS.get(error.details() or "", (None, ""))
    if kind is not None:
        return kind(f"{subject}: {words}")
    if error.code() is grpc.StatusCode.PERMISSION_DENIED:
        return Forbidden(f"{subject}: the server does not allow it ({error.details()})")
    if "larger than max" in (error.details() or ""):
        return TooLarge(f"{subject}: {error.details()}; split it")
    return Unavailable(f"{subject}: {words_of(error)}")


def words_of(error: grpc.aio.AioRpcError) -> str:
    """What the server or the connection said, in short; without "; ", which in our own messages begins the advice."""
    return f"{error.code().name}: {(error.details() or 'no details').splitlines()[0].replace('; ', ', ')}"

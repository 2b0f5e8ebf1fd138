"""RFC 9457: the one translator of errors into problem documents, and the list of all of them."""

from __future__ import annotations

import math

import msgspec

from hostler.errors import (
    Closed,
    Conflict,
    Damaged,
    DeadlinePassed,
    Forbidden,
    HostlerError,
    Invalid,
    KeyReused,
    LeadershipLost,
    LeaseGone,
    LockHeld,
    Missed,
    NotFound,
    OverBudget,
    QuotaExceeded,
    Raised,
    Refused,
    Stale,
    TooLarge,
    TooManyTries,
    Unauthenticated,
    Unavailable,
    Uncertain,
)
from hostler.model.api import Problem

MEDIA = b"application/problem+json"
SCHEME = "about:hostler/"


class Sort(msgspec.Struct, frozen=True):
    """A sort of problem. `next` is said where the error itself does not say it."""

    name: str
    status: int
    title: str
    next: str
    retry_after: int | None = None


INVALID = Sort("invalid", 400, "What was asked cannot be", "correct the request")
UNAUTHENTICATED = Sort("unauthenticated", 401, "Nobody knows who asks", "send Authorization: Bearer with a valid token")
FORBIDDEN = Sort("forbidden", 403, "A right is missing", "ask somebody who manages accounts")
CSRF = Sort(
    "csrf", 403, "It does not show that this server's own page asks", "open the page from this server, and reload it"
)
NOT_FOUND = Sort("not-found", 404, "There is no such thing", "check the name; list what there is")
NOT_ALLOWED = Sort("method-not-allowed", 405, "This path has no such method", "use one of those in Allow")
TIMEOUT = Sort("timeout", 408, "The body did not come in time", "send it again, without pauses")
CONFLICT = Sort("conflict", 409, "Somebody else was first", "read again, then retry")
LOCK_HELD = Sort(
    "lock-held", 409, "Another operation holds the lock of the machine", "try again when that operation is done"
)
LAB_REFUSED = Sort(
    "lab-refused", 409, "The rules of labs do not allow it", "see what the user has, and which labs there are"
)
QUOTA = Sort("quota-exceeded", 409, "The project would have more than its quota", "delete something or ask for more")
STALE = Sort("stale", 412, "It has changed since the revision in If-Match", "read again, then retry")
TOO_LARGE = Sort("too-large", 413, "The body is too large", "send less")
MEDIA_TYPE = Sort("media-type", 415, "The body is not JSON", "send Content-Type: application/json")
KEY_REUSED = Sort("idempotency-key-reused", 422, "This Idempotency-Key stands for another request", "take a new key")
TOO_MANY = Sort("too-many-tries", 429, "Slowed down", "wait as long as Retry-After says", 1)
BUDGET = Sort(
    "too-many-requests",
    429,
    "More requests than the budget of the account or the address allows",
    "wait as long as Retry-After says, or ask an administrator for a larger budget",
    1,
)
HEADERS = Sort("headers-too-large", 431, "The headers are too large", "send less")
INTERNAL = Sort("internal", 500, "Hostler is at fault", "report it, with the request's id; see the server's log")
DAMAGED = Sort("damaged", 500, "What is stored cannot be read", "an operator must look: see the server's log")
UNAVAILABLE = Sort("unavailable", 503, "Not now; nothing was written", "try again later", 1)
UNCERTAIN = Sort(
    "uncertain", 503, "It may have been written", "read first, or repeat it with the same Idempotency-Key", 1
)
RAISED = Sort(
    "raised",
    502,
    "What was called failed",
    "see what it says, and what it printed: hostler slice logs GROUP:NAME",
)
DEADLINE = Sort("deadline", 504, "Its time was over before there was an answer", "it may have been done: look first")

SORTS = (
    *(INVALID, UNAUTHENTICATED, FORBIDDEN, NOT_FOUND, NOT_ALLOWED, TIMEOUT, CONFLICT, LAB_REFUSED, QUOTA, STALE),
    *(TOO_LARGE, MEDIA_TYPE, KEY_REUSED, TOO_MANY, BUDGET, HEADERS, INTERNAL, DAMAGED, UNAVAILABLE, UNCERTAIN),
    *(RAISED, DEADLINE, CSRF),
)

_OF: tuple[tuple[type[HostlerError], Sort], ...] = (
    (TooLarge, TOO_LARGE),
    (Invalid, INVALID),
    (LeaseGone, UNAVAILABLE),  # one of our own leases; the caller named none
    (NotFound, NOT_FOUND),
    (Unauthenticated, UNAUTHENTICATED),
    (Forbidden, FORBIDDEN),
    (QuotaExceeded, QUOTA),
    (Damaged, DAMAGED),
    (Closed, UNAVAILABLE),
    (Missed, UNAVAILABLE),
    (KeyReused, KEY_REUSED),
    (Stale, STALE),
    (LockHeld, LOCK_HELD),
    (Conflict, CONFLICT),
    (OverBudget, BUDGET),
    (TooManyTries, TOO_MANY),
    (Unavailable, UNAVAILABLE),
    (LeadershipLost, UNAVAILABLE),
    (DeadlinePassed, DEADLINE),
    (Uncertain, UNCERTAIN),
    (Raised, RAISED),
    (Refused, INVALID),
)
"""The first that fits counts."""


class Refusal(HostlerError):
    """A problem that the door itself finds: no service was asked."""

    def __init__(self, sort: Sort, message: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        super().__init__(message)
        self.sort, self.headers = sort, headers


class Told(msgspec.Struct, frozen=True):
    """A problem, ready to be sent."""

    sort: Sort
    problem: Problem
    headers: tuple[tuple[bytes, bytes], ...] = ()

    @property
    def body(self) -> bytes:
        """The document."""
        return msgspec.json.encode(self.problem)


def tell(error: Exception, *, instance: str = "") -> Told:
    """The problem that an error is. What is at fault inside (500) says nothing of what it was."""
    sort = _sort(error)
    if sort.status == 500:
        detail, advice = sort.title, sort.next
    elif isinstance(error, Raised):  # in the words of the slice, whatever is in them
        detail, advice = str(error), sort.next
    else:
        detail, _, advice = str(error).rpartition("; ")
        if not detail:
            detail, advice = advice, sort.next
    headers: list[tuple[bytes, bytes]] = []
    if sort.retry_after is not None:
        after = error.after if isinstance(error, TooManyTries) else sort.retry_after
        headers.append((b"retry-after", str(max(1, math.ceil(after))).encode()))
    if sort is UNAUTHENTICATED:
        headers.append((b"www-authenticate", b'Bearer realm="hostler"'))
    if isinstance(error, Refusal):
        headers.extend(error.headers)
    problem = Problem(
        type=SCHEME + sort.name,
        title=sort.title,
        status=sort.status,
        detail=_plain(detail),
        next=_plain(advice),
        instance=instance,
    )
    return Told(sort, problem, tuple(headers))


def _sort(error: Exception) -> Sort:
    if isinstance(error, Refusal):
        return error.sort
    return next((sort for kind, sort in _OF if isinstance(error, kind)), INTERNAL)


def _plain(text: str) -> str:
    """Without lone surrogates, which no JSON document can hold."""
    return text if text.isascii() else text.encode(errors="replace").decode()

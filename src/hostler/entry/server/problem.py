"""RFC 9457: the only translation of errors into problem documents, and the list of all problem types."""

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
from hostler.model.control_api import Problem

MEDIA = b"application/problem+json"
SCHEME = "about:hostler/"


class Sort(msgspec.Struct, frozen=True):
    """A type of problem. `next` is used if the error itself gives no advice."""

    name: str
    status: int
    title: str
    next: str
    retry_after: int | None = None


INVALID = Sort("invalid", 400, "The request is not valid", "correct the request")
UNAUTHENTICATED = Sort(
    "unauthenticated", 401, "The caller is not authenticated", "send Authorization: Bearer with a valid token"
)
FORBIDDEN = Sort("forbidden", 403, "A right is missing", "ask an account manager")
CSRF = Sort(
    "csrf",
    403,
    "The request does not come from this server's own page",
    "open the page from this server, and reload it",
)
NOT_FOUND = Sort("not-found", 404, "Not found", "check the name; list what exists")
NOT_ALLOWED = Sort("method-not-allowed", 405, "The path does not support this method", "use one of those in Allow")
TIMEOUT = Sort("timeout", 408, "The body did not arrive in time", "send it again, without pauses")
CONFLICT = Sort("conflict", 409, "Conflict with another change", "read again, then retry")
LOCK_HELD = Sort(
    "lock-held", 409, "Another operation holds the lock of the machine", "try again when that operation is done"
)
LAB_REFUSED = Sort("lab-refused", 409, "The lab rules do not allow it", "see the user's lab and the lab catalogue")
QUOTA = Sort("quota-exceeded", 409, "The project would exceed its quota", "delete something or ask for more")
STALE = Sort("stale", 412, "It has changed since the revision in If-Match", "read again, then retry")
TOO_LARGE = Sort("too-large", 413, "The body is too large", "send less")
MEDIA_TYPE = Sort("media-type", 415, "The body is not JSON", "send Content-Type: application/json")
KEY_REUSED = Sort("idempotency-key-reused", 422, "The Idempotency-Key was used for another request", "take a new key")
TOO_MANY = Sort("too-many-tries", 429, "Too many attempts", "wait as long as Retry-After says", 1)
BUDGET = Sort(
    "too-many-requests",
    429,
    "More requests than the budget of the account or the address allows",
    "wait as long as Retry-After says, or ask an administrator for a larger budget",
    1,
)
HEADERS = Sort("headers-too-large", 431, "The headers are too large", "send less")
INTERNAL = Sort("internal", 500, "Internal error", "report it, with the request's id; see the server's log")
DAMAGED = Sort("damaged", 500, "A stored record cannot be read", "ask an operator to check the server's log")
UNAVAILABLE = Sort("unavailable", 503, "Unavailable; nothing was written", "try again later", 1)
UNCERTAIN = Sort(
    "uncertain", 503, "It may have been written", "read first, or repeat it with the same Idempotency-Key", 1
)
RAISED = Sort(
    "raised",
    502,
    "The called method failed",
    "see the error, and the output: hostler slice logs GROUP:NAME",
)
DEADLINE = Sort("deadline", 504, "The time limit passed before the answer", "it may have been executed: check first")

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
"""The first match applies."""


class Refusal(HostlerError):
    """A problem found by the HTTP layer itself, before any service is called."""

    def __init__(self, sort: Sort, message: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        super().__init__(message)
        self.sort, self.headers = sort, headers


class ProblemResponse(msgspec.Struct, frozen=True):
    """A problem with its headers, ready to be sent."""

    sort: Sort
    problem: Problem
    headers: tuple[tuple[bytes, bytes], ...] = ()

    @property
    def body(self) -> bytes:
        """Return the encoded document."""
        return msgspec.json.encode(self.problem)


def tell(error: Exception, *, instance: str = "") -> ProblemResponse:
    """Return the problem document of an error. An internal error (500) reveals no details."""
    sort = _sort(error)
    if sort.status == 500:
        detail, advice = sort.title, sort.next
    elif isinstance(error, Raised):  # the slice's own text, unchanged
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
    return ProblemResponse(sort, problem, tuple(headers))


def _sort(error: Exception) -> Sort:
    if isinstance(error, Refusal):
        return error.sort
    return next((sort for kind, sort in _OF if isinstance(error, kind)), INTERNAL)


def _plain(text: str) -> str:
    """Replace lone surrogates, which JSON cannot hold."""
    return text if text.isascii() else text.encode(errors="replace").decode()

"""Errors, sorted by what the caller must do next.

HostlerError
├── Refused         stop: the request is wrong
│   ├── Invalid         the request is not valid (a bad key, value, option, URL)
│   │   ├── TooLarge        over the limit of one request
│   │   └── FutureRevision  a revision that has not happened yet
│   ├── NotFound        the named object does not exist
│   │   └── LeaseGone       the lease expired or was revoked
│   ├── Forbidden       the caller has no permission
│   │   └── Unauthenticated  the caller is not known
│   ├── QuotaExceeded   over the quota of the project
│   ├── Damaged         the data on disk cannot be trusted: an operator must look
│   └── Closed          used before it was opened or after it was closed
├── Missed          list again, then watch from there
│   ├── Compacted       the requested history is gone
│   └── Lagged          the reader was too slow for its watch
├── Conflict        read again, then retry; nothing was written
│   ├── Stale           the revision that the caller named is not the current one
│   ├── LockHeld        the lock of a virtual machine is held by another operation
│   └── KeyReused       the same Idempotency-Key came with another request
├── Unavailable     retry later; nothing was written
│   └── TooManyTries    retry after `after` seconds
├── Uncertain       read first; it may have been written
│   └── DeadlinePassed  the deadline passed before there was an answer
├── Raised          the called slice failed by itself: see its message
└── LeadershipLost  stop acting as leader now

Messages read "subject: what happened; what to do next". Drivers translate foreign exceptions; they never leave a
driver.
"""

from __future__ import annotations


class HostlerError(Exception):
    """Base class of all errors that Hostler raises on purpose."""


class Refused(HostlerError):
    """The request is wrong: repeating it does not help."""


class Invalid(Refused):
    """The request is not valid; nothing was changed."""


class TooLarge(Invalid):
    """Over the size limit of one request; nothing was changed."""


class FutureRevision(Invalid):
    """The revision has not happened yet."""


class NotFound(Refused):
    """The named object does not exist."""


class LeaseGone(NotFound):
    """The lease expired or was revoked; the keys attached to it are deleted."""


class Forbidden(Refused):
    """The caller has no permission for this."""


class Unauthenticated(Forbidden):
    """No token, or an invalid one; the error does not say which."""


class QuotaExceeded(Refused):
    """The project would exceed its quota; nothing was changed."""


class Damaged(Refused):
    """The data on disk cannot be trusted; nothing was changed."""


class Closed(Refused):
    """The object was used before it was opened or after it was closed."""


class Missed(HostlerError):
    """Events can no longer be delivered without a gap: list again, then watch from `page.revision + 1`."""

    def __init__(self, message: str, revision: int) -> None:
        super().__init__(message)
        self.revision = revision


class Compacted(Missed):
    """History before `revision` is gone."""

    def __init__(self, revision: int) -> None:
        super().__init__(
            f"history before revision {revision} is compacted; list again and watch from the page's revision + 1",
            revision,
        )


class Lagged(Missed):
    """The watch was not read fast enough and has ended; everything before `revision` was delivered."""

    def __init__(self, prefix: str, revision: int) -> None:
        super().__init__(
            f"watch {prefix!r}: too many events are waiting to be read; watch again from revision {revision}", revision
        )


class Conflict(HostlerError):
    """Another writer was first; nothing was written."""


class Stale(Conflict):
    """The record has changed since the revision that the caller named; nothing was written."""


class LockHeld(Conflict):
    """Another operation holds the lock of a virtual machine; nothing was written."""


class KeyReused(Conflict):
    """An Idempotency-Key that belongs to another request; nothing was written."""


class Unavailable(HostlerError):
    """Could not be reached, or not in time; nothing was written."""


class TooManyTries(Unavailable):
    """Too many requests: try again after `after` seconds; nothing was written."""

    def __init__(self, message: str, after: float) -> None:
        super().__init__(message)
        self.after = after


class OverBudget(TooManyTries):
    """More requests or writes than an account or an address may make; nothing was written."""


class Uncertain(HostlerError):
    """The answer was lost: it may have been written or not.

    `answered`: the store did answer, so nothing is in flight any more, and one read decides.
    """

    def __init__(self, message: str = "", *, answered: bool = False) -> None:
        super().__init__(message)
        self.answered = answered


class DeadlinePassed(Uncertain):
    """The deadline passed before there was an answer: it may have been done or not."""


class Raised(HostlerError):
    """A method of a slice raised. `error` is the class of the exception, `said` its message."""

    def __init__(self, message: str, *, error: str = "", said: str = "") -> None:
        super().__init__(message)
        self.error, self.said = error, said


class LeadershipLost(HostlerError):
    """This process is no longer the leader."""

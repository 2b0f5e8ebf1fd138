"""Problem documents as errors: the client raises the error that the service raised, with the same message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hostler.errors import (
    Conflict,
    Damaged,
    DeadlinePassed,
    Forbidden,
    HostlerError,
    Invalid,
    KeyReused,
    LockHeld,
    NotFound,
    OverBudget,
    QuotaExceeded,
    Raised,
    Stale,
    TooLarge,
    TooManyTries,
    Unauthenticated,
    Unavailable,
    Uncertain,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_BY_TYPE: dict[str, type[HostlerError]] = {
    "invalid": Invalid,
    "too-large": TooLarge,
    "not-found": NotFound,
    "forbidden": Forbidden,
    "unauthenticated": Unauthenticated,
    "quota-exceeded": QuotaExceeded,
    "damaged": Damaged,
    "conflict": Conflict,
    "lock-held": LockHeld,
    "stale": Stale,
    "idempotency-key-reused": KeyReused,
    "unavailable": Unavailable,
    "uncertain": Uncertain,
    "deadline": DeadlinePassed,
    "raised": Raised,
}
_BY_STATUS: dict[int, type[HostlerError]] = {
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    408: Unavailable,
    409: Conflict,
    412: Stale,
    413: TooLarge,
    422: KeyReused,
    501: Unavailable,
    503: Unavailable,
}


class _Problem(msgspec.Struct):
    """The fields of RFC 9457 that any server may send, and our own `next`."""

    type: str = ""
    title: str = ""
    detail: str = ""
    next: str = ""


def error_of(status: int, headers: Mapping[str, str], body: bytes, *, writes: bool) -> HostlerError:
    """Return the error for an answer that is not a success."""
    problem = _read(headers, body)
    message = _sentence(status, problem)
    name = problem.type.rstrip("/").rpartition("/")[2].rpartition(":")[2]
    if status == 429:
        return (OverBudget if name == "too-many-requests" else TooManyTries)(message, _after(headers))
    kind = _BY_TYPE.get(name) or _BY_STATUS.get(status)
    if kind is not None:
        return kind(message)
    if 300 <= status < 400:
        return Invalid(f"server: redirects to {headers.get('Location', 'nowhere')!r}; use that address as url")
    if status < 500:
        return Invalid(message)
    # A server, or a proxy before it, failed during the request: its effect is unknown.
    return Uncertain(f"{message}; it may have been written") if writes else Unavailable(message)


def _read(headers: Mapping[str, str], body: bytes) -> _Problem:
    if "json" in headers.get("Content-Type", ""):
        try:
            return msgspec.json.decode(body, type=_Problem)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            pass
    return _Problem()


def _sentence(status: int, problem: _Problem) -> str:
    said = problem.detail or problem.title
    if not said:
        return f"server: answered {status} without a reason; check the url, and any proxy before the server"
    return f"{said}; {problem.next}" if problem.next and not said.endswith(problem.next) else said


def _after(headers: Mapping[str, str]) -> float:
    try:
        return max(0.0, float(headers.get("Retry-After", "1")))
    except ValueError:
        return 1.0

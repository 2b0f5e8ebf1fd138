"""Translates errors of the Hetzner Cloud client into Hostler's errors."""

from __future__ import annotations

import requests
import urllib3
from hcloud import APIException

from hostler.errors import Forbidden, HostlerError, Refused, TooManyTries, Unavailable, Uncertain

_TOKEN = {"unauthorized", "forbidden", "token_readonly", 401, 403}
_LIMIT = {"rate_limit_exceeded", 429}
_BUSY = {"locked", "conflict", 423, 409}
_FULL = {"resource_unavailable", "placement_error", "no_space_left_in_location"}
_TYPE = {"invalid_server_type", "unsupported_error"}
_ABOUT_TYPE = ("server_type", "server type", "location", "datacenter")
_LATER = {"resource_limit_exceeded", "maintenance"}
_THEIRS = {
    "service_error", "server_error", "unavailable", "timeout", "bad_gateway", "gateway_timeout", "unknown_error",
    "internal_server_error",
}  # fmt: skip
LONGEST = 20.0
"""Maximum seconds to wait after too many calls. Calls become available one by one, long before the limit resets."""


class Busy(Unavailable):
    """Another action is running on the server; nothing changed."""


class Full(Unavailable):
    """No capacity for that server type or location; nothing changed."""


class Unfit(Refused):
    """The server type or location is not accepted; another one may be. Nothing changed."""


class Taken(Unavailable):
    """The name is taken; nothing changed."""


class Absent(Refused):
    """The API answered that the object does not exist."""


def is_full(code: str) -> bool:
    return code in _FULL


def is_limit(error: Exception) -> bool:
    return isinstance(error, APIException) and error.code in _LIMIT


def translated(error: Exception, what: str, *, writes: bool, after: float) -> HostlerError:
    """Translate the error of a call.

    `writes`: the call may have changed something; `after`: seconds until the next call.
    """
    if isinstance(error, APIException):
        return _answered(error, f"{what}: Hetzner Cloud", writes=writes, after=after)
    if isinstance(error, requests.exceptions.RequestException):
        return _cut(error, what, writes=writes)
    kind = Uncertain if writes else Unavailable
    return kind(f"{what}: the answer of Hetzner Cloud cannot be read ({type(error).__name__}); try again")


def _answered(error: APIException, subject: str, *, writes: bool, after: float) -> HostlerError:
    code, said = error.code, f"{error.message} ({error.code})"
    if code in _TOKEN:
        return Forbidden(f"{subject} rejects the token: {said}; set hcloud_token to one with read and write permission")
    if code in _LIMIT:
        return TooManyTries(f"{subject} was called too often; try again in {after:.0f} s", after)
    if code in _BUSY:
        return Busy(f"{subject} is busy with another action: {said}; try again")
    if code in _FULL:
        return Full(f"{subject} has no capacity: {said}")
    if code in _LATER:
        return Unavailable(f"{subject} refuses it at present: {said}; check the limits of the project, and try again")
    if code == "uniqueness_error":
        return Taken(f"{subject} already uses that name: {said}")
    if code in ("not_found", 404):
        return Absent(f"{subject} found nothing: {said}")
    if code in _THEIRS or (isinstance(code, int) and code >= 500):
        if writes:
            return Uncertain(f"{subject} failed: {said}; it may have happened, inspect the machine")
        return Unavailable(f"{subject} failed: {said}; try again")
    if code in _TYPE or (code == "invalid_input" and _is_about_type(error)):
        return Unfit(f"{subject} refuses it: {said}")
    return Refused(f"{subject} refuses it: {said}")


def _is_about_type(error: APIException) -> bool:
    """Return whether the error names a field of type or location, or mentions one in its message."""
    fields = error.details.get("fields") if isinstance(error.details, dict) else None
    names = [str(each.get("name")) for each in fields or () if isinstance(each, dict)]
    return any(word in text.lower() for text in names or [str(error.message)] for word in _ABOUT_TYPE)


def _cut(error: requests.exceptions.RequestException, what: str, *, writes: bool) -> HostlerError:
    reason = error.args[0] if error.args else None
    inner = getattr(reason, "reason", None)
    unsent = isinstance(error, requests.exceptions.ConnectTimeout) or isinstance(
        inner, urllib3.exceptions.NewConnectionError | urllib3.exceptions.ConnectTimeoutError
    )
    if isinstance(error, requests.exceptions.SSLError) or unsent:
        return Unavailable(f"{what}: Hetzner Cloud cannot be reached ({type(inner or error).__name__}); try again")
    if isinstance(error, requests.exceptions.InvalidURL | requests.exceptions.MissingSchema):
        return Refused(f"{what}: the endpoint is not a valid URL; correct hcloud_endpoint")
    if writes:
        return Uncertain(f"{what}: the answer was lost ({type(error).__name__}); it may have happened, inspect it")
    return Unavailable(f"{what}: the answer was lost ({type(error).__name__}); try again")

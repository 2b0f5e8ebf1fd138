"""Foreign errors end here: what each of them means for who has called."""

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
"""Seconds to wait at most when there were too many calls: they come back one by one, long before all have."""


class Busy(Unavailable):
    """Another action goes on there; nothing was changed."""


class Full(Unavailable):
    """There is no room for that, of that kind or at that place; nothing was changed."""


class Unfit(Refused):
    """Not of that kind, or not at that place; another one may do. Nothing was changed."""


class Taken(Unavailable):
    """The name is taken; nothing was changed."""


class Absent(Refused):
    """There is no such thing; explicit."""


def is_full(code: str) -> bool:
    return code in _FULL


def is_limit(error: Exception) -> bool:
    return isinstance(error, APIException) and error.code in _LIMIT


def translated(error: Exception, what: str, *, writes: bool, after: float) -> HostlerError:
    """What a call that failed means. `writes`: it may have changed something; `after`: when calls may be made again."""
    if isinstance(error, APIException):
        return _answered(error, f"{what}: Hetzner Cloud", writes=writes, after=after)
    if isinstance(error, requests.exceptions.RequestException):
        return _cut(error, what, writes=writes)
    kind = Uncertain if writes else Unavailable
    return kind(f"{what}: what Hetzner Cloud answered cannot be read ({type(error).__name__}); try again")


def _answered(error: APIException, subject: str, *, writes: bool, after: float) -> HostlerError:
    code, said = error.code, f"{error.message} ({error.code})"
    if code in _TOKEN:
        return Forbidden(f"{subject} does not take the token: {said}; set hcloud_token to one that may read and write")
    if code in _LIMIT:
        return TooManyTries(f"{subject} was called too often; try again in {after:.0f} s", after)
    if code in _BUSY:
        return Busy(f"{subject} is busy with something else there: {said}; try again")
    if code in _FULL:
        return Full(f"{subject} has no room: {said}")
    if code in _LATER:
        return Unavailable(f"{subject} does not do it at present: {said}; see the limits of the project, and try again")
    if code == "uniqueness_error":
        return Taken(f"{subject} has something of that name: {said}")
    if code in ("not_found", 404):
        return Absent(f"{subject} knows no such thing: {said}")
    if code in _THEIRS or (isinstance(code, int) and code >= 500):
        if writes:
            return Uncertain(f"{subject} failed: {said}; it may have happened, inspect the machine")
        return Unavailable(f"{subject} failed: {said}; try again")
    if code in _TYPE or (code == "invalid_input" and _is_about_type(error)):
        return Unfit(f"{subject} refuses it: {said}")
    return Refused(f"{subject} refuses it: {said}")


def _is_about_type(error: APIException) -> bool:
    """They name the fields, or speak of them."""
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
        return Refused(f"{what}: the address of Hetzner Cloud is none; set hcloud_endpoint right")
    if writes:
        return Uncertain(f"{what}: the answer was lost ({type(error).__name__}); it may have happened, inspect it")
    return Unavailable(f"{what}: the answer was lost ({type(error).__name__}); try again")

"""What Hetzner's API returns: plain values, which make no API call, the states of servers, and errors."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any

import msgspec
import requests
import urllib3
from hcloud import APIException

from hostler.drivers.machines.hetzner import labels
from hostler.errors import Damaged, Forbidden, HostlerError, Refused, TooManyTries, Unavailable, Uncertain
from hostler.model.vm import MachineState

if TYPE_CHECKING:
    from hostler.drivers.machines.hetzner.labels import Card


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """A rented server."""

    id: int
    name: str
    status: str
    """Status as Hetzner Cloud reports it; `state_of` maps it to a machine state."""
    labels: dict[str, str] = {}
    ipv6: str = ""
    """The IPv6 network, a /64."""
    ipv4: str = ""
    type: str = ""
    location: str = ""
    disk_gib: int = 0


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """An asynchronous operation of Hetzner Cloud."""

    id: int
    command: str = ""
    status: str
    """`running`, `success` or `error`; `unknown`: the API no longer has it."""
    code: str = ""
    message: str = ""
    """Why it failed."""

    @property
    def failed(self) -> bool:
        return self.status == "error"


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """An image made from a server."""

    id: int
    vm_hash: str
    name: str
    status: str
    disk_gib: int = 0


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A server type."""

    name: str
    cpus: int
    memory_mib: int
    disk_gib: int
    architecture: str = "x86"
    shared: bool = True
    locations: tuple[str, ...] | None = None
    """Locations that offer it, possibly none; None: not known."""

    def is_in(self, location: str) -> bool:
        """Return whether the type is offered in a location, as far as known; an empty location: in any location."""
        return self.locations is None or (location in self.locations if location else bool(self.locations))


def address_of(server: Server, *, ipv4: bool) -> str:
    """Return the address of a server: the first one of its IPv6 network."""
    if server.ipv6:
        try:
            return str(ipaddress.IPv6Network(server.ipv6, strict=False)[1])
        except ValueError:
            pass
    return server.ipv4 if ipv4 else ""


# Conversions of the client's objects. Call them in the thread of the call: reading those objects can make API calls.


def server_of(found: Any) -> Server:
    net = found.public_net
    location = getattr(found, "location", None)
    return Server(
        id=found.id,
        name=found.name,
        status=str(found.status),
        labels=dict(found.labels or {}),
        ipv6="" if net is None or net.ipv6 is None else str(net.ipv6.ip),
        ipv4="" if net is None or net.ipv4 is None else str(net.ipv4.ip),
        type="" if found.server_type is None else str(found.server_type.name),
        location="" if location is None else str(location.name),
        disk_gib=int(found.primary_disk_size or 0),
    )


def action_of(found: dict[str, Any]) -> Action:
    error = found.get("error") or {}
    return Action(
        id=int(found["id"]),
        command=str(found.get("command", "")),
        status=str(found["status"]),
        code=str(error.get("code", "")),
        message=str(error.get("message", "")),
    )


def bound_action_of(found: Any) -> Action:
    return action_of({"id": found.id, "command": found.command, "status": found.status, "error": found.error})


def snapshot_of(found: Any) -> Snapshot:
    carried = found.labels or {}
    try:
        name = labels.decode_text(carried, labels.SNAPSHOT) or ""
    except Damaged:
        name = ""  # another client changed the label; the snapshot is still deleted with its machine
    return Snapshot(
        id=found.id,
        vm_hash=carried.get(labels.VM_HASH, ""),
        name=name,
        status=str(found.status),
        disk_gib=int(found.disk_size or 0),
    )


def kind_of(found: Any, now: float) -> Kind:
    where = [price["location"] for price in found.prices or ()] or None
    if found.locations:
        where = [each.location.name for each in found.locations if not _is_over(each.deprecation, now)]
    return Kind(
        name=str(found.name),
        cpus=int(found.cores),
        memory_mib=int(float(found.memory) * 1024),
        disk_gib=int(found.disk),
        architecture=str(found.architecture),
        shared=found.cpu_type == "shared",
        locations=None if where is None else tuple(str(name) for name in where),
    )


def _is_over(deprecation: Any, now: float) -> bool:
    """Return whether new servers of a type can no longer be made. A deprecated type stays usable until then."""
    if deprecation is None:
        return False
    after = deprecation.unavailable_after
    return after is None or bool(after.timestamp() <= now)


RUNNING, OFF, STOPPING, DELETING = "running", "off", "stopping", "deleting"

_STATES = {
    RUNNING: MachineState.RUNNING,
    OFF: MachineState.STOPPED,
    STOPPING: MachineState.STOPPING,
    DELETING: MachineState.CREATING,  # its deletion began, so it is incomplete
}


def state_of(status: str, card: Card) -> MachineState:
    """Return the state. `initializing`, `migrating`, `unknown` and unlisted words are STARTING: it may run soon."""
    if card.life:
        return MachineState.CREATING
    return _STATES.get(status, MachineState.STARTING)


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


def translate_error(error: Exception, what: str, *, writes: bool, after: float) -> HostlerError:
    """Translate the error of a call.

    `writes`: the call may have changed something; `after`: seconds until the next call.
    """
    if isinstance(error, APIException):
        return _error_of_answer(error, f"{what}: Hetzner Cloud", writes=writes, after=after)
    if isinstance(error, requests.exceptions.RequestException):
        return _cut(error, what, writes=writes)
    kind = Uncertain if writes else Unavailable
    return kind(f"{what}: the answer of Hetzner Cloud cannot be read ({type(error).__name__}); try again")


def _error_of_answer(error: APIException, subject: str, *, writes: bool, after: float) -> HostlerError:
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

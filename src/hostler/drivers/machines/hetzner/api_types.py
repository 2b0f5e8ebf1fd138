"""Plain values of the API's answers. Reading them makes no API call."""

from __future__ import annotations

import ipaddress
from typing import Any

import msgspec

from hostler.drivers.machines.hetzner import labels
from hostler.errors import Damaged


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """A rented server."""

    id: int
    name: str
    status: str
    """Status as Hetzner Cloud reports it; `status.py` maps it to a machine state."""
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
        name = labels.decoded(carried, labels.SNAPSHOT) or ""
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

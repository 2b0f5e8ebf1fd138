"""What the stand-in has: servers, actions, images, and what happens to them in time.

Written from the public reference of the API (docs.hetzner.cloud) and from what its official client reads and sends.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

LOCATIONS = {"fsn1": 1, "nbg1": 2, "hel1": 3}
TYPES = {
    # name: (cores, memory in GB, disk in GB, architecture, locations)
    "cx23": (2, 4.0, 40, "x86", ("fsn1", "nbg1", "hel1")),
    "cx33": (4, 8.0, 80, "x86", ("fsn1", "nbg1", "hel1")),
    "cpx11": (2, 2.0, 40, "x86", ("fsn1", "nbg1")),
    "cax11": (2, 4.0, 40, "arm", ("fsn1",)),
}
SYSTEM_IMAGES = {"debian-13": 101, "ubuntu-24.04": 102}
_KEY = re.compile(r"([a-z0-9A-Z]([-_.a-z0-9A-Z]{0,251}[a-z0-9A-Z])?/)?[a-z0-9A-Z]([-_.a-z0-9A-Z]{0,61}[a-z0-9A-Z])?")
_VALUE = re.compile(r"([a-z0-9A-Z]([-_.a-z0-9A-Z]{0,61}[a-z0-9A-Z])?)?")
_HOSTNAME = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?")
_CREATE = {
    "name", "server_type", "image", "ssh_keys", "firewalls", "user_data", "labels", "location", "start_after_create",
    "public_net",
}  # fmt: skip


class ApiError(Exception):
    """An error body and its status."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


@dataclass
class Action:
    id: int
    command: str
    server: int
    ends_at: float
    ends: Any = None
    """Called when it ends."""
    status: str = "running"
    error: dict[str, str] | None = None
    fails: tuple[str, str] | None = None


@dataclass
class Server:
    id: int
    name: str
    type: str
    location: str
    image: int
    labels: dict[str, str]
    user_data: str
    ipv6: str
    disk_gib: int
    ipv4: str | None = None
    status: str = "initializing"
    disk: str = ""
    """What a test has put on it."""
    boots: int = 0
    off_at: float | None = None
    """When its guest will have shut down."""
    ssh_keys: tuple[str, ...] = ()
    firewalls: tuple[int, ...] = ()


@dataclass
class Image:
    id: int
    labels: dict[str, str]
    description: str
    disk: str
    disk_gib: int
    status: str = "creating"


@dataclass
class Cloud:
    """All of it. `takes` has the seconds that a command takes; the rest 0."""

    takes: dict[str, float] = field(default_factory=dict)
    by_calls: bool = False
    """Commands take calls instead of seconds. Calls that look at servers and images do not count: so nothing happens
    between two of them."""
    shuts_down_in: float | None = 0.0
    """Seconds that a guest takes to shut down; None: it does not hear."""
    network: str = "2001:db8:{id:x}::/64"
    servers: dict[int, Server] = field(default_factory=dict)
    actions: dict[int, Action] = field(default_factory=dict)
    images: dict[int, Image] = field(default_factory=dict)
    firewalls: dict[str, int] = field(default_factory=lambda: {"labs": 7})
    ssh_keys: tuple[str, ...] = ("teacher",)
    sold_out: set[tuple[str, str]] = field(default_factory=set)
    """Types at locations; `*` stands for any."""
    ends: dict[str, str] = field(default_factory=dict)
    """Types that are old, and the date after which none is made."""
    withdrawn: set[str] = field(default_factory=set)
    """Types that are refused, though they are on the list."""
    most: int = 10_000
    """Servers that the project may have."""
    half_made: list[tuple[str, str]] = field(default_factory=list)
    """Codes and messages with which the next creations fail after they were answered."""
    hidden: set[str] = field(default_factory=set)
    """Servers that are on no page of a list, as when others went while the pages were read."""
    made: int = 0
    """Servers that were ever made."""
    _next: int = 1000
    _calls: int = 0

    # Time

    def now(self) -> float:
        return self._calls if self.by_calls else time.monotonic()

    def count(self) -> None:
        self._calls += 1

    def tick(self) -> None:
        """Let happen what is due."""
        now = self.now()
        for action in [each for each in self.actions.values() if each.status == "running" and each.ends_at <= now]:
            if action.fails is not None:
                action.status = "error"
                action.error = {"code": action.fails[0], "message": action.fails[1]}
            else:
                action.status = "success"
                if action.ends is not None:
                    action.ends()
        for server in self.servers.values():
            if server.off_at is not None and server.off_at <= time.monotonic():
                server.off_at = None
                if server.status == "running":
                    server.status = "off"

    def begin(self, command: str, server: Server, ends: Any = None, fails: tuple[str, str] | None = None) -> Action:
        action = Action(self.number(), command, server.id, self.now() + self.takes.get(command, 0.0), ends, fails=fails)
        self.actions[action.id] = action
        return action

    def number(self) -> int:
        self._next += 1
        return self._next

    def named(self, name: str) -> Server:
        return next(server for server in self.servers.values() if server.name == name)

    # What is asked for

    def create(self, body: dict[str, Any]) -> tuple[Server, Action]:
        if set(body) - _CREATE:
            raise ApiError(400, "invalid_input", f"unknown fields {sorted(set(body) - _CREATE)}")
        name, kind, image = body["name"], body["server_type"], body["image"]
        if not _HOSTNAME.fullmatch(name):
            raise ApiError(400, "invalid_input", f"invalid input in field 'name': {name}")
        if len(body.get("user_data") or "") > 32 * 1024:
            raise ApiError(400, "invalid_input", "invalid input in field 'user_data'")
        check_labels(body.get("labels") or {})
        if kind not in TYPES:
            raise ApiError(422, "invalid_input", "unknown server type")
        if not self._has_image(image):
            raise ApiError(404, "not_found", "image not found")
        location = body.get("location") or "fsn1"
        if location not in LOCATIONS:
            raise ApiError(422, "invalid_input", "unknown location")
        if location not in TYPES[kind][4]:
            raise ApiError(422, "invalid_input", "unsupported location for server type")
        ends = self.ends.get(kind)
        if kind in self.withdrawn or (ends is not None and ends < _date()):
            raise ApiError(422, "invalid_input", "server type is deprecated")
        for key in body.get("ssh_keys") or ():
            if key not in self.ssh_keys:
                raise ApiError(404, "not_found", f"SSH key {key} not found")
        if any(server.name == name for server in self.servers.values()):
            raise ApiError(409, "uniqueness_error", "server name is already used")
        if len(self.servers) >= self.most:
            raise ApiError(403, "resource_limit_exceeded", "server limit reached")
        if {(kind, location), (kind, "*"), ("*", location), ("*", "*")} & self.sold_out:
            raise ApiError(412, "resource_unavailable", "error during placement")
        return self._made(body, kind, location)

    def _made(self, body: dict[str, Any], kind: str, location: str) -> tuple[Server, Action]:
        number = self.number()
        image = self.images.get(body["image"]) if isinstance(body["image"], int) else None
        server = Server(
            number,
            body["name"],
            kind,
            location,
            image.id if image else 101,
            dict(body.get("labels") or {}),
            body.get("user_data") or "",
            self.network.format(id=number),
            TYPES[kind][2],
            ipv4=f"192.0.2.{number % 250 + 1}" if body["public_net"]["enable_ipv4"] else None,
            disk=image.disk if image else "",
            ssh_keys=tuple(body.get("ssh_keys") or ()),
            firewalls=tuple(each["firewall"] for each in body.get("firewalls") or ()),
        )
        self.servers[number] = server
        self.made += 1
        fails = self.half_made.pop(0) if self.half_made else None

        def done() -> None:
            server.status = "off"
            if body.get("start_after_create", True):
                self._on(server)

        return server, self.begin("create_server", server, done, fails)

    def act(self, server: Server, verb: str, body: dict[str, Any]) -> tuple[Action, Image | None]:
        if any(action.server == server.id and action.status == "running" for action in self.actions.values()):
            raise ApiError(423, "locked", "server is locked")
        image = None
        match verb:
            case "poweron":
                server.status = "starting" if server.status == "off" else server.status
                action = self.begin("start_server", server, lambda: self._on(server))
            case "poweroff":
                server.status = "stopping" if server.status == "running" else server.status
                action = self.begin("stop_server", server, lambda: _set_off(server))
            case "shutdown":
                if self.shuts_down_in is not None:
                    server.off_at = time.monotonic() + self.shuts_down_in
                action = self.begin("shutdown_server", server)
            case "reset":
                action = self.begin("reset_server", server, lambda: self._on(server, again=True))
            case "rebuild":
                if not self._has_image(body["image"]):
                    raise ApiError(404, "not_found", "image not found")
                disk = self.images[body["image"]].disk
                server.status = "rebuilding"
                action = self.begin("rebuild_server", server, lambda: self._rebuilt(server, disk))
            case "change_type":
                action = self._change_type(server, body)
            case "create_image":
                check_labels(body.get("labels") or {})
                image = Image(self.number(), body["labels"], body["description"], server.disk, server.disk_gib)
                made = self.images[image.id] = image
                action = self.begin("create_image", server, lambda: setattr(made, "status", "available"))
            case _:
                raise ApiError(404, "not_found", f"no action {verb}")
        return action, image

    def delete(self, server: Server) -> Action:
        if any(action.server == server.id and action.status == "running" for action in self.actions.values()):
            raise ApiError(423, "locked", "server is locked")
        server.status = "deleting"
        return self.begin("delete_server", server, lambda: self.servers.pop(server.id, None))

    def _has_image(self, image: str | int) -> bool:
        found = self.images.get(image) if isinstance(image, int) else None
        return image in SYSTEM_IMAGES or (found is not None and found.status == "available")

    def _on(self, server: Server, *, again: bool = False) -> None:
        if again or server.status != "running":
            server.boots += 1
        server.status, server.off_at = "running", None

    def _rebuilt(self, server: Server, disk: str) -> None:
        server.disk = disk
        self._on(server, again=True)

    def _change_type(self, server: Server, body: dict[str, Any]) -> Action:
        kind = body["server_type"]
        if server.status != "off":
            raise ApiError(422, "server_not_stopped", "server must be stopped")
        if kind not in TYPES or server.location not in TYPES[kind][4] or TYPES[kind][2] < server.disk_gib:
            raise ApiError(422, "invalid_server_type", "server type cannot be used")
        if {(kind, server.location), (kind, "*"), ("*", "*")} & self.sold_out:
            raise ApiError(412, "resource_unavailable", "error during placement")

        def done() -> None:
            server.type = kind
            if body["upgrade_disk"]:
                server.disk_gib = TYPES[kind][2]

        return self.begin("change_server_type", server, done)


def _set_off(server: Server) -> None:
    server.status, server.off_at = "off", None


def check_labels(labels: dict[str, str]) -> None:
    for key, value in labels.items():
        if not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
            raise ApiError(400, "invalid_input", f"invalid input in field 'labels': {key}={value}")


def selected(labels: dict[str, str], selector: str) -> bool:
    for part in filter(None, selector.split(",")):
        if "!=" in part:
            key, _, value = part.partition("!=")
            fits = labels.get(key) != value
        elif "=" in part:
            key, _, value = part.replace("==", "=").partition("=")
            fits = labels.get(key) == value
        else:
            fits = part[1:] not in labels if part.startswith("!") else part in labels
        if not fits:
            return False
    return True


# As JSON


def shown_location(name: str) -> dict[str, Any]:
    return {
        "id": LOCATIONS[name], "name": name, "description": name, "country": "DE", "city": name, "latitude": 1.0,
        "longitude": 1.0, "network_zone": "eu-central",
    }  # fmt: skip


def shown_type(name: str, ends: str | None = None) -> dict[str, Any]:
    cores, memory, disk, architecture, locations = TYPES[name]
    old = ends and {"announced": "2026-01-01T00:00:00+00:00", "unavailable_after": ends}
    return {
        "id": list(TYPES).index(name) + 1, "name": name, "description": name.upper(), "category": "cost-optimized",
        "cores": cores, "memory": memory, "disk": disk, "deprecated": False, "deprecation": None,
        "storage_type": "local", "cpu_type": "shared", "architecture": architecture,
        "prices": [{"location": each, "price_hourly": {"net": "1", "gross": "1"}} for each in locations],
        "locations": [
            {"id": LOCATIONS[each], "name": each, "deprecation": old, "available": not old, "recommended": True}
            for each in locations
        ],
    }  # fmt: skip


def shown_server(server: Server) -> dict[str, Any]:
    ipv4 = None if server.ipv4 is None else {"id": 1, "ip": server.ipv4, "blocked": False, "dns_ptr": "x"}
    return {
        "id": server.id, "name": server.name, "status": server.status, "created": _date(),
        "public_net": {
            "ipv4": ipv4, "ipv6": {"id": 2, "ip": server.ipv6, "blocked": False, "dns_ptr": []}, "floating_ips": [],
            "firewalls": [{"id": each, "status": "applied"} for each in server.firewalls],
        },
        "private_net": [], "server_type": shown_type(server.type), "location": shown_location(server.location),
        "image": None, "iso": None, "rescue_enabled": False, "locked": False, "backup_window": None,
        "outgoing_traffic": 0, "ingoing_traffic": 0, "included_traffic": 0,
        "protection": {"delete": False, "rebuild": False}, "labels": server.labels, "volumes": [],
        "load_balancers": [], "primary_disk_size": server.disk_gib, "placement_group": None,
    }  # fmt: skip


def shown_action(action: Action) -> dict[str, Any]:
    return {
        "id": action.id, "command": action.command, "status": action.status,
        "progress": 0 if action.status == "running" else 100, "started": _date(),
        "finished": None if action.status == "running" else _date(),
        "resources": [{"id": action.server, "type": "server"}], "error": action.error,
    }  # fmt: skip


def shown_image(image: Image) -> dict[str, Any]:
    return {
        "id": image.id, "type": "snapshot", "status": image.status, "name": None, "description": image.description,
        "image_size": 1.0, "disk_size": image.disk_gib, "created": _date(), "created_from": None, "bound_to": None,
        "os_flavor": "debian", "os_version": "13", "rapid_deploy": False, "protection": {"delete": False},
        "deprecated": None, "labels": image.labels, "deleted": None, "architecture": "x86",
    }  # fmt: skip


def _date() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

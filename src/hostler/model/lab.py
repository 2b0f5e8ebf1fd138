"""Labs: as the front end speaks of them through Redis (requests in, one record per user out), and as we keep them.

A lab is a virtual machine with an expiry: org `labs`, project = the web user id. What is true of a user's lab stands in
one record of the store, `LabUser`; what stands in Redis is made of it, and can be made again.
"""

from __future__ import annotations

import datetime as dt
import heapq
import re
from typing import Annotated

from msgspec import UNSET, Meta, UnsetType, field

from hostler.model.record import OpenEnum, Record
from hostler.model.vm import Cpus, DiskGib, LoginName, MemoryMib, SshKey

WebUserId = Annotated[str, Meta(min_length=1, max_length=255)]
LabId = Annotated[int, Meta(ge=1, le=2**31 - 1)]
UtcTime = Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$(?!\n)")]


class LabRequest(Record, frozen=True, kw_only=True):
    """In `vmmanager:provision`."""

    webuserid: WebUserId
    lab_id: LabId = field(name="labId")


class LabDecommission(Record, frozen=True, kw_only=True):
    """In `vmmanager:decommission`. A lab id names that lab alone; no lab id, or null, names the lab the user has."""

    webuserid: WebUserId
    lab_id: LabId | UnsetType | None = field(name="labId", default=UNSET)


class LabStatus(OpenEnum):
    """The normalised life of a lab's machine."""

    PROVISIONING = "provisioning"
    RUNNING = "running"
    STOPPING = "stopping"


class LabServer(Record, frozen=True, kw_only=True):
    """At `vmmanager:servers:{webuserid}`: these nine fields, in this order. `address` is empty until there is one."""

    user: str
    address: str
    status: LabStatus
    available: bool
    cloud_status: str = field(name="cloudStatus")
    server_id: str = field(name="serverId")
    expires_at: UtcTime = field(name="expiresAt")
    web_user_id: WebUserId = field(name="webUserId")
    lab_id: LabId = field(name="labId")

    @property
    def expires(self) -> float:
        """When it expires, in seconds since 1970."""
        return dt.datetime.fromisoformat(self.expires_at).timestamp()


_LAST = dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC).timestamp()


def utc_time(wall: float) -> str:
    """Seconds since 1970 as the record has them: whole seconds, UTC, with a `Z` at the end."""
    within = min(max(wall, 0.0), _LAST)  # what no calendar has is the first or the last that it has
    return dt.datetime.fromtimestamp(int(within), dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# As we keep them

ORG = "labs"
"""Of every lab's machine; its project is the web user id, as `lab_project` writes it."""
POOL_ORG = "labs-pool"
"""Of machines that are ready ahead; the project is the lab id. A claim moves one into `labs/{user}`."""
LAB_LABEL, USER_LABEL, SHAPE_LABEL = "lab", "webuserid", "shape"
"""Labels of a lab's machine: the lab id, who has it, and of which shape of the catalogue it was made (its digest)."""
REDIS_DOOR = "redis"
"""Of labs that were asked for through the queues: the front end connects to port 22, and nowhere else."""
NEWS_KEPT = 16
"""Of a user; and as many messages."""
WAITS = 86400.0
"""Seconds after its request at which a lab that waits for its turn is shown to expire. It has no end yet; what is shown
must not be over while it waits, or whoever cleans up by it would end the lab before it began."""


_NOT_IN_A_PROJECT = re.compile(r"[/*^]")
_ESCAPED = re.compile(r"\^([0-9A-F]{2})")


def lab_project(user: str) -> str:
    """Return the project of a user's lab: the web user id, with `^xx` for what no project may hold.

    `/` would end the project in a key, `*` stands for every project, and `.` and `..` mean something in paths. Ids
    without these and without `^` are their own project. No two users have one project.
    """
    if user in (".", ".."):
        return user.replace(".", "^2E")
    return _NOT_IN_A_PROJECT.sub(lambda found: f"^{ord(found[0]):02X}", user)


def lab_user(project: str) -> str:
    """Return the web user id whose lab has this project; what `lab_project` never returns is returned as it is."""
    user = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), project)
    return user if lab_project(user) == project else project


class LabPhase(OpenEnum):
    """How far a lab is."""

    WAITING = "waiting"
    """Too many run. It has no machine yet; the order is that of `requested_at`."""
    PROVISIONING = "provisioning"
    """It has a machine, which was never available yet."""
    RUNNING = "running"
    """It was available at least once."""
    STOPPING = "stopping"
    """Its machine goes; then the lab is gone, or the next one begins (`again`)."""


class LabEvent(OpenEnum):
    """What a student can be told."""

    REQUESTED = "requested"
    WAITING = "waiting"
    STARTED = "started"
    """It has a machine."""
    AVAILABLE = "available"
    EXTENDED = "extended"
    EXPIRES_SOON = "expires-soon"
    EXPIRED = "expired"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    REFUSED = "refused"
    """A start that was not taken: `reason` says why."""
    IGNORED = "ignored"
    """A stop that was about another lab, or about none."""
    ALREADY = "already"
    """What was asked for is so."""
    MESSAGE = "message"
    """Somebody who looks after labs says something to its user: `reason` is what."""


class LabNews(Record, frozen=True, kw_only=True):
    """Something that happened. `number` grows by one for each of a user."""

    number: Annotated[int, Meta(ge=1)]
    at: float
    event: LabEvent
    lab_id: LabId | None = field(name="labId", default=None)
    reason: str = ""


class Lab(Record, frozen=True, kw_only=True):
    """A lab that a user has, or is about to have or to lose."""

    lab_id: LabId = field(name="labId")
    generation: Annotated[int, Meta(ge=1)]
    """Each lab of a user has a higher one than the one before; what belongs to an older one writes nothing."""
    phase: LabPhase
    requested_at: float
    life: float
    """Seconds from the time it has a machine, and a node that has room for it."""
    grace: float = 0.0
    """Seconds after `expires_at` in which it is still there."""
    expires_at: float | None = None
    """None while it waits."""
    provisioned_by: float | None = None
    """When it counts as failed if it is not available. None: never yet, for it waits or no node has room for it."""
    vm: str = ""
    """The id of its machine; empty: it has none."""
    user: str = ""
    """As whom one logs in."""
    address: str = ""
    port: int = 22
    available: bool = False
    machine_runs: bool = False
    cloud_status: str = ""
    """In the provider's own words."""
    server_id: str = ""
    """The provider's id of its machine."""
    warned: bool = False
    """That it expires soon was said."""
    detail: str = ""
    """What it waits for."""
    ending: LabEvent | None = None
    """While it stops: what is told when it is gone (`stopped`, `expired`, `failed`)."""
    ending_reason: str = ""
    again: LabId | None = None
    """While it stops: the lab that is started once it is gone."""
    own: bool = False
    """Its user started it (or `again`, if there is one), who has so much of it a day (`LabTemplate.per_day`)."""
    terminal_at: float | None = None
    """When a terminal of it was last open, if the lab ends with its terminal; None: none was opened yet."""
    door: str = ""
    """Through which it was asked for (or `again` was, if there is one): `REDIS_DOOR`; empty: any other."""

    def server(self, web_user_id: str) -> LabServer:
        """What the front end reads. It connects to port 22: a machine that answers elsewhere is not there for it."""
        status = LabStatus.RUNNING if self.machine_runs else LabStatus.PROVISIONING
        stopping, reachable = self.phase is LabPhase.STOPPING, self.port == 22
        return LabServer(
            user=self.user,
            address=self.address if reachable else "",
            status=LabStatus.STOPPING if stopping else status,
            available=self.available and reachable and not stopping,
            cloud_status=self.cloud_status or self.phase.value,
            server_id=self.server_id,
            expires_at=utc_time(self.requested_at + WAITS if self.expires_at is None else self.expires_at),
            web_user_id=web_user_id,
            lab_id=self.lab_id,
        )


class LabUse(Record, frozen=True, kw_only=True):
    """How much of a lab its user has had on a day."""

    day: int
    """Days since 1970, UTC."""
    seconds: float


class LabUser(Record, frozen=True, kw_only=True):
    """`/hostler/v1/labs/{user}`: all that is known of a user's lab. Stays for a day after the last lab is gone."""

    user: WebUserId
    generation: Annotated[int, Meta(ge=0)] = 0
    """Of the last lab."""
    lab: Lab | None = None
    worked: dict[str, str] = field(default_factory=dict)
    """By queue: the token of the last request that was worked. One that is delivered again is known by it."""
    worked_at: dict[str, float] = field(default_factory=dict)
    """By queue that has a rate limit: when its last request was worked."""
    news: tuple[LabNews, ...] = ()
    """The last of them."""
    messages: tuple[LabNews, ...] = ()
    """The last that were said to the user. Apart from the news: releases that do not know them keep them unread, and
    many of them push no news out. Numbers are counted over both."""
    used: dict[str, LabUse] = field(default_factory=dict)
    """By lab id: what the user has had of it today."""
    changed_at: float

    @property
    def events(self) -> tuple[LabNews, ...]:
        """What the user is told: news and messages, oldest first."""
        if not self.messages:
            return self.news
        return tuple(heapq.merge(self.news, self.messages, key=lambda one: (one.number, one.at)))

    @property
    def last_number(self) -> int:
        """Of news and messages; 0: there are none."""
        return max(one.number for one in (*self.news[-1:], *self.messages[-1:])) if self.news or self.messages else 0


class LabWorker(Record, frozen=True, kw_only=True):
    """`/hostler/v1/lab-workers/{worker}`: attached to its lease. Every write of a worker compares it."""

    started_at: float
    source: str = ""
    """Where it runs, for people."""


class LabTemplate(Record, frozen=True, kw_only=True):
    """What a lab is made of."""

    title: str = ""
    image: str = ""
    """The default image of the provider if empty."""
    cpus: Cpus = 1
    memory_mib: MemoryMib = 256
    disk_gib: DiskGib = 0
    user: LoginName = "student"
    ssh_keys: tuple[SshKey, ...] = ()
    user_data: str = ""
    """For cloud-init."""
    life: Annotated[float, Meta(gt=0)] = 30 * 60.0
    grace: Annotated[float, Meta(ge=0)] = 0.0
    warn: Annotated[float, Meta(ge=0)] = 300.0
    """Seconds before its end at which its user is told."""
    per_day: Annotated[float, Meta(gt=0)] | None = None
    """Seconds that users have of it each day (UTC) where they start it themselves; None: as many as `life`."""
    provider: str = ""
    """The kind of machines (`qemu`, `hetzner`, `simulated`); any if empty."""
    at_once: Annotated[int, Meta(ge=1)] | None = None
    """How many may run at once; None: any number."""
    warm: Annotated[int, Meta(ge=0, le=1000)] = 0
    """How many machines are kept ready ahead."""
    end_with_terminal: bool = False
    """It ends when its last terminal has been closed for as long as one can be resumed."""


class LabCatalogue(Record, frozen=True, kw_only=True):
    """`/hostler/v1/lab-catalogues/default`: which labs there are. Written by the leader from its `labs.toml`."""

    labs: dict[str, LabTemplate] | None = None
    """By lab id; None: every lab id gets the default."""
    default: LabTemplate = LabTemplate()
    at_once: Annotated[int, Meta(ge=1)] | None = None
    """How many labs may run at once, of all kinds."""

    def find(self, lab_id: int) -> LabTemplate | None:
        """What the lab is made of; None: there is no such lab."""
        return self.default if self.labs is None else self.labs.get(str(lab_id))

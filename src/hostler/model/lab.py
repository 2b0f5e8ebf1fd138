"""Labs: the front end's Redis messages (requests in, one record per user out) and the store's own records.

A lab is a VM with an expiry, in org `labs` and a project named after the web user id. The store record `LabUser` is the
source of truth for a user's lab. The Redis record is derived from it and can be rebuilt.
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
    """A message in `vmmanager:provision`."""

    webuserid: WebUserId
    lab_id: LabId = field(name="labId")


class LabDecommission(Record, frozen=True, kw_only=True):
    """A message in `vmmanager:decommission`.

    With a lab id it concerns only that lab. Without one, or with null, it concerns the lab that the user has.
    """

    webuserid: WebUserId
    lab_id: LabId | UnsetType | None = field(name="labId", default=UNSET)


class LabStatus(OpenEnum):
    """Normalised state of a lab's VM."""

    PROVISIONING = "provisioning"
    RUNNING = "running"
    STOPPING = "stopping"


class LabServer(Record, frozen=True, kw_only=True):
    """`vmmanager:servers:{webuserid}`: these nine fields, in this order. `address` is empty until it is known."""

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
        """Return the expiry in seconds since 1970."""
        return dt.datetime.fromisoformat(self.expires_at).timestamp()


_LAST = dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC).timestamp()


def utc_time(wall: float) -> str:
    """Format seconds since 1970 for the record: whole seconds, UTC, with a final `Z`."""
    within = min(max(wall, 0.0), _LAST)  # clamp to the range that datetime supports
    return dt.datetime.fromtimestamp(int(within), dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# Store records

ORG = "labs"
"""Org of every lab VM. The project is the web user id, as encoded by `lab_project`."""
POOL_ORG = "labs-pool"
"""Org of warm pool VMs; the project is the lab id. A claim moves a VM into `labs/{user}`."""
LAB_LABEL, USER_LABEL, SHAPE_LABEL = "lab", "webuserid", "shape"
"""Labels of a lab VM: the lab id, the user, and the digest of the catalogue template that it was created from."""
REDIS_DOOR = "redis"
"""Origin of labs requested through the queues. The front end connects to port 22 only."""
NEWS_KEPT = 16
"""Maximum number of news entries per user; also the maximum number of messages."""
WAITS = 86400.0
"""Seconds after its request at which a waiting lab is shown to expire. A waiting lab has no expiry yet. The displayed
time must lie in the future, or a client that cleans up by it would end the lab before it starts."""


_NOT_IN_A_PROJECT = re.compile(r"[/*^]")
_ESCAPED = re.compile(r"\^([0-9A-F]{2})")


def lab_project(user: str) -> str:
    """Return the project of a user's lab: the web user id, with `^xx` for characters not allowed in a project.

    `/` would end the project in a key, `*` means every project, and `.` and `..` have a meaning in paths. An id without
    these and without `^` is its own project. No two users share a project.
    """
    if user in (".", ".."):
        return user.replace(".", "^2E")
    return _NOT_IN_A_PROJECT.sub(lambda found: f"^{ord(found[0]):02X}", user)


def lab_user(project: str) -> str:
    """Return the web user id of a lab project; a text that `lab_project` never returns is returned unchanged."""
    user = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), project)
    return user if lab_project(user) == project else project


class LabPhase(OpenEnum):
    """Phase of a lab."""

    WAITING = "waiting"
    """The limit of concurrent labs is reached. The lab has no VM yet; the order is by `requested_at`."""
    PROVISIONING = "provisioning"
    """The lab has a VM that has not been available yet."""
    RUNNING = "running"
    """The VM was available at least once."""
    STOPPING = "stopping"
    """The VM is being removed. Then the lab ends, or the next one starts (`again`)."""


class LabEvent(OpenEnum):
    """Events reported to the user of a lab."""

    REQUESTED = "requested"
    WAITING = "waiting"
    STARTED = "started"
    """The lab has a VM."""
    AVAILABLE = "available"
    EXTENDED = "extended"
    EXPIRES_SOON = "expires-soon"
    EXPIRED = "expired"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    REFUSED = "refused"
    """A start was refused; `reason` says why."""
    IGNORED = "ignored"
    """A stop that concerned another lab, or no lab."""
    ALREADY = "already"
    """The requested state was already reached."""
    MESSAGE = "message"
    """A message from lab staff to the user; `reason` holds the text."""


class LabNews(Record, frozen=True, kw_only=True):
    """One event. `number` grows by one with each event of a user."""

    number: Annotated[int, Meta(ge=1)]
    at: float
    event: LabEvent
    lab_id: LabId | None = field(name="labId", default=None)
    reason: str = ""


class Lab(Record, frozen=True, kw_only=True):
    """The current lab of a user, in any phase."""

    lab_id: LabId = field(name="labId")
    generation: Annotated[int, Meta(ge=1)]
    """Higher for each new lab of a user. Work for an older generation must not write."""
    phase: LabPhase
    requested_at: float
    life: float
    """Lifetime in seconds, counted from when the lab has a VM and a node with room for it."""
    grace: float = 0.0
    """Seconds after `expires_at` for which the lab keeps running."""
    expires_at: float | None = None
    """None while the lab waits."""
    provisioned_by: float | None = None
    """Deadline to become available, after which the lab fails. None: not set, while it waits or has no node."""
    vm: str = ""
    """The id of its VM; empty: none."""
    user: str = ""
    """Login user."""
    address: str = ""
    port: int = 22
    available: bool = False
    machine_runs: bool = False
    cloud_status: str = ""
    """State in the provider's own words."""
    server_id: str = ""
    """The provider's id of the machine."""
    warned: bool = False
    """The user has been warned that the lab expires soon."""
    detail: str = ""
    """What the lab waits for."""
    ending: LabEvent | None = None
    """While stopping: the event to report at the end (`stopped`, `expired`, `failed`)."""
    ending_reason: str = ""
    again: LabId | None = None
    """While stopping: the lab to start afterwards."""
    own: bool = False
    """The user started it (or `again`, if set), so it counts against the daily limit (`LabTemplate.per_day`)."""
    terminal_at: float | None = None
    """If the lab ends with its terminal: when a terminal was last open; None: none was opened yet."""
    door: str = ""
    """How the lab (or `again`, if set) was requested: `REDIS_DOOR`; empty: any other way."""

    def server(self, web_user_id: str) -> LabServer:
        """Return the record for the front end. It connects to port 22, so a VM on another port is unavailable."""
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
    """Usage of a lab by its user on one day."""

    day: int
    """Days since 1970, UTC."""
    seconds: float


class LabUser(Record, frozen=True, kw_only=True):
    """`/hostler/v1/labs/{user}`: the complete state of a user's lab. Kept for a day after the last lab has ended."""

    user: WebUserId
    generation: Annotated[int, Meta(ge=0)] = 0
    """Generation of the last lab."""
    lab: Lab | None = None
    worked: dict[str, str] = field(default_factory=dict)
    """By queue: the token of the last processed request, used to recognise a redelivery."""
    worked_at: dict[str, float] = field(default_factory=dict)
    """By queue with a rate limit: when its last request was processed."""
    news: tuple[LabNews, ...] = ()
    """The most recent news."""
    messages: tuple[LabNews, ...] = ()
    """The most recent messages to the user. They are separate from `news` so that releases without messages keep them
    unread, and so that many messages displace no news. Both share one sequence of numbers."""
    used: dict[str, LabUse] = field(default_factory=dict)
    """By lab id: the user's usage today."""
    changed_at: float

    @property
    def events(self) -> tuple[LabNews, ...]:
        """Return news and messages, oldest first."""
        if not self.messages:
            return self.news
        return tuple(heapq.merge(self.news, self.messages, key=lambda one: (one.number, one.at)))

    @property
    def last_number(self) -> int:
        """Return the highest number of news and messages; 0: there are none."""
        return max(one.number for one in (*self.news[-1:], *self.messages[-1:])) if self.news or self.messages else 0


class LabWorker(Record, frozen=True, kw_only=True):
    """`/hostler/v1/lab-workers/{worker}`: attached to the worker's lease. Every write of a worker compares it."""

    started_at: float
    source: str = ""
    """Location of the worker, for display."""


class LabTemplate(Record, frozen=True, kw_only=True):
    """Template of a lab in the catalogue."""

    title: str = ""
    image: str = ""
    """Image name; the default image of the provider if empty."""
    cpus: Cpus = 1
    memory_mib: MemoryMib = 256
    disk_gib: DiskGib = 0
    user: LoginName = "student"
    ssh_keys: tuple[SshKey, ...] = ()
    user_data: str = ""
    """User data for cloud-init."""
    life: Annotated[float, Meta(gt=0)] = 30 * 60.0
    grace: Annotated[float, Meta(ge=0)] = 0.0
    warn: Annotated[float, Meta(ge=0)] = 300.0
    """Seconds before the end at which the user is warned."""
    per_day: Annotated[float, Meta(gt=0)] | None = None
    """Daily limit (UTC) in seconds for users who start the lab themselves; None: equal to `life`."""
    provider: str = ""
    """Name of a machine driver; any if empty."""
    at_once: Annotated[int, Meta(ge=1)] | None = None
    """Maximum number of concurrent labs of this kind; None: no limit."""
    warm: Annotated[int, Meta(ge=0, le=1000)] = 0
    """Size of the warm pool."""
    end_with_terminal: bool = False
    """The lab ends when its last terminal has been closed for as long as a terminal can be resumed."""


class LabCatalogue(Record, frozen=True, kw_only=True):
    """`/hostler/v1/lab-catalogues/default`: the available labs. Written by the leader from its `labs.toml`."""

    labs: dict[str, LabTemplate] | None = None
    """By lab id; None: every lab id gets the default template."""
    default: LabTemplate = LabTemplate()
    at_once: Annotated[int, Meta(ge=1)] | None = None
    """Maximum number of concurrent labs of all kinds."""

    def find(self, lab_id: int) -> LabTemplate | None:
        """Return the template of a lab, or None if the lab id does not exist."""
        return self.default if self.labs is None else self.labs.get(str(lab_id))

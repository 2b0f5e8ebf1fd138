"""Labs, as the front end speaks of them through Redis: requests in, one record per user out."""

from __future__ import annotations

import datetime as dt
import enum
from typing import Annotated

from msgspec import UNSET, Meta, UnsetType, field

from hostler.model.record import Record

WebUserId = Annotated[str, Meta(min_length=1, max_length=255)]
LabId = Annotated[int, Meta(ge=1, le=2**31 - 1)]
UtcTime = Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$(?!\n)")]


class LabRequest(Record, frozen=True, kw_only=True):
    """In `vmmanager:provision`."""

    webuserid: WebUserId
    lab_id: LabId = field(name="labId")


class LabDecommission(Record, frozen=True, kw_only=True):
    """In `vmmanager:decommission`. With a lab id, only that lab is meant; without, whatever runs."""

    webuserid: WebUserId
    lab_id: LabId | UnsetType = field(name="labId", default=UNSET)


class LabStatus(enum.StrEnum):
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


def utc_time(wall: float) -> str:
    """Seconds since 1970 as the record has them: whole seconds, UTC, with a `Z` at the end."""
    return dt.datetime.fromtimestamp(int(wall), dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

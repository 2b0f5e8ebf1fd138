"""The hardware of the datacenter, and the user accounts."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from hostler.model.record import OpenEnum, Record

Name = Annotated[str, Meta(min_length=1)]


class Condition(OpenEnum):
    """Lifecycle of a piece of hardware. Independent of `enabled`, which an operator sets."""

    NOT_IN_SERVICE = "not_in_service"
    OPERATIONAL = "operational"
    BURN_IN = "burn_in"
    OUT_FOR_REPAIR = "out_for_repair"
    RETIRING = "retiring"
    RETIRED = "retired"


class Rights(Record, frozen=True, kw_only=True):
    """Permissions of a user beyond reading."""

    manage_accounts: bool = False
    step_time: bool = False
    modify_workloads: bool = False
    modify_inventory: bool = False
    inject_faults: bool = False
    perform_repairs: bool = False


class User(Record, frozen=True, kw_only=True):
    """`/users/{name}`: `name` is as typed; the key is folded."""

    concealed = frozenset(("password_hash",))

    name: Name
    full_name: str = ""
    password_hash: str = ""
    """argon2 hash; empty: password login is disabled."""
    enabled: bool = True
    protected: bool = False
    """The account cannot be deleted and cannot lose its permissions."""
    rights: Rights = Rights()
    memberships: tuple[str, ...] = ()
    """`org` or `org/project`."""
    created_at: float = 0.0
    era: str = ""
    """Token epoch: API tokens are valid while it is unchanged. A new value revokes them all."""
    session_era: str = ""
    """Session epoch: sessions are valid while it is unchanged."""


class Hardware(Record, frozen=True, kw_only=True):
    """Common fields of racks, PDUs, ToR switches and blades."""

    name: Name
    enabled: bool = True
    condition: Condition = Condition.OPERATIONAL

    @property
    def on_duty(self) -> bool:
        """Whether it may be used. The hardware above it is not taken into account."""
        return self.enabled and self.condition is Condition.OPERATIONAL


class Region(Hardware, frozen=True, kw_only=True):
    """`/hostler/v1/regions/{region}`."""


class Zone(Hardware, frozen=True, kw_only=True):
    """`/hostler/v1/zones/{region}/{zone}`."""

    region: Name


class Rack(Hardware, frozen=True, kw_only=True):
    """`/racks/{rack}`."""

    region: str = ""
    """Region of the rack; empty: none, and no hardware is above the rack."""
    zone: str = ""
    location: str = ""


class Port(Record, frozen=True, kw_only=True):
    """One socket of a PDU or port of a ToR switch. An unwired port has no item."""

    wired: bool = False
    item: str | None = None
    """The item at the other end of the cable, by its name in the rack: a blade, or for a PDU also a ToR switch."""


class Pdu(Hardware, frozen=True, kw_only=True):
    """`/rack/{rack}/pdu`, and a second one at `/rack/{rack}/pdus/{n}`."""

    ports: dict[int, Port] = field(default_factory=dict)


class Tor(Hardware, frozen=True, kw_only=True):
    """`/rack/{rack}/tor`, and a second one at `/rack/{rack}/tors/{n}`."""

    ports: dict[int, Port] = field(default_factory=dict)


class Capacity(Record, frozen=True, kw_only=True):
    """Allocatable resources."""

    cpus: Annotated[int, Meta(ge=0)]
    memory_mib: Annotated[int, Meta(ge=0)]
    disk_gib: Annotated[int, Meta(ge=0)] = 0
    network_mbps: Annotated[int, Meta(ge=0)] = 0


class Blade(Hardware, frozen=True, kw_only=True):
    """`/rack/{rack}/blades/{blade}`. A blade is a node."""

    capacity: Capacity
    labels: dict[str, str] = field(default_factory=dict)


class FlowStep(OpenEnum):
    """Progress of the burn-in or retirement of a blade or rack."""

    WAITING = "waiting"
    """Waits for its agent, or until it is enabled."""
    WATCHING = "watching"
    """The burn-in period is running."""
    PASSED = "passed"
    """The burn-in period ended without a fault; the rack is not done yet."""
    FAILED = "failed"
    """A fault occurred; the hardware is out for repair."""
    DRAINING = "draining"
    BLOCKED = "blocked"
    """The flow needs an action of an operator first."""
    RETIRED = "retired"


class HardwareFlow(Record, frozen=True, kw_only=True):
    """`/hostler/v1/blade-flows/{rack}/{blade}` and `/hostler/v1/rack-flows/{rack}`: a burn-in or a retirement.

    Written by the leader. The condition of the hardware is the request; this record is its progress.
    """

    condition: Condition
    """`burn_in` or `retiring`."""
    step: FlowStep
    reason: str
    """Why it is at this step, and what blocks it."""
    since: float
    """When the flow started."""
    step_at: float
    """When this step started."""
    until: float | None = None
    """When the burn-in period ends if no fault occurs."""
    heartbeat: str = ""
    """Identifies the watched agent: its process, and the revision since which it has been alive."""
    drained: bool = False
    """The flow started to drain the node. If the flow is cancelled, the node goes on duty again."""

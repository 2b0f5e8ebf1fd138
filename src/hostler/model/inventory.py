"""What stands in the datacenter, and who may touch it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from hostler.model.record import OpenEnum, Record

Name = Annotated[str, Meta(min_length=1)]


class Condition(OpenEnum):
    """Where a piece of hardware is in its life. Not the same as `enabled`, which an operator switches."""

    NOT_IN_SERVICE = "not_in_service"
    OPERATIONAL = "operational"
    BURN_IN = "burn_in"
    OUT_FOR_REPAIR = "out_for_repair"
    RETIRING = "retiring"
    RETIRED = "retired"


class Rights(Record, frozen=True, kw_only=True):
    """What a user may do beyond looking."""

    manage_accounts: bool = False
    step_time: bool = False
    modify_workloads: bool = False
    modify_inventory: bool = False
    inject_faults: bool = False
    perform_repairs: bool = False


class User(Record, frozen=True, kw_only=True):
    """`/users/{name}`. `name` is as typed; the key is folded."""

    concealed = frozenset(("password_hash",))

    name: Name
    full_name: str = ""
    password_hash: str = ""
    """argon2; empty: nobody can log in with a password."""
    enabled: bool = True
    protected: bool = False
    """It can neither be deleted nor lose its rights."""
    rights: Rights = Rights()
    memberships: tuple[str, ...] = ()
    """`org` or `org/project`."""
    created_at: float = 0.0
    era: str = ""
    """Names the span in which its API tokens count: a new one ends them all."""
    session_era: str = ""
    """The same for its sessions."""


class Hardware(Record, frozen=True, kw_only=True):
    """What racks, pdus, tors and blades have in common."""

    name: Name
    enabled: bool = True
    condition: Condition = Condition.OPERATIONAL

    @property
    def on_duty(self) -> bool:
        """Whether it may be used, as far as it is concerned itself; what stands above it has a say too."""
        return self.enabled and self.condition is Condition.OPERATIONAL


class Region(Hardware, frozen=True, kw_only=True):
    """`/hostler/v1/regions/{region}`."""


class Zone(Hardware, frozen=True, kw_only=True):
    """`/hostler/v1/zones/{region}/{zone}`."""

    region: Name


class Rack(Hardware, frozen=True, kw_only=True):
    """`/racks/{rack}`."""

    region: str = ""
    """Empty: of none; then nothing stands above the rack."""
    zone: str = ""
    location: str = ""


class Port(Record, frozen=True, kw_only=True):
    """One socket of a pdu or port of a tor. An unwired one has no item."""

    wired: bool = False
    item: str | None = None
    """What is at the other end of its cable, by its name in the rack: a blade; of a pdu also a tor."""


class Pdu(Hardware, frozen=True, kw_only=True):
    """`/rack/{rack}/pdu`, and a second one at `/rack/{rack}/pdus/{n}`."""

    ports: dict[int, Port] = field(default_factory=dict)


class Tor(Hardware, frozen=True, kw_only=True):
    """`/rack/{rack}/tor`, and a second one at `/rack/{rack}/tors/{n}`."""

    ports: dict[int, Port] = field(default_factory=dict)


class Capacity(Record, frozen=True, kw_only=True):
    """What can be handed out."""

    cpus: Annotated[int, Meta(ge=0)]
    memory_mib: Annotated[int, Meta(ge=0)]
    disk_gib: Annotated[int, Meta(ge=0)] = 0
    network_mbps: Annotated[int, Meta(ge=0)] = 0


class Blade(Hardware, frozen=True, kw_only=True):
    """`/rack/{rack}/blades/{blade}`. A blade is a node."""

    capacity: Capacity
    labels: dict[str, str] = field(default_factory=dict)


class FlowStep(OpenEnum):
    """How far the burn-in or the retirement of a blade or rack is."""

    WAITING = "waiting"
    """For its agent, or until it is enabled."""
    WATCHING = "watching"
    """Its burn-in period runs."""
    PASSED = "passed"
    """The period is over without a fault; its rack is not done yet."""
    FAILED = "failed"
    """It had a fault, and is out for repair."""
    DRAINING = "draining"
    BLOCKED = "blocked"
    """Something must be done first."""
    RETIRED = "retired"


class HardwareFlow(Record, frozen=True, kw_only=True):
    """`/hostler/v1/blade-flows/{rack}/{blade}` and `/hostler/v1/rack-flows/{rack}`: a burn-in or a retirement.

    Written by the leader. The condition of the hardware is what was asked for; this is how far that is.
    """

    condition: Condition
    """`burn_in` or `retiring`: what the flow leads through."""
    step: FlowStep
    reason: str
    """Why it is at this step, and what blocks it."""
    since: float
    """When the flow began."""
    step_at: float
    """When it came to this step."""
    until: float | None = None
    """When the burn-in period is over, if nothing happens."""
    heartbeat: str = ""
    """Names the life of the node's agent that is watched: the process, and since which revision it has been alive."""
    drained: bool = False
    """The flow began to drain the node; if it is called off, the node goes on duty again."""

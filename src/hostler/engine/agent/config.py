"""Configuration, environment and state of an agent."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from hostler.errors import Invalid
from hostler.model.name import fold
from hostler.ports.store import check_ttl

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.kit.clock import Clock
    from hostler.ports.machines import Machines
    from hostler.ports.store import Store

NODE_TTL = 15.0
FENCING_TIME = 30.0
BEATS = 4
"""Number of heartbeats per lease duration."""


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration of one node. Durations are in seconds. Raise Invalid for impossible values."""

    node: str
    """Folded name, as used in keys, handles and labels."""
    typed: str = ""
    """The name as the operator typed it, for the node record; the same as `node` if empty."""
    labels: dict[str, str] = {}
    rack: str | None = None
    pdus: tuple[str, ...] = ()
    tors: tuple[str, ...] = ()
    address: str = ""
    store: str = ""
    """The URL of the store, without secrets."""
    node_ttl: float = NODE_TTL
    """Duration of the node's lease. A node without a heartbeat for this long is unreachable."""
    fencing_time: float = FENCING_TIME
    """Time without a heartbeat after which fenced machines stop by themselves; at least twice `node_ttl`."""
    stop_grace: float = 30.0
    """Time that a machine has to shut down before it is switched off."""
    boots: int = 2
    """Maximum number of machines that are created, started or restored at once: the number of cores of the node."""
    workers: int = 256
    """Maximum number of machines that are processed at once."""
    look_every: float = 10.0
    """Interval for detecting machines that changed by themselves."""
    sweep_every: float = 300.0
    """Interval for detecting machines without a command."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "typed", self.typed or self.node)
        msgspec.structs.force_setattr(self, "node", fold(self.node))
        check_ttl(self.node_ttl)
        check_ttl(self.fencing_time)
        if self.fencing_time < 2 * self.node_ttl:
            raise Invalid(
                f"fencing time {self.fencing_time:g} s: must be at least twice the node's ttl of {self.node_ttl:g} s,"
                " or one late heartbeat stops every fenced machine"
            )
        for what, number in (("boots", self.boots), ("workers", self.workers)):
            if number < 1:
                raise Invalid(f"{what} {number}: must be at least 1")
        for what, seconds in (("look_every", self.look_every), ("sweep_every", self.sweep_every)):
            if not seconds > 0:
                raise Invalid(f"{what} {seconds}: must be above 0 seconds")
        if not self.stop_grace >= 0:
            raise Invalid(f"stop_grace {self.stop_grace}: must not be below 0 seconds")


class AgentState(msgspec.Struct, frozen=True, kw_only=True):
    """State of an agent, for display and metrics."""

    node: str
    holder: str
    registered: bool
    """The agent has a session that the store confirmed in its last answer."""
    waits_for: str = ""
    """Why it is not registered: the agent that holds the node, or the error of the store."""
    heard_ago: float | None = None
    """Seconds since the store last confirmed the session; None: never."""
    sessions: int = 0
    """Number of registrations."""
    commands: int = 0
    slices: int = 0
    """Number of slice instances that the leader assigned to this node."""
    working: int = 0
    """Number of machines being processed."""
    waiting: int = 0
    """Number of machines waiting for a worker, a boot slot or a retry."""
    failing: int = 0
    """Number of machines whose last step failed."""
    unreadable: tuple[str, ...] = ()
    """Commands that cannot be decoded; they are ignored."""
    foreign: int = 0
    """Number of machines that belong to another control plane and are left alone."""
    retained: int = 0
    """Number of machines without a command that were stopped and retained since the start."""
    removed: int = 0
    """Number of machines removed since the start: remains of moves, and incomplete machines."""
    steps: int = 0
    reports: int = 0


@dataclass(frozen=True, kw_only=True)
class NodeEnv:
    """What every part of an agent works with."""

    store: Store
    machines: Machines
    config: AgentConfig
    clock: Clock
    new_id: Callable[[], str]
    rng: random.Random = field(default_factory=random.Random)
    """Spreads retries; guards nothing."""

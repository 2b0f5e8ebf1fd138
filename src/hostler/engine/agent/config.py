"""What an agent is told about its node, and what it tells of itself."""

from __future__ import annotations

import msgspec

from hostler.errors import Invalid
from hostler.model.name import fold
from hostler.ports.store import check_ttl

NODE_TTL = 15.0
FENCING_TIME = 30.0
BEATS = 4
"""Heartbeats in the life of a lease."""


class AgentPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One node. Durations are seconds. Invalid: what cannot be."""

    node: str
    """As keys, handles and labels have it: folded, however it was typed."""
    typed: str = ""
    """The name as it was typed, for the node's record; that of `node` if none is given."""
    labels: dict[str, str] = {}
    rack: str | None = None
    pdus: tuple[str, ...] = ()
    tors: tuple[str, ...] = ()
    address: str = ""
    store: str = ""
    """The URL by which it reaches the store, without secrets."""
    node_ttl: float = NODE_TTL
    """Life of the node's lease: a node that says nothing for so long is silent."""
    fencing_time: float = FENCING_TIME
    """After so long without a heartbeat fenced machines stop by themselves; at least twice `node_ttl`."""
    stop_grace: float = 30.0
    """What a machine has to shut down before it is switched off."""
    boots: int = 2
    """Machines that are made, started or restored at once: the cores of the node."""
    workers: int = 256
    """Machines that are worked on at once."""
    look_every: float = 10.0
    """Machines that changed by themselves are noticed within this time."""
    sweep_every: float = 300.0
    """Machines without a command are noticed within this time."""

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
    """How an agent is: for people and for metrics."""

    node: str
    holder: str
    registered: bool
    """It has a session that the store knew of when it last answered."""
    waits_for: str = ""
    """Why it is not registered: who has the node, or what the store said."""
    heard_ago: float | None = None
    """Seconds since the store last confirmed the session; None: never."""
    sessions: int = 0
    """How often it had to register."""
    commands: int = 0
    slices: int = 0
    """Instances of slices that the leader has here."""
    working: int = 0
    """Machines that are being worked on."""
    waiting: int = 0
    """Machines that wait for a worker, a boot, or their next try."""
    failing: int = 0
    """Machines whose last step failed."""
    unreadable: tuple[str, ...] = ()
    """Commands that cannot be read; nothing is done about them."""
    foreign: int = 0
    """Machines here that belong to another control plane, and are left alone."""
    retained: int = 0
    """Machines without a command that were stopped and retained since the start."""
    removed: int = 0
    """What was left of moves, or was never whole, and was removed since the start."""
    steps: int = 0
    reports: int = 0

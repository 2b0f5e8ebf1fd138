"""What the HTTP API tells of everything at a glance; as `model.api`."""

from __future__ import annotations

from msgspec import field

from hostler.model.blueprint_api import BlueprintPhase
from hostler.model.record import Record
from hostler.model.replica import Farewell


class LeaderSeen(Record, frozen=True, kw_only=True):
    """Who leads."""

    address: str
    holder: str
    fence: int
    since: float | None = None
    """When it began to lead, by its own word; null: it has not said so."""
    ends_at: float | None = None
    """When its leadership ends unless it is renewed, by the clock of who answers; null: the store cannot tell."""
    ttl: float | None = None
    """Seconds for which each renewal holds; null: it has not said so."""


class ReplicaSeen(Record, frozen=True, kw_only=True):
    """A replica that lives."""

    address: str
    holder: str
    leads: bool
    key: int | None = None
    """The election key that it holds; null: it stands by."""
    started_at: float


class TakeoverView(Record, frozen=True, kw_only=True):
    """A leadership that began."""

    fence: int
    holder: str
    address: str
    at: float
    previous_holder: str
    """Who led before; empty: nobody is known."""
    previous_address: str
    previous: Farewell
    """How that one ended: `released`, `silent`, or `none` where nobody is known."""
    released_at: float | None
    """When it was given up; null: it stands, or it ended without a word."""


class ControlSeen(Record, frozen=True, kw_only=True):
    """Who leads, who stands by, and who led before."""

    leader: LeaderSeen | None
    """Null: nobody leads."""
    replicas: tuple[ReplicaSeen, ...]
    takeovers: tuple[TakeoverView, ...]
    """The last ones, newest first."""


class StoreSeen(Record, frozen=True, kw_only=True):
    """How it stands with the store."""

    answers: bool
    silent_for: float | None = None
    """Seconds since it last answered, while it does not; null: it answers, or it never did."""
    revision: int | None = None
    """Null: it was never read."""
    engine: str = ""
    """Empty: it was never read."""
    version: str = ""
    size_bytes: int | None = None
    quota_bytes: int | None = None
    """The size at which it takes no more writes; null: it has no limit of its own, or was never read."""
    writable: bool = True
    """Whether it took the last write that was tried."""
    problem: str = ""
    """What keeps it from taking writes, and what to do; empty while it takes them."""


class Example(Record, frozen=True, kw_only=True):
    """One of those that need a look."""

    object: str
    """As `GET /v1/why` takes it: `vm/acme/web/ID`, `node/r1-b2`."""
    name: str
    """For people."""
    detail: str = ""
    """Why, where that is known."""
    since: float | None = None
    """Null: not known."""


class Concern(Record, frozen=True, kw_only=True):
    """Something that needs a look."""

    what: str
    """`brake-held`, `store-full`, `store-filling`, `store-refuses`, `vms-failed`, `vms-silent`, `vms-paused`,
    `vms-waiting`, `nodes-silent`, `blueprints-failed`, `blueprints-waiting`, `labs-refused`
    or `clock-in-doubt`."""
    count: int
    examples: tuple[Example, ...] = ()
    """The first few."""


class BlueprintAtWork(Record, frozen=True, kw_only=True):
    """A blueprint that is not as it is wished for."""

    name: str
    phase: BlueprintPhase
    detail: str
    ready: int
    instances: int


class Overview(Record, frozen=True, kw_only=True):
    """Everything at a glance: of machines and labs those that the caller sees."""

    at: float
    """By the clock of who answers."""
    ready: bool
    """Whether this replica's own view of the store is up to date."""
    control: ControlSeen | None
    """Null: the store does not answer, so nobody can tell."""
    store: StoreSeen
    nodes: dict[str, int]
    """By state: `joining`, `on_duty`, `draining`, `decommissioned`, `shutting_down`; of those that give no sign of life
    and should `silent`, or `off` where somebody stands for that."""
    vms: dict[str, int]
    """By phase."""
    labs: dict[str, int]
    """By phase; those that are `waiting` are the queue."""
    blueprints: dict[str, int]
    """By phase."""
    deployments: tuple[BlueprintAtWork, ...] = ()
    """Those that are on their way, or stuck; the first of them."""
    attention: tuple[Concern, ...] = field(default=())
    """What needs a look, the worst first."""
    simulation: bool = False
    """Whether it is one of a simulation: its time is not ours, and its replicas are in `GET /v1/sim`."""

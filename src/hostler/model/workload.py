"""Workloads: a number of machines of one shape. What was decided and what is are two records with one writer each."""

from __future__ import annotations

import enum
from typing import Annotated

from msgspec import Meta, field

from hostler.model.inventory import Name
from hostler.model.reason import Reason
from hostler.model.record import Record
from hostler.model.vm import MachineState, Power, VmSpec


class RestartPolicy(enum.StrEnum):
    """What happens to an instance that ended by itself."""

    ALWAYS = "always"
    ON_FAILURE = "on_failure"
    NEVER = "never"


class Workload(Record, frozen=True, kw_only=True):
    """`/workloads/{workload}`: the wish."""

    name: Name
    enabled: bool = True
    instances: Annotated[int, Meta(ge=0)]
    spec: VmSpec
    restart: RestartPolicy = RestartPolicy.ALWAYS
    labels: dict[str, str] = field(default_factory=dict)
    created_at: float = 0.0


class WorkloadInstance(Record, frozen=True, kw_only=True):
    """`/workload/{workload}/instances/{instance}`: the index; written in one transaction with the target."""

    instance: Name
    created_at: float


class Target(Record, frozen=True, kw_only=True):
    """`…/instance/{instance}/target`: what the scheduler decided. Written by it alone."""

    node: str | None
    power: Power = Power.ON
    vm: str = ""
    generation: int = 1
    reasons: tuple[Reason, ...] = ()
    decided_at: float


class Actual(Record, frozen=True, kw_only=True):
    """`…/instance/{instance}/actual`: what the node saw. Written by its agent alone."""

    node: str
    state: MachineState
    vm: str = ""
    generation: int = 0
    """Of the target that this answers."""
    detail: str = ""
    seen_at: float

"""The constructors of everything that runs in a world: those of production. Tests replace one to introduce a defect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostler.drivers.ttl.store import StoreTtlStorage
from hostler.engine.control_plane import ControlPlane, build_agent
from hostler.engine.replica import Replica
from hostler.engine.transfer.restore import restore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from hostler.engine.agent.agent import Agent
    from hostler.engine.agent.config import AgentConfig
    from hostler.engine.control_plane import ControlPlaneConfig, NodePorts, Ports
    from hostler.engine.runtime.env import Env
    from hostler.engine.service import Service
    from hostler.engine.transfer.restore import Restored
    from hostler.ports.store import Store
    from hostler.ports.ttl import TtlStorage


@dataclass(frozen=True)
class Factories:
    """The constructor of each component."""

    plane: Callable[[Store, Env, Ports, ControlPlaneConfig], ControlPlane] = ControlPlane
    """The caches, services and controllers of a replica."""
    storage: Callable[[Store], TtlStorage] = StoreTtlStorage
    """The storage for elections."""
    replica: Callable[..., Replica] = Replica
    """Elections, and the start and stop order."""
    more: Sequence[Callable[[ControlPlane], Service]] = ()
    """Further controllers of a leader."""
    agent: Callable[[Store, Env, NodePorts, AgentConfig], Agent] = build_agent
    restore: Callable[..., Awaitable[Restored]] = restore
    """Fills an empty store from a backup."""

"""A datacenter in virtual time: the real control plane, in simulated processes over simulated hardware.

    world         the whole: store, replicas, blades, clients; `ask`, `inject`, `lift`
    config        the configuration of a world
    host          a host, which outlives its processes; a process with its wire, random source and ids
    store_link    the connection of a process to the store; it can drop packets, which is not the same as a refusal
    replica       the control plane of `hostler replica`, on the ports of a world
    blade         an agent on simulated machines, as in `hostler agent`; `fast_blade`: a cheap stand-in for thousands,
                  `light_slices`: its slices
    slices        the slices on a blade
    artifacts     a repository that contains every artifact
    traffic       the call rates of slices, as set by the scenario
    peers         the connection from blade to blade
    power         the power switches of the control plane, over the pdus
    hardware      effects of rack changes on processes
    injection     the effect of each fault, and how it is undone; `condition`: the faults that affect a host
    event_log     the log of a world, from the store's events
    factories     the constructors of all components; replaced only to introduce defects

This package does not contain decisions, scenarios or invariants. Nothing reads the real time, and the same seed gives
the same run.
"""

from __future__ import annotations

from hostler.sim.world.blade import BladeHost
from hostler.sim.world.config import BladeConfig, WorldConfig
from hostler.sim.world.factories import Factories
from hostler.sim.world.replica import ReplicaHost, ReplicaServices
from hostler.sim.world.world import World, run_world

__all__ = [
    "BladeConfig",
    "BladeHost",
    "Factories",
    "ReplicaHost",
    "ReplicaServices",
    "World",
    "WorldConfig",
    "run_world",
]

"""A datacenter in virtual time: the real control plane, in simulated processes over simulated hardware.

    world         the whole: store, replicas, blades, clients; `ask`, `inject`, `lift`
    config        the configuration of a world, and the constructors of all components, replaced only to introduce
                  defects
    host          a host, which outlives its processes; a process with its link, random source and ids; the conditions
                  of a host: the faults that affect it
    store_link    the connection of a process to the store; it can drop packets, which is not the same as a refusal
    replica       the control plane of `hostler replica`, on the ports of a world: artifacts, call rates
    blade         an agent on simulated machines, as in `hostler agent`, its slices and its connections to other blades;
                  `fast_blade`: a cheap stand-in for thousands, `light_slices`: its slices
    hardware      effects of rack changes on processes; power switches and disks
    injection     the effect of each fault, and how it is undone
    recovery      the loss of the store, and its restore from a backup
    event_log     the log of a world, from the store's events

This package does not contain decisions, scenarios or invariants. Nothing reads the real time, and the same seed gives
the same run.
"""

from __future__ import annotations

from hostler.sim.world.blade import BladeHost
from hostler.sim.world.config import BladeConfig, Factories, WorldConfig
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

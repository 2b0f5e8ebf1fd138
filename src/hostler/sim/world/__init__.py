"""A datacenter in virtual time: the real control plane as processes that can be paused and killed, over simulated
hardware.

    world       the whole: store, replicas, blades, clients; `ask`, `inject`, `lift`
    plan        what a world is made of
    host        what carries a process and outlives it; a process with its wire, chance and ids
    wire        the way of a process to the store; it can be silent, which is not the same as refused
    replica     view, services and controllers, as `hostler replica` has them
    blade       an agent on simulated machines, as `hostler agent` has them; `light`: one that costs next to nothing,
                `light_slices` its slices
    slices      what runs on a blade beside its machines
    artifacts   a repository in which everything is
    traffic     how often slices are called, as somebody said
    peers       the way from blade to blade
    electricity what the pdus tell the control plane about power
    hardware    what becomes of processes when racks change
    injection   what each fault does, and how it is undone; `condition`: under which faults a host runs
    chronicle   what happened, from the store's own events
    parts       the makers of all of it; replaced only to put defects in

Not here: decisions, scenarios, invariants. Nothing knows the real time, and for a seed everything happens alike.
"""

from __future__ import annotations

from hostler.sim.world.blade import BladeHost
from hostler.sim.world.config import BladePlan, WorldPlan
from hostler.sim.world.factories import Making, Parts
from hostler.sim.world.replica import Doors, ReplicaHost
from hostler.sim.world.world import World, run_world

__all__ = ["BladeHost", "BladePlan", "Doors", "Making", "Parts", "ReplicaHost", "World", "WorldPlan", "run_world"]

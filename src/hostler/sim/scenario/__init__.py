"""Scenarios: a file with the hardware, the specs, the faults and their times, and the invariants that must hold.

    scenario, actions   the file as a value; its components, and random faults that are drawn from the seed
    format              reads the file, with the line of every error, and writes it; `timeline` and `resources` read its
                        parts
    player              plays a scenario: its specs, its timeline, the actions of users
    run                 one run: a world, a player, the invariants, the outcome, and the outcome as text
    shrink              the smallest part of a schedule, and of a scenario, that still fails
    library             the scenarios that come with Hostler

This package does not contain the invariants (`hostler.sim.invariants`) or the effects of faults (`hostler.sim.world`).
"""

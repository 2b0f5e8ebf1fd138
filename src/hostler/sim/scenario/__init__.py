"""Scenarios: a file with the hardware, the specs, the faults and their times, and the invariants that must hold.

    scenario, actions   the file as a value
    format              reads the file, with the line of every error, and writes it; `timeline`, `resources`,
                        `components` read its parts
    draws               random faults, drawn from the seed
    run                 one run: a world, the timeline, the invariants, and the outcome; `player`, `action_runner`
    shrink              pure: the smallest part of a schedule that still fails; `minimize` shrinks a scenario
    report              the outcome as text
    library             the scenarios that come with Hostler

This package does not contain the invariants (`hostler.sim.invariants`) or the effects of faults (`hostler.sim.world`).
"""

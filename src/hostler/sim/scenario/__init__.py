"""Scenarios: a file that says what stands where, what is wished for, what breaks when, and what must hold all the same.

    scenario, act   the file as a value
    format          the file, read with the line of everything that is wrong, and written
    chance          what is left to chance, drawn from the seed
    run             one run: a world, the timeline, the invariants; what came of it
    shrink          pure: the smallest part of a schedule that still fails; `smallest` does it to a scenario
    report          what came of it, for people
    library         the scenarios that come with Hostler

Not here: what the invariants are (`hostler.sim.invariants`), and what a fault does (`hostler.sim.world`).
"""

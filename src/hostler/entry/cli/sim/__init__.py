"""`hostler sim`: simulate a datacenter, step through virtual time, and inject faults."""

from __future__ import annotations

import click

from hostler.entry.cli.app import LazyGroup

_CONTROL = "hostler.entry.cli.sim.control"
_LIBRARY = "hostler.entry.cli.sim.library"

COMMANDS = {
    "run": ("hostler.entry.cli.sim.run", "run", "Run scenarios, and check all invariants."),
    "list": (_LIBRARY, "list_", "List the scenarios that come with Hostler."),
    "show": (_LIBRARY, "show_", "Show the file of a scenario."),
    "serve": ("hostler.entry.cli.sim.serve", "serve", "Serve a simulated datacenter, with the whole API."),
    "status": (_CONTROL, "status", "Show the time, what is faulty, and the proposed repairs."),
    "mode": (_CONTROL, "mode", "Stop time, run it at a rate, or run without waiting."),
    "step": (_CONTROL, "step", "Advance the time."),
    "save": (_CONTROL, "save", "Save the simulation to a file for serve --resume."),
    "log": (_CONTROL, "log", "Show the log of the simulation."),
    "fault": (_CONTROL, "fault", "Inject a fault."),
    "lift": (_CONTROL, "lift", "Lift faults."),
    "switch": (_CONTROL, "switch", "Switch a blade, a port or a cable on or off."),
    "repair": (_CONTROL, "repair", "Show and perform repairs."),
}


@click.group(cls=LazyGroup, commands_at=COMMANDS)
def sim() -> None:
    """Simulate a datacenter: the real control plane in virtual time, over simulated hardware that can fail.

    `run` runs a scenario from start to end. `serve` serves one, which status, mode, step, save, log, fault, lift,
    switch and repair control.
    """

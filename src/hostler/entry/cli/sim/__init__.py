"""`hostler sim`: a datacenter that can be simulated, stepped and broken."""

from __future__ import annotations

import click

from hostler.entry.cli.app import LazyGroup

_LIVE = "hostler.entry.cli.sim.control"
_BREAK = "hostler.entry.cli.sim.faults"
_LIBRARY = "hostler.entry.cli.sim.library"

COMMANDS = {
    "run": ("hostler.entry.cli.sim.run", "run", "Play scenarios, and tell whether everything held."),
    "list": (_LIBRARY, "list_", "Show the scenarios that come with Hostler."),
    "show": (_LIBRARY, "show_", "Show a scenario's file."),
    "serve": ("hostler.entry.cli.sim.serve", "serve", "Serve a simulated datacenter, with the whole API."),
    "status": (_LIVE, "status", "Show how time goes, what is broken, and what should be done about it."),
    "mode": (_LIVE, "mode", "Let time stand still, go by the clock, or not wait."),
    "step": (_LIVE, "step", "Let time go on for a while."),
    "save": (_LIVE, "save", "Save it to a file that serve --resume goes on from."),
    "log": (_LIVE, "log", "Show what happened."),
    "fault": (_BREAK, "fault", "Break something."),
    "lift": (_BREAK, "lift", "Lift faults."),
    "switch": (_BREAK, "switch", "Switch a blade, a port or a cable on or off."),
    "repair": (_BREAK, "repair", "Show and perform repairs."),
}


@click.group(cls=LazyGroup, commands_at=COMMANDS)
def sim() -> None:
    """Simulate a datacenter: the real control plane in virtual time, over hardware that can be broken.

    `run` plays a scenario from its beginning to its end. `serve` runs one beside you; status, mode, step, save, log,
    fault, lift, switch and repair work on it.
    """

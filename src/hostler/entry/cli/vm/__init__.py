"""`hostler vm`: everything a person does with virtual machines."""

from __future__ import annotations

import click

from hostler.entry.cli.app import LazyGroup

_READ = "hostler.entry.cli.vm.read"
_CREATE = "hostler.entry.cli.vm.create"
_CHANGE = "hostler.entry.cli.vm.change"
_CONSOLE = "hostler.entry.cli.vm.console"
_COPY = "hostler.entry.cli.vm.copy"
_MOVE = "hostler.entry.cli.vm.move"
_RETAINED = "hostler.entry.cli.vm.retained"
_SNAPSHOT = "hostler.entry.cli.vm.snapshot"

COMMANDS = {
    "create": (_CREATE, "create", "Create a machine."),
    "list": (_READ, "list_", "Show the machines of a project, or all."),
    "show": (_READ, "show_", "Show one machine."),
    "why": (_READ, "why", "Tell why a machine is where it is, or why it is nowhere."),
    "update": (_CHANGE, "update", "Change a machine."),
    "start": (_CHANGE, "start", "Switch a machine on."),
    "stop": (_CHANGE, "stop", "Shut a machine down."),
    "reset": (_CHANGE, "reset", "Reset a machine, as its button would."),
    "delete": (_CHANGE, "delete", "Delete a machine, its disk and its snapshots."),
    "snapshot": (_SNAPSHOT, "snapshot", "Take, list, restore and delete snapshots."),
    "retained": (_RETAINED, "retained", "Show, restore and delete machines that are out of service."),
    "clone": (_MOVE, "clone", "Make a new machine of a snapshot."),
    "migrate": (_MOVE, "migrate", "Bring a machine to another node, as it runs."),
    "ssh": ("hostler.entry.cli.vm.ssh", "ssh", "Log into a machine, or run a command there."),
    "cp": (_COPY, "cp", "Copy files and folders to or from a machine."),
    "console": (_CONSOLE, "console", "Open a machine's console."),
}


@click.group(cls=LazyGroup, commands_at=COMMANDS)
def vm() -> None:
    """Create, show, change and delete virtual machines.

    A machine is named by its name or by its id. It belongs to a project of an org: --org and --project, or HOSTLER_ORG
    and HOSTLER_PROJECT.
    """

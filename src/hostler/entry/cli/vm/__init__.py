"""`hostler vm`: all commands for virtual machines."""

from __future__ import annotations

import click

from hostler.entry.cli.app import LazyGroup

_READ = "hostler.entry.cli.vm.read"
_CHANGE = "hostler.entry.cli.vm.change"
_CONSOLE = "hostler.entry.cli.vm.console"
_COPY = "hostler.entry.cli.vm.copy"
_MOVE = "hostler.entry.cli.vm.move"
_RETAINED = "hostler.entry.cli.vm.retained"
_SNAPSHOT = "hostler.entry.cli.vm.snapshot"

COMMANDS = {
    "create": (_CHANGE, "create", "Create a machine."),
    "list": (_READ, "list_", "List the machines of a project, or of all projects."),
    "show": (_READ, "show_", "Show one machine."),
    "why": (_READ, "why", "Explain the placement of a machine, or why it has no node."),
    "update": (_CHANGE, "update", "Change a machine."),
    "start": (_CHANGE, "start", "Switch a machine on."),
    "stop": (_CHANGE, "stop", "Shut a machine down."),
    "reset": (_CHANGE, "reset", "Reset a machine, like its reset button."),
    "delete": (_CHANGE, "delete", "Delete a machine, its disk and its snapshots."),
    "snapshot": (_SNAPSHOT, "snapshot", "Take, list, restore and delete snapshots."),
    "retained": (_RETAINED, "retained", "List, restore and delete machines that are out of service."),
    "clone": (_MOVE, "clone", "Create a new machine from a snapshot."),
    "migrate": (_MOVE, "migrate", "Migrate a running machine to another node."),
    "ssh": ("hostler.entry.cli.vm.ssh", "ssh", "Log into a machine, or run a command there."),
    "cp": (_COPY, "cp", "Copy files and folders to or from a machine."),
    "console": (_CONSOLE, "console", "Open the console of a machine."),
}


@click.group(cls=LazyGroup, commands_at=COMMANDS)
def vm() -> None:
    """Create, show, change and delete virtual machines.

    A machine is identified by its name or its id. It belongs to a project of an org: --org and --project, or
    HOSTLER_ORG and HOSTLER_PROJECT.
    """

"""`hostler lab`: labs, a machine for every student."""

from __future__ import annotations

import click

from hostler.entry.cli.app import LazyGroup

_READ = "hostler.entry.cli.lab.read"
_CHANGE = "hostler.entry.cli.lab.change"

COMMANDS = {
    "start": (_CHANGE, "start", "Start a lab for a user."),
    "stop": (_CHANGE, "stop", "Stop a user's lab."),
    "extend": (_CHANGE, "extend", "Extend the life of a user's lab."),
    "message": (_CHANGE, "message", "Send a message to the user of a lab."),
    "list": (_READ, "list_", "List all labs."),
    "show": (_READ, "show_", "Show a user's lab."),
    "watch": (_READ, "watch", "Follow a user's lab until it is available or gone."),
    "events": (_READ, "events", "Show the events of a user's labs."),
    "ssh": (_CHANGE, "ssh", "Log into a user's lab, or run a command there."),
    "accounts": ("hostler.entry.cli.lab.accounts", "accounts", "Create an account for every student of a class."),
    "catalogue": (_READ, "catalogue", "List the lab templates and how many labs run."),
    "worker": ("hostler.entry.cli.processes", "worker", "Take lab requests from Redis."),
}


@click.group(cls=LazyGroup, commands_at=COMMANDS)
def lab() -> None:
    """Start, show, extend and stop labs: virtual machines that expire, at most one for each user.

    A lab is identified by the id of its user. The file labs.toml defines the labs: hostler up --labs FILE.
    """

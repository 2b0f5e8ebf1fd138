"""`hostler lab`: a machine for every student, as a person at a terminal sees it."""

from __future__ import annotations

import click

from hostler.entry.cli.app import LazyGroup

_READ = "hostler.entry.cli.lab.read"
_CHANGE = "hostler.entry.cli.lab.change"

COMMANDS = {
    "start": (_CHANGE, "start", "Start a lab for a user."),
    "stop": (_CHANGE, "stop", "Stop a user's lab."),
    "extend": (_CHANGE, "extend", "Let a user's lab live longer."),
    "message": (_CHANGE, "message", "Say something to the user of a lab."),
    "list": (_READ, "list_", "Show all labs."),
    "show": (_READ, "show_", "Show a user's lab."),
    "watch": (_READ, "watch", "Follow a user's lab until one can log in, or it is gone."),
    "events": (_READ, "events", "Show what happened to a user's labs."),
    "ssh": ("hostler.entry.cli.lab.ssh", "ssh", "Log into a user's lab, or run a command there."),
    "accounts": ("hostler.entry.cli.lab.accounts", "accounts", "Create an account for every student of a class."),
    "catalogue": (_READ, "catalogue", "Show which labs there are, and how many run."),
}


@click.group(cls=LazyGroup, commands_at=COMMANDS)
def lab() -> None:
    """Start, show, extend and stop labs: virtual machines with an end, at most one for each user.

    A lab is called by the id of its user. Which labs there are stands in labs.toml: hostler up --labs FILE.
    """

"""`hostler blueprint`: which slices run, how many, and how they are upgraded."""

from __future__ import annotations

import click

from hostler.entry.cli.app import LazyGroup

_READ = "hostler.entry.cli.blueprint.read"
_CHANGE = "hostler.entry.cli.blueprint.change"
_ROLLOUT = "hostler.entry.cli.blueprint.rollout"

COMMANDS = {
    "apply": (_CHANGE, "apply", "Apply a blueprint file, after showing its plan."),
    "plan": (_CHANGE, "plan", "Show what applying a file would load, unload and move."),
    "validate": (_CHANGE, "validate", "Check a file without a server."),
    "list": (_READ, "list_", "List all blueprints."),
    "get": (_READ, "get", "Show a blueprint as a file."),
    "status": (_ROLLOUT, "status", "Show the progress of a blueprint, slice by slice."),
    "routes": (_READ, "routes", "List the HTTP routes of a blueprint."),
    "history": (_READ, "history", "List the revisions of a blueprint."),
    "rollback": (_CHANGE, "rollback", "Roll back to an earlier revision."),
    "promote": (_ROLLOUT, "promote", "Promote a running upgrade to its next stage now, or to its end."),
    "pause": (_ROLLOUT, "pause", "Pause a running upgrade."),
    "resume": (_ROLLOUT, "resume", "Resume a paused upgrade."),
    "approve": (_ROLLOUT, "approve", "Approve the current stage of an upgrade."),
    "abort": (_ROLLOUT, "abort", "Abort an upgrade; the previous version serves."),
    "delete": (_CHANGE, "delete", "Delete a blueprint and its slices."),
}


@click.group(cls=LazyGroup, commands_at=COMMANDS)
def blueprint() -> None:
    """Apply, plan, show and roll back blueprints: which slices run, how many of each, and how they are upgraded.

    \b
    cat > shop.toml <<END
    [[slices]]
    artifact = "org.example:cart:1.0.0"
    instances = 3
    END
    hostler blueprint apply shop.toml --wait
    hostler blueprint status shop
    """

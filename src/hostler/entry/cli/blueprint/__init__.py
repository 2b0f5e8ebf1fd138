"""`hostler blueprint`: which slices shall run, as a person at a terminal sees it."""

from __future__ import annotations

import click

from hostler.entry.cli.app import LazyGroup

_READ = "hostler.entry.cli.blueprint.read"
_CHANGE = "hostler.entry.cli.blueprint.change"
_ROLLOUT = "hostler.entry.cli.blueprint.rollout"
_STATUS = "hostler.entry.cli.blueprint.status"

COMMANDS = {
    "apply": (_CHANGE, "apply", "Make a file the blueprint; what that does is shown first."),
    "plan": (_CHANGE, "plan", "Show what applying a file would load, unload and move, and where."),
    "validate": (_CHANGE, "validate", "Check a file, and ask no server."),
    "list": (_READ, "list_", "Show all blueprints."),
    "get": (_READ, "get", "Show what a blueprint says, as a file could have it."),
    "status": (_STATUS, "status", "Show how far a blueprint is, slice by slice."),
    "routes": (_READ, "routes", "Show the HTTP routes of a blueprint."),
    "history": (_READ, "history", "Show what was applied."),
    "rollback": (_CHANGE, "rollback", "Bring back what was applied before."),
    "promote": (_ROLLOUT, "promote", "Take an upgrade that is under way to its next stage now, or to its end."),
    "pause": (_ROLLOUT, "pause", "Hold an upgrade that is under way where it is."),
    "resume": (_ROLLOUT, "resume", "Let a paused upgrade go on."),
    "approve": (_ROLLOUT, "approve", "Approve the present stage of an upgrade."),
    "abort": (_ROLLOUT, "abort", "Take the new version back; the version before serves."),
    "delete": (_CHANGE, "delete", "Delete a blueprint and its slices."),
}


@click.group(cls=LazyGroup, commands_at=COMMANDS)
def blueprint() -> None:
    """Apply, plan, show and roll back blueprints: which slices shall run, how many of each, and how they are upgraded.

    \b
    cat > shop.toml <<END
    [[slices]]
    artifact = "org.example:cart:1.0.0"
    instances = 3
    END
    hostler blueprint apply shop.toml --wait
    hostler blueprint status shop
    """

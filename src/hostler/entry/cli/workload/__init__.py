"""`hostler workload`: a number of machines of one shape, as a person at a terminal sees it."""

from __future__ import annotations

import click

from hostler.entry.cli.app import LazyGroup

_READ = "hostler.entry.cli.workload.read"
_CHANGE = "hostler.entry.cli.workload.change"

COMMANDS = {
    "apply": (_CHANGE, "apply", "Create a workload from a file, or change it to what the file says."),
    "list": (_READ, "list_", "Show all workloads."),
    "status": (_READ, "status", "Show how far a workload is, instance by instance."),
    "scale": (_CHANGE, "scale", "Change how many instances there shall be."),
    "delete": (_CHANGE, "delete", "Delete a workload and its machines."),
}


@click.group(cls=LazyGroup, commands_at=COMMANDS)
def workload() -> None:
    """Apply, show, scale and delete workloads: so many machines of one shape, kept running and kept apart.

    \b
    cat > web.yaml <<END
    name: web
    instances: 3
    cpus: 1
    memory: 512MiB
    affinity: [{together: false, level: node}]
    END
    hostler workload apply web.yaml --wait
    hostler workload status web
    """

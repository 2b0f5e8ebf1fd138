"""`hostler workload`: a number of identical machines."""

from __future__ import annotations

import click

from hostler.entry.cli.app import LazyGroup

_READ = "hostler.entry.cli.workload.read"
_CHANGE = "hostler.entry.cli.workload.change"

COMMANDS = {
    "apply": (_CHANGE, "apply", "Create or change a workload from a file."),
    "list": (_READ, "list_", "List all workloads."),
    "status": (_READ, "status", "Show the progress of a workload, instance by instance."),
    "scale": (_CHANGE, "scale", "Change the number of instances."),
    "delete": (_CHANGE, "delete", "Delete a workload and its machines."),
}


@click.group(cls=LazyGroup, commands_at=COMMANDS)
def workload() -> None:
    """Apply, show, scale and delete workloads: a number of identical machines, kept running and kept apart.

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

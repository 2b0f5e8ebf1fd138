"""`python -m bench`, in the root of the repository."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from hostler.entry.cli.app import LazyGroup
from hostler.entry.cli.failure import run

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = {
    "store": ("bench.store", "store", "A store compared with the engine below its driver."),
    "election": ("bench.election", "command", "The time without a leader."),
    "placement": ("bench.placement", "command", "Placements, without a store."),
    "plane": ("bench.plane", "command", "The control plane: creates, placement, API, many machines, many agents."),
    "deployments": ("bench.deployments", "command", "A million slice instances, and the loss of a node."),
    "invoke": ("bench.invoke", "command", "Calls of slices."),
    "machines": ("bench.machines", "command", "QEMU machines, from a request to a login."),
    "labs": ("bench.labs", "command", "Labs compared with task queues."),
    "sim": ("bench.sim", "command", "The simulator."),
}


@click.group(cls=LazyGroup, commands_at=COMMANDS)
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
def group() -> None:
    """Measure Hostler on this machine. `make bench` runs everything; docs/performance.md has the figures."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    return run(group, arguments, prog_name="python -m bench")


if __name__ == "__main__":
    sys.exit(main())

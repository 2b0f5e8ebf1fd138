"""`hostler workload apply`, `scale`, `delete`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from hostler.entry.cli import show
from hostler.entry.cli.options import chosen_server, complete, open_client, server_options, with_client
from hostler.entry.cli.progress import ask_if_seen, wait_until_settled, yes_option
from hostler.entry.cli.vm.wait import wait_options
from hostler.entry.cli.workload.read import described
from hostler.errors import Invalid

if TYPE_CHECKING:
    from hostler.client import Client
    from hostler.entry.cli.options import Server
    from hostler.model.workload_api import WorkloadApply, WorkloadView


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))
@wait_options
@show.output_option
@server_options
def apply(file: Path, within: float | None, output: str) -> None:
    """Create or change the workload that FILE describes (YAML or JSON; - is standard input).

    Applying the same file again changes nothing. A new template replaces the instances, as many at once as the rollout
    allows. Without `instances`, the number of instances stays.
    """
    complete(_apply(chosen_server(), _read(file), within, output))


async def _apply(server: Server, wanted: WorkloadApply, within: float | None, output: str) -> None:
    async with open_client(server) as client:
        view: WorkloadView | None = await client.workloads.apply(wanted)
        if within is not None:
            view = await until(client, wanted.name, gone=False, within=within)
    _tell(wanted.name, view, output)


def _read(file: Path) -> WorkloadApply:
    from hostler.engine.workloads.workload_file import read_workload

    try:
        text = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise Invalid(f"{file}: cannot be read: {error.strerror}; name another file") from None
    return read_workload(text, "standard input" if str(file) == "-" else str(file))


@click.command()
@click.argument("name")
@click.argument("instances", type=click.IntRange(min=0, max=1_000_000))
@wait_options
@show.output_option
@with_client
async def scale(client: Client, *, name: str, instances: int, within: float | None, output: str) -> None:
    """Scale the workload NAME to INSTANCES. Instances with the highest numbers are removed first."""
    view: WorkloadView | None = await client.workloads.scale(name, instances)
    if within is not None:
        view = await until(client, name, gone=False, within=within)
    _tell(name, view, output)


@click.command()
@click.argument("name")
@yes_option
@wait_options
@show.output_option
@server_options
def delete(name: str, yes: bool, within: float | None, output: str) -> None:
    """Delete the workload NAME: its machines with all their data, then its records.

    Asks for confirmation at a terminal.
    """
    ask_if_seen(f"Delete {show.safe(name)} and its machines, with all their data?", yes=yes)
    complete(_delete(chosen_server(), name, within, output))


async def _delete(server: Server, name: str, within: float | None, output: str) -> None:
    async with open_client(server) as client:
        view: WorkloadView | None = await client.workloads.delete(name)
        if within is not None:
            view = await until(client, name, gone=True, within=within)
    _tell(name, view, output)


def _tell(name: str, view: WorkloadView | None, output: str) -> None:
    if output != "table":
        show.emit(msgspec.to_builtins(view), output)
    else:
        click.echo(show.safe(f"{name}: {'gone' if view is None else described(view)}"))


async def until(client: Client, name: str, *, gone: bool, within: float) -> WorkloadView | None:
    """Wait until the workload matches its spec, or until it is gone (None). NotYet: not in time, or deleted."""
    return await wait_until_settled("workload", name, client.workloads.wait, described, gone=gone, within=within)

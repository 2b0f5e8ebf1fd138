"""`hostler up`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hostler.entry.cli import show
from hostler.entry.cli.failure import one_line
from hostler.entry.cli.plane_options import called, plane_options
from hostler.entry.cli.target import complete

if TYPE_CHECKING:
    from hostler.entry.up import Ready
    from hostler.settings import Settings

FIRST = "hello"
"""The name of the machine that --first-vm makes."""


@click.command()
@click.option("--nodes", metavar="N", help="How many nodes to run: local-1 to local-N; 1 unless told otherwise.")
@click.option("--machines", metavar="KIND", help="What the machines are: simulated (qemu and hetzner come later).")
@click.option("--first-vm", is_flag=True, help=f"Create a first machine, {FIRST}, if there is none at all.")
@plane_options
def up(first_vm: bool, **flags: Any) -> None:
    """Run everything in one process: the control plane, its API and the agents of some nodes. Ctrl-C ends it.

    It prints `ready http://…` once it serves. The first start makes the account `admin` and leaves its token in
    DATA/admin.token, where the other commands find it. Machines outlive it: the next start goes on with them.
    """
    from hostler.settings import load

    settings = load(flags)
    code = complete(_run(settings, first_vm=first_vm))
    click.get_current_context().exit(code)


async def _run(settings: Settings, *, first_vm: bool) -> int:
    from hostler.entry.up import Up

    async def ready(now: Ready) -> None:
        _ready(now)
        if first_vm:
            await _first(now)
        _farewell(now, settings)

    return await Up(settings, _tell, ready).run()


def _tell(text: str) -> None:
    click.echo(one_line(text))


def _ready(now: Ready) -> None:
    click.echo(f"ready {now.url}")
    if now.token is not None:
        click.echo(f"\nlogin: admin, with this token (shown once, kept in {now.folder.token_file}):\n  {now.token}")
    elif now.folder.read(now.folder.token_file) is None:
        click.echo("\nno admin.token here; make a new one: hostler user recover")


async def _first(now: Ready) -> None:
    """A machine to look at, through the same door that everybody uses."""
    from hostler.client import Client
    from hostler.entry.cli.vm.wait import described
    from hostler.errors import Conflict, HostlerError
    from hostler.model.api import VmCreate
    from hostler.model.vm import VmSpec

    token = now.token or now.folder.read(now.folder.token_file)
    if token is None:
        return
    try:
        async with Client(now.url, token) as client:
            if not (await client.vms.list("default", "default", limit=1)).items:
                wanted = VmCreate(name=FIRST, spec=VmSpec(cpus=1, memory_mib=512))
                await client.vms.create("default", "default", wanted)
            view = await client.vms.wait("default", "default", FIRST, settled=True, within=60.0)
            if view is not None:
                click.echo(f"\nfirst machine: {view.name}, {show.safe(described(view))}")
    except Conflict:
        return
    except HostlerError as error:
        click.echo(f"\nfirst machine: {one_line(str(error))}", err=True)


def _farewell(now: Ready, settings: Settings) -> None:
    me, where = called(), "" if settings.origins["data"].layer == "default" else f" --data {now.folder.path}"
    click.echo("\ntry, in another terminal:\n")
    click.echo(f"  {me} vm create web --cpus 2 --memory 1G --wait{where}")
    click.echo(f"  {me} vm list{where}")
    click.echo(f"  {me} vm why web{where}")
    click.echo(f"\nAPI for people: {now.url}/docs   log: {Path(now.folder.log_file)}   end: Ctrl-C")

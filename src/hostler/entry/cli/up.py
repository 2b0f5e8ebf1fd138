"""`hostler up`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from hostler.entry.cli import show
from hostler.entry.cli.failure import one_line
from hostler.entry.cli.plane_options import AGENT_LISTEN, called, machines_option, plane_options
from hostler.entry.cli.plane_options import flags as flag_options
from hostler.entry.cli.store_option import complete

if TYPE_CHECKING:
    from hostler.entry.up import Ready
    from hostler.model.api import VmView
    from hostler.settings import Settings

FIRST = "hello"
"""The name of the machine that --first-vm creates."""


@click.command()
@click.option("--nodes", metavar="N", help="The number of nodes to run, local-1 to local-N. Default: 1.")
@click.option("--rack", metavar="NAME", help="Name the nodes NAME-1 to NAME-N. Unique for each host on a store.")
@machines_option
@click.option("--first-vm", is_flag=True, help=f"Create a first machine, {FIRST}, if there are no machines.")
@click.option("--prefer-machines", "preferred", metavar="KIND", hidden=True, help="The driver if none is configured.")
@click.option("--detach", is_flag=True, help="Continue in the background when ready; stop it with hostler down.")
@click.option("--background", is_flag=True, hidden=True, help="Set by --detach for the process it starts.")
@plane_options
@flag_options((AGENT_LISTEN,))
def up(
    *, first_vm: bool, detach: bool, background: bool, preferred: str | None, accept_cluster: bool, **flags: Any
) -> None:
    """Run everything in one process: the control plane, its API and the agents of some nodes. Ctrl-C stops it.

    Prints `ready http://…` when it serves. The first start creates the account `admin` and writes its token to
    DATA/admin.token, where the other commands find it. Machines keep running after it ends, and the next start finds
    them.
    """
    from hostler.entry.data_dir import DataFolder
    from hostler.settings import load

    settings = load(flags)
    if settings.origins["machines"].layer == "default":  # the driver of existing machines takes precedence
        flags["machines"] = DataFolder(settings.data).kind() or preferred
        settings = load(flags)
    if detach:
        switches = {"--first-vm": first_vm, "--accept-cluster": accept_cluster}
        code = _detached(settings, flags, [name for name, given in switches.items() if given])
    else:
        code = complete(_run(settings, first_vm, background, accept_cluster))
    click.get_current_context().exit(code)


def _detached(settings: Settings, flags: dict[str, Any], switches: list[str]) -> int:
    from hostler.entry.data_dir import DataFolder
    from hostler.entry.detach import detached
    from hostler.settings.driver import all_options

    folder = DataFolder(settings.data)
    with folder.held():  # report a folder that is in use before anything is started
        pass
    secrets = {option.name: option.variable for option in all_options() if option.secret}  # all users can see arguments
    environ = {secrets[name]: str(value) for name, value in flags.items() if name in secrets and value is not None}
    flags = {name: value for name, value in flags.items() if name not in secrets}
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items() if value not in (None, True)]
    arguments += [f"--{name}" for name, value in flags.items() if value is True]
    arguments += ["--background", *switches]
    output = folder.log_file.with_name("up.out")
    return detached(arguments, output, lambda text: click.echo(text, nl=False), environ)


async def _run(settings: Settings, first_vm: bool, background: bool, accept_cluster: bool) -> int:
    from hostler.entry.up import Up

    async def ready(now: Ready) -> None:
        _ready(now, settings)
        if first_vm:
            await _first(now, settings)
        _farewell(now, settings, background=background)

    return await Up(settings, _tell, ready, first_vm=first_vm, accept_cluster=accept_cluster).run()


def _tell(text: str) -> None:
    click.echo(one_line(text))


def _ready(now: Ready, settings: Settings) -> None:
    click.echo(f"ready {now.url}")
    click.echo(f"web {now.url}/ (sign in: {called()} web{_where(now, settings)})")
    if now.token is not None:
        kept = now.folder.token_file
        # Output of a service ends up in a journal that other users can read, so the token is not printed there.
        shown = (
            f"this token (shown once, kept in {kept}):\n  {now.token}"
            if sys.stdout.isatty()
            else f"the token in {kept}"
        )
        click.echo(f"\nlogin: admin, with {shown}")
    elif now.folder.read(now.folder.token_file) is None:
        click.echo(
            "\nno admin.token here: use your own token (HOSTLER_TOKEN), or create a new one: hostler user recover"
        )


async def _first(now: Ready, settings: Settings) -> None:
    """Create the first machine through the public API."""
    from hostler.client import Client
    from hostler.entry.cli.vm.create import own_keys
    from hostler.entry.cli.vm.wait import Steps, described
    from hostler.errors import Conflict, HostlerError
    from hostler.model.api import VmCreate
    from hostler.model.vm import VmSpec
    from hostler.wiring import machine_driver

    token = now.token or now.folder.read(now.folder.token_file)
    if token is None:
        return
    steps, last = Steps(), ""

    def changed(view: VmView) -> None:
        nonlocal last
        steps.seen(view)
        if sample.shows_steps and steps.now != last:
            last = steps.now
            click.echo(f"first machine: {FIRST}, {show.safe(last)}")

    sample = machine_driver(settings.machines).first
    try:
        async with Client(now.url, token) as client:
            if not (await client.vms.list("default", "default", limit=1)).items:
                spec = VmSpec(cpus=1, memory_mib=sample.memory_mib, ssh_keys=own_keys())
                await client.vms.create("default", "default", VmCreate(name=FIRST, spec=spec))
            view = await client.vms.wait(
                "default", "default", FIRST, available=True, within=sample.within, on_change=changed
            )
            if view is not None:
                click.echo(f"\nfirst machine: {view.name}, {show.safe(described(view))}")
            if view is not None and view.access is not None:
                click.echo(f"log in:\n\n  {called()} vm ssh {FIRST}{_where(now, settings)}")
    except Conflict:
        return
    except HostlerError as error:
        click.echo(f"\nfirst machine: {one_line(str(error))}", err=True)


def _where(now: Ready, settings: Settings) -> str:
    return "" if settings.origins["data"].layer == "default" else f" --data {now.folder.path}"


def _farewell(now: Ready, settings: Settings, *, background: bool) -> None:
    from hostler.wiring import machine_driver

    me, where = called(), _where(now, settings)
    end = f"{me} down{where}" if background else "Ctrl-C"
    click.echo(f"\ntry{'' if background else ', in another terminal'}:\n")
    click.echo(f"  {me} vm create web {machine_driver(settings.machines).first.example} --wait{where}")
    click.echo(f"  {me} vm list{where}")
    click.echo(f"  {me} vm why web{where}")
    click.echo(f"\nAPI docs: {now.url}/docs   log: {now.folder.log_file}   end: {end}")

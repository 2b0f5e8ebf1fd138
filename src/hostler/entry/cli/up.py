"""`hostler up` and `hostler down`: everything in one process, in the foreground or in the background."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hostler.entry.cli import show
from hostler.entry.cli.failure import one_line
from hostler.entry.cli.options import complete
from hostler.entry.cli.plane_options import AGENT_LISTEN, called, machines_option, plane_options
from hostler.entry.cli.plane_options import flags as flag_options
from hostler.errors import HostlerError, NotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hostler.entry.data_dir import DataFolder
    from hostler.entry.up import Ready
    from hostler.model.vm_api import VmView
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
        code = _run_detached(settings, flags, [name for name, given in switches.items() if given])
    else:
        code = complete(_run(settings, first_vm, background, accept_cluster))
    click.get_current_context().exit(code)


def _run_detached(settings: Settings, flags: dict[str, Any], switches: list[str]) -> int:
    from hostler.entry.data_dir import DataFolder
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
    return run_detached(arguments, output, lambda text: click.echo(text, nl=False), environ)


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
    from hostler.entry.cli.vm.change import own_keys
    from hostler.entry.cli.vm.wait import Steps, described
    from hostler.errors import Conflict, HostlerError
    from hostler.model.vm import VmSpec
    from hostler.model.vm_api import VmCreate
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


ANSWERS_WITHIN = 3.0


@click.command()
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), help="The data folder of hostler up.")
def down(data: Path | None) -> None:
    """Stop the hostler up of a data folder, and wait until it has ended.

    Machines keep running, and the next hostler up finds them. Slices stop, and the next hostler up starts them again.
    """
    from hostler.entry.data_dir import DataFolder
    from hostler.settings import load

    folder = DataFolder(load({"data": data}).data)
    there = asyncio.run(_has_machines(folder)) if folder.holder() else False
    if not ended(folder):
        raise NotFound(f"data folder {folder.path}: no hostler up runs there; name its folder with --data")
    click.echo("ended; the machines run on" if there else "ended")


async def _has_machines(folder: DataFolder) -> bool:
    """Return whether the server has machines. True if the server does not answer, because it may have some."""
    from hostler.client import Client

    url, token = folder.read(folder.server_file), folder.read(folder.token_file)
    if not url or not token:
        return True
    try:
        async with asyncio.timeout(ANSWERS_WITHIN), Client(url, token.strip(), insecure=True) as client:
            return bool((await client.vms.rows(limit=1, stale=True)).items)
    except (HostlerError, TimeoutError):
        return True


LAST = "end: "
"""Prefix of the last line of `up`; everything was printed by then."""
READY_WITHIN = 60.0
"""Seconds without output after which `up` is considered failed."""
SAID_WITHIN = 360.0
"""Same limit once it is ready; longer, because creating the first machine is slow and not required."""
END_WITHIN = 20.0
LOOK_EVERY = 0.05


def run_detached(
    arguments: Sequence[str], output: Path, show: Callable[[str], None], environ: Mapping[str, str] | None = None
) -> int:
    """Run `hostler up` with these arguments in a new session. Return 0 once its output is complete, else its exit code.

    `environ` holds additional environment variables. The output is shown as it arrives. Unavailable: `up` was not ready
    in time; it is terminated.
    """
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        process = subprocess.Popen(
            [*_program(), "up", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
            env={**os.environ, **(environ or {})},
        )
    finally:
        os.close(descriptor)
    shown, until = 0, time.monotonic() + READY_WITHIN
    while True:
        code = process.poll()
        said = output.read_text(encoding="utf-8", errors="replace")
        if len(said) > shown:
            show(said[shown:])
            until = time.monotonic() + (SAID_WITHIN if "\nready " in f"\n{said}" else READY_WITHIN)
        shown = len(said)
        if code is not None:
            return code
        if any(LAST in line for line in said.splitlines()):
            os.truncate(output, 0)  # the file holds the token, which is shown only once
            return 0
        if time.monotonic() > until:
            process.terminate()
            raise Unavailable(f"hostler up: not ready after {READY_WITHIN:g} s; see {output}")
        time.sleep(LOOK_EVERY)


def _program() -> list[str]:
    """Return the command of this program as the user called it, so that usage messages show the same name."""
    mine = Path(sys.argv[0])
    return [sys.executable, str(mine)] if mine.name == "hostler" else [sys.executable, "-m", "hostler"]


def ended(folder: DataFolder) -> bool:
    """Stop the `up` of a folder and wait for its end. Return False if none runs.

    Unavailable: it did not end in time.
    """
    holder = folder.holder()
    if not holder:
        return False
    os.kill(holder, signal.SIGTERM)
    until = time.monotonic() + END_WITHIN
    while folder.holder() == holder:
        if time.monotonic() > until:
            raise Unavailable(
                f"hostler up (process {holder}): still running {END_WITHIN:g} s after SIGTERM; see its log"
            )
        time.sleep(LOOK_EVERY)
    return True

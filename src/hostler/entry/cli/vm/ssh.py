"""`hostler vm ssh`: a shell or a command in a machine, on any node."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from hostler.entry.cli.failure import tell_failure
from hostler.entry.cli.server_options import chosen_server, project_options, reached, server_options
from hostler.entry.cli.store_option import complete
from hostler.errors import HostlerError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from hostler.client import Client
    from hostler.entry.cli.server_options import Server
    from hostler.model.vm_api import VmView


def identity_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--user` and `-i`."""
    user = click.option("-u", "--user", metavar="NAME", help="The login user. Default: the user of the machine.")
    identity = click.option(
        "-i",
        "--identity",
        "identities",
        multiple=True,
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="KEY",
        help="Use only this private key; repeatable. Default: Hostler's own key, and those of ssh-agent and ~/.ssh.",
    )
    return user(identity(command))


@click.command(context_settings={"ignore_unknown_options": False})
@click.argument("vm")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("-t", "--terminal", is_flag=True, help="Give the command a terminal.")
@identity_options
@project_options
@server_options
def ssh(
    *,
    vm: str,
    command: tuple[str, ...],
    terminal: bool,
    user: str | None,
    identities: tuple[Path, ...],
    org: str,
    project: str,
) -> None:
    """Log into the machine VM, or run a COMMAND there and exit with its code.

    The host key of the machine is verified without a prompt. Words after -- are passed on as they are; a single word is
    run as a shell command line. Type `~.` at the start of a line to end a session that hangs.

    \b
    hostler vm ssh web
    hostler vm ssh web -- uname -a
    hostler vm ssh web 'cd /etc && tar c .' > etc.tar
    """
    said = Said.of(command, terminal=terminal)
    run_to_its_code(_ssh(chosen_server(), org, project, vm, said=said, login=Login(user, identities)))


class Said(msgspec.Struct, frozen=True):
    """What to run: a shell command line, or None for an interactive shell; and whether it gets a terminal."""

    line: str | None
    terminal: bool

    @classmethod
    def of(cls, command: tuple[str, ...], *, terminal: bool) -> Said:
        """Build it from the command-line arguments."""
        if terminal and not sys.stdin.isatty():
            raise click.UsageError("--terminal: standard input is not a terminal; leave it out")
        line = command[0] if len(command) == 1 else shlex.join(command) if command else None
        return cls(line, terminal or (line is None and sys.stdin.isatty()))


class Login(msgspec.Struct, frozen=True):
    """The login user and keys: `identities` only, or without them the default keys and `also`."""

    user: str | None
    identities: tuple[Path, ...]
    also: tuple[Path, ...] = ()


def run_to_its_code(work: Coroutine[Any, Any, int]) -> None:
    """Exit with the code of the remote command; with 255 on an error, as ssh does."""
    try:
        code = complete(work)
    except HostlerError as error:
        tell_failure(error)
        code = 255
    click.get_current_context().exit(code)


async def _ssh(server: Server, org: str, project: str, vm: str, *, said: Said, login: Login) -> int:
    async with reached(server) as client:
        view = await client.vms.get(org, project, vm)
        return await run_there(client, view, said, login, f"hostler vm ssh {vm}")


async def run_there(client: Client, view: VmView, said: Said, login: Login, again: str) -> int:
    """Run it in the machine and return its exit code. Unavailable: the connection was lost; `again` logs in again."""
    from hostler.entry.cli.vm.remote import LOST, run
    from hostler.entry.ssh import logged_in

    channel = client.vms.ssh(view.org, view.project, view.id)
    async with logged_in(channel, view, user=login.user, identities=login.identities, also=login.also) as connection:
        code = await run(connection, said.line, terminal=said.terminal)
        if code == LOST and connection.is_closed():
            raise Unavailable(f"vm {view.name}: the connection was lost before the end; log in again: {again}")
        return code

"""`hostler vm ssh`: a shell or a command in a machine, wherever it stands."""

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
    from hostler.model.api import VmView


def identity_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--user` and `-i`."""
    user = click.option("-u", "--user", metavar="NAME", help="Who to log in as; otherwise its own user.")
    identity = click.option(
        "-i",
        "--identity",
        "identities",
        multiple=True,
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="KEY",
        help="A private key to log in with, and no other; otherwise Hostler's own, those of ssh-agent and of ~/.ssh.",
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
    """Log into the machine VM, or run a COMMAND there; its exit code is ours.

    The machine is known by the host key that it was made with, and nothing is asked. Behind --, words are passed on as
    they are; one word is taken for a line of the shell there. `~.` at the beginning of a line ends a shell that hangs.

    \b
    hostler vm ssh web
    hostler vm ssh web -- uname -a
    hostler vm ssh web 'cd /etc && tar c .' > etc.tar
    """
    said = Said.of(command, terminal=terminal)
    run_to_its_code(_ssh(chosen_server(), org, project, vm, said=said, login=Login(user, identities)))


class Said(msgspec.Struct, frozen=True):
    """What shall run there: a line of the shell, or None for a shell; and whether it gets a terminal."""

    line: str | None
    terminal: bool

    @classmethod
    def of(cls, command: tuple[str, ...], *, terminal: bool) -> Said:
        """As it was typed."""
        if terminal and not sys.stdin.isatty():
            raise click.UsageError("--terminal: standard input is none; leave it out")
        line = command[0] if len(command) == 1 else shlex.join(command) if command else None
        return cls(line, terminal or (line is None and sys.stdin.isatty()))


class Login(msgspec.Struct, frozen=True):
    """As whom, and with which keys: those that are named; else the usual ones, and `also`."""

    user: str | None
    identities: tuple[Path, ...]
    also: tuple[Path, ...] = ()


def run_to_its_code(work: Coroutine[Any, Any, int]) -> None:
    """End as the command there does. Its own codes may be any but 255, as with ssh."""
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
    """The exit code of what runs in the machine. Unavailable: it was lost on the way; `again` begins anew."""
    from hostler.entry.cli.vm.remote import LOST, run
    from hostler.entry.ssh import logged_in

    channel = client.vms.ssh(view.org, view.project, view.id)
    async with logged_in(channel, view, user=login.user, identities=login.identities, also=login.also) as connection:
        code = await run(connection, said.line, terminal=said.terminal)
        if code == LOST and connection.is_closed():
            raise Unavailable(f"vm {view.name}: the connection was lost before the end; log in again: {again}")
        return code

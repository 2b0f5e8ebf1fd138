"""`hostler vm ssh`: a shell or a command in a machine, wherever it stands."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hostler.entry.cli.failure import tell_failure
from hostler.entry.cli.reach import chosen_server, project_options, reached, server_options
from hostler.entry.cli.target import complete
from hostler.errors import HostlerError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.entry.cli.reach import Server


def identity_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--user` and `-i`."""
    user = click.option("-u", "--user", metavar="NAME", help="Who to log in as; otherwise the user of its image.")
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
    line = command[0] if len(command) == 1 else shlex.join(command) if command else None
    wants = terminal or (line is None and sys.stdin.isatty())
    if terminal and not sys.stdin.isatty():
        raise click.UsageError("--terminal: standard input is none; leave it out")
    try:
        code = complete(_ssh(chosen_server(), org, project, vm, line, wants, user, identities))
    except HostlerError as error:  # the command's own codes may be any but this, as with ssh
        tell_failure(error)
        code = 255
    click.get_current_context().exit(code)


async def _ssh(  # noqa: PLR0917 - where, what, and as whom
    server: Server,
    org: str,
    project: str,
    vm: str,
    line: str | None,
    terminal: bool,
    user: str | None,
    identities: tuple[Path, ...],
) -> int:
    from hostler.entry.cli.vm.remote import LOST, run
    from hostler.entry.ssh import logged_in

    async with reached(server) as client:
        view = await client.vms.get(org, project, vm)
        channel = client.vms.ssh(org, project, view.id)
        async with logged_in(channel, view, user=user, identities=identities) as connection:
            code = await run(connection, line, terminal=terminal)
            if code == LOST and connection.is_closed():
                raise Unavailable(f"vm {vm}: the connection was lost before the end; log in again: hostler vm ssh {vm}")
            return code

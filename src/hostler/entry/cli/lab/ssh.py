"""`hostler lab ssh`: like `hostler vm ssh`, for the machine of a user's lab."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from hostler.entry.cli.server_options import chosen_server, reached, server_options
from hostler.entry.cli.vm.ssh import Login, Said, identity_options, run_there, run_to_its_code
from hostler.errors import Unavailable
from hostler.model.lab import ORG, lab_project
from hostler.settings import load

if TYPE_CHECKING:
    from pathlib import Path

    from hostler.entry.cli.server_options import Server


@click.command(context_settings={"ignore_unknown_options": False})
@click.argument("owner", metavar="USER")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("-t", "--terminal", is_flag=True, help="Give the command a terminal.")
@identity_options
@server_options
def ssh(
    *, owner: str, command: tuple[str, ...], terminal: bool, user: str | None, identities: tuple[Path, ...]
) -> None:
    """Log into the lab of USER, or run a COMMAND there and exit with its code.

    On the machine of hostler up, the key of the lab terminal is used. Elsewhere your own key is used, which labs.toml
    must list in ssh_keys.

    \b
    hostler lab ssh ada
    hostler lab ssh ada -- uname -a
    """
    said = Said.of(command, terminal=terminal)
    key = load({"data": click.get_current_context().meta.get("hostler.data")}).lab_key
    also = (key,) if os.access(key, os.R_OK) else ()
    run_to_its_code(_ssh(chosen_server(), owner, said, Login(user, identities, also)))


async def _ssh(server: Server, owner: str, said: Said, login: Login) -> int:
    again = f"hostler lab ssh {owner}"
    async with reached(server) as client:
        lab = await client.labs.get(owner)
        if not lab.vm:
            raise Unavailable(f"lab of {owner}: no machine yet ({lab.phase.value}); see hostler lab watch {owner}")
        return await run_there(client, await client.vms.get(ORG, lab_project(owner), lab.vm), said, login, again)

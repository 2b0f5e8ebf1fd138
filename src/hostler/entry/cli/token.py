"""`hostler user token` and `hostler user recover`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from hostler.entry.cli import show
from hostler.entry.cli.app import LazyGroup
from hostler.entry.cli.failure import note
from hostler.entry.cli.server_options import chosen_server, reached, server_options
from hostler.entry.cli.store_option import complete, store_option
from hostler.entry.cli.value import Duration, moment
from hostler.model.api import TokenCreate

if TYPE_CHECKING:
    from hostler.entry.cli.server_options import Server
    from hostler.settings import Settings

_HERE = "hostler.entry.cli.token"

COMMANDS = {
    "create": (_HERE, "create", "Create a token; it is shown only once."),
    "list": (_HERE, "list_", "List the tokens of an account."),
    "revoke": (_HERE, "revoke", "Revoke a token."),
}


@click.group(cls=LazyGroup, commands_at=COMMANDS)
def token() -> None:
    """Create, list and revoke API tokens."""


@click.command()
@click.argument("user")
@click.option("--name", default="", help="The purpose of the token.")
@click.option("--expires", type=Duration(), help="The token expires after this time: 12h, 30d.")
@show.output_option
@server_options
def create(user: str, name: str, expires: float | None, output: str) -> None:
    """Create a token for the account USER. It is shown only once, alone on standard output."""
    request = TokenCreate(name=name, expires_in=expires)
    request.encode()
    complete(_create(chosen_server(), user, request, output))


async def _create(server: Server, user: str, request: TokenCreate, output: str) -> None:
    async with reached(server) as client:
        issued = await client.users.issue(user, request)
    if output != "table":
        show.emit(msgspec.to_builtins(issued), output)
        return
    click.echo(issued.token)
    note(f"token {issued.id} of {issued.user}: it is not shown again")


@click.command("list")
@click.argument("user")
@show.output_option
@server_options
def list_(user: str, output: str) -> None:
    """List the tokens and sessions of the account USER."""
    complete(_list(chosen_server(), user, output))


async def _list(server: Server, user: str, output: str) -> None:
    async with reached(server) as client:
        page = await client.users.tokens(user)
    if output != "table":
        show.emit(msgspec.to_builtins(page.items), output)
        return
    rows = [
        [each.id, each.purpose.value, moment(each.created_at), moment(each.expires_at) or "never", show.safe(each.name)]
        for each in page.items
    ]
    show.Columns("ID", "FOR", "CREATED", "EXPIRES", "NAME").rows(rows)


@click.command()
@click.argument("user")
@click.argument("token_id", metavar="ID")
@server_options
def revoke(user: str, token_id: str) -> None:
    """Revoke the token ID of the account USER."""
    complete(_revoke(chosen_server(), user, token_id))


async def _revoke(server: Server, user: str, token_id: str) -> None:
    async with reached(server) as client:
        await client.users.revoke(user, token_id)
    click.echo(f"{show.safe(token_id)}: revoked")


@click.command()
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), help="The data folder, as for hostler up.")
@click.option("--remove-password", is_flag=True, help="Also remove its password, if it is lost or known to others.")
@store_option
def recover(data: Path | None, remove_password: bool, store_url: str | None) -> None:
    """Create a new token for the account `admin`, directly in the store, and revoke all its older tokens.

    Use it to regain access if you can reach the store; no server has to run. The token is shown only once, alone on
    standard output. If the store belongs to the data folder, the token is also written to admin.token there.
    """
    from hostler.settings import load

    complete(_recover(load({"data": data, "store": store_url}), remove_password=remove_password))


async def _recover(settings: Settings, *, remove_password: bool) -> None:
    from hostler.entry.cli.store_option import local_path, redacted
    from hostler.entry.control_plane import recovered_admin
    from hostler.entry.data_dir import DataFolder
    from hostler.errors import NotFound

    path = local_path(settings.store)
    if path is not None and not path.exists():
        raise NotFound(f"store {redacted(settings.store)}: no such file; name the store with --store or --data")
    fresh = await recovered_admin(settings, remove_password=remove_password)
    folder = DataFolder(settings.data)
    if path is not None and path.parent == folder.path:
        folder.write(folder.token_file, fresh)
        note(f"kept in {folder.token_file}")
    click.echo(fresh)

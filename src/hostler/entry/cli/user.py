"""`hostler user` and `hostler web`: accounts, their tokens, and the sign-in to the web UI."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from msgspec import UNSET

from hostler.entry.cli import show
from hostler.entry.cli.app import LazyGroup
from hostler.entry.cli.failure import note
from hostler.entry.cli.options import (
    Server,
    chosen_server,
    complete,
    local_path,
    open_client,
    redacted,
    server_options,
    store_option,
    with_client,
)
from hostler.entry.cli.progress import ask_if_seen, yes_option
from hostler.entry.cli.show import Duration, moment
from hostler.errors import NotFound
from hostler.model.access import ROLES, Role
from hostler.model.access_api import TokenCreate, UserCreate, UserUpdate
from hostler.model.name import fold

if TYPE_CHECKING:
    from hostler.client import Client
    from hostler.model.access_api import UserView
    from hostler.model.inventory import Rights
    from hostler.settings import Settings


_HERE = __name__

COMMANDS = {
    "create": (_HERE, "create", "Create an account."),
    "list": (_HERE, "list_", "List the accounts."),
    "show": (_HERE, "show_", "Show one account, or yourself."),
    "update": (_HERE, "update", "Change an account."),
    "delete": (_HERE, "delete", "Delete an account and its tokens."),
    "token": (_HERE, "token", "Create, list and revoke API tokens."),
    "recover": (_HERE, "recover", "Create a new token for the administrator, directly in the store."),
}
ROLE_NAMES = [role.value for role in Role]
PAGE = 500


@click.group(cls=LazyGroup, commands_at=COMMANDS)
def user() -> None:
    """Manage accounts and tokens."""


def _password(asked: bool, from_stdin: bool) -> str | None:
    if asked and from_stdin:
        raise click.UsageError("--password and --password-stdin exclude each other")
    if from_stdin:
        return sys.stdin.readline().rstrip("\r\n")
    if asked:
        if not sys.stdin.isatty():
            raise click.UsageError("standard input is not a terminal; give the password with --password-stdin")
        return str(click.prompt("password", hide_input=True, confirmation_prompt=True, err=True))
    return None


def _old_password(from_stdin: bool) -> str:
    if from_stdin:
        return sys.stdin.readline().rstrip("\r\n")
    return str(click.prompt("current password", hide_input=True, err=True))


@click.command()
@click.argument("name")
@click.option("--full-name", default="", help="The full name of the person.")
@click.option("--role", type=click.Choice(ROLE_NAMES), default=Role.MEMBER.value, show_default=True)
@click.option("--member", "member", multiple=True, metavar="ORG[/PROJECT]", help="A membership; * is everything.")
@click.option("--password", "asked", is_flag=True, help="Ask for a password.")
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
@click.option("--disabled", is_flag=True, help="Create the account disabled.")
@show.output_option
@server_options
def create(*, name: str, asked: bool, password_stdin: bool, output: str, **given: Any) -> None:
    """Create the account NAME.

    Without a password, the account can use only tokens: hostler user token create NAME.
    """
    request = UserCreate(
        name=name,
        full_name=given["full_name"],
        password=_password(asked, password_stdin),
        enabled=not given["disabled"],
        role=Role(given["role"]),
        memberships=tuple(given["member"]),
    )
    request.encode()
    complete(_create(chosen_server(), request, output))


async def _create(server: Server, request: UserCreate, output: str) -> None:
    async with open_client(server) as client:
        view = await client.users.create(request)
    _show_account(view, output)


@click.command("list")
@show.output_option
@with_client
async def list_(client: Client, *, output: str) -> None:
    """List the accounts that you may see."""
    found = [view async for view in client.users.list(limit=PAGE)]
    if output != "table":
        show.emit(msgspec.to_builtins(found), output)
        return
    rows = [
        [each.name, _role(each.rights), _state(each), ", ".join(each.memberships), each.full_name] for each in found
    ]
    show.Columns("NAME", "ROLE", "STATE", "MEMBER OF", "FULL NAME").rows([[show.safe(c) for c in row] for row in rows])


def _role(rights: Rights) -> str:
    """Return the role that has exactly these rights, or the names of the rights."""
    for role, bundle in ROLES.items():
        if bundle == rights:
            return role.value
    return "+".join(name for name, given in msgspec.to_builtins(rights).items() if given)


def _state(view: UserView) -> str:
    return ("enabled" if view.enabled else "disabled") + (", protected" if view.protected else "")


@click.command("show")
@click.argument("name", required=False)
@show.output_option
@with_client
async def show_(client: Client, *, name: str | None, output: str) -> None:
    """Show the account NAME. Default: your own account."""
    view = await (client.users.me() if name is None else client.users.get(name))
    _show_account(view, output)


def _show_account(view: UserView, output: str) -> None:
    if output != "table":
        show.emit(msgspec.to_builtins(view), output)
        return
    rows = [
        ("NAME", view.name),
        ("FULL NAME", view.full_name),
        ("ROLE", _role(view.rights)),
        ("STATE", _state(view)),
        ("PASSWORD", "set" if view.has_password else "none: tokens only"),
        ("MEMBER OF", ", ".join(view.memberships)),
        ("CREATED", moment(view.created_at)),
        ("REVISION", str(view.revision)),
    ]
    show.pairs([(name, show.safe(text)) for name, text in rows if text])


@click.command()
@click.argument("name")
@click.option("--full-name", help="The full name of the person.")
@click.option("--role", type=click.Choice(ROLE_NAMES), help="Replace the rights with those of this role.")
@click.option("--member", "member", multiple=True, metavar="ORG[/PROJECT]", help="Replace all memberships; repeatable.")
@click.option("--no-members", is_flag=True, help="Remove all memberships.")
@click.option("--password", "asked", is_flag=True, help="Ask for a new password.")
@click.option(
    "--password-stdin",
    is_flag=True,
    help="Read the new password from standard input, and the current one, if needed, from the next line.",
)
@click.option("--enable/--disable", "enabled", default=None, help="Whether the account can be used.")
@show.output_option
@server_options
def update(*, name: str, asked: bool, password_stdin: bool, output: str, **given: Any) -> None:
    """Change the account NAME. Options that are left out change nothing.

    To change your own password you need the current one. If the administrator's password is lost:
    hostler user recover --remove-password.
    """
    password = _password(asked, password_stdin)
    request = UserUpdate(
        full_name=UNSET if given["full_name"] is None else given["full_name"],
        password=UNSET if password is None else password,
        enabled=UNSET if given["enabled"] is None else given["enabled"],
        role=UNSET if given["role"] is None else Role(given["role"]),
        memberships=tuple(given["member"]) if given["member"] or given["no_members"] else UNSET,
    )
    if request == UserUpdate():
        raise click.UsageError("nothing to change; hostler user update --help lists the options")
    request.encode()
    complete(_update(chosen_server(), name, request, output, from_stdin=password_stdin))


async def _update(server: Server, name: str, request: UserUpdate, output: str, *, from_stdin: bool) -> None:
    async with open_client(server) as client:
        if request.password is not UNSET:
            me = await client.users.me()
            if fold(me.name) == fold(name) and me.has_password:
                request = msgspec.structs.replace(request, old_password=_old_password(from_stdin))
        view = await client.users.update(name, request)
    _show_account(view, output)


@click.command()
@click.argument("name")
@yes_option
@server_options
def delete(name: str, yes: bool) -> None:
    """Delete the account NAME and its tokens. Asks for confirmation at a terminal."""
    ask_if_seen(f"Delete the account {show.safe(name)}?", yes=yes)
    complete(_delete(chosen_server(), name))


async def _delete(server: Server, name: str) -> None:
    async with open_client(server) as client:
        await client.users.delete(name)
    click.echo(f"{show.safe(name)}: deleted")


TOKEN_COMMANDS = {
    "create": (_HERE, "create_token", "Create a token; it is shown only once."),
    "list": (_HERE, "list_tokens", "List the tokens of an account."),
    "revoke": (_HERE, "revoke", "Revoke a token."),
}


@click.group(cls=LazyGroup, commands_at=TOKEN_COMMANDS)
def token() -> None:
    """Create, list and revoke API tokens."""


@click.command("create")
@click.argument("user")
@click.option("--name", default="", help="The purpose of the token.")
@click.option("--expires", type=Duration(), help="The token expires after this time: 12h, 30d.")
@show.output_option
@server_options
def create_token(user: str, name: str, expires: float | None, output: str) -> None:
    """Create a token for the account USER. It is shown only once, alone on standard output."""
    request = TokenCreate(name=name, expires_in=expires)
    request.encode()
    complete(_create_token(chosen_server(), user, request, output))


async def _create_token(server: Server, user: str, request: TokenCreate, output: str) -> None:
    async with open_client(server) as client:
        issued = await client.users.issue(user, request)
    if output != "table":
        show.emit(msgspec.to_builtins(issued), output)
        return
    click.echo(issued.token)
    note(f"token {issued.id} of {issued.user}: it is not shown again")


@click.command("list")
@click.argument("user")
@show.output_option
@with_client
async def list_tokens(client: Client, *, user: str, output: str) -> None:
    """List the tokens and sessions of the account USER."""
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
@with_client
async def revoke(client: Client, *, user: str, token_id: str) -> None:
    """Revoke the token ID of the account USER."""
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
    from hostler.entry.control_plane import recovered_admin
    from hostler.entry.data_dir import DataFolder

    path = local_path(settings.store)
    if path is not None and not path.exists():
        raise NotFound(f"store {redacted(settings.store)}: no such file; name the store with --store or --data")
    fresh = await recovered_admin(settings, remove_password=remove_password)
    folder = DataFolder(settings.data)
    if path is not None and path.parent == folder.path:
        folder.write(folder.token_file, fresh)
        note(f"kept in {folder.token_file}")
    click.echo(fresh)


@click.command()
@click.option("--print", "only_print", is_flag=True, help="Print the address instead of opening it.")
@with_client
async def web(client: Client, *, only_print: bool) -> None:
    """Open the web UI, signed in as the account of the token.

    The URL contains a ticket that signs in once, within 60 seconds. If no browser can be opened, the URL is printed.
    With --print it is printed alone on standard output. To sign in without this command, open the server's URL and
    enter a name and password, or a token.
    """
    told = await client.users.web_ticket()
    url = client.url
    address = f"{url}{told.url}/{told.ticket}"
    if not only_print:
        if _opened(address):
            click.echo(f"opened {url}/")
            return
        note("note: no browser could be opened here; open this address yourself")
    click.echo(address)
    note("it signs in once, within 60 s; treat it like a password until then")


def _opened(address: str) -> bool:
    """Open a browser; return whether that worked. A text browser is tried only if BROWSER names it."""
    import webbrowser

    seen = sys.platform != "linux" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    return seen and webbrowser.open(address)

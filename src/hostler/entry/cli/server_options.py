"""The server that a command asks, the token that it uses, and what it reads there.

Server: --server, else HOSTLER_SERVER, else the `hostler up` of the data folder, else the replica of this machine if
the settings name a cluster. Token: --token-file, --token, HOSTLER_TOKEN, HOSTLER_TOKEN_FILE, else the administrator's
token of the data folder, which is sent only to that folder's own server.
"""

from __future__ import annotations

import functools
import os
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import click
import msgspec

from hostler.entry.cli import show
from hostler.entry.cli.failure import note
from hostler.entry.cli.store_option import complete
from hostler.entry.cli.value import span
from hostler.entry.data_dir import DataFolder
from hostler.errors import Invalid, NotFound, Unauthenticated, Unavailable
from hostler.kit.host import WILDCARDS
from hostler.model.access import DEFAULT
from hostler.settings import load
from hostler.settings.value import split_address
from hostler.wiring import is_shared_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence

    from hostler.client import Client
    from hostler.client.pages import Page, Pages
    from hostler.settings import Settings


P = TypeVar("P")
Q = ParamSpec("Q")
T = TypeVar("T")

PAGE = 500
"""Items that one request for a list asks for."""


def server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--server`, `--token`, `--token-file` and `--data`; `chosen_server` reads them from the context."""
    for option in reversed(
        (
            click.option("--server", metavar="URL", expose_value=False, callback=_keep, help=_SERVER_HELP),
            click.option("--token", metavar="TOKEN", expose_value=False, callback=_keep, help=_TOKEN_HELP),
            click.option(
                "--token-file",
                type=click.Path(dir_okay=False, path_type=Path),
                expose_value=False,
                callback=_keep,
                help="A file that contains the token.  [env: HOSTLER_TOKEN_FILE]",
            ),
            click.option(
                "--ca",
                metavar="FILE",
                expose_value=False,
                callback=_keep,
                help="Trust the certificates of these authorities (PEM).  [env: HOSTLER_CA]",
            ),
            click.option(
                "--insecure",
                is_flag=True,
                expose_value=False,
                callback=_keep,
                help="Allow sending the token over plain HTTP.",
            ),
            click.option(
                "--data",
                type=click.Path(file_okay=False, path_type=Path),
                expose_value=False,
                callback=_keep,
                help="The data folder of the hostler up to use.  [env: HOSTLER_DATA]",
            ),
        )
    ):
        command = option(command)
    return command


_SERVER_HELP = (
    "The server, or several separated by commas, tried in order. Default: the hostler up of the data folder."
    "  [env: HOSTLER_SERVER]"
)
_TOKEN_HELP = "The token. Other users of this machine can see it: prefer the variable or a file.  [env: HOSTLER_TOKEN]"  # noqa: S105


def org_option(command: Callable[..., Any]) -> Callable[..., Any]:
    option = click.option("--org", default=DEFAULT, envvar="HOSTLER_ORG", show_default=True, show_envvar=True)
    return option(command)


def project_options(command: Callable[..., Any]) -> Callable[..., Any]:
    project = click.option("--project", default=DEFAULT, envvar="HOSTLER_PROJECT", show_default=True, show_envvar=True)
    return org_option(project(command))


def _keep(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
    if value is not None:
        ctx.meta[f"hostler.{parameter.name}"] = value
    return value


class Server:
    """A server and a token, with the source of each."""

    def __init__(self, url: str, token: str, url_from: str, token_from: str) -> None:
        self.url, self.token, self.url_from, self.token_from = url, token, url_from, token_from


def chosen_server() -> Server:
    """Return the server and the token. NotFound: no server is known. Unauthenticated: no token for it is known."""
    given = click.get_current_context().meta
    settings = load({"data": given.get("hostler.data")})
    folder = DataFolder(settings.data)
    own = folder.read(folder.server_file)
    url, url_from = given.get("hostler.server"), "--server"
    if url is None:
        url, url_from = os.environ.get("HOSTLER_SERVER") or None, "HOSTLER_SERVER"
    if url is None:
        url, url_from = own, str(folder.server_file)
    if url is None:
        url, url_from = _own_replica(settings), "listen"
        if settings.tls_cert is not None:  # without TLS, another program could take the port of a stopped replica
            own = url
    if url is None:
        raise NotFound(
            f"server: none is known, and no hostler up runs in {folder.path}; start it with hostler up,"
            " or name a server with --server or HOSTLER_SERVER"
        )
    url = url.rstrip("/")
    for one in url.split(","):
        if not one.strip().startswith(("http://", "https://")):
            raise Invalid(f"{url_from} {one!r}: must be http://host:port or https://host:port")
    token, token_from = _token(given, folder if url == own else None)
    return Server(url, token, url_from, token_from)


def _own_replica(settings: Settings) -> str | None:
    """Return the URL of this machine's replica, by the settings; None: the settings do not name a cluster."""
    if not is_shared_store(settings.store):
        return None
    host, port = split_address(settings.listen)
    host = WILDCARDS.get(host, host)
    place = f"[{host}]" if ":" in host else host
    return f"{'http' if settings.tls_cert is None else 'https'}://{place}:{port}" if port else None


def _token(given: dict[str, Any], folder: DataFolder | None) -> tuple[str, str]:
    file = given.get("hostler.token_file")
    if file is not None:
        return _from_file(file), str(file)
    for found, name in ((given.get("hostler.token"), "--token"), (os.environ.get("HOSTLER_TOKEN"), "HOSTLER_TOKEN")):
        if found:
            return found, name
    named = os.environ.get("HOSTLER_TOKEN_FILE")
    if named:
        return _from_file(Path(named)), "HOSTLER_TOKEN_FILE"
    if folder is not None and (token := folder.read(folder.token_file)) is not None:
        return token, str(folder.token_file)
    raise Unauthenticated("token: none is known for this server; set HOSTLER_TOKEN, or name a file with --token-file")


def _from_file(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise Invalid(f"token file {path}: cannot be read: {reason}; name another file") from None
    if not token:
        raise Invalid(f"token file {path}: it is empty; put the token into it")
    return token


@asynccontextmanager
async def reached(server: Server) -> AsyncIterator[Client]:
    """Return an open client for the server."""
    from hostler.client import Client

    given = click.get_current_context().meta
    insecure, ca = bool(given.get("hostler.insecure")), given.get("hostler.ca") or os.environ.get("HOSTLER_CA") or None
    try:
        client = Client(server.url, server.token, ca=ca, insecure=insecure, on_slowed=note)
    except Invalid as error:
        raise Invalid(str(error).replace("say insecure=True", "say --insecure")) from None
    async with client:
        yield client


def with_client(command: Callable[Concatenate[Client, Q], Coroutine[Any, Any, None]]) -> Callable[Q, None]:
    """Add the options of a server, and run the command with a client of that server."""

    @functools.wraps(command)
    def run(*args: Q.args, **options: Q.kwargs) -> None:
        complete(_run(chosen_server(), command, *args, **options))

    return server_options(run)


async def _run(
    server: Server,
    command: Callable[Concatenate[Client, Q], Coroutine[Any, Any, None]],
    *args: Q.args,
    **options: Q.kwargs,
) -> None:
    async with reached(server) as client:
        await command(client, *args, **options)


async def read(client: Client, asked: Callable[[bool], Awaitable[T]]) -> T:
    """Return what `asked(stale)` answers: fresh or, while the store is unreachable, the last known state."""
    try:
        return await asked(False)
    except Unavailable as error:
        try:
            answer = await asked(True)
        except Unavailable:
            raise error from None
    note(f"note: the store is unreachable; this is the state of {span(client.stale_for)} ago")
    return answer


async def all_of(client: Client, list_: Callable[..., Pages[P, T]], limit: int | None = None) -> AsyncIterator[T]:
    """Yield all items that `list_` of the client returns, or the first `limit`; each page is fetched by `read`."""
    left, after = limit, None
    while left is None or left > 0:
        count = PAGE if left is None else min(PAGE, left)

        def asked(stale: bool, after: str | None = after, count: int = count) -> Pages[P, T]:
            return list_(limit=count, after=after, stale=stale)

        page: Page[T] = await read(client, asked)  # type: ignore[arg-type]
        for item in page.items:
            yield item
        left = None if left is None else left - len(page.items)
        after = page.after
        if after is None:
            return


def show_all(
    found: Sequence[T], output: str, heads: Sequence[str], row: Callable[[T], Sequence[str]], none: str
) -> None:
    """Show all items; if a table would be empty, print the note `none`."""
    if output != "table":
        show.emit(msgspec.to_builtins(found), output)
    elif not found:
        note(none)
    else:
        show.Columns(*heads).rows([row(each) for each in found])

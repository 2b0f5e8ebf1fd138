"""Where a command works: at a store, or at a server with a token; and what it reads there.

Server: --server, else HOSTLER_SERVER, else the `hostler up` of the data folder, else the replica of this machine if
the settings name a cluster. Token: --token-file, --token, HOSTLER_TOKEN, HOSTLER_TOKEN_FILE, else the administrator's
token of the data folder, which is sent only to that folder's own server.
"""

from __future__ import annotations

import asyncio
import functools
import os
import re
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import quote, unquote, urlsplit

import click
import msgspec

from hostler.entry.cli import show
from hostler.entry.cli.failure import note
from hostler.entry.cli.show import span
from hostler.entry.data_dir import DataFolder
from hostler.errors import HostlerError, Invalid, NotFound, Unauthenticated, Unavailable
from hostler.kit.host import WILDCARDS
from hostler.model.access import DEFAULT
from hostler.settings import load
from hostler.settings.value import split_address
from hostler.wiring import is_shared_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence

    from hostler.client import Client
    from hostler.client.resource import Page, Pages
    from hostler.ports.store import Store
    from hostler.settings import Settings


P = TypeVar("P")
T = TypeVar("T")


HIDDEN = "***"
LOCAL = ("sqlite", "file")
"""Schemes that name a file and never contain a secret."""
_HOST = r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?"
_HOSTS = re.compile(rf"({_HOST}(,{_HOST})*)?")
_PATH = re.compile(r"[A-Za-z0-9_.~/-]*")


def store_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--store URL`, on the command or on its group."""
    return click.option(
        "--store",
        "store_url",
        metavar="URL",
        help="The store: sqlite:///PATH, file:///PATH, etcd://HOST:PORT, …  [env: HOSTLER_STORE]",
    )(command)


def chosen_store(store_url: str | None) -> str:
    """Return the URL of the store to use."""
    if store_url:
        return store_url
    context = click.get_current_context(silent=True)
    while context is not None:
        given = context.params.get("store_url")
        if given:
            return str(given)
        context = context.parent
    url = load().store
    path = local_path(url)
    if path is not None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return url


def redacted(url: str) -> str:
    """Return the URL without secrets, for people to read. Text that may be a secret is hidden.

    A password with an unescaped `/`, `?` or `#` breaks the URL apart, and a piece of it looks like a host or a path.
    Therefore the last `@` ends the credentials, wherever it is.
    """
    from hostler.ports.url import SHOWN

    scheme, mark, rest = url.partition("://")
    if not mark:
        return url if re.fullmatch(r"[\w./:~-]*", url) else HIDDEN
    if not re.fullmatch(r"[a-z][a-z0-9+.-]*", scheme):
        return HIDDEN
    start = f"{scheme}://"
    if not (scheme in LOCAL and rest.startswith("/")):  # a file may have any name
        before, at, rest = rest.rpartition("@")
        if "?" in before:  # the @ may belong to a password in the query, which then continues after it
            return start + HIDDEN
        start += f"{HIDDEN}@" if at else ""
    place, question, query = rest.partition("#")[0].partition("?")
    host, slash, path = place.partition("/")
    if not _HOSTS.fullmatch(host) or not (scheme in LOCAL or _PATH.fullmatch(path)):
        return start.removesuffix(f"{HIDDEN}@") + HIDDEN
    options = (part.partition("=") for part in query.split("&"))
    shown = "&".join(
        f"{name}={value if name in SHOWN else HIDDEN}" if name in SHOWN or name == "password" else HIDDEN
        for name, _, value in options
    )
    return start + host + slash + path + question + (shown if question else "")


def local_path(url: str) -> Path | None:
    """Return the file that the URL names, or None if it does not name a file."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    if parts.scheme not in LOCAL or parts.netloc or not parts.path:
        return None
    return Path(unquote(parts.path))


def path_url(scheme: str, path: Path) -> str:
    """Return the URL of a store in a local file."""
    return f"{scheme}://{quote(str(path.absolute()))}"


@asynccontextmanager
async def open_chosen(url: str, *, create: bool) -> AsyncIterator[Store]:
    """Open the store. NotFound: it is a local file that does not exist, and `create` is False.

    A mistyped path must not create a new, empty store that the user takes for the real one.
    """
    from hostler.wiring import open_store

    store = open_store(url)
    path = local_path(url)
    if path is not None and not create and not path.exists():
        raise NotFound(f"store {redacted(url)}: no such file; the first put creates it")
    try:
        async with store:
            yield store
    except HostlerError as error:
        if path is None:  # a message about a local store names its file
            error.add_note(f"store {redacted(url)}")
        raise


def complete(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end on a new event loop."""
    return asyncio.run(work)


Q = ParamSpec("Q")

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
async def open_client(server: Server) -> AsyncIterator[Client]:
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
    async with open_client(server) as client:
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

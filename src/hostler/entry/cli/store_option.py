"""The store that a command uses: `--store`, else HOSTLER_STORE, else the settings, else the embedded store."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

import click

from hostler.errors import HostlerError, NotFound

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from hostler.ports.store import Store

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


def chosen(store_url: str | None) -> str:
    """Return the URL of the store to use."""
    if store_url:
        return store_url
    context = click.get_current_context(silent=True)
    while context is not None:
        given = context.params.get("store_url")
        if given:
            return str(given)
        context = context.parent
    from hostler.settings import load

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
async def opened(url: str, *, create: bool) -> AsyncIterator[Store]:
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

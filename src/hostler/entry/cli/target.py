"""Which store a command works on: `--store`, else HOSTLER_STORE, else the settings, else the embedded one."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

import click

from hostler.errors import HostlerError, NotFound

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from hostler.ports.store import Store

T = TypeVar("T")


def store_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--store URL`, on the command or on its group."""
    return click.option(
        "--store",
        "store_url",
        metavar="URL",
        help="The store: sqlite:///PATH, file:///PATH, etcd://HOST:PORT, …  [env: HOSTLER_STORE]",
    )(command)


def chosen(store_url: str | None) -> str:
    """The URL of the store to work on."""
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
    """The URL without secrets, for people to read."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")
        user = host[0].partition(":")[0]
        netloc = f"{user}:***@{host[2]}" if ":" in host[0] else parts.netloc
        query = [(k, "***" if k == "password" else v) for k, v in parse_qsl(parts.query, keep_blank_values=True)]
    except ValueError:
        return "(a URL that cannot be read)"
    text = urlunsplit((parts.scheme, netloc, parts.path, urlencode(query, safe="/:,*"), parts.fragment))
    # urlunsplit drops an empty authority for the schemes that it does not know
    return text if "://" in text else text.replace(":", "://", 1)


def local_path(url: str) -> Path | None:
    """The file behind the URL, if it names one."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    if parts.scheme not in ("sqlite", "file") or parts.netloc or not parts.path:
        return None
    return Path(unquote(parts.path))


def path_url(scheme: str, path: Path) -> str:
    """The URL of a store in a local file."""
    return f"{scheme}://{quote(str(path.absolute()))}"


@asynccontextmanager
async def opened(url: str, *, create: bool) -> AsyncIterator[Store]:
    """The open store. NotFound: it is a local file that does not exist, and `create` is False.

    A mistyped path must not turn into a new, empty store whose emptiness is then believed.
    """
    from hostler.wiring import open_store

    store = open_store(url)
    path = local_path(url)
    if path is not None and not create and not path.exists():
        raise NotFound(f"store {redacted(url)}: there is no such file; the first put creates it")
    try:
        async with store:
            yield store
    except HostlerError as error:
        if path is None:  # a message about a local store names its file
            error.add_note(f"store {redacted(url)}")
        raise


def complete(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end on an event loop of its own."""
    return asyncio.run(work)

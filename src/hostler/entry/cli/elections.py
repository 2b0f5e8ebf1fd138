"""The storage for commands about leadership."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import click

from hostler.entry.cli.store_option import local_path, redacted
from hostler.errors import HostlerError, Invalid, NotFound

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from hostler.ports.ttl import TtlStorage
    from hostler.settings import NamespaceOptions


def storage_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--store URL`: any storage that elections can use."""
    return click.option(
        "--store",
        "store_url",
        metavar="URL",
        help="A store (sqlite:///PATH, etcd://HOST:PORT, …), redis://, dynamodb:// or cassandra://.  "
        "[env: HOSTLER_STORE]",
    )(command)


@asynccontextmanager
async def opened_storage(url: str, *, create: bool) -> AsyncIterator[TtlStorage]:
    """Open the storage, in the namespace that the settings select.

    NotFound: the storage is a local file that does not exist, and `create` is False.
    """
    from hostler.settings import load
    from hostler.wiring import open_ttl_storage

    options = load().namespace
    storage = _namespaced(url, options) if options.use_test_namespace else open_ttl_storage(url)
    path = local_path(url)
    if path is not None and not create and not path.exists():
        raise NotFound(f"store {redacted(url)}: no such file; the first replica creates it")
    try:
        async with storage as opened:
            yield opened
    except HostlerError as error:
        if path is None:  # a message about a local store names its file
            error.add_note(f"store {redacted(url)}")
        raise


@asynccontextmanager
async def _namespaced(url: str, options: NamespaceOptions) -> AsyncIterator[TtlStorage]:
    from hostler.keys.namespaced import enter
    from hostler.kit.clock import SystemClock
    from hostler.wiring import is_store, open_store, ttl_storage_on

    if not is_store(url):
        raise Invalid(f"UseTestNamespace: test namespaces need a store, not {redacted(url)}; remove the setting")
    async with open_store(url) as store:
        seen, _ = await enter(store, options, clock=SystemClock())
        yield ttl_storage_on(seen)

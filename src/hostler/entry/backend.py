"""Which store a process of the control plane works on. Chosen once, at start; a running process never switches.

A cluster that cannot be reached at start is an error, unless the settings allow the state file in its place. What a
state file holds from before there was a cluster is moved into it once; from then on nothing starts on the file.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import quote
from uuid import uuid4

from hostler.entry.cli.target import local_path, redacted
from hostler.errors import HostlerError, Invalid, Refused, Unavailable, Uncertain
from hostler.keys.namespaced import enter
from hostler.keys.transfer import MOVED
from hostler.wiring import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from hostler.kit.clock import Clock
    from hostler.ports.store import Store
    from hostler.settings import Settings

CLUSTERS = ("etcd", "etcds")


def is_cluster(url: str) -> bool:
    """Whether several machines can share the store."""
    return url.partition("://")[0] in CLUSTERS


def file_url(path: Path) -> str:
    """The store in a state file."""
    return f"file://{quote(str(path))}"


@asynccontextmanager
async def opened_backend(settings: Settings, clock: Clock, tell: Callable[[str], None]) -> AsyncIterator[Store]:
    """The open store, in the namespace of the settings. Unavailable: out of reach, and nothing else is allowed."""
    url = settings.store
    async with AsyncExitStack() as stack:
        try:
            store = await _reached(url, stack)
        except Unavailable as error:
            if not is_cluster(url):
                raise
            store = await _fallen_back(settings, error, stack, tell)
            cluster = False
        else:
            cluster = is_cluster(url)
            tell(f"store {redacted(url)}")
        if not cluster:
            await _check_not_moved(settings, store)
        seen, _ = await enter(store, settings.namespace, clock=clock)
        if cluster and settings.state_path is not None and settings.state_path.exists():
            await _moved(settings.state_path, seen, clock, tell)
        yield seen


async def _reached(url: str, stack: AsyncExitStack) -> Store:
    store = open_store(url)
    path = local_path(url)
    if path is not None:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise Invalid(f"store {redacted(url)}: {path.parent}: {error.strerror}; name another place") from None
    try:
        await stack.enter_async_context(store)
        await store.status()
    except Uncertain as error:  # a question has no uncertain outcome
        raise Unavailable(str(error)) from None
    except HostlerError as error:
        if path is None:
            error.add_note(f"store {redacted(url)}")
        raise
    return store


async def _fallen_back(
    settings: Settings, error: Unavailable, stack: AsyncExitStack, tell: Callable[[str], None]
) -> Store:
    cluster = redacted(settings.store)
    if not settings.storage_fallback or settings.state_path is None:
        raise Unavailable(
            f"store {cluster}: cannot be reached ({_short(error)}); start it, or check the address;"
            " only where HOSTLER_STORAGE_FALLBACK (fallback in [storage]) is true does it start on the state file"
        ) from None
    tell(f"WARNING: {cluster} cannot be reached: {_short(error)}")
    tell(f"WARNING: working on the state file {settings.state_path} alone, until the next start")
    return await _reached(file_url(settings.state_path), stack)


def _short(error: Exception) -> str:
    """What happened, without the details of those who say so."""
    return str(error).partition(" (")[0].partition("; ")[0]


async def _check_not_moved(settings: Settings, store: Store) -> None:
    """Refused: what it holds is old news, for its machines belong to a cluster."""
    mark = await MOVED.get(store)
    if mark is None:
        return
    url = file_url(settings.state_path) if is_cluster(settings.store) and settings.state_path else settings.store
    into = f" (its id is {mark.value.cluster})" if mark.value.cluster else ""
    raise Refused(
        f"store {redacted(url)}: its machines were moved into a cluster{into}; working on what it held then would run"
        " machines that are elsewhere now, or deleted: wait until the cluster is in reach, or, to go back to this file"
        " for good, stop every process on the cluster and then:"
        f" hostler store delete {MOVED.fill()} --store {redacted(url)}"
    )


async def _moved(path: Path, store: Store, clock: Clock, tell: Callable[[str], None]) -> None:
    """Once: what the state file holds goes into the cluster."""
    from hostler.engine.migration import migrate

    async with open_store(file_url(path)) as old:
        done = await migrate(old, store, source=str(path), clock=clock, new_id=lambda: uuid4().hex)
    if done.elsewhere or not done.before:
        tell(f"{path}: {done}")

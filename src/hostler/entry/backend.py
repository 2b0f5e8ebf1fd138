"""Which store a process of the control plane works on. Chosen once, at start; a running process never switches.

A cluster that cannot be reached at start is an error, unless the settings allow the state file in its place. What a
state file holds from before there was a cluster is moved into it once. Nothing starts on a store whose records were
moved or copied to another one.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import quote
from uuid import uuid4

from hostler.engine.cluster_id import moved_away
from hostler.engine.store_guard import StoreGuard
from hostler.engine.transfer.import_keys import MARKER, check_complete
from hostler.entry.cli.store_option import local_path, redacted
from hostler.entry.control_plane_file import ControlPlaneFile
from hostler.errors import HostlerError, Invalid, Refused, Unavailable, Uncertain
from hostler.keys.namespaced import enter
from hostler.keys.transfer import MOVED
from hostler.settings.value import CLUSTERS
from hostler.wiring import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from hostler.kit.clock import Clock
    from hostler.ports.store import Store
    from hostler.settings import Settings


def is_cluster(url: str) -> bool:
    """Whether several machines can share the store."""
    return url.partition("://")[0] in CLUSTERS


def file_url(path: Path) -> str:
    """The store in a state file."""
    return f"file://{quote(str(path))}"


@asynccontextmanager
async def opened_backend(settings: Settings, clock: Clock, tell: Callable[[str], None]) -> AsyncIterator[Store]:
    """The open store, in the namespace of the settings. Unavailable: out of reach, and nothing else is allowed.

    Refused: its records were copied or moved to another store.
    """
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
        await _check_in_service(settings, store, cluster=cluster)
        seen, _ = await enter(store, settings.namespace, clock=clock)
        if cluster and settings.state_path is not None and settings.state_path.exists():
            await _moved(settings.state_path, seen, clock, tell, redacted(url))
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
        why, _, advice = str(error).partition("; ")
        advice = advice if advice not in ("", "try again later") else "start it, or check the address"
        if settings.state_path is not None:
            advice += (
                "; only where HOSTLER_STORAGE_FALLBACK (fallback in [storage]) is true does it start on the state file"
            )
        raise Unavailable(f"store {cluster}: cannot be reached ({why}); {advice}") from None
    tell(f"WARNING: {cluster} cannot be reached: {_short(error)}")
    tell(f"WARNING: working on the state file {settings.state_path} alone, until the next start")
    return await _reached(file_url(settings.state_path), stack)


def _short(error: Exception) -> str:
    """What happened, without the details of those who say so."""
    return str(error).partition(" (")[0].partition("; ")[0]


async def _check_in_service(settings: Settings, store: Store, *, cluster: bool) -> None:
    """Refused: what the store holds is incomplete, or out of date because another store took over."""
    fell_back = not cluster and is_cluster(settings.store) and settings.state_path is not None
    url = redacted(file_url(settings.state_path) if fell_back and settings.state_path else settings.store)
    check_complete(await store.get(MARKER), f"store {url}")
    mark = await MOVED.get(store)
    if mark is None:
        return
    if mark.value.read_only:
        way = "start on that one"
    else:
        way = "start on that one (if it does not answer, wait until it does)"
    raise Refused(
        f"store {url}: {moved_away(mark.value)}; working on what this one holds would run machines that are elsewhere"
        f" now, or were deleted: {way}. To give the other store up, stop every process on it, and then:"
        f" hostler store activate --store {url}"
    )


@asynccontextmanager
async def guarded_backend(
    settings: Settings, clock: Clock, tell: Callable[[str], None], *, accept: bool = False
) -> AsyncIterator[tuple[Store, StoreGuard]]:
    """The same for a process that leads or serves, with what tells it that the store became another one.

    Refused: the data folder served a newer control plane, or another one, and `accept` is False.
    """
    async with opened_backend(settings, clock, tell) as store:
        memory = control_plane_of(settings, settings.data)
        guard = StoreGuard(store, memory, clock=clock, new_id=lambda: uuid4().hex, accept=accept)
        await guard.check()
        yield store, guard


def control_plane_of(settings: Settings, folder: Path) -> ControlPlaneFile | None:
    """What keeps the control plane that this folder obeys; None in a test namespace, where each start may be anew."""
    return None if settings.namespace.use_test_namespace else ControlPlaneFile(folder)


async def _moved(path: Path, store: Store, clock: Clock, tell: Callable[[str], None], target: str) -> None:
    """Once: what the state file holds goes into the cluster."""
    from hostler.engine.migration import migrate

    async with open_store(file_url(path)) as old:
        done = await migrate(old, store, source=str(path), clock=clock, new_id=lambda: uuid4().hex, target=target)
    if done.elsewhere or not done.before:
        tell(f"{path}: {done}")

"""Choice of the store of a control plane process, made once at start; a running process never switches stores.

If a configured cluster is unreachable at start, the process fails, unless the settings allow the state file instead.
Records that a state file holds from before the cluster existed are migrated into the cluster once. No process starts on
a store whose records were moved or copied to another store.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import quote
from uuid import uuid4

from hostler.engine.cluster_id import StoreGuard, moved_away
from hostler.engine.transfer.import_keys import MARKER, check_complete
from hostler.entry.cli.options import local_path, redacted
from hostler.entry.data_dir import DataFolder
from hostler.errors import Damaged, HostlerError, Invalid, Refused, Unavailable, Uncertain
from hostler.keys.families import MOVED
from hostler.keys.namespace import enter
from hostler.kit.fsync import sync_folder
from hostler.model.node import LastControlPlane
from hostler.wiring import is_shared_store, open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from hostler.kit.clock import Clock
    from hostler.ports.store import Store
    from hostler.settings import Settings


CONTROL_PLANE = "control-plane.json"


def is_cluster(url: str) -> bool:
    """Return whether several hosts can share the store."""
    return is_shared_store(url)


def file_url(path: Path) -> str:
    """Return the URL of the store in a state file."""
    return f"file://{quote(str(path))}"


@asynccontextmanager
async def opened_backend(settings: Settings, clock: Clock, tell: Callable[[str], None]) -> AsyncIterator[Store]:
    """Open the store of the settings, in their namespace.

    Unavailable: the store is unreachable, and no fallback is allowed. Refused: its records were copied or moved to
    another store.
    """
    url = settings.store
    async with AsyncExitStack() as stack:
        try:
            store = await _reach(url, stack)
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
            await _migrate_state_file(settings.state_path, seen, clock, tell, redacted(url))
        yield seen


async def _reach(url: str, stack: AsyncExitStack) -> Store:
    store = open_store(url)
    path = local_path(url)
    if path is not None:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise Invalid(f"store {redacted(url)}: {path.parent}: {error.strerror}; use another path") from None
    try:
        await stack.enter_async_context(store)
        await store.status()
    except Uncertain as error:  # a read has no uncertain outcome
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
                "; to start on the state file instead, set HOSTLER_STORAGE_FALLBACK (fallback in [storage]) to true"
            )
        raise Unavailable(f"store {cluster}: cannot be reached ({why}); {advice}") from None
    tell(f"WARNING: {cluster} cannot be reached: {_short(error)}")
    tell(f"WARNING: using only the state file {settings.state_path} until the next start")
    return await _reach(file_url(settings.state_path), stack)


def _short(error: Exception) -> str:
    """Return the message of an error without its details and advice."""
    return str(error).partition(" (")[0].partition("; ")[0]


async def _check_in_service(settings: Settings, store: Store, *, cluster: bool) -> None:
    """Check that the store is in service.

    Refused: its records are incomplete, or outdated because another store took over.
    """
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
        f"store {url}: {moved_away(mark.value)}; starting on this store would run machines that now run elsewhere"
        f" or were deleted: {way}. To abandon the other store, stop every process on it, and then run:"
        f" hostler store activate --store {url}"
    )


@asynccontextmanager
async def guarded_backend(
    settings: Settings, clock: Clock, tell: Callable[[str], None], *, accept: bool = False
) -> AsyncIterator[tuple[Store, StoreGuard]]:
    """Open the store for a process that leads or serves, with a guard that detects a replaced store.

    Refused: the data folder last served another control plane, or a newer state of this one, and `accept` is False.
    """
    async with opened_backend(settings, clock, tell) as store:
        memory = control_plane_of(settings, settings.data)
        guard = StoreGuard(store, memory, clock=clock, new_id=lambda: uuid4().hex, accept=accept)
        await guard.check()
        yield store, guard


class ControlPlaneFile:
    """A `Memory` (`engine.cluster_id`) in a file of a data folder: the control plane that it last obeyed or served."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / CONTROL_PLANE

    async def read(self) -> LastControlPlane | None:
        """Return the content of the file; None if it does not exist. Damaged: the content is not readable."""
        try:
            data = await asyncio.to_thread(self.path.read_bytes)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unavailable("read", error) from None
        try:
            return LastControlPlane.decode(data)
        except Invalid as error:
            raise Damaged(f"{self.path}: {error}") from None

    async def write(self, last: LastControlPlane) -> None:
        """Replace the file; a reader sees the old one or the new one, also after a power failure."""
        try:
            await asyncio.to_thread(self._replace, last.encode().decode())
        except OSError as error:
            raise self._unavailable("written", error) from None

    def _replace(self, text: str) -> None:
        folder = self.path.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        DataFolder(folder).write(self.path, text)
        sync_folder(folder)

    def _unavailable(self, what: str, error: OSError) -> Unavailable:
        return Unavailable(f"{self.path}: cannot be {what}: {error.strerror}; check the disk and its permissions")


def control_plane_of(settings: Settings, folder: Path) -> ControlPlaneFile | None:
    """Return the file that records which control plane the folder belongs to.

    None in a test namespace, where every start may use a new control plane.
    """
    return None if settings.namespace.use_test_namespace else ControlPlaneFile(folder)


async def _migrate_state_file(path: Path, store: Store, clock: Clock, tell: Callable[[str], None], target: str) -> None:
    """Migrate the records of the state file into the cluster, unless that was done before."""
    from hostler.engine.migration import migrate

    async with open_store(file_url(path)) as old:
        done = await migrate(old, store, source=str(path), clock=clock, new_id=lambda: uuid4().hex, target=target)
    if done.elsewhere or not done.before:
        tell(f"{path}: {done}")

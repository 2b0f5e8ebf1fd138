"""Copy of one store into another, between any engines."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec

from hostler.engine.cluster_id import moved_away
from hostler.engine.transfer.epoch import (
    begin_epoch,
    check_idle,
    continue_revisions,
    is_identity,
    mark_moved,
    service_source,
)
from hostler.engine.transfer.import_keys import MARKER, SYSTEM, Outcome, check_complete, fill
from hostler.engine.transfer.scan import items
from hostler.errors import Refused
from hostler.keys.families import ALIVE, CLOCK, CLUSTER, ENDPOINT, FENCE, LEADER, LOCK, MOVED, REPLICA, ROUTER, TICKET
from hostler.keys.lab import LAB_WORKER
from hostler.model.migration import Moved
from hostler.model.node import Cluster, Epoch, EpochKind
from hostler.ports.store import Put

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from hostler.engine.transfer.epoch import ServiceSource
    from hostler.engine.transfer.import_keys import Progress
    from hostler.ports.store import KeyValue, Operation, Store


OF_PROCESSES = (ALIVE, CLOCK, ENDPOINT, LAB_WORKER, LEADER, LOCK, REPLICA, ROUTER, TICKET)
"""Records that show that a process is alive, works or is reachable, and one-time tickets.

On the copy they would never end: for example, requests of a terminated lab worker would not be reclaimed.
"""


class StoreSource:
    """A store at one revision.

    Keys that are attached to a lease are left out and counted, unless `with_leased`: without their lease they would
    never expire. Records of processes (`OF_PROCESSES`) are left out in every case.
    """

    def __init__(self, store: Store, name: str, prefix: str, *, revision: int, with_leased: bool) -> None:
        self.name, self.revision, self.leased = name, revision, 0
        self._store, self._prefix, self._with_leased = store, prefix, with_leased

    async def entries(self) -> AsyncGenerator[KeyValue, None]:
        self.leased = 0
        async with aclosing(items(self._store, self._prefix, revision=self.revision)) as found:
            async for kv in found:
                if kv.lease is not None:
                    self.leased += 1
                    if not self._with_leased or any(family.match(kv.key) for family in OF_PROCESSES):
                        continue
                if kv.key != MARKER:
                    yield kv


async def source_of(store: Store, name: str, prefix: str, *, with_leased: bool) -> StoreSource:
    """Return the store in its current state. Conflict: it is an unfinished copy itself."""
    check_complete(await store.get(MARKER), name)
    page = await store.range(prefix, limit=1, keys_only=True)
    return StoreSource(store, name, prefix, revision=page.revision, with_leased=with_leased)


class Copied(msgspec.Struct, frozen=True):
    """The result of a copy."""

    outcome: Outcome
    snapshot: StoreSource
    cluster: Cluster | None
    """The control plane that moved; None: there was none, or the source stays in service."""
    revisions_go_on: bool
    """Whether revisions of the target are above those of the source."""


async def copy(
    source: Store,
    target: Store,
    names: tuple[str, str],
    *,
    prefix: str,
    overwrite: bool,
    with_leased: bool,
    keep_source: bool,
    report: Callable[[Progress], None],
) -> Copied:
    """Make the keys under `prefix` in `target` equal to those in `source` now; see `fill` for the outcomes.

    If a control plane worked on the source, it moves: from then on no process starts on the source, and the target
    begins a new epoch. `keep_source`: the control plane stays, and no process starts on the target. Refused: processes
    work on the source, or its records were moved before. `names` are the names of the two stores for users.
    """
    snapshot = await source_of(source, names[0], prefix, with_leased=with_leased)
    service = await service_source(snapshot)
    if service is None:
        outcome = await fill(target, snapshot, prefix, merge=overwrite, report=report)
        return Copied(outcome, snapshot, None, revisions_go_on=True)
    if not keep_source:
        await _check_in_service(source, target, names)
    await check_idle(target, names[1])
    sealing = _Sealing(source, target, service, names, keep_source=keep_source, revision=snapshot.revision)
    go_on = await continue_revisions(target, snapshot.revision)
    outcome = await fill(target, service, prefix, merge=overwrite, report=report, sealing=sealing)
    return Copied(outcome, snapshot, sealing.begun, revisions_go_on=go_on)


async def _check_in_service(source: Store, target: Store, names: tuple[str, str]) -> None:
    """Raise Refused if the source cannot be moved. A source that the same copy marked before an interruption can."""
    await check_idle(source, names[0])
    mark = await MOVED.get(source)
    if mark is None or (mark.value.to == names[1] and await target.get(MARKER) is not None):
        return
    raise Refused(
        f"{names[0]}: {moved_away(mark.value)}; copy that one, or, to give it up, first put this one back into service:"
        f" hostler store activate --store {names[0]}"
    )


class _Sealing:
    """Completes a copy: the source is marked, then the target begins its epoch."""

    def __init__(
        self,
        source: Store,
        target: Store,
        service: ServiceSource,
        names: tuple[str, str],
        *,
        keep_source: bool,
        revision: int,
    ) -> None:
        self._source, self._target, self._service, self._names = source, target, service, names
        self._keep, self._revision = keep_source, revision
        self.begun: Cluster | None = None

    def owns(self, key: str) -> bool:
        return is_identity(key)

    async def writes(self) -> list[Operation]:
        now, cluster = SYSTEM.wall(), self._service.cluster
        if self._keep:
            mark = Moved(cluster=cluster.id, to=self._names[0], read_only=True, started_at=now, finished_at=now)
            fences = [Put(key, FENCE.encode(fence)) for key, fence in self._service.fences.items()]
            return [CLUSTER.put(cluster), *fences, MOVED.put(mark)]
        epoch = Epoch(begun_by=EpochKind.COPY, source=self._names[0], at=now, source_revision=self._revision)
        begun = await begin_epoch(self._target, cluster, epoch, self._service.fences)
        await check_idle(self._source, self._names[0])
        await mark_moved(self._source, self._names[1], begun.cluster)
        self.begun = begun.cluster
        return [*begun.writes, MOVED.delete()]

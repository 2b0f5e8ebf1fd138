"""Restore of a backup, without reusing fences or, where possible, revisions that were issued after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from hostler.engine.transfer.epoch import (
    FENCE_STEP,
    begin_epoch,
    check_idle,
    continue_revisions,
    is_identity,
    service_source,
)
from hostler.engine.transfer.import_keys import SYSTEM, Outcome, Source, fill, new_token
from hostler.keys.families import MOVED
from hostler.model.node import Cluster, Epoch, EpochKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.engine.transfer.epoch import ServiceSource
    from hostler.engine.transfer.import_keys import Progress
    from hostler.kit.clock import Clock
    from hostler.ports.store import Operation, Store


class Backup(Source, Protocol):
    """A store at one revision."""

    @property
    def revision(self) -> int:
        """Return the revision of the store when the backup was taken."""

    @property
    def created(self) -> str:
        """Return when it was taken, in UTC."""


class Restored(msgspec.Struct, frozen=True):
    """The result of a restore."""

    outcome: Outcome
    cluster: Cluster | None
    """The new record; None: the backup is not that of a control plane."""
    fence: int = 0
    """Every later fence is above it."""
    revisions_go_on: bool = True
    """Whether revisions of the store are above those of the backup."""


async def restore(
    store: Store,
    backup: Backup,
    prefix: str,
    *,
    merge: bool,
    replace: bool,
    name: str,
    report: Callable[[Progress], None],
    clock: Clock = SYSTEM,
    new_id: Callable[[], str] = new_token,
) -> Restored:
    """Write the backup into the store; see `fill` for the outcomes. Refused: processes work on the store.

    A control plane begins a new epoch: its fences continue above every fence of the backup and of the store by
    `FENCE_STEP`, its nodes are awaited, and revisions continue, too, if the engine supports that. A backup without a
    control plane leaves the identity and the fences of the store unchanged.
    """
    service = await service_source(backup, is_backup=True)
    if service is not None or replace:
        await check_idle(store, name, clock)
    if service is None:
        kept = _KeepIdentity()
        return Restored(
            await fill(
                *(store, backup, prefix),
                merge=merge,
                replace=replace,
                report=report,
                sealing=kept,
                clock=clock,
                new_id=new_id,
            ),
            None,
        )
    go_on = await continue_revisions(store, backup.revision)
    sealing = _Sealing(store, service, backup, clock, new_id)
    outcome = await fill(
        *(store, service, prefix),
        merge=merge,
        replace=replace,
        report=report,
        sealing=sealing,
        clock=clock,
        new_id=new_id,
    )
    return Restored(outcome, sealing.begun, sealing.fence, revisions_go_on=go_on)


class _KeepIdentity:
    """Keeps the identity of the store for a backup without a control plane, so that no fence is issued again."""

    def owns(self, key: str) -> bool:
        return is_identity(key)

    async def writes(self) -> list[Operation]:
        return []


class _Sealing:
    def __init__(
        self, store: Store, service: ServiceSource, backup: Backup, clock: Clock, new_id: Callable[[], str]
    ) -> None:
        self._store, self._service, self._backup = store, service, backup
        self._clock, self._new_id = clock, new_id
        self.begun: Cluster | None = None
        self.fence = 0

    def owns(self, key: str) -> bool:
        return is_identity(key)

    async def writes(self) -> list[Operation]:
        epoch = Epoch(
            begun_by=EpochKind.RESTORE,
            source=f"backup of {self._backup.created}",
            at=self._clock.wall(),
            source_revision=self._backup.revision,
        )
        begun = await begin_epoch(
            *(self._store, self._service.cluster, epoch, self._service.fences), step=FENCE_STEP, new_id=self._new_id
        )
        self.begun, self.fence = begun.cluster, begun.fence
        return [*begun.writes, MOVED.delete()]

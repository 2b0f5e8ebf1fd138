"""Restoring a backup, so that nothing that was given out before is given out again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from hostler.entry.transfer.epoch import (
    FENCE_STEP,
    begin_epoch,
    check_idle,
    continue_revisions,
    is_identity,
    service_source,
)
from hostler.entry.transfer.fill import Outcome, fill
from hostler.keys.transfer import MOVED
from hostler.model.node import Cluster, Epoch, EpochKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.entry.transfer.backup import Backup
    from hostler.entry.transfer.epoch import ServiceSource
    from hostler.entry.transfer.fill import Progress
    from hostler.ports.store import Operation, Store


class Restored(msgspec.Struct, frozen=True):
    """What a restore did."""

    outcome: Outcome
    cluster: Cluster | None
    """As it is now; None: the backup is not that of a control plane."""
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
) -> Restored:
    """Write the backup into the store; see `fill` for how it can end. Refused: processes work on the store.

    A control plane begins a new epoch: its fences go on above every fence of the backup and of the store by
    `FENCE_STEP`, its nodes are awaited, and where the engine can do that revisions go on, too. A backup without a
    control plane leaves the identity and the fences of the store as they are.
    """
    service = await service_source(backup)
    if service is not None or replace:
        await check_idle(store, name)
    if service is None:
        kept = _KeepIdentity()
        return Restored(
            await fill(store, backup, prefix, merge=merge, replace=replace, report=report, sealing=kept), None
        )
    go_on = await continue_revisions(store, backup.header.revision)
    sealing = _Sealing(store, service, backup)
    outcome = await fill(store, service, prefix, merge=merge, replace=replace, report=report, sealing=sealing)
    return Restored(outcome, sealing.begun, sealing.fence, revisions_go_on=go_on)


class _KeepIdentity:
    """A backup without a control plane leaves the identity of the store as it is: no fence is given out again."""

    def owns(self, key: str) -> bool:
        return is_identity(key)

    async def writes(self) -> list[Operation]:
        return []


class _Sealing:
    def __init__(self, store: Store, service: ServiceSource, backup: Backup) -> None:
        self._store, self._service, self._backup = store, service, backup
        self.begun: Cluster | None = None
        self.fence = 0

    def owns(self, key: str) -> bool:
        return is_identity(key)

    async def writes(self) -> list[Operation]:
        header = self._backup.header
        epoch = Epoch(
            begun_by=EpochKind.RESTORE,
            source=f"backup of {header.created}",
            at=time.time(),
            source_revision=header.revision,
        )
        begun = await begin_epoch(self._store, self._service.cluster, epoch, self._service.fences, step=FENCE_STEP)
        self.begun, self.fence = begun.cluster, begun.fence
        return [*begun.writes, MOVED.delete()]

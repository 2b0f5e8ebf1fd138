"""Identity of a control plane on copy, restore and activation: a new epoch, higher fences, awaited nodes.

The identity records are left out while a store is filled. They are written in the transaction that completes the
transfer: a store is either incomplete, and no process starts on it, or it is the newest one.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec

from hostler.engine.cluster_id import next_epoch
from hostler.engine.transfer.import_keys import MARKER, SYSTEM, check_complete, new_token
from hostler.engine.transfer.scan import items
from hostler.errors import Conflict, Refused
from hostler.keys.families import ALIVE, CLUSTER, COMMAND, EPOCH, FENCE, LEADER, MEMBER, MOVED, REPLICA
from hostler.model.migration import Moved
from hostler.model.node import Cluster, Epoch, EpochKind
from hostler.ports.store import KeyValue, ModRevision, Operation, Put, RaisesRevision, Version

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from hostler.engine.transfer.import_keys import Source
    from hostler.kit.clock import Clock
    from hostler.ports.store import Store

FENCE_STEP = 1_000_000
"""Smallest distance of fences after a restore from the highest known one, because others were issued since the backup.
"""
REVISION_STEP = 1_000_000
"""The same for revisions, if the engine can skip some."""
SETTLE = 3.0
"""Seconds within which an expired lease must have ended."""


class ServiceSource:
    """The records of a control plane without its identity, and with awaited nodes. A `Source` for `fill`."""

    def __init__(self, source: Source, cluster: Cluster, fences: dict[str, int], *, is_backup: bool) -> None:
        self._source, self.cluster, self.fences, self._is_backup = source, cluster, fences, is_backup
        self.name = source.name

    async def entries(self) -> AsyncGenerator[KeyValue, None]:
        """Yield all other records."""
        async with aclosing(self._source.entries()) as entries:
            async for kv in entries:
                if not is_identity(kv.key):
                    yield _unconfirmed(_awaited(kv)) if self._is_backup else _awaited(kv)


async def service_source(source: Source, *, is_backup: bool = False) -> ServiceSource | None:
    """Return the source as a control plane; None: no control plane ever worked on it.

    `is_backup`: the control plane continued after the backup, so its commands must be confirmed.
    """
    cluster: Cluster | None = None
    fences: dict[str, int] = {}
    async with aclosing(source.entries()) as entries:
        async for kv in entries:
            if kv.key == CLUSTER.fill():
                cluster = CLUSTER.entry(kv).value
            elif FENCE.match(kv.key) is not None:
                fences[kv.key] = FENCE.entry(kv).value
    return None if cluster is None else ServiceSource(source, cluster, fences, is_backup=is_backup)


def is_identity(key: str) -> bool:
    """Return whether the key is written in the step that completes a transfer, and not before."""
    return key in (CLUSTER.fill(), MOVED.fill()) or FENCE.match(key) is not None


def _awaited(kv: KeyValue) -> KeyValue:
    """Return a node's record as a store in a new epoch has it; other records unchanged."""
    entry = MEMBER.readable(kv)
    if entry is None or (entry.value.awaited and entry.value.off is None):
        return kv
    record = msgspec.structs.replace(entry.value, awaited=True, off=None)
    return KeyValue(kv.key, MEMBER.encode(record), kv.create_revision, kv.mod_revision, kv.version, kv.lease)


def _unconfirmed(kv: KeyValue) -> KeyValue:
    """Return a command as a restored store has it; other records unchanged."""
    entry = COMMAND.readable(kv)
    if entry is None or entry.value.unconfirmed:
        return kv
    command = msgspec.structs.replace(entry.value, unconfirmed=True)
    return KeyValue(kv.key, COMMAND.encode(command), kv.create_revision, kv.mod_revision, kv.version, kv.lease)


async def check_idle(store: Store, name: str, clock: Clock = SYSTEM) -> None:
    """Raise Refused if a process works on the store. Its writes would be in only one of the two stores."""
    until = clock.now() + SETTLE
    while True:
        found = [
            kv.key
            for family in (LEADER, REPLICA, ALIVE)
            for kv in (await store.range(family.prefix(), limit=3, keys_only=True)).items
            if kv.lease is not None
        ]
        if not found:
            return
        if clock.now() > until:
            raise Refused(
                f"{name}: processes work on it ({', '.join(found[:3])}); stop every up, replica and agent on it first."
                " Records of a killed process expire within leadership_ttl and node_ttl (20 s)"
            )
        await clock.sleep(0.1)


class Begun(msgspec.Struct, frozen=True):
    """A new epoch: the record of the control plane, the highest fence before it, and the writes that begin it."""

    cluster: Cluster
    fence: int
    writes: list[Operation]


async def begin_epoch(
    store: Store,
    cluster: Cluster,
    epoch: Epoch,
    fences: dict[str, int],
    *,
    step: int = 0,
    new_id: Callable[[], str] = new_token,
) -> Begun:
    """Return what begins a new epoch of the control plane `cluster` in `store`.

    Fences continue at least `step` above the highest of `fences` and of those in the store. A control plane that used
    the store before becomes an alias, so that its machines are not treated as foreign.
    """
    there = await CLUSTER.get(store)
    known = [] if there is None else [there.value.id, *there.value.aliases]
    aliases = tuple(each for each in dict.fromkeys((*cluster.aliases, *known)) if each != cluster.id)
    number = next_epoch(epoch.at, cluster.epoch, *(() if there is None else (there.value.epoch,)))
    highest = dict(fences)
    for entry in (await FENCE.list(store)).entries:
        highest[entry.key] = max(entry.value, highest.get(entry.key, 0))
    # At least the epoch, which is the time: two restores of one old backup do not issue the same fences.
    raised = {key: max(fence + step, number) if step else fence for key, fence in highest.items()}
    new = msgspec.structs.replace(
        cluster,
        epoch=number,
        copy_id=new_id(),
        aliases=aliases,
        restored_at=epoch.at if epoch.begun_by is EpochKind.RESTORE else cluster.restored_at,
    )
    epoch = msgspec.structs.replace(epoch, fence=max(raised.values(), default=0))
    then: list[Operation] = [CLUSTER.put(new), EPOCH.put(epoch, epoch=number)]
    then += [Put(key, FENCE.encode(fence)) for key, fence in raised.items()]
    return Begun(new, epoch.fence, then)


async def mark_moved(store: Store, to: str, cluster: Cluster) -> None:
    """Mark a store: its records are in the store `to` from now on."""
    now = SYSTEM.wall()
    await store.txn(
        [], [MOVED.put(Moved(cluster=cluster.id, to=to, epoch=cluster.epoch, started_at=now, finished_at=now))]
    )


async def activate(store: Store, name: str) -> tuple[Begun, Moved | None]:
    """Make the store the newest of its control plane, and remove the mark that it was moved or copied.

    Returns the new epoch and that mark. Refused: processes work on it, or no control plane ever did. Conflict: it is an
    unfinished copy, or another process was faster.
    """
    check_complete(await store.get(MARKER), name)
    await check_idle(store, name)
    there, mark = await CLUSTER.get(store), await MOVED.get(store)
    if there is None:
        raise Refused(f"{name}: no control plane has worked on it, so there is nothing to put into service")
    for prefix in (MEMBER.prefix(), COMMAND.prefix()):
        async for kv in items(store, prefix):
            changed = _unconfirmed(_awaited(kv))  # it may have been restored with the tools of its engine
            if changed is not kv:
                await store.txn([ModRevision(kv.key) == kv.mod_revision], [Put(kv.key, changed.value)])
    source = "" if mark is None else mark.value.to
    epoch = Epoch(begun_by=EpochKind.ACTIVATION, source=source, at=SYSTEM.wall())
    # The store that took over, if any, has issued further epochs and fences: so both numbers go far above them.
    known = there.value if mark is None else _above(there.value, mark.value.epoch)
    begun = await begin_epoch(store, known, epoch, {}, step=FENCE_STEP)
    when = [CLUSTER.unchanged(there), MOVED.absent() if mark is None else MOVED.unchanged(mark), Version(MARKER) == 0]
    if not (await store.txn(when, [*begun.writes, *(() if mark is None else (MOVED.delete(),))])).succeeded:
        raise Conflict(f"{name}: another process has just changed it; check it, then run the command again")
    return begun, None if mark is None else mark.value


def _above(cluster: Cluster, epoch: int) -> Cluster:
    return msgspec.structs.replace(cluster, epoch=max(cluster.epoch, epoch))


async def continue_revisions(store: Store, above: int) -> bool:
    """Continue the revisions of the store above `above`; False: its engine cannot, and they start lower.

    Revisions that a client or a watcher kept from before then cannot match a different state.
    """
    if (await store.status()).revision > above:
        return True
    if not isinstance(store, RaisesRevision):
        return False
    await store.raise_revision(above + REVISION_STEP)
    return True

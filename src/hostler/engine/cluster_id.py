"""Identity of a control plane: its id, its epoch, and the identities that a data folder may obey.

Machines carry the id, so that another control plane leaves them alone. The epoch grows whenever the records are copied,
restored or put back into service. Of two stores with the same id, only the one with the higher epoch commands nodes.

The store guard ends a control-plane process whose store was emptied, replaced by an older one, moved or exchanged.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, Protocol

import msgspec

from hostler.errors import Conflict, Damaged, Refused, Unavailable, Uncertain
from hostler.keys.families import CLUSTER, FENCE, MOVED
from hostler.model.node import Cluster, LastControlPlane
from hostler.ports.store import Get

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.keys.entry import Entry
    from hostler.kit.clock import Clock
    from hostler.model.migration import Moved
    from hostler.ports.store import Store


_TRIES = 3
_log = logging.getLogger("hostler.store")
ACCEPT = "--accept-cluster"


class Memory(Protocol):
    """Keeps the control plane that a folder last obeyed.

    Durable: after `write` returns, the value survives a power failure.

    Unavailable: it cannot be read or written now. Damaged: the file holds something else.
    """

    async def read(self) -> LastControlPlane | None:
        """Return the last control plane; None: the folder has not obeyed any yet."""

    async def write(self, last: LastControlPlane) -> None:
        """Replace the last control plane."""


class Identity(msgspec.Struct, frozen=True):
    """The identity records of a store, read at one revision."""

    cluster: Entry[Cluster] | None
    moved: Moved | None
    fence: int
    revision: int


async def read_identity(store: Store) -> Identity:
    keys = CLUSTER.fill(), MOVED.fill(), FENCE.fill(n=1)
    found = await store.txn([], [Get(key) for key in keys])
    cluster, moved, fence = found.responses
    return Identity(
        None if cluster is None else CLUSTER.entry(cluster),  # type: ignore[arg-type]
        None if moved is None else MOVED.entry(moved).value,  # type: ignore[arg-type]
        0 if fence is None else FENCE.entry(fence).value,  # type: ignore[arg-type]
        found.revision,
    )


async def cluster_id(store: Store, clock: Clock, new_id: Callable[[], str]) -> str:
    """Return the cluster id, and create it if there is none.

    Concurrent callers get the same id. Unavailable: try later.
    """
    for _ in range(_TRIES):
        found = await CLUSTER.get(store)
        if found is not None:
            return found.value.id
        try:
            return (await CLUSTER.create(store, Cluster(id=new_id(), created_at=clock.wall()))).value.id
        except (Conflict, Uncertain):
            continue  # the record exists now, or may exist: read again
    raise Unavailable(f"{CLUSTER.fill()}: the store did not confirm the write; try again")


def seen_now(identity: Identity, last: LastControlPlane | None) -> LastControlPlane | None:
    """Return what a folder that obeys this store has to remember; None: the store has no identity yet."""
    if identity.cluster is None:
        return None
    cluster = identity.cluster.value
    same = last is not None and (last.cluster, last.epoch) == (cluster.id, cluster.epoch)
    fence, revision = identity.fence, identity.revision
    if same and last is not None:
        fence, revision = max(fence, last.fence), max(revision, last.revision)
    numbers = {"epoch": cluster.epoch, "fence": fence, "revision": revision, "went_back": False}
    fields = {"cluster": cluster.id, "copy_id": cluster.copy_id, **numbers}
    return LastControlPlane(**fields) if last is None else msgspec.structs.replace(last, **fields)  # type: ignore[arg-type]


def moved_away(moved: Moved) -> str:
    """Return why a store with this mark must not be used."""
    if moved.read_only:
        return f"it is a copy for reading; the store in service is {moved.to}"
    into = f" to {moved.to}" if moved.to else ""
    whose = f" (cluster id {moved.cluster})" if moved.cluster else ""
    return f"its records were moved{into}{whose}, and that store has taken over"


def is_foreign(last: LastControlPlane | None, identity: Identity) -> bool:
    """Return whether the store belongs to another control plane than the last one, or to none."""
    if last is None:
        return False
    cluster = identity.cluster
    return cluster is None or last.cluster not in (cluster.value.id, *cluster.value.aliases)


def objection(last: LastControlPlane | None, identity: Identity) -> str:
    """Return why a folder that obeyed `last` must not obey this store; empty: it may."""
    if identity.moved is not None:
        return moved_away(identity.moved)
    if last is None:
        return ""
    if identity.cluster is None:
        return (
            f"the store holds no cluster record, but this folder last obeyed cluster {last.cluster}: the store was"
            " emptied, or it is a different store"
        )
    cluster = identity.cluster.value
    if is_foreign(last, identity):
        return f"the store belongs to cluster {cluster.id}, but this folder last obeyed cluster {last.cluster}"
    if cluster.id != last.cluster:
        return ""  # the old control plane was moved into this one, which counts its own epochs and fences
    if cluster.epoch < last.epoch:
        return (
            f"the store is older (epoch {cluster.epoch}) than the one that this folder last obeyed (epoch"
            f" {last.epoch}): its records were copied or restored elsewhere since. To use this store, make it the"
            " newest: hostler store activate"
        )
    if cluster.epoch == last.epoch and cluster.copy_id != last.copy_id:
        return f"the store is a different copy of epoch {cluster.epoch} than the one that this folder last obeyed"
    if not is_older(last, identity):
        return ""
    then, now = f"revision {last.revision}", f"revision {identity.revision}"
    if last.went_back:
        now = "it was put back to an older state"  # always the same words, because its numbers grow
    elif identity.fence < last.fence:
        then, now = f"fence {last.fence}", f"fence {identity.fence}"
    return (
        f"the store is older ({now}) than when this folder last obeyed it ({then}): a backup was restored; make it the"
        " newest with: hostler store activate"
    )


def is_older(last: LastControlPlane | None, identity: Identity) -> bool:
    """Return whether the store was put back to an older state of the epoch that was last obeyed."""
    if last is None or identity.cluster is None:
        return False
    cluster = identity.cluster.value
    if (cluster.id, cluster.epoch, cluster.copy_id) != (last.cluster, last.epoch, last.copy_id):
        return False
    return last.went_back or identity.fence < last.fence or identity.revision < last.revision


async def read_memory(memory: Memory) -> LastControlPlane | None:
    """Return what the memory holds.

    Unavailable: it is damaged, so an operator has to check before anything is obeyed.
    """
    try:
        return await memory.read()
    except Damaged as error:
        raise Unavailable(f"{error}; if this store is the right one, start once with {ACCEPT}") from None


async def remember(
    memory: Memory | None, identity: Identity, last: LastControlPlane | None, *, with_revision: bool = True
) -> LastControlPlane | None:
    """Return what is remembered from now on, after it is durable.

    `with_revision`: also if nothing but the revision has changed. Unavailable: another control plane or epoch could not
    be recorded. A higher fence or revision alone does not justify an outage: it is written next time.
    """
    now = seen_now(identity, last)
    if now is None or now == last:
        return last
    if not with_revision and last is not None and msgspec.structs.replace(now, revision=last.revision) == last:
        return last
    if memory is not None:
        try:
            await memory.write(now)
        except Unavailable as error:
            if last is None or msgspec.structs.replace(now, fence=last.fence, revision=last.revision) != last:
                raise
            _log.warning("could not record the highest fence: %s", error)
            return last
    return now


async def remember_refusal(
    memory: Memory | None, identity: Identity, last: LastControlPlane | None
) -> LastControlPlane | None:
    """Return what is remembered from now on if the store is refused. Nothing changes unless it was put back.

    The number that betrays an older store grows past the remembered one while others write to it. So the refusal itself
    is remembered, also for the process that a supervisor starts next.
    """
    if last is None or last.went_back or not is_older(last, identity):
        return last
    last = msgspec.structs.replace(last, went_back=True)
    if memory is not None:
        try:
            await memory.write(last)
        except Unavailable as error:
            _log.warning("could not record that the store was put back to an older state: %s", error)
    return last


def next_epoch(at: float, *known: int) -> int:
    """Return an epoch above all known ones.

    It is the time in seconds, so that of two copies of a store the later is newer.
    """
    return max(int(at), *(epoch + 1 for epoch in known))


LOOK_EVERY = 1.0
WRITE_EVERY = 60.0
"""Seconds after which a higher revision alone is written to the memory."""
ANSWER_WITHIN = 5.0


class StoreGuard:
    """Checks the identity of the store. One per process: `check` before the first write, then `run`."""

    def __init__(
        self,
        store: Store,
        memory: Memory | None,
        *,
        clock: Clock,
        new_id: Callable[[], str],
        accept: bool = False,
        look_every: float = LOOK_EVERY,
    ) -> None:
        """`memory` outlives the process; without one, only what this process has read counts.

        `accept`: start with the store as it is, regardless of the memory.
        """
        self._store, self._memory, self._clock, self._new_id = store, memory, clock, new_id
        self._accept, self._every = accept, look_every
        self._last: LastControlPlane | None = None
        self._revision = 0
        self._write_at = -math.inf

    def least_fence(self) -> int:
        """Return the fence that a new leadership must exceed."""
        return 0 if self._last is None else self._last.fence

    async def check(self) -> None:
        """Check the store, and give it an identity if it has none. Refused: this process must not use it."""
        if self._memory is not None and not self._accept:
            self._last = await read_memory(self._memory)
        identity = await read_identity(self._store)
        if not self._why_not(identity) and identity.cluster is None:
            await cluster_id(self._store, self._clock, self._new_id)
            identity = await read_identity(self._store)
        await self._check(identity)

    async def run(self) -> None:
        """Check repeatedly until cancelled. Refused: the store is no longer the one that this process started with.

        If the store does not answer, it is checked again later.
        """
        while True:
            await self._clock.sleep(self._every)
            try:
                async with asyncio.timeout(ANSWER_WITHIN):
                    identity = await read_identity(self._store)
            except (Unavailable, Uncertain, TimeoutError):
                continue
            await self._check(identity)

    async def _check(self, identity: Identity) -> None:
        why = self._why_not(identity)
        if why:
            self._last = await remember_refusal(self._memory, identity, self._reached())
            raise Refused(
                f"store: {why}; nothing is written to it. Configure the store that is in service, or, if this one is,"
                f" start once with {ACCEPT}"
            )
        self._revision = max(self._revision, identity.revision)
        now = self._clock.now()
        is_due = now >= self._write_at
        if is_due:
            self._write_at = now + WRITE_EVERY
        self._last = await remember(self._memory, identity, self._last, with_revision=is_due)

    def _reached(self) -> LastControlPlane | None:
        """Return what is remembered, with the highest revision that this process has seen."""
        if self._last is None or self._revision <= self._last.revision:
            return self._last
        return msgspec.structs.replace(self._last, revision=self._revision)

    def _why_not(self, identity: Identity) -> str:
        if identity.revision < self._revision:
            return (
                f"it went back from revision {self._revision} to {identity.revision}: it was replaced by another store"
            )
        return objection(self._last, identity)

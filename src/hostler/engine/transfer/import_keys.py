"""Fill of a store from a source: shared by copy and restore.

While it runs, the target holds a marker key that names the source. A target with a marker is incomplete; the same
command finds the marker and continues: existing keys are compared, not written again. Every write is conditional on the
marker, so of two concurrent transfers into one target only the later one continues.

There are three modes. Into an empty prefix: at the end the prefix holds exactly the keys of the source. Over existing
keys (`merge`): the source's keys are written, other keys are kept. In place of existing keys (`replace`): the source's
keys are written, other keys are deleted.

Puts of known values can be repeated, so a write with an unknown outcome is simply repeated.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol

import msgspec

from hostler.engine.transfer.scan import items, side_by_side
from hostler.errors import Conflict, Unavailable, Uncertain
from hostler.keys.families import FILLING
from hostler.kit.clock import SystemClock
from hostler.kit.rate_limit import Backoff
from hostler.ports.store import MAX_OPERATIONS, MAX_REQUEST_BYTES, OPERATION_OVERHEAD, Delete, ModRevision, Put, Version

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from hostler.kit.clock import Clock
    from hostler.ports.store import Comparison, KeyValue, Operation, Store

MARKER = FILLING.fill()
BATCH_BYTES = MAX_REQUEST_BYTES // 2
AT_ONCE = 8
"""Number of concurrent transactions."""
PATIENCE = 30.0
"""Seconds for which requests to a target that does not answer are retried."""
SYSTEM = SystemClock()


def new_token() -> str:
    """Return a token that no other run has."""
    return secrets.token_hex(8)


class Source(Protocol):
    """Source of the data."""

    @property
    def name(self) -> str:
        """Return a name that is the same each time: an interrupted transfer continues only from the same source."""

    def entries(self) -> AsyncGenerator[KeyValue, None]:
        """Yield everything to be written, in key order; the same on each call."""


class Marker(msgspec.Struct, frozen=True):
    """Value of the marker key."""

    origin: str
    prefix: str
    merge: bool
    token: str
    """Distinguishes two runs of the same transfer."""
    replace: bool = False
    """Keys that were in the target before are deleted."""


class Progress(msgspec.Struct):
    """Progress. `compared` counts the keys of the source that were checked."""

    phase: str = "copying"
    compared: int = 0
    written: int = 0
    written_bytes: int = 0


class Outcome(msgspec.Struct, frozen=True):
    """Result and proof: count and digest, computed from both sides after the last write."""

    keys: int
    written: int
    removed: int
    unchanged: int
    left_alone: int
    resumed: bool
    sha256: str


def digest(state: hashlib._Hash, key: str, value: bytes) -> None:
    """Add one key and its value; different sequences never give the same bytes."""
    encoded = key.encode()
    state.update(b"%d %d " % (len(encoded), len(value)))
    state.update(encoded)
    state.update(value)


class Sealing(Protocol):
    """Keys that are skipped while a target is filled, and are written in the step that completes it."""

    def owns(self, key: str) -> bool:
        """Return whether the key is one of them."""

    async def writes(self) -> list[Operation]:
        """Return the writes that complete the target. Called after everything else is written and verified."""


async def fill(
    target: Store,
    source: Source,
    prefix: str,
    *,
    merge: bool,
    report: Callable[[Progress], None],
    replace: bool = False,
    sealing: Sealing | None = None,
    clock: Clock = SYSTEM,
    new_id: Callable[[], str] = new_token,
) -> Outcome:
    """Write everything of `source` to `target`. `replace`: keys that the source does not have are deleted there.

    Conflict: the target is not empty, or another process writes to it. Unavailable: it did not answer for `PATIENCE`.
    After either, and after a crash, the same call continues where this one ended.
    """
    wanted = Marker(source.name, prefix, merge, new_id(), replace)
    run = await _begin(target, source, wanted, report=report, clock=clock)
    run.sealing = sealing
    await run.write_all()
    outcome = await run.verify()
    await run.finish()
    return outcome


async def _begin(
    target: Store, source: Source, wanted: Marker, *, report: Callable[[Progress], None], clock: Clock
) -> _Run:
    found = await target.get(MARKER)
    if found is not None:
        _check_same(found, wanted)
    elif not wanted.merge and not wanted.replace:
        await _check_empty(target, wanted.prefix)
    guard = Version(MARKER) == 0 if found is None else ModRevision(MARKER) == found.mod_revision
    await _patiently(target, guard, [Put(MARKER, msgspec.json.encode(wanted))], clock)
    # Read back: the answer to the write may have been lost, and a second attempt refused because of our first one.
    marker = await target.get(MARKER)
    if marker is None or marker.value != msgspec.json.encode(wanted):
        raise Conflict("target: another transfer is filling it; let that finish, or run it again")
    return _Run(target, source, wanted, marker.mod_revision, resumed=found is not None, report=report, clock=clock)


def _check_same(found: KeyValue, wanted: Marker) -> None:
    try:
        marker = msgspec.json.decode(found.value, type=Marker)
    except msgspec.DecodeError:
        raise Conflict(f"target: its key {MARKER!r} is not ours; delete it if you know what it is") from None
    if msgspec.structs.replace(marker, token=wanted.token) != wanted:
        raise Conflict(
            f"target: it holds an unfinished transfer from {marker.origin} (prefix {marker.prefix!r}); "
            f"finish that with the same command, or accept the target as it is by deleting {MARKER!r}"
        )


async def _check_empty(target: Store, prefix: str) -> None:
    page = await target.range(prefix, limit=1, keys_only=True)
    if page.items:
        place = f"under {prefix!r}" if prefix else "in it"
        raise Conflict(
            f"target: there are keys {place} already, for example {page.items[0].key!r}; nothing was written: name an "
            "empty target, or overwrite these keys (copy --overwrite, restore --force), or replace them after they"
            " were saved (restore --replace)"
        )


async def _patiently(target: Store, guard: Comparison, then: list[Operation], clock: Clock) -> bool:
    """Do a transaction that may be repeated; return whether its guard held at the last attempt."""
    backoff = Backoff()
    until = clock.now() + PATIENCE
    while True:
        try:
            return (await target.txn([guard], then)).succeeded
        except (Unavailable, Uncertain) as error:
            if clock.now() > until:
                raise Unavailable(
                    f"target: no answer for {PATIENCE:g} s ({error}); run the same command again to continue"
                ) from None
            await clock.sleep(backoff.next())


class _Run:
    def __init__(
        self,
        target: Store,
        source: Source,
        marker: Marker,
        marker_revision: int,
        *,
        resumed: bool,
        report: Callable[[Progress], None],
        clock: Clock,
    ) -> None:
        self.progress = Progress()
        self._target, self._source, self._marker, self._resumed = target, source, marker, resumed
        self._guard = ModRevision(MARKER) == marker_revision
        self._report, self._clock = report, clock
        self.sealing: Sealing | None = None
        self._batch: list[Operation] = []
        self._batch_bytes = 0
        self._running: set[asyncio.Task[None]] = set()
        self._removed = self._unchanged = self._left_alone = 0

    async def write_all(self) -> None:
        """Walk over both sides in key order and write the differences."""
        try:
            async with aclosing(self._both_sides()) as both:
                async for ours, theirs in both:
                    if ours is None:
                        await self._only_in_target(theirs)
                        continue
                    self.progress.compared += 1
                    if theirs is not None and theirs.value == ours.value and theirs.lease is None:
                        self._unchanged += 1
                        continue
                    self.progress.written += 1
                    self.progress.written_bytes += len(ours.value)
                    await self._add(Put(ours.key, ours.value), len(ours.key.encode()) + len(ours.value))
            await self._send()
            await self._settle(0)
        finally:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    async def _both_sides(self) -> AsyncGenerator[tuple[KeyValue | None, KeyValue | None], None]:
        async with (
            aclosing(self._source.entries()) as source,
            aclosing(items(self._target, self._marker.prefix)) as target,
            aclosing(side_by_side(source, target)) as both,
        ):
            async for ours, theirs in both:
                if theirs is None or not (theirs.key == MARKER or self._sealed(theirs.key)):
                    yield ours, theirs

    def _sealed(self, key: str) -> bool:
        return self.sealing is not None and self.sealing.owns(key)

    async def _only_in_target(self, theirs: KeyValue | None) -> None:
        if theirs is None:
            return
        if self._marker.merge:
            self._left_alone += 1
            return
        # The prefix was empty when this transfer began: the key is from an earlier attempt, and was deleted in the
        # source since.
        self._removed += 1
        await self._add(Delete(theirs.key), len(theirs.key.encode()))

    async def _add(self, operation: Operation, size: int) -> None:
        size += OPERATION_OVERHEAD
        if self._batch and (len(self._batch) == MAX_OPERATIONS or self._batch_bytes + size > BATCH_BYTES):
            await self._send()
        self._batch.append(operation)
        self._batch_bytes += size

    async def _send(self) -> None:
        if not self._batch:
            return
        await self._settle(AT_ONCE - 1)
        self._running.add(asyncio.create_task(self._write(self._batch)))
        self._batch, self._batch_bytes = [], 0
        self._report(self.progress)

    async def _settle(self, most: int) -> None:
        """Wait until at most `most` transactions are running; raise the error of a failed one."""
        while len(self._running) > most:
            done, self._running = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
            failures = [failure for task in done if (failure := task.exception())]
            if failures:
                raise failures[0]

    async def _write(self, batch: list[Operation]) -> None:
        if not await _patiently(self._target, self._guard, batch, self._clock):
            raise Conflict("target: another process took over or ended this transfer; let that finish")

    async def verify(self) -> Outcome:
        """Read both sides again and compare. Conflict: they differ."""
        source_sum, target_sum = hashlib.sha256(), hashlib.sha256()
        self.progress.phase, self.progress.compared = "verifying", 0
        async with aclosing(self._both_sides()) as both:
            async for ours, theirs in both:
                if ours is None and self._marker.merge:
                    continue
                if ours is None or theirs is None or ours.value != theirs.value:
                    raise _differs(ours or theirs)
                digest(source_sum, ours.key, ours.value)
                digest(target_sum, theirs.key, theirs.value)
                self.progress.compared += 1
                if self.progress.compared % 1000 == 0:
                    self._report(self.progress)
        if source_sum.digest() != target_sum.digest():
            raise _differs(None)
        return Outcome(
            keys=self.progress.compared,
            written=self.progress.written,
            removed=self._removed,
            unchanged=self._unchanged,
            left_alone=self._left_alone,
            resumed=self._resumed,
            sha256=target_sum.hexdigest(),
        )

    async def finish(self) -> None:
        """Delete the marker: the target is complete."""
        last = [] if self.sealing is None else await self.sealing.writes()
        ended = await _patiently(self._target, self._guard, [Delete(MARKER), *last], self._clock)
        if not ended and await self._target.get(MARKER) is not None:
            raise Conflict("target: another process took over this transfer at its end; let that finish")


def _differs(kv: KeyValue | None) -> Conflict:
    what = "the digest" if kv is None else repr(kv.key)
    return Conflict(f"target: {what} is not what was written; another process writes there: stop it, then retry")


def check_complete(found: KeyValue | None, name: str) -> None:
    """Raise Conflict if the store to be read is itself an unfinished copy. `found` is its marker."""
    if found is not None:
        raise Conflict(
            f"{name}: it holds an unfinished transfer itself; finish that first, or accept it as it is by deleting "
            f"{MARKER!r}"
        )

# ruff: noqa: ARG002 - a defect often is an argument that is ignored
"""Stores with one defect each, to see that the suite finds it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

from msgspec.structs import replace

from hostler import Closed, Compacted, Delete, FutureRevision, Get, Invalid, Lagged, LeaseGone
from hostler.drivers.store.memory import MemoryStore
from hostler.ports.store import Comparison, Event, KeyValue, Page, TxnResult

if TYPE_CHECKING:
    from collections.abc import Callable

MUTANTS: list[tuple[type[MemoryStore], str]] = []


def found_by(claim: str) -> Callable[[type[MemoryStore]], type[MemoryStore]]:
    """Name the claim that must not hold of the mutant."""

    def register(mutant: type[MemoryStore]) -> type[MemoryStore]:
        MUTANTS.append((mutant, claim))
        return mutant

    return register


# Revisions and transactions


@found_by("a_deleted_key_starts_again_at_version_one")
class VersionNotReset(MemoryStore):
    async def get(self, key: str, *, revision: int | None = None) -> KeyValue | None:
        kv = await super().get(key, revision=revision)
        puts = [e for _, events in self._state.log(1) for e in events if e.kv.key == key and e.type == "put"]
        return kv and replace(kv, version=len(puts))


@found_by("what_changes_nothing_takes_no_revision")
class DeleteOfNothingCounts(MemoryStore):
    async def delete(self, key: str) -> bool:
        if await self.get(key) is None:
            await self.put(key, b"")
            await super().delete(key)
            return False
        return await super().delete(key)


@found_by("all_operations_of_a_transaction_share_one_revision")
class RevisionForEachOperation(MemoryStore):
    async def txn(self, when: Any, then: Any, otherwise: Any = ()) -> TxnResult:
        result = await super().txn(when, [], [])
        parts = [await super(type(self), self).txn([], [op]) for op in (then if result.succeeded else otherwise)]
        revision = parts[-1].revision if parts else result.revision
        return TxnResult(result.succeeded, revision, tuple(part.responses[0] for part in parts))


@found_by("of_two_clients_that_race_for_a_key_one_wins")
class LooksThenLeaps(MemoryStore):
    async def txn(self, when: Any, then: Any, otherwise: Any = ()) -> TxnResult:
        result = await super().txn(when, [], [])
        await asyncio.sleep(0)
        done = await super().txn([], then if result.succeeded else otherwise)
        return replace(done, succeeded=result.succeeded)


@found_by("nobody_sees_half_a_transaction")
class HalfATransaction(MemoryStore):
    async def txn(self, when: Any, then: Any, otherwise: Any = ()) -> TxnResult:
        first = await super().txn(when, then[:1], otherwise[:1])
        if len(then) > 1:
            await asyncio.sleep(0)
            await super().txn([], (then if first.succeeded else otherwise)[1:])
        return first


@found_by("an_absent_key_has_version_and_revisions_zero_and_no_value")
class AbsentValueDiffers(MemoryStore):
    async def txn(self, when: Any, then: Any, otherwise: Any = ()) -> TxnResult:
        kept = []
        for comparison in when:
            absent = isinstance(comparison, Comparison) and not await self.get(comparison.key)
            if not (absent and comparison.target == "value" and comparison.operator == "!="):
                kept.append(comparison)
        return await super().txn(kept, then, otherwise)


@found_by("every_comparison_holds_exactly_when_it_is_true")
class LessMeansAtMost(MemoryStore):
    async def txn(self, when: Any, then: Any, otherwise: Any = ()) -> TxnResult:
        looser = [
            replace(c, operand=c.operand + 1) if c.operator == "<" and isinstance(c.operand, int) else c for c in when
        ]
        return await super().txn(looser, then, otherwise)


@found_by("a_transaction_does_then_if_every_comparison_holds_and_otherwise_if_not")
class ForgetsOtherwise(MemoryStore):
    async def txn(self, when: Any, then: Any, otherwise: Any = ()) -> TxnResult:
        return await super().txn(when, then)


@found_by("a_get_sees_what_earlier_operations_of_its_transaction_did")
class GetsSeeThePast(MemoryStore):
    async def txn(self, when: Any, then: Any, otherwise: Any = ()) -> TxnResult:
        before = {op.key: await self.get(op.key) for op in then if isinstance(op, Get)}
        result = await super().txn(when, then, otherwise)
        answers = [before[op.key] if isinstance(op, Get) else r for op, r in zip(then, result.responses, strict=False)]
        return replace(result, responses=tuple(answers))


@found_by("a_key_written_twice_in_one_transaction_is_refused")
class LastPutWins(MemoryStore):
    async def txn(self, when: Any, then: Any, otherwise: Any = ()) -> TxnResult:
        try:
            return await super().txn(when, then, otherwise)
        except Invalid:
            return await super().txn(when, {getattr(op, "key", ""): op for op in then}.values(), ())  # type: ignore[arg-type]


@found_by("a_transaction_holds_128_entries_a_part_and_no_more")
class SplitsLargeTransactions(MemoryStore):
    async def txn(self, when: Any, then: Any, otherwise: Any = ()) -> TxnResult:
        if len(then) > 128:
            await super().txn(when[:128], then[:128], otherwise[:128])
            then = then[128:]
        return await super().txn(when[:128], then, otherwise[:128])


# Ranges


@found_by("limit_after_and_more_cut_a_range_into_pages")
class AfterIncludesItself(MemoryStore):
    async def range(self, prefix: str, *, after: str | None = None, **options: Any) -> Page:
        return await super().range(prefix, after=after[:-1] if after else after, **options)


@found_by("limit_after_and_more_cut_a_range_into_pages")
class MoreAtTheEnd(MemoryStore):
    async def range(self, prefix: str, *, limit: int | None = None, **options: Any) -> Page:
        page = await super().range(prefix, limit=limit, **options)
        return replace(page, more=len(page.items) == limit)


@found_by("pages_are_consistent_at_one_revision_while_others_write")
class PagesOfNow(MemoryStore):
    async def range(self, prefix: str, *, revision: int | None = None, **options: Any) -> Page:
        await super().range(prefix, revision=revision)
        await asyncio.sleep(0)
        return await super().range(prefix, **options)

    async def put(self, key: str, value: bytes, *, lease: Any = None) -> int:
        await asyncio.sleep(0)
        return await super().put(key, value, lease=lease)


@found_by("rack1_with_a_slash_does_not_match_rack10")
class SlashDoesNotCount(MemoryStore):
    async def range(self, prefix: str, **options: Any) -> Page:
        return await super().range(prefix.rstrip("/"), **options)


@found_by("a_range_is_in_the_order_of_code_points")
class OrderOfUtf16(MemoryStore):
    async def range(self, prefix: str, **options: Any) -> Page:
        page = await super().range(prefix, **options)
        return replace(page, items=tuple(sorted(page.items, key=lambda kv: kv.key.encode("utf-16-be"))))


@found_by("keys_only_leaves_out_the_values_and_nothing_else")
class KeysOnlyWithValues(MemoryStore):
    async def range(self, prefix: str, *, keys_only: bool = False, **options: Any) -> Page:
        return await super().range(prefix, **options)


@found_by("an_old_revision_shows_what_was_there_then")
class OldReadsOneOff(MemoryStore):
    async def get(self, key: str, *, revision: int | None = None) -> KeyValue | None:
        return await super().get(key, revision=min(revision + 1, self._state.revision) if revision else None)


@found_by("a_revision_that_has_not_happened_cannot_be_read")
class FutureIsNow(MemoryStore):
    async def get(self, key: str, *, revision: int | None = None) -> KeyValue | None:
        try:
            return await super().get(key, revision=revision)
        except FutureRevision:
            return await super().get(key)


# Compaction


@found_by("after_compaction_older_reads_say_compacted")
class NeverForgets(MemoryStore):
    async def compact(self, revision: int) -> None:
        pass


@found_by("after_compaction_older_reads_say_compacted")
class CompactedElsewhere(MemoryStore):
    async def get(self, key: str, *, revision: int | None = None) -> KeyValue | None:
        try:
            return await super().get(key, revision=revision)
        except Compacted as error:
            raise Compacted(error.revision + 1) from None


@found_by("compaction_changes_nothing_from_its_revision_on")
class CompactsTooMuch(MemoryStore):
    async def compact(self, revision: int) -> None:
        await super().compact(min(revision + 1, self._state.revision))


@found_by("a_watch_from_before_the_compaction_says_compacted")
class WatchSkipsTheCompacted(MemoryStore):
    def watch(self, prefix: str, *, start_revision: int | None = None, previous: bool = True) -> Any:
        start = start_revision and max(start_revision, self._state.compacted)
        return super().watch(prefix, start_revision=start, previous=previous)


# Leases


@found_by("expiry_deletes_the_keys_on_time_in_one_transaction")
class EarlyLease(MemoryStore):
    async def grant(self, ttl: float) -> Any:
        lease = await super().grant(ttl * 0.8)
        lease.ttl = ttl
        return lease


@found_by("expiry_deletes_the_keys_on_time_in_one_transaction")
class LateLease(MemoryStore):
    async def grant(self, ttl: float) -> Any:
        lease = await super().grant(ttl + 1.2)
        lease.ttl = ttl
        return lease


@found_by("expiry_deletes_the_keys_on_time_in_one_transaction")
class ExpiresWhenTouched(MemoryStore):
    async def _expire_on_time(self) -> None:
        await asyncio.sleep(3_600)


@found_by("expiry_deletes_the_keys_on_time_in_one_transaction")
class ExpiresKeyByKey(MemoryStore):
    async def _expire_on_time(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            for lease in list(self._state.leases.values()):
                if lease.deadline <= self._clock.now() + 0.01:
                    for key in sorted(lease.keys):
                        self._publish(self._state.txn([], [Delete(key)], [])[1])


@found_by("keep_alive_lets_a_lease_live_another_ttl_from_then")
class KeepAliveDoesNothing(MemoryStore):
    def keep_alive(self, id_: int) -> None:
        self._state.lease(id_)


@found_by("revoking_twice_is_fine_and_the_lease_stays_gone")
class KeepAliveRevives(MemoryStore):
    def keep_alive(self, id_: int) -> None:
        if id_ in self._state.leases:
            super().keep_alive(id_)


@found_by("a_put_with_a_lease_that_is_gone_writes_nothing")
class DeadLeaseIsNoLease(MemoryStore):
    async def put(self, key: str, value: bytes, *, lease: Any = None) -> int:
        try:
            return await super().put(key, value, lease=lease)
        except LeaseGone:
            return await super().put(key, value)


@found_by("a_put_with_a_lease_that_is_gone_writes_nothing")
class WritesBeforeItLooks(MemoryStore):
    async def txn(self, when: Any, then: Any, otherwise: Any = ()) -> TxnResult:
        try:
            return await super().txn(when, then, otherwise)
        except LeaseGone:
            await super().txn(when, then[:1])
            raise


@found_by("revoke_deletes_what_is_attached_in_one_transaction")
class RevokeLeavesKeys(MemoryStore):
    def revoke(self, id_: int) -> None:
        self._state.leases.pop(id_, None)


@found_by("a_key_put_again_belongs_to_the_new_lease_or_to_none")
class LeaseSticks(MemoryStore):
    async def put(self, key: str, value: bytes, *, lease: Any = None) -> int:
        previous = self._state.get(key)
        return await super().put(key, value, lease=lease or (previous and previous.lease))


@found_by("remaining_falls_and_rises_with_keep_alive_and_ends_at_zero")
class RemainingIsTtl(MemoryStore):
    def remaining(self, id_: int) -> float:
        lease = self._state.leases.get(id_)
        return lease.ttl if lease else 0.0


# Watches


class _Bent:
    """A watch whose events pass through `bend`, which gives none, one or several for each."""

    def __init__(self, watch: Any, bend: Callable[[Event, int], list[Event]]) -> None:
        self._watch, self._bend, self._count, self._ready = watch, bend, 0, list[Event]()

    async def __aenter__(self) -> Self:
        await self._watch.__aenter__()
        return self

    async def __aexit__(self, *problem: object) -> None:
        await self._watch.__aexit__(*problem)

    def __aiter__(self) -> _Bent:
        return self

    async def __anext__(self) -> Event:
        while not self._ready:
            event = await anext(self._watch)
            self._count += 1
            self._ready = self._bend(event, self._count)
        return self._ready.pop(0)


class _BentStore(MemoryStore):
    def bend(self, event: Event, count: int) -> list[Event]:
        return [event]

    def watch(self, prefix: str, *, start_revision: int | None = None, previous: bool = True) -> Any:
        return _Bent(super().watch(prefix, start_revision=start_revision, previous=previous), self.bend)


@found_by("list_then_watch_has_no_hole")
class DropsAnEvent(_BentStore):
    def bend(self, event: Event, count: int) -> list[Event]:
        return [] if count % 10 == 9 else [event]


@found_by("leaving_and_resuming_from_the_next_revision_loses_and_repeats_nothing")
class RepeatsAnEvent(_BentStore):
    def bend(self, event: Event, count: int) -> list[Event]:
        return [event, event] if count == 7 else [event]


@found_by("an_event_tells_what_happened_and_what_was_there_before")
class ForgetsPrevious(_BentStore):
    def bend(self, event: Event, count: int) -> list[Event]:
        return [replace(event, previous=None)]


@found_by("a_watch_without_what_was_there_before_sees_the_same_changes")
class SkipsWhatItCannotCompare(MemoryStore):
    def watch(self, prefix: str, *, start_revision: int | None = None, previous: bool = True) -> Any:
        def bend(event: Event, _: int) -> list[Event]:
            return [event] if previous or event.type == "put" else []

        return _Bent(super().watch(prefix, start_revision=start_revision, previous=previous), bend)


@found_by("the_events_of_a_transaction_come_together_in_their_order")
class SortsTransactions(_BentStore):
    def _publish(self, events: tuple[Event, ...]) -> None:
        super()._publish(tuple(sorted(events, key=lambda event: event.kv.key)))


@found_by("a_watch_from_a_revision_has_every_event_from_it_on")
class StartsOneLate(MemoryStore):
    def watch(self, prefix: str, *, start_revision: int | None = None, previous: bool = True) -> Any:
        start = start_revision and start_revision + 1
        return super().watch(prefix, start_revision=start, previous=previous)


@found_by("a_watch_may_start_in_the_future")
class StartsAtOnce(MemoryStore):
    def watch(self, prefix: str, *, start_revision: int | None = None, previous: bool = True) -> Any:
        start = start_revision if start_revision and start_revision <= self._state.revision else None
        return super().watch(prefix, start_revision=start, previous=previous)


@found_by("a_watch_sees_its_own_prefix_only")
class WatchesNeighbours(MemoryStore):
    def watch(self, prefix: str, *, start_revision: int | None = None, previous: bool = True) -> Any:
        return super().watch(prefix.rstrip("/"), start_revision=start_revision, previous=previous)


@found_by("a_slow_reader_gets_every_event_or_is_told_where_to_go_on")
class LosesSilently(MemoryStore):
    def watch(self, prefix: str, *, start_revision: int | None = None, previous: bool = True) -> Any:
        store = self

        class Quiet(_Bent):
            async def __anext__(self) -> Event:
                while True:
                    try:
                        return await super().__anext__()
                    except Lagged:
                        self._watch = MemoryStore.watch(store, prefix, previous=previous)
                        await self._watch.__aenter__()

        return Quiet(super().watch(prefix, start_revision=start_revision, previous=previous), lambda event, _: [event])


@found_by("a_reader_that_is_cancelled_and_reads_again_loses_nothing")
class LosesWhenCancelled(MemoryStore):
    def watch(self, prefix: str, *, start_revision: int | None = None, previous: bool = True) -> Any:
        class Slow(_Bent):
            async def __anext__(self) -> Event:
                event = await super().__anext__()
                await asyncio.sleep(0)
                return event

        return Slow(super().watch(prefix, start_revision=start_revision, previous=previous), lambda event, _: [event])


# Doors and lifetime


@found_by("a_value_is_bytes")
class TakesAnyBuffer(MemoryStore):
    async def put(self, key: str, value: Any, *, lease: Any = None) -> int:
        return await super().put(key, bytes(value) if isinstance(value, bytearray) else value, lease=lease)


@found_by("values_are_kept_to_the_byte")
class EndsAtNul(MemoryStore):
    async def put(self, key: str, value: bytes, *, lease: Any = None) -> int:
        return await super().put(key, value[:1] + value[1:].split(b"\0")[0][:100_000], lease=lease)


@found_by("keys_are_kept_to_the_character")
class IgnoresCase(MemoryStore):
    async def put(self, key: str, value: bytes, *, lease: Any = None) -> int:
        return await super().put(key.lower() if isinstance(key, str) else key, value, lease=lease)


@found_by("a_ttl_is_a_finite_number_above_zero")
class TakesAnyTtl(MemoryStore):
    async def grant(self, ttl: float) -> Any:
        return await super().grant(ttl or 1)


@found_by("a_request_of_the_greatest_size_is_taken_and_one_byte_more_is_not")
class OneByteMore(MemoryStore):
    async def put(self, key: str, value: bytes, *, lease: Any = None) -> int:
        try:
            return await super().put(key, value, lease=lease)
        except Invalid:
            return await super().put(key, value[:-1], lease=lease)


@found_by("a_store_that_was_closed_refuses_everything")
class AnswersFromTheGrave(MemoryStore):
    async def get(self, key: str, *, revision: int | None = None) -> KeyValue | None:
        try:
            return await super().get(key, revision=revision)
        except Closed:
            return None


@found_by("a_closed_store_leaves_no_task_and_no_thread")
class LeavesATask(MemoryStore):
    async def aclose(self) -> None:
        await super().aclose()
        self.task = asyncio.create_task(asyncio.sleep(3600))


@found_by("deleting_by_an_empty_prefix_is_refused")
class EmptyPrefixIsNothing(MemoryStore):
    async def delete_prefix(self, prefix: str) -> int:
        return await super().delete_prefix(prefix) if prefix else 0

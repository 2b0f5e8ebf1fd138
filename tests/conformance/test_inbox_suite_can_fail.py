"""The suite of the lab door finds defects: each mutant is a driver with one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from hostler.drivers.inbox import memory
from hostler.drivers.inbox.memory import Dead, MemoryInbox, MemoryLabRecords, MemoryRedis, ordered_user
from hostler.errors import Invalid
from hostler.model.lab import LabServer
from hostler.ports.inbox import Published, Shown, Taken
from hostler.testing import check_inbox, inbox_claims, run_virtual
from hostler.testing.inbox.drivers import MemoryLabFrontEnd

Mutant = type[MemoryRedis] | type[MemoryInbox] | type[MemoryLabRecords]
MUTANTS: list[tuple[Mutant, str]] = []


def found_by(claim: str) -> Callable[[Mutant], Mutant]:
    def register(mutant: Mutant) -> Mutant:
        MUTANTS.append((mutant, claim))
        return mutant

    return register


def door_with(mutant: Mutant) -> Callable[[], MemoryLabFrontEnd]:
    door = type("Door", (MemoryLabFrontEnd,), {})
    part = {MemoryRedis: "made_of", MemoryInbox: "inbox_of", MemoryLabRecords: "board_of"}[mutant.__mro__[1]]
    setattr(door, part, mutant)
    return door


# The queues


@found_by("a_users_next_request_comes_only_after_the_one_before")
@found_by("many_workers_work_each_request_once_and_each_users_in_order")
@found_by("a_users_order_outlives_a_worker")
class KeepsNoOrder(MemoryRedis):
    def take(self, worker: str, limit: int) -> list[Taken]:
        for queue in self.queues.values():
            queue.busy.clear()
        return super().take(worker, limit)


@found_by("the_two_queues_do_not_hold_each_other_up")
class OneOrderForBothQueues(MemoryRedis):
    def flush(self) -> None:
        super().flush()
        self.queues["decommission"].busy = self.queues["provision"].busy


@found_by("a_users_request_can_be_taken_out_of_its_turn")
class TakesTwoOfAUser(MemoryRedis):
    def take_of(self, worker: str, name: memory.QueueName, user: str) -> Taken | bool:  # type: ignore[name-defined]
        self.queues[name].busy.pop(user, None)
        return super().take_of(worker, name, user)


@found_by("what_waits_behind_a_request_can_be_read_and_stays")
class ReadsOnlyTheQueue(MemoryInbox):
    async def behind(self, queue: memory.QueueName, user: str) -> Sequence[bytes]:  # type: ignore[name-defined]
        return [raw for raw in self._door.queues[queue].waiting if ordered_user(raw) == user]


@found_by("requests_of_nobody_are_not_held_up")
class OrdersWhatItCannotRead(MemoryRedis):
    def take(self, worker: str, limit: int) -> list[Taken]:
        taken = super().take(worker, limit)
        if any(ordered_user(one.raw) is None for one in taken):
            for queue in self.queues.values():
                queue.waiting.extend(one.raw for one in taken if ordered_user(one.raw) is None)
        return taken


@found_by("a_take_hands_out_no_more_than_was_asked_for")
class TakesAll(MemoryRedis):
    def take(self, worker: str, limit: int) -> list[Taken]:
        return super().take(worker, limit * 100)


@found_by("neither_queue_keeps_the_other_waiting")
class ProvisionsFirst(MemoryRedis):
    def take(self, worker: str, limit: int) -> list[Taken]:
        other = self.queues.pop("decommission")
        taken = super().take(worker, limit)
        self.queues["decommission"] = other
        return taken or super().take(worker, limit)


@found_by("every_delivery_has_a_token_of_its_own")
class TokensOfTheRequest(MemoryRedis):
    def _hand(self, queue: memory.QueueName, worker: str, user: str | None, raw: bytes) -> Taken:  # type: ignore[name-defined]
        made = super()._hand(queue, worker, user, raw)
        named = Taken(queue, f"{worker} {raw!r}", raw)
        self.queues[queue].processing[worker][-1] = named
        return named if made else made


@found_by("an_acknowledgement_that_is_repeated_does_nothing")
@found_by("nobody_acknowledges_what_another_holds")
@found_by("a_worker_that_was_released_has_nothing_to_say")
@found_by("after_a_flush_nothing_old_stands_in_the_way")
class AcknowledgesBlindly(MemoryRedis):
    def acknowledge(self, worker: str, done: Taken) -> Taken | None:
        following = super().acknowledge(worker, done)
        if following is None:
            queue, user = self.queues[done.queue], ordered_user(done.raw)
            queue.busy.pop(user or "", None)
            raw = queue.pop_next(user)
            return None if raw is None else self._hand(done.queue, worker, user, raw)
        return following


@found_by("the_same_request_pushed_often_is_worked_as_often")
class MergesTheSame(MemoryRedis):
    def push(self, queue: memory.QueueName, raw: bytes) -> None:  # type: ignore[name-defined]
        if raw not in self.queues[queue].waiting:
            super().push(queue, raw)


@found_by("what_a_dead_worker_held_goes_back_to_the_front_in_order")
@found_by("a_users_order_outlives_a_worker")
class ReleasesToTheEnd(MemoryRedis):
    def release(self, worker: str, done: Sequence[Taken]) -> int:
        count = super().release(worker, done)
        for queue in self.queues.values():
            queue.waiting.rotate(-count)
        return count


@found_by("what_a_dead_worker_had_done_does_not_come_back")
@found_by("workers_that_die_lose_nothing_and_double_nothing")
class ReleasesWhatIsDone(MemoryRedis):
    def release(self, worker: str, done: Sequence[Taken]) -> int:
        return super().release(worker, done[:0])


@found_by("what_a_dead_worker_had_done_does_not_come_back")
@found_by("workers_that_die_lose_nothing_and_double_nothing")
class ForgetsWhatFollows(MemoryRedis):
    def release(self, worker: str, done: Sequence[Taken]) -> int:
        for one in done:
            queue = self.queues[one.queue]
            if one in queue.processing.get(worker, ()):
                queue.processing[worker].remove(one)
                queue.busy.pop(ordered_user(one.raw) or "", None)
        return super().release(worker, ())


@found_by("a_worker_that_was_released_is_known_no_more_until_it_takes_again")
class ForgetsWhoTookBefore(MemoryRedis):
    def take(self, worker: str, limit: int) -> list[Taken]:
        known = getattr(self, "known", set())
        taken = super().take(worker, limit)
        if worker in known:
            self.workers.discard(worker)
        self.known = known | {worker}
        return taken


@found_by("who_waits_is_woken_by_either_queue")
class LooksNowAndThen(MemoryRedis):
    async def wait_for_push(self) -> None:
        await asyncio.sleep(4)


@found_by("a_take_of_nothing_ends_when_its_time_is_over")
class DoesNotWait(MemoryInbox):
    async def take(self, worker: str, *, limit: int, within: float) -> Sequence[Taken]:
        return await super().take(worker, limit=limit, within=within / 100)


@found_by("what_is_too_long_goes_to_the_dead_and_is_handed_to_nobody")
class HandsOutWhatIsTooLong(MemoryRedis):
    def _too_long(self, queue: memory.QueueName, worker: str, raw: bytes) -> Dead:  # type: ignore[name-defined]
        self._hand(queue, worker, None, raw)
        return super()._too_long(queue, worker, raw)


@found_by("what_is_too_long_goes_to_the_dead_and_is_handed_to_nobody")
class KeepsAllThatIsTooLong(MemoryRedis):
    def _too_long(self, queue: memory.QueueName, worker: str, raw: bytes) -> Dead:  # type: ignore[name-defined]
        return replace(super()._too_long(queue, worker, raw), request=raw)


@found_by("what_is_buried_is_kept_with_the_reason_and_only_once")
class BuriesTwice(MemoryInbox):
    async def bury(self, worker: str, taken: Taken, reason: str, at: float) -> Sequence[Taken]:
        following = await super().bury(worker, taken, reason, at)
        self._door.dead.append(self._door.dead[-1])
        return following


@found_by("what_a_worker_holds_can_be_asked_for_at_any_time")
class HoldsInAnyOrder(MemoryInbox):
    async def held(self, worker: str) -> Sequence[Taken]:
        return list(reversed(await super().held(worker)))


# The records


@found_by("an_older_state_never_replaces_a_newer_one")
class LastWriterWins(MemoryLabRecords):
    async def publish(self, changes: Sequence[Published]) -> int:
        self._door.generations.clear()
        return await super().publish(changes)


@found_by("an_older_state_never_replaces_a_newer_one")
class ForgetsTheRevisionWithTheRecord(MemoryLabRecords):
    async def publish(self, changes: Sequence[Published]) -> int:
        count = await super().publish(changes)
        for change in changes:
            if change.server is None:
                self._door.generations.pop(change.user, None)
        return count


@found_by("what_another_store_published_is_forgotten_and_nothing_else")
class ForgetsWhatIsNewerToo(MemoryLabRecords):
    async def forget(self, user: str, revision: int) -> bool:
        known = self._door.generations.get(user, 0)
        return known >= revision and await super().forget(user, known)


@found_by("what_another_store_published_is_forgotten_and_nothing_else")
class KeepsTheNewsOfAnotherStore(MemoryLabRecords):
    async def forget(self, user: str, revision: int) -> bool:
        news = self._door.news.get(user, [])
        forgotten = await super().forget(user, revision)
        self._door.news[user] = news
        return forgotten


@found_by("what_another_store_published_is_forgotten_and_nothing_else")
class DoesNotSayWhatNewsIsTold(MemoryLabRecords):
    async def shown(self) -> dict[str, Shown]:
        return {user: replace(shown, news=0) for user, shown in (await super().shown()).items()}


@found_by("each_piece_of_news_is_told_once_and_in_order")
class TellsAllNewsAgain(MemoryLabRecords):
    async def publish(self, changes: Sequence[Published]) -> int:
        count = await super().publish(changes)
        for change in changes:
            self._door.news.setdefault(change.user, []).extend(change.news[:1])
        return count


@found_by("publishing_again_changes_nothing")
class CountsEveryone(MemoryLabRecords):
    async def publish(self, changes: Sequence[Published]) -> int:
        await super().publish(changes)
        return len(changes)


@found_by("only_the_last_news_is_kept")
class KeepsAllNews(MemoryLabRecords):
    async def publish(self, changes: Sequence[Published]) -> int:
        before = {user: list(news) for user, news in self._door.news.items()}
        count = await super().publish(changes)
        for user, news in self._door.news.items():
            last = before.get(user, [])
            self._door.news[user] = last + [one for one in news if one not in last]
        return count


@found_by("who_waits_stands_in_the_order_of_asking")
class LetsThemWaitForever(MemoryLabRecords):
    async def publish(self, changes: Sequence[Published]) -> int:
        before = dict(self._door.waiting)
        count = await super().publish(changes)
        self._door.waiting = {**before, **self._door.waiting}
        return count


@found_by("a_record_of_nothing_is_withdrawn_unless_there_is_a_newer_one")
class WithdrawsAnything(MemoryLabRecords):
    async def withdraw(self, user: str, revision: int) -> bool:
        return await super().withdraw(user, revision + 100)


@found_by("the_epoch_is_another_once_everything_was_lost")
class OneEpochForEver(MemoryLabRecords):
    async def epoch(self) -> str:
        return "always"


@found_by("those_without_a_record_are_told_when_lives_are_renewed")
class MissesNobody(MemoryLabRecords):
    async def refresh(self, users: Sequence[str]) -> Sequence[str]:
        return [*await super().refresh(users)][:0]


@found_by("what_is_published_is_seen_by_all_and_what_is_taken_back_is_not")
class KeepsRecords(MemoryLabRecords):
    async def servers(self) -> dict[str, LabServer | None]:
        kept: dict[str, LabServer | None] = getattr(self._door, "kept", {})
        kept.update(await super().servers())
        self._door.kept = kept  # type: ignore[attr-defined]
        return dict(kept)


@found_by("a_user_who_cannot_stand_in_a_name_is_refused")
class PublishesBeforeItLooks(MemoryLabRecords):
    async def publish(self, changes: Sequence[Published]) -> int:
        try:
            return await super().publish(changes)
        except Invalid:
            await super().publish(changes[:1])
            raise


@pytest.mark.parametrize(
    ("mutant", "claim"), [pytest.param(*pair, id=f"{pair[0].__name__}-{n}") for n, pair in enumerate(MUTANTS)]
)
def test_a_defect_is_found(mutant: Mutant, claim: str) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        run_virtual(lambda: check_inbox(door_with(mutant), rounds=3, only=[claim]))
    (failure,) = caught.value.exceptions
    assert claim.replace("_", " ") in failure.__notes__[0]


def test_what_the_mutants_are_made_of_is_sound() -> None:
    run_virtual(lambda: check_inbox(MemoryLabFrontEnd, rounds=3, only={claim for _, claim in MUTANTS}))


def test_claims_have_names_of_their_own() -> None:
    names = [claim.name for claim in inbox_claims()]
    assert len(names) == len(set(names)) >= 39

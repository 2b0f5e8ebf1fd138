"""Elections in virtual time: instants can be compared exactly, and every step can be interrupted."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from harness.pace import check

from hostler import LeadershipLost
from hostler.drivers.store.memory import MemoryStore
from hostler.drivers.ttl.store import StoreTtlStorage
from hostler.engine.elections import Elections, Leadership, fence_key
from hostler.errors import Closed, Conflict, Damaged, Forbidden, Invalid, NotFound, Refused
from hostler.testing import BreakableTtlStorage, VirtualClock, run_virtual

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")
KEY = "sysvvm/1/1"
TTL = 8.0


class JumpingClock(VirtualClock):
    """A clock that goes on while the machine sleeps, which the event loop's own does not."""

    jumped = 0.0

    def now(self) -> float:
        return super().now() + self.jumped


class SlowStorage(BreakableTtlStorage):
    """Takes `slow` seconds on the way there and as many on the way back; what was sent arrives, cancelled or not."""

    slow = 0.0

    async def _call(self, do: Callable[[], Awaitable[Any]], *, writes: bool = True) -> Any:
        if not self.slow:
            return await super()._call(do, writes=writes)

        async def sent() -> Any:
            await asyncio.sleep(self.slow)
            return await super(SlowStorage, self)._call(do, writes=writes)

        result = await asyncio.shield(asyncio.create_task(sent(), name="on its way"))
        await asyncio.sleep(self.slow)
        return result


class Scene:
    """A storage in memory, and elections on it."""

    def __init__(self, raw: StoreTtlStorage, storage: SlowStorage, clock: JumpingClock) -> None:
        self.raw, self.storage, self.clock = raw, storage, clock
        self.elections = self.another()

    def another(self, storage: Any = None) -> Elections:
        return Elections(storage or self.storage, clock=self.clock, rng=random.Random(0))

    async def leader(self) -> Leadership:
        leadership = await self.elections.acquire(KEY, "10.0.0.1", ttl=TTL)
        assert leadership is not None
        return leadership

    async def left(self) -> str | None:
        return await self.raw.get(KEY)


def play(story: Callable[[Scene], Awaitable[T]], *, seed: int = 0) -> T:
    """Run the story, close the elections, and see that no task is left."""

    async def main() -> T:
        clock = JumpingClock()
        async with StoreTtlStorage(MemoryStore(clock=VirtualClock())) as raw:
            scene = Scene(raw, SlowStorage(raw), clock)
            result = await story(scene)
            scene.storage.hear()
            await scene.elections.aclose()
            return result

    return run_virtual(main, seed=seed)


def test_belief_counts_from_before_the_question() -> None:
    async def story(scene: Scene) -> None:
        scene.storage.slow = 0.5
        leadership = await scene.leader()
        assert leadership.deadline == scene.clock.now() - 1.0 + TTL  # the last of five calls took a second
        await asyncio.sleep(TTL / 4 + 1.25)  # the answer is there for a quarter of a second
        assert leadership.deadline == scene.clock.now() - 1.25 + TTL

    play(story)


def test_a_leadership_ends_at_its_deadline_to_the_instant() -> None:
    async def story(scene: Scene) -> None:
        leadership = await scene.leader()
        scene.storage.mood = "hang"
        deadline = leadership.deadline
        await asyncio.sleep(TTL - 0.001)
        assert leadership.held
        await leadership.wait_lost()
        assert scene.clock.now() == leadership.lost_at == deadline
        assert not leadership.held

    for seed in range(20):
        play(story, seed=seed)


def test_it_is_renewed_every_quarter_of_its_life() -> None:
    async def story(scene: Scene) -> None:
        await scene.leader()
        before = scene.storage.calls
        await asyncio.sleep(10 * TTL + 0.1)
        assert scene.storage.calls - before == 40

    play(story)


def test_a_machine_that_slept_past_the_deadline_finds_its_leadership_ended() -> None:
    async def story(scene: Scene) -> None:
        leadership = await scene.leader()
        await asyncio.sleep(1.0)
        scene.clock.jumped = TTL  # the record still stands, for the storage's clock did not jump
        assert not leadership.held
        with pytest.raises(LeadershipLost):
            leadership.check()
        await asyncio.sleep(TTL / 4)
        assert leadership.lost is not None, "the renewal that came after the deadline revived it"
        assert await scene.left() == leadership.record
        await asyncio.sleep(TTL)

    play(story)


def test_an_answer_that_comes_after_the_deadline_revives_nothing() -> None:
    async def story(scene: Scene) -> None:
        leadership = await scene.leader()
        scene.storage.slow = 0.5
        await asyncio.sleep(TTL / 4 + 0.9)  # the renewal was done; its answer is under way
        scene.clock.jumped = TTL
        assert not leadership.held
        await asyncio.sleep(0.2)
        assert not leadership.held
        assert leadership.lost is not None
        scene.storage.slow = 0.0
        await asyncio.sleep(TTL)

    play(story)


def test_a_storage_that_swallows_cancellation_is_not_renewed_for_ever() -> None:
    async def story(scene: Scene) -> None:
        leadership = await scene.leader()
        scene.storage.mood = "deaf"
        await leadership.wait_lost()
        scene.storage.hear()
        before = scene.storage.calls
        await asyncio.sleep(5 * TTL)
        assert scene.storage.calls == before
        assert await scene.left() is None

    play(story)


class FailingRenewals(SlowStorage):
    """Raises `failure` instead of a swap, while there is one."""

    failure: Exception | None = None

    async def compare_and_swap(self, key: str, old: str, new: str, *, ttl: float) -> bool:
        if self.failure is not None:
            raise self.failure
        return await super().compare_and_swap(key, old, new, ttl=ttl)


@pytest.mark.parametrize(
    "error", [TypeError("a defect of the driver"), Closed("it was closed"), Invalid("no such key")], ids=repr
)
def test_an_error_that_no_later_try_can_mend_ends_leadership_at_once_and_is_told(error: Exception) -> None:
    async def story(scene: Scene) -> None:
        scene.storage = storage = FailingRenewals(scene.raw)
        scene.elections = scene.another()
        leadership = await scene.leader()
        storage.failure = error
        await leadership.wait_lost()
        assert scene.clock.now() == TTL / 4
        assert str(error) in str(leadership.lost)
        await asyncio.sleep(TTL)

    play(story)


STORAGE_ERRORS = [Forbidden("no right"), NotFound("no table"), Damaged("torn"), Refused("no"), Conflict("busy")]


@pytest.mark.parametrize("error", STORAGE_ERRORS, ids=repr)
def test_any_other_error_of_the_storage_is_ridden_over(error: Exception) -> None:
    async def story(scene: Scene) -> None:
        scene.storage = storage = FailingRenewals(scene.raw)
        scene.elections = scene.another()
        leadership = await scene.leader()
        storage.failure = error
        await asyncio.sleep(TTL * 0.85)
        storage.failure = None
        await asyncio.sleep(2 * TTL)
        assert leadership.held

    play(story)


@pytest.mark.parametrize("error", STORAGE_ERRORS, ids=repr)
def test_an_error_of_the_storage_that_lasts_ends_leadership_at_the_deadline_and_is_told(error: Exception) -> None:
    async def story(scene: Scene) -> None:
        scene.storage = storage = FailingRenewals(scene.raw)
        scene.elections = scene.another()
        leadership = await scene.leader()
        storage.failure = error
        deadline = leadership.deadline
        await leadership.wait_lost()
        assert leadership.lost_at == deadline
        assert f"not renewed within 8 s ({error})" in str(leadership.lost)
        await asyncio.sleep(TTL)

    play(story)


def test_a_storage_that_gives_no_answer_is_named_as_the_reason_of_the_loss() -> None:
    async def story(scene: Scene) -> None:
        leadership = await scene.leader()
        scene.storage.mood = "hang"
        await leadership.wait_lost()
        assert "not renewed within 8 s (no answer within 2 s)" in str(leadership.lost)

    play(story)


def test_check_says_why_it_ended() -> None:
    async def story(scene: Scene) -> None:
        leadership = await scene.leader()
        leadership.check()
        assert repr(leadership) == "<Leadership sysvvm/1/1 fence=1 held>"
        await leadership.release()
        assert repr(leadership) == "<Leadership sysvvm/1/1 fence=1 lost>"
        with pytest.raises(LeadershipLost, match=": released"):
            leadership.check()

    play(story)


@pytest.mark.parametrize("again", [None, 0.02, 0.07, 0.12])
def test_an_acquisition_cancelled_at_any_instant_leaves_nothing(again: float | None) -> None:
    async def story(scene: Scene, instant: float) -> bool:
        scene.storage.slow = 0.05
        acquiring = asyncio.create_task(scene.elections.acquire(KEY, "10.0.0.1", ttl=TTL))
        await asyncio.sleep(instant)
        acquiring.cancel()
        if again is not None:
            await asyncio.sleep(again)
            acquiring.cancel()
        await asyncio.wait((acquiring,))
        await scene.elections.aclose()
        await asyncio.sleep(0.1)
        if again is None or again > 0.1:  # who is cancelled twice may leave what was on its way, to lapse
            assert await scene.left() is None
        return acquiring.cancelled()

    cancelled = [play(lambda scene, at=at: story(scene, at / 100), seed=at) for at in range(60)]  # type: ignore[misc]
    assert cancelled.count(True) >= 50


@pytest.mark.parametrize("slow", [0.0, 0.05])
def test_a_release_cancelled_at_any_step_leaves_nothing(slow: float) -> None:
    async def story(scene: Scene, steps: int) -> None:
        leadership = await scene.leader()
        scene.storage.slow = slow
        releasing = asyncio.create_task(leadership.release())
        for _ in range(steps):
            await asyncio.sleep(0)
        releasing.cancel()
        await asyncio.wait((releasing,))
        await scene.elections.aclose()
        assert await scene.left() is None

    for steps in range(15):
        for seed in range(5):
            play(lambda scene, steps=steps: story(scene, steps), seed=seed)  # type: ignore[misc]


def test_a_step_whose_cancellation_was_swallowed_does_not_go_on() -> None:
    async def story(scene: Scene) -> None:
        storage = scene.storage
        storage.after(3, "deaf")  # look, claim, read the counter; the drawing does not listen
        storage.mood = "hang"
        acquiring = asyncio.create_task(scene.elections.acquire(KEY, "10.0.0.1", ttl=TTL))
        while storage.calls < 4:
            await storage.begun()
        acquiring.cancel()
        await asyncio.wait((acquiring,))
        calls = storage.calls
        storage._listening.set()
        await asyncio.sleep(TTL)
        assert storage.calls == calls, "it asked again although nobody waits for it"
        assert not scene.elections._tasks
        await asyncio.sleep(TTL)

    play(story)


def test_closing_at_any_instant_of_an_acquisition_leaves_nothing() -> None:
    async def story(scene: Scene, instant: float) -> None:
        scene.storage.slow = 0.05
        acquiring = asyncio.create_task(scene.elections.acquire(KEY, "10.0.0.1", ttl=TTL))
        await asyncio.sleep(instant)
        started = scene.clock.now()
        await scene.elections.aclose()
        assert scene.clock.now() - started < 1.0
        await asyncio.wait((acquiring,))
        assert acquiring.exception() is not None or not (acquiring.result() or acquiring).held  # type: ignore[union-attr]
        assert await scene.left() is None

    for at in range(60):
        play(lambda scene, at=at: story(scene, at / 100), seed=at)  # type: ignore[misc]


def test_a_release_or_close_cancelled_at_any_instant_still_leaves_nothing() -> None:
    async def story(scene: Scene, instant: float, *, close: bool) -> None:
        leadership = await scene.leader()
        await asyncio.sleep(TTL / 4 - 0.1)
        scene.storage.slow = 0.05  # so that a renewal is under way at some of the instants
        ending = asyncio.create_task(scene.elections.aclose() if close else leadership.release())
        await asyncio.sleep(instant)
        ending.cancel()
        await asyncio.wait((ending,))
        await scene.elections.aclose()
        assert await scene.left() is None

    for at in range(40):
        for close in (False, True):
            play(lambda scene, at=at, close=close: story(scene, at / 100, close=close), seed=at)  # type: ignore[misc]


def test_a_storage_that_fails_at_once_does_not_starve_the_event_loop() -> None:
    async def story(scene: Scene) -> None:
        storage = scene.storage
        storage.moods.extend(["fine", "fine"])  # look, claim

        async def uncertain(*_: object, **__: object) -> bool:
            storage.calls += 1
            from hostler import Uncertain

            raise Uncertain("the answer was lost")

        insert = storage.insert_if_not_exist
        storage.insert_if_not_exist = (  # type: ignore[method-assign]
            lambda key, value, *, ttl: insert(key, value, ttl=ttl) if ttl else uncertain()  # type: ignore[assignment, return-value]
        )
        from hostler import Uncertain

        with pytest.raises(Uncertain):
            await scene.elections.acquire(KEY, "10.0.0.1", ttl=TTL)
        assert storage.calls < 200
        assert await scene.left() is None

    play(story)


def test_a_late_request_of_an_earlier_try_cannot_confirm_a_later_claim() -> None:
    async def story(scene: Scene) -> None:
        swaps: list[tuple[str, str]] = []
        swap = scene.storage.compare_and_swap

        async def seen(key: str, old: str, new: str, *, ttl: float) -> bool:
            swaps.append((old, new))
            return await swap(key, old, new, ttl=ttl)

        scene.storage.compare_and_swap = seen  # type: ignore[method-assign]
        for _ in range(2):
            await (await scene.leader()).release()
        claims = [old for old, new in swaps if '"fence":0' in old]
        assert len(claims) == len(set(claims)) == 2

    play(story)


def test_counters_stand_beside_their_keys() -> None:
    assert fence_key("sysvvm/1/1") == "sysvvm/2/1"
    assert fence_key("sysvvm/1/12") == "sysvvm/2/12"
    assert fence_key("/mine/leader") == "/mine/leader.fence"
    assert fence_key("sysvvm/1/x") == "sysvvm/1/x.fence"


def test_hundreds_of_leaderships_in_one_process_are_all_kept() -> None:
    """Virtual time takes only what the work takes: six seconds of it must take far less, or real ones are lost."""

    async def main() -> None:
        async with StoreTtlStorage(MemoryStore(clock=VirtualClock())) as storage:
            elections = Elections(storage, clock=VirtualClock())
            held = [await elections.acquire(f"/many/{n}", "10.0.0.1", ttl=2.0) for n in range(300)]
            await asyncio.sleep(6.0)
            assert all(leadership is not None and leadership.held for leadership in held)
            await elections.aclose()
            assert not [kv for kv in (await storage.store.range("/many/")).items if not kv.key.endswith(".fence")]

    since, began = time.monotonic(), time.process_time()
    run_virtual(main)
    check(time.process_time() - began, 0.6, since=since, what="renewing 300 leaderships for 6 s")

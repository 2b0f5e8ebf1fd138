"""One call, whatever befalls it: what is tried again and what never is, deadlines, streams, withdrawal, outages."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from stub_worker import TOKEN, StubWorker, weigh

from hostler.drivers.calling.connection_pool import TcpConnectionPool
from hostler.drivers.store.faulty import FaultyStore
from hostler.drivers.store.memory import MemoryStore
from hostler.engine.invocation import endpoints as why_module
from hostler.engine.invocation import load_balancer as route_module
from hostler.engine.invocation import router as router_module
from hostler.engine.invocation.endpoints import Why
from hostler.engine.invocation.router import Router
from hostler.engine.view import View
from hostler.errors import DeadlinePassed, HostlerError, Invalid, NotFound, Raised, Unavailable, Uncertain
from hostler.keys.families import DEPLOYMENT, RETRIES, SLICE, SLICE_OWNER
from hostler.kit.clock import SystemClock
from hostler.kit.rate_limit import Backoff
from hostler.model.deployment import SliceInstance, SliceRecord, SliceState
from hostler.model.rollout import Deployment, Phase, Retries, SliceOwner
from hostler.ports.calls import Call, CallFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

BASE, OLD, NEW = "acme:shop", "acme:shop:1.0", "acme:shop:2.0"


class Stage:
    """A router, workers, and the store between."""

    def __init__(self, stack: AsyncExitStack, store: FaultyStore, lines: TcpConnectionPool, **more: Any) -> None:
        self._stack, self.store, self.lines = stack, store, lines
        self.router = Router(store, lines, clock=SystemClock(), rng=random.Random(1), **more)

    async def worker(self, artifact: str = OLD, instance: int = 1, node: str = "", **more: Any) -> StubWorker:
        made = await self._stack.enter_async_context(StubWorker(artifact, instance, node or f"n{instance}"))
        await made.publish(self.store, **more)
        return made

    async def call(self, target: str = BASE, method: str = "sell", data: bytes = b"{}", **more: Any) -> list[bytes]:
        return [value async for value in self.router.call(target, method, data, **{"within": 60.0, **more})]


@asynccontextmanager
async def stage(*, token: str = TOKEN, **more: Any) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        raw = MemoryStore(clock=SystemClock())
        store = await stack.enter_async_context(FaultyStore(raw, random.Random(1), clock=SystemClock()))
        lines = TcpConnectionPool(token, connect_within=30.0)
        stack.push_async_callback(lines.aclose)
        made = Stage(stack, store, lines, **more)
        running = asyncio.create_task(made.router.run())

        async def end() -> None:
            store.up()
            running.cancel()
            await asyncio.wait((running,))

        stack.push_async_callback(end)
        yield made


async def until(done: Any) -> None:
    async with asyncio.timeout(30):
        while not done():
            await asyncio.sleep(0.001)


# What is tried again


@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("mode", ["refused", "deny", "cut", "half", "garbage", "raised", "no_method", "arguments"])
async def test_only_what_provably_did_not_start_or_may_be_done_twice_is_tried_elsewhere(
    mode: str, idempotent: bool
) -> None:
    never_started = mode in ("refused", "deny")
    lost = mode in ("cut", "half", "garbage")
    wrong = {"raised": Raised, "no_method": NotFound, "arguments": Invalid}
    async with stage(local=("n1",)) as on:
        bad = await on.worker(instance=1, idempotent=idempotent)
        good = await on.worker(instance=2, idempotent=idempotent)
        bad.mode = mode
        if never_started or (lost and idempotent):
            assert await on.call(data=b'{"a":1}') == [b'{"a":1}']
            assert len(good.calls) == 1
            assert on.router.retries == 1
        else:
            with pytest.raises(wrong.get(mode, Uncertain)):
                await on.call()
            assert len(bad.calls) == 1
            assert not good.calls
            assert on.router.retries == 0
        assert on.router.measures.in_flight == {}


async def test_a_refused_connection_is_no_start_and_the_instance_is_passed_over_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(route_module, "SHUNNED_FIRST", 60.0)
    async with stage(local=("n1",)) as on:
        async with StubWorker(OLD, 1, "n1") as gone:
            await gone.publish(on.store)
        good = await on.worker(instance=2)
        for _ in range(5):
            assert await on.call() == [b"{}"]
        assert len(good.calls) == 5
        assert on.router.retries == 1


async def test_a_call_that_waits_for_its_connection_when_that_is_cut_did_not_start() -> None:
    async with stage(local=("n1",)) as on:
        mute = await on.worker(instance=1)
        good = await on.worker(instance=2)
        mute.mode = "mute"
        calling = asyncio.create_task(on.call())
        await until(lambda: mute.connections)
        await mute.__aexit__()
        assert await calling == [b"{}"]
        assert len(good.calls) == 1


async def test_a_call_that_was_not_written_when_its_connection_broke_did_not_start_and_one_that_was_may_have() -> None:
    async with stage() as on:
        worker = await on.worker()
        for written in (False, True):
            await on.call()
            worker.mode = "slow"
            line = on.lines._shared[worker.address]
            waiting = line.send(Call(0, "sell", b"{}"), 5.0)
            if written:
                await asyncio.sleep(0)
            line.abort()
            with pytest.raises(CallFailed) as found:
                await waiting.future
            assert found.value.started is written
            with pytest.raises(CallFailed) as found:  # whoever comes too late does not wait for ever
                line.send(Call(0, "sell", b"{}"), 5.0)
            assert not found.value.started
            worker.mode = "answer"


async def test_three_retries_and_no_more() -> None:
    async with stage() as on:
        workers = [await on.worker(instance=number, idempotent=True) for number in range(1, 7)]
        for worker in workers:
            worker.mode = "cut"
        with pytest.raises(Uncertain, match="gave no answer"):
            await on.call()
        assert sum(len(worker.calls) for worker in workers) == 4
        assert max(len(worker.calls) for worker in workers) == 1  # each try at another


async def test_the_only_instance_that_is_busy_is_asked_again() -> None:
    async with stage() as on:
        only = await on.worker()
        only.mode = "refused"
        calling = asyncio.create_task(on.call())
        await until(lambda: len(only.calls) == 1)
        only.mode = "answer"
        assert await calling == [b"{}"]
        only.mode = "refused"
        with pytest.raises(Unavailable, match="it is refused; it did not start"):
            await on.call()


async def test_one_that_is_full_is_not_asked_by_the_next_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_module, "FULL", 30.0)
    async with stage(local=("n1",)) as on:
        full, other = await on.worker(instance=1), await on.worker(instance=2)
        full.mode = "refused"
        for _ in range(3):
            assert await on.call() == [b"{}"]
        assert (len(full.calls), len(other.calls), on.router.retries) == (1, 3, 1)


@pytest.mark.slow
async def test_workers_that_do_not_know_this_process_yet_are_given_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_module, "ADMISSION", 60.0)
    async with stage() as on:
        only = await on.worker()
        only.mode = "deny"
        calling = asyncio.create_task(on.call())
        await until(lambda: only.connections > 5)  # more often than other failures are forgiven
        only.mode = "answer"
        assert await calling == [b"{}"]
        monkeypatch.setattr(router_module, "ADMISSION", 0.0)
    async with stage(token="another") as on:
        await on.worker()
        with pytest.raises(Unavailable, match="who are you"):
            await on.call()


async def test_another_instance_on_the_same_address_refuses_and_the_right_one_is_found() -> None:
    async with stage(local=("n1",)) as on:
        old = await on.worker(instance=1)
        good = await on.worker(instance=2)
        await on.call()
        assert len(old.calls) == 1
        await old.__aexit__()
        other = StubWorker(NEW, 7, "n1")
        other.port = old.port
        async with other:
            assert await on.call() == [b"{}"]
            assert not other.calls
            assert len(good.calls) == 1


# Time


@pytest.mark.slow
async def test_what_is_left_of_the_time_is_passed_on_and_the_end_of_it_cancels() -> None:
    async with stage() as on:
        slow = await on.worker()
        slow.mode = "slow"
        with pytest.raises(DeadlinePassed, match="may have been executed"):
            await on.call(within=1.0)
        assert 0 < (slow.calls[0].within or 0) <= 1.0
        await until(lambda: slow.cancelled)
        slow.mode = "answer"
        assert await on.call(within=60.0) == [b"{}"]
        assert 30 < (slow.calls[1].within or 0) <= 60.0
        assert on.router.counters["late"] == 1


async def test_retries_do_not_make_the_deadline_longer() -> None:
    async with stage() as on:
        for number in range(1, 4):
            (await on.worker(instance=number, idempotent=True)).mode = "cut"
        loop = asyncio.get_running_loop()
        took = []
        for _ in range(5):  # others need the processor, too
            began = loop.time()
            with pytest.raises(HostlerError):
                await on.call(within=0.02)
            took.append(loop.time() - began)
        assert min(took) < 1.0


async def test_there_is_no_retry_for_which_no_time_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_module, "Backoff", lambda *_, rng: Backoff(60.0, 120.0, rng=rng))
    async with stage() as on:
        worker = await on.worker()
        await on.call()
        worker.mode = "refused"
        with pytest.raises(Unavailable):
            await on.call(within=20.0)  # less than the shortest pause
        assert on.router.retries == 0


async def test_a_worker_that_never_welcomes_costs_the_deadline_and_did_not_start() -> None:
    async with stage() as on:
        (await on.worker()).mode = "mute"
        with pytest.raises(Unavailable, match="did not start"):
            await on.call(within=0.05)


async def test_who_gives_up_cancels_the_call() -> None:
    async with stage() as on:
        slow = await on.worker()
        slow.mode = "slow"
        calling = asyncio.create_task(on.call())
        await until(lambda: slow.calls)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        await until(lambda: slow.cancelled)
        assert on.router.measures.in_flight == {}
        assert on.router.measures.errors == 0


# Streams


async def test_a_stream_is_told_item_by_item_and_its_line_is_used_again() -> None:
    async with stage() as on:
        worker = await on.worker(streams=True)
        worker.mode = "stream"
        for _ in range(3):
            assert await on.call() == [b"0", b"1", b"2"]
        assert worker.connections == 1
        assert on.router.measures.calls == 3
        worker.mode = "answer"
        assert await on.call() == [b"{}"]


async def test_a_stream_that_breaks_half_way_is_not_tried_again() -> None:
    async with stage() as on:
        worker = await on.worker(idempotent=True, streams=True)
        worker.mode = "broken stream"
        stream = await on.router.ask(BASE, "sell", b"{}")
        assert not isinstance(stream, bytes)
        assert await anext(stream) == b"0"
        worker.release.set()
        with pytest.raises(Uncertain):
            await anext(stream)
        assert len(worker.calls) == 1
        assert on.router.measures.errors == 1
        assert on.router.measures.in_flight == {}


@pytest.mark.parametrize("mode", ["result in a stream", "refused in a stream"])
async def test_whatever_follows_the_first_result_of_a_stream_ends_it_and_it_had_started(mode: str) -> None:
    async with stage() as on, asyncio.timeout(40):  # less than the call has
        worker = await on.worker(streams=True)
        worker.mode = mode
        stream = on.router.call(BASE, "sell", b"{}", within=60.0)
        assert await anext(stream) == b"0"
        with pytest.raises(Uncertain):
            await anext(stream)
        assert on.router.measures.in_flight == {}


@pytest.mark.parametrize("mode", ["no text", "deep"])
async def test_a_worker_that_sends_what_cannot_be_read_is_cut_off_and_nothing_is_logged(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with stage() as on:
        worker = await on.worker()
        worker.mode = mode
        with pytest.raises(Uncertain, match="it sent data that cannot be read"):
            await on.call()
        assert caplog.records == []


async def test_a_stream_that_nobody_reads_makes_its_worker_wait_and_others_do_not() -> None:
    async with stage() as on:
        worker = await on.worker(streams=True)
        worker.mode = "endless"
        stream = await on.router.ask(BASE, "sell", b"{}")
        assert not isinstance(stream, bytes)
        assert await anext(stream) is not None
        before = -1
        while worker.sent != before:  # until it makes no more
            before = worker.sent
            await asyncio.sleep(0.05)
        worker.mode = "answer"
        assert await on.call() == [b"{}"]  # of the same worker
        read = 0
        while read < before:
            assert await anext(stream)
            read += 1
        await until(lambda: worker.sent > before)
        await stream.aclose()
        await until(lambda: worker.cancelled)
        assert on.router.measures.in_flight == {}


# What can be called


async def test_shares_are_exact_and_follow_the_store() -> None:
    async with stage() as on:
        old, new = await on.worker(OLD, 1), await on.worker(NEW, 1, "n2")
        await weigh(on.store, {OLD: 75, NEW: 25})
        await on.call()
        await asyncio.gather(*(on.call() for _ in range(399)))
        assert (len(old.calls), len(new.calls)) == (300, 100)
        await weigh(on.store, {OLD: 0, NEW: 100})
        routing = on.router._routes[BASE].routing
        await until(lambda: routing.weights == {OLD: 0, NEW: 100})
        await asyncio.gather(*(on.call() for _ in range(50)))
        assert (len(old.calls), len(new.calls)) == (300, 150)
        assert await on.call(OLD) == [b"{}"]  # exactly this version
        assert len(old.calls) == 301


async def test_nothing_goes_to_an_endpoint_that_was_withdrawn() -> None:
    async with stage() as on:
        first, second = await on.worker(instance=1), await on.worker(instance=2)
        going = True

        async def caller() -> None:
            while going:
                await on.call()

        callers = [asyncio.create_task(caller()) for _ in range(10)]
        await until(lambda: len(first.calls) > 20 and len(second.calls) > 20)
        await first.withdraw(on.store)
        routing = on.router._routes[BASE].routing
        await until(lambda: len(routing) == 1)
        await asyncio.sleep(0)
        await until(lambda: "acme:shop:1.0" not in on.router.measures.in_flight or len(second.calls) > 60)
        count, other = len(first.calls), len(second.calls)
        await until(lambda: len(second.calls) > other + 100)
        going = False
        await asyncio.gather(*callers)
        assert len(first.calls) == count


async def test_a_call_between_two_instances_waits_for_the_next_one() -> None:
    async with stage() as on:
        first = await on.worker(instance=1)
        await on.call()
        await first.withdraw(on.store)
        routing = on.router._routes[BASE].routing
        await until(lambda: not len(routing))
        calling = asyncio.create_task(on.call())
        await until(lambda: on.router._routes[BASE].waiting)
        await on.worker(instance=2)
        assert await calling == [b"{}"]


async def test_without_an_endpoint_the_error_tells_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_module, "PATIENCE", 0.05)
    async with stage() as on:
        with pytest.raises(NotFound, match="no blueprint names it; apply one"):
            await on.call()
        view = View(on.store, clock=SystemClock())
        on.router._why = Why(on.store, view)
        instances = {1: SliceState.LOADING, 2: SliceState.LOADING, 3: SliceState.FAILED}
        record = SliceRecord(
            state=SliceState.LOADING,
            timestamp=1,
            instances={number: SliceInstance(state=state) for number, state in instances.items()},
        )
        await on.store.txn([], [SLICE.put(record, node="n1", artifact=OLD)])
        await view.refresh(view.slices)
        await on.store.txn([], [SLICE_OWNER.put(SliceOwner(blueprint="shop", number=1), base=BASE)])
        with pytest.raises(Unavailable, match=r"\(2 LOADING, 1 FAILED\); see hostler blueprint status shop"):
            await on.call()
        deployment = Deployment(
            blueprint="shop", number=1, artifact=OLD, phase=Phase.STARTING, started_at=0.0, changed_at=0.0
        )
        retries = Retries(failures=3, why="start raised KeyError: 'DB'", given_up=True)
        await on.store.txn([], [DEPLOYMENT.put(deployment, base=BASE), RETRIES.put(retries, artifact=OLD)])
        with pytest.raises(
            Unavailable, match="last failure: start raised KeyError: 'DB', given up after repeated failures"
        ):
            await on.call()
        await on.worker(NEW)
        await until(lambda: len(on.router._routes[BASE].routing) == 1)
        with pytest.raises(NotFound, match="this version takes no calls; these do: acme:shop:2.0"):
            await on.call(OLD)
        with pytest.raises(NotFound, match="no method 'buy'; available: sell"):
            await on.call(method="buy")
        await weigh(on.store, {OLD: 100, NEW: 0})
        await until(lambda: on.router._routes[BASE].routing.weights)
        with pytest.raises(Unavailable, match=r"acme:shop:2.0 gets no share of the calls yet"):
            await on.call()
        for wrong in ("shop", "a:b:c:d", "a/b:c", "", "acme:shop:"):
            with pytest.raises(Invalid, match="must be group:name"):
                await on.call(wrong)


@pytest.mark.slow
async def test_an_outage_of_the_store_stops_no_call_of_what_is_known() -> None:
    async with stage() as on:
        await on.worker()
        assert await on.call() == [b"{}"]
        on.store.down()
        for _ in range(20):
            assert await on.call() == [b"{}"]
        with pytest.raises(Unavailable, match="the store has not answered"):
            await on.call("acme:other", within=0.05)
        on.store.up()
        with pytest.raises(NotFound):
            await on.call("acme:other")


async def test_what_nobody_calls_is_followed_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_module, "SWEEP_EVERY", 0.01)
    monkeypatch.setattr(router_module, "IDLE_EMPTY", 600.0)
    async with stage() as on:
        await on.worker()
        await on.call()
        await on.store.txn([], [SLICE_OWNER.put(SliceOwner(blueprint="shop", number=1), base="acme:soon")])
        with pytest.raises(Unavailable):
            await on.call("acme:soon")
        assert len(on.router._routes) == 2
        monkeypatch.setattr(router_module, "IDLE_EMPTY", 0.02)
        await until(lambda: list(on.router._routes) == [BASE])
        monkeypatch.setattr(router_module, "IDLE", 0.02)
        await until(lambda: not on.router._routes)
        assert await on.call() == [b"{}"]


async def test_names_that_nobody_knows_are_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_module, "READ_AT_LEAST", 0.05)
    async with stage() as on:
        for number in range(20):
            with pytest.raises(NotFound, match="no blueprint names it"):
                await on.call(f"acme:no{number}")
        several = await asyncio.gather(*(on.call("acme:none") for _ in range(20)), return_exceptions=True)
        assert {type(one) for one in several} == {NotFound}
        assert not on.router._routes
        assert not on.router._following
        on.store.down()
        with pytest.raises(Unavailable, match="the store has not answered"):
            await on.call("acme:later", within=0.05)
        on.store.up()
        await on.worker("acme:later:1.0")  # what was not known may be there the next time
        assert await on.call("acme:later") == [b"{}"]


async def test_a_retry_after_its_routes_were_forgotten_finds_what_is_there_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_module, "SWEEP_EVERY", 0.01)
    monkeypatch.setattr(router_module, "IDLE", 0.02)
    monkeypatch.setattr(router_module, "IDLE_EMPTY", 0.02)
    async with stage() as on:
        gone = await on.worker(instance=1, idempotent=True)
        gone.mode = "slow"
        calling = asyncio.create_task(on.call())
        await until(lambda: gone.calls)
        await until(lambda: not on.router._routes)
        await gone.withdraw(on.store)
        other = await on.worker(instance=2, idempotent=True)
        await gone.__aexit__()
        assert await calling == [b"{}"]
        assert len(other.calls) == 1


async def test_without_a_view_the_error_tells_the_states_too_and_does_not_look_for_each_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(why_module, "AGAIN", 60.0)
    async with stage() as on:
        record = SliceRecord(
            state=SliceState.LOADING,
            timestamp=1,
            instances={1: SliceInstance(state=SliceState.LOADING), 2: SliceInstance(state=SliceState.FAILED)},
        )
        puts = [SLICE.put(record, node=node, artifact=of) for node in ("n1", "n2") for of in (OLD, "acme:shop2:1.0")]
        await on.store.txn([], [*puts, SLICE_OWNER.put(SliceOwner(blueprint="shop", number=1), base=BASE)])
        for _ in range(2):
            with pytest.raises(Unavailable, match=r"\(2 LOADING, 2 FAILED\); see hostler blueprint status shop"):
                await on.call()
            await on.store.txn([], [SLICE.delete(node="n2", artifact=OLD)])  # it was looked at a moment ago
        more = Why(on.store)
        assert "(1 LOADING, 1 FAILED)" in str(await more.nowhere(BASE, None, (), ()))
        assert "instance takes calls now;" in str(await more.nowhere(BASE, NEW, (), ()))


async def test_what_is_looked_through_for_the_states_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(why_module, "LOOKED_THROUGH", 10)
    monkeypatch.setattr(why_module, "READ", 3)
    async with stage() as on:
        record = SliceRecord(state=SliceState.LOADING, timestamp=1)
        await on.store.txn([], [SLICE.put(record, node=f"n{number}", artifact=OLD) for number in range(20)])
        await on.store.txn([], [SLICE_OWNER.put(SliceOwner(blueprint="shop", number=1), base=BASE)])
        with pytest.raises(Unavailable, match=r"\(at least 3 LOADING\)"):
            await on.call()


async def test_many_calls_at_once_share_a_line_and_get_their_own_answers() -> None:
    async with stage() as on:
        workers = [await on.worker(instance=number) for number in (1, 2)]
        answers = await asyncio.gather(*(on.call(data=b'{"n":%d}' % number) for number in range(500)))
        assert answers == [[b'{"n":%d}' % number] for number in range(500)]
        assert [worker.connections for worker in workers] == [1, 1]
        spread = Counter({worker.instance: len(worker.calls) for worker in workers})
        assert max(spread.values()) < 350
        large = b'{"x":"' + b"y" * 3_000_000 + b'"}'
        assert await on.call(data=large) == [large]


class Moody(StubWorker):
    """Does with each call what chance says, and keeps book of those that it has done."""

    rng = random.Random(0)
    done: Counter[bytes]

    async def _do(self, call: Any, writer: Any) -> None:
        self.mode = self.rng.choices(("answer", "refused", "cut", "half", "raised"), (12, 2, 1, 1, 1))[0]
        if self.mode != "refused":
            self.done[call.arguments] += 1
        await super()._do(call, writer)


@pytest.mark.parametrize("idempotent", [False, True])
async def test_whatever_befalls_workers_no_call_is_done_twice_unless_it_may_be_and_errors_tell_the_truth(
    idempotent: bool,
) -> None:
    rng = random.Random(5)
    outcomes: Counter[str] = Counter()
    async with stage() as on:
        done: Counter[bytes] = Counter()
        workers = []
        for number in range(1, 5):
            worker = Moody(OLD, number, f"n{number}")
            worker.rng, worker.done = rng, done
            await on._stack.enter_async_context(worker)
            await worker.publish(on.store, idempotent=idempotent)
            workers.append(worker)

        async def caller(number: int) -> None:
            for turn in range(15):
                data = b'{"id":"%d-%d"}' % (number, turn)
                try:
                    answer = await on.call(data=data)
                except (Raised, Uncertain, Unavailable) as error:
                    answer, told = [], type(error).__name__
                else:
                    told = "answered"
                outcomes[told] += 1
                assert answer in ([], [data])
                assert done[data] <= (4 if idempotent else 1)
                assert told != "DeadlinePassed"  # nobody is forgotten
                if told != "Uncertain":
                    assert (done[data] > 0) is (told != "Unavailable")

        async def restarts() -> None:
            while True:
                worker = rng.choice(workers)
                await worker.__aexit__()
                await asyncio.sleep(0.01)
                await worker.__aenter__()
                await asyncio.sleep(0.02)

        restarting = asyncio.create_task(restarts())
        await asyncio.gather(*(caller(number) for number in range(20)))
        restarting.cancel()
        await asyncio.wait((restarting,))
        assert on.router.measures.in_flight == {}
    assert outcomes["answered"] > 60
    assert outcomes["Raised"]
    assert idempotent or outcomes["Uncertain"] > 5


async def test_what_may_have_started_is_not_said_not_to_have_when_nobody_takes_it_afterwards() -> None:
    async with stage(local=("n1",)) as on:
        first, second = await on.worker(instance=1, idempotent=True), await on.worker(instance=2, idempotent=True)
        first.mode, second.mode = "cut", "refused"

        async def later() -> None:
            await until(lambda: first.calls)
            first.mode = "refused"

        changing = asyncio.create_task(later())
        with pytest.raises(Uncertain, match="an earlier try gave no answer"):
            await on.call()
        await changing

"""What routers measure, what the leader makes of it, and how both find each other."""

from __future__ import annotations

import asyncio
import hashlib
import math
import random
from typing import TYPE_CHECKING, Any

import pytest
from environment import env_on
from service_scene import play

from hostler.drivers.calling.listener import Listener, TcpQuestions
from hostler.drivers.store.memory import MemoryStore
from hostler.engine.invocation.call_metrics import BOUNDS, KEPT, Measures, percentile, span_of
from hostler.engine.invocation.metrics_collector import UNSEEN, CallWatch, Collector
from hostler.engine.invocation.registration import Registration
from hostler.entry.router_process import Calling
from hostler.keys.families import DEPLOYMENT, ROUTER
from hostler.kit.clock import SystemClock
from hostler.model.rollout import Deployment, Phase, RouterRecord
from hostler.ports.calls import Ask, CallFailed, Told, Unreachable

if TYPE_CHECKING:
    from service_scene import Scene

OLD, NEW = "acme:shop:1.0", "acme:shop:2.0"
SHA = "0" * 64


class Wall:
    """A calendar that is set by hand."""

    def __init__(self, at: float = 1000.0) -> None:
        self.at = at

    def wall(self) -> float:
        return self.at

    def now(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def test_a_percentile_is_at_most_a_quarter_too_large() -> None:
    rng = random.Random(1)
    for _ in range(50):
        times = sorted(rng.lognormvariate(-4, 1.5) for _ in range(rng.randrange(1, 400)))
        spans: dict[int, int] = {}
        for seconds in times:
            spans[span_of(seconds)] = spans.get(span_of(seconds), 0) + 1
        exact = times[max(0, -(-len(times) * 95 // 100) - 1)]
        found = percentile(spans, 0.95)
        assert exact <= found * 1.000001
        assert found <= max(exact * 1.2500001, BOUNDS[0])
    assert percentile({}, 0.95) == 0.0
    assert percentile({500: 3}, 0.95) == BOUNDS[-1]


def test_seconds_are_told_once_complete_and_kept_for_a_while() -> None:
    clock = Wall()
    measures = Measures(clock)
    measures.begin(OLD)
    measures.count(OLD, 0.01, error=False)
    measures.count(OLD, 0.02, error=True)
    assert measures.seconds_after("r", 0).seconds == ()  # the second is not over
    clock.at = 1001.5
    measures.count(NEW, 0.03, error=False)
    told = measures.seconds_after("r", 0)
    assert [(second.at, [(t.artifact, t.calls, t.errors) for t in second.tallies]) for second in told.seconds] == [
        (1000, [(OLD, 2, 1)])
    ]
    assert (told.now, told.in_flight) == (1001, {OLD: 1})
    measures.end(OLD)
    clock.at = 1002.0
    assert [second.at for second in measures.seconds_after("r", 1000).seconds] == [1001]
    assert measures.seconds_after("r", 0).in_flight == {}
    clock.at = 1000.0 + KEPT + 5
    measures.count(OLD, 0.01, error=False)
    clock.at += 1
    assert [second.at for second in measures.seconds_after("r", 0).seconds] == [1000 + KEPT + 5]
    clock.at = 500.0  # the calendar went back
    measures.count(OLD, 0.01, error=False)
    clock.at = 501.0
    assert [second.at for second in measures.seconds_after("r", 0).seconds] == [500]


class Routers:
    """Routers that are asked without a network; `dead` ones do not answer, and `hung` ones never do."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.measures: dict[str, Measures] = {}
        self.dead: set[str] = set()
        self.hung: set[str] = set()
        self.asked: list[tuple[str, int]] = []
        self.skew: dict[str, float] = {}

    async def add(self, name: str, skew: float = 0.0) -> Measures:
        scene = self._scene

        class Skewed(Wall):
            def wall(self) -> float:
                return scene.clock.wall() + skew

        made = self.measures[name] = Measures(Skewed())
        record = RouterRecord(router=name, token_sha256=SHA, address=f"{name}:1", started_at=0.0)
        await scene.raw.txn([], [ROUTER.put(record, router=name)])
        return made

    async def ask(self, address: str, question: Ask) -> Told:
        name = address.partition(":")[0]
        self.asked.append((name, question.after))
        if name in self.hung:
            await asyncio.sleep(1000)
        if name in self.dead or name not in self.measures:
            raise Unreachable(f"{address}: nobody there")
        return self.measures[name].seconds_after(name, question.after)

    async def aclose(self) -> None:
        return


async def deployment(scene: Scene, changed_at: float) -> None:
    record = Deployment(
        blueprint="b", number=1, artifact=NEW, phase=Phase.CANARY, started_at=0.0, changed_at=changed_at
    )
    await scene.raw.txn([], [DEPLOYMENT.put(record, base="acme:shop")])
    await scene.settle()


def collected(scene: Scene, routers: Routers) -> tuple[Collector, asyncio.Task[None]]:
    collector = Collector(scene.view, routers, clock=scene.clock, rng=random.Random(1))
    return collector, asyncio.create_task(collector.run())


def test_the_leader_sums_what_routers_tell_whatever_their_calendars_and_dead_ones_delay_nothing() -> None:
    async def story(scene: Scene) -> None:
        routers = Routers(scene)
        one, two = await routers.add("one"), await routers.add("two", skew=-7200.0)
        await routers.add("dead")
        await routers.add("hung")
        routers.dead.add("dead")
        routers.hung.add("hung")
        await deployment(scene, scene.clock.wall())
        collector, running = collected(scene, routers)
        await asyncio.sleep(2)
        for measures, errors in ((one, 1), (two, 2)):
            for number in range(10):
                measures.count(NEW, 0.010, error=number < errors)
            measures.count(OLD, 0.001, error=False)
            for _ in range(3):
                measures.begin(NEW)
        await asyncio.sleep(12)
        found = collector.metrics_of(NEW)
        assert (found.calls, found.errors, found.in_flight) == (20, 3, 6.0)
        assert 10 <= found.p95_ms <= 12.5
        assert collector.metrics_of(OLD).calls == 2
        assert collector.metrics_of("acme:other:1").calls == 0
        await asyncio.sleep(30)  # nothing is counted twice
        assert collector.metrics_of(NEW).calls == 20
        routers.dead.add("one")  # what it has under way is not known any more
        await asyncio.sleep(15)
        assert collector.metrics_of(NEW).in_flight == 3.0
        assert collector.metrics_of(NEW).calls == 20
        await scene.raw.delete(ROUTER.fill(router="two"))
        await asyncio.sleep(15)
        assert collector.metrics_of(NEW).in_flight == 0.0
        running.cancel()
        await asyncio.wait((running,))

    play(story)


def test_each_stage_is_counted_anew_and_latency_is_of_the_last_minute() -> None:
    async def story(scene: Scene) -> None:
        routers = Routers(scene)
        one = await routers.add("one")
        await deployment(scene, scene.clock.wall())
        collector, running = collected(scene, routers)
        await asyncio.sleep(1.5)
        one.count(NEW, 1.0, error=True)
        await asyncio.sleep(4)
        one.count(NEW, 1.0, error=False)
        await asyncio.sleep(8)
        assert (collector.metrics_of(NEW).calls, collector.metrics_of(NEW).errors) == (2, 1)
        changed_at = scene.clock.wall()
        await deployment(scene, changed_at)
        found = collector.metrics_of(NEW)
        assert (found.calls, found.errors, found.p95_ms, found.since) == (0, 0, 0.0, changed_at)
        await asyncio.sleep(1.5)
        one.count(NEW, 0.005, error=False)
        await asyncio.sleep(8)
        assert (collector.metrics_of(NEW).calls, collector.metrics_of(NEW).errors) == (1, 0)
        assert collector.metrics_of(NEW).p95_ms < 10
        await asyncio.sleep(70)
        assert collector.metrics_of(NEW).calls == 1
        assert collector.metrics_of(NEW).p95_ms == 0.0
        await asyncio.sleep(KEPT + 10)  # longer than seconds are remembered
        assert collector.metrics_of(NEW).calls == 1
        running.cancel()
        await asyncio.wait((running,))

    play(story)


def test_a_new_leader_knows_the_last_minutes_at_once() -> None:
    async def story(scene: Scene) -> None:
        routers = Routers(scene)
        one = await routers.add("one")
        await deployment(scene, scene.clock.wall())
        for _ in range(5):
            await asyncio.sleep(1)
            one.count(NEW, 0.01, error=False)
        await asyncio.sleep(2)
        collector, running = collected(scene, routers)
        await asyncio.sleep(1)
        assert collector.metrics_of(NEW).calls == 5
        running.cancel()
        await asyncio.wait((running,))

    play(story)


def test_a_quiet_router_is_asked_more_seldom() -> None:
    async def story(scene: Scene) -> None:
        routers = Routers(scene)
        await routers.add("quiet")
        busy = await routers.add("busy")
        _, running = collected(scene, routers)
        for _ in range(60):
            busy.count(NEW, 0.01, error=False)
            await asyncio.sleep(1)
        counts: dict[str, int] = {}
        for name, _ in routers.asked:
            counts[name] = counts.get(name, 0) + 1
        assert counts["busy"] > 50
        assert counts["quiet"] <= 13
        running.cancel()
        await asyncio.wait((running,))

    play(story)


def test_a_router_stands_in_the_store_while_it_runs_and_again_after_its_lease_was_lost() -> None:
    async def story(scene: Scene) -> None:
        record = RouterRecord(router="r", token_sha256=SHA, address="a:1", started_at=0.0)
        registration = Registration(scene.store, record, clock=scene.clock, rng=random.Random(1), ttl=9.0)
        running = asyncio.create_task(registration.run())
        await registration.registered.wait()
        await asyncio.sleep(60)
        entry = await ROUTER.get(scene.raw, router="r")
        assert entry is not None
        assert entry.value == record
        scene.store.down()
        await asyncio.sleep(30)
        assert await ROUTER.get(scene.raw, router="r") is None  # it lapsed
        scene.store.up()
        await asyncio.sleep(10)
        assert await ROUTER.get(scene.raw, router="r") is not None
        running.cancel()
        await asyncio.wait((running,))
        assert await ROUTER.get(scene.raw, router="r") is None  # at once

    play(story)


async def test_over_tcp_only_routers_may_ask_and_a_lost_connection_is_made_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    token, clock = "mine", SystemClock()
    sha = hashlib.sha256(token.encode()).hexdigest()
    measures = Measures(clock)
    measures.begin(NEW)

    def told(after: int) -> Told:
        return measures.seconds_after("r", after)

    async with Listener("127.0.0.1", told, lambda shown: shown == sha) as listener:
        questions, stranger = TcpQuestions(token), TcpQuestions("another")
        for _ in range(3):
            answer = await questions.ask(listener.address, Ask(0))
            assert (answer.router, answer.in_flight) == ("r", {NEW: 1})
        with pytest.raises(CallFailed, match="only routers of the same cluster"):
            await stranger.ask(listener.address, Ask(0))
        host, _, port = listener.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"\xff\xff\xff\xff")
        assert await reader.read() == b""  # cut off
        writer.close()
        address = listener.address
    with pytest.raises(CallFailed):
        await questions.ask(address, Ask(0))
    assert caplog.records == []  # ending while somebody is connected is no error
    quick: Any = TcpQuestions(token, within=0.05)
    server = await asyncio.start_server(lambda _reader, writer: held.append(writer), "127.0.0.1", 0)
    held: list[Any] = []
    silent = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    with pytest.raises(CallFailed):
        await quick.ask(silent, Ask(0))
    for writer in held:
        writer.close()
    server.close()
    for one in (questions, stranger, quick):
        await one.aclose()


async def test_a_process_that_calls_is_known_while_it_runs_and_tells_others_of_its_kind() -> None:
    clock, rng = SystemClock(), random.Random(1)
    async with MemoryStore(clock=clock) as store:
        first = Calling(
            store, env_on(clock, rng, new_id=lambda: "one", new_secret=lambda: "t1"), host="127.0.0.1", node="n1"
        )
        second = Calling(store, env_on(clock, rng, new_id=lambda: "two", new_secret=lambda: "t2"), host="127.0.0.1")
        async with first, second:
            async with asyncio.timeout(30):
                while len(found := (await ROUTER.list(store)).entries) < 2:
                    await asyncio.sleep(0.005)
            records = {entry.value.router: entry.value for entry in found}
            assert records["one"].node == "n1"
            assert records["one"].token_sha256 == hashlib.sha256(b"t1").hexdigest()
            assert all(entry.lease is not None for entry in found)
            first.router.measures.begin(NEW)
            async with asyncio.timeout(30):
                while True:  # until the one has learned of the other
                    try:
                        told = await second.questions.ask(records["one"].address, Ask(0))
                        break
                    except CallFailed:
                        await asyncio.sleep(0.01)
            assert (told.router, told.in_flight) == ("one", {NEW: 1})
            assert first.counters()["invoke_calls"] == 0
        assert (await ROUTER.list(store)).entries == ()


def test_who_looks_sees_what_routers_remember_and_they_are_asked_only_meanwhile() -> None:
    async def story(scene: Scene) -> None:
        routers = Routers(scene)
        one, two = await routers.add("one"), await routers.add("two", skew=3600.0)
        began = scene.clock.wall()
        await deployment(scene, began)
        for measures in (one, two):
            for number in range(10):
                measures.count(NEW, 0.010, error=number < 1)
        await asyncio.sleep(5)
        one.count(OLD, 0.1, error=False)
        await asyncio.sleep(2)
        watch = CallWatch(scene.view, routers, clock=scene.clock, rng=random.Random(1))
        found = await watch.calls("shop", ["acme:shop", "acme:other"])
        assert [one.base for one in found.slices] == ["acme:shop", "acme:other"]
        assert found.slices[1].versions == ()
        old, new = found.slices[0].versions
        assert (new.artifact, new.calls, new.errors) == (NEW, 20, 2)
        assert (new.called, new.failed) == ((20,), (2,))
        assert 10 <= new.latency_ms[0] <= 12.5
        assert (old.artifact, old.called, old.failed) == (OLD, (1,), (0,))
        assert old.at[0] - new.at[0] == 5
        later = await watch.calls("shop", ["acme:shop"], after=new.at[0] + 1)
        assert [(one.artifact, one.called) for one in later.slices[0].versions] == [(OLD, (1,)), (NEW, ())]
        await asyncio.sleep(UNSEEN + 10)  # nobody looks any more
        asked = len(routers.asked)
        await asyncio.sleep(60)
        assert len(routers.asked) == asked
        assert (await watch.calls("shop", ["acme:shop"])).slices[0].versions[1].calls == 20  # and it begins anew
        await watch.aclose()

    play(story)


@pytest.mark.parametrize("rate", [math.nan, math.inf, -math.inf, -1.0, 1e300])
def test_d37_what_is_no_amount_of_processors_counts_as_nothing(rate: float) -> None:
    """It stopped the scaling of every slice: no number of instances follows from it."""

    async def story(scene: Scene) -> None:
        routers = Routers(scene)
        for name, used in {"one": 0.5, "two": rate}.items():
            (await routers.add(name)).cpu.rates = lambda used=used: {OLD: used}  # type: ignore[method-assign,misc]
        await scene.settle()
        collector, running = collected(scene, routers)
        await asyncio.sleep(5)
        assert collector.metrics_of(OLD).cpu == 0.5
        running.cancel()
        await asyncio.wait((running,))

    play(story)


def test_d37_the_processors_in_use_and_the_errors_of_the_last_minute_are_gathered() -> None:
    async def story(scene: Scene) -> None:
        routers = Routers(scene)
        for name, rate in {"one": 0.5, "two": 1.25}.items():
            (await routers.add(name)).cpu.rates = lambda rate=rate: {OLD: rate}  # type: ignore[method-assign,misc]
        await scene.settle()
        collector, running = collected(scene, routers)
        await asyncio.sleep(2)
        for number in range(20):
            routers.measures["one"].count(OLD, 0.010, error=number < 5)
        await asyncio.sleep(12)
        found = collector.metrics_of(OLD)
        assert (found.cpu, found.recent_calls, found.recent_errors) == (1.75, 20, 5)
        assert collector.metrics_of(NEW).cpu == 0.0
        await asyncio.sleep(70)
        found = collector.metrics_of(OLD)
        assert (found.calls, found.recent_calls, found.recent_errors) == (20, 0, 0), "a minute is over"
        routers.dead.add("two")  # what its nodes take is not known any more
        await asyncio.sleep(15)
        assert collector.metrics_of(OLD).cpu == 0.5
        running.cancel()
        await asyncio.wait((running,))

    play(story)

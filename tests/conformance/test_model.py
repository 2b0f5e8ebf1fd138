"""Each driver and a naive model, side by side, through whatever Hypothesis thinks of."""

from __future__ import annotations

import asyncio
import os
import secrets
from typing import TYPE_CHECKING, Any

import pytest
from dose import dose, mutants_to_run
from harness.artefacts import Unsafe, keep
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

import hostler
from hostler import Compacted, Delete, DeletePrefix, FutureRevision, Get, LeaseGone, Put
from hostler.drivers.store.file import FileStore
from hostler.drivers.store.memory import MemoryStore
from hostler.drivers.store.sqlite import SqliteStore
from hostler.ports.store import Comparison

from . import mutants
from .conftest import DRIVERS
from .model import Model

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from hostler import Event, Lease, Store, Watch

    from .conftest import Driver

NAMES = ("a", "a/b", "a/\uffff", "a/\U00010000", "ä")
names = st.sampled_from(NAMES)
prefixes = st.sampled_from(("", "a", "a/", "a/\uffff", "ä", "zz"))
doomed = st.sampled_from(("a/", "a/\uffff", "ä", "zz"))  # not "": too often nothing would be left to try things on
small = st.binary(max_size=2)
SETTLE = 30.0


class StepClock:
    """Time that stands until it is moved."""

    def __init__(self) -> None:
        self._now = 1_000.0
        self._moved = asyncio.Event()

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return 1_700_000_000 + self._now

    async def sleep(self, seconds: float) -> None:
        end = self._now + seconds
        while self._now < end:
            await self._moved.wait()

    def move(self, to: float) -> None:
        self._now = max(self._now, to)
        self._moved.set()
        self._moved = asyncio.Event()


class Side:
    """How to open a driver for one example; `clock` if it can be told the time."""

    def __init__(self, driver: Driver, folder: Path) -> None:
        self._driver, self._folder = driver, folder
        self.tells_time = not driver.name.startswith("etcd")

    def open(self, clock: StepClock) -> Store:
        fresh = self._folder / secrets.token_hex(6)
        makers: dict[str, Callable[[], Store]] = {
            "memory": lambda: MemoryStore(clock=clock),
            "file": lambda: FileStore(f"{fresh}.json", clock=clock),
            "sqlite": lambda: SqliteStore(f"{fresh}.db", clock=clock),
        }
        return makers.get(self._driver.name, self._driver.open)()


class StoreMachine(RuleBasedStateMachine):
    """Every rule does one thing to both and compares what they say."""

    def __init__(self, side: Side) -> None:
        super().__init__()
        self.side = side
        self.loop = asyncio.new_event_loop()
        self.root = f"/model/{secrets.token_hex(6)}/"
        self.clock = StepClock()
        self.leases: dict[int, tuple[Lease, float]] = {}
        self.ended: list[Lease] = []
        self.watch: Watch | None = None
        self.watch_from = 0
        self.store = side.open(self.clock)
        self.run(self.store.__aenter__())
        self.model = Model(self.run(self.store.range(self.root)).revision)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, 30))

    def teardown(self) -> None:
        try:
            if self.watch is not None:
                self.run(self.watch.__aexit__(None, None, None))
            for lease, _ in self.leases.values():
                self.run(lease.revoke())
            if not self.side.tells_time:
                self.run(self.store.delete_prefix(self.root))
            self.run(self.store.aclose())
        finally:
            self.run(self.loop.shutdown_default_executor())
            self.loop.close()

    # Writing

    def both(self, when: list[Comparison], then: list[Any], otherwise: list[Any]) -> None:
        expected = self.model.txn(when, then, otherwise)
        if expected is None:
            with pytest.raises(LeaseGone):
                self.run(self.store.txn(when, then, otherwise))
        else:
            result = self.run(self.store.txn(when, then, otherwise))
            assert (result.succeeded, list(result.responses)) == expected
            assert result.revision == self.model.revision
        self.agree()

    def agree(self) -> None:
        page = self.run(self.store.range(self.root))
        assert list(page.items) == self.model.range(self.root)
        assert page.revision == self.model.revision

    def pick_lease(self, data: st.DataObject) -> int | None:
        known = [None, *self.leases, *self.leases, *(lease.id for lease in self.ended[-1:])]
        return data.draw(st.sampled_from(known), "lease")

    @rule(name=names, value=small, data=st.data())
    def put_again(self, name: str, value: bytes, data: st.DataObject) -> None:
        self.put(name, value, data)  # most of what can go wrong needs keys, so this is done twice as often

    @rule(name=names, value=small, data=st.data())
    def put(self, name: str, value: bytes, data: st.DataObject) -> None:
        key, lease = self.root + name, self.pick_lease(data)
        if self.model.txn([], [Put(key, value, lease)], []) is None:
            with pytest.raises(LeaseGone):
                self.run(self.store.put(key, value, lease=lease))
        else:
            assert self.run(self.store.put(key, value, lease=lease)) == self.model.revision
        self.agree()

    @rule(name=names)
    def delete(self, name: str) -> None:
        expected = self.model.txn([], [Delete(self.root + name)], [])
        assert expected is not None
        assert [self.run(self.store.delete(self.root + name))] == expected[1]
        self.agree()

    @rule(prefix=doomed)
    def delete_prefix(self, prefix: str) -> None:
        expected = self.model.txn([], [DeletePrefix(self.root + prefix)], [])
        assert expected is not None
        assert [self.run(self.store.delete_prefix(self.root + prefix))] == expected[1]
        self.agree()

    @rule(data=st.data())
    def transaction(self, data: st.DataObject) -> None:
        when = data.draw(st.lists(self.comparisons(), max_size=2), "when")
        self.both(when, self.branch(data), self.branch(data))

    def comparisons(self) -> st.SearchStrategy[Comparison]:
        operators = st.sampled_from(("==", "!=", "<", ">"))
        numbers = st.sampled_from((0, 1, 2, self.model.revision - 1, self.model.revision))
        keys = names.map(self.root.__add__)
        return st.one_of(
            st.builds(Comparison, st.sampled_from(("version", "create", "mod")), keys, operators, numbers),
            st.builds(Comparison, st.just("value"), keys, operators, small),
        )

    def branch(self, data: st.DataObject) -> list[Any]:
        put_keys = data.draw(st.lists(names, max_size=3, unique=True), "put")
        other_keys = data.draw(st.lists(names.filter(lambda name: name not in put_keys), max_size=2), "delete")
        operations: list[Any] = [Put(self.root + n, data.draw(small), self.pick_lease(data)) for n in put_keys]
        operations += [Delete(self.root + name) for name in other_keys]
        prefix = data.draw(doomed, "delete prefix")
        if not any(name.startswith(prefix) for name in put_keys):
            operations.append(DeletePrefix(self.root + prefix))
        operations += [Get(self.root + name) for name in data.draw(st.lists(names, max_size=2), "get")]
        return list(data.draw(st.permutations(operations), "order"))

    # Leases

    @initialize()
    def grant_one(self) -> None:
        self.grant(10)

    @precondition(lambda self: len(self.leases) < 4)
    @rule(ttl=st.integers(1, 30))
    def grant(self, ttl: int) -> None:
        # Ends that never fall together: in which order two leases end at one instant is nobody's promise.
        asked = (ttl if self.side.tells_time else 600) + len(self.ended) * 0.01 + len(self.leases) * 0.001
        lease = self.run(self.store.grant(asked))
        assert lease.ttl >= asked
        assert lease.id not in self.model.leases
        self.leases[lease.id] = (lease, self.clock.now() + lease.ttl)
        self.model.leases.add(lease.id)
        self.agree()

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def keep_alive(self, data: st.DataObject) -> None:
        lease, _ = self.leases[data.draw(st.sampled_from(list(self.leases)))]
        self.run(lease.keep_alive())
        self.leases[lease.id] = (lease, self.clock.now() + lease.ttl)
        tolerance = 0.01 if self.side.tells_time else 2.0
        assert -tolerance <= self.run(lease.remaining()) - lease.ttl <= 1e-6  # floats round

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def revoke(self, data: st.DataObject) -> None:
        lease, _ = self.leases.pop(data.draw(st.sampled_from(list(self.leases))))
        self.run(lease.revoke())
        self.lost(lease)

    @precondition(lambda self: self.side.tells_time)
    @rule(seconds=st.floats(0.1, 20))
    def time_passes(self, seconds: float) -> None:
        target = self.clock.now() + seconds
        while due := [(end, id_) for id_, (_, end) in self.leases.items() if end <= target]:
            end, id_ = min(due)
            self.clock.move(end - 0.0001)
            self.agree()
            self.clock.move(end)
            lease, _ = self.leases.pop(id_)
            self.lost(lease)
        self.clock.move(target)
        self.agree()

    def lost(self, lease: Lease) -> None:
        self.model.end_lease(lease.id)
        self.ended.append(lease)
        self.run(self.caught_up())
        assert self.run(lease.remaining()) == 0.0
        with pytest.raises(LeaseGone):
            self.run(lease.keep_alive())
        self.run(lease.revoke())
        self.agree()

    async def caught_up(self) -> None:
        """An expiry may be late, in real time, but it comes."""
        async with asyncio.timeout(SETTLE):
            while (await self.store.range(self.root)).revision < self.model.revision:
                await asyncio.sleep(0.005)

    # The past

    def revisions(self, *, ahead: int = 0) -> st.SearchStrategy[int]:
        # Counted from the start: where a shared server stands there differs from example to example.
        count = self.model.revision - self.model.first
        return st.integers(0, count + ahead).map(self.model.first.__add__)

    @rule(data=st.data(), prefix=prefixes, limit=st.none() | st.integers(1, 4), after=st.just("") | names)
    def read_pages(self, data: st.DataObject, prefix: str, limit: int | None, after: str) -> None:
        revision = data.draw(st.none() | self.revisions(), "revision")
        options: dict[str, Any] = {"limit": limit, "revision": revision}
        if revision is not None and revision < self.model.compacted:
            with pytest.raises(Compacted) as caught:
                self.run(self.store.range(self.root + prefix, **options))
            assert caught.value.revision == self.model.compacted
            return
        page = self.run(self.store.range(self.root + prefix, after=self.root + after, **options))
        seen = list(page.items)
        while page.more:
            assert len(page.items) == limit
            options["revision"] = page.revision
            page = self.run(self.store.range(self.root + prefix, after=seen[-1].key, **options))
            seen += page.items
        assert seen == self.model.range(self.root + prefix, self.root + after, revision)

    @rule(data=st.data(), name=names)
    def read_old(self, data: st.DataObject, name: str) -> None:
        revision = data.draw(self.revisions(ahead=1), "revision")
        reading = self.store.get(self.root + name, revision=revision)
        if revision > self.model.revision:
            with pytest.raises(FutureRevision):
                self.run(reading)
        elif revision < self.model.compacted:
            with pytest.raises(Compacted):
                self.run(reading)
        else:
            assert self.run(reading) == self.model.snapshots[revision].get(self.root + name)

    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        revision = data.draw(self.revisions(ahead=1), "revision")
        self.read_watch()
        if revision > self.model.revision:
            with pytest.raises(FutureRevision):
                self.run(self.store.compact(revision))
        elif revision <= max(self.model.compacted, self.model.first):
            return
        else:
            self.run(self.store.compact(revision))
            self.model.compacted = revision
        self.agree()

    # Watches

    async def events(self, watch: Watch, count: int) -> list[Event]:
        async with asyncio.timeout(SETTLE):
            return [await anext(watch) for _ in range(count)]

    @rule(data=st.data(), prefix=prefixes)
    def watch_the_past(self, data: st.DataObject, prefix: str) -> None:
        start = data.draw(self.revisions(), "start") + 1
        if start < self.model.compacted:
            with pytest.raises(Compacted):
                self.run(self.watched(prefix, start, 1))
            return
        if start == self.model.compacted:
            return  # etcd before 3.4.34 forgets a deletion at the very revision of a compaction
        expected = self.model.history(self.root + prefix, start)
        assert self.run(self.watched(prefix, start, len(expected))) == expected

    async def watched(self, prefix: str, start: int, count: int) -> list[Event]:
        async with self.store.watch(self.root + prefix, start_revision=start) as watch:
            return await self.events(watch, count)

    @rule()
    def open_or_leave_the_watch(self) -> None:
        if self.watch is not None:
            self.read_watch()
            self.run(self.watch.__aexit__(None, None, None))
            self.watch = None
            return
        start = self.watch_from if self.watch_from > self.model.compacted else None
        self.watch = self.store.watch(self.root, start_revision=start)
        self.run(self.watch.__aenter__())
        self.watch_from = start or self.model.revision + 1

    @rule()
    def read_watch(self) -> None:
        if self.watch is None:
            return
        expected = self.model.history(self.root, self.watch_from)
        assert self.run(self.events(self.watch, len(expected))) == expected
        self.watch_from = self.model.revision + 1


class Mutated(Side):
    """A memory store with a defect."""

    def __init__(self, mutant: type[MemoryStore]) -> None:
        self._mutant = mutant
        self.tells_time = True

    def open(self, clock: StepClock) -> Store:
        return self._mutant(clock=clock)


def drive(side: Side, examples: int) -> None:
    """A disagreement is kept with the steps that lead to it."""
    once = settings(
        max_examples=examples,
        stateful_step_count=40,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(lambda: StoreMachine(side), settings=once)
    except AssertionError as error:
        keep("history", "\n".join(getattr(error, "__notes__", ())))
        raise Unsafe(f"the driver and the model disagree: {error}") from error


@pytest.mark.parametrize("driver", DRIVERS, indirect=True)
@pytest.mark.timeout(0 if os.environ.get("HOSTLER_DOSE") else 120)
def test_a_driver_and_the_model_always_agree(driver: Driver, tmp_path: Path) -> None:
    examples = dose(test=40, full=2_000) if driver.name == "memory" else dose(test=12, full=400)
    drive(Side(driver, tmp_path), examples)


DEFECTS = (
    mutants.VersionNotReset,
    mutants.AbsentValueDiffers,
    mutants.GetsSeeThePast,
    mutants.AfterIncludesItself,
    mutants.OldReadsOneOff,
    mutants.CompactsTooMuch,
    mutants.EarlyLease,
    mutants.LeaseSticks,
    mutants.RevokeLeavesKeys,
    mutants.KeepAliveDoesNothing,
    mutants.DropsAnEvent,
    mutants.ForgetsPrevious,
    mutants.SortsTransactions,
    mutants.StartsOneLate,
)


DECIDES = (
    "src/hostler/ports/store.py",
    "src/hostler/drivers/store/memory.py",
    "src/hostler/drivers/store/mvcc.py",
    "tests/conformance/model.py",
    "tests/conformance/mutants.py",
    "tests/conformance/test_model.py",
)
"""Whether a defect is found."""


@pytest.mark.parametrize("mutant", mutants_to_run(DEFECTS, *DECIDES), ids=lambda mutant: mutant.__name__)
def test_a_store_with_a_defect_disagrees_with_the_model(
    mutant: type[MemoryStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conformance.test_model.SETTLE", 0.1)
    once = settings(
        max_examples=5_000,  # it ends with the first that disagrees
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises((AssertionError, ExceptionGroup, TimeoutError, hostler.HostlerError, pytest.fail.Exception)):
        run_state_machine_as_test(lambda: StoreMachine(Mutated(mutant)), settings=once)


async def test_the_model_itself_knows_what_a_version_is() -> None:
    model = Model(1)
    model.txn([], [Put("a", b"1")], [])
    model.txn([hostler.Version("a") == 1], [Delete("a")], [])
    model.txn([hostler.Version("a") == 0], [Put("a", b"2")], [])
    assert [model.revision, model.now["a"].version, model.now["a"].create_revision] == [4, 1, 4]

"""A busy year on a small etcd: history, the audit log and the decision log stay within their bounds.

The size of the database is compared over time, which a busy machine makes uncertain within seconds: `make soak` does it
for a minute, and `make test` does not.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from typing import TYPE_CHECKING, Any

import pytest
from dose import dose

from hostler.drivers.audit.chain import check
from hostler.drivers.audit.folder import AuditFolder
from hostler.drivers.ttl.store import StoreTtlStorage
from hostler.engine.controllers import garbage_collection, janitor
from hostler.engine.decision_recorder import Tracer
from hostler.engine.elections import Elections
from hostler.engine.idempotent_writer import instants
from hostler.engine.runtime.env import ControllerEnv
from hostler.engine.runtime.guarded_writer import Why
from hostler.engine.view import View
from hostler.keys.families import AUDIT, TRACE
from hostler.kit.clock import SystemClock
from hostler.model.access import Audit
from hostler.ports.store import Put
from hostler.testing.servers import EtcdServer
from hostler.wiring import open_store

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = dose(test=4, full=60)
SCALE = 512 if SECONDS < 60 else 32
"""Of the defaults: 2 GiB, 200,000 lines, 100,000 revisions."""
RECORDS = 32_000 // SCALE
RATE = 500
"""Writes a second: thirty times 1,000 a minute, at a part of the room."""
VM = "/plasmavmc/vms/acme/shop/0b9f6c1e-6a3c-4c37-9d0e-{:012x}"


class Work:
    """Writes as the control plane makes them: a record, its line of the audit, a trace."""

    def __init__(self, store: Any) -> None:
        self._store, self._numbers = store, itertools.count()
        self._tracer = Tracer(SystemClock(), self._id, "machines")
        self.done = 0

    async def run(self, until: float) -> None:
        """At the rate, or as fast as the store takes it."""
        began = time.monotonic()
        while time.monotonic() < until:
            number, at = next(self._numbers), time.time()
            day, instant = instants(at)
            subject = VM.format(number % RECORDS)
            audit = Audit(who="operator", verb="vm.update", subject=subject, before=number, at=at, source="10.0.0.7")
            puts = [
                Put(subject, b"x" * 1500),
                AUDIT.put(audit, day=day, write=f"{instant}-{number:032x}"),
                self._tracer.put(Why(what="place", why="most free memory: 24,105 MiB"), subject=subject, fence=3),
            ]
            await asyncio.sleep(max(0.0, began + number / RATE - time.monotonic()))
            await self._store.txn([], puts)
            self.done += 1

    def _id(self) -> str:
        return f"{random.getrandbits(128):032x}"


if dose(test=0, full=1):

    async def test_a_year_of_a_thousand_writes_a_minute_fits_the_default_quota(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All bounds and pauses are scaled; after the bounds are reached the size of the database does not change."""
        for module, name, value in (
            (garbage_collection, "EVERY", 8 / SCALE),
            (garbage_collection, "LEAST", 3200 // SCALE),
            (janitor, "EVERY", 0.05),
            (janitor, "FILLING_EVERY", 0.05),
            (janitor, "RETENTION_EVERY", 0.25),
            (garbage_collection, "SETTLED", 0.2),
            (garbage_collection, "RECOUNT_EVERY", 3.0),
        ):
            monkeypatch.setattr(module, name, value)
        quota, clock, tasks = 2 * 2**30 // SCALE, SystemClock(), []
        with EtcdServer(arguments=["--quota-backend-bytes", str(quota)]) as etcd:
            async with open_store(etcd.url) as store:
                view = View(store, clock=clock)
                tasks.append(asyncio.create_task(view.run()))
                await view.ready()
                elections = Elections(StoreTtlStorage(store), clock=clock, new_id=lambda: "leader")
                leading = await elections.acquire("sysvvm/1/1", "127.0.0.1:1", ttl=20)

                class Standing:
                    leadership: Any = leading

                files, ids = AuditFolder(tmp_path / "audit"), itertools.count()
                lines = 200_000 // SCALE
                env = ControllerEnv(store=store, clock=clock, rng=random.Random(1), new_id=lambda: f"{next(ids)}")
                limits = janitor.RetentionLimits(most_audit=lines, most_traces=lines)
                keeper = janitor.Janitor(env, view, limits=limits, files=files)
                age, revisions = 3600 * 1000 / 60 / RATE / SCALE, 100_000 // SCALE
                compacts = garbage_collection.Compaction(store, store, clock=clock, age=age, revisions=revisions)  # type: ignore[arg-type]
                for service in (keeper, compacts):
                    await service.start(Standing())
                    tasks.append(asyncio.create_task(service.run()))
                work, until, sizes = Work(store), time.monotonic() + SECONDS, []
                writers = [asyncio.create_task(work.run(until)) for _ in range(16)]
                while not all(writer.done() for writer in writers):
                    await asyncio.sleep(1)
                    sizes.append((work.done, (await store.status()).size_bytes))
                await asyncio.gather(*writers)
                status = await store.status()
                counts = [len((await store.range(one.prefix(), keys_only=True)).items) for one in (AUDIT, TRACE)]
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await elections.aclose()
        reached = next(size for done, size in sizes if done > 2 * lines + revisions)
        assert status.alarms == ()
        assert status.size_bytes <= 1.15 * reached, sizes
        assert status.size_bytes <= 0.6 * quota, sizes
        assert max(counts) <= 1.1 * lines
        found = check(files.files(), {})
        assert sum(one.lines for one in found) >= work.done - 1.1 * lines
        assert not any(one.problems for one in found)

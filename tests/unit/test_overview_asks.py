"""How often the store is asked on behalf of many."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from service_scene import ADMIN, Scene, play

from hostler.drivers.store.memory import MemoryStore
from hostler.engine.access.audit import AuditFilter, page
from hostler.engine.overview import OverviewService
from hostler.keys.families import AUDIT
from hostler.kit.clock import SystemClock
from hostler.model.access import Audit


def test_a_silent_store_is_waited_for_once_by_all_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    async def silent(service: OverviewService) -> None:
        nonlocal asked
        asked += 1
        await service._clock.sleep(1000)

    monkeypatch.setattr(OverviewService, "_read", silent)

    async def story(scene: Scene) -> None:
        await scene.settle()
        service = OverviewService(scene.store, scene.view, None, clock=scene.clock)  # type: ignore[arg-type]
        began = scene.clock.now()
        assert await asyncio.gather(*(service._controlled() for _ in range(10))) == [None] * 10
        assert (asked, scene.clock.now() - began < 3.0) == (1, True)
        await scene.clock.sleep(1.1)
        assert await service._controlled() is None
        assert asked == 2

    play(story)


async def test_what_is_rare_in_the_audit_is_looked_for_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with MemoryStore() as store:
        day = "2026-11-15"
        for start in range(0, 1200, 60):
            await store.txn(
                [],
                [
                    AUDIT.put(_audit("ada" if n == 1100 else "bob"), day=day, write=f"10:00:00.{n:06d}-x")
                    for n in range(start, start + 60)
                ],
            )
        calls = 0
        plain = store.range

        async def counted(*args: Any, **more: Any) -> Any:
            nonlocal calls
            calls += 1
            return await plain(*args, **more)

        monkeypatch.setattr(store, "range", counted)
        known: Any = SimpleNamespace()
        for who, calls_at_most, number in (("ada", 6, 1), ("", 3, 1), ("nobody", 6, 0)):  # one is for the epochs
            calls = 0
            found = await page(store, ADMIN, known, AuditFilter(who=who), limit=1, clock=SystemClock())
            assert len(found.items) == number
            assert calls <= calls_at_most


async def test_a_machine_that_is_gone_is_found_in_the_audit_by_its_name() -> None:
    async with MemoryStore() as store:
        for n, name in enumerate(("www", "")):
            line = msgspec.structs.replace(_audit("ada"), subject=f"/x/{n}", name=name)
            await store.txn([], [AUDIT.put(line, day="2026-11-15", write=f"10:00:00.{n:06d}-x")])
        known: Any = SimpleNamespace()
        for text, names in (("WWW", {"/x/0": "www"}), ("old", {"/x/1": "old"}), ("/x", {"/x/0": "www", "/x/1": "old"})):
            found = await page(
                store, ADMIN, known, AuditFilter(subject=text), limit=9, clock=SystemClock(), name=lambda _: "old"
            )
            assert {line.subject: line.name for line in found.items} == names


def _audit(who: str) -> Audit:
    return Audit(who=who, verb="vm.create", subject="/x", before=0, at=1.0)

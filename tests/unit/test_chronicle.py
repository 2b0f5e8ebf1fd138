"""Who led when is written down by each leader, under its fence, and only the last are kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hostler import open_store
from hostler.drivers.ttl.store import StoreTtlStorage
from hostler.engine.elections import Elections, Leadership
from hostler.engine.replica_records import KEPT, LeaderHistory
from hostler.entry.cli import main
from hostler.keys.families import FENCE, LEADER, TAKEOVER
from hostler.model.replica import Farewell, Takeover
from hostler.ports.store import Store


class Standing:
    def __init__(self, leadership: Leadership) -> None:
        self.leadership = leadership


class Term:
    """One leadership, and what tells of it."""

    def __init__(self, store: Store, name: str) -> None:
        self.store, self.name = store, name
        self.elections = Elections(StoreTtlStorage(store), new_id=lambda: name)
        self.chronicle = LeaderHistory(store, holder=name, address=f"{name}:7070")
        self.running: asyncio.Task[None] | None = None

    async def begin(self) -> Leadership:
        leadership = await self.elections.acquire(LEADER.fill(n=1), f"{self.name}:7070", ttl=60.0)
        assert leadership is not None
        await self.chronicle.start(Standing(leadership))
        self.running = asyncio.create_task(self.chronicle.run())
        async with asyncio.timeout(30):
            while self.chronicle._written is None:  # not by the store, which has it a moment before
                await asyncio.sleep(0.001)
        assert await TAKEOVER.get(self.store, fence=leadership.fence) is not None
        return leadership

    async def end(self, *, well: bool = True) -> None:
        assert self.running is not None
        self.running.cancel()
        await asyncio.wait((self.running,))
        if well:
            await self.chronicle.stop()
            await self.elections.aclose()
        else:
            await self.store.delete(LEADER.fill(n=1))


async def history(store: Store) -> list[Takeover]:
    listing = await TAKEOVER.list(store)
    return sorted((entry.value for entry in listing.entries), key=lambda one: one.fence)


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    async with open_store("memory://") as store:
        yield store


async def test_each_leader_tells_who_led_before_and_how_that_ended(store: Store) -> None:
    terms = [Term(store, name) for name in ("ann", "bob", "cat")]
    await terms[0].begin()
    await terms[0].end()
    await terms[1].begin()
    await terms[1].end(well=False)
    await terms[2].begin()
    first, second, third = await history(store)
    assert [one.holder for one in (first, second, third)] == ["ann", "bob", "cat"]
    assert (first.previous, first.previous_holder) == (Farewell.NONE, "")
    assert (second.previous, second.previous_address) == (Farewell.RELEASED, "ann:7070")
    assert (third.previous, third.previous_holder) == (Farewell.SILENT, "bob")
    assert first.released_at is not None
    assert first.released_at >= first.at
    assert second.released_at is None
    for term in terms[1:]:
        await term.elections.aclose()
    await terms[2].end(well=False)


async def test_who_leads_no_more_writes_nothing(store: Store) -> None:
    old, new = Term(store, "old"), Term(store, "new")
    await old.begin()
    await store.delete(LEADER.fill(n=1))
    await new.begin()
    before = await history(store)
    await old.chronicle.stop()  # it does not know yet
    assert await history(store) == before
    for term in (old, new):
        await term.end(well=False)
        await term.elections.aclose()


async def test_the_last_ones_are_kept(store: Store) -> None:
    for fence in range(1, KEPT + 3):
        late = Takeover(fence=fence, holder="x", address="x", at=1.0)
        await store.txn([], [TAKEOVER.put(late, fence=fence)])
    term = Term(store, "ann")
    await store.txn([], [FENCE.put(100, n=1)])
    leadership = await term.begin()
    assert [one.fence for one in await history(store)] == [*range(4, KEPT + 3), leadership.fence]
    await term.end()


def test_the_command_line_shows_the_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite://{tmp_path}/store.db"

    async def written() -> None:
        async with open_store(url) as store:
            terms = [Term(store, name) for name in ("ann", "bob")]
            await terms[0].begin()
            await terms[0].end()
            await terms[1].begin()
            await terms[1].end()

    asyncio.run(written())
    assert main(["leader", "--history", "--store", url]) == 0
    _, newest, oldest = capsys.readouterr().out.splitlines()
    assert newest.split()[2:] == ["2", "bob:7070", "bob", "ann:7070", "(ann),", "released"]
    assert oldest.endswith("none recorded")
    assert main(["leader", "--history", "--store", url, "-o", "json"]) == 0
    assert [one["previous"] for one in json.loads(capsys.readouterr().out)] == ["released", "none"]
    assert main(["leader", "--history", "--watch", "--store", url]) == 2

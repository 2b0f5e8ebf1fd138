"""The benchmark of deployments measures what it says, on a small scale."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from dose import rotates

import hostler
from bench.__main__ import main
from bench.deployments import Plan, measure
from bench.deployments_bare import Noted, Shape, noted_on
from hostler.drivers.store.memory import MemoryStore
from hostler.errors import Invalid
from hostler.ports.store import Delete, Get, Put, Version


@pytest.mark.slow
@rotates(3, "bench")
def test_every_instance_becomes_active_and_a_dead_node_is_replaced() -> None:
    said: list[str] = []
    plan = Plan(parts=("embedded", "loss"), nodes=6, instances=40, blueprints=3, curve=(8, 16))
    rows = asyncio.run(measure(plan, said.append))
    assert [row.what for row in rows] == [
        "40 instances on 6 nodes, embedded store",
        "processor time of each, embedded store",
        "memory, leader and nodes",
        "one of 8 nodes dies, with 20 instances",
        "one of 16 nodes dies, with 20 instances",
    ]
    assert all(row.found > 0 for row in rows)
    assert "embedded store: 40 of 40 instances are active" in said


def test_parts_that_there_are_not_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deployments", "--parts", "some"]) == 2
    assert "embedded,etcd,loss" in capsys.readouterr().err


def test_a_store_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path / 'used.db'}"

    async def used() -> None:
        async with hostler.open_store(url) as store:
            await store.put("/something", b"")
        await measure(Plan(parts=("etcd",), nodes=2, etcd=url, etcd_instances=1), lambda _: None)

    with pytest.raises(Invalid, match="is not empty; give an empty one"):
        asyncio.run(used())


async def test_transactions_are_noted_as_they_are() -> None:
    class Late(MemoryStore):
        async def txn(self, *given: Any) -> Any:
            await asyncio.sleep(0)
            return await super().txn(*given)

    async with Late() as store:
        noted = Noted(store)
        when, then = [Version("a") == 0], [Put("a", b"123"), Delete("b")]
        assert (await noted.txn(when, then, [Get("a"), Get("b")])).succeeded
        await asyncio.gather(*(noted.txn([], [Put(f"c{n}", b"")]) for n in range(3)))
        assert (await noted.get("a")) is not None
    assert noted.shapes[0] == Shape(compared=1, written=2, read=2, size=4)
    assert (len(noted.shapes), noted.operations, noted.at_once) == (4, 5, 2)


def test_an_engine_without_a_bare_client_has_no_bound() -> None:
    assert noted_on("memory://", None) is None  # type: ignore[arg-type]

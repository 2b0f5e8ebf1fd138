"""Claims: invalid arguments are refused before anything is written."""

from __future__ import annotations

import math
from typing import Any

from hostler.errors import Invalid
from hostler.testing.claim import refused
from hostler.testing.elections.claim import LONG, ElectionTrial, claim


@claim()
async def a_life_that_cannot_be_is_refused(t: ElectionTrial) -> None:
    elections, storage = await t.elections()
    unfit: list[Any] = [0, 0.0, -1, -0.5, math.nan, math.inf, True, "20", None]
    for ttl in unfit:
        with refused(Invalid):
            await elections.acquire(t.key, "10.0.0.1", ttl=ttl)
    assert storage.calls == 0
    assert await elections.acquire(t.key, "10.0.0.1", ttl=LONG) is not None


@claim()
async def a_key_that_cannot_be_is_refused(t: ElectionTrial) -> None:
    elections, storage = await t.elections()
    unfit: list[Any] = ["", None, 1, b"key", "\ud800"]
    for key in unfit:
        with refused(Invalid):
            await elections.acquire(key, "10.0.0.1", ttl=LONG)
    assert storage.calls == 0


@claim()
async def a_value_that_cannot_be_is_refused(t: ElectionTrial) -> None:
    elections, _ = await t.elections()
    unfit: list[Any] = ["", None, 1, b"10.0.0.1", "x" * 70_000]
    for value in unfit:
        with refused(Invalid):
            await elections.acquire(t.key, value, ttl=LONG)
        assert await t.storage.get(t.key) is None
    assert await t.counter() == 0


@claim()
async def any_text_is_an_address(t: ElectionTrial) -> None:
    elections, _ = await t.elections()
    for value in ("::1", "host.example:8080", 'quo"ted \\', "Zürich ☃", "\n\t\x00 ", "x" * 10_000):
        leadership = await elections.acquire(t.key, value, ttl=LONG)
        assert leadership is not None
        record = await t.record()
        assert record is not None
        assert record["address"] == value
        await leadership.release()

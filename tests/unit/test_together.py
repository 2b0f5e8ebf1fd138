"""Several things that run for as long as all of them do."""

from __future__ import annotations

import asyncio

import pytest

from hostler.kit.tasks import run_together


async def _for_ever(ended: list[str], name: str) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)  # tidying up takes a moment, and is waited for
        ended.append(name)


async def test_the_first_to_fail_ends_the_others_and_is_raised() -> None:
    ended: list[str] = []

    async def fails() -> None:
        await asyncio.sleep(0)
        raise LookupError("it")

    with pytest.raises(LookupError, match="it"):
        await run_together("test", {"a": _for_ever(ended, "a"), "b": fails(), "c": _for_ever(ended, "c")})
    assert sorted(ended) == ["a", "c"]


async def test_the_first_to_end_ends_the_others() -> None:
    ended: list[str] = []
    await run_together("test", {"a": _for_ever(ended, "a"), "b": asyncio.sleep(0)})
    assert ended == ["a"]


async def test_cancelling_ends_all() -> None:
    ended: list[str] = []
    running = asyncio.create_task(run_together("test", {"a": _for_ever(ended, "a"), "b": _for_ever(ended, "b")}))
    await asyncio.sleep(0.01)
    assert {"test: a", "test: b"} <= {task.get_name() for task in asyncio.all_tasks()}
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert sorted(ended) == ["a", "b"]

"""A full disk does not end `hostler up`: it stands anew until there is room again."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hostler.drivers.store.memory import MemoryStore
from hostler.engine.cluster_id import StoreGuard
from hostler.entry import up
from hostler.entry.campaign import Candidate
from hostler.kit.clock import SystemClock
from hostler.settings import load


async def test_a_disk_that_is_full_for_a_while_does_not_end_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    stood: list[str] = []
    failures = [errno.ENOSPC, errno.ENOSPC]

    async def ready(_: up.Ready) -> None:
        pass

    one = up.Up(load({"data": str(tmp_path)}, {}), said.append, ready)
    write = one._folder.write

    def full(file: Path, text: str) -> None:
        if failures:
            raise OSError(failures.pop(), "No space left on device")
        write(file, text)

    async def stand(*_: Any, candidate: Candidate, asked: asyncio.Event, **__: Any) -> None:
        stood.append(candidate.holder)
        asked.set()

    monkeypatch.setattr(one._folder, "write", full)
    monkeypatch.setattr(up, "stand", stand)
    monkeypatch.setattr(up, "STAND_AGAIN", 0.01)
    plane: Any = SimpleNamespace(controllers=tuple, api_url="", graph=SimpleNamespace())
    async with asyncio.timeout(60):
        await one._stand(
            MemoryStore(), plane, "127.0.0.1:1", StoreGuard(MemoryStore(), None, clock=SystemClock(), new_id=str)
        )
    assert stood == [one._folder.read(one._folder.replica_file)]
    assert len(said) == 2
    assert all("cannot be written: No space left on device" in line for line in said)

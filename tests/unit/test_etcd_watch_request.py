"""What etcd is asked to read for a watch."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hostler.drivers.store.etcd import EtcdStore
from hostler.drivers.store.memory import MemoryStore
from hostler.keys.cache import Cache
from hostler.keys.families import SLICE
from hostler.keys.namespace import Namespace, NamespacedStore
from hostler.kit.clock import SystemClock


@pytest.mark.parametrize("previous", [True, False])
async def test_the_server_reads_what_stood_there_before_only_for_who_wants_it(previous: bool) -> None:
    watch = EtcdStore(["127.0.0.1:1"]).watch("a/", start_revision=7, previous=previous)
    created = watch.create_request().create_request
    assert (created.key, created.start_revision, created.prev_kv) == (b"a/", 7, previous)


async def test_who_says_nothing_gets_it() -> None:
    assert EtcdStore(["127.0.0.1:1"]).watch("a/").create_request().create_request.prev_kv


async def test_a_mirror_does_not_want_it_through_a_namespace_either() -> None:
    asked: list[bool] = []

    class Noting(MemoryStore):
        def watch(self, prefix: str, *, start_revision: int | None = None, previous: bool = True) -> Any:
            asked.append(previous)
            return super().watch(prefix, start_revision=start_revision, previous=previous)

    async with Noting() as store:
        mirrors = [
            Cache(one, SLICE, clock=SystemClock()) for one in (store, NamespacedStore(store, Namespace("apart")))
        ]
        tasks = [asyncio.create_task(mirror.run()) for mirror in mirrors]
        while len(asked) < len(mirrors):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert asked == [False, False]

"""The process that writes and is killed, and the warm process that it is forked from.

`python writing_process.py` imports everything once and then forks a writer for each order it reads (one JSON line), so
that a round costs milliseconds. It answers with the writer's process id, and with how a writer ended when asked
(`{"wait": pid}`).

A writer notes in its journal (one JSON line each, straight to the kernel, so that they survive its death) what it is
about to do where that matters, and what was acknowledged, after it was. Each task writes 1, 2, 3… to its own keys, so
what may be in the store is known: the last number acknowledged, or the one after it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import traceback
from typing import Any

import hostler
import hostler.drivers.store.file
import hostler.drivers.store.sqlite
from hostler import Compacted, Delete, LeaseGone, ModRevision, Put
from hostler.kit.clock import SystemClock

PUTTERS, GROUPS, GROUP_SIZE = 6, 3, 4
now = SystemClock().now


class Writer:
    """Tasks that write until the process is killed."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._order = order
        self._rng = random.Random(order["seed"])
        self._journal = os.open(order["journal"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def value(self, number: int) -> bytes:
        """The number, with spaces before it to make it as wide as ordered."""
        return b"%*d" % (self._order.get("width", 1), number)

    def note(self, what: str, **more: Any) -> None:
        os.write(self._journal, json.dumps({"what": what, **more}).encode() + b"\n")

    async def run(self) -> None:
        self.note("opening")
        async with hostler.open_store(self._order["url"]) as store:
            self.note("open")
            async with asyncio.TaskGroup() as group:
                for number in range(PUTTERS):
                    group.create_task(self._put(store, f"/put/{number}"))
                for number in range(GROUPS):
                    group.create_task(self._put_together(store, f"/group/{number}/"))
                group.create_task(self._toggle(store, "/toggle"))
                group.create_task(self._lease(store))
                if self._order["compacting"]:
                    group.create_task(self._compact(store))

    async def _put(self, store: hostler.Store, key: str) -> None:
        kv = await store.get(key)
        number = int(kv.value) if kv else 0
        while True:
            number += 1
            revision = await store.put(key, self.value(number))
            self.note("put", key=key, number=number, revision=revision)

    async def _put_together(self, store: hostler.Store, prefix: str) -> None:
        keys = [f"{prefix}{n}" for n in range(GROUP_SIZE)]
        first = await store.get(keys[0])
        number, revision = (int(first.value), first.mod_revision) if first else (0, 0)
        while True:
            number += 1
            result = await store.txn(
                [ModRevision(keys[0]) == revision],
                [Put(key, self.value(number)) for key in keys],
                [Delete("/impossible")],
            )
            assert result.succeeded, f"{prefix} was at {revision}, nobody else writes there"
            revision = result.revision
            self.note("group", prefix=prefix, number=number, revision=revision)

    async def _toggle(self, store: hostler.Store, key: str) -> None:
        """There, gone, there again: versions start again at 1."""
        await store.delete(key)
        while True:
            revision = await store.put(key, b"here")
            self.note("toggled", there=True, revision=revision)
            await store.delete(key)
            self.note("toggled", there=False)

    async def _lease(self, store: hostler.Store) -> None:
        """Short ones that end while we write, and long ones that outlive us, some kept alive."""
        while True:
            ttl = self._rng.choice((0.05, 0.1, 0.3, 0.6, 30.0))
            asked = now()
            lease = await store.grant(ttl)
            key = f"/lease/{lease.id}"
            self.note("granted", key=key, ttl=ttl, asked=asked, told=now())
            try:
                await store.put(key, b"leased", lease=lease)
                self.note("leased", key=key)
                for _ in range(self._rng.randrange(3)):
                    await asyncio.sleep(ttl * self._rng.uniform(0, 0.1))
                    asked = now()
                    self.note("keeping", key=key, asked=asked)
                    await lease.keep_alive()
                    self.note("kept", key=key, ttl=ttl, asked=asked, told=now())
            except LeaseGone:
                self.note("lapsed", key=key)
            if ttl > 1 and self._rng.random() < 0.7:
                self.note("revoking", key=key)
                await lease.revoke()
                self.note("revoked", key=key)
            await asyncio.sleep(self._rng.uniform(0, 0.03))

    async def _compact(self, store: hostler.Store) -> None:
        while True:
            await asyncio.sleep(self._rng.uniform(0.001, 0.03))
            revision = (await store.status()).revision
            if revision > 40:
                self.note("compacting", revision=revision - 20)
                try:
                    await store.compact(revision - 20)
                except Compacted:
                    continue
                self.note("compacted", revision=revision - 20)


def write(order: dict[str, Any]) -> None:
    """What a forked process does."""
    try:
        asyncio.run(Writer(order).run())
    except BaseException:  # noqa: BLE001 - whatever it was, the round must show it
        with open(order["journal"] + ".error", "w", encoding="utf-8") as file:
            traceback.print_exc(file=file)
        os._exit(1)


def serve() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            _, status = os.waitpid(order["wait"], 0)
            print(json.dumps({"status": os.waitstatus_to_exitcode(status)}), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            write(order)
            os._exit(1)
        print(json.dumps({"pid": pid}), flush=True)


if __name__ == "__main__":
    serve()

"""A store on a disk that fills up and is freed again, round after round. Run in a mount namespace of its own.

    python full_disk_process.py ENGINE DIRECTORY SIZE_MIB ROUNDS

Mounts a small tmpfs at DIRECTORY (nobody else sees it, and it is gone with this process), and prints one JSON line with
what it did; an AssertionError ends it with 1.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import hostler
from hostler import KeyValue, Put, Unavailable

VALUE = 6_000


class Story:
    def __init__(self, engine: str, directory: Path) -> None:
        self.directory = directory
        name = "store.db" if engine == "sqlite" else "state.json"
        self.url = f"{engine}://{directory}/{name}"
        self.rng = random.Random(3)
        self.held: dict[str, tuple[bytes, int]] = {}  # what must be there: value and revision
        self.refused: set[bytes] = set()
        self.messages: set[str] = set()
        self.numbers = 0

    async def write(self, store: hostler.Store) -> bool:
        """One write, on its own or as a transaction of three; whether it was taken."""
        self.numbers += 1
        value = b"%d." % self.numbers + self.rng.randbytes(VALUE)
        keys = [f"/k/{self.rng.randrange(20)}"]
        if self.numbers % 3 == 0:
            keys = [f"/t/{part}" for part in "abc"]
        try:
            if len(keys) == 1:
                revision = await store.put(keys[0], value)
            else:
                revision = (await store.txn([], [Put(key, value) for key in keys])).revision
        except Unavailable as error:
            self.messages.add(str(error))
            self.refused.add(value)
            return False
        for key in keys:
            if revision > self.held.get(key, (b"", 0))[1]:
                self.held[key] = (value, revision)
        return True

    async def check(self, store: hostler.Store) -> None:
        items: dict[str, KeyValue] = {kv.key: kv for kv in (await store.range("")).items}
        found = {key: (kv.value, kv.mod_revision) for key, kv in items.items() if kv.lease is None}
        assert found == self.held, f"lost or changed: {[key for key in self.held if found.get(key) != self.held[key]]}"
        assert not self.refused & {kv.value for kv in items.values()}, "refused, and written all the same"

    async def fill(self, store: hostler.Store) -> int:
        """Take all room, by other files or by the store's own growth; then writes must be refused, every one."""
        filler = os.open(self.directory / "filler", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        refused = 0
        try:
            for size in (65536, 4096, 512):
                try:
                    while True:
                        os.write(filler, bytes(size))
                        await self.write(store)
                except OSError:
                    continue
        finally:
            os.close(filler)
        for _ in range(40):
            taken = await asyncio.gather(*(self.write(store) for _ in range(4)))
            refused += taken.count(False)
            await self.check(store)
        return refused

    def free(self) -> None:
        (self.directory / "filler").unlink()

    async def run(self, rounds: int) -> dict[str, object]:
        refused = 0
        for number in range(rounds):
            async with hostler.open_store(self.url) as store:
                assert await self.write(store), "there is room"
                refused += await self.fill(store)
                if number % 2 == 0:
                    self.free()
                    await self.writes_again(store)
            await self.reopen_while_full()
            if number % 2:
                self.free()
            async with hostler.open_store(self.url) as store:
                await self.writes_again(store)
                await store.compact((await store.status()).revision)
        names = sorted(path.name for path in self.directory.iterdir())
        return {
            "refused": refused,
            "written": self.numbers - len(self.refused),
            "names": names,
            "messages": sorted(self.messages),
        }

    async def writes_again(self, store: hostler.Store) -> None:
        for _ in range(10):
            assert await self.write(store), f"there is room again: {self.messages}"
        await self.check(store)

    async def reopen_while_full(self) -> None:
        try:
            async with hostler.open_store(self.url) as store:
                await self.check(store)
        except Unavailable as error:
            self.messages.add(str(error))


def main(engine: str, directory: str, size: str, rounds: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}m", "hostler", directory], check=True)
    print(json.dumps(asyncio.run(Story(engine, Path(directory)).run(int(rounds)))))


if __name__ == "__main__":
    main(*sys.argv[1:])

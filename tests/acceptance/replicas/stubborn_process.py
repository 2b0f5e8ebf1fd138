"""A replica for tests: python stubborn_process.py MODE URL TTL ADDRESS

counting   a replica whose service counts under the guard alone, every 20 ms; SIGUSR1 makes its event loop spin for ever
stubborn   stands again and again, and with every leadership it ever had it goes on trying to write, under the guard
careless   the same without the guard: what a program does that trusts its belief
"""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress

from hostler import HostlerError, open_store
from hostler.engine.elections import Elections
from hostler.engine.leadership import Leadership
from hostler.engine.replica import Replica, ReplicaConfig
from hostler.engine.service import Standing
from hostler.keys.families import DEMONSTRATION, LEADER
from hostler.model.replica import LeaderRecord, Tally
from hostler.ports.store import Comparison, Store
from hostler.wiring import open_ttl_storage

EVERY = 0.02


def say(text: str) -> None:
    print(text, flush=True)


def tally(leadership: Leadership, count: int) -> Tally:
    holder = LeaderRecord.decode(leadership.record.encode()).holder
    return Tally(count=count, fence=leadership.fence, holder=holder)


class Counting:
    """Reads the tally once and then counts from memory: only the guard keeps it right."""

    name = "counting"

    def __init__(self, store: Store) -> None:
        self._store = store
        self._count = 0
        self._standing: Standing | None = None

    async def start(self, standing: Standing) -> None:
        entry = await DEMONSTRATION.get(self._store)
        self._count = entry.value.count if entry is not None else 0
        self._standing = standing
        say(f"leading with fence {standing.leadership.fence}")

    async def run(self) -> None:
        assert self._standing is not None
        while True:
            held = self._standing.leadership
            result = await self._store.txn([held.guard()], [DEMONSTRATION.put(tally(held, self._count + 1))])
            if not result.succeeded:
                raise RuntimeError("refused")
            self._count += 1
            await asyncio.sleep(EVERY)

    async def stop(self) -> None:
        pass


def spin() -> None:
    say("spinning")
    while True:
        pass


async def counting(url: str, ttl: float, address: str) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, spin)
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    async with open_store(url) as store, open_ttl_storage(url) as storage:
        replica = Replica(ReplicaConfig(ip=address), storage, [Counting(store)])
        say("standing")
        problem = await replica.launch(ttl, None)
        ended = [asyncio.create_task(stop.wait()), asyncio.create_task(problem.wait())]
        await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.cancel()
        error = await replica.shutdown()
    say(f"ended: {error}")
    return 1 if error else 0


async def stubborn(url: str, ttl: float, address: str, *, guarded: bool) -> None:
    async with open_store(url) as store, open_ttl_storage(url) as storage:
        elections = Elections(storage)
        writers: set[asyncio.Task[None]] = set()
        while True:
            leadership = None
            with suppress(HostlerError):
                leadership = await elections.acquire(LEADER.fill(n=1), address, ttl=ttl)
            if leadership is not None:
                say(f"leading with fence {leadership.fence}")
                writers.add(asyncio.create_task(write_for_ever(store, leadership, guarded=guarded)))
                await leadership.wait_lost()
                say(f"lost fence {leadership.fence}")
            await asyncio.sleep(EVERY * 5)


async def write_for_ever(store: Store, leadership: Leadership, *, guarded: bool) -> None:
    when: list[Comparison] = [leadership.guard()] if guarded else []
    count = 0
    while True:
        with suppress(HostlerError):
            count += 1
            was_lost = leadership.lost is not None  # not when it is answered: a process may sleep in between
            result = await store.txn(when, [DEMONSTRATION.put(tally(leadership, count))])
            if was_lost:
                say(f"fence {leadership.fence} {'wrote' if result.succeeded else 'was refused'} after its loss")
                await asyncio.sleep(EVERY * 5)
        await asyncio.sleep(EVERY)


def main() -> int:
    mode, url, ttl, address = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4]
    if mode == "counting":
        return asyncio.run(counting(url, ttl, address))
    asyncio.run(stubborn(url, ttl, address, guarded=mode == "stubborn"))
    return 0


if __name__ == "__main__":
    sys.exit(main())

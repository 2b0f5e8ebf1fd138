"""Many leaderships in one process: python -m bench.election_thousand URL COUNT TTL SECONDS

Counts the successful renewals and their processor time, once all leaderships are held.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

from hostler.engine.elections import Elections
from hostler.wiring import open_ttl_storage

if TYPE_CHECKING:
    from hostler.engine.elections import Leadership

AT_ONCE = 32


async def thousand(url: str, count: int, ttl: float, seconds: float) -> dict[str, Any]:
    """Acquire the leaderships, count their renewals, and release them."""
    prefix = f"hostler-bench/{secrets.token_hex(4)}"
    async with open_ttl_storage(url) as storage:
        elections = Elections(storage)
        turns = asyncio.Semaphore(AT_ONCE)

        async def take(number: int) -> Leadership | None:
            async with turns:
                return await elections.acquire(f"{prefix}/{number}", "bench", ttl=ttl)

        started = perf_counter()
        taken = [leadership for leadership in await asyncio.gather(*map(take, range(count))) if leadership is not None]
        acquired = perf_counter() - started
        renewals = 0
        right = storage.compare_and_swap

        async def counted(key: str, old: str, new: str, *, ttl: float) -> bool:
            nonlocal renewals
            renewed = await right(key, old, new, ttl=ttl)
            renewals += renewed
            return renewed

        storage.compare_and_swap = counted  # type: ignore[method-assign]
        started, worked = perf_counter(), process_time()
        await asyncio.sleep(seconds)
        lasted, cpu = perf_counter() - started, process_time() - worked
        held = sum(leadership.held for leadership in taken)
        released = perf_counter()
        await elections.aclose()
        return {
            "taken": len(taken),
            "held": held,
            "acquire_seconds": acquired,
            "renewals_per_second": renewals / lasted,
            "cpu_percent": cpu / lasted * 100,
            "cpu_us_per_renewal": cpu / max(1, renewals) * 1e6,
            "release_seconds": perf_counter() - released,
        }


if __name__ == "__main__":
    arguments = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
    print(json.dumps(asyncio.run(thousand(*arguments))))

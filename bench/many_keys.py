"""A store of a million keys: the cost of opening, holding and reading it. Each part runs in its own process.

python -m bench.many_keys fill URL COUNT     write the keys
python -m bench.many_keys open URL COUNT     open, measure memory, read
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

from bench.child import child_environ
from hostler.entry.store_benchmark import VALUE, Round, figure
from hostler.ports.store import MAX_OPERATIONS, Put
from hostler.wiring import open_store

READS = 20_000


def million(url: str, empty_url: str, count: int) -> dict[str, Any]:
    """Fill the store at `url`, then open it in a new process. `empty_url` gives the baseline memory of a process."""
    fill = _part("fill", url, count)
    _part("fill", empty_url, 0)
    empty = _part("open", empty_url, 0)
    full = _part("open", url, count)
    return {
        "keys": count,
        "fill_seconds": fill["seconds"],
        "open_seconds": full["open_seconds"],
        "memory_bytes_per_key_after_open": (full["rss_open"] - empty["rss_open"]) / max(1, count),
        "memory_bytes_per_key_after_reads": (full["rss_read"] - empty["rss_open"]) / max(1, count),
        "disk_bytes_per_key": full["size_bytes"] / max(1, count),
        "payload_bytes_per_key": len(VALUE) + len(_key(0)),
        "get_p50_us": full["get_p50_us"],
        "get_p99_us": full["get_p99_us"],
        "range_1000_ms": full["range_ms"],
    }


def million_pairs(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the results of the store of a million keys as text."""
    return [
        (f"opening {found['keys']:,} keys", f"{found['open_seconds']:.3f} s"),
        ("memory per key, once open", f"{found['memory_bytes_per_key_after_open']:.1f} bytes"),
        ("memory per key, after 20,000 random gets", f"{found['memory_bytes_per_key_after_reads']:.1f} bytes"),
        (f"disk per key (payload {found['payload_bytes_per_key']})", f"{found['disk_bytes_per_key']:.0f} bytes"),
        ("get, random key, p50 / p99", f"{found['get_p50_us']:.0f} / {found['get_p99_us']:.0f} µs"),
        ("range of 1,000", f"{found['range_1000_ms']:.1f} ms"),
        ("filling", f"{found['fill_seconds']:.1f} s"),
    ]


def _part(verb: str, url: str, count: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.many_keys", verb, url, str(count)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=child_environ())
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _key(number: int) -> str:
    return f"/hostler-bench/million/{number:08d}"


def _rss() -> int:
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * 4096


async def _fill(url: str, count: int) -> dict[str, Any]:
    async with open_store(url) as store:
        started = perf_counter()
        waiting: set[asyncio.Task[object]] = set()
        for first in range(0, count, MAX_OPERATIONS):
            puts = [Put(_key(number), VALUE) for number in range(first, min(count, first + MAX_OPERATIONS))]
            waiting.add(asyncio.ensure_future(store.txn([], puts)))
            if len(waiting) == 16:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        for task in waiting:
            await task
        return {"seconds": perf_counter() - started}


async def _open(url: str, count: int) -> dict[str, Any]:
    started = perf_counter()
    async with open_store(url) as store:
        opened = perf_counter() - started
        rss_open = _rss()
        numbers = random.Random(1)  # noqa: S311 - the same keys each time
        times = []
        for _ in range(READS if count else 0):
            key = _key(numbers.randrange(count))
            before = perf_counter()
            found = await store.get(key)
            times.append(perf_counter() - before)
            if found is None:
                raise SystemExit(f"{key}: missing")
        before = perf_counter()
        await store.range(_key(count // 2)[:-4], limit=1000)
        range_ms = (perf_counter() - before) * 1000
        reads = figure([Round(0.0, 0.0, times)])
        return {
            "open_seconds": opened,
            "rss_open": rss_open,
            "rss_read": _rss(),
            "size_bytes": (await store.status()).size_bytes,
            "get_p50_us": reads.p50_us,
            "get_p99_us": reads.p99_us,
            "range_ms": range_ms,
        }


if __name__ == "__main__":
    part = _fill if sys.argv[1] == "fill" else _open
    print(json.dumps(asyncio.run(part(sys.argv[2], int(sys.argv[3])))))

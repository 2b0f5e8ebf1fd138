"""The result as JSON, as a table for the terminal, and as Markdown for `docs/performance.md`."""

from __future__ import annotations

import os
import platform
import statistics
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hostler.entry.bench.run import Row

HEADS = (
    "operation",
    "clients",
    "per second",
    "p50",
    "p99",
    "CPU",
    "against",
    "per second",
    "p50",
    "CPU",
    "ratio",
    "by CPU",
)


def cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Return the rows as text."""
    return [_cells(row) for row in rows]


def _cells(row: Row) -> tuple[str, ...]:
    ours = (f"{row.ours.per_second:,.0f}", _time(row.ours.p50_us), _time(row.ours.p99_us), _time(row.ours.cpu_us))
    if row.other is None or row.ratio is None or row.cpu_ratio is None:
        return (row.name, str(row.clients), *ours, "", "", "", "", "", "")
    other = (f"{row.other.per_second:,.0f}", _time(row.other.p50_us), _time(row.other.cpu_us))
    return (row.name, str(row.clients), *ours, row.against, *other, f"{row.ratio:.2f}", f"{row.cpu_ratio:.2f}")


def _time(us: float) -> str:
    return f"{us:.0f} µs" if us < 1000 else f"{us / 1000:.1f} ms"


def plain(url: str, rows: Sequence[Row], million: dict[str, Any] | None, fsync_us: float) -> dict[str, Any]:
    """Return everything as data for programs."""
    data: dict[str, Any] = {
        "store": url,
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()},
        "fdatasync_p50_us": fsync_us,
        "rows": [msgspec.to_builtins(row) | {"ratio": row.ratio, "cpu_ratio": row.cpu_ratio} for row in rows],
    }
    return data if million is None else data | {"million": million}


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


def fdatasync_us(folder: Path) -> float:
    """Return the median time of 200 fdatasync calls of 4 KiB, in microseconds."""
    times = []
    with (folder / "fdatasync").open("wb", buffering=0) as file:
        file.write(bytes(4096))
        os.fsync(file.fileno())
        for _ in range(200):
            file.seek(0)
            started = perf_counter()
            file.write(bytes(4096))
            getattr(os, "fdatasync", os.fsync)(file.fileno())
            times.append(perf_counter() - started)
    return statistics.median(times) * 1e6


def markdown(rows: Sequence[Row], million: dict[str, Any] | None, fsync_us: float) -> str:
    """Return the tables in Markdown."""
    lines = [f"Median fdatasync of this disk during the run: {fsync_us:.0f} µs.", ""]
    lines += ["| " + " | ".join(HEADS) + " |", "|---|" + "--:|" * 5 + "---|" + "--:|" * 5]
    lines += ["| " + " | ".join(row) + " |" for row in cells(rows)]
    if million is not None:
        lines += ["", "| at a million keys | |", "|---|--:|"]
        lines += [f"| {name} | {value} |" for name, value in million_pairs(million)]
    return "\n".join(lines) + "\n"

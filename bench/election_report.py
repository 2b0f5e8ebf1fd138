"""Results of the election benchmark as tables."""

from __future__ import annotations

from typing import Any

TAKEOVER_HEADS = ("", "after release: p50", "p99", "most", "rounds", "after kill -9: p50", "most", "kills")
MANY_HEADS = ("", "leaderships", "ttl", "renewals per second", "CPU", "CPU per renewal", "acquired in", "still held")


def takeovers(found: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return one row for each contestant."""
    return [
        (
            row["name"] + (" (polls)" if row["polls"] else ""),
            f"{row['p50_ms']:.1f} ms",
            f"{row['p99_ms']:.1f} ms",
            f"{row['most_ms']:.1f} ms",
            str(row["rounds"]),
            f"{row['kill_p50_ttl']:.2f} ttl" if row["kills"] else "",
            f"{row['kill_most_ttl']:.2f} ttl" if row["kills"] else "",
            str(row["kills"]),
        )
        for row in found["takeovers"]
    ]


def many(found: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return one row for each storage."""
    return [
        (
            row["name"],
            f"{row['leaderships']:,}",
            f"{row['ttl']:g} s",
            f"{row['renewals_per_second']:.0f}",
            f"{row['cpu_percent']:.1f} %",
            f"{row['cpu_us_per_renewal']:.0f} µs",
            f"{row['acquire_seconds']:.1f} s",
            f"{row['held']:,}",
        )
        for row in found["leaderships"]
    ]


def ratios(found: dict[str, Any]) -> list[str]:
    """Return one line for each peer on a storage on which Hostler was measured too."""
    return [
        f"hostler hands over {row['times_as_fast']:.1f} times as fast as {row['peer']}"
        + (", which polls" if row["polls"] else "")
        for row in found["ratios"]
    ]


def markdown(found: dict[str, Any]) -> str:
    """Return the tables in Markdown."""
    lines = _table(TAKEOVER_HEADS, takeovers(found))
    if found["leaderships"]:
        lines += ["", *_table(MANY_HEADS, many(found))]
    return "\n".join([*lines, "", *(f"- {line}" for line in ratios(found))]).rstrip() + "\n"


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    return [
        f"| {' | '.join(heads)} |",
        "|---|" + "--:|" * (len(heads) - 1),
        *(f"| {' | '.join(row)} |" for row in rows),
    ]

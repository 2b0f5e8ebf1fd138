"""Durations, sizes and labels: parsing what users type, and formatting what they read."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from hostler.settings.quantity import mebibytes_of, seconds_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostler.model.inventory import Capacity


class Duration(click.ParamType[float]):
    """`90`, `90s`, `30m`, `2h`, `1d`, `1h30m`: seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        try:
            seconds = seconds_of(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not seconds:
            self.fail(f"{value!r}: must be above 0", param, ctx)
        return seconds


class Mebibytes(click.ParamType[int]):
    """`512`, `512M`, `2G`: MiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return mebibytes_of(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def labels(pairs: Sequence[str], what: str = "--label") -> dict[str, str]:
    """Parse labels from `NAME=VALUE` texts."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{pair!r}: write {what} NAME=VALUE")
        found[name] = value
    return found


def accelerators(pairs: Sequence[str]) -> dict[str, int]:
    """Parse `KIND=N` texts into a number for each kind; `KIND` alone counts as one."""
    found: dict[str, int] = {}
    for pair in pairs:
        kind, equals, text = pair.partition("=")
        if not kind or (equals and not (text.isascii() and text.isdigit())):
            raise click.BadParameter(f"{pair!r}: write --accelerator KIND=N")
        found[kind] = int(text or 1)
    return found


def label_text(found: dict[str, str]) -> str:
    """Format labels on one line."""
    return ",".join(f"{name}={value}" for name, value in sorted(found.items()))


def size(mebibytes: int) -> str:
    """Format a size: `2 GiB`, `512 MiB`."""
    return f"{mebibytes // 1024} GiB" if mebibytes and mebibytes % 1024 == 0 else f"{mebibytes} MiB"


def span(seconds: float | None) -> str:
    """Format a duration in at most two units."""
    if seconds is None:
        return "?"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"


def moment(at: float | None) -> str:
    """Format an instant in local time."""
    return "" if at is None else f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M:%S}"


def capacity(used: Capacity, all_of_it: Capacity) -> tuple[str, str, str]:
    """Format cores, memory and disk as used/total."""
    return (
        f"{used.cpus}/{all_of_it.cpus}",
        f"{size(used.memory_mib)}/{size(all_of_it.memory_mib)}",
        f"{used.disk_gib}/{all_of_it.disk_gib} GiB",
    )


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return the sort key of a name: case is ignored, and numbers are ordered by value.

    >>> sorted(["u10", "u2", "Bo", "ada"], key=natural)
    ['ada', 'Bo', 'u2', 'u10']
    """
    pieces = re.split(r"([0-9]{1,18})", name.casefold())
    return tuple((0, int(piece), "") if at % 2 else (1, 0, piece) for at, piece in enumerate(pieces) if piece)

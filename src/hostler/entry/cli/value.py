"""How people write durations, sizes and labels, and how they read them."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostler.model.inventory import Capacity

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SIZES = {"": 1, "m": 1, "mi": 1, "mib": 1, "g": 1024, "gi": 1024, "gib": 1024, "t": 1024**2, "ti": 1024**2}


class Duration(click.ParamType[float]):
    """`90`, `90s`, `30m`, `2h`, `1d`, `1h30m`: seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        text = str(value).strip().lower()
        parts = re.fullmatch(r"(?:[0-9]+(?:\.[0-9]+)?[smhdw])+|[0-9]+(?:\.[0-9]+)?", text)
        if parts is None:
            self.fail(f"{value!r} is no duration; write 90s, 30m, 2h or 1d", param, ctx)
        if text[-1].isdigit():
            seconds = float(text)
        else:
            seconds = sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"([0-9.]+)([smhdw])", text))
        if not 0 < seconds <= 10 * 366 * 86400:
            self.fail(f"{value!r}: must be above 0 and at most ten years", param, ctx)
        return seconds


class Mebibytes(click.ParamType[int]):
    """`512`, `512M`, `2G`: MiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"(-?[0-9]+)\s*([a-z]*)", str(value).strip().lower())
        if found is None or found[2] not in _SIZES:
            self.fail(f"{value!r} is no size; write 512M or 2G", param, ctx)
        return int(found[1]) * _SIZES[found[2]]


def labels(pairs: Sequence[str], what: str = "--label") -> dict[str, str]:
    """The labels of `NAME=VALUE` texts."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{pair!r}: write {what} NAME=VALUE")
        found[name] = value
    return found


def label_text(found: dict[str, str]) -> str:
    """Labels on one line."""
    return ",".join(f"{name}={value}" for name, value in sorted(found.items()))


def size(mebibytes: int) -> str:
    """`2 GiB`, `512 MiB`."""
    return f"{mebibytes // 1024} GiB" if mebibytes and mebibytes % 1024 == 0 else f"{mebibytes} MiB"


def span(seconds: float | None) -> str:
    """A duration for people, in two units."""
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
    """An instant in local time."""
    return "" if at is None else f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M:%S}"


def capacity(used: Capacity, all_of_it: Capacity) -> tuple[str, str, str]:
    """Cores, memory and disk in use, of how much."""
    return (
        f"{used.cpus}/{all_of_it.cpus}",
        f"{size(used.memory_mib)}/{size(all_of_it.memory_mib)}",
        f"{used.disk_gib}/{all_of_it.disk_gib} GiB",
    )

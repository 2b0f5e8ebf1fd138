"""Durations and sizes as users write them."""

from __future__ import annotations

import re

LONGEST = 10 * 366 * 86400.0
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SIZES = {
    "": 1,
    "m": 1,
    "mi": 1,
    "mib": 1,
    "g": 1024,
    "gi": 1024,
    "gib": 1024,
    "t": 1024**2,
    "ti": 1024**2,
    "tib": 1024**2,
}


def seconds_of(value: object) -> float:
    """Return the seconds of `90`, `90s`, `30m`, `2h`, `1d` or `1h30m`. ValueError: it is not a duration."""
    text = str(value).strip().lower()
    if isinstance(value, bool) or not re.fullmatch(r"(?:[0-9]+(?:\.[0-9]+)?[smhdw])+|[0-9]+(?:\.[0-9]+)?", text):
        raise ValueError(f"{value!r} is not a duration; write 90s, 30m, 2h or 1d")
    if text[-1].isdigit():
        seconds = float(text)
    else:
        seconds = sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"([0-9.]+)([smhdw])", text))
    if seconds > LONGEST:
        raise ValueError(f"{value!r}: must be at most ten years")
    return seconds


def mebibytes_of(value: object) -> int:
    """Return the MiB of `512`, `512M` or `2G`. ValueError: it is not a size."""
    found = re.fullmatch(r"(-?[0-9]{1,18})\s*([a-z]*)", str(value).strip().lower())
    if isinstance(value, bool) or found is None or found[2] not in _SIZES:
        raise ValueError(f"{value!r} is not a size; write 512M or 2G")
    return int(found[1]) * _SIZES[found[2]]

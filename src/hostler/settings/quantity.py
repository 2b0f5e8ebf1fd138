"""How people write durations and sizes, wherever they do."""

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
    """`90`, `90s`, `30m`, `2h`, `1d`, `1h30m`: seconds. ValueError: it is none."""
    text = str(value).strip().lower()
    if isinstance(value, bool) or not re.fullmatch(r"(?:[0-9]+(?:\.[0-9]+)?[smhdw])+|[0-9]+(?:\.[0-9]+)?", text):
        raise ValueError(f"{value!r} is no duration; write 90s, 30m, 2h or 1d")
    if text[-1].isdigit():
        seconds = float(text)
    else:
        seconds = sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"([0-9.]+)([smhdw])", text))
    if seconds > LONGEST:
        raise ValueError(f"{value!r}: must be at most ten years")
    return seconds


def mebibytes_of(value: object) -> int:
    """`512`, `512M`, `2G`: MiB. ValueError: it is none."""
    found = re.fullmatch(r"(-?[0-9]{1,18})\s*([a-z]*)", str(value).strip().lower())
    if isinstance(value, bool) or found is None or found[2] not in _SIZES:
        raise ValueError(f"{value!r} is no size; write 512M or 2G")
    return int(found[1]) * _SIZES[found[2]]

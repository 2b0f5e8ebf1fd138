"""What `hostler doctor` says of one thing."""

from __future__ import annotations

import enum

import msgspec


class Level(enum.StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at."""

    of: str
    level: Level
    what: str
    next: str = ""

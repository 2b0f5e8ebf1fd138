"""The result of one check of `hostler doctor`; drivers bring checks of their own."""

from __future__ import annotations

import enum

import msgspec


class Level(enum.StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(msgspec.Struct, frozen=True):
    """One finding: the subject, its level, the observation, and the next action."""

    of: str
    level: Level
    what: str
    next: str = ""

"""Checks of arguments, the same for all drivers (`hostler.drivers.machines.validation`)."""

from __future__ import annotations

from hostler.drivers.machines.validation import (
    check_finite,
    check_markable,
    check_number,
    check_plan,
    check_seconds,
    check_text,
)

__all__ = ["check_finite", "check_markable", "check_number", "check_plan", "check_seconds", "check_text"]

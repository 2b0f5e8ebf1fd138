"""Checks of the arguments of driver verbs. Invalid: the argument can never be accepted; nothing changed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hostler.errors import Invalid, Refused
from hostler.ports.machines import MachinePlan

if TYPE_CHECKING:
    from collections.abc import Collection

    from hostler.ports.machines import Label

_TEXT_BYTES = 1_024


def check_text(what: str, text: object) -> None:
    """Check a name: not empty, at most 1,024 bytes, and valid UTF-8."""
    if not isinstance(text, str):
        raise Invalid(f"{what}: its name must be a str, not {type(text).__name__}")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise Invalid(f"{what} {text!r}: its name is not valid Unicode") from None
    if not 0 < size <= _TEXT_BYTES:
        raise Invalid(f"{what}: its name has {size} bytes; it must have 1 to {_TEXT_BYTES}")


def check_plan(plan: object, images: Collection[str] | None) -> None:
    """Check a plan: every field can be stored, and its image exists."""
    if not isinstance(plan, MachinePlan):
        raise Invalid(f"create: takes a MachinePlan, not {type(plan).__name__}")
    check_text("machine", plan.label.vm)
    for text in (plan.label.org, plan.label.project, plan.label.cluster, plan.label.node, plan.name):
        if text:
            check_text(f"machine {plan.label.vm!r}: part of its label", text)
    for name, text in plan.tags.items():
        check_text(f"machine {plan.label.vm!r}: tag", name)
        if text:
            check_text(f"machine {plan.label.vm!r}: tag {name!r}", text)
    plan.spec.encode()  # Invalid if it could not be read back
    if images is not None and plan.spec.image not in images:
        raise Refused(f"machine {plan.label.vm!r}: no image {plan.spec.image!r}; available: {sorted(images)}")


def check_markable(label: Label, wanted: Label) -> None:
    """Raise Refused unless `label` and `wanted` have the same cluster and node."""
    if (label.cluster, label.node) != (wanted.cluster, wanted.node):
        raise Refused(
            f"machine {label.vm!r}: it belongs to node {label.node!r} of control plane {label.cluster!r}, not to node"
            f" {wanted.node!r} of {wanted.cluster!r}; change it from there"
        )


def check_finite(what: str, seconds: object) -> None:
    """Check a finite number of seconds; it may be negative."""
    if type(seconds) is float and math.isfinite(seconds):
        return
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not math.isfinite(seconds):
        raise Invalid(f"{what}: {seconds!r} must be a number of seconds")


def check_seconds(what: str, seconds: object) -> None:
    """Check a duration in seconds: finite and not negative."""
    check_finite(what, seconds)
    if not isinstance(seconds, int | float) or seconds < 0:
        raise Invalid(f"{what}: {seconds!r} must not be negative")


def check_number(number: object) -> None:
    """Check the number of a reset or restore."""
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number < 2**63:
        raise Invalid(f"number: {number!r} must be a whole number of at least 1")

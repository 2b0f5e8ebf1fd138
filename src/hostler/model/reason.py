"""Reasons, stored together with the decision that they explain."""

from __future__ import annotations

from hostler.model.record import Record


class Reason(Record, frozen=True, kw_only=True):
    """One consideration: its subject (a node, a rack, a quota) and the result."""

    subject: str
    why: str

"""Why something was decided: kept with the decision."""

from __future__ import annotations

from hostler.model.record import Record


class Reason(Record, frozen=True, kw_only=True):
    """One consideration: of what (a node, a rack, a quota), and what it came to."""

    subject: str
    why: str

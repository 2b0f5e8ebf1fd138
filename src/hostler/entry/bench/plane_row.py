"""Results of the control plane benchmark: one figure per row, with its target."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

HEADS = ("what", "found", "wanted", "reached", "against", "found", "ratio", "by CPU")
_DIGITS = 100


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One figure. Without `wanted` it has no target."""

    what: str
    found: float
    unit: str
    wanted: float | None = None
    at_most: bool = False
    """`wanted` is an upper limit, not a lower limit."""
    against: str = ""
    other: float | None = None
    """The figure of the bare engine or framework, in alternating rounds of this run."""
    ratio: float | None = None
    """Our figure divided by the other side's."""
    cpu_ratio: float | None = None
    """The same ratio for equal processor time."""

    @property
    def reached(self) -> bool | None:
        """Return whether the target was reached; None: there is no target."""
        if self.wanted is None:
            return None
        return self.found <= self.wanted if self.at_most else self.found >= self.wanted


def cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Return the rows as text."""
    return [
        (
            row.what,
            f"{_number(row.found)} {row.unit}".rstrip(),
            "" if row.wanted is None else f"{'≤' if row.at_most else '≥'} {_number(row.wanted)}",
            {None: "", True: "yes", False: "NO"}[row.reached],
            row.against,
            "" if row.other is None else _number(row.other),
            "" if row.ratio is None else f"{row.ratio:.2f}",
            "" if row.cpu_ratio is None else f"{row.cpu_ratio:.2f}",
        )
        for row in rows
    ]


def markdown(rows: Sequence[Row]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(HEADS) + " |", "|---|--:|--:|---|---|--:|--:|--:|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in cells(rows))]) + "\n"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= _DIGITS or value == int(value) else f"{value:.2f}"

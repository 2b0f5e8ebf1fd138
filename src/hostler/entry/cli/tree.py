"""Decisions and requests as text: one line each, with their consequences below."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from hostler.entry.cli import show
from hostler.model.trace_api import Sort

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hostler.model.trace_api import TraceView

UNKNOWN = "--:--:--"
"""Shown for a time that is no longer known."""
MOST = 1000
"""The largest number of entries that a command shows."""


def moment(at: float | None, *, day: bool = False) -> str:
    """Format a time of day in local time; with `day`, include the date."""
    if at is None:
        return UNKNOWN
    then = datetime.fromtimestamp(at).astimezone()
    return f"{then:%Y-%m-%d %H:%M:%S}" if day else f"{then:%H:%M:%S}"


def spans_days(views: Sequence[TraceView]) -> bool:
    """Return whether the entries span more than one day."""
    return len({moment(view.at, day=True)[:10] for view in views if view.at is not None}) > 1


def more(limit: int) -> str:
    """Suggest how to see the entries beyond a limit."""
    return f"show more: --limit {min(MOST, limit * 5)}" if limit < MOST else "GET /v1/traces has all, page by page"


def grown(views: Sequence[TraceView]) -> Iterator[str]:
    """Yield the lines of all entries as trees, oldest first."""
    days = spans_days(views)
    known = {view.id for view in views}
    children: dict[str, list[TraceView]] = {}
    for view in sorted(views, key=lambda view: (view.revision, view.id)):
        children.setdefault(view.parent if view.parent in known else "", []).append(view)
    # Iterative, because a tree can be as deep as the history is long.
    waiting = [("", "", view) for view in reversed(children.get("", []))]
    while waiting:
        before, branch, view = waiting.pop()
        yield f"{moment(view.at, day=days)}  {before}{branch}{_line(view)}"
        below = children.get(view.id, [])
        inside = before + {"": "", "├ ": "│ ", "└ ": "  "}[branch]
        for place, child in reversed(list(enumerate(below))):
            waiting.append((inside, "└ " if place == len(below) - 1 else "├ ", child))


def _line(view: TraceView) -> str:
    if view.sort is Sort.WISH:
        return show.safe(f"{view.subject}: {view.what}, requested by {view.actor}")
    led = "… " if view.open else ""
    return show.safe(f"{led}{view.subject}: {view.why or view.what} ({view.actor})")


def chained(views: Sequence[TraceView], about: str) -> Iterator[str]:
    """Yield the chain of causes of `about`, newest first. A line names its subject only if it is not `about`."""
    days = spans_days(views)
    for place, view in enumerate(views):
        branch = "└" if place == len(views) - 1 else "├"
        subject = "" if view.subject == about else f"{view.subject}: "
        by = "" if view.sort is Sort.WISH else f"{view.actor}, "
        text = f"{subject}{view.why or view.what} ({by}{moment(view.at, day=days)})"
        yield show.safe(f"{branch} {text}")

"""Text for labs, and waiting for a lab."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hostler.entry.cli.failure import NotYet
from hostler.entry.cli.value import moment, span
from hostler.entry.cli.vm.wait import PhaseProgress
from hostler.errors import NotFound, Unavailable
from hostler.model.lab import LabPhase

if TYPE_CHECKING:
    from hostler.client import Client
    from hostler.model.lab import LabNews
    from hostler.model.lab_api import LabView


def described(view: LabView) -> str:
    """Describe the state of the lab in a few words."""
    words = [f"lab {view.lab_id} {view.phase.value}"]
    if view.phase is LabPhase.WAITING and view.position is not None:
        words.append(f"position {view.position}")
    elif view.available:
        port = "" if view.port == 22 else f" -p {view.port}"
        words.append(f"ssh{port} {view.ssh_user}@{view.address}" if view.address else "available")
    if view.again is not None:
        words.append(f"lab {view.again} follows")
    return ", ".join(words) + (f" ({view.detail})" if view.detail and not view.available else "")


def left(view: LabView) -> str:
    """Return the remaining life of the lab."""
    if view.expires_at is None:
        return ""
    rest = view.expires_at - time.time()
    return span(rest) if rest > 0 else "expired"


def news_line(news: LabNews) -> str:
    """Format an event of a lab on one line."""
    lab = "" if news.lab_id is None else f" lab {news.lab_id}"
    return f"{moment(news.at)}  {news.event.value}{lab}{f': {news.reason}' if news.reason else ''}"


async def until(
    client: Client, user: str, *, gone: bool, lab_id: int | None, within: float, generation: int | None = None
) -> LabView | None:
    """Wait until the lab is available, or with `gone` until it is gone (None). NotYet: not in time, or it ended."""
    last = "not seen yet"
    with PhaseProgress(user) as telling:

        def changed(view: LabView) -> None:
            nonlocal last
            last = described(view)
            telling.tell(last)

        try:
            return await client.labs.wait(
                user,
                available=not gone,
                gone=gone,
                lab_id=lab_id,
                generation=generation,
                within=within,
                on_change=changed,
            )
        except NotFound as error:
            raise NotYet(f"{error}, or see what happened to it: hostler lab events {user}") from None
        except Unavailable:
            what = "not gone" if gone else "not available"
            raise NotYet(
                f"lab of {user}: {what} after {span(within)} ({last}); work continues: hostler lab watch {user}"
            ) from None

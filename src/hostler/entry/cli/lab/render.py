"""How a lab is told of in a line, and how it is waited for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hostler.entry.cli.failure import NotYet
from hostler.entry.cli.value import moment, span
from hostler.entry.cli.vm.wait import Telling
from hostler.errors import NotFound, Unavailable
from hostler.model.lab import LabPhase

if TYPE_CHECKING:
    from hostler.client import Client
    from hostler.model.lab import LabNews
    from hostler.model.lab_api import LabView


def described(view: LabView) -> str:
    """Where it is, in a few words."""
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
    """For how long it still lives."""
    if view.expires_at is None:
        return ""
    rest = view.expires_at - time.time()
    return span(rest) if rest > 0 else "expired"


def news_line(news: LabNews) -> str:
    """A piece of news on one line."""
    lab = "" if news.lab_id is None else f" lab {news.lab_id}"
    return f"{moment(news.at)}  {news.event.value}{lab}{f': {news.reason}' if news.reason else ''}"


async def until(
    client: Client, user: str, *, gone: bool, lab_id: int | None, within: float, generation: int | None = None
) -> LabView | None:
    """Until one can log in, or the lab is `gone` (None). NotYet: not in time, or it ended otherwise."""
    last = "nothing was seen of it"
    with Telling(user) as telling:

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
            what = "not gone" if gone else "not there"
            raise NotYet(
                f"lab of {user}: {what} after {span(within)} ({last}); it goes on: hostler lab watch {user}"
            ) from None

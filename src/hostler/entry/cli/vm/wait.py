"""Waiting for a wish to come true, with its phases told on the way."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Any, Self

import click

from hostler.entry.cli import show
from hostler.entry.cli.failure import NotYet, note
from hostler.entry.cli.value import Duration, span
from hostler.errors import NotFound, Unavailable, Uncertain
from hostler.model.api import Phase

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hostler.model.api import VmView

LOOK_EVERY = 0.2
LOOK_SLOWLY = 1.0
FAILED_FOR = 10.0
"""A machine that has failed for so long without a break will need somebody's help."""


def wait_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--wait` and `--timeout`."""
    wait = click.option("--wait", "waiting", is_flag=True, help="Wait until it has happened; the phases are told.")
    timeout = click.option(
        "--timeout", "within", type=Duration(), default="5m", show_default=True, help="How long --wait waits."
    )
    return wait(timeout(command))


class Telling:
    """The phases of one machine: a moving line on a terminal, a line for each phase elsewhere. All on stderr."""

    def __init__(self, name: str) -> None:
        self._name, self._said = name, ""
        self._status: Any = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True).status(self._name)
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def tell(self, text: str) -> None:
        """This is where it is."""
        if text == self._said:
            return
        self._said = text
        line = f"{self._name}: {text}"
        if self._status is None:
            note(line)
        else:
            from rich.text import Text

            self._status.update(Text(show.safe(line)))


async def until_settled(look: Callable[[], Awaitable[VmView]], name: str, *, within: float) -> VmView | None:
    """Until what is seen is what is wished for; None: the machine is gone. NotYet: not in time, or it keeps failing."""
    started = time.monotonic()
    failing_since: float | None = None
    last = "nothing was seen of it"
    with Telling(name) as telling:
        while True:
            now = time.monotonic()
            try:
                view = await look()
            except NotFound:
                return None
            except (Unavailable, Uncertain) as error:
                telling.tell(f"waiting: {error}")
            else:
                if view.settled:
                    return view
                last = described(view)
                telling.tell(last)
                failing_since = (failing_since or now) if view.phase is Phase.FAILED else None
                if failing_since is not None and now - failing_since > FAILED_FOR:
                    raise NotYet(f"vm {name}: {last}; see what is wrong: hostler vm show {name}")
            if now - started > within:
                raise NotYet(
                    f"vm {name}: not there after {span(within)} ({last}); it goes on; look again: hostler vm why {name}"
                )
            await asyncio.sleep(LOOK_EVERY if now - started < 5 else LOOK_SLOWLY)


def described(view: VmView) -> str:
    """Where it is, in a few words."""
    place = f" on {view.node}" if view.node else ""
    detail = f": {view.detail}" if view.detail else ""
    return f"{view.phase.value}{place}{detail}"

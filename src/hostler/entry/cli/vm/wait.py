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
from hostler.errors import NotFound, Unavailable
from hostler.model.api import Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.client import Client
    from hostler.model.api import VmView

LOOK_EVERY = 0.2
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


async def until_settled(client: Client, view: VmView, *, within: float, gone: bool = False) -> VmView | None:
    """Until what is seen is what is wished for, or the machine is `gone` (None).

    NotYet: not in time, it keeps failing, or somebody deleted it. It is looked for by its id: a name can be given to
    another machine meanwhile.
    """
    name, failing = view.name, _Failing()
    with Telling(name) as telling:

        def changed(now: VmView) -> None:
            failing.seen(now)
            telling.tell(described(now))

        waiting = asyncio.create_task(
            client.vms.wait(
                view.org, view.project, view.id, settled=not gone, gone=gone, within=within, on_change=changed
            ),
            name="waiting",
        )
        try:
            while not waiting.done():
                await asyncio.wait((waiting,), timeout=LOOK_EVERY)
                if failing.for_long():
                    raise NotYet(f"vm {name}: {failing.last}; see what is wrong: hostler vm show {name}")
            return waiting.result()
        except NotFound:
            raise NotYet(f"vm {name}: somebody deleted it meanwhile; nothing is left of it") from None
        except Unavailable:
            raise NotYet(
                f"vm {name}: not there after {span(within)} ({failing.last}); it goes on: hostler vm why {name}"
            ) from None
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)


class _Failing:
    """Since when a machine fails without a break."""

    def __init__(self) -> None:
        self.last = "nothing was seen of it"
        self._since: float | None = None

    def seen(self, view: VmView) -> None:
        self.last = described(view)
        if view.phase is not Phase.FAILED:
            self._since = None
        elif self._since is None:
            self._since = time.monotonic()

    def for_long(self) -> bool:
        return self._since is not None and time.monotonic() - self._since > FAILED_FOR


def described(view: VmView) -> str:
    """Where it is, in a few words."""
    place = f" on {view.node}" if view.node else ""
    detail = f": {view.detail}" if view.detail else ""
    return f"{view.phase.value}{place}{detail}"

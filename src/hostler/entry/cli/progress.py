"""What a command asks before it acts, and what it shows while it waits.

Something is destroyed only after a confirmation. At a terminal the user is asked, unless `--yes` is given. Without a
terminal, `ask_if_seen` proceeds: the script has named the object, which is enough. `ask` demands `--yes` there: for an
operation that affects more than was named, or for which the operator takes responsibility.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Self, TypeVar

import click

from hostler.entry.cli.failure import NotYet, note
from hostler.entry.cli.show import span
from hostler.errors import NotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from rich.status import Status


EVERY = 5.0


class Ticker:
    """Shows the latest progress line."""

    def __init__(self) -> None:
        self._status: Status | None = None
        self._last = time.monotonic()

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True).status("starting …")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def tell(self, line: str) -> None:
        """Show `line`; without a terminal, at most once in `EVERY` seconds."""
        if self._status is not None:
            from rich.text import Text

            self._status.update(Text(line))
        elif time.monotonic() - self._last >= EVERY:
            self._last = time.monotonic()
            note(line)


V = TypeVar("V")


async def wait_until_settled(
    kind: str,
    name: str,
    wait: Callable[..., Awaitable[V | None]],
    described: Callable[[V], str],
    *,
    gone: bool,
    within: float,
) -> V | None:
    """Wait until the object matches its spec, or with `gone` until it is deleted (None), and print the progress.

    `wait` is the method of the client. NotYet: not in time, or the object was deleted.
    """
    from hostler.entry.cli.vm.wait import PhaseProgress

    with PhaseProgress(name) as telling:
        last = ""

        def changed(view: V) -> None:
            nonlocal last
            last = described(view)
            telling.tell(last)

        try:
            return await wait(name, settled=not gone, gone=gone, within=within, on_change=changed)
        except NotFound:
            raise NotYet(f"{kind} {name}: deleted while waiting; nothing is left of it") from None
        except Unavailable:
            raise NotYet(
                f"{kind} {name}: not ready after {span(within)} ({last}); work continues: hostler {kind} status {name}"
            ) from None


yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


def can_ask() -> bool:
    """Return whether standard input is a terminal, so that a user can answer."""
    return sys.stdin.isatty()


def ask_if_seen(question: str, *, yes: bool) -> None:
    """Ask if there is a terminal. For an object that was named explicitly, or that can be restored."""
    if not yes and can_ask():
        click.confirm(question, abort=True, err=True)


def ask(question: str, *, yes: bool, otherwise: str = "") -> None:
    """Ask; without a terminal, refuse. For an operation that affects more than was named, or needs responsibility.

    `otherwise`: an alternative that the refusal suggests.
    """
    check_can_ask(yes=yes, question=question, otherwise=otherwise)
    if not yes:
        click.confirm(question, abort=True, err=True)


def check_can_ask(*, yes: bool, question: str, otherwise: str = "") -> None:
    """Refuse in the same cases as `ask`, before the caller looks up what the question needs."""
    if not yes and not can_ask():
        ways = f"add --yes if you are sure{otherwise and f', or {otherwise}'}"
        raise click.UsageError(f"{question} Cannot ask: standard input is not a terminal; {ways}")

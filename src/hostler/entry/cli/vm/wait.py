"""Waiting for a wish to come true, with its phases told on the way."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Any, Self

import click
from msgspec.structs import replace

from hostler.entry.cli import show
from hostler.entry.cli.failure import NotYet, note
from hostler.entry.cli.value import Duration, span
from hostler.errors import NotFound, Unavailable
from hostler.model.api import Phase
from hostler.model.vm import Step

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

    def move(self, text: Callable[[], str]) -> None:
        """The same goes on: on a terminal that is shown."""
        if self._status is not None:
            self.tell(text())

    def end(self, text: str) -> None:
        """This is how it went, for the record."""
        if self._status is not None:
            self._status.stop()
        note(f"{self._name}: {text}")

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


class Steps:
    """How far a machine is on its way to its user, and how long each step took."""

    def __init__(self) -> None:
        self._took: list[tuple[str, float]] = []
        self._began = self._since = time.monotonic()
        self.now, self._more = "", ""

    def seen(self, view: VmView) -> None:
        """This is how it looks now."""
        step, now = step_of(view), time.monotonic()
        cause = "" if view.readiness is None else view.readiness.cause
        self._more = cause or (view.detail if view.phase is not Phase.RUNNING else "")
        if step != self.now:
            if self.now:
                self._took.append((self.now, now - self._since))
            self.now, self._since = step, now

    def text(self) -> str:
        """What was, and what is going on."""
        before = "".join(f"{step} {took:.1f} s → " for step, took in self._took)
        since = time.monotonic() - self._since
        lasting = f" {since:.0f} s" if since >= 1 else ""
        return f"{before}{self.now}{lasting}{f' ({self._more})' if self._more else ''}"

    def summary(self) -> str:
        """What was, when all is done."""
        parts = ", ".join(f"{step} {took:.1f} s" for step, took in self._took)
        return f"{self.now} after {time.monotonic() - self._began:.1f} s{f' ({parts})' if parts else ''}"


_BEFORE = {Phase.PENDING: "placing", Phase.PLACED: "disk", Phase.CREATING: "disk", Phase.STARTING: "booting"}


def step_of(view: VmView) -> str:
    """Where it is between placing and available; where it runs without telling more, just `running`."""
    if view.phase is not Phase.RUNNING:
        return _BEFORE.get(view.phase, view.phase.value)
    if view.readiness is None:  # where there is something to log into, more will be told
        return "running" if view.access is None else Step.BOOTING.value
    return view.readiness.step.value


async def until_settled(
    client: Client, view: VmView, *, within: float, gone: bool = False, available: bool = False, moving: bool = False
) -> VmView | None:
    """Until what is seen is what is wished for, its user can log in (`available`), or the machine is `gone` (None).
    `moving`: it comes to another node as it runs.

    NotYet: not in time, it keeps failing, or somebody deleted it. It is looked for by its id: a name can be given to
    another machine meanwhile.
    """
    name, failing, steps = view.name, _Failing(), Steps()
    with Telling(name) as telling:

        def changed(now: VmView) -> None:
            failing.seen(now)
            steps.seen(now)
            telling.tell(steps.text() if available else goes_on(now) if moving else described(now))

        waiting = asyncio.create_task(
            client.vms.wait(
                view.org,
                view.project,
                view.id,
                settled=not gone,
                available=available,
                gone=gone,
                within=within,
                on_change=changed,
            ),
            name="waiting",
        )
        try:
            while not waiting.done():
                await asyncio.wait((waiting,), timeout=LOOK_EVERY)
                if available:
                    telling.move(steps.text)
                if failing.for_long():
                    raise NotYet(f"vm {name}: {failing.last}; see what is wrong: hostler vm show {name}")
            now = waiting.result()
            if available and now is not None and now.available:
                telling.end(steps.summary())
            return now
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
    return f"{view.phase.value}{place}{ready(view)}{detail}"


def goes_on(view: VmView) -> str:
    """The same of one that is moved as it runs, and does not boot: its new node does not know at once how far it is."""
    if view.phase is Phase.STARTING:
        return f"going on{f' on {view.node}' if view.node else ''}"
    return described(view if view.available else replace(view, readiness=None))


def ready(view: VmView) -> str:
    """How far a running one is, to be added to what else is said."""
    if view.phase is not Phase.RUNNING or view.readiness is None:
        return ""
    if view.available:
        return ", available"
    cause = f" ({view.readiness.cause})" if view.readiness.cause else ""
    return f", not available yet: {view.readiness.step.value}{cause}"

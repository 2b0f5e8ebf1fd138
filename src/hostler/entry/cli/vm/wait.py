"""Waiting until a machine matches its spec, with progress output."""

from __future__ import annotations

import asyncio
import functools
import sys
import time
from typing import TYPE_CHECKING, Any, Self

import click
from msgspec.structs import replace

from hostler.entry.cli import show
from hostler.entry.cli.failure import NotYet, note
from hostler.entry.cli.show import Duration, span
from hostler.errors import NotFound, Unavailable
from hostler.model.vm import Step
from hostler.model.vm_api import VmPhase

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.client import Client
    from hostler.model.vm_api import VmView

LOOK_EVERY = 0.2
FAILED_FOR = 10.0
"""A machine that fails for this many seconds without a break needs help: stop waiting."""


def wait_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--wait` and `--timeout` as one parameter `within`: None without `--wait`."""

    @functools.wraps(command)
    def run(*args: Any, waiting: bool, within: float, **options: Any) -> Any:
        return command(*args, within=within if waiting else None, **options)

    return wait_flags(run)


def wait_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--wait` and `--timeout` as two parameters."""
    wait = click.option("--wait", "waiting", is_flag=True, help="Wait until it is done, and print the progress.")
    timeout = click.option(
        "--timeout", "within", type=Duration(), default="5m", show_default=True, help="Time limit for --wait."
    )
    return wait(timeout(command))


class PhaseProgress:
    """Progress on stderr: a live line on a terminal, otherwise one line for each phase."""

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
        """Update the live line of the same phase; does nothing without a terminal."""
        if self._status is not None:
            self.tell(text())

    def end(self, text: str) -> None:
        """Print the final line."""
        if self._status is not None:
            self._status.stop()
        note(f"{self._name}: {text}")

    def tell(self, text: str) -> None:
        """Show a new state; the same text again is ignored."""
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
    """The steps of a machine from placement to available, with the duration of each."""

    def __init__(self) -> None:
        self._took: list[tuple[str, float]] = []
        self._began = self._since = time.monotonic()
        self.now, self._more = "", ""

    def seen(self, view: VmView) -> None:
        """Record the current state."""
        step, now = step_of(view), time.monotonic()
        cause = "" if view.readiness is None else view.readiness.cause
        self._more = cause or (view.detail if view.phase is not VmPhase.RUNNING else "")
        if step != self.now:
            if self.now:
                self._took.append((self.now, now - self._since))
            self.now, self._since = step, now

    def text(self) -> str:
        """Format the finished steps and the current one."""
        before = "".join(f"{step} {took:.1f} s → " for step, took in self._took)
        since = time.monotonic() - self._since
        lasting = f" {since:.0f} s" if since >= 1 else ""
        return f"{before}{self.now}{lasting}{f' ({self._more})' if self._more else ''}"

    def summary(self) -> str:
        """Format all steps, at the end."""
        parts = ", ".join(f"{step} {took:.1f} s" for step, took in self._took)
        return f"{self.now} after {time.monotonic() - self._began:.1f} s{f' ({parts})' if parts else ''}"


_BEFORE = {VmPhase.PENDING: "placing", VmPhase.PLACED: "disk", VmPhase.CREATING: "disk", VmPhase.STARTING: "booting"}


def step_of(view: VmView) -> str:
    """Return the step between placement and available; `running` for a machine that reports no readiness."""
    if view.phase is not VmPhase.RUNNING:
        return _BEFORE.get(view.phase, view.phase.value)
    if view.readiness is None:  # a machine with a login reports its readiness later
        return "running" if view.access is None else Step.BOOTING.value
    return view.readiness.step.value


async def until_settled(
    client: Client, view: VmView, *, within: float, gone: bool = False, available: bool = False, moving: bool = False
) -> VmView | None:
    """Wait until the machine matches its spec, its user can log in (`available`), or it is `gone` (None).

    `moving`: it is live-migrated. NotYet: not in time, it keeps failing, or it was deleted. The machine is identified
    by its id, because its name can be given to another machine.
    """
    name, failing, steps = view.name, _Failing(), Steps()
    with PhaseProgress(name) as telling:

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
            raise NotYet(f"vm {name}: deleted while waiting; nothing is left of it") from None
        except Unavailable:
            raise NotYet(
                f"vm {name}: not done after {span(within)} ({failing.last}); work continues: hostler vm why {name}"
            ) from None
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)


class _Failing:
    """Tracks how long a machine has been failing without a break."""

    def __init__(self) -> None:
        self.last = "not seen yet"
        self._since: float | None = None

    def seen(self, view: VmView) -> None:
        self.last = described(view)
        if view.phase is not VmPhase.FAILED:
            self._since = None
        elif self._since is None:
            self._since = time.monotonic()

    def for_long(self) -> bool:
        return self._since is not None and time.monotonic() - self._since > FAILED_FOR


def described(view: VmView) -> str:
    """Describe the state of the machine in a few words."""
    place = f" on {view.node}" if view.node else ""
    detail = f": {view.detail}" if view.detail else ""
    return f"{view.phase.value}{place}{ready(view)}{detail}"


def goes_on(view: VmView) -> str:
    """Describe a live-migrated machine. It does not boot, but its new node does not know its readiness at once."""
    if view.phase is VmPhase.STARTING:
        return f"continuing{f' on {view.node}' if view.node else ''}"
    return described(view if view.available else replace(view, readiness=None))


def ready(view: VmView) -> str:
    """Describe the readiness of a running machine, as a suffix."""
    if view.phase is not VmPhase.RUNNING or view.readiness is None:
        return ""
    if view.available:
        return ", available"
    cause = f" ({view.readiness.cause})" if view.readiness.cause else ""
    return f", not available yet: {view.readiness.step.value}{cause}"

"""Signals: the first SIGTERM or SIGINT asks to end, the second one does not ask; SIGHUP reloads certificates."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from hostler.errors import HostlerError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator


class Reloads(Protocol):
    """A server that can read its certificate again."""

    def reload_certificate(self) -> bool: ...


SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def asked_to_end() -> Iterator[asyncio.Event]:
    """Set by the first signal. The second one ends the process at once: everything here survives that."""
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()

    def received(number: int) -> None:
        if asked.is_set():
            os._exit(128 + number)
        asked.set()

    for number in SIGNALS:
        loop.add_signal_handler(number, received, number)
    try:
        yield asked
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


@contextmanager
def on_hangup(reload: Callable[[], None]) -> Iterator[None]:
    """SIGHUP calls `reload`, and ends nothing."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, reload)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


def reload_certificates(servers: Iterable[Reloads], tell: Callable[[str], None]) -> None:
    """Let all servers read their certificates again, and say what the result is."""
    try:
        reloaded = [server.reload_certificate() for server in servers]
    except HostlerError as error:
        tell(f"SIGHUP: {error}; the certificate from before is still in use")
        return
    tell("SIGHUP: certificates read again" if any(reloaded) else "SIGHUP: there is no certificate to read again")


async def run_unless_asked(
    name: str, asked: asyncio.Event, started: asyncio.Event, work: Coroutine[Any, Any, int]
) -> int:
    """The exit code of `work`, which heeds `asked` itself once it has `started`. Asked before, it is cancelled: 0.

    So who is asked to end while a store does not answer does not wait for that first.
    """
    working = asyncio.create_task(work, name=name)
    waiting = asyncio.create_task(asked.wait(), name=f"{name}: asked to end")
    try:
        await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
        if not working.done() and not started.is_set():
            working.cancel()
            await asyncio.wait((working,))
        return 0 if working.done() and working.cancelled() else await working
    finally:
        for task in (working, waiting):
            task.cancel()
        await asyncio.gather(working, waiting, return_exceptions=True)

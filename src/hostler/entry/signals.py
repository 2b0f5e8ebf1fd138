"""Signals: the first SIGTERM or SIGINT starts a shutdown, the second ends the process; SIGHUP reloads certificates."""

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
    """A server that can reload its certificate."""

    def reload_certificate(self) -> bool: ...


SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def asked_to_end() -> Iterator[asyncio.Event]:
    """Yield an event that the first signal sets. A second signal ends the process at once, which is crash-safe."""
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
    """Call `reload` on SIGHUP instead of ending the process."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, reload)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


def reload_certificates(servers: Iterable[Reloads], tell: Callable[[str], None]) -> None:
    """Reload the certificates of all servers, and report the result."""
    try:
        reloaded = [server.reload_certificate() for server in servers]
    except HostlerError as error:
        tell(f"SIGHUP: {error}; the previous certificate is still in use")
        return
    tell("SIGHUP: certificates reloaded" if any(reloaded) else "SIGHUP: no certificate to reload")


async def run_unless_asked(
    name: str, asked: asyncio.Event, started: asyncio.Event, work: Coroutine[Any, Any, int]
) -> int:
    """Return the exit code of `work`; cancel it and return 0 if `asked` is set before `started`.

    After `started`, `work` handles `asked` itself. So a shutdown request does not wait for a store that does not
    answer.
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

"""Calls of slices: lines to workers, and the doors at which this process is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from hostler.drivers.calling.gateway import Asks, Gateway
    from hostler.drivers.calling.listener import Listener
    from hostler.ports.calls import Lines, Questions, Told


def open_lines(token: str, *, caller: str) -> Lines:
    """Lines to workers that take calls from who shows this token; to be closed with `aclose`."""
    from hostler.drivers.calling.connection_pool import TcpLines

    return TcpLines(token, caller=caller)


def open_questions(token: str) -> Questions:
    """The way to ask routers what they measured; to be closed with `aclose`."""
    from hostler.drivers.calling.listener import TcpQuestions

    return TcpQuestions(token)


def telling(
    host: str, told: Callable[[int], Told], admitted: Callable[[str], bool]
) -> AbstractAsyncContextManager[Listener]:
    """The door at which the leader asks; its `address` is known inside."""
    from hostler.drivers.calling.listener import Listener

    return Listener(host, told, admitted)


def gateway(path: Path, token: str, ask: Asks) -> AbstractAsyncContextManager[Gateway]:
    """The door at which slices of this node call others."""
    from hostler.drivers.calling.gateway import Gateway

    return Gateway(path, token, ask)

"""Calls of slices: connections to workers, and the sockets on which this process is queried."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from hostler.drivers.calling.gateway import Asks, Gateway
    from hostler.drivers.calling.listener import Listener
    from hostler.ports.calls import Questions, Told, WorkerConnections


def open_lines(token: str, *, caller: str) -> WorkerConnections:
    """Return connections to workers that admit callers with this token; close them with `aclose`."""
    from hostler.drivers.calling.connection_pool import TcpConnectionPool

    return TcpConnectionPool(token, caller=caller)


def open_questions(token: str) -> Questions:
    """Return a client that queries routers for their measurements; close it with `aclose`."""
    from hostler.drivers.calling.listener import TcpQuestions

    return TcpQuestions(token)


def telling(
    host: str, told: Callable[[int], Told], admitted: Callable[[str], bool]
) -> AbstractAsyncContextManager[Listener]:
    """Return the listener that the leader queries; its `address` is known once it is entered."""
    from hostler.drivers.calling.listener import Listener

    return Listener(host, told, admitted)


def gateway(path: Path, token: str, ask: Asks) -> AbstractAsyncContextManager[Gateway]:
    """Return the socket through which slices of this node call others."""
    from hostler.drivers.calling.gateway import Gateway

    return Gateway(path, token, ask)

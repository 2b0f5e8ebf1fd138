"""Labs in a process: the catalogue in use, the terminal's key, the connection to Redis, and whether it is used.

    queues → worker (every process with `redis`) → the store → projection (the leader) → lab records

Users of labs from Redis log in at port 22 of an IPv6 address. Whether guests have one depends on their machine driver.
Without one, requests from Redis are not taken and the reason is reported; everything else works. If Redis is
unreachable at start, the process reports it and keeps trying. Errors that waiting cannot fix (a wrong password, an
invalid URL) end the process.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from hostler.entry.cli.options import redacted
from hostler.entry.server.logs import logger
from hostler.errors import HostlerError, Invalid, Refused, Unavailable, Uncertain
from hostler.keys.families import MEMBER
from hostler.keys.lab import LabNames
from hostler.keys.namespace import namespace_of
from hostler.model.lab import LabCatalogue, LabTemplate
from hostler.model.node import Lifecycle
from hostler.ports.machine_driver import GuestNetwork
from hostler.settings.catalogue import load_catalogue
from hostler.wiring import machine_driver, open_board, open_inbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping

    from hostler.engine.labs.worker import LabWorker
    from hostler.engine.runtime.env import Env
    from hostler.model.node import NodeRecord
    from hostler.ports.inbox import Inbox, LabRecords
    from hostler.ports.store import Store
    from hostler.settings import Settings


_SAID = ("lab_life", "lab_user")


def own_catalogue(settings: Settings) -> LabCatalogue | None:
    """Return the lab catalogue of this process: from `labs.toml`, or from settings alone; None if neither is set.

    NotFound, Invalid: `labs.toml` is missing or has an error.
    """
    life, user = settings.lab_life * 60.0, settings.lab_user
    if settings.labs is not None:
        return load_catalogue(settings.labs, life=life, user=user)
    if all(settings.origins[name].layer == "default" for name in _SAID):
        return None
    return LabCatalogue(default=LabTemplate(life=life, user=user))


def lab_keys(settings: Settings, tell: Callable[[str], None]) -> tuple[str, ...]:
    """Return the public part of the terminal's key, which is created if it does not exist."""
    from hostler.entry.ssh import terminal_key

    try:
        return (terminal_key(settings.lab_key)[1],)
    except Refused as error:
        tell(f"labs without a terminal: {error}")
        return ()


class LabQueueService:
    """The open connection to Redis: lab records for the leader to write, and the worker that takes requests."""

    def __init__(self, board: LabRecords, worker: LabWorker, task: asyncio.Task[None]) -> None:
        self.board, self._worker, self.task = board, worker, task

    def counters(self) -> Mapping[str, float]:
        """Return the worker's counters."""
        return {f"lab_worker_{name}": float(number) for name, number in self._worker.counters.items()}


@asynccontextmanager
async def open_queue_service(
    store: Store,
    settings: Settings,
    env: Env,
    make: Callable[[Inbox, Env, str], LabWorker],
    tell: Callable[[str], None],
) -> AsyncIterator[LabQueueService | None]:
    """Connect to Redis and run a worker that takes requests until the context ends; it returns what it holds then.

    `make` builds the worker of an inbox, with its environment and its name for the audit log. None: the settings name
    no Redis. Forbidden, Invalid: Redis refuses the credentials, or the URL is not valid.
    """
    if settings.redis is None:
        yield None
        return
    names, log = LabNames(namespace_of(store).redis_prefix), logger(part="labs")

    def warn(text: str) -> None:
        """Report a problem that only the user can fix."""
        log.warning(text)
        tell(text)

    async with open_board(settings.redis, names=names) as board, open_inbox(settings.redis, names=names) as inbox:
        await _look(board, redacted(settings.redis), tell)
        worker = make(inbox, replace(env, tell=log.warning, warn=warn), socket.gethostname())
        task = asyncio.create_task(worker.run(), name="lab worker")
        try:
            yield LabQueueService(board, worker, task)
        finally:
            task.cancel()
            await asyncio.wait((task,))


async def _look(board: LabRecords, url: str, tell: Callable[[str], None]) -> None:
    try:
        await board.epoch()
    except (Unavailable, Uncertain) as error:
        why = str(error).partition("; ")[0].rpartition(": ")[2].removeprefix("cannot connect (").removesuffix(")")
        tell(f"redis {url}: cannot be reached ({why}); labs are taken from there once it is reachable")
    except HostlerError as error:
        error.add_note(f"redis {url}")
        raise
    else:
        tell(f"labs from redis {url}")


MOST = 5
"""Nodes that the warning names."""
_LEFT = (Lifecycle.DECOMMISSIONED, Lifecycle.SHUTTING_DOWN)


class LabEntry(msgspec.Struct, frozen=True):
    """Whether lab requests are taken from Redis, given the nodes."""

    refusal: str = ""
    """Why requests are not taken, and what to do; empty: they are taken."""
    warning: str = ""
    """What will not work although requests are taken."""


def lab_network(settings: Settings) -> GuestNetwork:
    """Return the guest network for the settings, and whether lab guests are reachable on it."""
    choose = machine_driver(settings.machines).guest_network
    return GuestNetwork() if choose is None else choose(settings)


def _refusal(member: NodeRecord) -> tuple[str, str]:
    """Return why guests of a node are not reachable, and advice. A driver that is not installed here is not judged."""
    try:
        judge = machine_driver(member.driver).guest_network_refusal
    except Invalid:
        return "", ""
    return ("", "") if judge is None else judge(member.facts)


def lab_entry_of(members: Iterable[NodeRecord], *, own: Mapping[str, GuestNetwork] | None = None) -> LabEntry:
    """Decide whether lab requests are taken from Redis: refused only if no serving node has guests at port 22.

    A lab on a node without such guests fails with that reason. Nodes are judged by their records; `own` nodes, which
    may not have registered yet, by their future network.
    """
    own = own or {}
    without = {node: (found.why, found.advice) for node, found in own.items() if found.why}
    serving = set(own)
    for member in members:
        if member.node in own or member.lifecycle in _LEFT:
            continue
        serving.add(member.node)
        why, advice = _refusal(member)
        if why:
            without[member.node] = f"node {member.node}: {why}", f"{advice}, or decommission that node"
    if not without:
        return LabEntry()
    why, advice = without[min(without, key=lambda node: (node not in own, node))]
    if len(without) == len(serving):
        return LabEntry(
            refusal=f"labs are not taken from Redis: {why}; {advice}. HTTP and the CLI still work, with forwarded ports"
        )
    names = ", ".join(sorted(without)[:MOST]) + (", …" if len(without) > MOST else "")
    return LabEntry(warning=f"warning: labs from Redis fail on {names}: {why}; {advice}")


async def lab_entry_in(store: Store, *, own: Mapping[str, GuestNetwork] | None = None) -> LabEntry:
    """Decide by the nodes in the store, as `lab_entry_of` does."""
    nodes = await MEMBER.list(store, strict=False)
    return lab_entry_of((entry.value for entry in nodes.entries), own=own)

"""`crash_points.launcher` with workers of labs, and points around each verb of the door.

What a worker writes is called `txn +labs of a worker`; what a leader writes has no such word. What it writes or
publishes of a lab alone is called by what the lab is then (`txn +labs available`): how often it writes on the way there
is a race. Leases of workers are short, and reclaiming comes often, so that a test that waits for them is short, too.
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crash_points import launcher
from crash_points.points import PointedStore, Points

from hostler.drivers.machines.simulated import FileHost, SimulatedMachines
from hostler.drivers.machines.simulated.descriptor import CAPACITY
from hostler.drivers.machines.simulated.fault import MachineFaults, Odds
from hostler.engine import self_fencing
from hostler.entry import lab_worker, labs
from hostler.keys.families import TRACE
from hostler.keys.lab import LAB, LAB_WORKER
from hostler.model.lab import LabUser
from hostler.ports.machine_driver import NodeSetup
from hostler.ports.store import Delete, Put
from hostler.wiring import open_board, open_inbox

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from hostler.ports.inbox import Inbox, LabRecords, Published, QueueName, Taken
    from hostler.ports.machines import Machines
    from hostler.ports.store import Comparison, Operation, Store, TxnResult
    from hostler.settings import Settings

LATER = (
    "hostler.drivers.store.etcd",
    "hostler.engine.labs.worker",
    "hostler.drivers.inbox.redis",
    "hostler.entry.ssh",
    "redis.asyncio",
)
WORKER_TTL, RECLAIM_EVERY = 1.5, 0.3
_PRESENCE, _LABS, _TRACES = LAB_WORKER.prefix(), LAB.prefix(), TRACE.prefix()


class LabStore(PointedStore):
    """A store that tells apart who writes."""

    async def txn(
        self, when: Sequence[Comparison], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TxnResult:
        if any(comparison.key.startswith(_PRESENCE) for comparison in when) and len(then) == 1 and otherwise:
            request = self._store.txn(when, then, otherwise)
            return await self._points.around("txn +labs of a worker", request)
        labs = [op for op in then if isinstance(op, Put) and op.key.startswith(_LABS)]
        if labs and all(op in labs or op.key.startswith(_TRACES) for op in then if isinstance(op, Put | Delete)):
            record = LabUser.decode(labs[-1].value)
            status = "gone" if record.lab is None else _called(record.lab.phase, available=record.lab.available)
            return await self._points.around(f"txn +labs {status}", self._store.txn(when, then, otherwise))
        return await super().txn(when, then, otherwise)


def _called(status: str, *, available: bool) -> str:
    return "available" if available else str(status)


class Pointed:
    """What the two sides of the door have in common."""

    def __init__(self, inner: Any, points: Points) -> None:
        self._inner, self._points = inner, points

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)  # what only looks

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *problem: object) -> None:
        await self._inner.__aexit__(*problem)


class PointedInbox(Pointed):
    """An inbox, each verb of which that changes something is two points."""

    _inner: Inbox

    async def take(self, worker: str, *, limit: int, within: float) -> Sequence[Taken]:
        """One point, for most of the time nothing is there."""
        taken = await self._inner.take(worker, limit=limit, within=within)
        if taken:
            self._points.passed("after take")
        return taken

    async def take_of(self, worker: str, queue: QueueName, user: str) -> Taken | bool:
        return await self._points.around("take of a user", self._inner.take_of(worker, queue, user))

    async def acknowledge(self, worker: str, done: Sequence[Taken]) -> Sequence[Taken]:
        return await self._points.around("acknowledge", self._inner.acknowledge(worker, done))

    async def bury(self, worker: str, taken: Taken, reason: str, at: float) -> Sequence[Taken]:
        return await self._points.around("bury", self._inner.bury(worker, taken, reason, at))

    async def release(self, worker: str, done: Sequence[Taken]) -> int:
        return await self._points.around("release", self._inner.release(worker, done))


class PointedBoard(Pointed):
    """A board, each publication at which is two points."""

    _inner: LabRecords

    async def publish(self, changes: Sequence[Published]) -> int:
        server = changes[-1].server if changes else None
        status = "gone" if server is None else _called(server.status, available=server.available)
        return await self._points.around(f"publish {status}", self._inner.publish(changes))


def _sleep() -> int:
    os.kill(os.getpid(), signal.SIGSTOP)
    return 0


class LabKind(launcher.Kind):
    """Replicas, agents, and workers of labs."""

    def also(self, order: dict[str, Any]) -> dict[str, Any]:
        """`sleeps`: at its point it is suspended, as by a host that stands still, and does not die.

        Nor is it killed by its own watch over its leadership when it wakes: the fence alone shall hold it.
        """
        if not order.get("sleeps"):
            return {}
        vars(self_fencing).update(_kill=lambda _: None)
        return {"also": _sleep, "dies": False}

    def machines(self, node: NodeSetup, points: Points) -> Machines:
        """With a file `trouble` beside the store, as a provider is on a bad day: every verb may fail, in every way."""
        every = Odds(unavailable=0.2, never=0.1, half=0.1, lost=0.1, slow=0.3, slowest=0.3)
        faults = MachineFaults(every=every if Path("trouble").exists() else Odds())
        machines = SimulatedMachines(FileHost(node.folder), capacity=CAPACITY, clock=node.clock, faults=faults)
        machines.step = points.step
        return machines

    def wrap(self, store: Store, points: Points) -> Any:
        return LabStore(store, points)

    async def run(self, role: str, settled: Settings, points: Points, backend: launcher.Backend) -> int:
        worker: Any = importlib.import_module("hostler.engine.labs.worker")
        worker.LabWorker = partial(worker.LabWorker, ttl=WORKER_TTL)
        worker.RECLAIM_EVERY = RECLAIM_EVERY
        vars(labs).update(
            open_inbox=lambda url, **options: PointedInbox(open_inbox(url, **options), points),
            open_board=lambda url, **options: PointedBoard(open_board(url, **options), points),
        )
        if role != "worker":
            return await super().run(role, settled, points, backend)
        vars(lab_worker).update(opened_backend=backend)
        return await lab_worker.run(settled, lambda text: points.tell("says", text=text))


if __name__ == "__main__":
    for name in LATER:
        importlib.import_module(name)
    launcher.main(socket.socket(fileno=int(sys.argv[1])), LabKind())

"""Where a process can be killed: around each request to its store, and each step inside its machine driver.

A point has a name, such as `before txn +nodes +handles`, and a number: how many of that name its process has passed
since it was armed. What runs by the clock (heartbeats, renewals) therefore does not renumber what a verb does.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

from hostler.keys.families import KEYS
from hostler.ports.store import Delete, DeletePrefix, Get, Put

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from hostler.ports.store import Comparison, Lease, Operation, Store, TxnResult, Watch

T = TypeVar("T")
_HEADS = sorted((key.template.partition("{")[0] for key in KEYS), key=len, reverse=True)
_SIGNS = {Put: "+", Delete: "-", DeletePrefix: "-", Get: "?"}


class Points:
    """Counts the points that this process passes once it is armed, tells each, and dies at the one it was told."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._passed: Counter[str] = Counter()
        self._armed = False
        self._target: tuple[str, int] | None = None
        self._with: list[int] = []
        self._look: Callable[[], int] | None = None
        self._also: Callable[[], int] | None = None
        self._dies = True

    def tell(self, kind: str, **more: object) -> None:
        """To the test; it has it even if this process is killed next."""
        self._control.sendall(json.dumps({"is": kind, **more}).encode() + b"\n")

    def arm(
        self,
        target: tuple[str, int] | None,
        others: list[int],
        *,
        look: Callable[[], int] | None = None,
        also: Callable[[], int] | None = None,
        dies: bool = True,
    ) -> None:
        """From now on count; at `target` kill the processes behind these descriptors, and if it `dies` this one.

        `also` kills others first, and `look` says at each point how many of those there are.
        """
        self._passed.clear()
        self._armed, self._target, self._with = True, target, others
        self._look, self._also, self._dies = look, also, dies

    def disarm(self) -> None:
        self._armed = False

    def passed(self, name: str) -> None:
        if not self._armed:
            return
        self._passed[name] += 1
        number = self._passed[name]
        there = {} if self._look is None else {"there": self._look()}
        self.tell("point", name=name, number=number, at=time.monotonic(), **there)
        if (name, number) == self._target:
            self.tell("crash", name=name, number=number)
            for other in self._with:
                try:
                    signal.pidfd_send_signal(other, signal.SIGKILL)
                except ProcessLookupError:
                    continue  # it is dead already
            if self._also is not None:
                self.tell("killed", count=self._also())
            if self._dies:
                os.kill(os.getpid(), signal.SIGKILL)

    async def step(self, name: str) -> None:
        """For the machines."""
        self.passed(f"machine {name}")

    async def around(self, name: str, request: Awaitable[T]) -> T:
        """A request that is about to be sent, and was done but not answered."""
        counted = self._armed  # what was asked before is not part of what is counted
        self.passed(f"before {name}")
        result = await request
        if counted:
            self.passed(f"after {name}")
        return result


def _family(key: str) -> str:
    head = next((head for head in _HEADS if key.startswith(head)), key)
    return head.strip("/").removeprefix("hostler/v1/").removeprefix("plasmavmc/")


class PointedStore:
    """A store, every request to which is two points."""

    def __init__(self, store: Store, points: Points) -> None:
        self._store, self._points = store, points

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)  # what sends no request of its own

    def watch(self, prefix: str, *, start_revision: int | None = None, previous: bool = True) -> Watch:
        return self._store.watch(prefix, start_revision=start_revision, previous=previous)

    async def get(self, key: str, **options: Any) -> Any:
        return await self._points.around(f"get {_family(key)}", self._store.get(key, **options))

    async def range(self, prefix: str, **options: Any) -> Any:
        return await self._points.around(f"range {_family(prefix)}", self._store.range(prefix, **options))

    async def put(self, key: str, value: bytes, **options: Any) -> int:
        return await self._points.around(f"put {_family(key)}", self._store.put(key, value, **options))

    async def delete(self, key: str) -> bool:
        return await self._points.around(f"delete {_family(key)}", self._store.delete(key))

    async def delete_prefix(self, prefix: str) -> int:
        return await self._points.around(f"delete all {_family(prefix)}", self._store.delete_prefix(prefix))

    async def txn(
        self, when: Sequence[Comparison], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TxnResult:
        signs = (f"{_SIGNS[type(operation)]}{_family(_key(operation))}" for operation in then)
        does = sorted(set(signs) - {"+traces"})  # which go with every decision of a leader
        return await self._points.around(f"txn {' '.join(does)}", self._store.txn(when, then, otherwise))

    async def grant(self, ttl: float) -> PointedLease:
        return PointedLease(await self._points.around("grant", self._store.grant(ttl)), self._points)


def _key(operation: Operation) -> str:
    return operation.prefix if isinstance(operation, DeletePrefix) else operation.key


class PointedLease:
    """A lease of such a store."""

    def __init__(self, lease: Lease, points: Points) -> None:
        self._lease, self._points = lease, points
        self.id, self.ttl = lease.id, lease.ttl

    async def keep_alive(self) -> None:
        await self._points.around("keep_alive", self._lease.keep_alive())

    async def revoke(self) -> None:
        await self._points.around("revoke", self._lease.revoke())

    async def remaining(self) -> float:
        return await self._points.around("remaining", self._lease.remaining())

"""A process that calls slices: its router, its record in the store, and the endpoint that reports its measurements."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Self

from hostler.engine.invocation.registration import Registration
from hostler.engine.invocation.router import Router
from hostler.entry.server.logs import logger
from hostler.keys.cache import Cache
from hostler.keys.families import ROUTER
from hostler.kit.tasks import run_together
from hostler.model.rollout import RouterRecord
from hostler.wiring.slices import open_lines, open_questions, telling

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import TracebackType

    from hostler.engine.invocation.endpoints import Why
    from hostler.engine.runtime.env import Env
    from hostler.ports.store import Store


class Calling:
    """An async context manager; calls can be made while it is open."""

    def __init__(
        self,
        store: Store,
        env: Env,
        *,
        host: str,
        node: str = "",
        local: Collection[str] = (),
        why: Why | None = None,
        routers: Cache[RouterRecord] | None = None,
    ) -> None:
        """Create the router of a process.

        `host` is where the leader asks for measurements. `local` names nodes of this host. `routers` is a cache of all
        routers, if the process already has one.
        """
        self._store, self._clock, self._rng = store, env.clock, env.rng
        self._name, self._token, self._host, self._node = env.new_id(), env.new_secret(), host, node
        self._lines = open_lines(self._token, caller=self._name)
        self.questions = open_questions(self._token)
        self.router = Router(store, self._lines, clock=env.clock, rng=env.rng, local=local, why=why)
        self._follows = routers is None
        self._routers = routers or Cache(store, ROUTER, clock=env.clock, rng=env.rng)
        self._admitted: frozenset[str] = frozenset()
        self._routers.listen(self._changed)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._lines.aclose)
            stack.push_async_callback(self.questions.aclose)
            listener = await stack.enter_async_context(
                telling(
                    self._host, lambda after: self.router.measures.seconds_after(self._name, after), self._is_admitted
                )
            )
            record = RouterRecord(
                router=self._name,
                token_sha256=hashlib.sha256(self._token.encode()).hexdigest(),
                address=listener.address,
                node=self._node,
                started_at=self._clock.wall(),
            )
            registration = Registration(self._store, record, clock=self._clock, rng=self._rng)
            works = {"router": self.router.run(), "registration": registration.run()}
            if self._follows:
                works["routers"] = self._routers.run()
            running = asyncio.create_task(run_together("calls", works), name="calls")
            running.add_done_callback(_tell)
            stack.push_async_callback(_ended, running)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def counters(self) -> dict[str, float]:
        """Return the counters for `/metrics`."""
        return {f"invoke_{name}": number for name, number in self.router.counters.items()}

    # Internal

    def _changed(self, key: str) -> None:  # noqa: ARG002 - there are few, so all are read again
        self._admitted = frozenset()

    def _is_admitted(self, token_sha256: str) -> bool:
        if not self._admitted:
            self._admitted = frozenset(entry.value.token_sha256 for entry in self._routers.entries.values())
        return token_sha256 in self._admitted


def _tell(task: asyncio.Task[None]) -> None:
    """Log an error if the task ended unexpectedly."""
    if not task.cancelled() and task.exception() is not None:
        logger(part="calls").error("calls of slices have ended", exc_info=task.exception())


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait((task,))

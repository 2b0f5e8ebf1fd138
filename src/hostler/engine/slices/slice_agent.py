"""The part of the agent that reconciles the slices of its node."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from hostler.engine.deployments.state_machine import AT_REST, Limits
from hostler.engine.slices.running_cache import RunningCache
from hostler.engine.slices.status_writer import StatusWriter
from hostler.engine.slices.worker import UNLISTED, Workers
from hostler.errors import HostlerError
from hostler.keys.cache import Cache
from hostler.keys.entry import Unreadable
from hostler.keys.families import ROUTER, SLICE
from hostler.kit.tasks import run_together
from hostler.model.deployment import SliceState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostler.engine.agent.config import NodeEnv
    from hostler.engine.agent.session import Session
    from hostler.model.deployment import SliceInstance, SliceRecord
    from hostler.ports.slices import Slices

TOKENS = 0.05
"""Seconds during which token changes are collected before they are passed to the driver."""
_NONE: Mapping[int, SliceInstance] = {}
_log = logging.getLogger("hostler.agent")


class SliceAgent:
    """Runs inside the node's agent, under its session. Create and run it once; slices keep running when it ends."""

    def __init__(
        self,
        env: NodeEnv,
        slices: Slices,
        session: Session,
        *,
        limits: Limits | None = None,
    ) -> None:
        store, plan, clock, rng = env.store, env.config, env.clock, env.rng
        self._driver, self._plan, self._session, self._clock = slices, plan, session, clock
        self.slices = Cache(store, SLICE, clock=clock, rng=rng, node=plan.node)
        self.routers = Cache(store, ROUTER, clock=clock, rng=rng)
        self.ledger = StatusWriter(
            store, session, self.slices, node=plan.node, clock=clock, learned=self._compare, wrote=self._wrote
        )
        self.sight = RunningCache(slices, clock=clock, news=self._news)
        self.workers = Workers(env, slices, session, self.ledger, self.sight, limits=limits or Limits())
        self._queue = self.workers.queue
        self._last: dict[str, Mapping[int, SliceInstance]] = {}
        self._number = 0
        self._prepared = False
        self._token_news = asyncio.Event()
        self._look_now = asyncio.Event()
        self._tokens: frozenset[str] | None = None
        self.slices.listen(self._compare)
        self.routers.listen(lambda _: self._token_news.set())
        slices.listen(self._changed_itself)

    async def run(self) -> None:
        """Work until cancelled."""
        parts = {
            "keys": self.slices.run(),
            "routers": self.routers.run(),
            "queue": self._queue.run(),
            "admit": self._admit(),
            "look": self._look(),
            "sweep": self._sweep(),
        }
        try:
            await run_together(f"slices {self._plan.node}", parts)
        finally:
            await self._queue.aclose()
            await self.ledger.aclose()

    async def prepare(self) -> None:
        """Read the slice keys after each registration of the node, before anything is done under the new session.

        On the first call, every unfinished step was left by an earlier process of the agent.
        """
        await self.slices.refresh()
        if self._prepared:
            return
        self._prepared = True
        for key, entry in self.slices.entries.items():
            artifact = SLICE.parse(key)["artifact"]
            for number, one in entry.value.each().items():
                self.workers.inherited[f"{artifact}#{number}"] = one.state

    def session_changed(self) -> None:
        """React to a session that may or may not act, or was replaced: endpoints are attached to its lease."""
        if not self._prepared or not self._session.may_act():
            return
        if self._session.number != self._number:
            self._number = self._session.number
            self.sight.doubt()
            self._look_now.set()
            for name, known in self.workers.known.items():
                if known.state is SliceState.ACTIVE:
                    self._queue.add(name)
        if self.workers.parked:
            parked, self.workers.parked = self.workers.parked, {}
            for name in parked:
                self._queue.add(name)

    @property
    def instances(self) -> int:
        """The number of instances on this node, according to the store."""
        return sum(len(entry.value.each()) for entry in self.slices.entries.values())

    # Internal

    def _compare(self, key: str) -> None:
        """Queue those instances of a key that have changed."""
        entry = self.ledger.look(key)
        if isinstance(entry, Unreadable):
            return
        old = self._last.get(key, _NONE)
        new = _NONE if entry is None else entry.value.each()
        self._wrote(key, None if entry is None else entry.value)
        changed = [number for number, one in new.items() if not _same(old.get(number), one)]
        changed += [number for number in old if number not in new]
        if changed:
            artifact = SLICE.parse(key)["artifact"]
            for number in changed:
                self._queue.add(f"{artifact}#{number}")

    def _wrote(self, key: str, record: SliceRecord | None) -> None:
        if record is None:
            self._last.pop(key, None)
        else:
            self._last[key] = record.each()

    def _news(self, name: str) -> None:
        self._queue.add(name)

    def _changed_itself(self, name: str) -> None:
        self.sight.doubt()
        self._queue.add(name)

    async def _look(self) -> None:
        """List the running instances in each new session, including those without a key, which must be unloaded."""
        while True:
            await self._look_now.wait()
            self._look_now.clear()
            try:
                await self.sight.fresh()
            except HostlerError as error:
                _log.warning("node %s: the driver cannot list its slices: %s", self._plan.node, error)
                await self._clock.sleep(UNLISTED)
                self._look_now.set()

    async def _sweep(self) -> None:
        """Resync periodically, in case a notification was lost."""
        while True:
            await self._clock.sleep(self._plan.sweep_every)
            self.sight.doubt()
            self._look_now.set()
            for key in tuple(self.slices.entries):
                entry = self.ledger.look(key)
                if entry is None or isinstance(entry, Unreadable):
                    continue
                artifact = SLICE.parse(key)["artifact"]
                for number, one in entry.value.each().items():
                    name = f"{artifact}#{number}"
                    if one.state not in AT_REST and not self._queue.has(name):
                        self._queue.add(name)

    async def _admit(self) -> None:
        """Pass the tokens of all routers to the driver whenever they change; it admits calls by them."""
        await self.routers.ready()
        while True:
            self._token_news.clear()
            tokens = frozenset(entry.value.token_sha256 for entry in self.routers.entries.values())
            if tokens != self._tokens:
                self._tokens = tokens
                self._driver.admit(tokens)
            await self._token_news.wait()
            await self._clock.sleep(TOKENS)


def _same(one: SliceInstance | None, other: SliceInstance) -> bool:
    """Compare two instances without their timestamps."""
    return one is other or (
        one is not None
        and one.state is other.state
        and one.template == other.template
        and one.ready == other.ready
        and one.restarts == other.restarts
    )

"""The endpoints of a slice, and its weights, as the store has them: two watches for each slice that is called.

They are begun with the first call and given up when nobody has called for a while; there are none of what no blueprint
names and has no endpoint. An endpoint that is withdrawn is known as soon as the watch tells; in an outage of the store
what was known stays.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hostler.engine.invocation.load_balancer import Routing
from hostler.errors import Unavailable, Uncertain
from hostler.keys.deployment import DEPLOYMENT, ENDPOINT, SLICE_OWNER, endpoints_of
from hostler.keys.key import Key
from hostler.keys.mirror import Mirror
from hostler.kit.backoff import Backoff
from hostler.kit.task_group import run_together
from hostler.model.deployment import Endpoint, SliceState
from hostler.model.rollout import Deployment

if TYPE_CHECKING:
    import random
    from collections.abc import Collection

    from hostler.kit.clock import Clock
    from hostler.ports.store import Store


class _Endpoints(Key[Endpoint]):
    """Those of one slice, whatever their version."""

    def __init__(self, base: str) -> None:
        super().__init__(ENDPOINT.template, Endpoint)
        self._begins = endpoints_of(base)

    def prefix(self, **leading: str | int) -> str:  # noqa: ARG002 - there is only this part of the family
        return self._begins


class _Deployment(Key[Deployment]):
    """That of one slice, and perhaps of others whose names begin alike."""

    def __init__(self, base: str) -> None:
        super().__init__(DEPLOYMENT.template, Deployment)
        self._begins = DEPLOYMENT.fill(base=base)

    def prefix(self, **leading: str | int) -> str:  # noqa: ARG002
        return self._begins


class Routes:
    """Of one slice; `run` keeps them up until it is cancelled."""

    def __init__(
        self, store: Store, base: str, *, clock: Clock, rng: random.Random, local: Collection[str] = ()
    ) -> None:
        self.base = base
        self.routing = Routing(rng, local)
        self.used_at = clock.now()
        self.waiting = 0
        """Calls that wait for it to be read, or for an endpoint."""
        self.unknown = False
        """There is nothing to follow; who asks again begins anew."""
        self._store, self._clock, self._rng = store, clock, rng
        self._endpoints = Mirror(store, _Endpoints(base), clock=clock, rng=rng)
        self._deployments = Mirror(store, _Deployment(base), clock=clock, rng=rng)
        self._endpoints.listen(self._endpoint_changed)
        self._deployments.listen(self._deployment_changed)
        self._changed: asyncio.Event | None = None
        self._served_at = -1e9

    async def run(self) -> None:
        """Follow the store. It ends by itself only if there is nothing to follow."""
        if not await self._is_known():
            self.unknown = True
            return
        await run_together(
            f"routes of {self.base}", {"endpoints": self._endpoints.run(), "deployment": self._deployments.run()}
        )

    @property
    def read(self) -> bool:
        """Whether the store was read at all."""
        return self._endpoints.revision > 0 and self._deployments.revision > 0

    async def ready(self) -> None:
        """Until it was."""
        await self._endpoints.ready()
        await self._deployments.ready()

    async def changed(self) -> None:
        """Until something changes."""
        if self._changed is None:
            self._changed = asyncio.Event()
        await self._changed.wait()

    def lately(self, within: float) -> bool:
        """Whether there is an endpoint, or was one a moment ago."""
        return len(self.routing) > 0 or self._clock.now() - self._served_at < within

    # Inside

    async def _is_known(self) -> bool:
        """Whether a blueprint names it, or something of it can be called: names can be made up, watches cost."""
        backoff = Backoff(0.05, 1.0, rng=self._rng)
        while True:
            try:
                if await self._store.get(SLICE_OWNER.fill(base=self.base)) is not None:
                    return True
                page = await self._store.range(endpoints_of(self.base), limit=1, keys_only=True)
                return bool(page.items)
            except (Unavailable, Uncertain):
                await self._clock.sleep(backoff.next())

    def _endpoint_changed(self, key: str) -> None:
        parts = ENDPOINT.match(key)
        if parts is None:
            return
        artifact, method, number = parts["artifact"], parts["method"], int(parts["instance"])
        entry = self._endpoints.entries.get(key)
        if entry is not None and entry.value.state is SliceState.ACTIVE and entry.value.address:
            self.routing.put(artifact, method, number, entry.value)
        else:
            self.routing.drop(artifact, method, number)
            self._served_at = self._clock.now()
        self._tell()

    def _deployment_changed(self, key: str) -> None:
        if key == DEPLOYMENT.fill(base=self.base):
            entry = self._deployments.entries.get(key)
            self.routing.weigh({} if entry is None else entry.value.weights)
            self._tell()

    def _tell(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None

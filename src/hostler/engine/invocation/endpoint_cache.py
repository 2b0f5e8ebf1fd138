"""Cache of the endpoints and weights of a slice, kept current by two watches per slice that is called.

The watches start with the first call and stop when the slice has not been called for some minutes. A slice without a
blueprint and without endpoints is not watched. A withdrawn endpoint is dropped as soon as the watch reports it. During
an outage of the store the last known endpoints stay in use.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hostler.engine.invocation.load_balancer import Routing
from hostler.errors import Unavailable, Uncertain
from hostler.keys.families import DEPLOYMENT, ENDPOINT, SLICE_OWNER, endpoints_of
from hostler.keys.key import Key
from hostler.keys.mirror import Mirror
from hostler.kit.rate_limit import Backoff
from hostler.kit.tasks import run_together
from hostler.model.deployment import Endpoint, SliceState
from hostler.model.rollout import Deployment

if TYPE_CHECKING:
    import random
    from collections.abc import Collection

    from hostler.kit.clock import Clock
    from hostler.ports.store import Store


class _Endpoints(Key[Endpoint]):
    """Endpoints of one slice, in all versions."""

    def __init__(self, base: str) -> None:
        super().__init__(ENDPOINT.template, Endpoint)
        self._begins = endpoints_of(base)

    def prefix(self, **leading: str | int) -> str:  # noqa: ARG002 - only this part of the key family is read
        return self._begins


class _Deployment(Key[Deployment]):
    """Deployment of one slice; the prefix may also match slices whose names begin alike."""

    def __init__(self, base: str) -> None:
        super().__init__(DEPLOYMENT.template, Deployment)
        self._begins = DEPLOYMENT.fill(base=base)

    def prefix(self, **leading: str | int) -> str:  # noqa: ARG002
        return self._begins


class Routes:
    """Endpoint cache of one slice; `run` keeps it current until it is cancelled."""

    def __init__(
        self, store: Store, base: str, *, clock: Clock, rng: random.Random, local: Collection[str] = ()
    ) -> None:
        self.base = base
        self.routing = Routing(rng, local)
        self.used_at = clock.now()
        self.waiting = 0
        """Calls that wait for the first read or for an endpoint."""
        self.unknown = False
        """The slice does not exist, so nothing is watched; the next call creates a new cache."""
        self._store, self._clock, self._rng = store, clock, rng
        self._endpoints = Mirror(store, _Endpoints(base), clock=clock, rng=rng)
        self._deployments = Mirror(store, _Deployment(base), clock=clock, rng=rng)
        self._endpoints.listen(self._endpoint_changed)
        self._deployments.listen(self._deployment_changed)
        self._changed: asyncio.Event | None = None
        self._served_at = -1e9

    async def run(self) -> None:
        """Watch the store. Return only if the slice does not exist."""
        if not await self._is_known():
            self.unknown = True
            return
        await run_together(
            f"routes of {self.base}", {"endpoints": self._endpoints.run(), "deployment": self._deployments.run()}
        )

    @property
    def read(self) -> bool:
        """Whether the store has been read."""
        return self._endpoints.revision > 0 and self._deployments.revision > 0

    async def ready(self) -> None:
        """Wait until the store has been read."""
        await self._endpoints.ready()
        await self._deployments.ready()

    async def changed(self) -> None:
        """Wait for the next change."""
        if self._changed is None:
            self._changed = asyncio.Event()
        await self._changed.wait()

    def lately(self, within: float) -> bool:
        """Return whether an endpoint exists, or one existed within the last `within` seconds."""
        return len(self.routing) > 0 or self._clock.now() - self._served_at < within

    # Internal

    async def _is_known(self) -> bool:
        """Return whether the slice has a blueprint or an endpoint. Callers can invent names, and watches cost."""
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

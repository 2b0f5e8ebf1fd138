"""Endpoints of a slice that is called: a cache of them and of their weights, and why a slice has none.

Two watches per slice keep the cache current. They start with the first call and stop when the slice has not been called
for some minutes. A slice without a blueprint and without endpoints is not watched. A withdrawn endpoint is dropped as
soon as the watch reports it. During an outage of the store the last known endpoints stay in use.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from hostler.engine.deployments.instance_index import InstanceState, kind_of
from hostler.engine.deployments.redaction import unspoken
from hostler.engine.invocation.load_balancer import Routing
from hostler.errors import HostlerError, NotFound, Unavailable, Uncertain
from hostler.keys.cache import Cache
from hostler.keys.families import DEPLOYMENT, ENDPOINT, RETRIES, SLICE, SLICE_OWNER, endpoints_of
from hostler.keys.key import Key
from hostler.kit.clock import SystemClock
from hostler.kit.rate_limit import Backoff
from hostler.kit.tasks import run_together
from hostler.model.deployment import Endpoint, SliceState, base_of
from hostler.model.rollout import Deployment
from hostler.ports.store import Get, KeyValue

if TYPE_CHECKING:
    import random
    from collections.abc import Collection, Sequence

    from hostler.engine.view import View
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
        self._endpoints = Cache(store, _Endpoints(base), clock=clock, rng=rng)
        self._deployments = Cache(store, _Deployment(base), clock=clock, rng=rng)
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

    async def wait_for_change(self) -> None:
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


_HERE = "see hostler blueprint status"
_SAID = {InstanceState.DOWN: "restarting", InstanceState.LEFT: "leaving"}
LOOKED_THROUGH, READ = 5_000, 50
"""Without a view: the maximum number of slice keys that are scanned, and of records that are read."""
AGAIN = 2.0
"""Seconds for which the result of a scan is reused."""


class Why:
    """Builds the error for a call without an endpoint, from the store and, if available, the view.

    Without a view the slice keys are scanned, up to a limit, and not for every call.
    """

    def __init__(self, store: Store, view: View | None = None, *, clock: Clock | None = None) -> None:
        self._store, self._view = store, view
        self._clock: Clock = clock or SystemClock()
        self._said: dict[tuple[str, str | None], tuple[float, list[str]]] = {}

    async def nowhere(
        self, base: str, artifact: str | None, withheld: Sequence[str], others: Sequence[str]
    ) -> HostlerError:
        """Return the error for the caller. Output of a failed slice is redacted: only users who may deploy may read it.

        `withheld`: versions that have endpoints but no share of the calls; `others`: versions that can be called.
        """
        named = artifact or base
        if artifact is not None and others:
            return NotFound(f"slice {artifact}: this version takes no calls; these do: {', '.join(others)}")
        if withheld:
            return Unavailable(
                f"slice {named}: {', '.join(withheld)} gets no share of the calls yet, and no other version has a ready"
                f" instance; {_HERE}"
            )
        try:
            owner = await SLICE_OWNER.get(self._store, base=base)
            deployment = await DEPLOYMENT.get(self._store, base=base)
            wanted = deployment.value.artifact if deployment is not None else artifact
            retries = None if wanted is None else await RETRIES.get(self._store, artifact=wanted)
        except HostlerError as error:
            return Unavailable(
                f"slice {named}: no known instance, and the store cannot be read to find out why ({error})"
            )
        named_at_all = owner is not None or deployment is not None
        how = list(await self._instances(base, artifact)) if named_at_all or self._view is not None else []
        if owner is None and not how:
            return NotFound(f"slice {named}: no blueprint names it; apply one with hostler blueprint apply")
        if retries is not None and retries.value.why and (retries.value.failures or retries.value.given_up):
            how.append(f"last failure: {unspoken(retries.value.why)}")
            if retries.value.given_up:
                how.append("given up after repeated failures")
        elif deployment is not None and deployment.value.why and not how:
            how.append(unspoken(deployment.value.why))
        name = "" if owner is None else f" {owner.value.blueprint}"
        said = f" ({'; '.join(how)})" if how else ""
        return Unavailable(f"slice {named}: no instance takes calls now{said.replace('; ', ', ')}; {_HERE}{name}")

    async def _instances(self, base: str, artifact: str | None) -> list[str]:
        if self._view is None:
            return await self._looked_up(base, artifact)
        await self._view.fleet.load()
        counts: Counter[InstanceState] = Counter()
        for party in self._view.fleet.roster(base).parties.values():
            if artifact in (None, party.side.artifact):
                counts.update(dict(zip(InstanceState, party.totals)))
        return _listed(counts)

    async def _looked_up(self, base: str, artifact: str | None) -> list[str]:
        now = self._clock.now()
        known = self._said.get((base, artifact))
        if known is not None and now - known[0] < AGAIN:
            return known[1]
        self._said = {which: said for which, said in self._said.items() if now - said[0] < AGAIN}
        self._said[base, artifact] = now, []  # for calls that arrive during the scan
        try:
            found = await self._counted(base, artifact)
        except HostlerError:
            found = []
        self._said[base, artifact] = now, found
        return found

    async def _counted(self, base: str, artifact: str | None) -> list[str]:
        page = await self._store.range(SLICE.prefix(), limit=LOOKED_THROUGH, keys_only=True)
        keys: list[str] = []
        for item in page.items:
            parts = SLICE.match(item.key)
            if parts is not None and base_of(parts["artifact"]) == base and artifact in (None, parts["artifact"]):
                keys.append(item.key)
        if not keys:
            return []
        counts: Counter[InstanceState] = Counter()
        read = await self._store.txn([], [Get(key) for key in keys[:READ]])
        for response in read.responses:
            if isinstance(response, KeyValue):
                counts.update(InstanceState(kind_of(one)) for one in SLICE.entry(response).value.each().values())
        said = _listed(counts)
        return [f"at least {one}" for one in said] if page.more or len(keys) > READ else said


def _listed(counts: Counter[InstanceState]) -> list[str]:
    return [f"{counts[kind]} {_SAID.get(kind, kind.name)}" for kind in InstanceState if counts[kind]]

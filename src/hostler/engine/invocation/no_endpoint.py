"""Explains why a slice has no endpoint: what the blueprint wants, which instances exist, and what failed last."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hostler.engine.deployments.instance_index import InstanceState, kind_of
from hostler.engine.deployments.redaction import unspoken
from hostler.errors import HostlerError, NotFound, Unavailable
from hostler.keys.families import DEPLOYMENT, RETRIES, SLICE, SLICE_OWNER
from hostler.kit.clock import SystemClock
from hostler.model.deployment import base_of
from hostler.ports.store import Get, KeyValue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostler.engine.view import View
    from hostler.kit.clock import Clock
    from hostler.ports.store import Store

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

"""Handles failed and stuck instances: unload them, count the failures, and clear the count once an instance serves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from hostler.engine.deployments import transactions
from hostler.engine.deployments.decide import Failures, failed, stuck
from hostler.engine.deployments.instance_index import InstanceState, kind_of
from hostler.engine.deployments.state_machine import PATIENCE
from hostler.engine.deployments.transactions import WRITES
from hostler.engine.runtime.guarded_writer import Txn, Why
from hostler.engine.slices.decide import LEFT
from hostler.keys.families import DEPLOYMENT
from hostler.kit.plural import counted
from hostler.model.deployment import SliceState
from hostler.model.rollout import Phase
from hostler.model.trace import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hostler.engine.deployments.decide import SliceSnapshot
    from hostler.engine.deployments.state_machine import Limits
    from hostler.engine.runtime.guarded_writer import GuardedWriter
    from hostler.engine.view import View
    from hostler.keys.entry import Entry
    from hostler.kit.clock import Clock
    from hostler.model.rollout import Deployment, Retries


class Again(Protocol):
    """Schedules another reconciliation of a slice."""

    def __call__(self, name: str, *, after: float = 0.0) -> None:
        """Reconcile no later than `after` seconds from now."""


class Remedy:
    """Handling of failed instances, for one leadership."""

    def __init__(
        self,
        view: View,
        writing: GuardedWriter,
        again: Again,
        *,
        limits: Limits,
        clock: Clock,
        tell: Callable[[str], None],
        mute: Callable[[str], None],
    ) -> None:
        """`mute(node)` stops loading new instances on a node for some minutes."""
        self._view, self._fleet, self._writing, self._again = view, view.fleet, writing, again
        self._limits, self._clock, self._tell, self._mute = limits, clock, tell, mute
        self._check_every = max(0.5, min(10.0, PATIENCE * min(limits.deactivating, limits.activating) / 9))
        self._checked: dict[str, float] = {}  # by slice: when it was last checked for stuck instances
        # By slice, then by node, artifact and number: instances that are not ready, their restarts, and since when.
        self._down: dict[str, dict[tuple[str, str, int], tuple[int, float]]] = {}

    def forget(self, base: str) -> None:
        """Drop what is remembered about a slice that is gone."""
        self._checked.pop(base, None)
        self._down.pop(base, None)

    async def look(
        self,
        base: str,
        look: SliceSnapshot,
        deployment: Entry[Deployment] | None,
        retries: Iterable[Entry[Retries]],
        most: int,
    ) -> bool:
        """Unload and count failed instances, fail stuck ones, and clear failure counts once an instance serves."""
        under_way = deployment is not None and deployment.value.phase is not Phase.DONE
        now = self._clock.wall()
        artifacts = dict.fromkeys(party.side.artifact for party in look.roster.parties.values())
        is_time = (look.roster.is_under_way() or look.roster.is_down()) and self._is_time_to_check(base)
        down = self._down_for_long(base, look) if is_time else {}
        for artifact in artifacts:
            found = failed(look, artifact, most) if self._has_failed(look, artifact) else None
            what, why = "failed", "failed, and will be unloaded"
            if (found is None or not found.changes) and is_time:
                found, told = stuck(look, artifact, self._limits, now, most)
                what, why = "stuck", "its node took too long, and it is removed"
                for node, line in told:
                    self._mute(node)
                    if line:
                        self._tell(line)
                for node, _ in found.where:
                    self._mute(node)
                if not found.changes and artifact in down:
                    found, why = down[artifact], "not ready for too long, and will be removed"
            if found is not None and found.changes:
                reason = Reason(subject=found.where[-1][0], why=found.where[-1][1]) if found.where else None
                reasons = () if reason is None else (reason,)
                told_of = Why(what=what, why=why, reasons=reasons)
                await self._fail(base, artifact, found, told_of, under_way=under_way)
                return True
        return await self._recover(base, look, retries, now)

    def _down_for_long(self, base: str, look: SliceSnapshot) -> dict[str, Failures]:
        """Return active instances that have not been ready for too long without a restart, by artifact.

        Their record does not contain since when, so the time counts from when this leader first observed it.
        """
        now, limit = self._clock.now(), PATIENCE * (self._limits.loading + self._limits.activating)
        before, seen = self._down.pop(base, {}), dict[tuple[str, str, int], tuple[int, float]]()
        found: dict[str, Failures] = {}
        for party in look.roster.parties.values():
            artifact = party.side.artifact
            for node in party.nodes[InstanceState.DOWN]:
                entry = look.entry(node, artifact)
                for number, one in ({} if entry is None else entry.value.each()).items():
                    if kind_of(one) != InstanceState.DOWN:
                        continue
                    restarts, since = before.get((node, artifact, number), (-1, now))
                    since = since if restarts == one.restarts else now
                    seen[node, artifact, number] = (one.restarts, since)
                    of = found.setdefault(artifact, Failures()) if now - since >= limit else None
                    if of is not None and len(of.changes) < transactions.BATCH:
                        why = f"stuck: not ready for {now - since:.0f} s"
                        new = msgspec.structs.replace(one, state=SliceState.FAILED, since=0, ready=True, why=why)
                        of.changes.setdefault((node, artifact), {})[number] = new
        if seen:
            self._down[base] = seen
        return found

    def _has_failed(self, look: SliceSnapshot, artifact: str) -> bool:
        parties = look.roster.parties.values()
        return any(party.totals[InstanceState.FAILED] for party in parties if party.side.artifact == artifact)

    def _is_time_to_check(self, base: str) -> bool:
        now = self._clock.now()
        left = self._checked.get(base, now - self._check_every) + self._check_every - now
        if left <= 0:
            self._checked[base] = now
        self._again(base, after=max(left, 0.0) or self._check_every)
        return left <= 0

    async def _fail(self, base: str, artifact: str, found: Failures, why: Why, *, under_way: bool) -> None:
        """Write failed instances and delete their endpoints, because a stuck node does not withdraw them."""
        at = self._clock.wall()
        written = [
            transactions.slice_change(spot, self._fleet.entry(*spot), changes, at=at, settings={})
            for spot, changes in found.changes.items()
        ]
        numbers = {transactions.slice_key(spot): changes for spot, changes in found.changes.items()}
        batch = next(transactions.batches(written, transactions.BATCH))
        while len(batch) > 1 and len(batch) + len(transactions.withdraw(batch, numbers)) > WRITES:
            batch = batch[: len(batch) // 2]
        withdrawn = transactions.withdraw(batch, numbers)
        while len(batch) + len(withdrawn) > WRITES:  # only one key is left; the last part is written together with it
            piece, withdrawn = Txn([one.when for one in batch], withdrawn[:WRITES]), withdrawn[WRITES:]
            read = tuple(one.entry for one in batch)
            said = Why(what="withdrawn", why=f"{artifact}: {why.why}; deleting its endpoints first", read=read)
            await self._writing.write(base, DEPLOYMENT.fill(base=base), piece, said)
        txn = transactions.together([], batch)
        txn.then = [*withdrawn, *txn.then]
        keys = {one.key for one in batch}
        # An instance that ended with its agent did not fail: restarting nodes one by one must not end a rollout.
        where = [one for one in found.where if transactions.slice_key((one[0], artifact)) in keys and one[1] != LEFT]
        if where:
            old = self._view.retries.get(artifact=artifact)
            failures = transactions.count_failures(artifact, old, where, under_way=under_way, at=at)
            txn.when += failures.when
            txn.then += failures.then
        count = sum(map(len, found.changes.values()))
        told = Why(
            what=why.what,
            why=f"{artifact}: {counted(count, 'instance')}: {why.why}",
            reasons=why.reasons,
            read=tuple(one.entry for one in batch),
        )
        await self._writing.write(base, DEPLOYMENT.fill(base=base), txn, told)

    async def _recover(self, base: str, look: SliceSnapshot, retries: Iterable[Entry[Retries]], now: float) -> bool:
        for entry in retries:
            artifact, record = entry.parts["artifact"], entry.value
            if max(record.at, record.not_before) > now + transactions.LAST_PAUSE:
                why = Why(what="clock", why=f"{artifact}: its recorded failures are in the future", read=(entry,))
                txn = transactions.of_now(artifact, entry, now)
                await self._writing.write(base, DEPLOYMENT.fill(base=base), txn, why)
                return True
            if not record.failures or record.given_up or record.at > now:
                continue
            # An instance that has served long enough, and became active after the last failure.
            ages, least = look.roster.ages, 2 * self._limits.min_ready
            if ages.came(artifact, now - least, now):
                self._again(base, after=1.0)
            if ages.came(artifact, record.at - least, now - least):
                why = Why(what="recovered", why=f"{artifact}: an instance has served for {least:g} s", read=(entry,))
                await self._writing.write(
                    base, DEPLOYMENT.fill(base=base), transactions.reset_failures(artifact, entry), why
                )
                return True
        return False

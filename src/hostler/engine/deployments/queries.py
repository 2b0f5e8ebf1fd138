"""Queries over blueprints, their history and their slices, from the store and the view."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from hostler.engine.deployments import blueprint_file, views
from hostler.engine.deployments.apply_preconditions import Case
from hostler.engine.deployments.instance_index import InstanceState
from hostler.engine.deployments.views import InstanceGroup, SliceFacts
from hostler.errors import Damaged, NotFound
from hostler.keys.entry import Entry
from hostler.keys.families import BLUEPRINT, BLUEPRINT_HISTORY, DEPLOYMENT, SLICE_DECISION, SLICE_OWNER
from hostler.model.deployment import Blueprint, SliceSettings, SliceState
from hostler.model.node import Lifecycle
from hostler.ports.store import KeyValue

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hostler.engine.deployments.instance_index import Party
    from hostler.engine.view import View
    from hostler.keys.key import Key
    from hostler.model.blueprint_api import BlueprintStatus, SliceStatus
    from hostler.model.deployment import SliceSpec
    from hostler.model.rollout import BlueprintRevision, Deployment, SliceDecision, SliceOwner
    from hostler.ports.store import Operation, Store

KEPT = 250
"""Revisions of a blueprint that are kept; each further revision deletes the oldest."""
_MANY = 1_000
_AT_ONCE = 100
_REVISIONS_AT_ONCE = 20
_USUAL = SliceSettings()
_STATES = {InstanceState.DOWN: SliceState.ACTIVE, InstanceState.LEFT: SliceState.LOADED}
_EMPTIED = (Lifecycle.DRAINING, Lifecycle.DECOMMISSIONED)


class Reading:
    """Queries of the blueprint service."""

    def __init__(self, store: Store, view: View) -> None:
        self._store, self._view = store, view

    async def case(self, name: str, wanted: Blueprint | None) -> Case:
        """Read everything that an apply (None: a deletion) is based on."""
        entry, damage = await self.standing(name)
        numbers, _ = await self.numbers(name)
        old = [] if entry is None else [spec.base for spec in entry.value.slices]
        new = [] if wanted is None else [spec.base for spec in wanted.slices]
        needed = [] if wanted is None else list(blueprint_file.outside(wanted))
        bases = list(dict.fromkeys((*new, *old, *needed)))
        owners = await self._owners(bases)
        others: dict[str, Entry[Blueprint]] = {}
        if needed or set(old) - set(new):
            listing = await BLUEPRINT.list(self._store, strict=False)
            others = {one.parts["blueprint"]: one for one in listing.entries if one.parts["blueprint"] != name}
        used = [owner.value.number for owner in owners.values() if owner.value.blueprint == name]
        return Case(
            name=name,
            entry=entry,
            number=max([*numbers, *used, 0 if entry is None else entry.version], default=0),
            oldest=numbers[0] if len(numbers) >= KEPT else 0,
            owners=owners,
            others=others,
            damage=damage,
        )

    async def standing(self, name: str) -> tuple[Entry[Blueprint] | None, str]:
        """Return the blueprint, and why it is unreadable: then it has the last applied value at the stored revision."""
        kv = await self._store.get(BLUEPRINT.fill(blueprint=name))
        if kv is None:
            return None, ""
        try:
            return BLUEPRINT.entry(kv), ""
        except Damaged as error:
            numbers, _ = await self.numbers(name)
            last = await self.revisions(name, numbers[-1:])
            said = last[0].blueprint if last else Blueprint(slices=())
            parts = {"blueprint": name}
            return Entry(said, parts, kv.key, kv.create_revision, kv.mod_revision, kv.version, kv.lease), str(error)

    async def present(self, name: str, *, stale: bool) -> tuple[Entry[Blueprint] | None, dict[str, int], str]:
        """Return the blueprint, its slices with the revision number that last named each, and why it is unreadable.

        The slices include those that are still being removed.
        """
        damage = ""
        entry = self._view.blueprints.get(blueprint=name) if stale else None
        if not stale or BLUEPRINT.fill(blueprint=name) in self._view.blueprints.unreadable:
            entry, damage = await self.standing(name)
        numbers = self.owned_slices([name])[name]
        if entry is not None and not stale:
            fresh = await self._owners([spec.base for spec in entry.value.slices])
            numbers |= {base: one.value.number for base, one in fresh.items() if one.value.blueprint == name}
        return entry, numbers, damage

    async def _owners(self, bases: Sequence[str]) -> dict[str, Entry[SliceOwner]]:
        found: dict[str, Entry[SliceOwner]] = {}
        for at in range(0, len(bases), _AT_ONCE):
            reads: list[Operation] = [SLICE_OWNER.get_op(base=base) for base in bases[at : at + _AT_ONCE]]
            for one in (await self._store.txn([], reads)).responses:
                if isinstance(one, KeyValue):
                    entry = SLICE_OWNER.entry(one)
                    found[entry.parts["base"]] = entry
        return found

    async def deployments(self, bases: Sequence[str]) -> dict[str, Entry[Deployment]]:
        """Return the stored deployments of these slices; those that the leader has not processed are missing."""
        found: dict[str, Entry[Deployment]] = {}
        for at in range(0, len(bases), _AT_ONCE):
            reads: list[Operation] = [DEPLOYMENT.get_op(base=base) for base in bases[at : at + _AT_ONCE]]
            for one in (await self._store.txn([], reads)).responses:
                entry = DEPLOYMENT.readable(one)
                if entry is not None:
                    found[entry.parts["base"]] = entry
        return found

    def owned_slices(self, names: Iterable[str]) -> dict[str, dict[str, int]]:
        """Return the slices of these blueprints from the view, with the revision number that last named each."""
        found: dict[str, dict[str, int]] = {name: {} for name in names}
        for entry in self._view.owners.entries.values():
            mine = found.get(entry.value.blueprint)
            if mine is not None:
                mine[entry.parts["base"]] = entry.value.number
        return found

    async def numbers(self, name: str) -> tuple[list[int], int]:
        """Return the numbers of the revisions that are kept, in order, and the store's revision."""
        prefix = BLUEPRINT_HISTORY.prefix(blueprint=name)
        found: list[int] = []
        after, revision = None, 0
        while True:
            page = await self._store.range(prefix, after=after, limit=_MANY, keys_only=True)
            revision = revision or page.revision
            for kv in page.items:
                parts = BLUEPRINT_HISTORY.match(kv.key)
                if parts is not None:
                    found.append(int(parts["number"]))
            if not page.more:
                return sorted(found), revision
            after = page.items[-1].key

    async def revisions(self, name: str, numbers: Sequence[int]) -> list[BlueprintRevision]:
        """Return these revisions in order; those that were deleted meanwhile or are unreadable are left out."""
        found: list[BlueprintRevision] = []
        for at in range(0, len(numbers), _REVISIONS_AT_ONCE):
            reads: list[Operation] = [
                BLUEPRINT_HISTORY.get_op(blueprint=name, number=number)
                for number in numbers[at : at + _REVISIONS_AT_ONCE]
            ]
            responses = (await self._store.txn([], reads)).responses
            found += [entry.value for one in responses if (entry := BLUEPRINT_HISTORY.readable(one)) is not None]
        return found

    async def revision(self, name: str, number: int, numbers: Sequence[int]) -> BlueprintRevision:
        """Return one revision. NotFound: it does not exist."""
        found = await self.revisions(name, [number]) if number in numbers else []
        if not found:
            kept = f"revisions {numbers[0]} to {numbers[-1]} are kept" if numbers else "nothing was ever applied"
            raise NotFound(f"blueprint {name}: revision {number} not found; {kept}, see its history")
        return found[0]

    async def before(self, name: str, now: Blueprint | None, numbers: Sequence[int]) -> BlueprintRevision:
        """Return the last revision that differs from the current blueprint; of a deleted one, its last revision."""
        back = list(reversed(numbers))
        for at in range(0, len(back), _REVISIONS_AT_ONCE):
            for one in await self.revisions(name, back[at : at + _REVISIONS_AT_ONCE]):
                if now is None or one.blueprint.slices != now.slices:
                    return one
        raise NotFound(f"blueprint {name}: no earlier revision differs from it; there is nothing to roll back to")

    # Status

    async def status(
        self,
        name: str,
        blueprint: Blueprint | None,
        revision: int,
        numbers: Mapping[str, int],
        *,
        seen: Mapping[str, Sequence[InstanceGroup]] | None = None,
        orders: Mapping[str, Deployment] | None = None,
    ) -> BlueprintStatus:
        """Return the status of a blueprint.

        `numbers`: the slices that it owns, with the revision number that last named each. `orders`: their deployments,
        if the view may not have them yet.
        """
        specs = {} if blueprint is None else {spec.base: spec for spec in blueprint.slices}
        bases = [*specs, *sorted(base for base in numbers if base not in specs)]
        await self._view.fleet.load()
        if seen is None:
            seen = self.instance_groups({*bases, *(base for spec in specs.values() for base in spec.needs)})
        known = [self.slice_facts(base, specs.get(base), numbers.get(base, 0), seen) for base in bases]
        if orders:
            known = [msgspec.structs.replace(one, deployment=orders.get(one.base, one.deployment)) for one in known]
        slices: list[SliceStatus] = [views.slice_status(one) for one in known]
        doubtful = [at for at, one in enumerate(known) if _may_wait(one, slices[at])]
        decisions = await self._decisions([known[at].spec.artifact for at in doubtful])  # type: ignore[union-attr]
        for at in doubtful:
            decision = decisions.get(slices[at].artifact)
            if decision is not None:
                slices[at] = views.slice_status(msgspec.structs.replace(known[at], decision=decision))
        number = max(numbers.values(), default=0)
        return views.blueprint_status(name, blueprint, number, revision, slices)

    def slice_facts(
        self, base: str, spec: SliceSpec | None, number: int, seen: Mapping[str, Sequence[InstanceGroup]]
    ) -> SliceFacts:
        deployment = self._view.deployments.get(base=base)
        mine = seen.get(base, ())
        artifacts = {one.artifact: None for one in mine}
        if spec is not None:
            artifacts[spec.artifact] = None
        retries = {artifact: self._view.retries.get(artifact=artifact) for artifact in artifacts}
        rules = () if spec is None else spec.alerts
        alerts = {rule.name: self._view.alerts.get(base=base, alert=rule.name) for rule in rules}
        return SliceFacts(
            base=base,
            spec=spec,
            number=number,
            deployment=None if deployment is None else deployment.value,
            seen=mine,
            retries={artifact: entry.value for artifact, entry in retries.items() if entry is not None},
            unmet=() if spec is None else tuple(need for need in spec.needs if not _serves(seen.get(need, ()))),
            drained=frozenset(node for node in {one.node: None for one in mine} if self._is_emptied(node)),
            alerts={name: entry.value for name, entry in alerts.items() if entry is not None},
            crowded=None if spec is None else self._view.fleet.crowded_nodes(base, spec.node_labels or {}),
        )

    def instance_groups(self, bases: Iterable[str]) -> dict[str, list[InstanceGroup]]:
        """Return the instances of these slices. The slice cache must be loaded."""
        return {base: self._instance_groups(base) for base in bases}

    def _instance_groups(self, base: str) -> list[InstanceGroup]:
        found = []
        for (artifact, template), party in sorted(self._view.fleet.roster(base).parties.items()):
            settings = self._settings(party, artifact, template)
            for kind, nodes in zip(InstanceState, party.nodes):
                state = _STATES.get(kind) or SliceState[kind.name]
                found += [
                    InstanceGroup(
                        node,
                        artifact,
                        settings,
                        state,
                        kind is not InstanceState.DOWN,
                        nodes[node],
                        kind is InstanceState.LEFT,
                    )
                    for node in sorted(nodes)
                ]
        return found

    def _settings(self, party: Party, artifact: str, template: int) -> SliceSettings:
        """Return the settings of its instances, from any record that has one of them."""
        node = next((node for nodes in party.nodes for node in nodes), "")
        entry = self._view.fleet.entry(node, artifact)
        return _USUAL if entry is None else entry.value.settings.get(template, _USUAL)

    def _is_emptied(self, node: str) -> bool:
        member = self._view.members.get(node=node)
        return member is not None and member.value.lifecycle in _EMPTIED

    async def _decisions(self, artifacts: Sequence[str]) -> dict[str, SliceDecision]:
        found: dict[str, SliceDecision] = {}
        for at in range(0, len(artifacts), _AT_ONCE):
            reads: list[Operation] = [SLICE_DECISION.get_op(artifact=one) for one in artifacts[at : at + _AT_ONCE]]
            for one in (await self._store.txn([], reads)).responses:
                entry = SLICE_DECISION.readable(one)
                if entry is not None:
                    found[entry.parts["artifact"]] = entry.value
        return found

    async def page(
        self, key: Key[Any], prefix: str, start: str | None, limit: int
    ) -> tuple[list[Entry[Any]], str | None, int]:
        """Return entries, the key after which there are more (None: there are no more), and the store's revision.

        Unreadable entries are left out; `hostler doctor` reports them.
        """
        page = await self._store.range(prefix, after=start, limit=limit)
        found = [entry for kv in page.items if (entry := key.readable(kv)) is not None]
        return found, page.items[-1].key if page.more else None, page.revision


def _serves(seen: Sequence[InstanceGroup]) -> bool:
    return any(one.serves for one in seen)


def _may_wait(known: SliceFacts, status: SliceStatus) -> bool:
    """Return whether the last placement decision may explain the status."""
    return known.spec is not None and (not status.phase.is_calm or bool(known.drained))

"""Index of the desired slices: which blueprint owns which slice, from the mirrors of blueprints and owners.

A blueprint written by another program has no owner record. Then the first blueprint that names a slice owns it, and
keeps it as long as it names it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from hostler.engine.deployments.transactions import DesiredSlice
from hostler.keys.families import BLUEPRINT, BLUEPRINT_HISTORY, SLICE_OWNER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hostler.engine.view import View
    from hostler.model.deployment import SliceSpec
    from hostler.model.rollout import BlueprintRevision
    from hostler.ports.store import Store

_OWNERS = SLICE_OWNER.prefix()
_REMEMBERED = 1_000


class DesiredBlueprints:
    """Desired slices, for one leadership."""

    def __init__(self, store: Store, view: View) -> None:
        self._store, self._view = store, view
        self._specs: dict[str, dict[str, SliceSpec]] = {}  # by blueprint, by base
        self._named: dict[str, dict[str, None]] = {}  # blueprints by base
        self._left: dict[str, tuple[SliceSpec, ...]] = {}  # last specs of deleted blueprints
        self._revisions: dict[tuple[str, int], BlueprintRevision | None] = {}

    def listen(self, changed: Callable[[str], None]) -> list[Callable[[], None]]:
        """Call `changed(base)` for each slice whose spec has changed. Return functions that end the notifications."""

        def blueprint(key: str) -> None:
            for base in self._read(BLUEPRINT.parse(key)["blueprint"]):
                changed(base)

        for key in tuple(self._view.blueprints.entries):
            self._read(BLUEPRINT.parse(key)["blueprint"])
        return [
            self._view.blueprints.listen(blueprint),
            self._view.owners.listen(lambda key: changed(key[len(_OWNERS) :])),
        ]

    def bases(self) -> Iterator[str]:
        """Yield every slice that a blueprint names or named."""
        yield from (key[len(_OWNERS) :] for key in tuple(self._view.owners.entries))
        yield from tuple(self._named)

    def of(self, base: str) -> tuple[DesiredSlice, SliceSpec | None]:
        """Return the owner of a slice and its spec; None: no blueprint names it."""
        owner = self._view.owners.get(base=base)
        if owner is not None:
            name, number = owner.value.blueprint, owner.value.number
            blueprint = self._view.blueprints.get(blueprint=name)
        else:
            named, follows = self._named.get(base, {}), self._followed(base)
            name = follows if follows in named else min(named, default="")
            blueprint = self._view.blueprints.get(blueprint=name) if name else None
            number = 0 if blueprint is None else blueprint.version
        return DesiredSlice(owner, blueprint, name, number), self._specs.get(name, {}).get(base)

    def is_unreadable(self, base: str) -> bool:
        """Return whether the spec of a slice is unknown because a record is unreadable."""
        if SLICE_OWNER.fill(base=base) in self._view.owners.unreadable:
            return True
        owner = self._view.owners.get(base=base)
        name = self._followed(base) if owner is None else owner.value.blueprint
        return bool(name) and BLUEPRINT.fill(blueprint=name) in self._view.blueprints.unreadable

    def _followed(self, base: str) -> str:
        """Return the blueprint of the slice's deployment; empty: none."""
        deployment = self._view.deployments.get(base=base)
        return "" if deployment is None else deployment.value.blueprint

    async def revision(self, wish: DesiredSlice) -> BlueprintRevision | None:
        """Return the applied revision; None: it was not recorded."""
        if not wish.name:
            return None
        at = (wish.name, wish.number)
        if at not in self._revisions:
            entry = await BLUEPRINT_HISTORY.get(self._store, blueprint=wish.name, number=wish.number)
            if len(self._revisions) >= _REMEMBERED:
                self._revisions.clear()
            self._revisions[at] = None if entry is None else entry.value
        return self._revisions[at]

    async def company(self, base: str, wish: DesiredSlice) -> tuple[SliceSpec, ...]:
        """Return the slices that were deployed together with one that is being removed.

        If the blueprint was never applied through Hostler, only the leader that saw its deletion knows them.
        """
        revision = await self.revision(wish)
        return self._left.get(wish.name or self._followed(base), ()) if revision is None else revision.blueprint.slices

    async def leaving(self, but: str) -> list[SliceSpec]:
        """Return the last specs of slices of applied blueprints that no blueprint names any more, except `but`."""
        found: list[SliceSpec] = []
        for key in tuple(self._view.owners.entries):
            base = key[len(_OWNERS) :]
            wish, spec = self.of(base)
            if base == but or spec is not None:
                continue
            revision = await self.revision(wish)
            said = None if revision is None else revision.blueprint.spec_of(base)
            if said is not None:
                found.append(said)
        return found

    async def is_about_others(self, wish: DesiredSlice, spec: SliceSpec, before: int) -> bool:
        """Return whether the blueprint changed since revision `before`, but not in this slice."""
        now, then = await self.revision(wish), await self.revision(replace(wish, number=before))
        if now is None or then is None or then.blueprint.spec_of(spec.base) != spec:
            return False
        return now.blueprint.slices != then.blueprint.slices

    def _read(self, name: str) -> list[str]:
        """Read a blueprint again; return the slices that it names or named."""
        entry = self._view.blueprints.get(blueprint=name)
        before = self._specs.pop(name, {})
        now = {} if entry is None else {spec.base: spec for spec in entry.value.slices}
        if now:
            self._specs[name] = now
            self._left.pop(name, None)
        elif before:
            if len(self._left) >= _REMEMBERED:
                self._left.clear()
            self._left[name] = tuple(before.values())
        for base in before:
            if base not in now:
                self._named[base].pop(name, None)
                if not self._named[base]:
                    del self._named[base]
        for base in now:
            self._named.setdefault(base, {})[name] = None
        return list(dict.fromkeys((*before, *now)))


def transitive_needs(base: str, specs: Mapping[str, SliceSpec]) -> set[str]:
    """Return the slices that `base` needs, directly or through other slices of `specs`."""
    found: set[str] = set()
    waiting = [base]
    while waiting:
        spec = specs.get(waiting.pop())
        for need in () if spec is None else spec.needs:
            if need not in found:
                found.add(need)
                waiting.append(need)
    return found

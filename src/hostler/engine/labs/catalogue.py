"""Which labs there are, as the leader knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.engine.leadership import check_guard
from hostler.errors import Conflict
from hostler.keys.lab import LAB_CATALOGUE
from hostler.model.lab import LabCatalogue
from hostler.ports.store import ModRevision

if TYPE_CHECKING:
    from hostler.engine.decision_recorder import Tracer
    from hostler.engine.view import View
    from hostler.ports.store import Comparison, Operation, Store

_ANY = LabCatalogue()
CATALOGUE = LAB_CATALOGUE.fill(name="default")


class Offer:
    """As the store has it. Where somebody has deleted that, or nobody can read it: as it was last, for no machine shall
    go by a mistake in it. `own`: from the file of this replica."""

    def __init__(self, view: View, own: LabCatalogue | None = None) -> None:
        self._mirror, self._own, self._last = view.catalogues, own, own

    def known(self) -> LabCatalogue | None:
        """None: nobody can read it, and it is not known what it was."""
        entry = self._mirror.entries.get(CATALOGUE)
        if entry is not None:
            self._last = entry.value
        elif self._last is None and CATALOGUE not in self._mirror.unreadable:
            return _ANY
        return self._last

    async def write(self, store: Store, guard: Comparison, tracer: Tracer | None = None) -> None:
        """Ours, if we have a file; else there shall be one. LeadershipLost: somebody else leads."""
        there = await store.get(CATALOGUE)
        put = LAB_CATALOGUE.put(self._own or LabCatalogue(), name="default")
        if there is not None and (self._own is None or there.value == put.value):
            return
        was = ModRevision(CATALOGUE) == (0 if there is None else there.mod_revision)
        then: list[Operation] = [put]
        if tracer is not None:
            why = "these labs are offered, as the leader was told at its start"
            tracer.add(then, what="catalogue", subject=CATALOGUE, why=why)
        if (await store.txn([guard, was], then)).succeeded:
            return
        check_guard(guard, await store.get(guard.key))
        raise Conflict(f"{CATALOGUE}: somebody else has just written it")

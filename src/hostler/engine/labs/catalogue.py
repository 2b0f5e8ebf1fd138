"""The catalogue of available labs, as the leader knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.engine.runtime.guarded_writer import Txn, Why
from hostler.keys.lab import LAB_CATALOGUE
from hostler.model.lab import LabCatalogue
from hostler.ports.store import ModRevision

if TYPE_CHECKING:
    from hostler.engine.runtime.guarded_writer import GuardedWriter
    from hostler.engine.view import View
    from hostler.ports.store import Store

_ANY = LabCatalogue()
CATALOGUE = LAB_CATALOGUE.fill(name="default")


class Catalogue:
    """The catalogue in the store, or the last known one if it was deleted or cannot be decoded.

    Using the last known one prevents the removal of VMs by mistake. `own`: from the file of this replica.
    """

    def __init__(self, view: View, own: LabCatalogue | None = None) -> None:
        self._mirror, self._own, self._last = view.catalogues, own, own

    def known(self) -> LabCatalogue | None:
        """Return the catalogue; None: it cannot be decoded, and no earlier one is known."""
        entry = self._mirror.entries.get(CATALOGUE)
        if entry is not None:
            self._last = entry.value
        elif self._last is None and CATALOGUE not in self._mirror.unreadable:
            return _ANY
        return self._last

    async def write(self, store: Store, writing: GuardedWriter) -> None:
        """Write the catalogue of this replica's file, or a default if none exists. Raise LeadershipLost if replaced."""
        there = await store.get(CATALOGUE)
        put = LAB_CATALOGUE.put(self._own or LabCatalogue(), name="default")
        if there is not None and (self._own is None or there.value == put.value):
            return
        was = ModRevision(CATALOGUE) == (0 if there is None else there.mod_revision)
        why = Why(what="catalogue", why="the leader loaded this catalogue at its start")
        await writing.write("", CATALOGUE, Txn([was], [put]), why)

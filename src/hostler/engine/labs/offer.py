"""Which labs there are, as the leader knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.keys.lab import LAB_CATALOGUE
from hostler.model.lab import LabCatalogue

if TYPE_CHECKING:
    from hostler.engine.view import View

CATALOGUE = LAB_CATALOGUE.fill(name="default")


class Offer:
    """As the store has it. Where somebody has deleted that, or nobody can read it: as it was last, for no machine shall
    go by a mistake in it. `own`: from the file of this replica."""

    def __init__(self, view: View, own: LabCatalogue | None = None) -> None:
        self._mirror, self._last = view.catalogues, own

    def known(self) -> LabCatalogue | None:
        """None: nobody can read it, and it is not known what it was."""
        entry = self._mirror.entries.get(CATALOGUE)
        if entry is not None:
            self._last = entry.value
        elif self._last is None and CATALOGUE not in self._mirror.unreadable:
            return LabCatalogue()
        return self._last

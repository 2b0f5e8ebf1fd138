"""Several families that stand under one prefix, as one: read and watched once, not once for each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hostler.errors import Invalid
from hostler.keys.key import Key
from hostler.model.record import Record

if TYPE_CHECKING:
    from hostler.keys.entry import Entry, Unreadable
    from hostler.ports.store import KeyValue


class Union(Key[Any]):
    """For mirrors, scans and watches. What it finds has the record of the family it is of; that family writes it."""

    def __init__(self, prefix: str, *keys: Key[Any]) -> None:
        super().__init__(prefix + "{rest}", Record)
        self._prefix, self.keys = prefix, keys
        """The first that fits counts: the most frequent one comes first."""

    def fill(self, **parts: str | int) -> str:
        """Invalid: one of the families has to be asked."""
        raise Invalid(f"{self._prefix}: holds several families of keys; fill the one that is meant: {parts}")

    def match(self, key: str) -> dict[str, str] | None:
        """The parts of `key`; None if it is of none of the families."""
        family = self.of(key)
        return None if family is None else family.match(key)

    def prefix(self, **leading: str | int) -> str:
        """What every key begins with; parts cannot be given."""
        if leading:
            self.fill(**leading)
        return self._prefix

    def of(self, key: str) -> Key[Any] | None:
        """The family that a key is of."""
        return next((family for family in self.keys if family.match(key) is not None), None)

    def _found(self, kv: KeyValue) -> Entry[Any] | Unreadable | None:
        for family in self.keys:
            found = family._found(kv)
            if found is not None:
                return found
        return None

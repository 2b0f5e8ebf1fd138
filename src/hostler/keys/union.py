"""Several families under one prefix as one family: read and watched once, not once per family."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hostler.errors import Invalid
from hostler.keys.key import Key
from hostler.model.record import Record

if TYPE_CHECKING:
    from hostler.keys.entry import Entry, Unreadable
    from hostler.ports.store import KeyValue


class Union(Key[Any]):
    """A family for caches, scans and watches.

    Its entries have the record type of their own family, which writes them.
    """

    def __init__(self, prefix: str, *keys: Key[Any]) -> None:
        super().__init__(prefix + "{rest}", Record)
        self._prefix, self.keys = prefix, keys
        """The first match counts; the most frequent family comes first."""

    def fill(self, **parts: str | int) -> str:
        """Raise Invalid: use one of the families."""
        raise Invalid(f"{self._prefix}: holds several families of keys; fill a key of one family; given: {parts}")

    def match(self, key: str) -> dict[str, str] | None:
        """Return the parts of `key`; None if it belongs to none of the families."""
        family = self.of(key)
        return None if family is None else family.match(key)

    def prefix(self, **leading: str | int) -> str:
        """Return the common prefix; it takes no parts."""
        if leading:
            self.fill(**leading)
        return self._prefix

    def of(self, key: str) -> Key[Any] | None:
        """Return the family that a key belongs to."""
        return next((family for family in self.keys if family.match(key) is not None), None)

    def _found(self, kv: KeyValue) -> Entry[Any] | Unreadable | None:
        for family in self.keys:
            found = family._found(kv)
            if found is not None:
                return found
        return None

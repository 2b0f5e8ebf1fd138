"""The bare side of a write: the transaction that the control plane sent, sent again without the control plane.

Conditions that require an absent key, and all writes, use new keys each time. Other conditions are unchanged, so they
hold as long as their keys do not change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from hostler.errors import Conflict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostler.ports.store import Comparison, Operation, Store, TxnResult

PREFIX = "/hostler-bench/"


class Shape(msgspec.Struct, frozen=True):
    """A transaction as it was sent."""

    when: tuple[Comparison, ...]
    then: tuple[Operation, ...]
    otherwise: tuple[Operation, ...]

    async def send(self, store: Store, turn: str) -> None:
        """Send it again with keys of this turn. Conflict: a condition failed, so it was not the same work."""
        lead = PREFIX + turn
        replace = msgspec.structs.replace
        when = [c if c.operand or c.operator != "==" else replace(c, key=lead + c.key) for c in self.when]
        then = [replace(operation, key=lead + operation.key) for operation in self.then]  # type: ignore[union-attr]
        if not (await store.txn(when, then, self.otherwise)).succeeded:
            raise Conflict("bench: a key in the conditions of the recorded transaction has changed; run it again")


class Recorder:
    """A store that keeps the last transaction that wrote a key with `prefix`."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._store, self._prefix = store, prefix
        self.shape: Shape | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def txn(
        self, when: Sequence[Comparison], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TxnResult:
        """Pass the transaction to the store, and record it."""
        result = await self._store.txn(when, then, otherwise)
        if result.succeeded and any(getattr(operation, "key", "").startswith(self._prefix) for operation in then):
            self.shape = Shape(tuple(when), tuple(then), tuple(otherwise))
        return result

    def recorded(self) -> Shape:
        """Return the recorded transaction."""
        if self.shape is None:
            raise Conflict(f"bench: nothing was written under {self._prefix}")
        return self.shape

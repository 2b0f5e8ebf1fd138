"""Records of the calls of clients to a store and their answers, on one timeline for all processes of a machine.

`Recorder` wraps a client's store and records every call twice: before it is made and when it has ended. A client that
is killed in between leaves a call without an end. Such a call may take effect at any time, or never.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec

from hostler.errors import HostlerError, Unavailable, Uncertain
from hostler.kit.lazy_import import old_method
from hostler.ports.store import Comparison, Delete, Get, KeyValue, Put

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from hostler.ports.store import Store

Verb = Literal["get", "put", "delete", "cas"]
Outcome = Literal["done", "unknown", "failed"]
"""`done`: it was answered. `unknown`: it may have taken effect, may still do so, or never. `failed`: it never does."""


class Call(msgspec.Struct, frozen=True, omit_defaults=True):
    """One call on one key. Instants are integers on a clock that all clients share; only their order counts.

    `cas` puts `value` (deletes the key if that is None) if `condition` holds, and reads the key if it does not. `found`
    is what a get, or a cas that did not succeed, read; `existed` is the answer of a delete. `revision` is the revision
    of a write that took effect, or the revision at which a cas found that its condition did not hold.
    """

    client: str
    verb: Verb
    key: str
    called_at: int
    ended_at: int | None = None
    outcome: Outcome = "unknown"
    value: bytes | None = None
    condition: Comparison | None = None
    found: KeyValue | None = None
    existed: bool | None = None
    succeeded: bool | None = None
    revision: int | None = None
    error: str = ""

    @property
    def writes(self) -> bool:
        """Whether it changes the key, or may have."""
        if self.outcome == "failed" or self.verb == "get":
            return False
        if self.outcome == "unknown":
            return True
        return self.verb == "put" or bool(self.existed) or bool(self.succeeded)

    @property
    def reads(self) -> bool:
        """Whether its answer tells the state of the key."""
        return self.outcome == "done" and (self.verb == "get" or (self.verb == "cas" and not self.succeeded))


class _Ended(msgspec.Struct, omit_defaults=True):
    ended_at: int
    outcome: Outcome
    found: KeyValue | None = None
    existed: bool | None = None
    succeeded: bool | None = None
    revision: int | None = None
    error: str = ""


class _Line(msgspec.Struct, omit_defaults=True):
    number: int
    call: Call | None = None
    end: _Ended | None = None


class Journal:
    """The calls of one process, as JSON lines in a file. They survive the death of the process."""

    def __init__(self, path: str | Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._next = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def record_call(self, call: Call) -> int:
        """Record a call that is about to be made; return its number."""
        self._next += 1
        self._write(_Line(self._next, call=call))
        return self._next

    def record_end(self, number: int, end: _Ended) -> None:
        """Record how a call ended."""
        self._write(_Line(number, end=end))

    if not TYPE_CHECKING:  # the checker accepts the new names only
        called = old_method("called", "record_call")
        ended = old_method("ended", "record_end")

    def _write(self, line: _Line) -> None:
        os.write(self._file, msgspec.json.encode(line) + b"\n")


class Recorder:
    """A client of `store` that records its calls. All exceptions are re-raised.

    A `HostlerError` ends the recorded call; another exception leaves it without an end. `Unavailable` and every refusal
    are recorded as `failed`, and the checker relies on that.
    """

    def __init__(
        self, store: Store, journal: Journal, client: str, *, now: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._store, self._journal, self._client, self._now = store, journal, client, now

    async def get(self, key: str) -> KeyValue | None:
        async def act() -> tuple[KeyValue | None, dict[str, Any]]:
            kv = await self._store.get(key)
            return kv, {"found": kv}

        found: KeyValue | None = await self._note("get", key, act)
        return found

    async def put(self, key: str, value: bytes) -> int:
        async def act() -> tuple[int, dict[str, Any]]:
            revision = await self._store.put(key, value)
            return revision, {"revision": revision}

        revision: int = await self._note("put", key, act, value=value)
        return revision

    async def delete(self, key: str) -> bool:
        async def act() -> tuple[bool, dict[str, Any]]:
            existed = await self._store.delete(key)
            return existed, {"existed": existed}

        existed: bool = await self._note("delete", key, act)
        return existed

    async def cas(self, condition: Comparison, value: bytes | None) -> bool:
        """Put `value` at the condition's key, or delete it if that is None, if the condition holds."""
        key = condition.key
        change = Delete(key) if value is None else Put(key, value)

        async def act() -> tuple[bool, dict[str, Any]]:
            result = await self._store.txn([condition], [change], [Get(key)])
            found = None if result.succeeded else result.responses[0]
            return result.succeeded, {"succeeded": result.succeeded, "revision": result.revision, "found": found}

        succeeded: bool = await self._note("cas", key, act, value=value, condition=condition)
        return succeeded

    async def _note(
        self, verb: Verb, key: str, act: Callable[[], Awaitable[tuple[Any, dict[str, Any]]]], **asked: Any
    ) -> Any:
        number = self._journal.record_call(Call(self._client, verb, key, self._now(), **asked))
        try:
            answer, told = await act()
        except HostlerError as error:
            outcome: Outcome = "unknown" if isinstance(error, Uncertain) else "failed"
            self._journal.record_end(number, _Ended(self._now(), outcome, error=f"{type(error).__name__}: {error}"))
            raise
        self._journal.record_end(number, _Ended(self._now(), "done", **told))
        return answer


def read_history(paths: Iterable[str | Path]) -> list[Call]:
    """Read the calls of several journals. An incomplete last line is ignored."""
    history: list[Call] = []
    for path in paths:
        calls: dict[int, Call] = {}
        *lines, _unfinished = Path(path).read_bytes().split(b"\n")
        for text in lines:
            line = msgspec.json.decode(text, type=_Line)
            if line.call is not None:
                calls[line.number] = line.call
            elif line.end is not None:
                calls[line.number] = msgspec.structs.replace(calls[line.number], **msgspec.structs.asdict(line.end))
        history.extend(calls.values())
    return history


def unexpected_errors(history: Sequence[Call]) -> list[str]:
    """Return the errors of calls that are neither `Unavailable` nor `Uncertain`."""
    expected = (Unavailable.__name__, Uncertain.__name__)
    return [call.error for call in history if call.error and not call.error.startswith(expected)]


def picture(calls: Sequence[Call], culprit: Call | None = None) -> str:
    """Draw the calls as lines over time. Only the order of starts and ends is meaningful, not the distances."""
    instants = sorted({c.called_at for c in calls} | {c.ended_at for c in calls if _ends(c) and c.ended_at is not None})
    column = {instant: 2 * place for place, instant in enumerate(instants)}
    width = 2 * len(instants) + 1
    texts = [f"{c.client} {describe(c)}" for c in calls]
    margin = max((len(text) for text in texts), default=0)
    lines = []
    for call, text in zip(calls, texts, strict=True):
        start = column[call.called_at]
        if _ends(call) and call.ended_at is not None:
            bar = " " * start + "├" + "─" * max(0, column[call.ended_at] - start - 1) + "┤"
        else:
            bar = " " * start + "├" + "╌" * (width - start - 1) + "?"
        lines.append(f"  {text:{margin}}  {bar:{width}}{'  ← impossible' if call is culprit else ''}".rstrip())
    return "\n".join(lines)


def _ends(call: Call) -> bool:
    return call.outcome != "unknown" and call.ended_at is not None


def describe(call: Call) -> str:
    """Describe a call and its answer in a few words."""
    asked: str = call.verb
    if call.condition is not None:
        condition = call.condition
        asked += f" if {condition.target} {condition.operator} {condition.operand!r}:"
    if call.verb in ("put", "cas"):
        asked += " delete" if call.value is None else f" {call.value!r}"
    if call.outcome != "done":
        return f"{asked} → {call.outcome}"
    if call.reads:
        kv = call.found
        told = "absent" if kv is None else f"{kv.value!r} version {kv.version} revision {kv.mod_revision}"
        return f"{asked} → {'no: ' if call.verb == 'cas' else ''}{told}"
    if call.verb == "delete":
        return f"{asked} → {'deleted' if call.existed else 'was absent'}"
    return f"{asked} → revision {call.revision}"

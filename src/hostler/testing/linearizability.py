"""Could one store that executes one call at a time have given these answers?

`check_linearizable` searches for an order of the calls that fits every answer and never puts a call before one that had
ended when it was made. It is the search of Wing and Gong in Lowe's form: calls are ordered just in time, when one of
them must have happened because it has ended, and no pair of (calls ordered, state of the key) is visited twice. Keys
are independent of each other, so each is searched alone.

These optimizations make it fast on real histories, without changing the verdict:

* A read that fits the state is ordered at once: it changes nothing, so waiting cannot help.
* Writes with a known revision are ordered by it. The revision of a write without an answer is known once its value was
  read anywhere, if only one call wrote that value. What was read at a revision holds for the write of that revision.
* Calls without an answer that request the same, with values that were never read, differ only in when they were made:
  the earliest represents all. Of two ways to one state, the one that used fewer such calls can do all that the other
  can.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from hostler.testing.history import Call, picture

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hostler.ports.store import Comparison, KeyValue

WINDOW = 12
"""Most calls in an explanation."""
SHRINK_RUNS = 80
MAX_STEPS = 2_000_000


class Undecided(RuntimeError):
    """Too many calls without an answer: neither an order nor its impossibility was found in `MAX_STEPS` steps."""


class Violation(msgspec.Struct, frozen=True):
    """Why no single store can have given these answers. `calls` is a part of the history that shows it.

    `str(violation)` is the explanation with a picture: time runs to the right, one line for each call.
    """

    key: str
    reason: str
    calls: tuple[Call, ...]
    culprit: Call

    def __str__(self) -> str:
        return f"key {self.key!r}: {self.reason}\n{picture(self.calls, self.culprit)}"


def check_linearizable(history: Iterable[Call]) -> Violation | None:
    """Return None if the history is linearizable and its revisions agree with real time; otherwise a violation.

    Every key is assumed to be absent at the start. Calls that failed must have had no effect. Calls with an unknown
    outcome may take effect at any time after they were made, or never. Over all keys, no two writes may share a
    revision, and a call that was made after another had ended must have the higher one. Undecided: the search takes too
    long, which needs dozens of concurrent unanswered calls on one key.
    """
    by_key: defaultdict[str, list[Call]] = defaultdict(list)
    for call in history:
        by_key[call.key].append(call)
    everything = [call for calls in by_key.values() for call in calls]
    if violation := _check_found(everything) or _check_revisions(everything):
        return violation
    for key, calls in by_key.items():
        failure = _Search(calls).run()
        if failure is not None:
            return _explain(key, calls, failure)
    return None


# State of one key


class _State(NamedTuple):
    """The key between two calls. If `exact` is False, `mod` is only a lower bound of its revision.

    An absent key has no value and version 0; `mod` is then a lower bound of the revision of its deletion. If `created`
    is not known, it is one of `earliest` to `latest`; 0: whatever the revisions read later allow.
    """

    value: bytes | None = None
    version: int = 0
    created: int | None = 0
    mod: int = 0
    exact: bool = False
    earliest: int = 0
    latest: int = 0


_ABSENT = _State()


def _step(call: Call, state: _State, revision: int | None) -> _State | None:
    """Return the state after `call`, with its `revision` if known; None: its answer does not fit `state`."""
    if call.verb == "get":
        return _read(call.found, state)
    if call.verb == "put":
        return _state_after_write(call.value, state, revision)
    if call.verb == "delete":
        if call.outcome == "done" and not call.existed:
            return state if state.version == 0 else None
        return _state_after_write(None, state, revision) if state.version else None
    assert call.condition is not None
    holds = _holds(call.condition, state)
    if call.reads:
        after = _read(call.found, state)  # it may tell the revision that the condition compared
        return None if after is None or _holds(call.condition, after) else after
    if holds is False:
        return None
    if holds is None and call.condition.target == "mod" and call.condition.operator == "==":
        state = state._replace(mod=int(call.condition.operand), exact=True)
    if call.value is None and not state.version:
        return state
    return _state_after_write(call.value, state, revision)


def _read(found: KeyValue | None, state: _State) -> _State | None:
    if found is None:
        return state if state.version == 0 else None
    if found.value != state.value or found.version != state.version:
        return None
    if state.exact and state.created is not None:
        return state if found.mod_revision == state.mod and found.create_revision == state.created else None
    if found.mod_revision < state.mod or (state.exact and found.mod_revision != state.mod):
        return None
    if state.created not in (None, found.create_revision):
        return None
    if state.created is None and not state.earliest <= found.create_revision <= (state.latest or found.mod_revision):
        return None
    return _State(state.value, state.version, found.create_revision, found.mod_revision, exact=True)


def _state_after_write(value: bytes | None, state: _State, revision: int | None) -> _State | None:
    if revision is not None and revision <= state.mod:
        return None
    mod = state.mod + 1 if revision is None else revision
    if value is None:
        return _State(mod=mod)
    created = state.created if state.version else revision
    if created is not None:
        return _State(value, state.version + 1, created, mod, exact=revision is not None)
    earliest, latest = (state.earliest, state.latest) if state.version else (mod, 0)
    if revision is not None:  # at least as many changes as its version happened since
        latest = min(latest or revision, revision - state.version)
    return _State(value, state.version + 1, None, mod, revision is not None, earliest, latest)


def _holds(condition: Comparison, state: _State) -> bool | None:
    """Return whether the condition is true of the state; None: unknown."""
    target, operator, operand = condition.target, condition.operator, condition.operand
    if target == "value" and state.value is None:
        return False
    actual: int | bytes | None
    if target == "value":
        actual = state.value
    elif target == "version" or not state.version:
        actual = state.version
    elif target == "create":
        actual = state.created
    elif state.exact:
        actual = state.mod
    else:
        return False if operator == "==" and int(operand) < state.mod else None
    if actual is None:
        return None
    if operator == "==":
        return actual == operand
    if operator == "!=":
        return actual != operand
    return actual < operand if operator == "<" else actual > operand  # type: ignore[operator]


# Search


class _Op:
    """A call in the search. `bit` marks it in sets; the bit is reused after the call has ended."""

    __slots__ = ("after_bit", "bit", "call", "left", "predecessor", "revision", "unchanging")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.bit = 0
        # A cas that deletes may have found nothing to delete: then its revision is not that of a write.
        is_write = call.outcome == "done" and call.writes and call.value is not None
        self.revision = call.revision if is_write else None
        self.predecessor = 0  # the next lower revision of a write on this key
        self.left: KeyValue | None = None  # what was read at its revision
        self.after_bit = 0  # of the call that must be ordered first because it represents this one too
        self.unchanging = call.reads or (call.verb == "delete" and call.outcome == "done" and not call.existed)


class _Failure(NamedTuple):
    culprit: Call
    state: _State


class _Search:
    """Search over the calls on one key.

    Without `look_ahead` it uses no answer before the instant at which it was given.
    """

    def __init__(self, calls: Sequence[Call], *, look_ahead: bool = True) -> None:
        self._ops = [
            _Op(call)
            for call in sorted(calls, key=lambda c: c.called_at)
            if call.outcome == "done" or (call.outcome == "unknown" and call.verb != "get")
        ]
        if look_ahead:
            self._infer_revisions()
        self._chain_the_unseen()
        self._lay_out()

    def run(self) -> _Failure | None:
        """Return None if there is an order; otherwise the call that no order reaches, or the one furthest in time."""
        stack: list[tuple[int, int, _State, bool]] = [(0, 0, _ABSENT, False)]
        seen: defaultdict[tuple[int, int, _State], list[int]] = defaultdict(list)
        is_unknown = (1 << len(self._unknown)) - 1
        furthest, state_there = -1, _ABSENT
        steps = 0
        while stack:
            steps += 1
            if steps > MAX_STEPS:
                raise Undecided(
                    f"key {self._ops[0].call.key!r}: no verdict after {MAX_STEPS} steps; record fewer calls"
                )
            index, ordered, state, resort = stack.pop()
            if resort:
                unanswered = self._unknown[: self._unknown_called[index]]
                stack.extend(self._choices(unanswered, index, ordered, state))
                continue
            while index < len(self._ends) and self._ends[index].bit & ordered:
                ordered ^= self._ends[index].bit
                index += 1
            if index == len(self._ends):
                return None
            if index > furthest:
                furthest, state_there = index, state
            absorbed = self._absorb(index, ordered, state)
            if absorbed & self._ends[index].bit:
                stack.append((index, absorbed, state, False))
                continue
            used = absorbed & is_unknown
            before = seen[index, absorbed ^ used, state]
            if not any(fewer & used == fewer for fewer in before):
                before.append(used)
                stack.append((index, absorbed, state, True))  # calls without an answer: the last resort
                stack.extend(self._choices(self._pending[index], index, absorbed, state))
        return _Failure(self._ends[furthest].call, state_there)

    def _absorb(self, index: int, ordered: int, state: _State) -> int:
        for op in self._pending[index]:
            if op.unchanging and not op.bit & ordered and _step(op.call, state, None) == state:
                ordered |= op.bit
        return ordered

    def _choices(
        self, ops: Sequence[_Op], index: int, ordered: int, state: _State
    ) -> list[tuple[int, int, _State, bool]]:
        """Return the calls that may come next."""
        choices: list[tuple[int, int, _State, bool]] = []
        for op in ops:
            if op.bit & ordered or op.after_bit & ~ordered or op.predecessor > state.mod:
                continue
            after = _step(op.call, state, op.revision)
            if after is not None and op.left is not None:
                after = _read(op.left, after)
            if after is not None:
                choices.append((index, ordered | op.bit, after, False))
        return choices

    def _infer_revisions(self) -> None:
        reads = [op.call.found for op in self._ops if op.call.found is not None]
        writers = Counter(op.call.value for op in self._ops if op.call.writes and op.call.value is not None)
        revisions: defaultdict[bytes, set[int]] = defaultdict(set)
        for kv in reads:
            revisions[kv.value].add(kv.mod_revision)
        read_at = {kv.mod_revision: kv for kv in reads}
        for op in self._ops:
            value = op.call.value
            if op.call.outcome == "unknown" and value is not None and writers[value] == 1:
                known = revisions.get(value, set())
                op.revision = min(known) if len(known) == 1 else None
        ranked = sorted({op.revision for op in self._ops if op.revision is not None})
        for op in self._ops:
            if op.revision is not None:
                rank = bisect_left(ranked, op.revision)
                op.predecessor = ranked[rank - 1] if rank else 0
                op.left = read_at.get(op.revision)

    def _chain_the_unseen(self) -> None:
        self._unknown = [op for op in self._ops if op.call.outcome == "unknown"]
        seen = {op.call.found.value for op in self._ops if op.call.found is not None}
        for op in self._ops:
            condition = op.call.condition
            if condition is not None and isinstance(condition.operand, bytes):
                seen.add(condition.operand)
                if condition.operator in "<>":
                    seen.update(other.call.value for other in self._unknown if other.call.value is not None)
        last: dict[tuple[str, bool, Comparison | None], int] = {}
        for place, op in enumerate(self._unknown):
            op.bit = 1 << place
            if op.call.value is None or op.call.value not in seen:
                group = (op.call.verb, op.call.value is None, op.call.condition)
                op.after_bit = last.get(group, 0)
                last[group] = op.bit

    def _lay_out(self) -> None:
        """Sort the answered calls by the instant they ended, with the calls that were open then."""
        answered = [op for op in self._ops if op.call.outcome == "done"]
        # At the same instant, calls sort before ends: then they overlap, and either order is allowed.
        instants = sorted(
            [(op.call.called_at, 0, place) for place, op in enumerate(answered)]
            + [(op.call.ended_at or op.call.called_at, 1, place) for place, op in enumerate(answered)]
        )
        called = [op.call.called_at for op in self._unknown]
        self._ends: list[_Op] = []
        self._pending: list[tuple[_Op, ...]] = []
        self._unknown_called: list[int] = []
        free: list[int] = []
        next_bit = 1 << len(self._unknown)
        is_open: dict[int, _Op] = {}
        for instant, ends, place in instants:
            op = answered[place]
            if not ends:
                if not free:
                    free.append(next_bit)
                    next_bit <<= 1
                op.bit = free.pop()
                is_open[place] = op
                continue
            del is_open[place]
            free.append(op.bit)
            self._ends.append(op)
            self._pending.append((*is_open.values(), op))
            self._unknown_called.append(bisect_left(called, instant + 1))


# Revisions over all keys


def _check_found(history: Sequence[Call]) -> Violation | None:
    """Check each answer alone: keys start above revision 0 at version 1, and changes have higher revisions."""
    for call in history:
        found = call.found
        if found is None:
            continue
        changes = found.version - 1
        later = found.mod_revision - found.create_revision
        if found.create_revision < 1 or changes < 0 or later < changes or (later > 0 and changes == 0):
            reason = "its revisions or its version are impossible for any key"
            return Violation(call.key, reason, (call,), call)
    return None


def _check_revisions(history: Sequence[Call]) -> Violation | None:
    answered = [call for call in history if call.outcome == "done" and call.revision is not None]
    writers: dict[int, Call] = {}
    for call in answered:
        if not call.writes or call.value is None:
            continue
        other = writers.setdefault(call.revision or 0, call)
        if other is not call:
            return Violation(call.key, f"two writes got revision {call.revision}", (other, call), call)
    by_end = sorted((call for call in history if _newest_revision(call)), key=lambda c: c.ended_at or 0)
    ended = 0
    highest: Call | None = None
    for call in sorted(answered, key=lambda c: c.called_at):
        while ended < len(by_end) and (by_end[ended].ended_at or 0) < call.called_at:
            if highest is None or _newest_revision(by_end[ended]) > _newest_revision(highest):
                highest = by_end[ended]
            ended += 1
        if highest is None:
            continue
        least = _newest_revision(highest) + (1 if call.writes and call.value is not None else 0)
        if (call.revision or 0) < least:
            newest = _newest_revision(highest)
            reason = f"revision {call.revision} was assigned after an earlier call had already seen {newest}"
            return Violation(call.key, reason, (highest, call), call)
    return None


def _newest_revision(call: Call) -> int:
    """Return the newest revision in a call's answer; 0: none."""
    if call.outcome != "done":
        return 0
    return max(call.revision or 0, 0 if call.found is None else call.found.mod_revision)


# Explanations


def _explain(key: str, calls: Sequence[Call], failure: _Failure) -> Violation:
    try:  # search again for the first impossible answer, not for an earlier call that it contradicts
        failure = _Search(calls, look_ahead=False).run() or failure
    except Undecided:
        return Violation(key, _reason(calls, failure), _window(calls, failure.culprit), failure.culprit)
    culprit = failure.culprit
    limit = culprit.ended_at or 0
    known = [call for call in calls if call.called_at <= limit]
    known = _without_needless_reads(known, culprit)
    return Violation(key, _reason(known, failure), _window(known, culprit), culprit)


def _without_needless_reads(calls: list[Call], culprit: Call) -> list[Call]:
    """Remove reads while the rest still contradicts itself. Removing reads never makes a correct history wrong."""
    runs = 0
    size = max(1, len(calls) // 2)
    while runs < SHRINK_RUNS:
        place = 0
        while place < len(calls) and runs < SHRINK_RUNS:
            chunk = calls[place : place + size]
            kept = [c for c in chunk if not c.reads or c is culprit]
            fewer = calls[:place] + kept + calls[place + size :]
            runs += 1
            if len(fewer) < len(calls) and _Search(fewer).run() is not None:
                calls = fewer
                place += len(kept)
            else:
                place += size
        if size == 1:
            break
        size = max(1, size // 4)
    return calls


def _reason(calls: Sequence[Call], failure: _Failure) -> str:
    culprit = failure.culprit
    value = culprit.found.value if culprit.found is not None else None
    if value is not None:
        writers = [call for call in calls if call.value == value]
        if not writers:
            return f"{culprit.client} read {value!r}, which no call wrote"
        if all(call.outcome == "failed" for call in writers):
            return f"{culprit.client} read {value!r}, but the call that wrote it was reported as having failed"
    state = failure.state
    might = "absent" if not state.version else f"{state.value!r} at version {state.version}"
    return f"no order of these calls gives {culprit.client} the answer it got; the key might have been {might}"


def _window(calls: Sequence[Call], culprit: Call) -> tuple[Call, ...]:
    """Return the calls around the culprit.

    These are the calls it overlaps, the writer of what it read, and the last calls before it.
    """
    value = culprit.found.value if culprit.found is not None else None

    def nearness(call: Call) -> tuple[int, int]:
        if call is culprit:
            return (0, 0)
        if value is not None and call.value == value:
            return (1, 0)
        if call.outcome == "done" and (call.ended_at or 0) >= culprit.called_at:
            return (2, -call.called_at)
        return (3, -(call.ended_at or call.called_at))

    nearest = sorted((c for c in calls if c.verb != "get" or c.outcome == "done"), key=nearness)[:WINDOW]
    return tuple(sorted(nearest, key=lambda c: c.called_at))

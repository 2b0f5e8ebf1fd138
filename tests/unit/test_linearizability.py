"""The checker: right on histories known to be right and known to be wrong, and the same as trying every order."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from dose import dose
from hypothesis import given, settings
from hypothesis import strategies as st

from hostler import Comparison, KeyValue, ModRevision, Unavailable, Uncertain, Value, Version, open_store
from hostler.testing import Call, Journal, Recorder, check_linearizable, read_history
from hostler.testing.history import unexpected_errors

KEY = "/k"


def kv(value: bytes, revision: int, version: int = 1, created: int | None = None, key: str = KEY) -> KeyValue:
    return KeyValue(key, value, created or revision - version + 1, revision, version)


def call(verb: Any, called_at: int, ended_at: int | None, *, client: str = "c", key: str = KEY, **more: Any) -> Call:
    more.setdefault("outcome", "done")
    return Call(client, verb, key, called_at, ended_at, **more)


def put(value: bytes, called_at: int, ended_at: int, revision: int | None, **more: Any) -> Call:
    return call("put", called_at, ended_at, value=value, revision=revision, **more)


def get(found: KeyValue | None, called_at: int, ended_at: int, **more: Any) -> Call:
    return call("get", called_at, ended_at, found=found, **more)


def delete(existed: bool, called_at: int, ended_at: int, **more: Any) -> Call:
    return call("delete", called_at, ended_at, existed=existed, **more)


def won(condition: Comparison, value: bytes, called_at: int, ended_at: int, revision: int, **more: Any) -> Call:
    return call("cas", called_at, ended_at, condition=condition, value=value, succeeded=True, revision=revision, **more)


def lost(condition: Comparison, found: KeyValue | None, called_at: int, ended_at: int, **more: Any) -> Call:
    return call("cas", called_at, ended_at, condition=condition, value=b"x", succeeded=False, found=found, **more)


def unknown(verb: Any, called_at: int, **more: Any) -> Call:
    return call(verb, called_at, None, outcome="unknown", **more)


A, B, C = b"a", b"b", b"c"
ABSENT = Version(KEY) == 0

RIGHT: dict[str, list[Call]] = {
    "nothing": [],
    "one after the other": [put(A, 0, 1, 2), get(kv(A, 2), 2, 3), delete(True, 4, 5), get(None, 6, 7)],
    "a read that overlaps a write sees the old": [put(A, 0, 9, 2), get(None, 1, 8)],
    "a read that overlaps a write sees the new": [put(A, 0, 9, 2), get(kv(A, 2), 1, 8)],
    "overlapping reads see the new, then at once the old, overlapping each other": [
        put(A, 0, 9, 2),
        get(kv(A, 2), 1, 5),
        get(None, 4, 8),
    ],
    "ends at the instant the next begins": [put(A, 0, 1, 2), put(B, 2, 3, 3), get(kv(A, 2), 3, 3), get(None, 0, 1)],
    "one of two creates wins": [won(ABSENT, A, 0, 9, 2), lost(ABSENT, kv(A, 2), 1, 8)],
    "a create again after a delete starts at version 1": [
        put(A, 0, 1, 2),
        put(B, 2, 3, 3),
        delete(True, 4, 5),
        put(C, 6, 7, 5),
        get(kv(C, 5, 1), 8, 9),
    ],
    "a delete of nothing": [delete(False, 0, 1), get(None, 2, 3)],
    "unknown and it happened": [unknown("put", 0, value=A), get(kv(A, 2), 5, 6)],
    "unknown and it never happened": [unknown("put", 0, value=A), get(None, 5, 6)],
    "unknown and it happened late": [unknown("put", 0, value=A), get(None, 5, 6), get(kv(A, 2), 7, 8)],
    "unknown and only the version tells": [
        put(A, 0, 1, 2),
        unknown("put", 2, value=B),
        get(kv(C, 4, 3, 2), 8, 9),
        put(C, 6, 7, 4),
    ],
    "an unknown delete happened": [put(A, 0, 1, 2), unknown("delete", 2), get(None, 3, 4)],
    "an unknown compare-and-set happened": [
        put(A, 0, 1, 2),
        unknown("cas", 2, condition=ModRevision(KEY) == 2, value=B),
        get(kv(B, 3, 2, 2), 3, 4),
    ],
    "a failed write that nobody saw": [put(A, 0, 1, 2), put(B, 2, 3, None, outcome="failed"), get(kv(A, 2), 4, 5)],
    "a write without a known revision": [put(A, 0, 1, None), get(kv(A, 7), 2, 3), put(B, 4, 5, 8)],
    "two keys": [put(A, 0, 1, 2), put(B, 2, 3, 3, key="/other"), get(kv(A, 2), 4, 5)],
}

WRONG: dict[str, tuple[list[Call], str]] = {
    "a stale read": ([put(A, 0, 1, 2), put(B, 2, 3, 3), get(kv(A, 2), 4, 5)], "no order"),
    "a lost update": ([put(A, 0, 1, 2), get(None, 2, 3)], "no order"),
    "a lost update between versions": (
        [put(A, 0, 1, 2), put(B, 2, 3, 3), put(C, 4, 5, 4), get(kv(C, 4, 2, 2), 6, 7)],
        "no order",
    ),
    "a write resurrected after its call failed": (
        [put(A, 0, 1, 2), put(B, 2, 3, None, outcome="failed"), get(kv(B, 3, 2, 2), 4, 5)],
        "reported as having failed",
    ),
    "a failed delete that happened": (
        [put(A, 0, 1, 2), call("delete", 2, 3, outcome="failed"), get(None, 4, 5)],
        "no order",
    ),
    "a failed put that only the version betrays": (
        [put(A, 0, 1, 2), put(B, 2, 3, None, outcome="failed"), put(C, 4, 5, 4), get(kv(C, 4, 3, 2), 6, 7)],
        "no order",
    ),
    "split brain: two compare-and-sets on one revision": (
        [
            put(A, 0, 1, 2),
            won(ModRevision(KEY) == 2, B, 2, 9, 3, client="left"),
            won(ModRevision(KEY) == 2, C, 3, 8, 4, client="right"),
        ],
        "no order",
    ),
    "split brain: created twice": ([won(ABSENT, A, 0, 9, 2), won(ABSENT, B, 1, 8, 3)], "no order"),
    "split brain: one revision given twice": ([put(A, 0, 9, 2), put(B, 1, 8, 2, key="/other")], "two writes"),
    "a value that nobody wrote": ([put(A, 0, 1, 2), get(kv(B, 2), 2, 3)], "no call wrote"),
    "reads that go back": ([put(A, 0, 99, 2), get(kv(A, 2), 1, 2), get(None, 3, 4)], "no order"),
    "a lost comparison that held": ([put(A, 0, 1, 2), lost(Value(KEY) == A, kv(A, 2), 2, 3)], "no order"),
    "a won comparison that did not hold": ([put(A, 0, 1, 2), won(Version(KEY) == 2, B, 2, 3, 3)], "no order"),
    "a deletion of what was not there": ([delete(True, 0, 1)], "no order"),
    "an unknown write happened before it was asked for": (
        [get(kv(A, 2), 0, 1), unknown("put", 5, value=A)],
        "no call wrote",
    ),
    "an unknown write happened twice": (
        [
            unknown("put", 0, value=A),
            get(kv(A, 2), 1, 2),
            delete(True, 3, 4),
            get(kv(A, 4), 5, 6),
        ],
        "no order",
    ),
    "an unknown write came and went": (
        [unknown("put", 0, value=A), get(kv(A, 2), 1, 2), get(None, 3, 4)],
        "no order",
    ),
    "an unknown compare-and-set whose condition never held": (
        [put(A, 0, 1, 2), unknown("cas", 2, condition=Version(KEY) == 7, value=B), get(kv(B, 3, 2, 2), 4, 5)],
        "no order",
    ),
    "a revision that goes back between keys": ([put(A, 0, 1, 3), put(B, 2, 3, 2, key="/other")], "revision 2"),
    "a comparison that looked at an old store": (
        [put(A, 0, 1, 9, key="/other"), lost(Version(KEY) == 5, None, 2, 3, revision=8)],
        "revision 8",
    ),
    "a version that does not start again": (
        [put(A, 0, 1, 2), delete(True, 2, 3), put(B, 4, 5, 4), get(kv(B, 4, 2, 2), 6, 7)],
        "no order",
    ),
    "the wrong create revision": ([put(A, 0, 1, 2), put(B, 2, 3, 5), get(kv(B, 5, 2, 3), 4, 5)], "no order"),
    "changed in the revision of its creation": (
        [unknown("put", 0, value=A), put(B, 2, 3, 2), get(kv(B, 2, 2, 2), 4, 5)],
        "impossible for any key",
    ),
    "never changed since an older revision": (
        [unknown("put", 0, value=A), get(kv(A, 5, 1, 3), 2, 3)],
        "impossible for any key",
    ),
    "created, by an unknown write, after a change of it": (
        [unknown("put", 0, value=A), put(B, 2, 3, 3), put(C, 4, 5, 9), get(kv(C, 9, 3, 5), 6, 7)],
        "no order",
    ),
    "created, by an unknown write, before it was deleted": (
        [put(A, 0, 1, 5), delete(True, 2, 3), unknown("put", 4, value=B), put(C, 6, 7, 9), get(kv(C, 9, 2, 3), 8, 9)],
        "no order",
    ),
    "the wrong revision": ([put(A, 0, 1, 2), get(kv(A, 3), 2, 3)], "no order"),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_history_is_accepted(name: str) -> None:
    violation = check_linearizable(RIGHT[name])
    assert violation is None, str(violation)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_history_is_rejected_with_its_reason(name: str) -> None:
    history, reason = WRONG[name]
    violation = check_linearizable(history)
    assert violation is not None
    assert reason in violation.reason
    assert violation.culprit in violation.calls


def test_the_explanation_shows_the_key_the_calls_and_which_cannot_be() -> None:
    noise = [get(kv(A, 2), 10 + 2 * n, 11 + 2 * n, client=f"n{n}") for n in range(50)]
    violation = check_linearizable([put(A, 0, 1, 2, client="w"), *noise, get(None, 500, 501, client="stale")])
    assert violation is not None
    text = str(violation)
    assert len(violation.calls) == 2, "reads that prove nothing are left out"
    assert "key '/k'" in text
    assert "w put b'a' → revision 2" in text
    assert next(line for line in text.splitlines() if "impossible" in line).strip().startswith("stale get → absent")


# A register that is atomic by construction, and clients that overlap


class Register:
    """Applies calls one at a time, at instants between their begin and their end."""

    def __init__(self, rng: random.Random, keys: int) -> None:
        self.rng, self.keys, self.revision = rng, keys, 1
        self.state: dict[str, KeyValue] = {}
        self.values = itertools.count()

    def write(self, key: str, value: bytes | None) -> int:
        old = self.state.get(key)
        if value is None:
            if old is not None:
                self.revision += 1
                del self.state[key]
            return self.revision
        self.revision += 1
        created, version = (old.create_revision, old.version + 1) if old else (self.revision, 1)
        self.state[key] = KeyValue(key, value, created, self.revision, version)
        return self.revision

    def ask(self, client: str, called_at: int) -> Call:
        rng = self.rng
        key = f"/k{rng.randrange(self.keys)}"
        verb = rng.choice(("get", "get", "put", "put", "delete", "cas", "cas"))
        value = b"v%d" % next(self.values) if verb in ("put", "cas") else None
        condition = None
        if verb == "cas":
            now = self.state.get(key)
            condition = rng.choice(
                (
                    Version(key) == (now.version if now else 0),
                    ModRevision(key) == (now.mod_revision if now else 0),
                    Value(key) == (now.value if now else b"?"),
                    Version(key) > 2,
                )
            )
        return Call(client, verb, key, called_at, value=value, condition=condition)

    def answer(self, asked: Call) -> Call:
        now = self.state.get(asked.key)
        if asked.verb == "get":
            return msgspec.structs.replace(asked, found=now)
        if asked.verb == "delete":
            self.write(asked.key, None)
            return msgspec.structs.replace(asked, existed=now is not None)
        if asked.condition is None or asked.condition.holds(now):
            revision = self.write(asked.key, asked.value)
            return msgspec.structs.replace(asked, succeeded=asked.verb == "cas" or None, revision=revision)
        return msgspec.structs.replace(asked, succeeded=False, found=now, revision=self.revision)


def simulate(seed: int, calls: int, *, clients: int, keys: int, trouble: float = 0.1) -> list[Call]:
    """A linearizable history; `trouble` is how many of the calls fail or get no answer."""
    rng = random.Random(seed)
    register = Register(rng, keys)
    steps: dict[str, tuple[str, Call]] = {}
    names = [f"c{n}" for n in range(clients)]
    history: list[Call] = []
    late: list[Call] = []
    for now in range(1, calls * 3):
        name = rng.choice(names)
        stage, current = steps.pop(name, ("ask", None))
        if late and rng.random() < 0.05:
            register.answer(late.pop(rng.randrange(len(late))))
        if stage == "ask" or current is None:
            steps[name] = ("act", register.ask(name, now))
        elif stage == "act" and rng.random() < trouble:
            fate = rng.choice(("failed", "lost", "happened", "late"))
            if fate == "happened":
                register.answer(current)
            elif fate == "late":
                late.append(current)
            outcome = "failed" if fate == "failed" else "unknown"
            history.append(msgspec.structs.replace(current, outcome=outcome, ended_at=now))
        elif stage == "act":
            steps[name] = ("end", register.answer(current))
        else:
            history.append(msgspec.structs.replace(current, outcome="done", ended_at=now))
    for stage, current in steps.values():
        if stage == "end":
            history.append(msgspec.structs.replace(current, outcome="done", ended_at=calls * 3))
    return history


@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 4), st.sampled_from([0.0, 0.1, 0.2]))
@settings(max_examples=dose(test=60, full=3000), deadline=None)
def test_what_an_atomic_register_answers_is_always_accepted(seed: int, clients: int, keys: int, trouble: float) -> None:
    violation = check_linearizable(simulate(seed, 150, clients=clients, keys=keys, trouble=trouble))
    assert violation is None, str(violation)


def mutate(history: list[Call], rng: random.Random) -> list[Call]:
    """The same with one answer changed to something that no register could have said."""
    reads = [c for c in history if c.reads and c.found is not None]
    writes = [c for c in history if c.outcome == "done" and c.verb == "put"]
    changed = rng.choice(reads)
    found = changed.found
    assert found is not None
    kind = rng.choice(("value", "version", "revision", "absent", "older", "lost"))
    if kind == "value":
        new = msgspec.structs.replace(changed, found=msgspec.structs.replace(found, value=b"never"))
    elif kind == "version":
        new = msgspec.structs.replace(changed, found=msgspec.structs.replace(found, version=found.version + 1000))
    elif kind == "revision":
        new = msgspec.structs.replace(changed, found=msgspec.structs.replace(found, mod_revision=10**9))
        last = max(c.ended_at or 0 for c in history) + 10  # without a later write it could be true
        history = [*history, put(b"z", last, last + 1, 10**6, key="/later")]
    elif kind == "absent":
        last = max(c.ended_at or 0 for c in history) + 10
        key = "/untouched"
        extra = [put(b"u", last, last + 1, 10**6, key=key), get(None, last + 2, last + 3, key=key)]
        return history + extra
    elif kind == "older":
        new = msgspec.structs.replace(changed, found=msgspec.structs.replace(found, create_revision=0))
    else:
        write = rng.choice(writes)
        return [*history, msgspec.structs.replace(write, client="twin")]
    return [new if c is changed else c for c in history]


@given(st.integers(0, 2**32))
@settings(max_examples=dose(test=60, full=3000), deadline=None)
def test_one_impossible_answer_is_always_found(seed: int) -> None:
    rng = random.Random(seed)
    history = simulate(seed, 150, clients=6, keys=3)
    if not any(c.reads and c.found for c in history) or not any(
        c.verb == "put" and c.outcome == "done" for c in history
    ):
        return
    assert check_linearizable(mutate(history, rng)) is not None


# The same verdict as trying every order


def possible(history: list[Call]) -> bool:
    """By trying every choice of unknown calls in every order. An implementation apart, for tiny histories."""
    sure = [c for c in history if c.outcome == "done"]
    maybe = [c for c in history if c.outcome == "unknown" and c.verb != "get"]
    for count in range(len(maybe) + 1):
        for chosen in itertools.combinations(maybe, count):
            for order in itertools.permutations([*sure, *chosen]):
                if in_real_time(order) and explains(order):
                    return True
    return False


def in_real_time(order: tuple[Call, ...]) -> bool:
    return not any(
        later.outcome == "done" and (later.ended_at or 0) < earlier.called_at
        for place, earlier in enumerate(order)
        for later in order[place + 1 :]
    )


def explains(order: tuple[Call, ...]) -> bool:
    """Replay with one unknown per write for its revision; see whether the unknowns can be solved."""
    revisions: list[int | None] = []  # of each change, in order
    current: tuple[bytes, int, int, int] | None = None  # value, version, created by change, last change

    def learn(change: int, revision: int) -> bool:
        if revisions[change] not in (None, revision):
            return False
        revisions[change] = revision
        return True

    for c in order:
        if c.condition is not None:
            target, operand = c.condition.target, c.condition.operand
            if target == "mod" and current is not None:
                if c.succeeded is False:
                    if c.found is not None and c.found.mod_revision == operand:
                        return False
                elif not learn(current[3], int(operand)):
                    return False
            else:
                seen = None if current is None else KeyValue(c.key, current[0], 1, 1, current[1])
                if c.condition.holds(seen) != (c.succeeded is not False):
                    return False
        if c.reads:
            if (c.found is None) != (current is None):
                return False
            if c.found is not None and current is not None:
                if (c.found.value, c.found.version) != current[:2]:
                    return False
                if not learn(current[3], c.found.mod_revision) or not learn(current[2], c.found.create_revision):
                    return False
        elif c.verb == "delete":
            if c.outcome == "done" and c.existed != (current is not None):
                return False
            if current is not None:
                revisions.append(None)
                current = None
        else:
            revisions.append(c.revision)
            change = len(revisions) - 1
            current = (
                (c.value or b"", 1, change, change)
                if current is None
                else (c.value or b"", current[1] + 1, current[2], change)
            )
    least = 0
    for revision in revisions:
        if revision is not None and revision <= least:
            return False
        least = least + 1 if revision is None else revision
    return True


@st.composite
def tiny_histories(draw: st.DrawFn) -> list[Call]:
    """A few calls on one key that agree with a register, then up to two of them twisted a little."""
    seed = draw(st.integers(0, 2**32))
    history = simulate(seed, draw(st.integers(2, 4)), clients=draw(st.integers(1, 4)), keys=1, trouble=0.3)[:5]
    history = [
        msgspec.structs.replace(c, revision=c.revision if c.writes and c.outcome == "done" else None) for c in history
    ]
    for _ in range(draw(st.integers(0, 2))):
        if not history:
            break
        place = draw(st.integers(0, len(history) - 1))
        history[place] = draw(twists(history[place]))
    return history


def twists(c: Call) -> st.SearchStrategy[Call]:
    options = [
        st.builds(lambda d: msgspec.structs.replace(c, called_at=max(0, c.called_at - d)), st.integers(0, 6)),
        st.builds(lambda d: msgspec.structs.replace(c, ended_at=(c.ended_at or c.called_at) + d), st.integers(0, 6)),
    ]
    if c.outcome == "done" and c.writes and c.revision is not None:
        options.append(st.builds(lambda r: msgspec.structs.replace(c, revision=r), st.integers(2, 6)))
    if c.verb == "get" and c.outcome == "done":
        found = st.builds(
            lambda v, r, n, b: KeyValue(c.key, b"v%d" % v, max(1, r - b), r, n),
            *(st.integers(0, 3), st.integers(2, 5), st.integers(1, 3), st.integers(0, 2)),
        )
        options.append(st.builds(lambda f: msgspec.structs.replace(c, found=f), st.none() | found))
    if c.verb == "delete" and c.outcome == "done":
        options.append(st.builds(lambda e: msgspec.structs.replace(c, existed=e), st.booleans()))
    if c.verb == "put" and c.value is not None:
        options.append(st.builds(lambda v: msgspec.structs.replace(c, value=b"v%d" % v), st.integers(0, 2)))
    if c.outcome == "unknown":
        options.append(st.just(msgspec.structs.replace(c, outcome="failed")))
    return st.one_of(options)


@given(tiny_histories())
@settings(max_examples=dose(test=200, full=5000), deadline=None)
def test_the_verdict_is_that_of_trying_every_order(history: list[Call]) -> None:
    violation = check_linearizable(history)
    assert (violation is None) == possible(history), str(violation)


def test_five_thousand_calls_are_checked_in_well_under_a_second() -> None:
    history = simulate(7, 5000, clients=16, keys=4, trouble=0.02)
    assert len(history) > 4000
    started = time.process_time()
    assert check_linearizable(history) is None
    assert time.process_time() - started < 1.0


def test_many_calls_without_an_answer_do_not_slow_it_down() -> None:
    history = simulate(11, 2000, clients=12, keys=4, trouble=0.1)
    assert sum(c.outcome == "unknown" for c in history) > 120
    started = time.process_time()
    assert check_linearizable(history) is None
    assert time.process_time() - started < 2.0


# Recording


async def test_what_was_recorded_is_read_back_as_it_happened(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    with Journal(path) as journal:
        async with open_store("memory://") as store:
            client = Recorder(store, journal, "c1")
            await client.put(KEY, A)
            assert await client.cas(ModRevision(KEY) == 2, B)
            assert not await client.cas(ABSENT, C)
            assert await client.cas(Version(KEY) == 2, None)
            assert not await client.delete(KEY)
            assert await client.get(KEY) is None
    history = read_history([path])
    assert [c.verb for c in history] == ["put", "cas", "cas", "cas", "delete", "get"]
    assert [c.revision for c in history] == [2, 3, 3, 4, None, None]
    assert history[2].found is not None
    assert history[2].found.value == B
    assert check_linearizable(history) is None
    assert unexpected_errors(history) == []


class Troubled:
    """A store whose puts end as told."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    async def put(self, _key: str, _value: bytes) -> int:
        raise self._error


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(Unavailable("x"), "failed"), (Uncertain("x"), "unknown"), (asyncio.CancelledError(), "unknown")],
)
async def test_how_a_call_ended_decides_what_may_have_happened(
    tmp_path: Path, error: BaseException, outcome: str
) -> None:
    path = tmp_path / "one.jsonl"
    with Journal(path) as journal, pytest.raises(type(error)):
        await Recorder(Troubled(error), journal, "c").put(KEY, A)  # type: ignore[arg-type]
    assert [c.outcome for c in read_history([path])] == [outcome]


def test_a_call_that_its_client_did_not_live_to_finish_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    with Journal(path) as journal:
        journal.record_call(Call("c", "put", KEY, 5, value=A))
    with path.open("ab") as file:
        file.write(b'{"number": 2, "call": {"clie')
    assert [c.outcome for c in read_history([path])] == ["unknown"]

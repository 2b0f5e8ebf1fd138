"""What a decision leaves behind, in its own transaction."""

from __future__ import annotations

import itertools

import pytest

from hostler.engine.decision_recorder import MAX_BYTES, Tracer, id_of
from hostler.engine.runtime.guarded_writer import Why
from hostler.keys.entry import Entry
from hostler.keys.families import AUDIT, COMMAND, HANDLE, MEMBER, TRACE, VM
from hostler.model.access import Audit
from hostler.model.trace import Impact, Reason, Touch, Trace
from hostler.ports.store import Delete, DeletePrefix, Get, Operation, Put

IDS = {"org": "acme", "project": "web", "vm": "v1"}
VM_KEY, HANDLE_KEY, COMMAND_KEY = VM.fill(**IDS), HANDLE.fill(**IDS), COMMAND.fill(node="r1-b1", vm="v1")


class At:
    def __init__(self, *walls: float) -> None:
        self._walls = itertools.cycle(walls)

    def now(self) -> float:
        raise NotImplementedError

    def wall(self) -> float:
        return next(self._walls)

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError


def tracer(*walls: float, kept: bool = True) -> Tracer:
    numbers = itertools.count(1)
    return Tracer(At(*(walls or (1763200000.25,))), lambda: f"id{next(numbers)}", "machines", kept=kept)


def entry(key: str, revision: int) -> Entry[None]:
    return Entry(None, {}, key, 1, revision, 1)


def read(put: Operation) -> Trace:
    assert isinstance(put, Put)
    return TRACE.decode(put.value, where=put.key)


def test_what_is_written_deleted_and_only_read_is_told_with_the_revisions_it_had() -> None:
    then: list[Operation] = [Put(COMMAND_KEY, b"new"), Put(HANDLE_KEY, b"changed"), Delete("/gone"), Get("/looked")]
    then.append(DeletePrefix("/whole/"))
    then.append(AUDIT.put(Audit(who="ada", verb="x", subject="/y", at=0.0), day="2026-11-15", write="w"))
    entries = [entry(VM_KEY, 10), None, entry(HANDLE_KEY, 12), entry("/gone", 7)]
    tracer().add(then, Why(what="place", why="placed", read=entries), subject=VM_KEY, fence=3)
    trace = read(then[-1])
    assert trace.touches == (
        Touch(key=COMMAND_KEY, impact=Impact.CREATE),
        Touch(key=HANDLE_KEY, impact=Impact.MODIFY, revision=12),
        Touch(key="/gone", impact=Impact.DELETE, revision=7),
        Touch(key="/whole/", impact=Impact.DELETE),
        Touch(key=VM_KEY, impact=Impact.READ, revision=10),
    )
    assert (trace.actor, trace.what, trace.subject, trace.why) == ("machines", "place", VM_KEY, "placed")
    assert (trace.cause, trace.fence, trace.at) == ("", 3, 1763200000.25)


def test_its_id_is_the_end_of_its_key_and_stands_in_order_of_time() -> None:
    made = tracer(1763200000.25, 1763200000.999999, 1763200001.0, 1763286399.5, 1763286400.0)
    puts = [made.put(Why(what="w", why=""), subject="/s") for _ in range(5)]
    assert [put.key for put in puts] == sorted(put.key for put in puts)
    for put in puts:
        assert TRACE.match(put.key) is not None
        assert put.key == TRACE.prefix() + read(put).id == TRACE.prefix() + id_of(put)
    assert id_of(puts[0]) == "2025-11-15/09:46:40.250000-id1"
    assert id_of(puts[4]).startswith("2025-11-16/09:46:40.000000-")


def test_a_cause_is_an_id_or_the_revision_of_what_was_read() -> None:
    assert read(tracer().put(Why(what="w", why="", cause="2026-11-15/x"), subject="/s")).cause == "2026-11-15/x"
    member = entry(MEMBER.fill(node="r1-b1"), 44)
    trace = read(tracer().put(Why(what="w", why="", cause=member), subject="/s"))
    assert trace.cause == "@44"
    assert trace.touches == (Touch(key=member.key, impact=Impact.READ, revision=44),)


def test_where_none_are_kept_nothing_is_added() -> None:
    then: list[Operation] = [Put(VM_KEY, b"")]
    tracer(kept=False).add(then, Why(what="w", why=""), subject="/s")
    assert then == [Put(VM_KEY, b"")]


@pytest.mark.parametrize("length", [10, 200, 5_000])
@pytest.mark.parametrize("writes", [1, 40, 120])
def test_it_stays_small_and_keeps_what_it_is_linked_by(length: int, writes: int) -> None:
    then: list[Operation] = [Put(f"/k/{number}", b"") for number in range(writes)]
    reasons = [Reason(subject="n" * length, why="w" * length) for _ in range(9)]
    entries = [entry(f"/k/{number}", number) for number in range(writes)] + [entry("/newest", 9_999)]
    put = tracer().put(Why(what="w", why="y" * length, reasons=tuple(reasons), read=entries), subject="/k/3", then=then)
    trace = read(put)
    assert len(put.value) <= MAX_BYTES
    assert len(trace.reasons) <= 3
    assert max(touch.revision for touch in trace.touches) == 9_999
    assert trace.why

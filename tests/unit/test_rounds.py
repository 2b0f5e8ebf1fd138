"""Everything has its turn, some at a time."""

from __future__ import annotations

import pytest

from hostler.engine.runtime.work_queue import LEAST, ROUND, Resync

PASSES = 20
EVERY = ROUND / PASSES


@pytest.mark.parametrize("many", [0, 1, LEAST, LEAST + 1, LEAST * PASSES, LEAST * PASSES * 3 + 7])
def test_all_have_their_turn_once_in_so_many_passes(many: int) -> None:
    names = [f"n{number}" for number in range(many)]
    rounds = Resync(lambda: names, every=EVERY)
    passes = [rounds.next() for _ in range(min(PASSES, max(1, -(-many // LEAST))))]
    assert [name for turn in passes for name in turn] == names
    assert all(len(turn) <= max(LEAST, many // PASSES + 1) for turn in passes)
    assert rounds.next()[:1] == names[:1]


def test_where_there_are_few_each_pass_takes_all_of_them_and_none_twice() -> None:
    names = ["a", "b", "a"]
    rounds = Resync(lambda: names, every=EVERY)
    assert rounds.next() == ["a", "b"]
    names.append("c")
    assert rounds.next() == ["a", "b", "c"]


def test_after_all_were_taken_the_next_round_begins() -> None:
    names = [f"n{number}" for number in range(3 * LEAST)]
    rounds = Resync(lambda: names, every=EVERY)
    assert rounds.next() == names[:LEAST]
    assert rounds.all() == names
    assert rounds.next() == names[:LEAST]

"""A slice's record changes by legal moves alone, and keeps its story straight."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostler.engine.deployments.state_machine import AT_REST, LEAVING, WAY_OUT, Limits, changed_record, since
from hostler.errors import Invalid
from hostler.keys.families import SLICE
from hostler.model.deployment import (
    MOVES,
    SliceInstance,
    SliceRecord,
    SliceSettings,
    SliceState,
    aggregate,
    may_move,
)

S = SliceState
STATES = st.sampled_from([None, *SliceState])


def loaded(*numbers: int, at: float = 100.0, template: int = 0) -> SliceRecord:
    new = {number: SliceInstance(state=S.LOAD, template=template) for number in numbers}
    record = changed_record(None, new, at=at, settings={template: SliceSettings(memory_mib=64)} if template else None)
    assert record is not None
    return record


@given(
    st.lists(
        st.tuples(st.dictionaries(st.integers(1, 4), STATES, min_size=1), st.floats(1, 1e9), st.booleans()), max_size=40
    )
)
def test_no_illegal_move_is_ever_stored(story: list[tuple[dict[int, SliceState | None], float, bool]]) -> None:
    record: SliceRecord | None = None
    for wishes, at, dead in story:
        before = {} if record is None else dict(record.each())
        times = {} if record is None else {number: since(record, one) for number, one in before.items()}
        changes = {number: None if state is None else SliceInstance(state=state) for number, state in wishes.items()}
        legal = all(
            (one.state if (one := before.get(number)) else None) is state
            or may_move(one.state if one else None, state, node_dead=dead)
            for number, state in wishes.items()
        )
        if not legal:
            with pytest.raises(Invalid, match="cannot go from"):
                changed_record(record, changes, at=at, node_dead=dead)
            continue
        after = changed_record(record, changes, at=at, node_dead=dead)
        left = {} if after is None else dict(after.each())
        assert {n: one.state for n, one in left.items()} == {
            n: state for n, state in ({n: one.state for n, one in before.items()} | wishes).items() if state is not None
        }
        if after is not None:
            assert after.state is aggregate(left)
            assert SLICE.decode(SLICE.encode(after)) == after
            for number, one in left.items():
                if number in before and before[number].state is one.state:
                    assert since(after, one) == times[number], "whoever stays keeps its time"
                else:
                    assert since(after, one) == max(int(at), record.timestamp if record else 0)
        record = after


@given(STATES, STATES)
def test_what_a_record_takes_is_what_the_table_says(old: SliceState | None, new: SliceState | None) -> None:
    record = None if old is None else SliceRecord(state=old, timestamp=5)  # as another program wrote it
    change = {1: None if new is None else SliceInstance(state=new)}
    if old is new or new in MOVES[old]:
        after = changed_record(record, change, at=9)
        assert (None if after is None else after.each()[1].state) is new
    else:
        with pytest.raises(Invalid):
            changed_record(record, change, at=9)


def test_every_state_has_a_limit_and_a_way_out() -> None:
    limits = Limits()
    for state in SliceState:
        limit, patience = limits.of(state), limits.stuck_after(state)
        if state in AT_REST:
            assert limit is None
            assert patience is None
            assert any(
                may_move(state, other) and other in (S.ACTIVATE, S.DEACTIVATE, S.UNLOAD) for other in SliceState
            ), "the leader can go on"
        else:
            assert limit is not None
            assert patience is not None
            assert patience == 3 * limit > 0
            assert WAY_OUT[state] is state or may_move(state, WAY_OUT[state])
    ways: dict[SliceState, set[SliceState | None]] = {state: set(MOVES[state]) for state in SliceState}
    for _ in SliceState:
        for reached in ways.values():
            reached |= {onward for step in tuple(reached) if step is not None for onward in MOVES[step]}
    assert all(None in reached for reached in ways.values()), "from everywhere it can go away"


def test_limits_are_as_they_are_set() -> None:
    limits = Limits(loading=1, activating=2, deactivating=3, unloading=4)
    assert [limits.of(state) for state in (S.LOAD, S.ACTIVATING, S.DEACTIVATE, S.UNLOADING)] == [1, 2, 3, 4]


def test_settings_that_nobody_is_run_with_go() -> None:
    record = loaded(1, template=1)
    assert list(record.settings) == [1]
    more = changed_record(
        record, {2: SliceInstance(state=S.LOAD, template=2)}, at=101, settings={2: SliceSettings(cpus=1)}
    )
    assert more is not None
    assert sorted(more.settings) == [1, 2]
    gone = changed_record(more, {1: None}, at=102, node_dead=True)
    assert gone is not None
    assert list(gone.settings) == [2]


def test_methods_and_what_later_releases_wrote_stay() -> None:
    record = msgspec.structs.replace(loaded(1), unknown={"later": msgspec.Raw(b"1")})
    told = changed_record(record, {1: SliceInstance(state=S.LOADING)}, at=101, methods=("a", "b"))
    assert told is not None
    assert told.methods == ("a", "b")
    assert told.unknown
    again = changed_record(told, {1: SliceInstance(state=S.LOADED)}, at=102)
    assert again is not None
    assert again.methods == ("a", "b")


def test_an_instance_that_is_not_ready_is_active() -> None:
    record = loaded(1)
    for state in (S.LOADING, S.LOADED, S.ACTIVATE, S.ACTIVATING, S.ACTIVE):
        record = changed_record(record, {1: SliceInstance(state=state)}, at=101) or record
    down = changed_record(record, {1: SliceInstance(state=S.ACTIVE, ready=False, restarts=1)}, at=150)
    assert down is not None
    assert not down.each()[1].ready
    assert down.timestamp == 101, "no move"
    failed = changed_record(down, {1: SliceInstance(state=S.FAILED, ready=False, why="it crashed")}, at=160)
    assert failed is not None
    assert failed.each()[1].ready
    assert failed.timestamp == 160


def test_who_was_told_to_leave_is_known_to_leave_until_it_is_gone() -> None:
    record = loaded(1)
    for state in (S.LOADING, S.LOADED, S.ACTIVATE, S.ACTIVATING, S.ACTIVE):
        record = changed_record(record, {1: SliceInstance(state=state)}, at=101) or record
    record = changed_record(record, {1: SliceInstance(state=S.DEACTIVATE, why=f"{LEAVING}upgraded")}, at=102) or record
    for state in (S.DEACTIVATING, S.LOADED):
        record = changed_record(record, {1: SliceInstance(state=state)}, at=103) or record
        assert record.each()[1].why == f"{LEAVING}upgraded"
    failed = changed_record(record, {1: SliceInstance(state=S.UNLOAD, why="x")}, at=103)
    assert failed is not None
    assert failed.each()[1].why == "x"


def test_a_clock_that_is_behind_makes_nothing_older() -> None:
    record = changed_record(loaded(1, at=1000.0), {1: SliceInstance(state=S.LOADING)}, at=400.0)
    assert record is not None
    assert since(record, record.each()[1]) == 1000

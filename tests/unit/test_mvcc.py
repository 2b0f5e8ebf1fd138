"""What a store means, held against a model that keeps a whole copy of itself for each revision."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostler.drivers.store.mvcc import LeaseState, Mvcc
from hostler.errors import Compacted, FutureRevision, LeaseGone
from hostler.ports.store import Delete, DeletePrefix, Event, Get, KeyValue, Operation, Page, Put, Version


def put(state: Mvcc, key: str, value: bytes = b"", lease: int | None = None) -> int:
    return state.txn((), (Put(key, value, lease),), ())[0].revision


def delete(state: Mvcc, key: str) -> int:
    return state.txn((), (Delete(key),), ())[0].revision


def at(state: Mvcc, revision: int | None = None, prefix: str = "") -> dict[str, bytes]:
    page = state.range(prefix, after=None, limit=None, revision=revision, keys_only=False)
    return {kv.key: kv.value for kv in page.items}


def restored(state: Mvcc) -> Mvcc:
    """The same store from what a file would hold of it."""
    leases = [LeaseState(lease.id, lease.ttl, lease.deadline) for lease in state.leases.values()]
    log = [events for _, events in state.log(0)]
    return Mvcc.restore(state.values(), log, leases, revision=state.revision, compacted=state.compacted)


class Naive:
    """One copy of everything for each revision."""

    def __init__(self) -> None:
        self.states: list[dict[str, KeyValue]] = [{}, {}]  # revisions 0 and 1
        self.log: list[list[Event]] = [[], []]

    @property
    def revision(self) -> int:
        return len(self.states) - 1

    def do(self, operations: list[Operation]) -> None:
        state, events, revision = dict(self.states[-1]), [], len(self.states)
        for operation in operations:
            if isinstance(operation, Put):
                old = state.get(operation.key)
                created, version = (old.create_revision, old.version + 1) if old else (revision, 1)
                state[operation.key] = KeyValue(operation.key, operation.value, created, revision, version)
                events.append(Event("put", state[operation.key], old))
            elif isinstance(operation, Delete | DeletePrefix):
                gone = (
                    [operation.key]
                    if isinstance(operation, Delete)
                    else sorted(key for key in state if key.startswith(operation.prefix))
                )
                for key in gone:
                    old = state.pop(key, None)
                    if old:
                        events.append(Event("delete", KeyValue(key, b"", 0, revision, 0), old))
        if events:
            self.states.append(state)
            self.log.append(events)


KEYS = ["a", "aa", "ab", "b"]
one = st.one_of(
    st.builds(Put, st.sampled_from(KEYS), st.binary(max_size=2)),
    st.builds(Delete, st.sampled_from(KEYS)),
    st.builds(DeletePrefix, st.sampled_from(["a", "aa", "c"])),
)


def _allowed(operations: list[Operation]) -> bool:
    puts = [operation.key for operation in operations if isinstance(operation, Put)]
    dels = [operation.key for operation in operations if isinstance(operation, Delete)]
    prefixes = [operation.prefix for operation in operations if isinstance(operation, DeletePrefix)]
    return len(set(puts)) == len(puts) and not any(
        key in dels or any(key.startswith(prefix) for prefix in prefixes) for key in puts
    )


step = st.one_of(
    st.lists(one, min_size=1, max_size=3).filter(_allowed),
    st.floats(0, 1),  # compact that far between the last compaction and now
    st.just("restore"),
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.lists(step, max_size=25))
def test_every_revision_since_the_compaction_reads_as_it_was(steps: list[object]) -> None:
    state, model, replica, compacted = Mvcc(), Naive(), Mvcc(), 0
    for action in steps:
        if isinstance(action, list):
            _, events = state.txn((), action, ())
            model.do(action)
            if events:
                replica.replay(events)
        elif isinstance(action, float):
            target = compacted + round(action * (model.revision - compacted))
            if target > compacted:
                state.compact(target)
                replica.compact(target)
                compacted = target
        else:
            state = restored(state)
    assert state.revision == model.revision
    assert restored(state)._past == state._past == replica._past  # nothing is kept that cannot be read
    for copy in (state, restored(state), replica):
        _check_equal(copy, model, compacted)


def _check_equal(state: Mvcc, model: Naive, compacted: int) -> None:
    assert list(state.range("", after=None, limit=None, revision=None, keys_only=False).items) == [
        model.states[-1][key] for key in sorted(model.states[-1])
    ]
    for revision in range(1, model.revision + 1):
        if revision < compacted:
            with pytest.raises(Compacted):
                state.get("a", revision)
            continue
        expected = model.states[revision]
        page = state.range("a", after=None, limit=None, revision=revision, keys_only=False)
        assert list(page.items) == [expected[key] for key in sorted(expected) if key.startswith("a")]
        assert [state.get(key, revision) for key in KEYS] == [expected.get(key) for key in KEYS]
        events, resume = state.changes("a", max(2, revision), 1_000)
        wanted = [e for log in model.log[max(2, revision) :] for e in log if e.kv.key.startswith("a")]
        assert (list(events), resume) == (wanted, max(model.revision + 1, 2))


def test_a_deleted_key_starts_again_at_version_one() -> None:
    state = Mvcc()
    put(state, "a")
    put(state, "a")
    delete(state, "a")
    revision = put(state, "a", b"new")
    assert state.get("a") == KeyValue("a", b"new", revision, revision, 1)


def test_compacting_to_a_tombstone_forgets_that_there_was_a_key() -> None:
    state = Mvcc()
    put(state, "a", b"1")
    gone = delete(state, "a")
    state.compact(gone)
    assert at(state, gone) == {}
    assert state.get("a", gone) is None
    assert list(state._with_prefix("", None)) == []  # nothing is left of it


def test_compacting_just_before_a_deletion_keeps_the_key_readable_there() -> None:
    state = Mvcc()
    before = put(state, "a", b"1")
    gone = delete(state, "a")
    state.compact(before)
    assert at(state, before) == {"a": b"1"}
    assert at(state, gone) == {}
    state.compact(gone)
    assert list(state._with_prefix("", None)) == []


def test_a_watch_may_start_at_the_revision_that_was_compacted_to_and_not_before() -> None:
    state = Mvcc()
    for value in (b"1", b"2", b"3"):
        put(state, "a", value)
    state.compact(3)
    events, _ = state.changes("", 3, 100)
    assert [event.kv.value for event in events] == [b"2", b"3"]
    with pytest.raises(Compacted) as error:
        state.changes("", 2, 100)
    assert error.value.revision == 3


def test_compacting_twice_or_ahead_is_refused_and_changes_nothing() -> None:
    state = Mvcc()
    put(state, "a", b"1")
    put(state, "a", b"2")
    state.compact(2)
    with pytest.raises(Compacted):
        state.compact(2)
    with pytest.raises(Compacted):
        state.compact(1)
    with pytest.raises(FutureRevision):
        state.compact(4)
    assert (at(state, 2), at(state, 3), state.compacted) == ({"a": b"1"}, {"a": b"2"}, 2)


def test_changes_come_in_whole_transactions() -> None:
    state = Mvcc()
    state.txn((), [Put(f"k{number}", b"") for number in range(5)], ())
    put(state, "k9")
    events, resume = state.changes("", 2, limit=1)
    assert (len(events), resume) == (5, 3)
    assert [event.kv.key for event in state.changes("", resume, limit=1)[0]] == ["k9"]


def test_a_transaction_that_changes_nothing_makes_no_revision() -> None:
    state = Mvcc()
    result, events = state.txn((), (Delete("a"), Get("a"), DeletePrefix("b")), ())
    assert (result.revision, result.responses, events) == (1, (False, None, 0), ())


def test_a_put_with_an_ended_lease_changes_nothing_of_its_transaction() -> None:
    state = Mvcc()
    with pytest.raises(LeaseGone):
        state.txn((), (Put("a", b""), Put("b", b"", 7)), ())
    assert (state.revision, at(state)) == (1, {})


def test_the_other_branch_may_name_a_lease_that_ended() -> None:
    state = Mvcc()
    result, _ = state.txn((Version("a") == 0,), (Put("a", b""),), (Put("a", b"", 7),))
    assert result.succeeded


def test_a_key_belongs_to_its_last_lease_only() -> None:
    state = Mvcc()
    state.grant(1, 10, 10)
    state.grant(2, 10, 10)
    for lease in (1, 2):
        put(state, "moved", lease=lease)
        put(state, f"stays{lease}", lease=lease)
    put(state, "freed", lease=1)
    put(state, "freed")
    copy = restored(state)
    for each in (state, copy):
        events = each.revoke(1)
        assert [event.kv.key for event in events] == ["stays1"]
        assert at(each) == {"moved": b"", "stays2": b"", "freed": b""}
        assert [event.kv.key for event in each.revoke(2)] == ["moved", "stays2"]
        assert each.revoke(2) == ()


def test_a_restored_store_may_lack_the_events_of_the_revision_it_was_compacted_to() -> None:
    state = Mvcc.restore([KeyValue("a", b"1", 3, 5, 2)], [], [], revision=7, compacted=7)
    assert (at(state, 7), put(state, "a", b"2"), at(state, 7), at(state)) == ({"a": b"1"}, 8, {"a": b"1"}, {"a": b"2"})
    state.compact(8)
    with pytest.raises(Compacted):
        state.get("a", 7)


def test_pages_follow_each_other_without_a_hole() -> None:
    state = Mvcc()
    for key in ("a", "a/1", "a/2", "b", "a0"):
        put(state, key)
    seen: list[str] = []
    page: Page | None = None
    while page is None or page.more:
        page = state.range("a", after=seen[-1] if seen else None, limit=1, revision=None, keys_only=True)
        seen += [kv.key for kv in page.items]
    assert seen == ["a", "a/1", "a/2", "a0"]

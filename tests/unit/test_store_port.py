"""The port itself: the algebra of comparisons, the checks at the door, and what the errors say."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostler import (
    Compacted,
    CreateRevision,
    Delete,
    DeletePrefix,
    Get,
    HostlerError,
    Invalid,
    KeyValue,
    Lagged,
    ModRevision,
    Put,
    TooLarge,
    Value,
    Version,
    errors,
)
from hostler.drivers.store.memory import MemoryStore
from hostler.ports.store import (
    MAX_OPERATIONS,
    MAX_REQUEST_BYTES,
    MAX_TTL,
    OPERATION_OVERHEAD,
    PIECE_BYTES,
    Comparison,
    check_delete_prefix,
    check_key,
    check_limit,
    check_prefix,
    check_put,
    check_revision,
    check_ttl,
    check_txn,
    lease_id,
    operation_size,
    pieces,
    watching,
)

numbers = st.integers(-(2**63), 2**63 - 1)


@given(version=st.integers(1, 2**62), created=st.integers(1, 2**62), changed=st.integers(1, 2**62), operand=numbers)
def test_a_comparison_of_numbers_holds_exactly_when_it_is_true(
    version: int, created: int, changed: int, operand: int
) -> None:
    kv = KeyValue("k", b"", created, changed, version)
    for side, actual in ((Version, version), (CreateRevision, created), (ModRevision, changed)):
        assert (side("k") == operand).holds(kv) is (actual == operand)
        assert (side("k") != operand).holds(kv) is (actual != operand)
        assert (side("k") < operand).holds(kv) is (actual < operand)
        assert (side("k") > operand).holds(kv) is (actual > operand)
        assert (side("k") == operand).holds(None) is (operand == 0)
        assert (side("k") > operand).holds(None) is (operand < 0)


@given(value=st.binary(max_size=4), operand=st.binary(max_size=4))
def test_values_compare_as_bytes_and_never_hold_for_an_absent_key(value: bytes, operand: bytes) -> None:
    kv = KeyValue("k", value, 1, 1, 1)
    side = Value("k")
    assert (side == operand).holds(kv) is (value == operand)
    assert (side != operand).holds(kv) is (value != operand)
    assert (side < operand).holds(kv) is (value < operand)
    assert (side > operand).holds(kv) is (value > operand)
    for comparison in (side == operand, side != operand, side < operand, side > operand):
        assert comparison.holds(None) is False


@given(operand=numbers, kv=st.none() | st.builds(KeyValue, st.just("k"), st.just(b""), numbers, numbers, numbers))
def test_of_less_equal_and_greater_exactly_one_holds(operand: int, kv: KeyValue | None) -> None:
    for side in (Version("k"), CreateRevision("k"), ModRevision("k")):
        held = [(side < operand).holds(kv), (side == operand).holds(kv), (side > operand).holds(kv)]
        assert held.count(True) == 1
        assert (side != operand).holds(kv) is not (side == operand).holds(kv)


@pytest.mark.parametrize("side", [Version("k"), CreateRevision("k"), ModRevision("k"), Value("k")])
def test_one_side_of_a_comparison_is_no_condition(side: Any) -> None:
    with pytest.raises(TypeError, match="compare it"):
        bool(side)
    with pytest.raises(TypeError, match="unhashable"):
        hash(side)
    assert "k" in repr(side)


def test_a_comparison_can_be_kept_and_compared() -> None:
    assert (Version("k") == 1) == Comparison("version", "k", "==", 1)
    assert len({Version("k") == 1, Version("k") == 1, Version("k") != 1}) == 2


def test_the_size_of_a_key_is_that_of_its_bytes() -> None:
    assert check_key("abc") == 3
    assert check_key("ä😀") == 6
    assert check_prefix("") == 0


@pytest.mark.parametrize("bad", ["", None, 1, b"k", "\ud800", "a\udfffb"])
def test_what_is_no_key(bad: Any) -> None:
    with pytest.raises(Invalid, match=r"key.*: (must|not)|key: must"):
        check_key(bad)


@pytest.mark.parametrize("bad", [0, -1, 1.0, "1", True, math.nan])
def test_what_is_no_revision_and_no_limit(bad: Any) -> None:
    with pytest.raises(Invalid, match="whole number above 0"):
        check_revision(bad)
    with pytest.raises(Invalid, match="whole number above 0"):
        check_limit(bad)
    check_revision(None)
    check_limit(None)
    with pytest.raises(Invalid):
        check_revision(None, optional=False)


@pytest.mark.parametrize("bad", [0, -1, -0.0, math.inf, math.nan, "1", None, True, MAX_TTL * 1.01])
def test_what_is_no_ttl(bad: Any) -> None:
    with pytest.raises(Invalid, match="ttl"):
        check_ttl(bad)


def test_what_is_a_ttl() -> None:
    assert check_ttl(1) == 1.0
    assert type(check_ttl(1)) is float
    assert check_ttl(MAX_TTL) == MAX_TTL


def test_a_lease_is_given_as_itself_or_as_its_number() -> None:
    class Granted:
        id = 7

    granted: Any = Granted()
    assert lease_id(granted) == 7
    assert lease_id(7) == 7
    assert lease_id(None) is None
    bads: tuple[Any, ...] = (0, -1, True, "7", 2**63, object())
    for bad in bads:
        with pytest.raises(Invalid, match="must be a Lease"):
            lease_id(bad)


def test_a_put_may_be_as_large_as_one_request_and_no_larger() -> None:
    room = MAX_REQUEST_BYTES - OPERATION_OVERHEAD - 2
    check_put("ä", bytes(room))
    with pytest.raises(TooLarge, match=f"{MAX_REQUEST_BYTES + 1} bytes, at most {MAX_REQUEST_BYTES}"):
        check_put("ä", bytes(room + 1))
    with pytest.raises(TooLarge):
        check_put("k" * MAX_REQUEST_BYTES, b"")


def test_a_transaction_counts_all_its_parts() -> None:
    room = MAX_REQUEST_BYTES - 4 * OPERATION_OVERHEAD - 4
    half, rest = room // 2, room - room // 2
    when = [Value("a") == bytes(half)]
    check_txn(when, [Put("c", bytes(rest))], [Delete("d"), Get("e")])
    with pytest.raises(TooLarge):
        check_txn(when, [Put("c", bytes(rest + 1))], [Delete("d"), Get("e")])


@pytest.mark.parametrize("part", [0, 1, 2])
def test_each_part_of_a_transaction_has_its_own_limit(part: int) -> None:
    parts: list[list[Any]] = [[Version("k") == 0], [Get("k")], [Get("k")]]
    full = [items * MAX_OPERATIONS for items in parts]
    check_txn(*full)
    full[part].append(full[part][0])
    with pytest.raises(TooLarge, match=f"{MAX_OPERATIONS + 1} entries"):
        check_txn(*full)


@pytest.mark.parametrize(
    "operations",
    [
        [Put("a", b""), Put("a", b"")],
        [Put("a", b""), Delete("a")],
        [Delete("a"), Put("a", b"")],
        [Put("a/b", b""), DeletePrefix("a/")],
        [DeletePrefix("a"), Put("a", b"")],
    ],
    ids=str,
)
def test_one_branch_writes_a_key_once(operations: list[Any]) -> None:
    for branches in ((operations, ()), ((), operations)):
        with pytest.raises(Invalid, match="one transaction writes a key once"):
            check_txn([], *branches)


def test_what_one_branch_may_do_to_one_key() -> None:
    check_txn([], [Put("a", b""), Get("a"), Get("a")], [Put("a", b"")])
    check_txn([], [Delete("a"), Delete("a"), DeletePrefix("a")], [])
    check_txn([], [Put("ab", b""), DeletePrefix("a/"), Delete("a")], [])


def test_an_empty_prefix_deletes_nothing() -> None:
    with pytest.raises(Invalid, match="would delete every key"):
        check_delete_prefix("")


@given(st.lists(st.integers(0, 400_000), max_size=20), st.integers(1, 8))
def test_pieces_fit_into_a_request_keep_their_order_and_are_no_smaller_than_they_must_be(
    sizes: list[int], most: int
) -> None:
    operations = [Put(f"/ä{number}", b"x" * size) for number, size in enumerate(sizes)]
    found = list(pieces(operations, most=most))
    assert [operation for piece in found for operation in piece] == operations
    for number, piece in enumerate(found, 1):
        total = sum(map(operation_size, piece))
        assert len(piece) == 1 or (len(piece) <= most and total <= PIECE_BYTES)
        check_txn([], piece, [])
        for following in found[number : number + 1]:
            assert len(piece) == most or total + operation_size(following[0]) > PIECE_BYTES


def test_every_error_is_ours_and_says_what_to_do_by_its_kind() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert all(issubclass(kind, HostlerError) for kind in kinds)
    assert all(kind.__doc__ for kind in kinds)
    assert issubclass(TooLarge, Invalid)


def test_missed_events_tell_where_to_go_on() -> None:
    assert Compacted(7).revision == 7
    assert "before revision 7" in str(Compacted(7))
    assert Lagged("/a/", 9).revision == 9
    assert "'/a/'" in str(Lagged("/a/", 9))


async def test_a_store_of_somebody_elses_need_not_know_what_a_watch_may_leave_out() -> None:
    class Older(MemoryStore):
        def watch(self, prefix: str, *, start_revision: int | None = None) -> Any:  # type: ignore[override]
            return super().watch(prefix, start_revision=start_revision)

    async with Older() as store, watching(store, "/a", previous=False) as watch:
        await store.put("/a", b"1")
        await store.put("/a", b"2")
        events = [await anext(watch) for _ in range(2)]
    assert [event.kv.value for event in events] == [b"1", b"2"]

"""Strings in order, at every size and after every change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostler.kit import sorted_sets
from hostler.kit.sorted_sets import SortedSet

short = st.text(alphabet="ab\u00e9\U0001f600", max_size=4)
steps = st.lists(st.tuples(st.booleans(), short), max_size=120)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_sets, "_BLOCK", 3)


@given(st.lists(short, max_size=40), steps, short)
def test_it_holds_what_a_plain_set_holds_in_sorted_order(
    first: list[str], changes: list[tuple[bool, str]], start: str
) -> None:
    ours, plain = SortedSet(first), set(first)
    for adding, item in changes:
        if adding:
            ours.add(item)
            plain.add(item)
        else:
            ours.discard(item)
            plain.discard(item)
        assert (item in ours) is adding
    assert len(ours) == len(plain)
    assert list(ours.from_("")) == sorted(plain)
    assert list(ours.from_(start)) == sorted(item for item in plain if item >= start)
    assert list(ours.from_(start, after=True)) == sorted(item for item in plain if item > start)
    assert all((item in ours) == (item in plain) for item in [*first, start])


def test_the_order_is_that_of_the_encoded_bytes() -> None:
    items = ["\U0001f600", "\uffff", "\u00e9", "z", "\x00", "zz"]
    assert list(SortedSet(items).from_("")) == sorted(items, key=str.encode)


def test_a_set_emptied_in_any_order_can_be_filled_again() -> None:
    items = [f"{number:03}" for number in range(50)]
    ours = SortedSet(items)
    for item in [*items[::2], *items[::-1]]:
        ours.discard(item)
    assert (len(ours), list(ours.from_(""))) == (0, [])
    ours.add("again")
    assert list(ours.from_("")) == ["again"]

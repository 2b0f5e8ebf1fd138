"""Sets of numbers: as a plain set, whatever is done to them, and with the lowest, the highest and the gaps at hand."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from hostler.kit.sorted_sets import Numbers

NUMBERS = st.integers(0, 5_000) | st.sampled_from([1_022, 1_023, 1_024, 1_025, 2_047, 2_048, 1_000_000])


@given(st.lists(st.tuples(st.booleans(), NUMBERS)), NUMBERS)
def test_it_is_the_set_of_what_was_put_in_and_not_taken_out(steps: list[tuple[bool, int]], edge: int) -> None:
    numbers, plain = Numbers(), set[int]()
    for adds, number in steps:
        (numbers.add if adds else numbers.discard)(number)
        (plain.add if adds else plain.discard)(number)
        assert len(numbers) == len(plain)
        assert next(numbers.free(1)) == next(n for n in itertools.count(1) if n not in plain)
    assert list(numbers) == sorted(plain)
    assert list(numbers.above(edge)) == sorted(n for n in plain if n > edge)
    assert list(numbers.below(edge)) == sorted((n for n in plain if n < edge), reverse=True)
    assert list(numbers.below()) == sorted(plain, reverse=True)
    assert edge in numbers if edge in plain else edge not in numbers
    gaps = list(itertools.islice(numbers.free(edge), 3))
    assert gaps == list(itertools.islice((n for n in itertools.count(edge) if n not in plain), 3))


def test_full_blocks_are_passed_over_and_found_again_when_one_goes() -> None:
    numbers = Numbers(range(1, 5_000))
    assert next(numbers.free(1)) == 5_000
    numbers.discard(1_500)
    assert list(itertools.islice(numbers.free(1), 2)) == [1_500, 5_000]
    assert next(numbers.free()) == 0

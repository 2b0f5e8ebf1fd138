"""Numbers of things read as people write them."""

from __future__ import annotations

import pytest

from hostler.kit.plural import counted


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 looks"), (1, "1 look"), (2, "2 looks"), (1_000, "1,000 looks"), (-1, "-1 looks")]
)
def test_one_is_one_and_all_else_is_many(number: int, said: str) -> None:
    assert counted(number, "look") == said


def test_what_has_a_plural_of_its_own_says_it() -> None:
    assert [counted(n, "try", "tries") for n in (1, 2)] == ["1 try", "2 tries"]
    assert counted(1, "record cannot be read, and is", "records cannot be read, and are").endswith("and is")

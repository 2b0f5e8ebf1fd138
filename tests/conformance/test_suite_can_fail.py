"""The suite finds what is wrong: each mutant has one defect, and one claim that must not hold of it."""

from __future__ import annotations

import pytest

from hostler.drivers.store.memory import MemoryStore
from hostler.testing import VirtualClock, check_store, run_virtual, store_claims

from .mutants import MUTANTS


@pytest.mark.parametrize(("mutant", "claim"), [pytest.param(*pair, id=pair[0].__name__) for pair in MUTANTS])
def test_a_defect_is_found(mutant: type[MemoryStore], claim: str) -> None:
    async def check(kind: type[MemoryStore]) -> None:
        await check_store(lambda: kind(clock=VirtualClock()), persistent=False, only=[claim])

    run_virtual(lambda: check(MemoryStore))
    with pytest.raises(ExceptionGroup) as caught:
        run_virtual(lambda: check(mutant))
    (failure,) = caught.value.exceptions
    assert claim.replace("_", " ") in failure.__notes__[0]


async def test_every_claim_that_fails_is_named() -> None:
    class Forgetful(MemoryStore):
        async def delete(self, key: str) -> bool:  # noqa: ARG002 - the defect
            return False

    names = ["delete_says_whether_there_was_a_key", "a_delete_takes_the_next_revision", "a_key_tells_its_lease"]
    with pytest.raises(ExceptionGroup, match="2 of 3 claims do not hold") as caught:
        await check_store(Forgetful, persistent=False, only=names)
    notes = sorted(error.__notes__[0] for error in caught.value.exceptions)
    assert notes == [
        "claim: a delete takes the next revision",
        "claim: delete says whether there was a key",
    ]


async def test_a_claim_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ValueError, match="no such claim: nonsense"):
        await check_store(MemoryStore, persistent=False, only=["nonsense"])


def test_claims_have_names_of_their_own() -> None:
    names = [claim.name for claim in store_claims()]
    assert len(names) == len(set(names)) > 100
    assert [claim.name for claim in store_claims()] == names

"""The suite finds what is wrong: each mutant has one defect, and one claim that must not hold of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import hostler.testing.store.claim as suite
from hostler.drivers.store.memory import MemoryStore
from hostler.testing import check_store, store_claims

from .mutants import MUTANTS

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(("mutant", "claim"), [pytest.param(*pair, id=pair[0].__name__) for pair in MUTANTS])
async def test_a_defect_is_found(
    mutant: Callable[[], MemoryStore], claim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await check_store(MemoryStore, persistent=False, only=[claim])
    monkeypatch.setattr(suite, "WITHIN", 2.5)
    with pytest.raises(ExceptionGroup) as caught:
        await check_store(mutant, persistent=False, only=[claim])
    (failure,) = caught.value.exceptions
    assert claim.replace("_", " ") in failure.__notes__[0]
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()  # of a mutant whose defect is to leave some


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

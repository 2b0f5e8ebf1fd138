# ruff: noqa: ARG002 - a defect often is an argument that is ignored
"""The ttl storage suite finds what is wrong: each mutant has one defect, and one claim that must not hold of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from hostler import Closed
from hostler.drivers.store.memory import MemoryStore
from hostler.drivers.ttl.store import StoreTtlStorage
from hostler.testing import VirtualClock, check_ttl_storage, run_virtual, ttl_storage_claims

if TYPE_CHECKING:
    from collections.abc import Callable

MUTANTS: list[tuple[type[Sound], str]] = []


class Sound(StoreTtlStorage):
    def __init__(self) -> None:
        super().__init__(MemoryStore(clock=VirtualClock()))


def found_by(claim: str) -> Callable[[type[Sound]], type[Sound]]:
    def register(mutant: type[Sound]) -> type[Sound]:
        MUTANTS.append((mutant, claim))
        return mutant

    return register


@found_by("of_two_clients_that_insert_at_once_one_wins")
class LooksThenInserts(Sound):
    async def insert_if_not_exist(self, key: str, value: str, *, ttl: float) -> bool:
        if await self.get(key) is not None:
            return False
        await asyncio.sleep(0)
        await super().insert_if_not_exist(key, value, ttl=ttl)
        return True


@found_by("of_two_clients_that_swap_at_once_one_wins")
@found_by("many_who_count_by_swapping_lose_no_count")
class LooksThenSwaps(Sound):
    async def compare_and_swap(self, key: str, old: str, new: str, *, ttl: float) -> bool:
        if await self.get(key) != old:
            return False
        await asyncio.sleep(0)
        await self._store.put(key, new.encode())
        return True


@found_by("of_two_clients_that_delete_at_once_one_wins")
class LooksThenDeletes(Sound):
    async def compare_and_delete(self, key: str, old: str) -> bool:
        if await self.get(key) != old:
            return False
        await asyncio.sleep(0)
        await self._store.delete(key)
        return True


@found_by("a_live_record_is_not_inserted_over")
class InsertsOver(Sound):
    async def insert_if_not_exist(self, key: str, value: str, *, ttl: float) -> bool:
        await self._store.put(key, value.encode())
        return True


@found_by("a_delete_removes_the_value_it_names_and_no_other")
class DeletesAnything(Sound):
    async def compare_and_delete(self, key: str, old: str) -> bool:
        return await self._store.delete(key)


@found_by("a_record_lives_for_its_ttl_and_not_much_longer")
class NeverExpires(Sound):
    async def insert_if_not_exist(self, key: str, value: str, *, ttl: float) -> bool:
        return await super().insert_if_not_exist(key, value, ttl=100 * ttl)


@found_by("a_record_lives_for_its_ttl_and_not_much_longer")
class ExpiresEarly(Sound):
    async def insert_if_not_exist(self, key: str, value: str, *, ttl: float) -> bool:
        return await super().insert_if_not_exist(key, value, ttl=0.9 * ttl)


@found_by("a_swap_gives_the_record_another_life")
class SwapKeepsTheOldLife(Sound):
    async def compare_and_swap(self, key: str, old: str, new: str, *, ttl: float) -> bool:
        return await self.get(key) == old


@found_by("a_swap_to_a_shorter_life_ends_sooner_and_leaves_the_key_free")
class SwapOnlyLengthens(Sound):
    async def compare_and_swap(self, key: str, old: str, new: str, *, ttl: float) -> bool:
        return await super().compare_and_swap(key, old, new, ttl=max(ttl, 60))


@found_by("a_failed_swap_gives_no_other_life")
class FailedSwapRenews(Sound):
    async def compare_and_swap(self, key: str, old: str, new: str, *, ttl: float) -> bool:
        now = await self.get(key)
        if now is not None and now != old:
            await super().compare_and_swap(key, now, now, ttl=ttl)
            return False
        return await super().compare_and_swap(key, old, new, ttl=ttl)


@found_by("a_record_with_ttl_zero_never_expires")
class ZeroIsASecond(Sound):
    async def insert_if_not_exist(self, key: str, value: str, *, ttl: float) -> bool:
        return await super().insert_if_not_exist(key, value, ttl=ttl or 1)


@found_by("an_expired_record_is_found_by_no_verb")
class RevivesTheDead(Sound):
    async def compare_and_swap(self, key: str, old: str, new: str, *, ttl: float) -> bool:
        if await self.get(key) is None:
            return await self.insert_if_not_exist(key, new, ttl=ttl)
        return await super().compare_and_swap(key, old, new, ttl=ttl)


@found_by("every_text_comes_back_as_it_was")
class StripsText(Sound):
    async def get(self, key: str) -> str | None:
        value = await super().get(key)
        return None if value is None else value.strip()


@found_by("what_cannot_be_a_record_is_refused")
class TakesNegativeLives(Sound):
    async def insert_if_not_exist(self, key: str, value: str, *, ttl: float) -> bool:
        if isinstance(ttl, int | float) and ttl < 0:
            ttl = 0
        return await super().insert_if_not_exist(key, value, ttl=ttl)


@found_by("insert_swap_and_delete_are_noticed_at_once")
class PollsSlowly(Sound):
    async def wait_change(self, key: str, seen: str | None, *, within: float) -> str | None:
        while within > 0 and await self.get(key) == seen:
            await asyncio.sleep(2)
            within -= 2
        return await self.get(key)


@found_by("a_storage_that_is_not_open_does_nothing")
class AnswersWhenClosed(Sound):
    async def get(self, key: str) -> str | None:
        try:
            return await super().get(key)
        except Closed:
            return None


@pytest.mark.parametrize(("mutant", "claim"), [pytest.param(*pair, id=f"{pair[0].__name__}") for pair in MUTANTS])
def test_a_defect_is_found(mutant: type[Sound], claim: str) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        run_virtual(lambda: check_ttl_storage(mutant, persistent=False, rounds=20, only=[claim]))
    (failure,) = caught.value.exceptions
    assert claim.replace("_", " ") in failure.__notes__[0]


def test_what_the_mutants_are_made_of_is_sound() -> None:
    run_virtual(lambda: check_ttl_storage(Sound, persistent=False, rounds=20, only={claim for _, claim in MUTANTS}))


def test_claims_have_names_of_their_own() -> None:
    names = [claim.name for claim in ttl_storage_claims()]
    assert len(names) == len(set(names)) >= 29

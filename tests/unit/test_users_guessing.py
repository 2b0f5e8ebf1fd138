"""Guessing: slowed, without a word about whether the account exists, and without locking out whoever has a token."""

from __future__ import annotations

import asyncio

import pytest
from accounts import ADMIN, PASSWORD, Place, one_replica, virtual

from hostler.engine.access.authentication import ACCOUNT_TRIES
from hostler.engine.access.rate_limits import Slowing
from hostler.engine.request import Request
from hostler.errors import Forbidden, Invalid, TooManyTries, Unauthenticated, Unavailable
from hostler.kit.connections import origin
from hostler.kit.virtual_loop import VirtualClock
from hostler.model.access import Role
from hostler.model.access_api import Login, TokenIssued, UserCreate, UserUpdate


async def tried(place: Place, name: str, password: str = "wrong", source: str = "10.0.0.1") -> TokenIssued:
    return await place.users.login(Login(name=name, password=password), source)


@virtual
async def test_unknown_disabled_without_a_password_and_wrong_are_one_answer_after_the_same_work() -> None:
    async with one_replica() as place:
        await place.users.create(ADMIN, UserCreate(name="ada", password=PASSWORD))
        await place.users.create(ADMIN, UserCreate(name="off", password=PASSWORD, enabled=False))
        await place.users.create(ADMIN, UserCreate(name="bare"))
        answers = set()
        for name, password in (
            ("ada", "wrong"),
            ("off", PASSWORD),
            ("bare", ""),
            ("bare", "x"),
            ("nobody", PASSWORD),
            ("a/b", PASSWORD),
            ("", ""),
            ("..", "x"),
            ("hostler", "x"),
        ):
            began, asked = place.clock.now(), len(place.hasher.asked)
            with pytest.raises(Unauthenticated) as caught:
                await tried(place, name, password)
            answers.add((str(caught.value), round(place.clock.now() - began, 3), len(place.hasher.asked) - asked))
        assert answers == {("login: name or password is wrong; correct them and try again", 0.1, 1)}
        assert (await tried(place, "ADA", PASSWORD)).user == "ada"


@pytest.mark.parametrize("name", ["ada", "nobody"])
def test_the_sixth_try_waits_and_then_each_twice_as_long_whether_or_not_the_account_exists(name: str) -> None:
    @virtual
    async def main() -> None:
        async with one_replica() as place:
            await place.users.create(ADMIN, UserCreate(name="ada", password=PASSWORD))
            for n in range(5):
                with pytest.raises(Unauthenticated):
                    await tried(place, name, source=f"10.0.{n}.1")
            waits = []
            for n in range(9):
                with pytest.raises(TooManyTries) as caught:
                    await tried(place, name, source=f"10.1.{n}.1")
                waits.append(round(caught.value.after + 0.1))
                await asyncio.sleep(caught.value.after)
                with pytest.raises(Unauthenticated):
                    await tried(place, name, source=f"10.1.{n}.1")
            assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]

    main()


@virtual
async def test_a_success_starts_the_account_anew() -> None:
    async with one_replica() as place:
        await place.users.create(ADMIN, UserCreate(name="ada", password=PASSWORD))
        for _ in range(3):
            for n in range(4):
                with pytest.raises(Unauthenticated):
                    await tried(place, "ada", source=f"10.0.{n}.1")
            await tried(place, "ada", PASSWORD)


@virtual
async def test_a_thousand_guesses_at_once_are_five() -> None:
    async with one_replica() as place:
        await place.users.create(ADMIN, UserCreate(name="ada", password=PASSWORD))
        got = await asyncio.gather(
            *(tried(place, "ada", f"guess {n}", f"10.{n // 250}.{n % 250}.1") for n in range(1000)),
            return_exceptions=True,
        )
        assert sum(isinstance(error, Unauthenticated) for error in got) == 5
        assert sum(isinstance(error, TooManyTries) for error in got) == 995
        assert len(place.hasher.asked) == 5


@virtual
async def test_a_source_that_tries_many_names_is_slowed_and_its_own_password_is_no_way_out() -> None:
    async with one_replica() as place:
        await place.users.create(ADMIN, UserCreate(name="mine", password=PASSWORD))
        for n in range(20):
            await tried(place, "mine", PASSWORD)
            with pytest.raises(Unauthenticated):
                await tried(place, f"name {n}")
        with pytest.raises(TooManyTries):
            await tried(place, "mine", PASSWORD)
        with pytest.raises(Unauthenticated):
            await tried(place, "name", source="10.9.9.9")


@virtual
async def test_guesses_from_elsewhere_do_not_lock_out_where_the_account_has_logged_in_before() -> None:
    async with one_replica() as place:
        await place.users.create(ADMIN, UserCreate(name="ada", password=PASSWORD))
        await tried(place, "Ada", PASSWORD, "10.0.0.7")
        for n in range(8):
            with pytest.raises((Unauthenticated, TooManyTries)):
                await tried(place, "ada", source=f"10.1.{n}.1")
        with pytest.raises(TooManyTries):
            await tried(place, "ada", PASSWORD, "10.2.0.1")
        for _ in range(5):
            with pytest.raises(Unauthenticated):
                await tried(place, "ada", source="10.0.0.7")
        with pytest.raises(TooManyTries):
            await tried(place, "ada", source="10.0.0.7")
        await asyncio.sleep(1.0)
        assert (await tried(place, "ada", PASSWORD, "10.0.0.7")).user == "ada"


@virtual
async def test_guessing_an_account_does_not_lock_out_its_tokens() -> None:
    async with one_replica() as place:
        ada = await place.caller("ada")
        token = await place.token("ada")
        for _ in range(40):
            with pytest.raises((Unauthenticated, TooManyTries)):
                await tried(place, "ada")
            with pytest.raises((Unauthenticated, TooManyTries)):
                place.users.authenticate("hst_guess", "10.0.0.1")
        assert place.users.authenticate(token, "10.0.0.1").name == ada.name


@virtual
async def test_token_guesses_are_slowed_by_source_and_ask_the_store_nothing() -> None:
    async with one_replica() as place:
        await place.caller("ada")
        place.store.get = place.store.range = place.store.txn = None  # type: ignore[method-assign, assignment]
        for n in range(20):
            with pytest.raises(Unauthenticated):
                place.users.authenticate(f"hst_{n}", "10.0.0.1")
        with pytest.raises(TooManyTries) as caught:
            place.users.authenticate("hst_more", "10.0.0.1")
        assert caught.value.after == pytest.approx(1.0)
        with pytest.raises(Unauthenticated):
            place.users.authenticate("hst_more", "10.0.0.2")
        del place.store.get, place.store.range, place.store.txn


@virtual
async def test_tries_that_had_no_answer_are_not_counted() -> None:
    async with one_replica() as place:
        await place.users.create(ADMIN, UserCreate(name="ada", password=PASSWORD))

        async def full(kept: str, password: str) -> bool:
            raise Unavailable("not now")

        verify, place.hasher.verify = place.hasher.verify, full  # type: ignore[method-assign]
        for _ in range(30):
            with pytest.raises(Unavailable, match="not now"):
                await tried(place, "ada")
        place.hasher.verify = verify  # type: ignore[method-assign]
        assert (await tried(place, "ada", PASSWORD)).user == "ada"


@virtual
async def test_who_hangs_up_before_the_answer_has_tried_nevertheless() -> None:
    async with one_replica() as place:
        await place.users.create(ADMIN, UserCreate(name="ada", password=PASSWORD))
        for n in range(5):
            task = asyncio.create_task(tried(place, "ada", source=f"10.0.{n}.1"))
            await asyncio.sleep(0.05)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        with pytest.raises(TooManyTries):
            await tried(place, "ada", source="10.0.9.1")


@virtual
async def test_a_session_alone_does_not_change_the_password_and_guesses_are_slowed() -> None:
    """I37: changing one's own password asks for the old one."""
    async with one_replica() as place:
        ada = await place.caller("ada")

        async def change(old: str, key: str | None = None) -> None:
            await place.users.update(Request(ada, key=key), "ada", UserUpdate(password="mine now 1", old_password=old))

        with pytest.raises(Invalid, match="old_password"):
            await place.users.update(Request(ada), "ada", UserUpdate(password="mine now 1"))
        for _ in range(ACCOUNT_TRIES):
            with pytest.raises(Forbidden, match="the old password is wrong"):
                await change("a guess")
        with pytest.raises(TooManyTries):
            await change("a guess")
        await asyncio.sleep(120)
        await tried(place, "ada", PASSWORD)  # it is as it was
        await change(PASSWORD, key="k1")
        await change(PASSWORD, key="k1")  # the same request again is answered as before
        await tried(place, "ada", "mine now 1")

        await place.users.update(ADMIN, "ada", UserUpdate(password="reset by ADMIN"))
        await tried(place, "ada", "reset by ADMIN")
        await place.users.create(ADMIN, UserCreate(name="bob"))
        bob = place.users.authenticate(await place.token("bob"))  # has no password yet
        await place.users.update(Request(bob), "bob", UserUpdate(password="the first one"))


@virtual
async def test_an_account_that_manages_accounts_needs_its_own_old_password_and_no_other() -> None:
    async with one_replica() as place:
        root = await place.caller("root", role=Role.ADMIN, memberships=("*",))
        assert root.rights.manage_accounts
        await place.users.create(ADMIN, UserCreate(name="ada", password=PASSWORD))
        for name in ("root", "ROOT"):
            with pytest.raises(Invalid, match="old_password"):
                await place.users.update(Request(root), name, UserUpdate(password="mine now 1"))
        with pytest.raises(Forbidden, match="the old password is wrong"):
            await place.users.update(Request(root), "root", UserUpdate(password="mine now 1", old_password="a guess"))
        await tried(place, "root", PASSWORD)  # it is as it was
        await place.users.update(Request(root), "ada", UserUpdate(password="reset by root"))
        await tried(place, "ada", "reset by root")
        await place.users.update(Request(root), "root", UserUpdate(password="mine now 1", old_password=PASSWORD))
        await tried(place, "root", "mine now 1")


@virtual
async def test_recovery_removes_a_lost_password_if_that_is_asked_for() -> None:
    async with one_replica() as place:
        token = await place.users.first_admin()
        assert token is not None
        await place.users.update(Request(place.users.authenticate(token)), "admin", UserUpdate(password=PASSWORD))
        kept = place.users.authenticate(await place.users.recover_admin())
        with pytest.raises(Invalid, match="old_password"):
            await place.users.update(Request(kept), "admin", UserUpdate(password="mine now 1"))
        caller = place.users.authenticate(await place.users.recover_admin(remove_password=True))
        with pytest.raises(Unauthenticated):
            await tried(place, "admin", PASSWORD)
        await place.users.update(Request(caller), "admin", UserUpdate(password="mine now 1"))
        await tried(place, "admin", "mine now 1")


@virtual
async def test_a_password_that_changes_while_it_is_checked_opens_nothing() -> None:
    async with one_replica() as place:
        await place.users.create(ADMIN, UserCreate(name="ada", password=PASSWORD))
        task = asyncio.create_task(tried(place, "ada", PASSWORD))
        await asyncio.sleep(0.05)
        await place.users.update(ADMIN, "ada", UserUpdate(password="another one"))
        with pytest.raises(Unauthenticated):
            await task


@virtual
async def test_an_unrelated_change_while_it_is_checked_does_no_harm() -> None:
    async with one_replica() as place:
        await place.users.create(ADMIN, UserCreate(name="ada", password=PASSWORD))
        task = asyncio.create_task(tried(place, "ada", PASSWORD))
        await asyncio.sleep(0.05)
        await place.users.update(ADMIN, "ada", UserUpdate(full_name="Ada"))
        assert place.users.authenticate((await task).token).name == "ada"


# The counting itself


@virtual
async def test_memory_is_bounded_and_time_forgives() -> None:
    slowing = Slowing("login", clock=VirtualClock(), free=2, capacity=100)
    for n in range(1000):
        slowing.record_failure(f"name {n}")
    assert len(slowing) == 100
    for _ in range(3):
        slowing.record_failure("x")
    assert slowing.wait("x") == 2.0
    await asyncio.sleep(61)
    assert slowing.wait("x") == 0.0
    slowing.record_failure("x")
    assert slowing.wait("x") == 2.0
    await asyncio.sleep(1000)
    slowing.begin("x")
    slowing.begin("x")
    with pytest.raises(TooManyTries):
        slowing.begin("x")


@virtual
async def test_years_of_failures_wait_a_minute() -> None:
    slowing = Slowing("login", clock=VirtualClock(), free=5)
    for _ in range(10_000):
        slowing.record_failure("x")
    assert slowing.wait("x") == 60.0


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("[2001:db8:1:2::9]", "2001:db8:1:2::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("", ""),
        ("unix", "unix"),
        ("x" * 1000, "x" * 255),
    ],
)
def test_sources_are_counted_as_those_who_can_change_them(source: str, expected: str) -> None:
    assert origin(source) == expected

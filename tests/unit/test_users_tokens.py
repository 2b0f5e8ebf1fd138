"""Tokens and sessions: what they open, when they end, and that the store may be gone."""

from __future__ import annotations

import asyncio
import random
import time

import pytest
from accounts import ADMIN, PASSWORD, Place, one_replica, replica, virtual

from hostler.drivers.store.faulty import FaultyStore
from hostler.drivers.store.memory import MemoryStore
from hostler.engine.access.token import MOST, digest_of
from hostler.engine.request import HOSTLER, Request
from hostler.errors import Conflict, Invalid, NotFound, QuotaExceeded, TooManyTries, Unauthenticated, Unavailable
from hostler.keys.families import AUDIT, TOKEN, USER
from hostler.kit.virtual_loop import VirtualClock, run_virtual
from hostler.model.access import Role, Token, TokenKind
from hostler.model.access_api import Login, TokenCreate, UserCreate, UserUpdate
from hostler.model.inventory import User

LOGIN = Login(name="Ada", password=PASSWORD)


def counts(place: Place, token: str) -> bool:
    try:
        place.users.authenticate(token, "10.0.0.1")
    except Unauthenticated:
        return False
    return True


@virtual
async def test_a_token_stands_for_its_account_and_only_its_digest_is_kept() -> None:
    async with one_replica() as place:
        await place.users.create(ADMIN, UserCreate(name="Ada", role=Role.MEMBER, memberships=("acme",)))
        issued = (await place.users.issue(ADMIN, "ADA", TokenCreate(name="laptop"))).value
        caller = place.users.authenticate(issued.token, "10.0.0.1")
        assert (caller.name, caller.memberships, caller.source, caller.token) == (
            "ada",
            ("acme",),
            "10.0.0.1",
            issued.id,
        )
        assert caller.rights.modify_workloads
        entry = await TOKEN.get(place.store, digest=digest_of(issued.token))
        assert entry is not None
        (shown,) = (await place.users.tokens(HOSTLER, "ada")).items
        assert (shown.id, shown.name, shown.purpose) == (issued.id, "laptop", TokenKind.API)
        assert issued.token not in repr(place.users) + repr(caller) + repr(shown) + repr(entry)


@pytest.mark.parametrize("token", ["", "x", "hst_", "hst_nope", "hst_" + "x" * 10_000, "Bearer", "hst_\ud800", "hst_é"])
def test_what_is_no_token_opens_nothing(token: str) -> None:
    async def main() -> None:
        async with one_replica() as place:
            await place.caller("ada")
            with pytest.raises(Unauthenticated, match="token: not valid"):
                place.users.authenticate(token, "10.0.0.1")

    run_virtual(main)


@virtual
async def test_own_writes_count_at_once_though_the_mirrors_stand_still() -> None:
    async with one_replica(follow=False) as place:
        await place.users.create(ADMIN, UserCreate(name="ada", role=Role.VIEWER))
        issued = (await place.users.issue(ADMIN, "ada", TokenCreate())).value
        kept = (await place.users.issue(ADMIN, "ada", TokenCreate())).value
        assert not place.users.authenticate(issued.token).rights.modify_workloads
        await place.users.update(ADMIN, "ada", UserUpdate(role=Role.MEMBER))
        assert place.users.authenticate(issued.token).rights.modify_workloads
        await place.users.revoke(ADMIN, "ada", issued.id)
        assert not counts(place, issued.token)
        assert counts(place, kept.token)
        await place.users.update(ADMIN, "ada", UserUpdate(enabled=False))
        assert not counts(place, kept.token)


@pytest.mark.parametrize("seed", range(10))
def test_a_revoked_token_stays_revoked_while_the_mirror_catches_up(seed: int) -> None:
    async def main() -> None:
        async with one_replica() as place:
            await place.users.create(ADMIN, UserCreate(name="ada", role=Role.VIEWER))
            for _ in range(10):
                issued = (await place.users.issue(ADMIN, "ada", TokenCreate())).value
                for _ in range(3):
                    assert counts(place, issued.token)
                    await asyncio.sleep(0)
                await place.users.revoke(ADMIN, "ada", issued.id)
                for _ in range(5):
                    assert not counts(place, issued.token)
                    await asyncio.sleep(0)
                place.users._door._by_token.forget("10.0.0.1")
            await asyncio.sleep(5)
            assert not place.users._known.tokens._written
            assert not place.users._known._tokens_of

    run_virtual(main, seed=seed)


@virtual
async def test_other_replicas_follow() -> None:
    async with MemoryStore(clock=VirtualClock()) as store, replica(store, "a") as a, replica(store, "b") as b:
        await a.users.create(ADMIN, UserCreate(name="ada"))
        issued = (await a.users.issue(ADMIN, "ada", TokenCreate())).value
        await asyncio.sleep(0.1)
        assert counts(b, issued.token)
        await b.users.revoke(ADMIN, "ada", issued.id)
        await asyncio.sleep(0.1)
        assert not counts(a, issued.token)


@virtual
async def test_a_token_of_another_replica_counts_before_the_mirrors_have_heard_of_it() -> None:
    async with (
        MemoryStore(clock=VirtualClock()) as store,
        replica(store, "a") as a,
        replica(store, "b", follow=False) as b,
    ):
        await a.users.create(ADMIN, UserCreate(name="ada"))
        issued = (await a.users.issue(ADMIN, "ada", TokenCreate())).value
        assert (await b.users.meet(issued.token)).name == "ada"
        assert b.users.authenticate(issued.token).name == "ada"  # it is known from now on


@virtual
async def test_a_token_counts_where_it_was_issued_though_another_replica_created_the_account() -> None:
    async with (
        MemoryStore(clock=VirtualClock()) as store,
        replica(store, "a") as a,
        replica(store, "b", follow=False) as b,
    ):
        await a.users.create(ADMIN, UserCreate(name="ada", password=PASSWORD))
        session = await b.users.login(LOGIN, "10.0.0.1")
        assert b.users.authenticate(session.token).name == "ada"
        issued = (await b.users.issue(ADMIN, "ada", TokenCreate())).value
        assert b.users.authenticate(issued.token).name == "ada"


@pytest.mark.parametrize("behind", ["users", "tokens"])
def test_a_token_counts_whichever_of_the_two_caches_is_behind(behind: str) -> None:
    async def main() -> None:
        async with (
            MemoryStore(clock=VirtualClock()) as store,
            replica(store, "a") as a,
            replica(store, "b", follow=False) as b,
        ):
            await a.users.create(ADMIN, UserCreate(name="ada", password=PASSWORD))
            await b.view.refresh()
            await a.users.update(ADMIN, "ada", UserUpdate(password="another one"))  # ends sessions of before
            session = await a.users.login(Login(name="ada", password="another one"), "10.0.0.1")
            await b.view.refresh(b.view.tokens if behind == "users" else b.view.users)
            assert (await b.users.meet(session.token, "10.0.0.1")).name == "ada"

    run_virtual(main)


@virtual
async def test_what_the_store_answered_before_a_token_was_revoked_does_not_bring_it_back() -> None:
    async with one_replica(follow=False) as place:
        await place.users.create(ADMIN, UserCreate(name="ada"))
        issued = (await place.users.issue(ADMIN, "ada", TokenCreate())).value
        read = await TOKEN.get(place.store, digest=digest_of(issued.token))
        assert read is not None
        await place.users.revoke(ADMIN, "ada", issued.id)
        place.users._known.tokens.learned(read)
        assert not counts(place, issued.token)


@virtual
async def test_who_guesses_tokens_too_often_has_the_store_asked_no_more() -> None:
    async with MemoryStore(clock=VirtualClock()) as memory:
        store = FaultyStore(memory, random.Random(1), clock=VirtualClock())
        async with replica(store, "a", follow=False) as a:
            store.script("get", "unavailable", times=1_000)  # each that is asked is used up
            for number in range(200):
                with pytest.raises((Unauthenticated, TooManyTries)):
                    await a.users.meet(f"hst_{number:043d}", "10.0.0.9")
            assert 900 < store._scripts[0].times < 1_000


@virtual
async def test_a_token_that_only_the_store_knows_yet_can_be_revoked() -> None:
    async with (
        MemoryStore(clock=VirtualClock()) as store,
        replica(store, "a", follow=False) as a,
        replica(store, "b") as b,
    ):
        await b.users.create(ADMIN, UserCreate(name="ada"))
        issued = (await b.users.issue(ADMIN, "ada", TokenCreate())).value
        await a.users.revoke(ADMIN, "ada", issued.id)
        await asyncio.sleep(0.1)
        assert not counts(b, issued.token)
        with pytest.raises(NotFound):
            await a.users.revoke(ADMIN, "ada", issued.id)


@virtual
async def test_a_token_of_another_account_is_not_found() -> None:
    async with one_replica() as place:
        ada, _ = await place.caller("ada"), await place.caller("bob")
        bobs = (await place.users.tokens(HOSTLER, "bob")).items[0].id
        with pytest.raises(NotFound):
            await place.users.revoke(Request(ada), "ada", bobs)


@virtual
async def test_tokens_count_while_the_store_is_out_of_reach() -> None:
    async with MemoryStore(clock=VirtualClock()) as inner:
        store = FaultyStore(inner, random.Random(1), clock=VirtualClock())
        async with replica(store) as place:
            await place.caller("ada")
            token = await place.token("ada")
            await asyncio.sleep(1)
            store.down()
            await asyncio.sleep(30)
            assert place.users.authenticate(token).name == "ada"
            assert place.users.whoami(place.users.authenticate(token)).name == "ada"
            with pytest.raises(Unavailable):
                await place.users.login(LOGIN, "10.0.0.1")
            store.up()


@virtual
async def test_before_the_first_look_nothing_is_said_to_be_wrong() -> None:
    async with MemoryStore(clock=VirtualClock()) as store:
        async with replica(store, "a") as a:
            await a.caller("ada")
            token = await a.token("ada")
        with pytest.raises(Unavailable, match="not read"):
            Place(store, "b").users.authenticate(token)


# The end of a token


@virtual
async def test_an_expired_token_counts_no_more_and_is_swept() -> None:
    async with one_replica() as place:
        await place.users.create(ADMIN, UserCreate(name="ada"))
        short = (await place.users.issue(ADMIN, "ada", TokenCreate(expires_in=60))).value
        await asyncio.sleep(59)
        assert counts(place, short.token)
        await asyncio.sleep(2)
        assert not counts(place, short.token)
        assert not counts(place, short.token)
        assert (await place.users.tokens(HOSTLER, "ada")).items == ()
        await place.users.issue(ADMIN, "ada", TokenCreate())
        assert len((await TOKEN.list(place.store)).entries) == 1


@virtual
async def test_a_replica_whose_calendar_is_in_doubt_deletes_no_token() -> None:
    async with one_replica() as place:
        await place.users.create(ADMIN, UserCreate(name="ada", password=PASSWORD))
        day = (await place.users.issue(ADMIN, "ada", TokenCreate(expires_in=86400))).value
        session = await place.users.login(LOGIN, "10.0.0.1")
        right = place.clock._epoch
        place.clock._epoch += 7 * 86400.0  # the clock was set wrong
        await place.users.login(LOGIN, "10.0.0.1")
        await place.users.issue(ADMIN, "ada", TokenCreate())
        place.clock._epoch = right
        assert counts(place, day.token)
        assert counts(place, session.token)


@virtual
async def test_a_session_ends_after_twelve_hours_or_by_logging_out() -> None:
    async with one_replica() as place:
        ada = await place.caller("ada")
        one, two = await place.users.login(LOGIN, "a"), await place.users.login(LOGIN, "a")
        caller = place.users.authenticate(two.token)
        await place.users.logout(Request(caller))
        assert (counts(place, one.token), counts(place, two.token)) == (True, False)
        with pytest.raises(NotFound):
            await place.users.logout(Request(caller))
        with pytest.raises(Invalid, match="API token"):
            await place.users.logout(Request(ada))
        await asyncio.sleep(12 * 3600)
        assert not counts(place, one.token)


@virtual
async def test_another_password_ends_sessions_and_leaves_api_tokens() -> None:
    async with one_replica() as place:
        ada = await place.caller("ada")
        session, token = await place.users.login(LOGIN, "a"), await place.token("ada")
        await place.users.update(Request(ada), "ada", UserUpdate(full_name="Ada"))
        assert counts(place, session.token)
        await place.users.update(Request(ada), "ada", UserUpdate(password="something new", old_password=PASSWORD))
        assert (counts(place, session.token), counts(place, token)) == (False, True)
        with pytest.raises(Unauthenticated):
            await place.users.login(LOGIN, "a")
        await place.users.login(Login(name="ada", password="something new"), "a")


@virtual
async def test_a_disabled_account_has_no_tokens_when_it_is_enabled_again() -> None:
    async with one_replica() as place:
        await place.caller("ada")
        session, token = await place.users.login(LOGIN, "a"), await place.token("ada")
        await place.users.update(ADMIN, "ada", UserUpdate(enabled=False))
        assert (counts(place, session.token), counts(place, token)) == (False, False)
        with pytest.raises(Conflict, match="enable it first"):
            await place.users.issue(ADMIN, "ada", TokenCreate())
        await place.users.update(ADMIN, "ada", UserUpdate(enabled=True))
        assert (counts(place, session.token), counts(place, token)) == (False, False)
        assert (await place.users.tokens(HOSTLER, "ada")).items == ()
        assert (await TOKEN.list(place.store)).entries == ()


@virtual
async def test_a_new_account_of_an_old_name_has_no_old_tokens_even_if_their_keys_were_left() -> None:
    async with one_replica() as place:
        await place.caller("ada")
        token = await place.token("ada")
        left = await TOKEN.get(place.store, digest=digest_of(token))
        assert left is not None
        await place.users.delete(ADMIN, "ada")
        assert not counts(place, token)
        await place.users.create(ADMIN, UserCreate(name="Ada", role=Role.ADMIN))
        await TOKEN.create(place.store, left.value, digest=digest_of(token))
        await asyncio.sleep(1)
        assert not counts(place, token)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("end", ["disable", "delete", "password"])
def test_no_token_slips_through_while_an_account_is_ended(seed: int, end: str) -> None:
    async def main() -> None:
        async with MemoryStore(clock=VirtualClock()) as store, replica(store, "a") as a, replica(store, "b") as b:
            await a.caller("ada")
            await asyncio.sleep(1)

            async def ended() -> None:
                await asyncio.sleep(0.1)
                if end == "disable":
                    await a.users.update(ADMIN, "ada", UserUpdate(enabled=False))
                    await a.users.update(ADMIN, "ada", UserUpdate(enabled=True))
                elif end == "delete":
                    await a.users.delete(ADMIN, "ada")
                    await a.users.create(ADMIN, UserCreate(name="ada", password=PASSWORD))
                else:
                    await a.users.update(ADMIN, "ada", UserUpdate(password="another one"))

            logins = [b.users.login(LOGIN, f"10.0.{n}.1") for n in range(4)]
            got = await asyncio.gather(*logins, ended(), return_exceptions=True)
            user = await USER.get(store, user="ada")
            assert user is not None
            await asyncio.sleep(1)
            for issued in got[:-1]:
                if isinstance(issued, BaseException):
                    assert isinstance(issued, Unauthenticated)
                    continue
                entry = await TOKEN.get(store, digest=digest_of(issued.token))
                if counts(b, issued.token):
                    assert entry is not None
                    assert entry.create_revision > user.mod_revision, "it was begun before the account was ended"

    run_virtual(main, seed=seed)


# Limits


@virtual
async def test_an_account_has_a_hundred_api_tokens_and_its_oldest_session_makes_room() -> None:
    async with one_replica() as place:
        await place.users.create(ADMIN, UserCreate(name="ada", password=PASSWORD))
        for _ in range(MOST):
            await place.users.issue(ADMIN, "ada", TokenCreate())
        with pytest.raises(QuotaExceeded, match="revoke one"):
            await place.users.issue(ADMIN, "ada", TokenCreate())
        sessions = []
        for _ in range(MOST + 3):
            sessions.append((await place.users.login(LOGIN, "a")).token)
            await asyncio.sleep(1)
        assert [counts(place, token) for token in sessions] == [False] * 3 + [True] * MOST


@virtual
async def test_a_hundred_dead_tokens_do_not_keep_an_account_from_a_new_one() -> None:
    async with one_replica() as place:
        await place.users.create(ADMIN, UserCreate(name="ada", password=PASSWORD))
        for _ in range(MOST):
            await place.users.issue(ADMIN, "ada", TokenCreate(expires_in=10))
        await asyncio.sleep(11)
        for _ in range(3):
            await place.users.issue(ADMIN, "ada", TokenCreate())
        assert len((await TOKEN.list(place.store)).entries) == 3


@virtual
async def test_every_write_is_in_the_audit_without_a_secret() -> None:
    async with one_replica() as place:
        ada = await place.caller("ada")
        session = await place.users.login(LOGIN, "10.1.1.1")
        await place.users.revoke(Request(ada), "ada", session.id)
        entries = [entry.value for entry in (await AUDIT.list(place.store)).entries]
        assert [(entry.who, entry.verb) for entry in entries] == [
            ("hostler", "user.create"),
            ("hostler", "token.issue"),
            ("ada", "session.begin"),
            ("ada", "token.revoke"),
        ]
        assert entries[2].source == "10.1.1.1"
        assert session.token not in str(entries)


@virtual
async def test_a_record_that_cannot_be_read_breaks_nobody_else() -> None:
    async with one_replica() as place:
        await place.caller("ada")
        await place.store.put(USER.fill(user="broken"), b"{")
        await place.store.put(TOKEN.fill(digest="f" * 64), b"[]")
        await asyncio.sleep(1)
        assert [user.name for user in (await place.users.list(HOSTLER)).items] == ["ada"]
        assert len((await place.users.tokens(HOSTLER, "ada")).items) == 1
        with pytest.raises(Unauthenticated):
            await place.users.login(Login(name="broken", password=PASSWORD), "a")
        assert await place.users.first_admin() is None


@virtual
async def test_accounts_of_other_programs_without_an_era_can_have_tokens() -> None:
    async with one_replica() as place:
        await USER.create(place.store, User(name="guest"), user="guest")
        token = "hst_given"
        record = Token(id="t1", user="guest", purpose=TokenKind.API, created_at=0.0)
        await TOKEN.create(place.store, record, digest=digest_of(token))
        await asyncio.sleep(1)
        assert counts(place, token)
        assert counts(place, await place.token("guest"))


@virtual
async def test_issuing_for_an_account_that_keeps_changing_is_a_conflict() -> None:
    async with one_replica() as place:
        await place.caller("ada")
        commit = place.writer.commit

        async def beaten(*args, **kwargs):  # type: ignore[no-untyped-def]
            await place.store.put(USER.fill(user="ada"), (await place.store.get(USER.fill(user="ada"))).value)  # type: ignore[union-attr]
            return await commit(*args, **kwargs)

        place.writer.commit = beaten  # type: ignore[method-assign]
        with pytest.raises(Conflict):
            await place.users.issue(ADMIN, "ada", TokenCreate())
        with pytest.raises(Unavailable):
            await place.users.login(LOGIN, "a")
        with pytest.raises(Conflict):
            await place.users.update(ADMIN, "ada", UserUpdate(full_name="x"))
        assert len((await TOKEN.list(place.store)).entries) == 1


async def test_knowing_a_caller_costs_microseconds() -> None:
    async with MemoryStore() as store, replica(store) as place:
        place.clock = VirtualClock()
        await place.caller("ada")
        token = await place.token("ada")
        best = min(_timed(place, token) for _ in range(20))
        assert best < 50e-6


def _timed(place: Place, token: str) -> float:
    began = time.process_time()  # work, without waiting for a processor
    for _ in range(1000):
        place.users.authenticate(token, "10.0.0.1")
    return (time.process_time() - began) / 1000

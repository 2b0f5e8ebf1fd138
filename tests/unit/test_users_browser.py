"""Sessions that are begun on the strength of a token: no longer than that; and tickets for the page."""

from __future__ import annotations

from typing import Any

import pytest
from accounts import ADMIN, PASSWORD, Place, one_replica, replica, virtual

from hostler.drivers.store.memory import MemoryStore
from hostler.engine.access.token import SESSION, digest_of
from hostler.engine.request import Request
from hostler.engine.tickets import TERMINAL, WEB, WEB_LIFE, PeerTickets, Tickets
from hostler.errors import TooManyTries, Unauthenticated, Unavailable
from hostler.keys.families import AUDIT, TICKET, USER
from hostler.kit.virtual_loop import VirtualClock
from hostler.model.access_api import Login, TokenCreate, TokenIssued, UserCreate, UserUpdate
from hostler.ports.machines import ChannelKind


async def issued(place: Place, expires_in: float | None = None) -> TokenIssued:
    return (await place.users.issue(ADMIN, "ada", TokenCreate(expires_in=expires_in))).value


def tickets_of(place: Place) -> Tickets:
    return Tickets(place.store, place.writer, clock=place.clock, secret=lambda: "ticket")


@virtual
async def test_a_session_of_a_token_lives_as_long_as_others_but_not_longer_than_the_token() -> None:
    async with one_replica() as place:
        await place.users.create(ADMIN, UserCreate(name="ada"))
        for within in (None, SESSION * 2, 60.0):
            token = await issued(place, within)
            session = await place.users.enter(digest_of(token.token))
            assert session.token != token.token
            life = min(SESSION, within or SESSION)
            assert session.expires_at == pytest.approx(place.clock.wall() + life, abs=0.01)
            assert place.users.authenticate(session.token).name == "ada"
        again = await place.users.enter(digest_of(session.token))
        assert again.expires_at == session.expires_at
        await place.clock.sleep(61)
        with pytest.raises(Unauthenticated):
            place.users.authenticate(again.token)
        with pytest.raises(Unauthenticated):
            await place.users.enter(digest_of(again.token))


@virtual
async def test_what_ends_sessions_ends_these() -> None:
    async with one_replica() as place:
        await place.users.create(ADMIN, UserCreate(name="ada"))
        token = await issued(place)
        session = await place.users.enter(digest_of(token.token))
        await place.users.update(ADMIN, "ada", UserUpdate(password=PASSWORD))
        with pytest.raises(Unauthenticated):
            place.users.authenticate(session.token)
        assert place.users.authenticate(token.token).name == "ada"


@virtual
async def test_the_store_is_asked_whether_the_token_counts_whatever_this_replica_has_heard() -> None:
    async with MemoryStore(clock=VirtualClock()) as store, replica(store) as place:
        await place.users.create(ADMIN, UserCreate(name="ada"))
        revoked, disabled = await issued(place), await issued(place)
        async with replica(store, "b", follow=False) as deaf:
            await place.users.revoke(ADMIN, "ada", revoked.id)
            assert deaf.users.authenticate(revoked.token).name == "ada"
            with pytest.raises(Unauthenticated):
                await deaf.users.enter(digest_of(revoked.token))
            await place.users.update(ADMIN, "ada", UserUpdate(enabled=False))
            with pytest.raises(Unauthenticated):
                await deaf.users.enter(digest_of(disabled.token))


@virtual
async def test_a_token_that_is_revoked_in_the_very_moment_gives_no_session() -> None:
    async with one_replica() as place:
        await place.users.create(ADMIN, UserCreate(name="ada"))
        token = await issued(place)
        commit = place.writer.commit

        async def late(*arguments: Any, **more: Any) -> int:
            place.writer.commit = commit  # type: ignore[method-assign]
            await place.users.revoke(ADMIN, "ada", token.id)
            return await commit(*arguments, **more)

        place.writer.commit = late  # type: ignore[method-assign]
        with pytest.raises(Unauthenticated):
            await place.users.enter(digest_of(token.token))
        assert not (await place.users.tokens(ADMIN.caller, "ada")).items


@virtual
async def test_an_account_that_changes_in_the_very_moment_is_read_again_and_not_for_ever() -> None:
    async with one_replica() as place:
        await place.users.create(ADMIN, UserCreate(name="ada"))
        token = await issued(place)
        commit, left = place.writer.commit, 1

        async def late(request: Request, verb: str, *arguments: Any, **more: Any) -> int:
            nonlocal left
            if verb == "session.begin" and left > 0:
                left -= 1
                await place.users.update(ADMIN, "ada", UserUpdate(full_name=f"Ada {left}"))
            return await commit(request, verb, *arguments, **more)

        place.writer.commit = late  # type: ignore[method-assign]
        assert (await place.users.enter(digest_of(token.token))).user == "ada"
        left = 100
        with pytest.raises(Unavailable):
            await place.users.enter(digest_of(token.token))


@virtual
async def test_guessing_is_slowed() -> None:
    async with one_replica() as place:
        for _ in range(20):
            with pytest.raises(Unauthenticated):
                await place.users.enter(digest_of("hst_guess"), "10.0.0.1")
        with pytest.raises(TooManyTries):
            await place.users.enter(digest_of("hst_guess"), "10.0.0.1")


@virtual
async def test_a_replica_that_has_not_heard_of_the_account_knows_it_once_a_session_was_begun() -> None:
    async with MemoryStore(clock=VirtualClock()) as store, replica(store) as place:
        async with replica(store, "b", follow=False) as deaf:
            await place.users.create(ADMIN, UserCreate(name="ada", password=PASSWORD))
            session = await deaf.users.login(Login(name="ada", password=PASSWORD))
            assert (await deaf.users.entered(session)).name == "ada"
            caller = deaf.users.authenticate(session.token)
            assert deaf.users.session_end(caller) == session.expires_at
            token = await place.token("ada")
        assert place.users.session_end(place.users.authenticate(token)) is None, "it is no session"


@virtual
async def test_a_ticket_for_the_page_counts_for_a_minute_and_at_no_door() -> None:
    async with one_replica() as place:
        caller = await place.caller("ada")
        tickets = tickets_of(place)
        peers = PeerTickets(place.store, clock=place.clock, secret=lambda: "peer", by="replica")
        told = (await tickets.issue_web(Request(caller), digest_of("hst_x"), "/there")).value
        assert told.expires_at == pytest.approx(place.clock.wall() + WEB_LIFE, abs=0.01)
        for door in (*ChannelKind, TERMINAL, "", "n1/ssh"):
            with pytest.raises(Unauthenticated):
                await tickets.read(told.ticket, door)
        with pytest.raises(Unauthenticated):
            await peers.redeem(told.ticket, "n1", "", ChannelKind.SSH)
        entry = await tickets.read(told.ticket, WEB)
        assert (entry.value.by, entry.value.vm, entry.value.org, entry.value.project) == ("ada", "", "", "")
        assert entry.value.token == digest_of("hst_x")
        await place.clock.sleep(WEB_LIFE - 1)
        await tickets.read(told.ticket, WEB)
        await place.clock.sleep(2)
        with pytest.raises(Unauthenticated):
            await tickets.read(told.ticket, WEB)
        assert not (await TICKET.list(place.store)).entries
        told = (await tickets.issue_web(Request(caller), digest_of("hst_x"), "/there")).value
        await tickets.use(await tickets.read(told.ticket, WEB), caller)
        last = (await AUDIT.list(place.store)).entries[-1].value
        assert (last.verb, last.who, last.subject) == ("ticket.web", "ada", USER.fill(user="ada"))

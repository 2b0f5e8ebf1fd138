"""Tickets: once, soon, for one door of one machine."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hostler.drivers.store.memory import MemoryStore
from hostler.engine.access.token import digest_of
from hostler.engine.idempotent_writer import Writer
from hostler.engine.request import HOSTLER, Request
from hostler.engine.tickets import DRIFT, LIFE, SHARED_FOR, PeerTickets, Tickets
from hostler.errors import Unauthenticated, Unavailable, Uncertain
from hostler.keys.families import AUDIT, TICKET, VM
from hostler.kit.virtual_loop import VirtualClock, run_virtual
from hostler.model.access import Ticket
from hostler.model.vm_api import TicketView
from hostler.ports.machines import ChannelKind


class Machine:
    """As much of a VmView as a ticket needs."""

    id, org, project, revision, name = "vm-1", "acme", "web", 7, "www"


class Place:
    def __init__(self, store: Any, clock: VirtualClock) -> None:
        self.store, self.clock = store, clock
        ids, secrets = itertools.count(), itertools.count()
        writer = Writer(store, clock=clock, new_id=lambda: f"id{next(ids)}")
        self.tickets = Tickets(store, writer, clock=clock, secret=lambda: f"secret{next(secrets)}")
        self.peers = PeerTickets(store, clock=clock, secret=lambda: f"peer{next(secrets)}", by="replica")

    async def issue(self, door: ChannelKind = ChannelKind.SSH) -> TicketView:
        token = digest_of("hst_token")
        return (await self.tickets.issue(Request(HOSTLER), Machine(), door, token, "/v1/there")).value  # type: ignore[arg-type]


@asynccontextmanager
async def placed() -> AsyncIterator[Place]:
    clock = VirtualClock()
    async with MemoryStore(clock=clock) as store:
        yield Place(store, clock)


def virtual(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        run_virtual(test)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@virtual
async def test_a_ticket_is_kept_as_its_digest_with_a_lease_and_audited_when_it_is_used() -> None:
    async with placed() as place:
        told = await place.issue()
        (entry,) = (await TICKET.list(place.store)).entries
        assert entry.parts["digest"] == digest_of(told.ticket)
        assert entry.lease is not None
        assert (entry.value.vm, entry.value.door, entry.value.by) == ("vm-1", "ssh", "hostler")
        assert not (await AUDIT.list(place.store)).entries, "issuing tickets fills no store"
        everything = b"".join(kv.value + kv.key.encode() for kv in (await place.store.range("")).items)
        assert told.ticket.encode() not in everything
        assert told.ticket not in repr(told)
        await place.tickets.use(await place.tickets.read(told.ticket, ChannelKind.SSH), HOSTLER)
        (audit,) = (await AUDIT.list(place.store)).entries
        assert (audit.value.verb, audit.value.who, audit.value.name) == ("ticket.ssh", "hostler", "www")
        assert (audit.value.subject, audit.value.before) == (VM.fill(org="acme", project="web", vm="vm-1"), 7)


@virtual
async def test_tickets_that_are_not_used_leave_nothing_behind() -> None:
    async with placed() as place:
        for _ in range(50):
            await place.issue()
        await place.clock.sleep(LIFE + 2)
        assert not (await place.store.range("")).items


@virtual
async def test_of_all_who_show_a_ticket_at_once_one_gets_in() -> None:
    async with placed() as place:
        told = await place.issue()
        found = [await place.tickets.read(told.ticket, ChannelKind.SSH) for _ in range(8)]
        outcomes = await asyncio.gather(*(place.tickets.use(each, HOSTLER) for each in found), return_exceptions=True)
        assert [each for each in outcomes if each is None] == [None]
        assert sum(isinstance(each, Unauthenticated) for each in outcomes) == 7
        with pytest.raises(Unauthenticated):
            await place.tickets.read(told.ticket, ChannelKind.SSH)


@virtual
async def test_a_ticket_counts_at_its_own_door_only_and_is_not_used_up_at_another() -> None:
    async with placed() as place:
        told = await place.issue(ChannelKind.CONSOLE)
        with pytest.raises(Unauthenticated):
            await place.tickets.read(told.ticket, ChannelKind.SSH)
        await place.tickets.use(await place.tickets.read(told.ticket, ChannelKind.CONSOLE), HOSTLER)


@virtual
async def test_a_ticket_ends_after_half_a_minute() -> None:
    async with placed() as place:
        told = await place.issue()
        await place.clock.sleep(LIFE - 1)
        await place.tickets.read(told.ticket, ChannelKind.SSH)
        await place.clock.sleep(2)
        with pytest.raises(Unauthenticated):
            await place.tickets.read(told.ticket, ChannelKind.SSH)
        assert not (await TICKET.list(place.store)).entries


@virtual
async def test_a_ticket_that_a_copy_has_kept_without_its_lease_counts_for_nothing() -> None:
    async with placed() as place:
        at = place.clock.wall()
        old = Ticket(vm="v", org="o", project="p", door="ssh", by="ann", token="t", expires_at=at)
        await TICKET.create(place.store, old, digest=digest_of("hstt_old"))
        await place.tickets.read("hstt_old", ChannelKind.SSH)
        await place.clock.sleep(DRIFT + 1)
        with pytest.raises(Unauthenticated):
            await place.tickets.read("hstt_old", ChannelKind.SSH)


@pytest.mark.parametrize("shown", ["", "x", "hst_secret0", "hstt_", "hstt_" + "x" * 1000, "hstt_\ud800"])
def test_what_is_no_ticket_is_none(shown: str) -> None:
    async def tried() -> None:
        async with placed() as place:
            await place.issue()
            with pytest.raises(Unauthenticated):
                await place.tickets.read(shown, ChannelKind.SSH)

    run_virtual(tried)


@virtual
async def test_tickets_of_users_and_of_processes_are_not_taken_for_each_other() -> None:
    async with placed() as place:
        of_user = (await place.issue()).ticket
        of_peer = await place.peers.issue("n1", "vm-1", ChannelKind.SSH)
        with pytest.raises(Unauthenticated):
            await place.peers.redeem(of_user, "n1", "vm-1", ChannelKind.SSH)
        with pytest.raises(Unauthenticated):
            await place.tickets.read(of_peer, ChannelKind.SSH)
        for node, vm, door in (
            ("n2", "vm-1", ChannelKind.SSH),
            ("n1", "vm-2", ChannelKind.SSH),
            ("n1", "vm-1", ChannelKind.CONSOLE),
        ):
            with pytest.raises(Unauthenticated):
                await place.peers.redeem(of_peer, node, vm, door)
        assert (await place.peers.redeem(of_peer, "n1", "vm-1", ChannelKind.SSH)).by == "replica"
        with pytest.raises(Unauthenticated):
            await place.peers.redeem(of_peer, "n1", "vm-1", ChannelKind.SSH)


@virtual
async def test_processes_that_ask_each_other_often_share_a_lease_which_ends_their_tickets_in_time() -> None:
    async with placed() as place:
        granted = list[Any]()
        grant = place.store.grant

        async def counted(ttl: float) -> Any:
            await asyncio.sleep(0.1)  # so that others ask meanwhile
            granted.append(await grant(ttl))
            return granted[-1]

        place.store.grant = counted
        tickets = await asyncio.gather(*(place.peers.issue("n1", "org:a:1", ChannelKind.SLICE_LOG) for _ in range(20)))
        for ticket in tickets:
            await place.peers.redeem(ticket, "n1", "org:a:1", ChannelKind.SLICE_LOG)
        assert len(granted) == 1
        await place.clock.sleep(SHARED_FOR - 1)
        last = await place.peers.issue("n1", "vm-1", ChannelKind.SSH)
        await place.clock.sleep(LIFE - SHARED_FOR - 1)
        await place.peers.issue("n1", "vm-1", ChannelKind.SSH)
        assert len(granted) == 2, "a lease that is half over is not given new tickets"
        assert (await place.peers.redeem(last, "n1", "vm-1", ChannelKind.SSH)).by == "replica"
        await granted[1].revoke()  # as a store that was restored: it has never heard of it
        again = await place.peers.issue("n1", "vm-1", ChannelKind.SSH)
        await place.peers.redeem(again, "n1", "vm-1", ChannelKind.SSH)
        assert len(granted) == 3
        await place.peers.issue("n1", "vm-1", ChannelKind.SSH)
        await place.clock.sleep(LIFE + 1)
        assert not (await TICKET.list(place.store)).entries


@virtual
async def test_a_use_whose_answer_is_lost_lets_nobody_in() -> None:
    async with placed() as place:
        told = await place.issue()
        found = await place.tickets.read(told.ticket, ChannelKind.SSH)

        async def lost(*_: object, **__: object) -> None:
            raise Uncertain("store: no answer")

        place.store.txn, before = lost, place.store.txn
        with pytest.raises(Unavailable, match="request another"):
            await place.tickets.use(found, HOSTLER)
        place.store.txn = before

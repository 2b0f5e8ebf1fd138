"""Tickets: let their bearer through one door of one machine, or to one lab's terminal, once, within half a minute.
One for the page signs its bearer in there, once, within a minute.

A browser cannot send a header with a WebSocket, and a token in a URL would end up in logs and histories. So a ticket
goes there: good for nothing else, and for nothing at all once it was used. Processes of the control plane show each
other tickets, too, where one asks for a machine of the other (`entry.peers`): who can write to the store is trusted.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from hostler.engine.access.token import digest_of
from hostler.engine.idempotent_writer import Beaten
from hostler.engine.request import Request, Written
from hostler.errors import Damaged, LeaseGone, Unauthenticated, Unavailable, Uncertain
from hostler.keys.access import TICKET
from hostler.keys.inventory import USER
from hostler.keys.lab import LAB
from hostler.keys.node import CLUSTER
from hostler.keys.vm import VM
from hostler.model.access import Ticket
from hostler.model.api import TicketView
from hostler.model.lab import ORG as LABS
from hostler.model.lab import lab_project, lab_user
from hostler.ports.store import Delete

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.engine.idempotent_writer import Writer
    from hostler.engine.request import Caller
    from hostler.keys.entry import Entry
    from hostler.kit.clock import Clock
    from hostler.model.api import VmView
    from hostler.ports.store import Lease, Store

TERMINAL = "terminal"
"""In place of a machine's door: the terminal of a user's labs."""
WEB = "web"
"""In place of a machine's door: the page, for who has a token on the command line."""
ARTIFACTS, FILE = "artifacts", "file"
"""In place of a node and a door: the file of an artifact, which stands in the machine's place."""
PREFIX = "hstt_"
"""Every ticket begins so, and no token does."""
LIFE = 30.0
WEB_LIFE = 60.0
"""A browser may have to be started first."""
DRIFT = 60.0
"""Seconds that calendars of replicas may be apart. The lease ends a ticket in time; this is for one without a lease, as
a copy of a store may hold it."""
SHARED_FOR = LIFE / 2
"""Seconds for which processes put new tickets on one lease: the last of them lives for half of its life."""
LONGEST = 128
CREATED = 201
SEAL = 16
"""Characters of a seal."""
SEAL_AGAIN = 10.0
"""Seconds until the id of the cluster is read again, where it could not be read."""


class Seals:
    """Tell tickets that a process of this control plane issued from guesses, without a read of the store.

    A seal is made with the cluster's id, which guests and callers do not know. It opens nothing: the store still
    decides. But a process that slows guesses from an address lets sealed tickets from there be looked up at once.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._cluster = ""
        self._again_at = 0.0

    async def sealed(self, ticket: str) -> str:
        """The ticket with its seal; as it is, where the cluster has no id yet."""
        seal = await self._of(ticket)
        return f"{ticket}.{seal}" if seal else ticket

    async def fits(self, shown: str) -> bool:
        """Whether the ticket has a seal of this cluster."""
        ticket, _, seal = shown.rpartition(".")
        if len(seal) != SEAL or len(shown) > LONGEST:
            return False
        return hmac.compare_digest((await self._of(ticket)).encode(), seal.encode())

    async def _of(self, ticket: str) -> str:
        if not self._cluster and self._clock.now() >= self._again_at:
            self._again_at = self._clock.now() + SEAL_AGAIN
            with suppress(Unavailable, Uncertain, Damaged):  # then tickets have none
                found = await CLUSTER.get(self._store)
                self._cluster = "" if found is None else found.value.id
        if not self._cluster:
            return ""
        return hmac.new(self._cluster.encode(), ticket.encode(), hashlib.sha256).hexdigest()[:SEAL]


class Tickets:
    """One per process. `secret` makes the random part: 32 random bytes as text."""

    def __init__(self, store: Store, writer: Writer, *, clock: Clock, secret: Callable[[], str]) -> None:
        self._store, self._writer, self._clock, self._secret = store, writer, clock, secret
        self.seals = Seals(store, clock)

    async def issue(self, request: Request, vm: VmView, door: str, token: str, url: str) -> Written[TicketView]:
        """A ticket for who asks, who may go through that door: whoever calls has checked that.

        `token` is the SHA-256 of the one that was shown: what the ticket opens closes when that one ends. `url` is
        where the ticket is taken.
        """
        ticket = self._minted(vm.id, vm.org, vm.project, door, by=request.caller.name, token=token)
        ticket = msgspec.structs.replace(ticket, name=vm.name, revision=vm.revision)
        return await self._issued(ticket, url)

    async def issue_terminal(self, request: Request, user: str, token: str, url: str) -> Written[TicketView]:
        """The same for the terminal of the user's labs, whether there is a lab now or not."""
        return await self._issued(
            self._minted("", LABS, lab_project(user), TERMINAL, by=request.caller.name, token=token), url
        )

    async def issue_web(self, request: Request, token: str, url: str) -> Written[TicketView]:
        """The same for the page: its bearer is signed in as who asks."""
        ticket = self._minted("", "", "", WEB, by=request.caller.name, token=token, life=WEB_LIFE)
        return await self._issued(ticket, url, life=WEB_LIFE)

    async def read(self, shown: str, door: str) -> Entry[Ticket]:
        """The ticket of a user, not used yet. Unauthenticated: it counts for nothing, or not at this door.

        Whether it is for this machine, and its bearer may still go through, is for who asks to see.
        """
        entry = await _found(self._store, self._clock, shown)
        if entry is None or not entry.value.token or entry.value.door != door:
            raise worthless()
        return entry

    async def use(self, entry: Entry[Ticket], caller: Caller) -> None:
        """Delete it, with a line in the audit log: it counts once. Unauthenticated: another one used it first."""
        ticket = entry.value
        try:
            await self._writer.commit(
                Request(caller),
                f"ticket.{ticket.door}",
                _subject(ticket),
                ticket.revision,
                [TICKET.unchanged(entry)],
                [Delete(entry.key)],
                status=CREATED,
                name=ticket.name,
            )
        except Beaten:
            raise worthless() from None
        except Uncertain:
            raise _perhaps_used() from None

    # Inside

    async def _issued(self, ticket: Ticket, url: str, *, life: float = LIFE) -> Written[TicketView]:
        """Keep a ticket. It is audited when it is used: issuing many leaves nothing behind."""
        lease, secret = await self._leased(life), await self.seals.sealed(PREFIX + self._secret())
        digest = digest_of(secret)
        try:
            result = await self._store.txn(
                [TICKET.absent(digest=digest)], [TICKET.put(ticket, lease=lease, digest=digest)]
            )
        except Uncertain:  # if it is written after all it goes with its lease, and no one knows it
            raise _not_issued() from None
        return Written(TicketView(ticket=secret, url=url, expires_at=ticket.expires_at), result.revision, CREATED)

    def _minted(self, vm: str, org: str, project: str, door: str, *, by: str, token: str, life: float = LIFE) -> Ticket:
        expires_at = self._clock.wall() + life
        return Ticket(vm=vm, org=org, project=project, door=door, by=by, token=token, expires_at=expires_at)

    async def _leased(self, life: float) -> int:
        self._writer.check_healthy()
        try:
            return (await self._store.grant(life)).id
        except Uncertain:
            raise _not_issued() from None


class PeerTickets:
    """Tickets between the processes of one control plane, which know each other by the store that they share."""

    def __init__(self, store: Store, *, clock: Clock, secret: Callable[[], str], by: str) -> None:
        self._store, self._clock, self._secret, self._by = store, clock, secret, by
        self.seals = Seals(store, clock)
        self._granting = asyncio.Lock()
        self._lease: Lease | None = None
        self._shared_until = 0.0

    async def issue(self, node: str, vm: str, door: str) -> str:
        """A ticket for a machine of another process's node, or for a file (`ARTIFACTS`). Unavailable: the store did not
        take it."""
        secret = await self.seals.sealed(PREFIX + self._secret())
        ticket = Ticket(
            vm=vm, org="", project="", door=f"{node}/{door}", by=self._by, expires_at=self._clock.wall() + LIFE
        )
        try:
            try:
                await self._put(ticket, secret)
            except LeaseGone:  # as after a restore: that store has never heard of it
                self._lease = None
                await self._put(ticket, secret)
        except Uncertain:  # should it come yet it goes with its lease; nobody knows it
            raise Unavailable(f"ticket for {vm}: the store gave no answer; try again") from None
        return secret

    async def redeem(self, shown: str, node: str, vm: str, door: str) -> Ticket:
        """The ticket, which is none from now on. Unauthenticated: it counts for nothing, or not here."""
        entry = await _found(self._store, self._clock, shown)
        if entry is None or entry.value.token or (entry.value.vm, entry.value.door) != (vm, f"{node}/{door}"):
            raise worthless()
        await _used(self._store, entry)
        return entry.value

    # Inside

    async def _put(self, ticket: Ticket, secret: str) -> None:
        await self._store.txn([], [TICKET.put(ticket, lease=await self._shared(), digest=digest_of(secret))])

    async def _shared(self) -> Lease:
        """The lease of all tickets of a while: one of each would be a write more, and outlive its ticket."""
        async with self._granting:
            if self._lease is None or self._clock.now() >= self._shared_until:
                until = self._clock.now() + SHARED_FOR
                self._lease = await self._store.grant(LIFE)
                self._shared_until = until
            return self._lease


async def _found(store: Store, clock: Clock, shown: str) -> Entry[Ticket] | None:
    if not shown.startswith(PREFIX) or len(shown) > LONGEST:
        return None
    try:
        entry = await TICKET.get(store, digest=digest_of(shown))
    except Damaged:
        return None
    return None if entry is None or entry.value.expires_at + DRIFT < clock.wall() else entry


async def _used(store: Store, entry: Entry[Ticket]) -> None:
    """Of all who show it at once, one deletes it."""
    try:
        result = await store.txn([TICKET.unchanged(entry)], [Delete(entry.key)])
    except Uncertain:
        raise _perhaps_used() from None
    if not result.succeeded:
        raise worthless()


def _subject(ticket: Ticket) -> str:
    """Return the key of what the ticket is for."""
    if ticket.door == TERMINAL:
        return LAB.fill(user=lab_user(ticket.project))
    if ticket.door == WEB:
        return USER.fill(user=ticket.by)
    return VM.fill(org=ticket.org, project=ticket.project, vm=ticket.vm)


def _not_issued() -> Unavailable:
    return Unavailable("ticket: the store gave no answer; nothing was written, ask again")


def _perhaps_used() -> Unavailable:
    return Unavailable("ticket: the store gave no answer, so it may be used up; take another")


def worthless() -> Unauthenticated:
    """What every ticket that counts for nothing is answered, whatever it lacks."""
    return Unauthenticated("ticket: none that counts here; each counts once, and not for long: take another")

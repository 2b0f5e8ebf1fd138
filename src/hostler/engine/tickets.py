"""Tickets: one-time credentials for one relay to one machine, or for the terminal of one lab, valid for 30 seconds.

A ticket for the web page signs its bearer in once, within a minute.

A browser cannot send a header with a WebSocket, and a token in a URL would end up in logs and histories. So the URL
carries a ticket: it is valid for one purpose only, and not at all after its use. Processes of the control plane also
present tickets to each other, when one requests a machine of the other (`entry.relay`): a process that can write to the
store is trusted.
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
from hostler.keys.families import CLUSTER, TICKET, USER, VM
from hostler.keys.lab import LAB
from hostler.model.access import Ticket
from hostler.model.lab import ORG as LABS
from hostler.model.lab import lab_project, lab_user
from hostler.model.vm_api import TicketView
from hostler.ports.store import Delete

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.engine.idempotent_writer import Writer
    from hostler.engine.request import Caller
    from hostler.keys.entry import Entry
    from hostler.kit.clock import Clock
    from hostler.model.vm_api import VmView
    from hostler.ports.store import Lease, Store

TERMINAL = "terminal"
"""Used as the kind of relay: the terminal of a user's labs."""
WEB = "web"
"""Used as the kind of relay: the web page, for a user with a token on the command line."""
ARTIFACTS, FILE = "artifacts", "file"
"""Used as node and kind of relay: the file of an artifact, which takes the place of the machine."""
PREFIX = "hstt_"
"""Prefix of every ticket; no token has it."""
LIFE = 30.0
WEB_LIFE = 60.0
"""Longer, because a browser may have to be started first."""
DRIFT = 60.0
"""Seconds by which wall clocks of replicas may differ.

The lease ends a ticket in time; this is for a ticket without a lease, as a copy of a store may contain.
"""
SHARED_FOR = LIFE / 2
"""Seconds for which a process puts new tickets on one lease: the last of them lives for half of the lease's TTL."""
LONGEST = 128
CREATED = 201
SEAL = 16
"""Length of a seal."""
SEAL_AGAIN = 10.0
"""Seconds until the cluster id is read again after a failed read."""


class Seals:
    """Distinguish tickets issued by this control plane from guesses, without reading the store.

    A seal is made with the cluster id, which guests and callers do not know. It grants nothing: the store still
    decides. But a process that throttles guesses from an address looks up sealed tickets from there at once.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._cluster = ""
        self._again_at = 0.0

    async def seal(self, ticket: str) -> str:
        """Return the ticket with its seal; unchanged if the cluster has no id yet."""
        seal = await self._of(ticket)
        return f"{ticket}.{seal}" if seal else ticket

    async def fits(self, shown: str) -> bool:
        """Return whether the ticket has a seal of this cluster."""
        ticket, _, seal = shown.rpartition(".")
        if len(seal) != SEAL or len(shown) > LONGEST:
            return False
        return hmac.compare_digest((await self._of(ticket)).encode(), seal.encode())

    async def _of(self, ticket: str) -> str:
        if not self._cluster and self._clock.now() >= self._again_at:
            self._again_at = self._clock.now() + SEAL_AGAIN
            with suppress(Unavailable, Uncertain, Damaged):  # tickets are issued without a seal
                found = await CLUSTER.get(self._store)
                self._cluster = "" if found is None else found.value.id
        if not self._cluster:
            return ""
        return hmac.new(self._cluster.encode(), ticket.encode(), hashlib.sha256).hexdigest()[:SEAL]


class Tickets:
    """Issues and redeems tickets of users. One per process. `secret` returns 32 random bytes as text."""

    def __init__(self, store: Store, writer: Writer, *, clock: Clock, secret: Callable[[], str]) -> None:
        self._store, self._writer, self._clock, self._secret = store, writer, clock, secret
        self.seals = Seals(store, clock)

    async def issue(self, request: Request, vm: VmView, door: str, token: str, url: str) -> Written[TicketView]:
        """Issue a ticket for a caller who may use that relay. The calling code has checked that.

        `token` is the SHA-256 of the presented token: what the ticket opened closes when that token ends. `url` is
        where the ticket is accepted.
        """
        ticket = self._mint(vm.id, vm.org, vm.project, door, by=request.caller.name, token=token)
        ticket = msgspec.structs.replace(ticket, name=vm.name, revision=vm.revision)
        return await self._issue(ticket, url)

    async def issue_terminal(self, request: Request, user: str, token: str, url: str) -> Written[TicketView]:
        """Issue a ticket for the terminal of the user's labs, whether a lab exists now or not."""
        return await self._issue(
            self._mint("", LABS, lab_project(user), TERMINAL, by=request.caller.name, token=token), url
        )

    async def issue_web(self, request: Request, token: str, url: str) -> Written[TicketView]:
        """Issue a ticket for the web page: its bearer is signed in as the caller."""
        ticket = self._mint("", "", "", WEB, by=request.caller.name, token=token, life=WEB_LIFE)
        return await self._issue(ticket, url, life=WEB_LIFE)

    async def read(self, shown: str, door: str) -> Entry[Ticket]:
        """Return an unused ticket of a user. Unauthenticated: it is invalid, or not for this relay.

        The calling code checks that it is for this machine, and that its bearer still has access.
        """
        entry = await _found(self._store, self._clock, shown)
        if entry is None or not entry.value.token or entry.value.door != door:
            raise worthless()
        return entry

    async def use(self, entry: Entry[Ticket], caller: Caller) -> None:
        """Delete the ticket, with an audit log entry, so that it is valid once.

        Unauthenticated: it was used concurrently.
        """
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

    # Internal

    async def _issue(self, ticket: Ticket, url: str, *, life: float = LIFE) -> Written[TicketView]:
        """Store a ticket. It is audited when it is used, so unused tickets leave no records."""
        lease, secret = await self._leased(life), await self.seals.seal(PREFIX + self._secret())
        digest = digest_of(secret)
        try:
            result = await self._store.txn(
                [TICKET.absent(digest=digest)], [TICKET.put(ticket, lease=lease, digest=digest)]
            )
        except Uncertain:  # if it was written after all, it expires with its lease, and its secret is unknown
            raise _not_issued() from None
        return Written(TicketView(ticket=secret, url=url, expires_at=ticket.expires_at), result.revision, CREATED)

    def _mint(self, vm: str, org: str, project: str, door: str, *, by: str, token: str, life: float = LIFE) -> Ticket:
        expires_at = self._clock.wall() + life
        return Ticket(vm=vm, org=org, project=project, door=door, by=by, token=token, expires_at=expires_at)

    async def _leased(self, life: float) -> int:
        self._writer.check_healthy()
        try:
            return (await self._store.grant(life)).id
        except Uncertain:
            raise _not_issued() from None


class PeerTickets:
    """Tickets between the processes of one control plane, which share the store."""

    def __init__(self, store: Store, *, clock: Clock, secret: Callable[[], str], by: str) -> None:
        self._store, self._clock, self._secret, self._by = store, clock, secret, by
        self.seals = Seals(store, clock)
        self._granting = asyncio.Lock()
        self._lease: Lease | None = None
        self._shared_until = 0.0

    async def issue(self, node: str, vm: str, door: str) -> str:
        """Issue a ticket for a machine on a node of another process, or for a file (`ARTIFACTS`).

        Unavailable: the store did not accept it.
        """
        secret = await self.seals.seal(PREFIX + self._secret())
        ticket = Ticket(
            vm=vm, org="", project="", door=f"{node}/{door}", by=self._by, expires_at=self._clock.wall() + LIFE
        )
        try:
            try:
                await self._put(ticket, secret)
            except LeaseGone:  # for example after a restore: the store does not know the lease
                self._lease = None
                await self._put(ticket, secret)
        except Uncertain:  # if it was written after all, it expires with its lease, and its secret is unknown
            raise Unavailable(f"ticket for {vm}: the store gave no answer; try again") from None
        return secret

    async def redeem(self, shown: str, node: str, vm: str, door: str) -> Ticket:
        """Return the ticket, which is invalid from now on. Unauthenticated: it is invalid, or not for this purpose."""
        entry = await _found(self._store, self._clock, shown)
        if entry is None or entry.value.token or (entry.value.vm, entry.value.door) != (vm, f"{node}/{door}"):
            raise worthless()
        await _used(self._store, entry)
        return entry.value

    # Internal

    async def _put(self, ticket: Ticket, secret: str) -> None:
        await self._store.txn([], [TICKET.put(ticket, lease=await self._shared(), digest=digest_of(secret))])

    async def _shared(self) -> Lease:
        """Return the lease shared by recent tickets. A lease per ticket would cost a write and outlive the ticket."""
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
    """Delete the ticket. Of concurrent uses, exactly one succeeds."""
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
    return Unavailable("ticket: the store gave no answer; nothing was written, try again")


def _perhaps_used() -> Unavailable:
    return Unavailable("ticket: the store gave no answer, so it may be used up; request another")


def worthless() -> Unauthenticated:
    """Return the same error for every invalid ticket, regardless of the reason."""
    return Unauthenticated("ticket: not valid here; a ticket is valid once and for a short time: request another")

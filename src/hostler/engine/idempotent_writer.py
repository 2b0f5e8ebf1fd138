"""Writer of the services: every write carries an audit entry and can be repeated without being done twice.

A write is one transaction. It includes an audit entry and, if the caller gave an Idempotency-Key, the response. The
same request with the same key is answered from that record for a day.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from hostler.engine.request import Written
from hostler.errors import Conflict, KeyReused, LeaseGone, Refused, Unavailable, Uncertain
from hostler.keys.families import ANSWERED, AUDIT
from hostler.keys.template import check_part
from hostler.kit.rate_limit import Backoff
from hostler.model.access import Answered, Audit
from hostler.model.record import Record
from hostler.ports.store import Put, Version

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Sequence

    from hostler.engine.request import Request
    from hostler.kit.clock import Clock
    from hostler.ports.store import Comparison, Lease, Operation, Response, Store, TxnResult

R = TypeVar("R", bound=Record)
T = TypeVar("T")

KEPT = 25 * 3600.0
"""TTL of a lease for stored responses, in seconds. The last response attached to it is kept for an hour less."""
ROTATED = 3600.0
LEASE_LOAD = 5_000
"""Largest number of responses on one lease: when the lease ends they are deleted in one transaction."""
RETRIES = 3
_LOOKS = (0.0, 0.05, 0.2)
"""Delays before each read that looks for a write whose answer was lost."""


class Beaten(Conflict):
    """A comparison did not hold; nothing was written. `responses` are those of the other branch."""

    def __init__(self, message: str, responses: tuple[Response, ...]) -> None:
        super().__init__(message)
        self.responses = responses


class Replayed(msgspec.Struct, frozen=True):
    """The stored response to an earlier request."""

    status: int
    body: str
    """JSON; empty: no body."""
    revision: int

    def written(self, kind: type[R]) -> Written[R]:
        """Return the response as a service returns it. For requests whose response is a `kind`."""
        value = kind.decode(self.body.encode())
        return Written(value, getattr(value, "revision", self.revision), self.status, replayed=True)


class Writer:
    """Commits writes.

    One per process. While `healthy` returns False the store is unreachable and writes fail immediately.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        new_id: Callable[[], str],
        healthy: Callable[[], bool] = lambda: True,
        rng: random.Random | None = None,
    ) -> None:
        self._store, self._clock, self._new_id, self._healthy, self._rng = store, clock, new_id, healthy, rng
        self._lease: Lease | None = None
        self._lease_end = 0.0
        self._lease_load = 0
        self._granting = asyncio.Lock()

    async def commit(  # noqa: PLR0917 - actor, action, subject and transaction
        self,
        request: Request,
        verb: str,
        subject: str,
        before: int,
        when: Sequence[Comparison],
        then: Sequence[Operation],
        *,
        status: int,
        answer: Record | None = None,
        otherwise: Sequence[Operation] = (),
        name: str = "",
    ) -> int:
        """Do `then` if `when` holds, with audit entry and response; return the revision of the write.

        `subject` is the key that is written, `before` the revision it had, `name` the name that users know if the key
        does not contain it. A `revision` of 0 in the response stands for the revision of this write. Beaten: nothing
        was written; it has the responses to `otherwise`. Uncertain: only if the store could not say afterwards, either,
        whether it was written.
        """
        self.check_healthy()
        audit = self._audit(request, verb, subject, before, name)
        try:
            result = await self._send(when, [*then, audit], otherwise, _answered(request, status, answer))
        except Uncertain as uncertain:
            return await self._looked_up(audit.key, uncertain)
        if not result.succeeded:
            raise Beaten(f"{subject}: changed in the meantime; read it again", result.responses)
        return result.revision

    async def remember(
        self,
        request: Request,
        when: Sequence[Comparison],
        then: Sequence[Operation] = (),
        *,
        status: int,
        answer: Record,
    ) -> None:
        """Store the response to a request that changed nothing, and do `then`, which is required in any case.

        Without an Idempotency-Key and `then` nothing happens. Beaten: `when` does not hold. Unavailable: `then` may not
        be done.
        """
        if request.key is None and not then:
            return
        self.check_healthy()
        try:
            result = await self._send(when, then, (), _answered(request, status, answer))
        except Uncertain:
            if then:
                raise Unavailable("store: no answer; nothing was changed, try again") from None
            return  # only the stored response may be missing
        if not result.succeeded:
            raise Beaten("request: its subject has changed; read it again", ())

    async def replay(self, request: Request) -> Replayed | None:
        """Return the earlier response to this request; None: it is new.

        KeyReused: its key belongs to another request.
        """
        if request.key is None:
            return None
        found = await ANSWERED.get(self._store, **_place(request))
        if found is None:
            return None
        if found.value.fingerprint != request.fingerprint:
            raise KeyReused(
                f"Idempotency-Key {request.key!r}: it was used for another request; take a new key for each request"
            )
        return Replayed(found.value.status, _dated(found.value.body, found.mod_revision), found.mod_revision)

    async def once(
        self, request: Request, kind: type[R], do: Callable[[], Awaitable[Written[R]]], *, ask_first: bool = True
    ) -> Written[R]:
        """Return `do()`, or the earlier response if this request was answered before.

        Not `ask_first`: for a `do` that always ends in a transaction with `commit`, which detects the repetition
        itself. Unavailable: the store is known to be unreachable; no request is sent to it.
        """
        self.check_healthy()
        if request.key is None:
            return await do()
        if ask_first and (found := await self.replay(request)) is not None:
            return found.written(kind)
        try:
            return await do()
        except (Conflict, Refused):  # possibly because it was already done
            if (found := await self.replay(request)) is not None:
                return found.written(kind)
            raise

    async def retry(
        self,
        subject: str,
        do: Callable[[], Awaitable[T]],
        *,
        rng: random.Random | None = None,
        conflict: Callable[[Beaten], Conflict] | None = None,
    ) -> T:
        """Run `do()`, which reads and then commits; repeat it when it is beaten, at most `RETRIES` times.

        Then Conflict.

        `conflict` builds that error where the general message would be wrong.
        """
        backoff = Backoff(0.01, 0.5, 3.0, rng=rng or self._rng)
        for _ in range(RETRIES):
            try:
                return await do()
            except Beaten:
                await self._clock.sleep(backoff.next())
        try:
            return await do()
        except Beaten as beaten:
            if conflict is not None:
                raise conflict(beaten) from None
            raise Conflict(f"{subject}: others kept writing it; nothing was written, try again in a moment") from None

    def check_healthy(self) -> None:
        """Raise Unavailable if the store is known to be unreachable, so that nothing is sent to it."""
        if not self._healthy():
            raise Unavailable("store: out of reach; nothing was written, try again in a moment")

    # Internal

    def _audit(self, request: Request, verb: str, subject: str, before: int, name: str) -> Put:
        wall = self._clock.wall()
        day, instant = instants(wall)
        caller = request.caller
        record = Audit(
            who=caller.name, verb=verb, subject=subject, before=before, at=wall, source=caller.source, name=name
        )
        return AUDIT.put(record, day=day, write=f"{instant}-{self._new_id()}")

    async def _send(
        self,
        when: Sequence[Comparison],
        then: Sequence[Operation],
        otherwise: Sequence[Operation],
        answered: Put | None,
    ) -> TxnResult:
        if answered is None:
            return await self._store.txn(when, then, otherwise)
        when = [*when, Version(answered.key) == 0]
        lease = await self._leased()
        try:
            return await self._store.txn(when, [*then, Put(answered.key, answered.value, lease)], otherwise)
        except LeaseGone:  # the store was restored, or the lease was revoked: nothing was written
            if self._lease is lease:
                self._lease = None
            lease = await self._leased()
            return await self._store.txn(when, [*then, Put(answered.key, answered.value, lease)], otherwise)

    async def _leased(self) -> Lease:
        async with self._granting:
            if self._lease is None or self._clock.now() >= self._lease_end or self._lease_load >= LEASE_LOAD:
                end = self._clock.now() + ROTATED
                try:
                    self._lease = await self._store.grant(KEPT)
                except Uncertain:
                    raise Unavailable("store: no answer; nothing was written, try again") from None
                self._lease_end, self._lease_load = end, 0
            self._lease_load += 1
            return self._lease

    async def _looked_up(self, audit: str, uncertain: Uncertain) -> int:
        """Return the revision of a write whose outcome is unknown.

        Uncertain: it is not in the store and may still arrive. Unavailable: it was not made; the message carries the
        error of the store.
        """
        for pause in _LOOKS:
            if pause:
                await self._clock.sleep(pause)
            if not self._healthy():  # each read would take as long as the write did, without an answer
                break
            try:
                found = await self._store.get(audit)
            except Unavailable:
                continue
            if found is not None:
                return found.create_revision
            if uncertain.answered:
                raise Unavailable(f"store: nothing was written; {uncertain}") from None
        raise Uncertain("store: the answer was lost, it may be written; repeat it with the same Idempotency-Key")


def _place(request: Request) -> dict[str, Any]:
    """Return where the response is kept. A later account with the same name cannot reach it."""
    key = check_part(request.key or "", "Idempotency-Key")
    return {"user": request.caller.name, "life": request.caller.life, "request": key}


def _answered(request: Request, status: int, answer: Record | None) -> Put | None:
    if request.key is None:
        return None
    body = "" if answer is None else answer.encode().decode()
    record = Answered(fingerprint=request.fingerprint, status=status, body=body)
    return ANSWERED.put(record, **_place(request))


def instants(wall: float) -> tuple[str, str]:
    """Return day and time of an instant as in the keys of the audit log, which sort by time."""
    moment = time.gmtime(wall)
    micros = int(wall % 1 * 1_000_000)
    return time.strftime("%Y-%m-%d", moment), f"{time.strftime('%H:%M:%S', moment)}.{micros:06d}"


def _dated(body: str, revision: int) -> str:
    """Insert the revision of the write into the response, unless it names a revision itself."""
    if not body:
        return body
    fields = msgspec.json.decode(body.encode(), type=dict[str, msgspec.Raw])
    if fields.get("revision") != msgspec.Raw(b"0"):
        return body
    fields["revision"] = msgspec.Raw(str(revision).encode())
    return msgspec.json.encode(fields).decode()

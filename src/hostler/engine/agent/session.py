"""Registration and heartbeat of the node. While they last, the agent extends the deadline of fenced machines.

A session is one lifetime of the node's ALIVE key. The agent registers, then reads the commands again, and only then
extends the fencing deadline, because a node that was away does not know what was decided in the meantime. The session
is over when the store says so. While the store does not answer, it may be over; see `may_act`.

    extension  F − (now − t), where t is when the successful keep-alive was *sent*
    machines   are off at t + F at the latest
    the store  expires the lease no earlier than t + T; the leader waits F more: at least T later
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import msgspec

from hostler.engine.agent.config import BEATS
from hostler.engine.agent.node_registration import CapacityReporter, has_machines, outlives_agent, record_of
from hostler.engine.calendar import READ_EVERY
from hostler.engine.cluster_id import (
    ACCEPT,
    cluster_id,
    is_foreign,
    objection,
    read_identity,
    read_memory,
    remember,
    remember_refusal,
)
from hostler.errors import Closed, Conflict, HostlerError, LeaseGone, Uncertain
from hostler.keys.families import ALIVE, CLOCK, CLUSTER, MEMBER, MOVED
from hostler.kit.rate_limit import Backoff
from hostler.kit.tasks import Nap, within
from hostler.model.node import ClockReading, Heartbeat, Lifecycle
from hostler.ports.machines import Retention, ability, fencing_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from hostler.engine.agent.config import NodeEnv
    from hostler.engine.cluster_id import Memory
    from hostler.keys.entry import Entry
    from hostler.model.node import Cluster, LastControlPlane
    from hostler.ports.store import Comparison, KeyValue, Lease

T = TypeVar("T")
_log = logging.getLogger("hostler.agent")


NOT_YET = "it has not registered yet"
"""State of an agent that has just started."""


class Session:
    """Registers the node, and registers again whenever a session ends, until `run` is cancelled."""

    def __init__(
        self,
        env: NodeEnv,
        *,
        prepare: Callable[[], Coroutine[Any, Any, None]],
        changed: Callable[[], None],
        moves: bool = False,
        memory: Memory | None = None,
        accept: bool = False,
    ) -> None:
        """`prepare` runs between registration and extending the fencing deadline. `changed`: `may_act` may differ.

        `memory` stores the control plane that the node last obeyed; without it the node obeys any. `accept`: obey the
        control plane of this store once, regardless of `memory`.
        """
        store, machines, plan = env.store, env.machines, env.config
        self._store, self._machines, self._plan = store, machines, plan
        self._clock, self._rng, self._new_id = env.clock, env.rng, env.new_id
        self._prepare, self._changed = prepare, changed
        self._memory, self._accept = memory, accept
        self._last: LastControlPlane | None = None
        self.revision = 0
        """The highest revision of the store that this process has seen, in the epoch that it obeys."""
        self._patience = plan.node_ttl / BEATS
        self.offering = CapacityReporter(store, machines, plan.node, self.guard, moves=moves)
        self.holder = env.new_id()
        self.cluster = ""
        """The id of the control plane; empty until the first registration."""
        self.ids: frozenset[str] = frozenset()
        """That id, and the ids of the state files that were moved into the cluster."""
        self.number = 0
        """Number of sessions so far."""
        self.waits_for = NOT_YET
        self.heard_at: float | None = None
        """When the last successful heartbeat was sent."""
        self._identity: Entry[Cluster] | None = None
        self._lease: Lease | None = None
        self._alive: Entry[Heartbeat] | None = None
        self._open = False
        self._ttl = plan.node_ttl
        self._promised = plan.fencing_time
        """The fencing time in the node record."""
        self._announced = plan.address
        """The address in the node record."""
        self._unheard_since: float | None = None
        """When the first of the currently unanswered heartbeats was sent."""
        self._away = False  # the store still does not answer after the lease may have expired
        self._missing_since: float | None = None
        self._over = False
        self._read_at = 0.0
        """When the clock reading was last written."""
        self._nap = Nap(env.clock)
        self._started_at = env.clock.wall()

    @property
    def open(self) -> bool:
        """Whether the node is registered and prepared, and the session is not known to be over."""
        return self._open

    @property
    def lease(self) -> int | None:
        """Return the id of the lease of the node's keys, or None."""
        return None if self._lease is None else self._lease.id

    def may_act(self) -> bool:
        """Return whether commands may be carried out.

        Not between sessions, and not if the process slept past its lease: the store is asked first. An unreachable
        store stops nothing: the last commands remain valid, and fenced machines stop by themselves.
        """
        if not self._open or self.heard_at is None:
            return False
        return self._away or self._clock.now() < self.heard_at + self._ttl

    def guard(self) -> Comparison:
        """Return a comparison that holds while this session lasts. Raise Conflict if there is no session."""
        if not self._open or self._alive is None:
            raise Conflict(f"node {self._plan.node}: it is not registered; wait until it is")
        return ALIVE.unchanged(self._alive)  # not just the same lifetime: a takeover of the node overwrites the key

    def is_own(self, alive: KeyValue | None) -> bool:
        """Return whether this is the ALIVE key as this session wrote it."""
        return alive is not None and self._alive is not None and alive.mod_revision == self._alive.mod_revision

    def announce(self, address: str) -> None:
        """Set a new address (with certificate) of the node's relay. The node record is updated soon."""
        self._plan = msgspec.structs.replace(self._plan, address=address)
        self._nap.wake()

    def saw(self, revision: int) -> None:
        """Record a revision that the store has reached: a store with a lower one is an older one."""
        self.revision = max(self.revision, revision)

    def record_end(self, number: int) -> None:
        """Record that, according to the store, the session of this number is over."""
        if number == self.number:
            self._over = True
            self._nap.wake()

    async def run(self) -> None:
        """Register, send heartbeats until the session is over, and repeat. Raise Closed if the store is closed."""
        backoff = Backoff(0.1, self._patience, rng=self._rng)
        while True:
            try:
                sent = await self._register()
                await self._begin(sent)
            except Closed:
                raise
            except (HostlerError, TimeoutError) as error:
                self.waits_for = _told(error)
                await self._clock.sleep(backoff.next())
                continue
            backoff.reset()
            try:
                await self._beat()
            finally:
                self._open = False
                self._changed()
            _log.warning("node %s: its lease expired; registering again", self._plan.node)

    async def leave(self) -> None:
        """Announce the shutdown: set SHUTTING_DOWN and revoke the lease. Best effort; on failure the lease expires."""
        if self._lease is None or self._alive is None:
            return
        try:
            async with asyncio.timeout(self._patience):
                await self._shut_down(self._alive)
                fencing = fencing_of(self._machines)
                if fencing is not None:
                    # The leader counts from now, not from when the lease would have expired.
                    await fencing.hold(self._plan.fencing_time - self._ttl)
                await self._lease.revoke()
        except (HostlerError, TimeoutError) as error:
            _log.warning("node %s: could not announce its shutdown (%s); its lease will expire", self._plan.node, error)
        finally:
            self._open, self._lease, self._alive = False, None, None

    # Registration

    async def _register(self) -> float:
        """Wait until this agent holds the node. Return when the lease was requested."""
        pause = Backoff(0.2, min(1.0, self._patience), rng=self._rng)
        while True:
            if not await self._obeys():
                await self._clock.sleep(pause.next())
                continue
            alive = await self._within(ALIVE.get(self._store, node=self._plan.node))
            if alive is None or alive.value.holder == self.holder or self._same_place(alive.value):
                sent = self._clock.now()
                if await self._try_to_register(alive):
                    return sent
            else:
                self._wait(
                    f"agent {alive.value.holder} holds the node, with machines in other storage"
                    f" ({alive.value.place or 'unknown'}); waiting for its lease to expire"
                )
            await self._clock.sleep(pause.next())

    async def _obeys(self) -> bool:
        """Return whether this store may command the node. If so, the node remembers that before it registers."""
        before = self.revision  # other answers raise it while this one is on its way
        identity = await self._within(read_identity(self._store))
        if self._last is None and self._memory is not None and not self._accept:
            self._last = await read_memory(self._memory)
        last = self._last
        if last is not None and last.revision < before:
            last = msgspec.structs.replace(last, revision=before)
        why = objection(last, identity)
        if why and is_foreign(last, identity) and identity.moved is None and await self._is_empty():
            why = ""  # this node has nothing that belongs to the other control plane
        if why:
            self._last = await remember_refusal(self._memory, identity, last)
            self._wait(
                f"{why}; no machine is changed. Start this agent on the store that is in service, or, if this one is,"
                f" start the agent once with {ACCEPT}"
            )
            return False
        if identity.cluster is None:
            await self._within(cluster_id(self._store, self._clock, self._new_id))
            identity = await self._within(read_identity(self._store))
        if identity.cluster is None:
            return False  # another process has just emptied the store
        self._last, self.revision = await remember(self._memory, identity, last), identity.revision
        self._identity, self.cluster = identity.cluster, identity.cluster.value.id
        self.ids = frozenset((self.cluster, *identity.cluster.value.aliases))
        return True

    async def _is_empty(self) -> bool:
        retention = ability(self._machines, Retention)
        return not await self._machines.list() and (retention is None or not await retention.retained())

    async def learn_ids(self) -> None:
        """Read the ids of this control plane again."""
        found = await self._within(CLUSTER.get(self._store))
        self.ids = frozenset((self.cluster, *(() if found is None else found.value.aliases)))

    def _wait(self, why: str) -> None:
        if self.waits_for != why:
            self.waits_for = why
            _log.warning("node %s: not registered: %s", self._plan.node, why)

    def _same_place(self, other: Heartbeat) -> bool:
        """Return whether the other agent used the same storage. This process has it open, so the other one is dead."""
        return bool(other.place) and other.place == self._machines.place

    async def _try_to_register(self, alive: Entry[Heartbeat] | None) -> bool:
        """Try to register once. The outcome is read from the store, because an answer may be lost."""
        node = self._plan.node
        offer = await self._within(self.offering.look())
        member = await self._within(MEMBER.get(self._store, node=node))
        if (
            member is not None
            and member.value.place not in ("", self._machines.place)
            and await has_machines(self._store, node, self._within)
        ):
            self._wait(
                f"node {member.value.node} has machines in other storage ({member.value.place}); start its agent there,"
                f" or, if that host is off, confirm it: hostler node confirm-off {member.value.node}"
            )
            return False
        lease = await self._within(self._store.grant(self._plan.node_ttl))
        known = None if member is None else member.value
        record = record_of(self._plan, self._machines, known, at=self._clock.wall(), **offer)
        self.offering.awaited = record.awaited
        beat = Heartbeat(holder=self.holder, place=self._machines.place, started_at=self._started_at)
        when = [
            ALIVE.absent(node=node) if alive is None else ALIVE.unchanged(alive),
            MEMBER.absent(node=node) if member is None else MEMBER.unchanged(member),
            MOVED.absent(),
            *(() if self._identity is None else (CLUSTER.unchanged(self._identity),)),
        ]
        reading = ClockReading(at=self._clock.wall())
        then = [
            MEMBER.put(record, node=node),
            ALIVE.put(beat, lease=lease, node=node),
            CLOCK.put(reading, lease=lease, node=node),
        ]
        self._read_at = self._clock.now()
        try:
            if not (await self._within(self._store.txn(when, then))).succeeded:
                return False
        except (Uncertain, TimeoutError):
            pass
        found = await self._within(ALIVE.get(self._store, node=node))
        if found is None or found.lease != lease.id:
            return False
        self._lease, self._alive, self._ttl = lease, found, lease.ttl
        self._promised, self._announced = record.fencing_time, record.address
        return True

    async def _begin(self, sent: float) -> None:
        """Start a session. First read and execute what was decided in between, then extend the fencing deadline."""
        sent = await self._prepare_session(sent)
        self.number += 1
        self._over = False
        self.heard_at, self._away, self._missing_since, self.waits_for = sent, False, None, ""
        await self._hold(sent)
        self._open = True
        _log.info("node %s: registered (session %d)", self._plan.node, self.number)
        self._changed()

    async def _prepare_session(self, sent: float) -> float:
        """Run `prepare` while keeping the lease alive. Return when the last keep-alive was sent."""
        preparing = asyncio.create_task(self._prepare(), name="session: preparing")
        try:
            while not preparing.done():
                alarm = asyncio.create_task(self._clock.sleep(self._patience), name="session: pause")
                try:
                    await asyncio.wait((preparing, alarm), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    alarm.cancel()
                    await asyncio.gather(alarm, return_exceptions=True)
                started = self._clock.now()
                if not preparing.done() and self._lease is not None:
                    await self._within(self._lease.keep_alive())
                    sent = started
            await preparing
        finally:
            preparing.cancel()
            await asyncio.gather(preparing, return_exceptions=True)
        return sent

    # Heartbeats

    async def _beat(self) -> None:
        """Send heartbeats until the session is over."""
        backoff = Backoff(self._patience / 20, self._patience / 2, rng=self._rng)
        pause = 0.0 if self.heard_at is None else self.heard_at + self._patience - self._clock.now()
        while True:
            if not self._over:  # else a worker learned that before this began
                await self._nap.sleep(max(0.0, pause))
            sent = self._clock.now()
            try:
                if not await self._confirm():
                    return
            except Closed:
                raise
            except (HostlerError, TimeoutError) as error:
                self.waits_for = _told(error)
                self._log_unheard(sent)
                self._handle_missed_heartbeat(sent)
                pause = backoff.next()
                continue
            backoff.reset()
            self._log_heard()
            self.heard_at, self._away, self._missing_since, self.waits_for = sent, False, None, ""
            await self._hold(sent)
            if self._announced != self._plan.address:
                await self._update_record(address=self._plan.address)
            self._changed()
            await self._write_clock()
            pause = sent + self._patience - self._clock.now()

    async def _confirm(self) -> bool:
        """Keep the lease alive and check key and store. Return False if the session is over.

        The key is checked too: it can be deleted without the lease, and the leader relies on the key. A store whose
        revision went back was replaced by an older one, which may have the lease and the key: `_obeys` refuses it.
        """
        if self._lease is None or self._alive is None or self._over:
            return False
        try:
            await self._within(self._lease.keep_alive())
        except LeaseGone:
            return False
        before = self.revision  # other requests raise it meanwhile
        page = await self._within(self._store.range(self._alive.key, limit=1))  # the first key is the shortest
        if page.revision < before:
            _log.warning("node %s: the store went back from revision %d to %d", self._plan.node, before, page.revision)
            return False
        self.saw(page.revision)
        return self.is_own(next((kv for kv in page.items if kv.key == self._alive.key), None))

    def _log_unheard(self, sent: float) -> None:
        """Log once that the store does not answer, and the consequence."""
        if self._unheard_since is not None:
            return
        self._unheard_since = sent
        then = f"; machines that fence themselves stop {self._plan.fencing_time:g} s after the last heartbeat"
        _log.warning(
            "node %s: the store does not answer (%s)%s",
            *(self._plan.node, self.waits_for, then if fencing_of(self._machines) else ""),
        )

    def _log_heard(self) -> None:
        if self._unheard_since is not None:
            away = self._clock.now() - self._unheard_since
            _log.warning("node %s: the store answers again, after %.0f s", self._plan.node, away)
            self._unheard_since = None

    def _handle_missed_heartbeat(self, sent: float) -> None:
        """Handle a failed heartbeat. Once the lease may have expired, retry before the store counts as away."""
        if self._away or self.heard_at is None or sent < self.heard_at + self._ttl:
            return
        if self._missing_since is None:
            self._missing_since = sent
        if self._clock.now() - self._missing_since >= self._patience:
            self._away = True
            self._changed()

    async def _hold(self, sent: float) -> None:
        fencing = fencing_of(self._machines)
        if fencing is None or self._clock.now() >= sent + self._plan.fencing_time:
            return
        try:
            await self._within(fencing.hold(self._plan.fencing_time, since=sent))
        except (HostlerError, TimeoutError) as error:
            _log.warning("node %s: could not extend the fencing deadline of its machines: %s", self._plan.node, error)
            return
        if self._promised > self._plan.fencing_time:  # written only now that no longer deadline is in effect
            await self._update_record(fencing_time=self._plan.fencing_time)

    async def _write_clock(self) -> None:
        """Write the clock reading every five minutes. A failed write is repeated at the next heartbeat."""
        now = self._clock.now()
        if now - self._read_at < READ_EVERY or self._alive is None or self._lease is None:
            return
        reading = CLOCK.put(ClockReading(at=self._clock.wall()), lease=self._lease, node=self._plan.node)
        with suppress(HostlerError, TimeoutError):
            await self._within(self._store.txn([ALIVE.unchanged(self._alive)], [reading]))
            self._read_at = now

    async def _update_record(self, **fields: str | float) -> None:
        """Change the node record. A failed change is repeated at the next heartbeat."""
        try:
            member = await self._within(MEMBER.get(self._store, node=self._plan.node))
            if member is None or self._alive is None:
                return
            changed = msgspec.structs.replace(member.value, **fields)
            when = [MEMBER.unchanged(member), ALIVE.unchanged(self._alive)]
            if (await self._within(self._store.txn(when, [MEMBER.put(changed, node=self._plan.node)]))).succeeded:
                self._promised, self._announced = changed.fencing_time, changed.address
        except (HostlerError, TimeoutError) as error:
            what = ", ".join(fields)
            _log.warning("node %s: its record could not be changed yet (%s): %s", self._plan.node, what, error)

    def _within(self, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        return within(self._patience, work)

    # Shutdown

    async def _shut_down(self, alive: Entry[Heartbeat]) -> None:
        for _ in range(3):
            member = await MEMBER.get(self._store, node=self._plan.node)
            if member is None or member.value.lifecycle is Lifecycle.SHUTTING_DOWN:
                return
            if outlives_agent(member.value.lifecycle):
                return
            leaving = msgspec.structs.replace(member.value, lifecycle=Lifecycle.SHUTTING_DOWN)
            when = [MEMBER.unchanged(member), ALIVE.unchanged(alive)]
            try:
                result = await self._store.txn(when, [MEMBER.put(leaving, node=self._plan.node)])
            except Uncertain:
                continue  # read again
            if result.succeeded:
                return


def _told(error: BaseException) -> str:
    return str(error) or "the store gave no answer in time"

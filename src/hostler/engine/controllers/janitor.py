"""Janitor: deletes expired virtual machines, tokens, audit log entries, decisions and retained machines in batches."""

from __future__ import annotations

import heapq
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from hostler.engine.calendar import RECORD_AFTER, RECORD_EVERY
from hostler.engine.controllers import garbage_collection
from hostler.engine.controllers.garbage_collection import DecisionRetention
from hostler.engine.controllers.retention import RETENTION, is_due, kept_for, loss_reason, own_vm
from hostler.engine.idempotent_writer import instants
from hostler.engine.runtime.controller import LeaderService
from hostler.engine.runtime.guarded_writer import Txn, Why
from hostler.errors import Closed, Damaged, HostlerError, LeadershipLost, Unavailable, Uncertain
from hostler.keys.families import (
    ALIVE,
    AUDIT,
    AUDIT_FILE,
    CLOCK_DISPUTE,
    HANDLE,
    LAST_CLOCK,
    LEADER_CLOCK,
    MEMBER,
    RETAINED,
    RETAINED_REQUEST,
    SILENT,
    TOKEN,
    TRACE,
    VM,
)
from hostler.kit.plural import counted
from hostler.kit.rate_limit import Backoff
from hostler.model.access import Audit, AuditFile
from hostler.model.lab import utc_time
from hostler.model.node import ClockDispute, ClockReading, RetainedRequest
from hostler.ports.store import Delete, DeletePrefix, Put

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostler.engine.runtime.env import ControllerEnv
    from hostler.engine.view import View
    from hostler.keys.entry import Entry
    from hostler.model.node import Retained
    from hostler.model.vm import VirtualMachine
    from hostler.ports.audit_files import AuditFiles
    from hostler.ports.store import Comparison, KeyValue, Operation

EVERY = 1.0
TOKENS_EVERY = 60.0
RETENTION_EVERY = 60.0
FILLING_EVERY = 10.0
"""Used when half of the limit is reached."""
AUDIT_KEPT = 90 * 86400.0
RETAINED_EVERY = 60.0
ROUND = 1.0
"""Seconds of one retention pass."""
BATCH = 50
"""Operations per transaction, and machines per pass."""
WHO = "hostler"


class RetentionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How long records are kept, in seconds, and how many of them."""

    audit_kept: float = AUDIT_KEPT
    traces_kept: float = garbage_collection.KEPT
    """Of the decision log."""
    most_audit: int = garbage_collection.MOST
    most_traces: int = garbage_collection.MOST
    machines_kept: float = RETENTION
    """Of retained machines."""


class Janitor(LeaderService):
    """Deletes what has expired. `files`: where old audit log entries are moved; None: they are deleted."""

    name = "janitor"

    def __init__(
        self,
        env: ControllerEnv,
        view: View,
        *,
        limits: RetentionLimits | None = None,
        files: AuditFiles | None = None,
    ) -> None:
        super().__init__(env)
        limits = limits or RetentionLimits()
        self._view, self._new_id = view, env.new_id
        self._tracer, self._files, self._retention = env.tracer, files, limits.machines_kept
        self._attic = DecisionRetention(env.store, kept=limits.traces_kept, most=limits.most_traces)
        # Without files recent entries would be lost.
        self._audit = DecisionRetention(
            env.store, AUDIT, kept=limits.audit_kept, most=None if files is None else limits.most_audit, values=True
        )
        self._compared = False
        self._unfiled = ""
        self._recalled = False
        self._recorded_at: float | None = None
        """The wall clock at the last record."""
        self._backoff = Backoff(EVERY, 30.0, rng=env.rng)
        self._ends: list[tuple[float, str]] = []  # a heap; each item is checked before it is used
        self._unlisted: dict[str, None] = {}  # keys of retained machines that may be new

    async def begin(self) -> None:
        """Collect when machines expire."""
        self._recalled = False
        self.follow(
            self._view.vms.listen(self._note),
            self._view.retained.listen(lambda key: self._unlisted.update({key: None})),
        )
        for key in self._view.vms.entries:
            self._note(key)
        self._unlisted.update(dict.fromkeys(self._view.retained.entries))

    async def run(self) -> None:
        """Run until cancelled. LeadershipLost: another process leads."""
        tokens_at = audit_at = traces_at = retained_at = self._clock.now()
        clock_at = self._clock.now() + RECORD_AFTER
        while True:
            pause = EVERY
            try:
                if not self._recalled and (self._is_due() or self._clock.now() >= clock_at):
                    await self._recall_clock()
                if await self._is_in_doubt():
                    await self._clock.sleep(pause)
                    continue
                if self._clock.now() >= clock_at:
                    await self._record_clock()
                await self._expire_machines()
                if self._clock.now() >= tokens_at:
                    tokens_at = self._clock.now() + (EVERY if await self._expire_tokens() else TOKENS_EVERY)
                if self._clock.now() >= audit_at:
                    more = await self._forget_audit()
                    audit_at = self._clock.now() + _pause(self._audit, more)
                if self._clock.now() >= traces_at:
                    more = await self._forget_traces()
                    traces_at = self._clock.now() + _pause(self._attic, more)
                await self._list_retained()
                if self._clock.now() >= retained_at:
                    retained_at = self._clock.now() + (EVERY if await self._expire_retained() else RETAINED_EVERY)
                self._backoff.reset()
            except (Unavailable, Uncertain):
                pause = self._backoff.next()
            except (LeadershipLost, Closed):
                raise
            except HostlerError as error:
                self._tell(f"janitor: {error}; it will be tried again")
                pause = self._backoff.next()
            await self._clock.sleep(pause)

    # Internal

    def _is_due(self) -> bool:
        """Return whether a machine expires now, retained machines exist, or a clock dispute may end."""
        if self._view.retained.entries or self._view.clock_disputes.entries:
            return True
        return bool(self._ends) and self._ends[0][0] <= self._clock.wall()

    async def _recall_clock(self) -> None:
        """Compare the wall clock with the time that the previous leader recorded, before anything expires."""
        try:
            told = await LAST_CLOCK.get(self._store, name=LEADER_CLOCK)
        except Damaged as error:
            self._tell(f"janitor: {error}; the time that the previous leader recorded is unknown")
            told = None
        self._recalled = True
        if told is not None:
            self._recorded_at = told.value.at
            self._view.calendar.compare_with(told.value.at)

    async def _is_in_doubt(self) -> bool:
        """Return whether this wall clock disagrees with those of the nodes, and report it. Nothing expires then."""
        apart, told = self._view.calendar.apart(), self._view.clock_disputes.get(name=LEADER_CLOCK)
        self.counters["clock_in_doubt"] = int(apart is not None)
        if apart is None and told is None:
            return False
        fence = self._writing.leadership().fence
        if apart is None:
            done: list[Operation] = [CLOCK_DISPUTE.delete(name=LEADER_CLOCK)]
            agrees = "agrees with those of the nodes again"
            if told is not None and not told.value.node:
                agrees = "is no longer in doubt: it was set right, or no node contradicted it for an hour"
            self._trace(done, "clock_agrees", CLOCK_DISPUTE.fill(name=LEADER_CLOCK), f"the leader's clock {agrees}")
            if await self._write([], done):
                self._tell(f"clock: it {agrees}; expired objects are deleted again")
            return False
        if told is None or told.value.fence != fence:
            why = f"the leader's clock is {apart}"
            dispute = ClockDispute(why=why, node=apart.of, at=self._clock.wall(), fence=fence)
            then: list[Operation] = [CLOCK_DISPUTE.put(dispute, name=LEADER_CLOCK)]
            self._trace(then, "clock_in_doubt", CLOCK_DISPUTE.fill(name=LEADER_CLOCK), f"{why}; nothing expires")
            if await self._write([], then):
                until = "it is set right (NTP)" if apart.of else "it is set right, or an hour has passed"
                self._tell(f"clock: {why}; machines, disks, labs, tokens and audit do not expire until {until}")
                await self._view.clock_disputes.refresh()
        return True

    async def _record_clock(self) -> None:
        """Record the wall clock for a later leader."""
        at = self._clock.wall()
        if self._recorded_at is not None and abs(at - self._recorded_at) < RECORD_EVERY:
            return
        if await self._write([], [LAST_CLOCK.put(ClockReading(at=at), name=LEADER_CLOCK)]):
            self._recorded_at = at

    def _note(self, key: str) -> None:
        entry = self._view.vms.entries.get(key)
        if self._is_following and entry is not None and entry.value.expires_at is not None and not entry.value.deleting:
            heapq.heappush(self._ends, (entry.value.expires_at, key))

    async def _expire_machines(self) -> None:
        now = self._clock.wall()
        for _ in range(BATCH):
            if not self._ends or self._ends[0][0] > now:
                return
            # Removed before the wait: a machine that expires earlier may be added during it and become the first.
            end = heapq.heappop(self._ends)
            entry = self._view.vms.entries.get(end[1])
            if entry is None or not _is_expired(entry.value, now):
                continue
            done = False
            try:
                done = await self._expire(entry)
            finally:
                if not done:
                    heapq.heappush(self._ends, end)
            if not done:
                return  # it has just changed, and the cache will have it in a moment

    async def _expire(self, entry: Entry[VirtualMachine]) -> bool:
        """Delete it on behalf of its owner; return whether it was done."""
        vm = msgspec.structs.replace(entry.value, deleting=True, generation=entry.value.generation + 1)
        at = self._clock.wall()
        day, instant = instants(at)
        audit = Audit(who=WHO, verb="vm.expire", subject=entry.key, before=entry.mod_revision, at=at, name=vm.name)
        then: list[Operation] = [
            Put(entry.key, VM.encode(vm)),
            AUDIT.put(audit, day=day, write=f"{instant}-{self._new_id()}"),
        ]
        self._trace(then, "expire", entry.key, f"it expired at {utc_time(vm.expires_at or at)}", read=[entry])
        done = await self._write([VM.unchanged(entry)], then)
        if done:
            self._count("expired_vms", 1)
        return done

    async def _list_retained(self) -> None:
        """Record when a retained machine was first listed here: the clock of its node may be wrong."""
        for key in tuple(self._unlisted)[:BATCH]:
            entry = self._view.retained.entries.get(key)
            if entry is not None and not entry.value.listed_at:
                listed = msgspec.structs.replace(entry.value, listed_at=self._clock.wall())
                await self._write([RETAINED.unchanged(entry)], [Put(entry.key, RETAINED.encode(listed))])
            self._unlisted.pop(key, None)  # if it has changed, the cache reports it again

    async def _expire_retained(self) -> bool:
        """Request the deletion of one batch of retained machines from the agents; return whether there may be more."""
        await self._withdraw_requests()
        at, view = self._clock.wall(), self._view
        due = [entry for entry in view.retained.entries.values() if entry.value.kept_since + self._retention <= at]
        done = 0
        for entry in due:
            if not is_due(view, entry, retention=self._retention, now=at):
                continue
            # a restore writes both records, and one may be cached before the other
            if view.vms.revision < entry.mod_revision:
                await view.vms.refresh()
                if not is_due(view, entry, retention=self._retention, now=at):
                    continue
            done += await self._expire_one(entry, at)
            if done == BATCH:
                return True
        return False

    async def _withdraw_requests(self) -> None:
        """Withdraw a deletion for age that its node has not carried out, if a virtual machine needs the disk now."""
        for entry in tuple(self._view.retained_requests.entries.values()):
            kept = self._view.retained.get(**entry.parts) if entry.value.by == WHO else None
            if kept is not None and kept_for(self._view, kept):
                then: list[Operation] = [Delete(entry.key)]
                why = f"vm {kept_for(self._view, kept)} needs its disk again; it is not deleted"
                self._trace(then, "keep_retained", kept.key, why, read=[entry, kept])
                await self._write([RETAINED_REQUEST.unchanged(entry)], then)

    async def _expire_one(self, entry: Entry[Retained], at: float) -> bool:
        """Garbage-collect a retained machine, if its virtual machine is unchanged.

        If no node has it any more, only its record is deleted.
        """
        retained = entry.value
        vm = {"org": retained.org, "project": retained.project, "vm": retained.vm}
        record = own_vm(self._view, retained)
        if record is not None:
            vm = {part: record.parts[part] for part in vm}
        handle = self._view.handles.get(**vm)
        day, instant = instants(at)
        audit = Audit(
            who=WHO, verb="retained.expire", subject=entry.key, before=entry.mod_revision, at=at, name=retained.vm_name
        )
        why = f"it was retained at {utc_time(retained.kept_since)}, and is kept for {self._retention / 86400:g} days"
        when: list[Comparison] = []
        then: list[Operation] = [AUDIT.put(audit, day=day, write=f"{instant}-{self._new_id()}")]
        if nobody_has_it := loss_reason(self._view, entry):
            node = self._view.members.get(node=entry.parts["node"])
            when.append(MEMBER.absent(node=entry.parts["node"]) if node is None else MEMBER.unchanged(node))
            then.append(RETAINED.delete(**entry.parts))
            why += f"; {nobody_has_it}, so its record is deleted and its disk stays where it is"
        else:
            when.append(ALIVE.exists(node=entry.parts["node"]))
            asked = RetainedRequest(by=WHO, at=at)
            then.append(RETAINED_REQUEST.put(asked, node=entry.parts["node"], name=retained.name))
        self._trace(then, "expire_retained", entry.key, why, read=[entry])
        when += [
            RETAINED.unchanged(entry),
            RETAINED_REQUEST.absent(**entry.parts),
            VM.absent(**vm) if record is None else VM.unchanged(record),
            HANDLE.absent(**vm) if handle is None else HANDLE.unchanged(handle),
        ]
        done = await self._write(when, then)
        if done:
            self._count("expired_retained", 1)
        return done

    async def _expire_tokens(self) -> bool:
        """Delete one batch of expired tokens; return whether there may be more."""
        now = self._clock.wall()
        entries = (entry for entry in self._view.tokens.entries.values())
        over = [entry for entry in entries if entry.value.expires_at is not None and entry.value.expires_at <= now]
        batch = over[:BATCH]
        if not batch:
            return False
        then: list[Operation] = [Delete(entry.key) for entry in batch]
        self._trace(
            then, "expire_tokens", TOKEN.prefix(), counted(len(batch), "token has expired", "tokens have expired")
        )
        if await self._write([TOKEN.unchanged(entry) for entry in batch], then):
            self._count("expired_tokens", len(batch))
        return len(over) > len(batch)

    async def _forget_audit(self) -> bool:
        """Move entries that are too old or too many to files; return whether there may be more."""
        return await self._forget(self._audit, "audit", AUDIT.prefix(), "line", "lines")

    async def _forget_traces(self) -> bool:
        """Delete decisions that are too old or too many; return whether there may be more."""
        if self._attic.kept == 0 and self._view.silences.entries:
            await self._write([], [DeletePrefix(SILENT.prefix())])
        return await self._forget(self._attic, "traces", TRACE.prefix(), "trace", "traces")

    async def _forget(self, attic: DecisionRetention, what: str, subject: str, one: str, many: str) -> bool:
        """Run one pass; return whether there may be more. The pass is recorded as a decision, if the store has room."""
        more, gone, reason = await self._batches(attic, what)
        if gone:
            then: list[Operation] = []
            self._trace(then, f"forget_{what}", subject, f"{counted(gone, one, many)} removed: {reason}")
            with suppress(Unavailable, Uncertain):
                if then:
                    await self._write([], then)
        return more

    async def _batches(self, attic: DecisionRetention, what: str) -> tuple[bool, int, str]:
        """Delete batches for `ROUND` seconds, so that nothing else waits long.

        Return whether there may be more, how many were deleted, and why. A batch is a transaction that only deletes: a
        store that is full still accepts it.
        """
        gone, reason, until = 0, "", self._clock.now() + ROUND
        while True:
            wall = self._clock.wall()
            await attic.count(wall)
            old, why = await attic.oldest(wall)
            if not old:
                return False, gone, reason
            if attic is self._audit and self._files is not None and not await self._file(self._files, old):
                return False, gone, reason
            if not await self._write([], [Delete(kv.key) for kv in old]):
                return True, gone, reason
            attic.record_removal(len(old))
            self._count(f"forgotten_{what}", len(old))
            gone, reason = gone + len(old), why
            if len(old) < garbage_collection.BATCH:
                return False, gone, reason
            if self._clock.now() >= until:
                return True, gone, reason

    async def _file(self, files: AuditFiles, lines: Sequence[KeyValue]) -> bool:
        """Append entries to files, durably, and record in the store where they are. Only then may they be deleted.

        False: they cannot be written, or the files do not match those that the store recorded. That is reported once,
        the entries stay in the store, and everything else continues.
        """
        recorded = () if self._compared else (await AUDIT_FILE.list(self._store, strict=False)).entries
        try:
            if not self._compared:
                await self._compare(files, recorded)
                self._compared = True
            written = await files.append(lines)
        except (Unavailable, Damaged) as error:
            if str(error) != self._unfiled:
                self._unfiled = str(error)
                self._tell(f"janitor: {error}; the audit log stays and grows in the store until that is solved")
            return False
        self._unfiled, at = "", self._clock.wall()
        records: list[Operation] = [
            AUDIT_FILE.put(
                AuditFile(host=files.host, folder=files.folder, lines=file.lines, chain=file.chain, at=at),
                day=file.day,
                place=files.place,
            )
            for file in written
        ]
        if not await self._write([], records):
            raise Unavailable("audit: the location of its files was not recorded; try again")
        return True

    async def _compare(self, files: AuditFiles, recorded: Sequence[Entry[AuditFile]]) -> None:
        """Raise Damaged if the newest file is older, or shorter, than the store recorded."""
        own = {one.parts["day"]: one.value for one in recorded if one.parts["place"] == files.place}
        if not own:
            return
        day, newest = max(own), await files.newest()
        if newest is None or newest.day < day or (newest.day == day and newest.lines < own[day].lines):
            raise Damaged(
                f"audit files {files.folder}: entries of {day} that the store recorded are missing; restore the folder,"
                " or move it aside: then a new one is begun (hostler audit verify)"
            )

    def _trace(
        self, then: list[Operation], what: str, subject: str, why: str, *, read: Sequence[Entry[Any]] = ()
    ) -> None:
        if self._tracer is not None:
            self._tracer.add(
                then, Why(what=what, why=why, read=tuple(read)), subject=subject, fence=self._writing.fence()
            )

    async def _write(self, when: list[Comparison], then: list[Operation]) -> bool:
        """Return False if the records have changed. LeadershipLost: another process leads."""
        return await self._writing.commit("", "", Txn(when, then), None) is not None

    def _count(self, what: str, number: int) -> None:
        self.counters[what] = self.counters.get(what, 0) + number


def _pause(attic: DecisionRetention, more: bool) -> float:
    """Return the seconds until the next retention pass."""
    return EVERY if more else FILLING_EVERY if attic.filling else RETENTION_EVERY


def _is_expired(vm: VirtualMachine, now: float) -> bool:
    return vm.expires_at is not None and vm.expires_at <= now and not vm.deleting

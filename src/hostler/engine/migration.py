"""From a state file into a cluster: once, machine by machine, and only what is not there.

How far it is stands in the cluster, and moves on in the transaction that moves a machine. So a machine that was deleted
in the cluster after it came there never comes back, wherever a run was killed and however often it is taken up again.
A machine comes with its handle, its name and the command to its node, or not at all; locks stay behind.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

from hostler.engine.cluster_id import cluster_id
from hostler.engine.quotas import quota_recount
from hostler.errors import Damaged, Invalid, Unavailable, Uncertain
from hostler.keys.node import CLUSTER, COMMAND
from hostler.keys.transfer import MIGRATION
from hostler.keys.vm import HANDLE, NAME, VM
from hostler.model.api import MAX_NAME
from hostler.model.migration import Migration
from hostler.ports.store import Put, Version

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.keys.entry import Entry
    from hostler.kit.clock import Clock
    from hostler.model.vm import VirtualMachine
    from hostler.ports.store import Comparison, KeyValue, Operation, Store

PAGE = 200
_PAUSES = (0.0, 0.05, 0.2, 0.8, 3.2)
"""Before each try of one step."""


class Migrated(msgspec.Struct, frozen=True):
    """What was done, now or, if `before`, by an earlier run."""

    record: Migration
    before: bool

    def __str__(self) -> str:
        if self.before:
            return "its machines were moved into the cluster before; nothing was done"
        record = self.record
        taken = f", {record.renamed} of them under a new name because theirs was taken" if record.renamed else ""
        there = f"; {record.present} stood there already and were left alone" if record.present else ""
        return f"{record.moved} machines were moved into the cluster{taken}{there}"


async def migrate(old: Store, new: Store, *, source: str, clock: Clock, new_id: Callable[[], str]) -> Migrated:
    """Move the machines of `old` into `new`. `source` says to people where they came from.

    Unavailable: a store did not answer; what was moved is moved, and the same call goes on from there.
    """
    cluster = await cluster_id(old, clock, new_id)
    run = _Run(old, new, cluster, clock)
    entry = await run.begin(source)
    if entry.value.finished_at is not None:
        return Migrated(entry.value, before=True)
    while True:
        page = await old.range(VM.prefix(), after=entry.value.after or None, limit=PAGE)
        for kv in page.items:
            entry = await run.step(entry, kv)
        if not page.more:
            break
    entry = await run.finish(entry)
    return Migrated(entry.value, before=False)


class _Run:
    def __init__(self, old: Store, new: Store, cluster: str, clock: Clock) -> None:
        self._old, self._new, self._cluster, self._clock = old, new, cluster, clock

    async def begin(self, source: str) -> Entry[Migration]:
        """The marker, found or made. A new cluster takes over the old id: the machines that run carry it."""
        for pause in _PAUSES:
            await self._clock.sleep(pause)
            found = await MIGRATION.get(self._new, cluster=self._cluster)
            if found is not None:
                return found
            when = [MIGRATION.absent(cluster=self._cluster)]
            then: list[Operation] = [
                MIGRATION.put(Migration(source=source, started_at=self._clock.wall()), cluster=self._cluster)
            ]
            identity = await CLUSTER.get(self._old)
            if identity is not None and await CLUSTER.get(self._new) is None:
                when.append(CLUSTER.absent())
                then.append(CLUSTER.put(identity.value))
            await self._tried(when, then)
        raise self._unanswered()

    async def step(self, entry: Entry[Migration], kv: KeyValue) -> Entry[Migration]:
        """One machine. The marker afterwards: of this run, or of another one that was faster."""
        for pause in _PAUSES:
            await self._clock.sleep(pause)
            if entry.value.after >= kv.key or entry.value.finished_at is not None:
                return entry
            when, then, done = await self._moved(entry.value, kv)
            done = msgspec.structs.replace(done, after=kv.key)
            entry = await self._marked(entry, done, when, then)
        if entry.value.after >= kv.key:
            return entry
        raise self._unanswered()

    async def finish(self, entry: Entry[Migration]) -> Entry[Migration]:
        """The marker that stays."""
        for pause in _PAUSES:
            await self._clock.sleep(pause)
            if entry.value.finished_at is not None:
                return entry
            done = msgspec.structs.replace(entry.value, finished_at=self._clock.wall())
            entry = await self._marked(entry, done, [], [])
        if entry.value.finished_at is not None:
            return entry
        raise self._unanswered()

    # Inside

    async def _marked(
        self, entry: Entry[Migration], done: Migration, when: list[Comparison], then: list[Operation]
    ) -> Entry[Migration]:
        """Try a step with its mark; the marker as it stands afterwards. A step that comes late finds another marker."""
        put = MIGRATION.put(done, cluster=self._cluster)
        await self._tried([MIGRATION.unchanged(entry), *when], [put, *then])
        found = await MIGRATION.get(self._new, cluster=self._cluster)
        if found is None:
            raise Damaged(f"{put.key}: somebody deleted it while machines were moved; start again to move the rest")
        return found

    async def _tried(self, when: list[Comparison], then: list[Operation]) -> None:
        try:
            await self._new.txn(when, then)
        except Uncertain:
            return  # the marker tells

    async def _moved(self, done: Migration, kv: KeyValue) -> tuple[list[Comparison], list[Operation], Migration]:
        """What moves this machine: nothing, if there is one of its key."""
        if await self._new.get(kv.key) is not None:
            return [], [], msgspec.structs.replace(done, present=done.present + 1)
        when: list[Comparison] = [Version(kv.key) == 0]
        done = msgspec.structs.replace(done, moved=done.moved + 1)
        ids = VM.match(kv.key)
        vm = None if ids is None else _readable(kv)
        if ids is None or vm is None:  # not ours to understand, and not ours to lose
            return when, [Put(kv.key, kv.value)], done
        name = await self._free_name(vm, ids)
        value = kv.value
        if name is not None and name != vm.name:
            done = msgspec.structs.replace(done, renamed=done.renamed + 1)
            value = msgspec.structs.replace(vm, name=name).encode()
        then: list[Operation] = [Put(kv.key, value)]
        if name is not None:
            place: dict[str, Any] = {"org": ids["org"], "project": ids["project"], "name": name}
            when.append(NAME.absent(**place))
            then.append(NAME.put(ids["vm"], **place))
        for kept in await self._belongings(ids):
            if await self._new.get(kept.key) is None:
                when.append(Version(kept.key) == 0)
                then.append(kept)
        quota_when, quota_then = await quota_recount(self._new, ids["org"], ids["project"])
        return [*when, *quota_when], [*then, *quota_then], done

    async def _belongings(self, ids: dict[str, str]) -> list[Put]:
        """Its handle, and the command to the node that the handle names: with both, what runs there runs on."""
        kv = await self._old.get(HANDLE.fill(**ids))
        if kv is None:
            return []
        found = [Put(kv.key, kv.value)]
        try:
            node = HANDLE.decode(kv.value, where=kv.key).node
            command = await self._old.get(COMMAND.fill(node=node, vm=ids["vm"])) if node else None
        except (Damaged, Invalid):
            command = None
        if command is not None:
            found.append(Put(command.key, command.value))
        return found

    async def _free_name(self, vm: VirtualMachine, ids: dict[str, str]) -> str | None:
        """A name that no other machine of the project has; None: it has none that a key could hold."""
        mark = hashlib.sha256(ids["vm"].encode()).hexdigest()[:12]
        for name in (vm.name, f"{vm.name[: MAX_NAME - 13]}-{mark}"):
            try:
                if await NAME.get(self._new, org=ids["org"], project=ids["project"], name=name) is None:
                    return name
            except Invalid:
                return None
        return None

    def _unanswered(self) -> Unavailable:
        return Unavailable("migration: the cluster does not take it; what was moved stays moved, start again to go on")


def _readable(kv: KeyValue) -> VirtualMachine | None:
    try:
        return VM.decode(kv.value, where=kv.key)
    except Damaged:
        return None

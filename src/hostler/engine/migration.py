"""Migration of a state file into a cluster: once, machine by machine, and only records that the cluster lacks.

The progress is stored in the cluster and advances in the transaction that moves a machine. So a machine that was
deleted in the cluster after its move never returns, even if a run was killed and resumed. A machine moves together with
its handle, its name, the command to its node and the record of that node, or not at all; locks stay behind. A node has
one storage location: if the cluster has a node of the same name with another location, nothing is moved.

All other records move before the machines, family by family, each where the cluster has none (`migration_table`). A
workload is held until all of its machines have moved, so that nothing is decided about it while some are missing.

A lab moves in the transaction that moves its machine, because the leader deletes lab machines without a lab and ends
labs without a machine. The lab catalogue moves first; labs without a machine move at the end.

The file is marked before the first machine moves: from then on no process uses it. Its cluster id becomes an alias of
the cluster in the last step and not before: until then no agent of the cluster treats its machines as unassigned.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

from hostler.engine.cluster_id import cluster_id, next_epoch
from hostler.engine.migration_table import AFTER, BEFORE
from hostler.engine.quotas import quota_recount
from hostler.errors import Damaged, Invalid, Refused, Unavailable, Uncertain
from hostler.keys.families import (
    BLUEPRINT,
    CLUSTER,
    COMMAND,
    EPOCH,
    FENCE,
    HANDLE,
    MEMBER,
    MIGRATION,
    MOVED,
    NAME,
    ORG_QUOTA,
    QUOTA,
    SLICE_OWNER,
    TOKEN,
    USER,
    VM,
    WORKLOAD,
)
from hostler.keys.lab import LAB, LAB_CATALOGUE
from hostler.kit.plural import counted
from hostler.model.lab import ORG, lab_project, lab_user
from hostler.model.migration import Migration, Moved
from hostler.model.name import fold
from hostler.model.node import Epoch, EpochKind
from hostler.model.vm_api import MAX_NAME
from hostler.model.workload import instance_parts
from hostler.ports.store import PIECE_BYTES, ModRevision, Put, Version

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Literal, TypeAlias

    from hostler.keys.entry import Entry
    from hostler.keys.key import Key
    from hostler.kit.clock import Clock
    from hostler.model.vm import VirtualMachine
    from hostler.ports.store import Comparison, KeyValue, Operation, Store

    Pieces: TypeAlias = tuple[list[Comparison], list[Operation], Migration]
    """What a step compares and writes, and the progress record that it leaves."""

PAGE = 200
CHUNK = 30
"""Number of records moved in one transaction, for records that belong to no machine."""
FAMILIES = (*BEFORE, *AFTER)
_PAUSES = (0.0, 0.05, 0.2, 0.8, 3.2)
"""Delays before each attempt of one step."""


class Migrated(msgspec.Struct, frozen=True):
    """The result: of this run or, if `before`, of an earlier one."""

    record: Migration
    before: bool
    elsewhere: str = ""
    """The id of the other cluster that the machines were moved into earlier."""

    def __str__(self) -> str:
        if self.elsewhere:
            return f"its machines were moved into cluster {self.elsewhere}, which is not this one; nothing was done"
        if self.before:
            return "its machines were moved into the cluster before; nothing was done"
        record = self.record
        taken = f", {record.renamed} of them under a new name because theirs was taken" if record.renamed else ""
        left = counted(record.present, "already existed and was", "already existed and were")
        there = f"; {left} left alone" if record.present else ""
        others = f", and {counted(record.records, 'other record')}" if record.records else ""
        return f"{counted(record.moved, 'machine was', 'machines were')} moved into the cluster{taken}{others}{there}"


async def migrate(
    old: Store, new: Store, *, source: str, clock: Clock, new_id: Callable[[], str], target: str = ""
) -> Migrated:
    """Move the records of `old` into `new`. `source` and `target` name both stores for users.

    Unavailable: a store did not answer; what was moved stays moved, and the same call continues from there. Refused:
    the cluster has a node of the same name with another storage location, or a workload of the same name; nothing was
    moved, or nothing more on that node or in that workload.
    """
    cluster = await cluster_id(old, clock, new_id)
    run = _Run(old, new, cluster, clock, source=source, target=target)
    entry = await MIGRATION.get(new, cluster=cluster)
    if entry is None:
        mark = await MOVED.get(old)
        if mark is not None and mark.value.finished_at is not None:
            gone = Migration(source=source, started_at=mark.value.started_at, finished_at=mark.value.finished_at)
            return Migrated(gone, before=True, elsewhere=mark.value.cluster)
        await run.check_nodes()
        await run.check_workloads()
    elif entry.value.finished_at is not None:
        await run.mark(finished=True)
        return Migrated(entry.value, before=True)
    await run.mark()
    entry = await run.begin(source)
    for family in BEFORE:
        entry = await run.family(entry, family)
    while True:
        page = await old.range(VM.prefix(), after=entry.value.after or None, limit=PAGE)
        for kv in page.items:
            entry = await run.step(entry, kv)
        if not page.more:
            break
    while True:
        page = await old.range(LAB.prefix(), after=entry.value.labs_after or None, limit=PAGE)
        for kv in page.items:
            entry = await run.lab_step(entry, kv)
        if not page.more:
            break
    for family in AFTER:
        entry = await run.family(entry, family)
    await run.release_workloads()
    entry = await run.finish(entry)
    await run.mark(finished=True)
    return Migrated(entry.value, before=False)


class _Run:
    def __init__(self, old: Store, new: Store, cluster: str, clock: Clock, *, source: str, target: str) -> None:
        self._old, self._new, self._cluster, self._clock = old, new, cluster, clock
        self._source, self._target = source, target

    async def begin(self, source: str) -> Entry[Migration]:
        """Return the progress record; create it if it does not exist."""
        for pause in _PAUSES:
            await self._clock.sleep(pause)
            found = await MIGRATION.get(self._new, cluster=self._cluster)
            if found is not None:
                return found
            marker = MIGRATION.put(Migration(source=source, started_at=self._clock.wall()), cluster=self._cluster)
            when, then = await self._if_absent(LAB_CATALOGUE.fill(name="default"))
            await self._try([MIGRATION.absent(cluster=self._cluster), *when], [marker, *then])
        raise self._unanswered()

    async def step(self, entry: Entry[Migration], kv: KeyValue) -> Entry[Migration]:
        """Move one machine.

        Return the progress record afterwards: of this run, or of a concurrent one that was faster.
        """
        return await self._step(entry, kv, "after", self._move)

    async def lab_step(self, entry: Entry[Migration], kv: KeyValue) -> Entry[Migration]:
        """Move one lab record. Return the progress record afterwards, as in `step`."""
        return await self._step(entry, kv, "labs_after", self._lab_moved)

    async def _step(
        self,
        entry: Entry[Migration],
        kv: KeyValue,
        cursor: Literal["after", "labs_after"],
        move: Callable[[Migration, KeyValue], Awaitable[Pieces]],
    ) -> Entry[Migration]:
        for pause in _PAUSES:
            await self._clock.sleep(pause)
            if getattr(entry.value, cursor) >= kv.key or entry.value.finished_at is not None:
                return entry
            when, then, done = await move(entry.value, kv)
            done = msgspec.structs.replace(done, **{cursor: kv.key})
            entry = await self._mark(entry, done, when, then)
        if getattr(entry.value, cursor) >= kv.key:
            return entry
        raise self._unanswered()

    async def family(self, entry: Entry[Migration], family: Key[Any]) -> Entry[Migration]:
        """Move all records of a family in chunks. Return the progress record afterwards, as in `step`."""
        number = FAMILIES.index(family)
        at_once = 1 if family is BLUEPRINT else CHUNK  # a blueprint moves with all its slices
        after: str | None = None
        while True:
            page = await self._old.range(family.prefix(), after=after, limit=at_once)
            items = tuple(kv for kv in page.items if family.match(kv.key) is not None)
            if items:
                entry = await self._chunk(entry, number, items)
            if not page.more:
                return entry
            after = page.items[-1].key

    async def _chunk(self, entry: Entry[Migration], number: int, items: tuple[KeyValue, ...]) -> Entry[Migration]:
        for kv in items if sum(len(kv.value) for kv in items) > PIECE_BYTES else ():
            entry = await self._chunk(entry, number, (kv,))  # together they are too large for one transaction
        cursor = f"{number:02} {items[-1].key}"
        for pause in _PAUSES:
            await self._clock.sleep(pause)
            if entry.value.others_after >= cursor or entry.value.finished_at is not None:
                return entry
            when: list[Comparison] = []
            then: list[Operation] = []
            for kv in items:
                if f"{number:02} {kv.key}" > entry.value.others_after:
                    more_when, more_then = await self._record(kv)
                    when += more_when
                    then += more_then
            moved = entry.value.records + len(then)
            done = msgspec.structs.replace(entry.value, others_after=cursor, records=moved)
            entry = await self._mark(entry, done, when, then)
        if entry.value.others_after >= cursor:
            return entry
        raise self._unanswered()

    async def _record(self, kv: KeyValue) -> tuple[list[Comparison], list[Operation]]:
        """Return what moves one record that belongs to no machine; nothing if the cluster has one."""
        if await self._new.get(kv.key) is not None:
            return [], []
        when: list[Comparison] = [Version(kv.key) == 0]
        if (token := TOKEN.readable(kv)) is not None:
            return await self._token(kv, token.value.user)
        quota = QUOTA.readable(kv) or ORG_QUOTA.readable(kv)
        if quota is not None:
            return when, [Put(kv.key, msgspec.structs.replace(quota.value, counted=False).encode())]
        if (workload := WORKLOAD.readable(kv)) is not None:
            return when, [Put(kv.key, msgspec.structs.replace(workload.value, held=self._cluster).encode())]
        if BLUEPRINT.match(kv.key) is not None:
            return await self._blueprint(kv)
        for family in AFTER:
            if (parts := family.match(kv.key)) is not None and not await self._is_held(parts["workload"]):
                return [], []  # the cluster's records of that workload are its own, or were deleted there
        return when, [Put(kv.key, kv.value)]

    async def _token(self, kv: KeyValue, user: str) -> tuple[list[Comparison], list[Operation]]:
        """Move a token only if the cluster has the same account, not another one of the same name."""
        key = USER.fill(user=user)
        mine, theirs = await self._old.get(key), await self._new.get(key)
        if mine is None or theirs is None or mine.value != theirs.value:
            return [], []
        return [Version(kv.key) == 0, ModRevision(key) == theirs.mod_revision], [Put(kv.key, kv.value)]

    async def _blueprint(self, kv: KeyValue) -> tuple[list[Comparison], list[Operation]]:
        """Move a blueprint with its slices, unless one of them belongs to a blueprint of the cluster."""
        name = BLUEPRINT.parse(kv.key)["blueprint"]
        when: list[Comparison] = [Version(kv.key) == 0]
        then: list[Operation] = [Put(kv.key, kv.value)]
        for owner in (await SLICE_OWNER.list(self._old, strict=False)).entries:
            if fold(owner.value.blueprint) != name:
                continue
            if await self._new.get(owner.key) is not None:
                return [], []
            when.append(Version(owner.key) == 0)
            then.append(Put(owner.key, SLICE_OWNER.encode(owner.value)))
        return when, then

    async def _is_held(self, workload: str) -> bool:
        found = await WORKLOAD.get(self._new, workload=workload)
        return found is not None and found.value.held == self._cluster

    async def check_workloads(self) -> None:
        """Raise Refused if the cluster has a workload of the same name as one in the file."""
        for entry in (await WORKLOAD.list(self._old, strict=False)).entries:
            if await self._new.get(entry.key) is not None:
                raise Refused(
                    f"workload {entry.value.name}: the cluster has one of that name; nothing was moved: start on the"
                    " state file alone and delete or rename that workload there, or delete the one in the cluster"
                )

    async def release_workloads(self) -> None:
        """Release the workloads after all machines have moved: from now on the cluster decides about them."""
        for mine in (await WORKLOAD.list(self._old, strict=False)).entries:
            for pause in _PAUSES:
                await self._clock.sleep(pause)
                there = await WORKLOAD.get(self._new, workload=mine.parts["workload"])
                if there is None or there.value.held != self._cluster:
                    break
                free = msgspec.structs.replace(there.value, held="")
                await self._try([WORKLOAD.unchanged(there)], [WORKLOAD.put(free, workload=mine.parts["workload"])])
            else:
                raise self._unanswered()

    async def finish(self, entry: Entry[Migration]) -> Entry[Migration]:
        """Finish the progress record and make the file's id, which running machines carry, an alias of the cluster."""
        for pause in _PAUSES:
            await self._clock.sleep(pause)
            if entry.value.finished_at is not None:
                return entry
            done = msgspec.structs.replace(entry.value, finished_at=self._clock.wall())
            entry = await self._mark(entry, done, *await self._identity())
        if entry.value.finished_at is not None:
            return entry
        raise self._unanswered()

    async def mark(self, *, finished: bool = False) -> None:
        """Mark the file as being moved, or as moved."""
        found = await MOVED.get(self._old)
        if found is not None and (found.value.finished_at is not None or not finished):
            return
        identity = await CLUSTER.get(self._new)
        record = Moved(
            cluster="" if identity is None else identity.value.id,
            to=self._target,
            epoch=0 if identity is None else identity.value.epoch,
            started_at=self._clock.wall() if found is None else found.value.started_at,
            finished_at=self._clock.wall() if finished else None,
        )
        await self._old.txn([], [MOVED.put(record)])

    async def check_nodes(self) -> None:
        """Raise Refused if the cluster has a different node of the same name as one with machines in the file."""
        nodes: set[str] = set()
        for prefix in (COMMAND.prefix(), HANDLE.prefix()):
            after: str | None = None
            while True:
                page = await self._old.range(prefix, after=after, limit=PAGE)
                nodes.update(filter(None, map(_node_of, page.items)))
                if not page.more:
                    break
                after = page.items[-1].key
        for node in sorted(nodes):
            await self._node(node)

    # Internal

    async def _identity(self) -> tuple[list[Comparison], list[Operation]]:
        """Return what merges the ids: a cluster without an id takes over the file's; otherwise it becomes an alias."""
        mine, theirs = await CLUSTER.get(self._old), await CLUSTER.get(self._new)
        if mine is None:
            return [], []
        at = self._clock.wall()
        number = next_epoch(at, mine.value.epoch, 1 if theirs is None else theirs.value.epoch)
        fence_when, fence_then = await self._fence()
        # Moved records have a revision of the cluster, which says nothing about their cause: hence the border.
        border = EPOCH.put(Epoch(begun_by=EpochKind.MIGRATION, source=self._source, at=at), epoch=number)
        if theirs is None:
            begun = msgspec.structs.replace(mine.value, epoch=number, copy_id=f"{self._cluster}-{number}")
            return [CLUSTER.absent(), *fence_when], [CLUSTER.put(begun), border, *fence_then]
        known = (theirs.value.id, *theirs.value.aliases)
        more = tuple(each for each in (mine.value.id, *mine.value.aliases) if each not in known)
        both = msgspec.structs.replace(theirs.value, aliases=(*theirs.value.aliases, *more))
        return [CLUSTER.unchanged(theirs), *fence_when], [CLUSTER.put(both), border, *fence_then]

    async def _fence(self) -> tuple[list[Comparison], list[Operation]]:
        """Continue the fences above those of the file, because its nodes hold commands with them."""
        mine, theirs = await FENCE.get(self._old, n=1), await FENCE.get(self._new, n=1)
        if mine is None or (theirs is not None and theirs.value >= mine.value):
            return [], []
        return [FENCE.absent(n=1) if theirs is None else FENCE.unchanged(theirs)], [FENCE.put(mine.value, n=1)]

    async def _node(self, node: str) -> tuple[list[Comparison], list[Operation]]:
        """Return what moves the node record together with a machine.

        An existing record is rewritten, so that an agent that listed its machines before this one moved lists them
        again.
        """
        try:
            mine = await MEMBER.get(self._old, node=node)
        except Damaged:
            mine = None
        theirs = await MEMBER.get(self._new, node=node)
        if theirs is None:
            put = (
                []
                if mine is None
                else [MEMBER.put(msgspec.structs.replace(mine.value, off=None, awaited=True), node=node)]
            )
            return [MEMBER.absent(node=node)], [*put]
        place = "" if mine is None else mine.value.place
        if not place or place != theirs.value.place:
            raise Refused(
                f"node {theirs.value.node}: the cluster has a node of that name with another storage location; its"
                " machines cannot be moved there from the state file: take the file out of the settings, start this"
                " host under another --rack or --node name, and create the machines again there"
            )
        return [MEMBER.unchanged(theirs)], [MEMBER.put(theirs.value, node=node)]

    async def _mark(
        self, entry: Entry[Migration], done: Migration, when: list[Comparison], then: list[Operation]
    ) -> Entry[Migration]:
        """Commit a step with its progress; return the progress record afterwards.

        A delayed step finds a changed record.
        """
        put = MIGRATION.put(done, cluster=self._cluster)
        await self._try([MIGRATION.unchanged(entry), *when], [put, *then])
        found = await MIGRATION.get(self._new, cluster=self._cluster)
        if found is None:
            raise Damaged(f"{put.key}: deleted while machines were moved; start again to move the rest")
        return found

    async def _try(self, when: list[Comparison], then: list[Operation]) -> None:
        try:
            await self._new.txn(when, then)
        except Uncertain:
            return  # the progress record tells the outcome

    async def _move(self, done: Migration, kv: KeyValue) -> Pieces:
        """Return what moves this machine: nothing if the cluster has its key."""
        if await self._new.get(kv.key) is not None:
            return [], [], msgspec.structs.replace(done, present=done.present + 1)
        when: list[Comparison] = [Version(kv.key) == 0]
        done = msgspec.structs.replace(done, moved=done.moved + 1)
        entry = VM.readable(kv)
        if entry is None:  # unreadable here, but must not be lost
            return when, [Put(kv.key, kv.value)], done
        vm, ids = entry.value, entry.parts
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
        node, belongings = await self._belongings(ids)
        for kept in belongings:
            if await self._new.get(kept.key) is None:
                when.append(Version(kept.key) == 0)
                then.append(kept)
        if node:
            node_when, node_then = await self._node(node)
            when += node_when
            then += node_then
        for kept in await self._instance_of(vm):
            if await self._new.get(kept.key) is None:
                when.append(Version(kept.key) == 0)
                then.append(kept)
        lab_when, lab_then = await self._lab_of(ids)
        quota_when, quota_then = await quota_recount(self._new, ids["org"], ids["project"])
        return [*when, *lab_when, *quota_when], [*then, *lab_then, *quota_then], done

    async def _instance_of(self, vm: VirtualMachine) -> list[Put]:
        """Return the records of the workload instance of this machine; none if its workload is not being moved."""
        parts = instance_parts(vm.instance)
        if parts is None or not await self._is_held(parts["workload"]):
            return []
        found = [await self._old.get(family.fill(**parts)) for family in AFTER]
        return [Put(kv.key, kv.value) for kv in found if kv is not None]

    async def _lab_of(self, ids: dict[str, str]) -> tuple[list[Comparison], list[Operation]]:
        """Return what moves the lab of this machine, if it has one and the cluster has none of that user.

        An unreadable record moves, too, so that its machine is left alone.
        """
        if ids["org"] != ORG:
            return [], []
        key = LAB.fill(user=lab_user(ids["project"]))
        kv = await self._old.get(key)
        if kv is None or _machine_of(kv) not in (None, ids["vm"]):
            return [], []
        return await self._if_absent(key)

    async def _lab_moved(self, done: Migration, kv: KeyValue) -> Pieces:
        """Move a lab without a machine, or the record of a user. Other labs moved with their machines."""
        vm = _machine_of(kv)
        if vm != "":
            place = VM.prefix(org=ORG, project=lab_project(LAB.parse(kv.key)["user"]))
            machines = (await self._old.range(place, limit=1)).items if vm is None else await self._old.get(place + vm)
            if machines:
                return [], [], done
        return *await self._if_absent(kv.key), done

    async def _if_absent(self, key: str) -> tuple[list[Comparison], list[Operation]]:
        """Return what moves this record; nothing if the cluster has one."""
        kv = await self._old.get(key)
        if kv is None or await self._new.get(key) is not None:
            return [], []
        return [Version(key) == 0], [Put(key, kv.value)]

    async def _belongings(self, ids: dict[str, str]) -> tuple[str, list[Put]]:
        """Return the node of a machine, its handle and its command: with both, a running machine continues to run."""
        kv = await self._old.get(HANDLE.fill(**ids))
        if kv is None:
            return "", []
        found, node = [Put(kv.key, kv.value)], _node_of(kv)
        command = await self._old.get(COMMAND.fill(node=node, vm=ids["vm"])) if node else None
        if command is not None:
            found.append(Put(command.key, command.value))
        return node, found

    async def _free_name(self, vm: VirtualMachine, ids: dict[str, str]) -> str | None:
        """Return a name that no other machine of the project has; None: it has no name that is valid in a key."""
        mark = hashlib.sha256(ids["vm"].encode()).hexdigest()[:12]
        for name in (vm.name, f"{vm.name[: MAX_NAME - 13]}-{mark}"):
            try:
                if await NAME.get(self._new, org=ids["org"], project=ids["project"], name=name) is None:
                    return name
            except Invalid:
                return None
        return None

    def _unanswered(self) -> Unavailable:
        return Unavailable(
            "migration: the cluster did not accept a write; moved records stay moved, start again to continue"
        )


def _node_of(kv: KeyValue) -> str:
    """Return the node of a command or a handle; empty: it has none that is valid in a key."""
    parts = COMMAND.match(kv.key)
    if parts is not None:
        return parts["node"]
    try:
        node = HANDLE.decode(kv.value, where=kv.key).node
        return MEMBER.parse(MEMBER.fill(node=node))["node"] if node else ""
    except (Damaged, Invalid):
        return ""


def _machine_of(kv: KeyValue) -> str | None:
    """Return the id of a lab's machine; empty: it has none; None: the record is unreadable."""
    try:
        lab = LAB.decode(kv.value, where=kv.key).lab
    except Damaged:
        return None
    return "" if lab is None else lab.vm

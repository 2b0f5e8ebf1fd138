"""Node service: reads nodes and applies operator actions to them. Agents and the leader write the same records."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec

from hostler.engine.placement.request import counted_capacity
from hostler.engine.request import Written, check_limit
from hostler.errors import Conflict, Damaged, Invalid, NotFound
from hostler.keys.families import ALIVE, ARRIVAL, BRAKE, COMMAND, FENCING, MEMBER, RETAINED, RETAINED_REQUEST, SILENT
from hostler.kit.plural import counted
from hostler.model.inventory import Capacity
from hostler.model.inventory_api import BrakeView, NodePage, NodeView
from hostler.model.node import ImageNeeds, Lifecycle, NodeRecord, OffConfirmation
from hostler.model.vm_api import ImageList, ImageView
from hostler.ports.store import DeletePrefix

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostler.engine.idempotent_writer import Writer
    from hostler.engine.request import Caller, Request
    from hostler.engine.view import View
    from hostler.keys.entry import Entry
    from hostler.kit.clock import Clock
    from hostler.model.inventory_api import Drain
    from hostler.model.node import BrakeRecord, Retained
    from hostler.ports.store import Comparison, KeyValue, Operation, Store

NAMED = 5
"""Number of retained machines that an error message names."""
Change: TypeAlias = "Callable[[NodeRecord], NodeRecord]"


class NodeService:
    """Reads and changes nodes. One per process. Liveness and usage come from `view`, which may lag slightly."""

    def __init__(self, store: Store, writer: Writer, view: View, *, clock: Clock) -> None:
        self._store, self._writer, self._view, self._clock = store, writer, view, clock

    # Reading: allowed for every caller

    async def get(self, caller: Caller, node: str, *, stale: bool = False) -> NodeView:  # noqa: ARG002 - allowed for every caller
        """Return one node. `stale`: from the cache of this process, also while the store is unreachable."""
        if not stale:
            return self._shown(await self._find(node))
        entry = self._view.members.get(node=node)
        if entry is None:
            raise _missing(node)
        return self._shown(entry)

    async def list(
        self,
        caller: Caller,  # noqa: ARG002 - allowed for every caller
        *,
        limit: int = 100,
        after: str | None = None,
        stale: bool = False,
    ) -> NodePage:
        """Return a page of nodes, ordered by name."""
        check_limit(limit)
        start = None if after is None else MEMBER.fill(node=after)
        if stale:
            members = self._view.members
            keys = sorted(key for key in members.entries if start is None or key > start)
            entries = [members.entries[key] for key in keys[:limit]]
            last, revision = keys[limit - 1] if len(keys) > limit else None, members.revision
        else:
            page = await self._store.range(MEMBER.prefix(), after=start, limit=limit)
            entries = [entry for kv in page.items if (entry := _readable(kv)) is not None]
            last, revision = page.items[-1].key if page.more else None, page.revision
        items = tuple(self._shown(entry) for entry in entries)
        return NodePage(items=items, after=None if last is None else last.rpartition("/")[2], revision=revision)

    async def images(self, caller: Caller) -> ImageList:  # noqa: ARG002 - allowed for every caller
        """Return the images available on nodes that are on duty, from the cache of this process."""
        found: dict[str, list[ImageNeeds]] = {}
        takes_any = False
        for entry in self._view.members.entries.values():
            record = entry.value
            if record.lifecycle is not Lifecycle.ON_DUTY or self._view.alive.get(node=record.node) is None:
                continue
            takes_any = takes_any or record.images is None
            for name in record.images or ():
                if name:
                    found.setdefault(name, []).append(record.image_needs.get(name, ImageNeeds()))
        items = tuple(_image(name, needs) for name, needs in sorted(found.items()))
        return ImageList(items=items, any=takes_any)

    async def brake(self, caller: Caller) -> BrakeView:  # noqa: ARG002 - allowed for every caller
        """Return whether the brake on mass failure holds, and the nodes that triggered it."""
        return _brake(await BRAKE.get(self._store, scope=FENCING))

    # Writing

    async def release_brake(self, request: Request) -> Written[BrakeView]:
        """Allow fencing of the nodes that hold the brake now. Conflict: the brake does not hold."""
        request.caller.require("modify_inventory")
        by, at = request.caller.name, self._clock.wall()

        async def attempt() -> Written[BrakeView]:
            entry = await BRAKE.get(self._store, scope=FENCING)
            if entry is None:
                raise Conflict("brake: it does not hold, so there is nothing to release; look at the list of nodes")
            request.check_match("brake", entry.mod_revision)
            if entry.value.released:
                view = _brake(entry)
                await self._writer.remember(request, [BRAKE.unchanged(entry)], status=200, answer=view)
                return Written(view, entry.mod_revision, 200)
            new = msgspec.structs.replace(entry.value, released_by=by, released_at=at)
            view = msgspec.structs.replace(_brake(msgspec.structs.replace(entry, value=new)), revision=0)
            revision = await self._writer.commit(
                *(request, "brake.release", entry.key, entry.mod_revision),
                [BRAKE.unchanged(entry)],
                [BRAKE.put(new, scope=FENCING)],
                status=200,
                answer=view,
            )
            return Written(msgspec.structs.replace(view, revision=revision), revision, 200)

        return await self._writer.once(request, BrakeView, lambda: self._writer.retry("brake", attempt))

    async def drain(self, request: Request, node: str, how: Drain) -> Written[NodeView]:
        """Accept no more machines and move or stop the present ones, as `how` says. A drained node stays unchanged."""
        request.caller.require("modify_inventory")

        def change(record: NodeRecord) -> NodeRecord:
            if record.lifecycle is Lifecycle.DECOMMISSIONED:
                return record
            return msgspec.structs.replace(
                record, lifecycle=Lifecycle.DRAINING, drain=how.mode, drop_snapshots=how.drop_snapshots
            )

        return await self._change(request, node, "node.drain", change)

    async def activate(self, request: Request, node: str) -> Written[NodeView]:
        """Accept machines again. Conflict: its agent has shut down."""
        request.caller.require("modify_inventory")

        def change(record: NodeRecord) -> NodeRecord:
            if record.lifecycle is Lifecycle.SHUTTING_DOWN:
                raise Conflict(f"node {record.node}: its agent has shut down; start it, and the node joins by itself")
            return msgspec.structs.replace(record, lifecycle=Lifecycle.ON_DUTY)

        return await self._change(request, node, "node.activate", change)

    async def confirm_off(self, request: Request, node: str) -> Written[NodeView]:
        """Record an operator's confirmation that the unreachable node is off. Conflict: its agent sends heartbeats."""
        request.caller.require("perform_repairs")
        by, at = request.caller.name, self._clock.wall()

        def change(record: NodeRecord) -> NodeRecord:
            if record.off is not None and not record.off.by_power:
                return record  # the brake holds back a power switch's confirmation, but not an operator's
            return msgspec.structs.replace(record, off=OffConfirmation(by=by, at=at))

        await self._make_known(node)
        return await self._change(request, node, "node.confirm-off", change, silent=True)

    async def forget(self, request: Request, node: str, *, forget_retained: bool = False) -> Written[NodeView]:
        """Delete the record of a node that is decommissioned or unreachable and has no machines; otherwise Conflict.

        `forget_retained`: delete the records of its retained machines, too. Their disks stay in the node's folder, and
        the records return with the node.
        """
        request.caller.require("modify_inventory")

        async def attempt() -> Written[NodeView]:
            return await self._forget(request, node, forget_retained=forget_retained)

        return await self._writer.once(request, NodeView, lambda: self._writer.retry(f"node {node}", attempt))

    # Internal

    async def _change(
        self, request: Request, node: str, verb: str, change: Change, *, silent: bool = False
    ) -> Written[NodeView]:
        async def attempt() -> Written[NodeView]:
            entry = await self._find(node)
            request.check_match(f"node {entry.value.node}", entry.mod_revision)
            when: list[Comparison] = [MEMBER.unchanged(entry)]
            if silent:
                await self._check_silent(node)
                when.append(ALIVE.absent(node=node))
            new = change(entry.value)
            if new == entry.value:
                view = self._shown(entry)
                await self._writer.remember(request, when, status=200, answer=view)
                return Written(view, entry.mod_revision, 200)
            view = msgspec.structs.replace(self._shown(_with(entry, new)), revision=0)
            revision = await self._writer.commit(
                request,
                verb,
                entry.key,
                entry.mod_revision,
                when,
                [MEMBER.put(new, node=node)],
                status=200,
                answer=view,
            )
            return Written(msgspec.structs.replace(view, revision=revision), revision, 200)

        return await self._writer.once(request, NodeView, lambda: self._writer.retry(f"node {node}", attempt))

    async def _make_known(self, node: str) -> None:
        """Create a record for a node that never registered but has machines, from a state file."""
        if await MEMBER.get(self._store, node=node) is not None:
            return
        if not (await self._store.range(COMMAND.prefix(node=node), limit=1, keys_only=True)).items:
            return
        record = NodeRecord(
            node=node,
            lifecycle=Lifecycle.SHUTTING_DOWN,
            capacity=Capacity(cpus=0, memory_mib=0),
            registered_at=self._clock.wall(),
        )
        when = [MEMBER.absent(node=node), ALIVE.absent(node=node)]
        await self._store.txn(when, [MEMBER.put(record, node=node)])

    async def _forget(self, request: Request, node: str, *, forget_retained: bool) -> Written[NodeView]:
        entry = await self._find(node)
        request.check_match(f"node {entry.value.node}", entry.mod_revision)
        when: list[Comparison] = [MEMBER.unchanged(entry)]
        if entry.value.lifecycle is not Lifecycle.DECOMMISSIONED:
            await self._check_silent(node)
            when.append(ALIVE.absent(node=node))
        # A machine is assigned to a node only while the node is alive and on duty, and both change what is compared
        # here. The node's record is also rewritten when it gets a command again for a machine that it has. A machine
        # handed over between the two reads changes from an arrival to a command: hence their order.
        for prefix in (ARRIVAL.prefix(node=node), COMMAND.prefix(node=node)):
            if (await self._store.range(prefix, limit=1, keys_only=True)).items:
                raise Conflict(f"node {node}: it still has machines; drain it, or confirm that it is off, and wait")
        then: list[Operation] = [MEMBER.delete(node=node), SILENT.delete(node=node)]
        if retained := (await RETAINED.list(self._store, node=node, strict=False)).entries:
            if not forget_retained:
                raise Conflict(_retained_there(request.caller, node, retained))
            await self._check_silent(node)  # a running agent would write the records again
            when.append(ALIVE.absent(node=node))
            then += [DeletePrefix(RETAINED.prefix(node=node)), DeletePrefix(RETAINED_REQUEST.prefix(node=node))]
        view = self._shown(entry)
        revision = await self._writer.commit(
            request,
            "node.forget",
            entry.key,
            entry.mod_revision,
            when,
            then,
            status=200,
            answer=view,
        )
        return Written(view, revision, 200)

    async def _find(self, node: str) -> Entry[NodeRecord]:
        entry = await MEMBER.get(self._store, node=node)
        if entry is None:
            raise _missing(node)
        return entry

    async def _check_silent(self, node: str) -> None:
        if await ALIVE.get(self._store, node=node) is not None:
            raise Conflict(f"node {node}: its agent still sends heartbeats; stop the agent or cut the power first")

    def _shown(self, entry: Entry[NodeRecord]) -> NodeView:
        record, node = entry.value, entry.parts["node"]
        commands = [command.value.spec for command in self._view.commands_of(node)]
        used = Capacity(
            cpus=sum(spec.cpus for spec in commands),
            memory_mib=sum(spec.memory_mib for spec in commands),
            disk_gib=sum(spec.disk_gib for spec in commands),
        )
        return NodeView(
            node=record.node,
            lifecycle=record.lifecycle,
            alive=self._view.alive.get(node=node) is not None,
            capacity=counted_capacity(record, self._view.inventory.capacity(node)),
            used=used,
            vms=len(commands),
            labels=record.labels,
            rack=record.rack,
            pdus=record.pdus,
            tors=record.tors,
            address=record.address,
            driver=record.driver,
            fences=record.fences,
            moves=record.moves,
            images=record.images,
            facts=record.facts,
            refuses=record.refuses,
            objection=self._view.inventory.objection(node),
            drain=record.drain,
            off=record.off,
            awaited=record.awaited,
            registered_at=record.registered_at,
            revision=entry.mod_revision,
        )


def _retained_there(caller: Caller, node: str, entries: Sequence[Entry[Retained]]) -> str:
    """Return the error about retained machines on the node, with the names that the caller may see."""
    seen = [each.value for each in entries if caller.sees(each.value.org, each.value.project)]
    named = [f"{each.vm_name or each.vm} ({each.name})" for each in seen[:NAMED]]
    if len(entries) > len(named):
        named.append(f"{len(entries) - len(named)} more")
    kept = counted(len(entries), "retained machine")
    return (
        f"node {node}: it keeps the disks of {kept}: {', '.join(named)}; start its agent and restore or delete them, or"
        " remove the node with forget_retained: the records are deleted, the disks stay in its folder"
    )


def _brake(entry: Entry[BrakeRecord] | None) -> BrakeView:
    if entry is None:
        return BrakeView(held=False)
    record = entry.value
    return BrakeView(
        held=not record.released,
        nodes=record.nodes,
        of=record.of,
        cause=record.cause,
        since=record.at,
        released_by=record.released_by,
        released_at=record.released_at,
        revision=entry.mod_revision,
    )


def _image(name: str, needs: list[ImageNeeds]) -> ImageView:
    """Return an image that several nodes may have under one name, with requirements that suffice for each of them."""
    return ImageView(
        name=name,
        nodes=len(needs),
        default=any(each.default for each in needs),
        memory_mib=max(each.memory_mib for each in needs),
        disk_gib=max(each.disk_gib for each in needs),
        user=next((each.user for each in needs if each.user), ""),
        seeding=needs[0].seeding if len({each.seeding for each in needs}) == 1 else "",
    )


def _readable(kv: KeyValue) -> Entry[NodeRecord] | None:
    try:
        return MEMBER.entry(kv)
    except (Damaged, Invalid):
        return None  # the caches count it, and `hostler doctor` reports it


def _missing(node: str) -> NotFound:
    return NotFound(f"node {node}: not found; look at the list of nodes")


def _with(entry: Entry[NodeRecord], record: NodeRecord) -> Entry[NodeRecord]:
    return msgspec.structs.replace(entry, value=record)

"""Inventory service: plans and applies loads, and changes `enabled` and `condition`. Queries: `queries`.

A load is a sequence of transactions, each conditional on the revisions that were read; on a concurrent change it stops,
and loading the same file again does the rest.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from msgspec import UNSET, Struct, structs

from hostler.engine.idempotent_writer import Beaten
from hostler.engine.inventory.export import document_of, inventory_from, read_document
from hostler.engine.inventory.inventory_file import inventory_in
from hostler.engine.inventory.local_rack import unchanged
from hostler.engine.inventory.plan import Step, batches, desired_records, plan
from hostler.engine.inventory.queries import InventoryReader, missing
from hostler.engine.request import Written
from hostler.engine.serial_executor import Turn
from hostler.errors import Conflict, Stale, TooLarge
from hostler.keys.families import (
    ARRIVAL,
    BLADE,
    COMMAND,
    IN_RACKS,
    MORE_PDUS,
    MORE_TORS,
    PDU,
    RACK,
    REGION,
    SLICE,
    TOR,
    ZONE,
)
from hostler.kit.plural import counted
from hostler.model.inventory_api import (
    HOSTLER,
    CurrentInventory,
    FieldChange,
    HardwareView,
    InventoryChange,
    InventoryDocument,
    InventoryLoaded,
    InventoryPlan,
)
from hostler.model.name import fold
from hostler.ports.store import Put

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hostler.engine.idempotent_writer import Writer
    from hostler.engine.inventory.inventory_file import Inventory
    from hostler.engine.request import Caller, Request
    from hostler.engine.view import View
    from hostler.keys.entry import Entry
    from hostler.keys.key import Key
    from hostler.model.inventory import Hardware
    from hostler.model.inventory_api import HardwareSet
    from hostler.ports.store import Store

T = TypeVar("T")
Reader: TypeAlias = "Callable[[str, str, str], InventoryDocument]"
AT_ONCE = 96
"""Number of records per transaction: with audit entry and response it stays below 100 operations.

Large ones are fewer.
"""
ASKED_SINGLY = 200
"""Number of nodes whose machines are read one by one; with more of them all commands are scanned."""
TOLD = 20
"""Largest number of lines of one kind in a plan."""
MOST_TEXT = 2 * 1024 * 1024
"""Largest length of a file that a server parses, in characters."""
_PAGE = 1000


class _Standing(Struct, frozen=True):
    """All records, and their revision."""

    entries: Mapping[str, Entry[Any]]
    revision: int

    @property
    def records(self) -> dict[str, Hardware]:
        return {key: entry.value for key, entry in self.entries.items()}


class _Weighed(Struct, frozen=True):
    """The changes of a load, and what is known of them without further reads."""

    steps: tuple[Step, ...]
    digest: str
    removed: dict[str, str]
    """Names of removed blades by their nodes."""
    changes: tuple[InventoryChange, ...] = ()


class InventoryService(InventoryReader):
    """Operations on the inventory. One per process. Every caller may read; writing takes the right modify_inventory.

    `read`: parses a file, in a thread. `aside`: whether other long computations run in a thread, too; in virtual time
    there are none.
    """

    def __init__(
        self, store: Store, writer: Writer, view: View, *, read: Reader = read_document, aside: bool = False
    ) -> None:
        super().__init__(store, view)
        self._read, self._aside = read, aside
        self._writer = writer
        self._texts = Turn("inventory's file")
        # separate, so that readers do not block loads
        self._shows = Turn("inventory", busy="too many concurrent requests for all of it")

    # The whole inventory

    async def show(self, caller: Caller, *, stale: bool = False) -> CurrentInventory:  # noqa: ARG002 - allowed for every caller
        """Return the current inventory in the form of a file."""
        standing = self._seen() if stale else await self._standing()
        document = await self._run_in_thread(lambda: document_of(inventory_from(standing.records)), self._shows)
        return CurrentInventory(
            regions=tuple(document.get("regions", ())),
            racks=tuple(document.get("racks", ())),
            revision=standing.revision,
        )

    async def read(self, caller: Caller, text: str, file: str, format_: str = HOSTLER) -> InventoryDocument:
        """Return the document of a file. Invalid: something is wrong; one line per error."""
        caller.require("modify_inventory")
        if len(text) > MOST_TEXT:
            raise TooLarge(
                f"{file}: more than {MOST_TEXT // 1024} KiB, the limit of the server;"
                " load it with the command line: hostler inventory load FILE"
            )
        # It takes a second or more for a file with ten thousand blades.
        return await self._texts.run(self._read, text, file, format_)

    async def taken(self, caller: Caller, document: InventoryDocument) -> Inventory:
        """Return the inventory of a JSON document. Invalid: something is wrong; one line per error."""
        caller.require("modify_inventory")
        return await self._texts.run(inventory_in, {"regions": list(document.regions), "racks": list(document.racks)})

    async def plan(self, caller: Caller, inventory: Inventory) -> InventoryPlan:
        """Return what a load would do."""
        caller.require("modify_inventory")
        standing = await self._standing()
        weighed = await self._run_in_thread(lambda: _weigh(standing, inventory, told=True), self._texts)
        return InventoryPlan(
            changes=weighed.changes,
            refused=tuple(await self._blades_in_use(weighed.removed)),
            notes=tuple(_clipped(await self._notes(weighed.removed))),
            digest=weighed.digest,
            revision=standing.revision,
        )

    async def load(self, request: Request, inventory: Inventory, *, agreed: str = "") -> Written[InventoryLoaded]:
        """Make it the inventory. `agreed`: only if that is the digest of its plan.

        Stale: the plan has changed. Conflict: a removed blade has machines, or another client wrote concurrently;
        earlier transactions of the load remain.
        """
        request.caller.require("modify_inventory")
        return await self._writer.once(request, InventoryLoaded, lambda: self._load(request, inventory, agreed))

    # Single records

    async def set_region(self, request: Request, region: str, change: HardwareSet) -> Written[HardwareView]:
        """Take a region out of use, or put it back."""
        return await self._set(request, f"region {region}", [REGION.fill(region=region)], change)

    async def set_zone(self, request: Request, region: str, zone: str, change: HardwareSet) -> Written[HardwareView]:
        """Take a zone out of use, or put it back."""
        return await self._set(request, f"zone {region}/{zone}", [ZONE.fill(region=region, zone=zone)], change)

    async def set_rack(self, request: Request, rack: str, change: HardwareSet) -> Written[HardwareView]:
        """Take a rack out of use, or put it back."""
        return await self._set(request, f"rack {rack}", [RACK.fill(rack=rack)], change)

    async def set_part(
        self, request: Request, rack: str, name: str, change: HardwareSet, *, level: str = ""
    ) -> Written[HardwareView]:
        """Take a blade, pdu or tor out of use, or put it back. Names are unique in a rack, so `level` is optional."""
        keys = {
            "blade": [BLADE.fill(rack=rack, blade=name)],
            "pdu": [PDU.fill(rack=rack), MORE_PDUS.fill(rack=rack, n=2)],
            "tor": [TOR.fill(rack=rack), MORE_TORS.fill(rack=rack, n=2)],
        }
        meant = keys[level] if level else [key for some in keys.values() for key in some]
        return await self._set(request, f"{level or 'part'} {rack}/{name}", meant, change)

    # Internal

    async def _standing(self) -> _Standing:
        """Return all records at one revision."""
        regions = await REGION.list(self._store)
        entries: list[Entry[Any]] = [*regions.entries]
        for key in (ZONE, RACK, IN_RACKS):
            entries += (await key.list(self._store, revision=regions.revision)).entries
        return _Standing({entry.key: entry for entry in entries}, regions.revision)

    def _seen(self) -> _Standing:
        mirrors = self._view.inventory.mirrors.values()
        entries = {key: entry for mirror in mirrors for key, entry in mirror.entries.items()}
        return _Standing(entries, min(mirror.revision for mirror in mirrors))

    async def _run_in_thread(self, work: Callable[[], T], turn: Turn) -> T:
        """Run a computation that takes a second for ten thousand blades, without blocking the event loop."""
        return await turn.run(work) if self._aside else work()

    async def _load(self, request: Request, inventory: Inventory, agreed: str) -> Written[InventoryLoaded]:
        standing = await self._standing()
        weighed = await self._run_in_thread(lambda: _weigh(standing, inventory, told=False), self._texts)
        steps = weighed.steps
        if agreed and agreed != weighed.digest:
            raise Stale("inventory: it has changed since the plan was made; look at the new plan, and load that")
        refused = await self._blades_in_use(weighed.removed)
        if refused:
            raise Conflict(f"inventory: {', and '.join(_clipped(refused))}")
        loaded = InventoryLoaded(
            added=sum(step.before is None for step in steps),
            changed=sum(step.before is not None and step.after is not None for step in steps),
            removed=sum(step.after is None for step in steps),
            revision=0,
        )
        if not steps:
            loaded = structs.replace(loaded, revision=standing.revision)
            await self._writer.remember(request, [], status=200, answer=loaded)
            return Written(loaded, standing.revision, 200)
        revision = await self._write(request, steps, standing, loaded)
        return Written(structs.replace(loaded, revision=revision), revision, 200)

    async def _write(
        self, request: Request, steps: Sequence[Step], standing: _Standing, loaded: InventoryLoaded
    ) -> int:
        keyless = structs.replace(request, key=None)  # only the last transaction carries the response
        done = revision = 0
        for batch in batches(steps, AT_ONCE):
            last = done + len(batch) == len(steps)
            before = standing.entries.get(batch[0].key)
            try:
                revision = await self._writer.commit(
                    request if last else keyless,
                    "inventory.load",
                    batch[0].key,
                    0 if before is None else before.mod_revision,
                    [unchanged(step.key, standing.entries.get(step.key)) for step in batch],
                    [step.operation() for step in batch],
                    status=200,
                    answer=loaded if last else None,
                )
            except Beaten:
                written = f"{done:,} of {counted(len(steps), 'change is', 'changes are')} written"
                raise Conflict(
                    f"inventory: changed concurrently, {written}; check the plan again, and load the rest"
                ) from None
            done += len(batch)
        return revision

    async def _blades_in_use(self, removed: Mapping[str, str]) -> list[str]:
        """Return blades that cannot be removed, because their nodes have machines."""
        found = await self._machines_on(tuple(removed))
        return [
            f"blade {removed[node]}: its node {node} has {_named(names, 'machine')}; hostler node drain {node} first"
            for node, names in found.items()
        ]

    async def _machines_on(self, nodes: Sequence[str]) -> dict[str, list[str]]:
        """Return the names of the machines that these nodes have, or expect."""
        found = await self._keys(nodes, (COMMAND, ARRIVAL), "vm")
        return {node: [self._called(node, vm) for vm in vms] for node, vms in found.items()}

    async def _keys(self, nodes: Sequence[str], keys: Sequence[Key[Any]], part: str) -> dict[str, list[str]]:
        """Return that part of the keys of these nodes, by node, if there are any."""
        prefixes = [key.prefix() for key in keys]
        if len(nodes) <= ASKED_SINGLY:
            prefixes = [key.prefix(node=node) for node in nodes for key in keys]
        found: dict[str, list[str]] = {node: [] for node in nodes}
        for prefix in prefixes if nodes else ():
            after: str | None = None
            while True:
                page = await self._store.range(prefix, after=after, limit=_PAGE, keys_only=True)
                for kv in page.items:
                    parts = next(filter(None, (key.match(kv.key) for key in keys)), {})
                    if parts.get("node") in found:
                        found[parts["node"]].append(parts[part])
                if not page.more:
                    break
                after = page.items[-1].key
        return {node: names for node, names in found.items() if names}

    def _called(self, node: str, vm: str) -> str:
        command = self._view.commands.get(node=node, vm=vm)
        return vm if command is None else command.value.name or vm

    async def _notes(self, removed: Mapping[str, str]) -> list[str]:
        """Return notes on nodes of removed blades.

        Slices do not block the removal: they run until the node goes, then elsewhere.
        """
        members = self._view.members
        slices = await self._keys(tuple(removed), (SLICE,), "artifact")
        notes: list[str] = []
        for node in removed:
            serves = f" has {_named(slices[node], 'slice')}" if node in slices else ""
            if members.get(node=node) is not None:
                notes.append(
                    f"node {node}{serves}{' and' if serves else ''} is registered, and will not be in the inventory;"
                    f" {f'hostler node drain {node}, ' if serves else ''}stop its agent, and hostler node remove {node}"
                )
            elif serves:
                notes.append(f"node {node}{serves}, and will not be in the inventory")
        return notes

    async def _set(
        self, request: Request, what: str, keys: Sequence[str], change: HardwareSet
    ) -> Written[HardwareView]:
        request.caller.require("modify_inventory")

        async def attempt() -> Written[HardwareView]:
            key, entry = await self._find(what, keys)
            request.check_match(what, entry.mod_revision)
            fields = {name: getattr(change, name) for name in ("enabled", "condition")}
            record = structs.replace(
                entry.value, **{name: value for name, value in fields.items() if value is not UNSET}
            )
            step = Step(entry.key, None, record)
            view = HardwareView(
                level=step.kind, name=step.name, enabled=record.enabled, condition=record.condition, revision=0
            )
            if record == entry.value:
                view = structs.replace(view, revision=entry.mod_revision)
                await self._writer.remember(request, [key.unchanged(entry)], status=200, answer=view)
                return Written(view, entry.mod_revision, 200)
            revision = await self._writer.commit(
                request,
                f"{step.kind}.set",
                entry.key,
                entry.mod_revision,
                [key.unchanged(entry)],
                [Put(entry.key, record.encode())],
                status=200,
                answer=view,
            )
            return Written(structs.replace(view, revision=revision), revision, 200)

        return await self._writer.once(request, HardwareView, lambda: self._writer.retry(what, attempt))

    async def _find(self, what: str, keys: Sequence[str]) -> tuple[Key[Any], Entry[Any]]:
        """Return the record of these that has the name."""
        name = fold(what.partition(" ")[2].rpartition("/")[2])
        for text in keys:
            key = next((each for each in (REGION, ZONE, RACK) if each.match(text) is not None), None) or IN_RACKS.of(
                text
            )
            kv = await self._store.get(text) if key is not None else None
            if key is None or kv is None:
                continue
            entry = key.entry(kv)
            if fold(entry.value.name) == name:
                return key, entry
        raise missing(what)


def _weigh(standing: _Standing, inventory: Inventory, *, told: bool) -> _Weighed:
    records = standing.records
    steps = plan(records, desired_records(inventory, records))
    return _Weighed(
        steps,
        _digest(steps),
        {step.node: step.name for step in steps if step.after is None and step.node},
        tuple(_change_view(step) for step in steps) if told else (),
    )


def _change_view(step: Step) -> InventoryChange:
    return InventoryChange(
        what="add" if step.before is None else "remove" if step.after is None else "change",
        level=step.kind,
        name=step.name,
        fields=tuple(FieldChange(field=field, old=old, new=new) for field, old, new in step.fields()),
    )


def _digest(steps: Sequence[Step]) -> str:
    if not steps:
        return ""
    digest = hashlib.sha256()
    for step in steps:
        for part in (
            step.key.encode(),
            *(b"-" if side is None else side.encode() for side in (step.before, step.after)),
        ):
            digest.update(b"%d:" % len(part) + part)
    return digest.hexdigest()[:32]


def _named(names: Sequence[str], what: str) -> str:
    shown = ", ".join(sorted(names)[:5]) + (", …" if len(names) > 5 else "")
    return f"{counted(len(names), what)} ({shown})"


def _clipped(lines: Sequence[str]) -> list[str]:
    return [*lines[:TOLD], *([f"{len(lines) - TOLD} more such"] if len(lines) > TOLD else [])]

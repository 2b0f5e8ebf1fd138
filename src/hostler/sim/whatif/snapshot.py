"""A copy of the records of a control plane at one revision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from hostler.engine.inventory.export import inventory_from
from hostler.errors import Compacted, Conflict, Damaged
from hostler.keys.families import (
    ALIVE,
    ARRIVAL,
    BLUEPRINT,
    CLUSTER,
    COMMAND,
    DEPLOYMENT,
    FAMILIES,
    FENCE,
    HANDLE,
    INSTANCE,
    MEMBER,
    NAME,
    ORG_QUOTA,
    QUOTA,
    RETRIES,
    SLICE,
    SLICE_OWNER,
    TARGET,
    USER,
    VM,
    WORKLOAD,
)
from hostler.keys.lab import LAB, LAB_CATALOGUE

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.engine.inventory.inventory_file import Inventory
    from hostler.keys.key import Key
    from hostler.model.deployment import SliceRecord
    from hostler.model.inventory import Hardware
    from hostler.model.node import NodeRecord, VmCommand
    from hostler.model.vm import VirtualMachine, VmHandle
    from hostler.ports.store import Store

T = TypeVar("T")

PAGE = 1_000
TRIES = 3
HARDWARE = tuple(key for key in FAMILIES["inventory"] if key is not USER)
TAKEN: tuple[Key[Any], ...] = (
    *HARDWARE,
    *(
        CLUSTER,
        MEMBER,
        COMMAND,
        ARRIVAL,
        VM,
        NAME,
        HANDLE,
        WORKLOAD,
        INSTANCE,
        TARGET,
        LAB,
        LAB_CATALOGUE,
        QUOTA,
        ORG_QUOTA,
        FENCE,
        BLUEPRINT,
        SLICE_OWNER,
        DEPLOYMENT,
        RETRIES,
        SLICE,
    ),
)
"""Records on which decisions are based. Endpoints and routers are attached to leases, and return by themselves. Users,
their tokens, the audit log and old decisions are not copied."""


class Copied(msgspec.Struct, frozen=True, kw_only=True):
    """The copied records."""

    revision: int
    records: dict[str, bytes]
    """The raw records by key; the inventory is not among them."""
    inventory: Inventory
    cluster: str
    members: dict[str, NodeRecord]
    """By node, folded."""
    alive: frozenset[str]
    """Nodes that sent heartbeats."""
    vms: dict[str, VirtualMachine]
    """By `org/project/vm`, as are the handles."""
    handles: dict[str, VmHandle]
    commands: dict[str, dict[str, VmCommand]]
    """By node, then by the machine's id."""
    slices: dict[str, dict[str, SliceRecord]]
    """By node, then by artifact."""
    unreadable: tuple[str, ...]
    """Keys with unreadable values, which are left out."""


async def copied(store: Store, tell: Callable[[str, int], None] = lambda *_: None) -> Copied:
    """Copy the records of a store. `tell` is called with the progress. Conflict: its history is compacted too fast."""
    for _ in range(TRIES):
        try:
            return await _Reading(store, tell).read()
        except Compacted:
            continue
    raise Conflict("store: its history is compacted faster than it can be read; try again when the load is lower")


class _Reading:
    def __init__(self, store: Store, tell: Callable[[str, int], None]) -> None:
        self._store, self._tell = store, tell
        self._revision: int | None = None
        self._unreadable: list[str] = []

    async def read(self) -> Copied:
        raw: dict[str, bytes] = {}
        found: dict[str, dict[str, Any]] = {}
        for key in (*TAKEN, ALIVE):
            values = found[key.template] = await self._family(key, raw)
            self._tell(key.template, len(values))
        hardware: dict[str, Hardware] = {}
        for key in HARDWARE:
            hardware |= found[key.template]
        cluster = next(iter(found[CLUSTER.template].values()), None)
        alive = frozenset(ALIVE.parse(key)["node"] for key in found[ALIVE.template])
        commands: dict[str, dict[str, VmCommand]] = {}
        for told, command in found[COMMAND.template].items():
            commands.setdefault(COMMAND.parse(told)["node"], {})[command.vm] = command
        slices: dict[str, dict[str, SliceRecord]] = {}
        for there, record in found[SLICE.template].items():
            parts = SLICE.parse(there)
            slices.setdefault(parts["node"], {})[parts["artifact"]] = record
        return Copied(
            revision=self._revision or 0,
            records={key: value for key, value in raw.items() if key not in hardware and ALIVE.match(key) is None},
            inventory=inventory_from(hardware),
            cluster="" if cluster is None else cluster.id,
            members={MEMBER.parse(key)["node"]: member for key, member in found[MEMBER.template].items()},
            alive=alive,
            vms={key.removeprefix(VM.prefix()): vm for key, vm in found[VM.template].items()},
            handles={key.removeprefix(HANDLE.prefix()): handle for key, handle in found[HANDLE.template].items()},
            commands=commands,
            slices=slices,
            unreadable=tuple(self._unreadable),
        )

    async def _family(self, key: Key[T], raw: dict[str, bytes]) -> dict[str, T]:
        """Read all records of one family, at the revision of the first page."""
        values: dict[str, T] = {}
        after: str | None = None
        prefix = key.prefix() if key.names else key.fill()
        while True:
            page = await self._store.range(prefix, after=after, limit=PAGE, revision=self._revision)
            self._revision = self._revision or page.revision
            for kv in page.items:
                if key.match(kv.key) is None:
                    continue
                try:
                    values[kv.key] = key.decode(kv.value, where=kv.key)
                except Damaged:
                    self._unreadable.append(kv.key)
                else:
                    raw[kv.key] = kv.value
            if not page.more:
                return values
            after = page.items[-1].key

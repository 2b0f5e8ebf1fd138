"""Snapshot of one virtual machine: all its records with revisions, from the caches or read from the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from hostler.engine.controllers.decision import assigned_node
from hostler.engine.controllers.migration import Way
from hostler.engine.leadership import check_guard
from hostler.errors import Damaged
from hostler.keys.families import ALIVE, ARRIVAL, COMMAND, HANDLE, MEMBER, VM
from hostler.ports.store import Get

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostler.engine.view import View
    from hostler.keys.entry import Entry
    from hostler.keys.key import Key
    from hostler.model.node import Arrival, Heartbeat, NodeRecord, VmCommand
    from hostler.model.vm import VirtualMachine, VmHandle
    from hostler.ports.store import Comparison, KeyValue, Operation, Store

VMS, HANDLES = VM.prefix(), HANDLE.prefix()


class VmSnapshot(msgspec.Struct, frozen=True):
    """One machine.

    `node` has the command that counts, or is the handle's, or empty; `member` and `alive` belong to it.
    """

    name: str
    """`org/project/vm`."""
    vm: Entry[VirtualMachine] | None = None
    handle: Entry[VmHandle] | None = None
    node: str = ""
    command: Entry[VmCommand] | None = None
    extra: tuple[Entry[VmCommand], ...] = ()
    """Commands of other nodes: none, unless records were edited by hand."""
    foreign: frozenset[str] = frozenset()
    """Nodes that have a command for another machine of the same id."""
    member: Entry[NodeRecord] | None = None
    alive: Entry[Heartbeat] | None = None
    arrivals: tuple[Entry[Arrival], ...] = ()
    """Arrivals of the machine on all nodes."""
    target: Entry[NodeRecord] | None = None
    """The migration target, if it is migrating."""
    target_alive: bool = False
    unreadable: tuple[str, ...] = ()
    """Keys with unreadable values: nothing may be decided."""

    @property
    def to(self) -> str:
        """Return the migration target; empty: it is not migrating."""
        departing = None if self.command is None else self.command.value.departing
        return "" if departing is None else departing.to

    @property
    def arrival(self) -> Entry[Arrival] | None:
        """Return the arrival on the migration target."""
        return next((entry for entry in self.arrivals if entry.parts["node"] == self.to), None)

    @property
    def strays(self) -> tuple[Entry[Arrival], ...]:
        """Return arrivals on other nodes: none, unless records were edited by hand."""
        return tuple(entry for entry in self.arrivals if entry.parts["node"] != self.to)

    @property
    def ids(self) -> dict[str, str]:
        """Return the parts of its keys."""
        org, project, vm = self.name.split("/")
        return {"org": org, "project": project, "vm": vm}


def from_view(view: View, name: str) -> VmSnapshot:
    """Return the snapshot from the caches; each family may have another revision."""
    id_ = name.rpartition("/")[2]
    vm, handle = view.vms.entries.get(VMS + name), view.handles.entries.get(HANDLES + name)
    commands: dict[str, Entry[VmCommand]] = {}
    for node in view.nodes_of(id_):
        entry = view.commands.get(node=node, vm=id_)
        if entry is not None:
            commands[node] = entry
    unreadable = [key for key in (VMS + name, HANDLES + name) if _unreadable(view, key)]
    if view.commands.unreadable:
        unreadable += [key for key in view.commands.unreadable if key.rpartition("/")[2] == id_]
    mine, foreign = _sorted_out(name, commands)
    node = _node(handle, mine)
    to = _to(mine.get(node))
    return VmSnapshot(
        name,
        vm,
        handle,
        node,
        mine.get(node),
        tuple(entry for other, entry in mine.items() if other != node),
        foreign,
        view.members.get(node=node) if node else None,
        view.alive.get(node=node) if node else None,
        tuple(entry for entry in view.arrivals_of(id_) if name_of_command(entry.value.command) == name),
        view.members.get(node=to) if to else None,
        bool(to) and view.alive.get(node=to) is not None,
        tuple(unreadable),
    )


async def from_store(store: Store, name: str, nodes: Iterable[str], guard: Comparison) -> VmSnapshot:
    """Return the snapshot at one revision; commands are read for `nodes` and for the handle's node.

    LeadershipLost: the guard no longer holds.
    """
    org, project, id_ = name.split("/")
    looked_at = set(nodes)
    while True:
        keys = [guard.key, VM.fill(org=org, project=project, vm=id_), HANDLE.fill(org=org, project=project, vm=id_)]
        known = sorted(looked_at)
        for node in known:
            keys += (COMMAND.fill(node=node, vm=id_), MEMBER.fill(node=node), ALIVE.fill(node=node))
            keys.append(ARRIVAL.fill(node=node, vm=id_))
        reads: list[Operation] = [Get(key) for key in keys]
        found = dict(zip(keys, (await store.txn([], reads)).responses))
        check_guard(guard, found[guard.key])
        faults: list[str] = []
        handle = _entry(HANDLE, found[keys[2]], faults)
        commands = {node: _entry(COMMAND, found[COMMAND.fill(node=node, vm=id_)], faults) for node in known}
        more = {_to(entry) for entry in commands.values()} | {"" if handle is None else handle.value.node}
        if more <= {"", *looked_at}:
            break
        looked_at |= more - {""}
    mine, foreign = _sorted_out(name, {node: entry for node, entry in commands.items() if entry is not None})
    node = _node(handle, mine)
    to = _to(mine.get(node))
    arrivals = [_entry(ARRIVAL, found[ARRIVAL.fill(node=other, vm=id_)], faults) for other in known]
    return VmSnapshot(
        name,
        _entry(VM, found[keys[1]], faults),
        handle,
        node,
        mine.get(node),
        tuple(entry for other, entry in mine.items() if other != node),
        foreign,
        _entry(MEMBER, found.get(MEMBER.fill(node=node)), faults) if node else None,
        _entry(ALIVE, found.get(ALIVE.fill(node=node)), faults) if node else None,
        tuple(entry for entry in arrivals if entry is not None and name_of_command(entry.value.command) == name),
        _entry(MEMBER, found.get(MEMBER.fill(node=to)), faults) if to else None,
        bool(to) and found.get(ALIVE.fill(node=to)) is not None,
        tuple(faults),
    )


def way(seen: VmSnapshot, *, source_alive: bool) -> Way:
    """Return the migration path."""
    return Way(
        arrival=None if seen.arrival is None else seen.arrival.value,
        target=None if seen.target is None else seen.target.value,
        target_alive=seen.target_alive,
        source_alive=source_alive,
    )


def _sorted_out(name: str, commands: dict[str, Entry[VmCommand]]) -> tuple[dict[str, Entry[VmCommand]], frozenset[str]]:
    mine = {node: entry for node, entry in commands.items() if name_of_command(entry.value) == name}
    return mine, frozenset(node for node in commands if node not in mine)


def name_of_command(command: VmCommand) -> str:
    """Return `org/project/vm` of the machine of a command."""
    return f"{command.org}/{command.project}/{command.vm}"


def _to(entry: Entry[VmCommand] | None) -> str:
    return "" if entry is None or entry.value.departing is None else entry.value.departing.to


def _node(handle: Entry[VmHandle] | None, commands: dict[str, Entry[VmCommand]]) -> str:
    record = None if handle is None else handle.value
    node = assigned_node(record, commands)
    return node or ("" if record is None else record.node)


def _unreadable(view: View, key: str) -> bool:
    return key in view.vms.unreadable or key in view.handles.unreadable


def _entry(key: Key[Any], kv: object, faults: list[str]) -> Any:
    if kv is None:
        return None
    found: KeyValue = kv  # type: ignore[assignment]
    try:
        return key.entry(found)
    except Damaged:
        faults.append(found.key)
        return None

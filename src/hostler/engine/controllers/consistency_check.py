"""Consistency check of the records, as messages for operators. The repair is decided per name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.errors import Invalid
from hostler.keys.entry import Unreadable
from hostler.keys.families import HANDLE, NAME, VM
from hostler.ports.store import Get

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostler.engine.view import View
    from hostler.keys.entry import Entry
    from hostler.ports.store import Store

MOST = 20
"""Largest number of messages per kind."""


def inspected(view: View, counters: dict[str, int]) -> Iterator[str]:
    """Yield a message per finding, and the number of those beyond the limit of a kind. Findings are counted, too."""
    for kind, findings in (
        ("unreadable", _unreadable(view)),
        ("handle_without_vm", _handles_without_vm(view)),
        ("command_without_vm", _commands_without_vm(view)),
        ("node_without_command", _nodes_without_command(view)),
        ("told_twice", _told_twice(view)),
    ):
        number = 0
        for number, line in enumerate(findings, start=1):
            if number <= MOST:
                yield line
        if number > MOST:
            yield f"{kind.replace('_', ' ')}: {number - MOST} more"
        if number:
            counters[f"found_{kind}"] = counters.get(f"found_{kind}", 0) + number


async def names_without_vm(store: Store, view: View, counters: dict[str, int]) -> list[str]:
    """Return the same for names that belong to no machine and therefore block the name. Names have no cache."""
    lines: list[str] = []
    number = 0
    async for found in NAME.scan(store):
        if isinstance(found, Unreadable) or not await _stands_for_nothing(store, view, found):
            continue
        number += 1
        if number <= MOST:
            lines.append(f"{found.key}: reserved for a machine that does not exist, so no other machine can use it")
    if number > MOST:
        lines.append(f"name without vm: {number - MOST} more")
    if number:
        counters["found_name_without_vm"] = counters.get("found_name_without_vm", 0) + number
    return lines


async def _stands_for_nothing(store: Store, view: View, name: Entry[str]) -> bool:
    try:
        key = VM.fill(org=name.parts["org"], project=name.parts["project"], vm=name.value)
    except Invalid:
        return True
    if key in view.vms.entries or key in view.vms.unreadable:
        return False
    # The machine may be newer, or deleted since: read both at one revision.
    kept, vm = (await store.txn([], [Get(name.key), Get(key)])).responses
    return vm is None and kept is not None and kept.mod_revision == name.mod_revision  # type: ignore[union-attr]


def _unreadable(view: View) -> Iterator[str]:
    for mirror in view.mirrors.values():
        for found in mirror.unreadable.values():
            yield f"{found.error}; nothing is decided about it until then"


def _handles_without_vm(view: View) -> Iterator[str]:
    for key in view.handles.entries:
        vm_key = VM.prefix() + key.removeprefix(HANDLE.prefix())
        if vm_key not in view.vms.entries and vm_key not in view.vms.unreadable:
            yield f"{key}: a handle without a machine; it is deleted"


def _commands_without_vm(view: View) -> Iterator[str]:
    for key, entry in view.commands.entries.items():
        vm_key = f"{VM.prefix()}{entry.value.org}/{entry.value.project}/{entry.value.vm}"
        if vm_key not in view.vms.entries and vm_key not in view.vms.unreadable:
            yield f"{key}: a command without a machine; it is deleted, and its node retains the machine, if it has one"


def _nodes_without_command(view: View) -> Iterator[str]:
    for key, entry in view.handles.entries.items():
        node = entry.value.node
        vm_key = VM.prefix() + key.removeprefix(HANDLE.prefix())
        if node and vm_key in view.vms.entries and node not in view.nodes_of(entry.value.id):
            yield f"{key}: names node {node}, which has no command for it; it gets one again once it is reachable"


def _told_twice(view: View) -> Iterator[str]:
    for vm in view.node_of:
        nodes = view.nodes_of(vm)
        if len(nodes) > 1:
            yield f"machine {vm}: nodes {', '.join(nodes)} have a command for it; only the node of its handle keeps it"

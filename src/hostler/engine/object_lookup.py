"""Lookup of an object by the name that users know, with its current records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from hostler.engine.phase import phase
from hostler.engine.vm_queries import find_named
from hostler.errors import Conflict, Damaged, Invalid, NotFound
from hostler.keys.families import (
    ACTUAL,
    ALIVE,
    BLADE,
    BLADE_FLOW,
    BLUEPRINT,
    COMMAND,
    DEPLOYMENT,
    HANDLE,
    INSTANCE,
    MEMBER,
    MORE_PDUS,
    MORE_TORS,
    PDU,
    RACK,
    RACK_FLOW,
    RETRIES,
    SILENT,
    SLICE_DECISION,
    TARGET,
    TOR,
    VM,
    WORKLOAD,
)
from hostler.keys.lab import LAB
from hostler.kit.plural import counted
from hostler.model.access import EVERYWHERE
from hostler.model.lab import ORG, lab_project
from hostler.model.name import fold
from hostler.model.vm_api import VmPhase
from hostler.ports.store import Get

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostler.engine.request import Caller
    from hostler.engine.view import View
    from hostler.keys.key import Key
    from hostler.model.workload import Workload
    from hostler.ports.store import KeyValue, Store

KINDS = ("vm", "node", "rack", "lab", "workload", "blueprint", "slice")
_HOW = (
    "name it as vm/ORG/PROJECT/NAME, node/NAME, rack/NAME, lab/USER, workload/NAME, blueprint/NAME or slice/GROUP:NAME"
)
_SLICES = 50
"""Slice keys that are read to describe a slice; larger slices are described by these."""
_RUNS = {
    VmPhase.RUNNING: "runs",
    VmPhase.PAUSED: "is paused",
    VmPhase.STOPPED: "is stopped",
    VmPhase.FAILED: "has failed",
    VmPhase.SILENT: "may run",
}
WORKLOADS = "workloads"
"""The org of workloads without an org."""


class ObjectName(msgspec.Struct, frozen=True, kw_only=True):
    """One object. `present` are its records, the spec first."""

    name: str
    """`vm acme/web/www`."""
    state: str
    since: float | None = None
    present: tuple[KeyValue, ...] = ()
    keys: frozenset[str] = frozenset()
    """Keys of the object, whether they exist or not."""
    vm: str = ""
    """The id of its machine: every key that ends in it belongs to the object, too."""

    def owns(self, key: str) -> bool:
        """Return whether a record is about the object."""
        return key in self.keys or (bool(self.vm) and key.endswith(f"/{self.vm}"))


class ObjectLookup:
    """Finds objects that the caller may see."""

    def __init__(self, store: Store, view: View) -> None:
        self._store, self._view = store, view

    async def find(
        self, caller: Caller, text: str, *, org: str | None = None, project: str | None = None
    ) -> ObjectName:
        """Return the object of that name; a machine without org and project is searched in the given ones first.

        NotFound: no such object is visible to the caller. Conflict: there are several.
        """
        kind, slash, rest = text.partition("/")
        whole = rest if slash and kind in KINDS else text
        parts = whole.split("/")
        if not all(parts) and not (whole and kind == "lab"):  # a web user id may contain slashes
            raise Invalid(f"object {text!r}: {_HOW}")
        asked = (kind,) if slash and kind in KINDS else KINDS
        finders = {
            "vm": lambda: self._vm(caller, parts, org, project),
            "node": lambda: self._node(parts),
            "rack": lambda: self._rack(parts),
            "lab": lambda: self._lab(caller, whole),
            "workload": lambda: self._workload(caller, parts, certain=len(asked) == 1),
            "blueprint": lambda: self._blueprint(caller, parts),
            "slice": lambda: self._slice(caller, parts),
        }
        order = asked if len(asked) == 1 else ("node", "workload", "rack", "vm", "lab", "slice", "blueprint")
        for one in order:
            found = await finders[one]()
            if found is not None:
                return found
        raise NotFound(f"object {text!r}: not found, or not visible to you; {_HOW}")

    # One method per kind; None: not found

    async def _vm(self, caller: Caller, parts: list[str], org: str | None, project: str | None) -> ObjectName | None:
        if len(parts) == 3:
            return await self._vm_at(caller, *parts, certain=True)
        if len(parts) != 1:
            return None
        if org is not None and project is not None:
            found = await self._vm_at(caller, org, project, parts[0])
            if found is not None:
                return found
        folded = fold(parts[0])
        seen = [
            entry.value
            for entry in self._view.vms.entries.values()
            if (entry.value.id == parts[0] or fold(entry.value.name) == folded)
            and caller.sees(entry.value.org, entry.value.project)
        ]
        if len(seen) > 1:
            names = ", ".join(sorted(f"vm/{vm.org}/{vm.project}/{vm.name}" for vm in seen)[:5])
            raise Conflict(f"object {parts[0]!r}: there are several: {names}; name one of them")
        return await self._vm_at(caller, seen[0].org, seen[0].project, seen[0].id) if seen else None

    async def _vm_at(
        self, caller: Caller, org: str, project: str, vm: str, *, certain: bool = False
    ) -> ObjectName | None:
        """Find a machine by id, else by name; `certain`: also a deleted one by its id, for its history."""
        if not caller.sees(org, project):
            return None
        place: dict[str, Any] = {"org": org, "project": project}
        vm_entry = await VM.get(self._store, vm=vm, **place)
        if vm_entry is None:
            vm_entry = await find_named(self._store, self._view, org, project, vm)
        if vm_entry is None and not certain:
            return None
        id_ = vm if vm_entry is None else vm_entry.value.id
        known = await self._read(
            [VM.fill(vm=id_, **place), HANDLE.fill(vm=id_, **place)],
            self._commands(id_),
        )
        handle = _value(HANDLE, known, HANDLE.fill(vm=id_, **place))
        name = id_ if vm_entry is None else vm_entry.value.name
        state = "is gone"
        if vm_entry is not None:
            alive = handle is not None and bool(handle.node) and self._view.alive.get(node=handle.node) is not None
            now = phase(vm_entry.value, handle, alive)
            state = _RUNS.get(now, f"is {now.value}")
            if handle is not None and handle.node:
                state += f" on {handle.node}"
            if handle is not None and handle.detail and now not in (VmPhase.RUNNING, VmPhase.STOPPED):
                state += f": {handle.detail}"
        keys = {VM.fill(vm=id_, **place), HANDLE.fill(vm=id_, **place)}
        return ObjectName(
            name=f"vm {org}/{project}/{name}",
            state=state,
            since=None if handle is None else handle.seen_at,
            present=known,
            keys=frozenset(keys),
            vm=id_,
        )

    async def _node(self, parts: list[str]) -> ObjectName | None:
        if len(parts) != 1:
            return None
        node = fold(parts[0])
        keys = [MEMBER.fill(node=node), SILENT.fill(node=node), ALIVE.fill(node=node)]
        rack, dash, blade = node.partition("-")
        if rack and dash and blade:
            keys.append(BLADE.fill(rack=rack, blade=blade))
        known = await self._read(keys)
        record = _value(MEMBER, known, keys[0])
        if record is None:
            return None
        silent = _value(SILENT, known, keys[1])
        state = f"is {record.lifecycle.value.lower().replace('_', ' ')}"
        since = record.registered_at
        if not any(kv.key == keys[2] for kv in known):
            state += ", and unreachable" if record.off is None else f", and off: confirmed by {record.off.by}"
            since = since if silent is None else silent.at
        return ObjectName(name=f"node {node}", state=state, since=since, present=known, keys=frozenset(keys))

    async def _rack(self, parts: list[str]) -> ObjectName | None:
        if len(parts) > 2 or "-" in parts[0]:
            return None
        rack = fold(parts[0])
        if len(parts) == 1:
            known = await self._read([RACK.fill(rack=rack), RACK_FLOW.fill(rack=rack)])
            return self._hardware(f"rack {rack}", RACK, known)
        families: tuple[tuple[Key[Any], dict[str, Any]], ...] = (
            (BLADE, {"blade": fold(parts[1])}),
            (PDU, {}),
            (TOR, {}),
            (MORE_PDUS, {"n": 2}),
            (MORE_TORS, {"n": 2}),
        )
        for family, more in families:
            keys = [family.fill(rack=rack, **more)]
            keys += [BLADE_FLOW.fill(rack=rack, **more)] if family is BLADE else []
            known = await self._read(keys)
            if known and known[0].key != keys[0]:
                continue  # a leftover of removed hardware
            record = _value(family, known, known[0].key) if known else None
            if record is not None and fold(record.name) == fold(parts[1]):
                return self._hardware(f"rack {rack}/{fold(parts[1])}", family, known)
        return None

    def _hardware(self, name: str, family: Key[Any], known: tuple[KeyValue, ...]) -> ObjectName | None:
        own = bool(known) and family.match(known[0].key) is not None
        record = _value(family, known, known[0].key) if own else None
        if record is None:
            return None
        state = f"is {'enabled' if record.enabled else 'disabled'} and {record.condition.value.replace('_', ' ')}"
        for kv in known[1:]:
            flow = (BLADE_FLOW if family is BLADE else RACK_FLOW).readable(kv)
            if flow is not None:
                state += f"; {flow.value.condition.words}: {flow.value.step.words}, {flow.value.reason}"
        return ObjectName(name=name, state=state, present=known, keys=frozenset(kv.key for kv in known))

    async def _lab(self, caller: Caller, user: str) -> ObjectName | None:
        if not caller.sees(ORG, lab_project(user)):
            return None
        key = LAB.fill(user=user)
        known = await self._read([key])
        record = _value(LAB, known, key)
        if record is None:
            return None
        lab, keys = record.lab, {key}
        if lab is None:
            return ObjectName(
                name=f"lab {user}",
                state="has no lab now",
                since=record.changed_at,
                present=known,
                keys=frozenset(keys),
            )
        place: dict[str, Any] = {"org": ORG, "project": lab_project(user), "vm": lab.vm or "-"}
        keys |= {VM.fill(**place), HANDLE.fill(**place)}
        if lab.vm:
            known += await self._read([VM.fill(**place), HANDLE.fill(**place)], self._commands(lab.vm))
        state = f"is {lab.phase.value} (lab {lab.lab_id}){f': {lab.detail}' if lab.detail else ''}"
        return ObjectName(
            name=f"lab {user}",
            state=state,
            since=record.changed_at,
            present=known,
            keys=frozenset(keys),
            vm=lab.vm,
        )

    async def _workload(self, caller: Caller, parts: list[str], *, certain: bool = False) -> ObjectName | None:
        """Find a workload; `certain`: also a deleted one.

        Its record named its project, so only members of every org may see a deleted workload.
        """
        if len(parts) > 2:
            return None
        name = fold(parts[0])
        key = WORKLOAD.fill(workload=name)
        known = await self._read([key])
        record = _value(WORKLOAD, known, key)
        if record is None and not (certain and EVERYWHERE in caller.memberships):
            return None
        if record is not None and not caller.sees(*place_of(name, record)):
            return None
        if len(parts) == 2:
            return await self._instance(name, parts[1], certain=certain)
        if record is None:
            state = "cannot be read" if known else "is gone"
            return ObjectName(name=f"workload {name}", state=state, present=known, keys=frozenset((key,)))
        prefix = INSTANCE.prefix(workload=name)
        there = sum(other.startswith(prefix) for other in self._view.instances.entries)
        going = ", and is being deleted" if record.deleting else ""
        state = f"has {there} of {counted(record.instances, 'instance')}{going}"
        return ObjectName(name=f"workload {name}", state=state, present=known, keys=frozenset((key,)))

    async def _instance(self, workload: str, number: str, *, certain: bool = False) -> ObjectName | None:
        ids: dict[str, Any] = {"workload": workload, "instance": number}
        keys = [family.fill(**ids) for family in (INSTANCE, TARGET, ACTUAL)]
        known = await self._read(keys)
        index, target = _value(INSTANCE, known, keys[0]), _value(TARGET, known, keys[1])
        if index is None:
            gone = ObjectName(name=f"workload {workload}/{number}", state="is gone", keys=frozenset(keys))
            return gone if certain else None
        actual = _value(ACTUAL, known, keys[2])
        if index.vm:
            known += await self._read(self._commands(index.vm))
        why = f": {target.reasons[0].why}" if target is not None and target.node is None and target.reasons else ""
        state = f"waits for a node{why}" if target is None or target.node is None else f"belongs on {target.node}"
        if actual is not None and (target is None or target.node != actual.node):
            actual = None  # the status is from a node that the instance was removed from, and is no longer updated
        if actual is not None:
            state += f", and is {actual.state.value.lower()} on {actual.node}"
        since = None if actual is None else actual.seen_at
        return ObjectName(
            name=f"workload {workload}/{number}",
            state=state,
            since=since,
            present=known,
            keys=frozenset(keys),
            vm=index.vm,
        )

    async def _blueprint(self, caller: Caller, parts: list[str]) -> ObjectName | None:
        """Find a blueprint.

        Deployments belong to no project, so their history is visible to members of every org only.
        """
        if len(parts) != 1 or EVERYWHERE not in caller.memberships:
            return None
        key = BLUEPRINT.fill(blueprint=parts[0])
        known = await self._read([key])
        record = _value(BLUEPRINT, known, key)
        if record is None:
            return None
        keys = [DEPLOYMENT.fill(base=spec.base) for spec in record.slices]
        known += await self._read(keys)
        ways = [found.phase.value for one in keys if (found := _value(DEPLOYMENT, known, one)) is not None]
        phases = ", ".join(f"{ways.count(way)} {way}" for way in dict.fromkeys(ways))
        state = f"has {counted(len(record.slices), 'slice')}: {phases}"
        return ObjectName(name=f"blueprint {fold(parts[0])}", state=state, present=known, keys=frozenset((key, *keys)))

    async def _slice(self, caller: Caller, parts: list[str]) -> ObjectName | None:
        """Find a slice by `group:name` or by an artifact of it."""
        if len(parts) != 1 or EVERYWHERE not in caller.memberships or parts[0].count(":") not in (1, 2):
            return None
        base = ":".join(parts[0].split(":")[:2])
        key = DEPLOYMENT.fill(base=base)
        known = await self._read([key])
        deployment = _value(DEPLOYMENT, known, key)
        if deployment is None:
            return None
        artifacts = dict.fromkeys(filter(None, (deployment.artifact, deployment.previous)))
        more = [family.fill(artifact=artifact) for artifact in artifacts for family in (RETRIES, SLICE_DECISION)]
        places = sorted(name for name in self._view.slices.entries if f"/{base}:" in name)
        known += await self._read([*more, *places[:_SLICES]])
        state = f"is {deployment.phase.value.replace('_', ' ')}: {deployment.why}"
        keys = frozenset((key, *more, *places))
        return ObjectName(name=f"slice {base}", state=state, since=deployment.changed_at, present=known, keys=keys)

    def _commands(self, vm: str) -> list[str]:
        return [COMMAND.fill(node=node, vm=vm) for node in self._view.nodes_of(vm)]

    async def _read(self, keys: Iterable[str], more: Iterable[str] = ()) -> tuple[KeyValue, ...]:
        found = (await self._store.txn([], [Get(key) for key in (*keys, *more)])).responses
        return tuple(kv for kv in found if kv is not None)  # type: ignore[misc]


def place_of(name: str, record: Workload) -> tuple[str, str]:
    """Return org and project of a workload's machines."""
    return record.org or WORKLOADS, record.project or name


def _value(family: Key[Any], known: Iterable[KeyValue], key: str) -> Any:
    """Return the decoded record; None: it does not exist, or is unreadable."""
    for kv in known:
        if kv.key == key:
            try:
                return family.decode(kv.value, where=key)
            except Damaged:
                return None
    return None

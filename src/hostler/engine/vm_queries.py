"""Queries for machines. A machine that the caller does not see is reported as not found."""

from __future__ import annotations

import functools
import heapq
import itertools
from typing import TYPE_CHECKING, TypeVar

import msgspec

from hostler.engine.phase import phase, row_of, view_of
from hostler.engine.placement import not_run
from hostler.engine.request import MAX_LIMIT, check_limit
from hostler.errors import Conflict, Damaged, Invalid, NotFound
from hostler.keys.families import HANDLE, NAME, VM
from hostler.keys.template import MAX_USER, check_part
from hostler.kit.plural import counted
from hostler.model.access import EVERYWHERE, HIDDEN
from hostler.model.lab import utc_time
from hostler.model.name import fold
from hostler.model.trace import Reason
from hostler.model.vm import MachineState
from hostler.model.vm_api import RetainedRef, VmPage, VmRow, VmRowPage, Why
from hostler.ports.store import Get, KeyValue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hostler.engine.controllers.allocations import PlacementSnapshot
    from hostler.engine.placement import Cluster
    from hostler.engine.request import Caller
    from hostler.engine.view import View
    from hostler.keys.cache import Cache
    from hostler.keys.entry import Entry
    from hostler.keys.key import Key
    from hostler.model.vm import VirtualMachine, VmHandle, VmSpec
    from hostler.model.vm_api import VmView
    from hostler.ports.store import Operation, Store

T = TypeVar("T")

LOOKED_AT = 10_000
"""Largest number of records that one `list` reads.

With rare labels a page may be short or empty without being the last.
"""
VERDICTS = 1_000
DETAIL = 160
"""Largest length of a row's detail."""
_WISHES, _HANDLES = VM.prefix(), HANDLE.prefix()


class VmQuery(msgspec.Struct, frozen=True):
    """Selects machines of a project; without a project or an org, all that the caller sees."""

    org: str | None = None
    project: str | None = None
    limit: int = 100
    after: str | None = None
    """The `after` of the previous page."""
    labels: Mapping[str, str] = {}
    """Labels that the machines have."""
    stale: bool = False
    """Read from the cache of this process, also while the store is unreachable."""


class VmReader:
    """Reads machines. `view` provides the liveness of nodes, and answers stale reads."""

    def __init__(self, store: Store, view: View) -> None:
        self._store, self._view = store, view
        self._surroundings: PlacementSnapshot | None = None

    # Single machines

    async def find(self, caller: Caller, org: str, project: str, vm: str) -> Entry[VirtualMachine]:
        """Find a machine by id, else by name. NotFound: there is none, or the caller does not see it."""
        self.check(caller, org, project, vm)
        entry = await VM.get(self._store, org=org, project=project, vm=vm)
        if entry is None:
            entry = await find_named(self._store, self._view, org, project, vm)
        if entry is None:
            raise _missing(org, project, vm)
        return entry

    def find_stale(self, caller: Caller, org: str, project: str, vm: str) -> Entry[VirtualMachine]:
        """Find a machine in the cache of this process."""
        self.check(caller, org, project, vm)
        entry = self._view.vms.get(org=org, project=project, vm=vm)
        if entry is None:
            entry = next(iter(_named_in(self._view, org, project, vm)), None)
        if entry is None:
            raise _missing(org, project, vm)
        return entry

    async def handle(self, entry: Entry[VirtualMachine]) -> VmHandle | None:
        """Return the handle of a machine."""
        found = await self._store.get(_HANDLES + entry.key[len(_WISHES) :])
        return None if found is None else HANDLE.decode(found.value, where=found.key)

    async def get(self, caller: Caller, org: str, project: str, vm: str, *, stale: bool) -> VmView:
        """Return one machine, from the store or, if `stale`, from the cache of this process."""
        if stale:
            entry = self.find_stale(caller, org, project, vm)
            seen = self._view.handles.get(**_ids(entry))
            return self.view(caller, entry, None if seen is None else seen.value)
        self.check(caller, org, project, vm)
        tail = f"{org}/{project}/{vm}"
        both: list[Operation] = [Get(_WISHES + tail), Get(_HANDLES + tail)]
        record, handle = (await self._store.txn([], both)).responses
        if not isinstance(record, KeyValue):  # not found by id: try the name
            entry = await self.find(caller, org, project, vm)
            return self.view(caller, entry, await self.handle(entry))
        seen = self._read(HANDLE, handle, self._view.handles) if isinstance(handle, KeyValue) else None
        return self.view(caller, self._read(VM, record, self._view.vms), None if seen is None else seen.value)

    def _read(self, key: Key[T], kv: KeyValue, mirror: Cache[T]) -> Entry[T]:
        """Return the entry read from the store. The cache usually holds the decoded record of the same revision."""
        known = mirror.entries.get(kv.key)
        return known if known is not None and known.mod_revision == kv.mod_revision else key.entry(kv)

    def view(
        self,
        caller: Caller,
        entry: Entry[VirtualMachine],
        handle: VmHandle | None,
        *,
        at_next_boot: tuple[str, ...] = (),
    ) -> VmView:
        """Return the API form for the caller."""
        retained = tuple(
            RetainedRef(node=each.parts["node"], name=each.value.name, retained_at=each.value.retained_at)
            for each in self._view.retained_of(entry.value.id)
        )
        warnings = self._warnings(entry.value, handle)
        alive = self.alive(handle)
        view = view_of(entry, handle, alive, at_next_boot=at_next_boot, retained=retained, warnings=warnings)
        spec = shown_spec(caller, view.org, view.project, view.spec)
        return view if spec is view.spec else msgspec.structs.replace(view, spec=spec)

    def _warnings(self, vm: VirtualMachine, handle: VmHandle | None) -> tuple[str, ...]:
        if not vm.spec.user_data:
            return ()
        members = self._view.members
        own = None if handle is None or not handle.node else members.get(node=handle.node)
        why = not_run(vm.spec, (entry.value for entry in ((own,) if own is not None else members.entries.values())))
        return (why,) if why else ()

    def alive(self, handle: VmHandle | None) -> bool:
        """Return whether the node of the handle sends heartbeats."""
        if handle is None or not handle.node:
            return False
        return self._view.alive.get(node=handle.node) is not None

    def check(self, caller: Caller, org: str, project: str, vm: str | None = None) -> None:
        """Raise NotFound if the caller does not see the project, as if it did not exist."""
        check_project(caller, org, project, vm)

    # Lists

    async def list(self, caller: Caller, query: VmQuery) -> VmPage:
        """Return a page, ordered by org, project and id."""
        items, last, revision = await self._page(_Chosen(caller, query), functools.partial(self.view, caller))
        return VmPage(items=tuple(items), after=last, revision=revision)

    async def rows(self, caller: Caller, query: VmQuery) -> VmRowPage:
        """Return a page of short rows."""
        items, last, revision = await self._page(_Chosen(caller, query), self._row_maker())
        return VmRowPage(items=tuple(items), after=last, revision=revision)

    def _row_maker(self) -> Callable[[Entry[VirtualMachine], VmHandle | None], VmRow]:
        """Return a function that makes the rows of one page and checks each node once."""
        nodes: dict[str, bool] = {}

        def made(entry: Entry[VirtualMachine], handle: VmHandle | None) -> VmRow:
            if handle is None:
                return row_of(entry, None, False, longest=DETAIL)
            alive = nodes.get(handle.node)
            if alive is None:
                alive = nodes[handle.node] = self.alive(handle)
            return row_of(entry, handle, alive, longest=DETAIL)

        return made

    async def _page(
        self, chosen: _Chosen, make: Callable[[Entry[VirtualMachine], VmHandle | None], T]
    ) -> tuple[Sequence[T], str | None, int]:
        """Return what `make` makes of each machine, the page's `after`, and the revision."""
        if chosen.stale:
            return self._page_stale(chosen, make)
        items: list[T] = []
        revision, looked_at = 0, 0
        for prefix in chosen.prefixes:
            after = _within(prefix, chosen.start)
            while after is not None:
                page = await self._store.range(
                    prefix, after=after or None, limit=MAX_LIMIT if chosen.labels else chosen.limit - len(items)
                )
                revision = revision or page.revision
                looked_at += len(page.items)
                handles = await self._handles(page.items, after)
                for kv in page.items:
                    entry = self._listed(kv, chosen.labels)
                    if entry is not None:
                        items.append(make(entry, handles.get(kv.key)))
                    if len(items) == chosen.limit:
                        done = kv is page.items[-1] and not page.more and prefix == chosen.prefixes[-1]
                        return items, None if done else _token(kv.key, chosen.whole), revision
                after = page.items[-1].key if page.more else None
                if after is not None and looked_at >= LOOKED_AT:
                    return items, _token(after, chosen.whole), revision
        return items, None, revision or await self._revision()

    def _listed(self, kv: KeyValue, labels: Mapping[str, str]) -> Entry[VirtualMachine] | None:
        entry = self._view.vms.entries.get(kv.key)
        if entry is None or entry.mod_revision != kv.mod_revision:
            if VM.match(kv.key) is None:
                return None
            try:
                entry = VM.entry(kv)
            except Damaged:
                return None  # the caches count it, and `hostler doctor` reports it
        return entry if _matches(entry.value, labels) else None

    async def _handles(self, vms: tuple[KeyValue, ...], after: str) -> dict[str, VmHandle]:
        """Return the handles by key of the machine: one range over the same span, more if it has orphaned handles."""
        found: dict[str, VmHandle] = {}
        if not vms:
            return found
        root = HANDLE.prefix()
        last = root + vms[-1].key[len(_WISHES) :]
        prefix = _shared(root + vms[0].key[len(_WISHES) :], last)
        at = root + after[len(_WISHES) :] if after else None
        if at is not None and at < prefix:
            at = None
        while True:
            page = await self._store.range(prefix, after=at, limit=len(vms))
            for kv in page.items:
                try:
                    found[_WISHES + kv.key[len(root) :]] = self._read(HANDLE, kv, self._view.handles).value
                except Damaged:
                    continue
            if not page.more or page.items[-1].key >= last:
                return found
            at = page.items[-1].key

    async def _revision(self) -> int:
        return (await self._store.range(_WISHES, limit=1, keys_only=True)).revision

    def _page_stale(
        self, chosen: _Chosen, make: Callable[[Entry[VirtualMachine], VmHandle | None], T]
    ) -> tuple[Sequence[T], str | None, int]:
        entries, limit = self._view.vms.entries, chosen.limit
        matching = (
            key
            for key, entry in entries.items()
            if key > chosen.start and key.startswith(chosen.prefixes) and _matches(entry.value, chosen.labels)
        )
        keys = heapq.nsmallest(limit + 1, matching)
        items = []
        for key in keys[:limit]:
            seen = self._view.handles.get(**_ids(entries[key]))
            items.append(make(entries[key], None if seen is None else seen.value))
        after = _token(keys[limit - 1], chosen.whole) if len(keys) > limit else None
        return items, after, self._view.vms.revision

    # Explanations

    async def why(self, caller: Caller, org: str, project: str, vm: str) -> Why:
        """Return why the machine is on its node, and the current placement verdict for each node."""
        from hostler.engine.placement import judge, wanted_of  # here, because most processes never need it

        entry = await self.find(caller, org, project, vm)
        handle = await self.handle(entry)
        cluster = await self._cluster()
        verdicts = judge(wanted_of(entry.value), cluster, limit=VERDICTS)
        return Why(
            vm=entry.value.id,
            phase=phase(entry.value, handle, self.alive(handle)),
            node=None if handle is None else handle.node or None,
            decided=(*self._decided(entry.value, handle), *self._disk(entry.value, handle)),
            nodes=tuple(verdicts),
        )

    def _decided(self, vm: VirtualMachine, handle: VmHandle | None) -> tuple[Reason, ...]:
        if handle is None:
            return ()
        if not handle.node or handle.state is MachineState.PENDING:
            return handle.reasons
        command = self._view.commands.get(node=handle.node, vm=vm.id)
        return handle.reasons if command is None else command.value.reasons

    def _disk(self, vm: VirtualMachine, handle: VmHandle | None) -> tuple[Reason, ...]:
        """Return which disk the machine has, if it is not the original one."""
        kept = next(iter(self._view.retained_of(vm.id)), None)
        since = "" if handle is None or not handle.disk_since else f"new disk since {utc_time(handle.disk_since)}"
        if kept is None:
            return (Reason(subject="disk", why=since),) if since else ()
        node, name = kept.parts["node"], kept.value.name
        back = "" if handle is None or not handle.node else " --as NEW-NAME"
        old = f"one is retained on node {node}: hostler vm retained restore {node}/{name}{back}"
        return (Reason(subject="disk", why=f"{since}; {old}" if since else old),)

    async def _cluster(self) -> Cluster:
        """Return all nodes and their machines."""
        if self._surroundings is None:
            from hostler.engine.controllers.allocations import PlacementSnapshot

            self._surroundings = PlacementSnapshot(self._view)
        return await self._surroundings.cluster()


async def find_named(store: Store, view: View, org: str, project: str, name: str) -> Entry[VirtualMachine] | None:
    """Return the machine of this name in the project.

    Hostler keeps an index of the names of the machines it creates. A machine whose record another program put is found
    by the name in its record, once the view has the record. Conflict: several such machines have the name.
    """
    named = await NAME.get(store, org=org, project=project, name=name)
    if named is not None:
        found = await VM.get(store, org=org, project=project, vm=named.value)
        if found is not None:
            return found
    same = _named_in(view, org, project, name)
    if len(same) > 1:
        ids = ", ".join(sorted(entry.parts["vm"] for entry in same)[:5])
        several = f"{counted(len(same), 'machine')} have this name; name one by its id: {ids}"
        raise Conflict(f"vm {org}/{project}/{name}: {several}")
    found = await VM.get(store, org=org, project=project, vm=same[0].parts["vm"]) if same else None
    return found if found is not None and fold(found.value.name) == fold(name) else None


def _named_in(view: View, org: str, project: str, name: str) -> list[Entry[VirtualMachine]]:
    """Return the machines of the project whose records in the view have this name."""
    prefix, folded = VM.prefix(org=org, project=project), fold(name)
    entries = view.vms.entries.items()
    return [entry for key, entry in entries if key.startswith(prefix) and fold(entry.value.name) == folded]


class _Chosen:
    """The selected machines. Invalid: the page is not valid. NotFound: the caller does not see the project."""

    def __init__(self, caller: Caller, query: VmQuery) -> None:
        check_limit(query.limit)
        org, project = query.org, query.project
        if org is not None and project is not None:
            check_project(caller, org, project)
        self.prefixes, self.start = _prefixes(caller, org, project), _start(org, project, query.after)
        self.limit, self.labels, self.stale, self.whole = query.limit, query.labels, query.stale, project is None


def shown_spec(caller: Caller, org: str, project: str, spec: VmSpec) -> VmSpec:
    """Return the spec, without the fields that only those who may change the machine see."""
    if not spec.user_data or caller.may_change(org, project):
        return spec
    return msgspec.structs.replace(spec, user_data=HIDDEN)


def check_project(caller: Caller, org: str, project: str, vm: str | None = None) -> None:
    """Raise NotFound if the caller does not see the project, as if it did not exist."""
    check_part(org, "org")
    check_part(project, "project", most=MAX_USER)
    if vm is not None:
        check_part(vm, "vm")
    if not caller.sees(org, project):
        raise _missing(org, project, vm)


def _ids(entry: Entry[VirtualMachine]) -> dict[str, str]:
    parts = entry.parts
    return {"org": parts["org"], "project": parts["project"], "vm": parts["vm"]}


def _missing(org: str, project: str, vm: str | None) -> NotFound:
    if vm is None:
        return NotFound(f"project {org}/{project}: not found; name one that you are a member of")
    return NotFound(f"vm {org}/{project}/{vm}: not found; look at the list of your machines")


def _matches(vm: VirtualMachine, labels: Mapping[str, str]) -> bool:
    return all(vm.labels.get(name) == value for name, value in labels.items())


def _prefixes(caller: Caller, org: str | None, project: str | None) -> tuple[str, ...]:
    """Return the prefixes to scan, ordered and without overlap."""
    if project is not None:
        if org is None:
            raise Invalid(f"project {project!r}: name its org, too")
        return (VM.prefix(org=org, project=project),)
    mine = set(_memberships(caller, org))
    wide = {prefix for prefix in mine if not any(prefix != other and prefix.startswith(other) for other in mine)}
    return tuple(sorted(wide))


def _memberships(caller: Caller, org: str | None) -> Iterator[str]:
    for membership in caller.memberships:
        if membership == EVERYWHERE:
            yield VM.prefix() if org is None else VM.prefix(org=org)
            continue
        of, slash, project = membership.partition("/")
        if org is None or of == org:
            yield VM.prefix(org=of, project=project) if slash else VM.prefix(org=of)


def _start(org: str | None, project: str | None, after: str | None) -> str:
    """Return the key to start after; empty: from the beginning."""
    if after is None:
        return ""
    if org is not None and project is not None:
        return VM.fill(org=org, project=project, vm=after)
    parts = after.split("/")
    if len(parts) != 3:
        raise Invalid(f"after {after!r}: must be the `after` of the previous page")
    return VM.fill(org=parts[0], project=parts[1], vm=parts[2])


def _within(prefix: str, start: str) -> str | None:
    """Return where to start within a prefix; empty: at its beginning; None: all of it is done."""
    if not start or start < prefix:
        return ""
    return start if start.startswith(prefix) else None


def _token(key: str, whole: bool) -> str:
    """Return the `after` of a page: the last id, with org and project if several projects are listed."""
    return key[len(_WISHES) :] if whole else key.rpartition("/")[2]


def _shared(first: str, last: str) -> str:
    """Return the common prefix, up to a slash."""
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first.split("/")[:-1], last.split("/")[:-1]))
    return "".join(f"{segment}/" for segment, _ in same)

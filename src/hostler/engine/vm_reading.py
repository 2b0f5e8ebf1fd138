"""Finding and listing machines. What the caller does not see is answered as if it did not exist."""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING, TypeVar

from hostler.engine.phase import phase, view_of
from hostler.errors import Damaged, Invalid, NotFound
from hostler.keys.part import check_part
from hostler.keys.vm import HANDLE, NAME, VM
from hostler.model.access import EVERYWHERE
from hostler.model.api import VmPage, Why
from hostler.model.name import fold
from hostler.model.vm import MachineState
from hostler.ports.store import Get, KeyValue

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostler.engine.placement import Cluster
    from hostler.engine.request import Caller
    from hostler.engine.surroundings import Surroundings
    from hostler.engine.view import View
    from hostler.keys.entry import Entry
    from hostler.keys.key import Key
    from hostler.keys.mirror import Mirror
    from hostler.model.api import VmView
    from hostler.model.reason import Reason
    from hostler.model.vm import VirtualMachine, VmHandle
    from hostler.ports.store import Operation, Store

T = TypeVar("T")

MAX_LIMIT = 1_000
LOOKED_AT = 10_000
"""Records that one call of `list` reads at most: with rare labels a page may be short, or empty, and not the last."""
VERDICTS = 1_000
_WISHES, _HANDLES = VM.prefix(), HANDLE.prefix()


class VmReader:
    """Reads of one service. `view` tells which nodes live, and answers where old news will do."""

    def __init__(self, store: Store, view: View) -> None:
        self._store, self._view = store, view
        self._surroundings: Surroundings | None = None

    # One

    async def find(self, caller: Caller, org: str, project: str, vm: str) -> Entry[VirtualMachine]:
        """By id, else by name. NotFound: there is none, or none that the caller sees."""
        self.check(caller, org, project, vm)
        entry = await VM.get(self._store, org=org, project=project, vm=vm)
        if entry is None:
            named = await NAME.get(self._store, org=org, project=project, name=vm)
            if named is not None:
                entry = await VM.get(self._store, org=org, project=project, vm=named.value)
        if entry is None:
            raise _missing(org, project, vm)
        return entry

    def find_stale(self, caller: Caller, org: str, project: str, vm: str) -> Entry[VirtualMachine]:
        """As this process saw it last."""
        self.check(caller, org, project, vm)
        entry = self._view.vms.get(org=org, project=project, vm=vm)
        if entry is None:
            prefix, folded = VM.prefix(org=org, project=project), fold(vm)
            entries = self._view.vms.entries
            entry = next((e for k, e in entries.items() if k.startswith(prefix) and fold(e.value.name) == folded), None)
        if entry is None:
            raise _missing(org, project, vm)
        return entry

    async def handle(self, entry: Entry[VirtualMachine]) -> VmHandle | None:
        """What there is of it."""
        found = await self._store.get(_HANDLES + entry.key[len(_WISHES) :])
        return None if found is None else HANDLE.decode(found.value, where=found.key)

    async def get(self, caller: Caller, org: str, project: str, vm: str, *, stale: bool) -> VmView:
        """One machine, as it is now or, if `stale`, as this process saw it last."""
        if stale:
            entry = self.find_stale(caller, org, project, vm)
            seen = self._view.handles.get(**_ids(entry))
            return self.shown(entry, None if seen is None else seen.value)
        self.check(caller, org, project, vm)
        tail = f"{org}/{project}/{vm}"
        both: list[Operation] = [Get(_WISHES + tail), Get(_HANDLES + tail)]
        wish, handle = (await self._store.txn([], both)).responses
        if not isinstance(wish, KeyValue):  # not by its id, then by its name
            entry = await self.find(caller, org, project, vm)
            return self.shown(entry, await self.handle(entry))
        seen = self._read(HANDLE, handle, self._view.handles) if isinstance(handle, KeyValue) else None
        return self.shown(self._read(VM, wish, self._view.vms), None if seen is None else seen.value)

    def _read(self, key: Key[T], kv: KeyValue, mirror: Mirror[T]) -> Entry[T]:
        """What was read from the store. The mirror has mostly made a record of that very revision already."""
        known = mirror.entries.get(kv.key)
        return known if known is not None and known.mod_revision == kv.mod_revision else key.entry(kv)

    def shown(
        self, entry: Entry[VirtualMachine], handle: VmHandle | None, *, at_next_boot: tuple[str, ...] = ()
    ) -> VmView:
        """What a caller is told."""
        return view_of(entry, handle, self.alive(handle), at_next_boot=at_next_boot)

    def alive(self, handle: VmHandle | None) -> bool:
        """Whether the node that it names gives signs of life."""
        if handle is None or not handle.node:
            return False
        return self._view.alive.get(node=handle.node) is not None

    def check(self, caller: Caller, org: str, project: str, vm: str | None = None) -> None:
        """NotFound: the caller does not see the project, as if it did not exist."""
        check_part(org, "org")
        check_part(project, "project")
        if vm is not None:
            check_part(vm, "vm")
        if not caller.sees(org, project):
            raise _missing(org, project, vm)

    # Many

    async def list(
        self,
        caller: Caller,
        org: str | None,
        project: str | None,
        *,
        limit: int,
        after: str | None,
        labels: Mapping[str, str],
        stale: bool,
    ) -> VmPage:
        """A page, in order of org, project and id."""
        if not 1 <= limit <= MAX_LIMIT:
            raise Invalid(f"limit {limit}: must be from 1 to {MAX_LIMIT}")
        if org is not None and project is not None:
            self.check(caller, org, project)
        prefixes = _prefixes(caller, org, project)
        start = _start(org, project, after)
        if stale:
            return self._page_stale(prefixes, start, limit, labels, whole=project is None)
        return await self._page(prefixes, start, limit, labels, whole=project is None)

    async def _page(
        self, prefixes: tuple[str, ...], start: str, limit: int, labels: Mapping[str, str], *, whole: bool
    ) -> VmPage:
        items: list[VmView] = []
        revision, looked_at = 0, 0
        for prefix in prefixes:
            after = _within(prefix, start)
            while after is not None:
                page = await self._store.range(
                    prefix, after=after or None, limit=MAX_LIMIT if labels else limit - len(items)
                )
                revision = revision or page.revision
                looked_at += len(page.items)
                handles = await self._handles(page.items, after)
                for kv in page.items:
                    if (view := self._listed(kv, handles, labels)) is not None:
                        items.append(view)
                    if len(items) == limit:
                        done = kv is page.items[-1] and not page.more and prefix == prefixes[-1]
                        return VmPage(
                            items=tuple(items), after=None if done else _token(kv.key, whole), revision=revision
                        )
                after = page.items[-1].key if page.more else None
                if after is not None and looked_at >= LOOKED_AT:
                    return VmPage(items=tuple(items), after=_token(after, whole), revision=revision)
        return VmPage(items=tuple(items), after=None, revision=revision or await self._revision())

    def _listed(self, kv: KeyValue, handles: dict[str, VmHandle], labels: Mapping[str, str]) -> VmView | None:
        parts = VM.match(kv.key)
        if parts is None:
            return None
        try:
            entry = VM.entry(kv)
        except Damaged:
            return None  # the mirrors know of it, and the doctor tells
        if not _matches(entry.value, labels):
            return None
        return self.shown(entry, handles.get(kv.key))

    async def _handles(self, vms: tuple[KeyValue, ...], after: str) -> dict[str, VmHandle]:
        """Of these machines, by the machine's key: one range over the same span, more only where orphans stand."""
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
                    found[_WISHES + kv.key[len(root) :]] = HANDLE.decode(kv.value, where=kv.key)
                except Damaged:
                    continue
            if not page.more or page.items[-1].key >= last:
                return found
            at = page.items[-1].key

    async def _revision(self) -> int:
        return (await self._store.range(_WISHES, limit=1, keys_only=True)).revision

    def _page_stale(
        self, prefixes: tuple[str, ...], start: str, limit: int, labels: Mapping[str, str], *, whole: bool
    ) -> VmPage:
        entries = self._view.vms.entries
        matching = (
            key
            for key, entry in entries.items()
            if key > start and key.startswith(prefixes) and _matches(entry.value, labels)
        )
        keys = heapq.nsmallest(limit + 1, matching)
        items = []
        for key in keys[:limit]:
            seen = self._view.handles.get(**_ids(entries[key]))
            items.append(self.shown(entries[key], None if seen is None else seen.value))
        after = _token(keys[limit - 1], whole) if len(keys) > limit else None
        return VmPage(items=tuple(items), after=after, revision=self._view.vms.revision)

    # Why

    async def why(self, caller: Caller, org: str, project: str, vm: str) -> Why:
        """Why it is where it is, and what placement thinks of each node now."""
        from hostler.engine.placement import judge, wanted_of  # so that doors that never ask do not pay for it

        entry = await self.find(caller, org, project, vm)
        handle = await self.handle(entry)
        cluster = await self._cluster()
        verdicts = judge(wanted_of(entry.value), cluster, limit=VERDICTS)
        return Why(
            vm=entry.value.id,
            phase=phase(entry.value, handle, self.alive(handle)),
            node=None if handle is None else handle.node or None,
            decided=self._decided(entry.value, handle),
            nodes=tuple(verdicts),
        )

    def _decided(self, vm: VirtualMachine, handle: VmHandle | None) -> tuple[Reason, ...]:
        if handle is None:
            return ()
        if not handle.node or handle.state is MachineState.PENDING:
            return handle.reasons
        command = self._view.commands.get(node=handle.node, vm=vm.id)
        return handle.reasons if command is None else command.value.reasons

    async def _cluster(self) -> Cluster:
        """All nodes and what stands on them."""
        if self._surroundings is None:
            from hostler.engine.surroundings import Surroundings

            self._surroundings = Surroundings(self._view)
        return await self._surroundings.cluster()


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
    """What to look through, in order, nothing twice."""
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
    """The key after which to begin; empty: from the beginning."""
    if after is None:
        return ""
    if org is not None and project is not None:
        return VM.fill(org=org, project=project, vm=after)
    parts = after.split("/")
    if len(parts) != 3:
        raise Invalid(f"after {after!r}: must be what the page before said")
    return VM.fill(org=parts[0], project=parts[1], vm=parts[2])


def _within(prefix: str, start: str) -> str | None:
    """Where to begin in a prefix; empty: at its beginning; None: all of it is behind."""
    if not start or start < prefix:
        return ""
    return start if start.startswith(prefix) else None


def _token(key: str, whole: bool) -> str:
    """What `after` says: the last id, or where ids of several projects are listed, its org and project, too."""
    return key[len(_WISHES) :] if whole else key.rpartition("/")[2]


def _shared(first: str, last: str) -> str:
    """The prefix that both have, up to a slash."""
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first.split("/")[:-1], last.split("/")[:-1]))
    return "".join(f"{segment}/" for segment, _ in same)

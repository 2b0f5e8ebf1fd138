"""The leader's view of the labs, from the caches and from the store, and since when their nodes are unreachable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hostler.engine.labs.transactions import LabSnapshot
from hostler.engine.leadership import check_guard
from hostler.errors import Damaged
from hostler.keys.families import ALIVE, HANDLE, VM
from hostler.keys.lab import LAB
from hostler.model.lab import LAB_LABEL, ORG, lab_project, lab_user
from hostler.model.name import fold
from hostler.ports.store import Get

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.engine.view import View
    from hostler.keys.entry import Entry
    from hostler.keys.key import Key
    from hostler.kit.clock import Clock
    from hostler.model.lab import LabUser
    from hostler.model.vm import VirtualMachine, VmHandle
    from hostler.ports.store import Comparison, KeyValue, Store


_LABS, _VMS, _HANDLES = LAB.prefix(), VM.prefix(org=ORG), HANDLE.prefix(org=ORG)


class LabCache:
    """The view of one leadership."""

    def __init__(self, store: Store, view: View, *, clock: Clock) -> None:
        self._store, self._view = store, view
        self._ground = LabNodeCache(view, clock=clock)
        self._machines: dict[str, dict[str, None]] = {}  # keys of all VMs of org `labs`, by user

    def listen(self, changed: Callable[[str], None]) -> list[Callable[[], None]]:
        """Call `changed(user)` when the lab, VM or handle of a user changes. The returned functions end this."""
        for key in self._view.vms.entries:
            self._index(key)

        def vm_changed(key: str) -> None:
            if self._index(key):
                changed(_user(key, _VMS))

        def handle_changed(key: str) -> None:
            if key.startswith(_HANDLES):
                changed(_user(key, _HANDLES))

        return [
            self._view.labs.listen(lambda key: changed(lab_user(key.removeprefix(_LABS)))),
            self._view.vms.listen(vm_changed),
            self._view.handles.listen(handle_changed),
            *self._ground.listen(handle_changed),
        ]

    def users(self) -> list[str]:
        """Return all users who have a record or a lab VM."""
        return list(
            dict.fromkeys((*(lab_user(key.removeprefix(_LABS)) for key in self._view.labs.entries), *self._machines))
        )

    def has_machine(self, user: str) -> bool:
        """Return whether the user has any VM of org `labs`."""
        return user in self._machines

    def of(self, user: str) -> LabSnapshot:
        """Return the state from the caches."""
        view = self._view
        project = lab_project(user)
        key = _LABS + project
        entry = view.labs.entries.get(key)
        keys = self._machines.get(user)
        if key in view.labs.unreadable or (view.vms.unreadable and _any_unreadable(view, keys)):
            return LabSnapshot(user, entry, unreadable=True)
        id_ = _machine_of(entry)
        own = f"{_VMS}{project}/{id_}"
        return self._seen(
            user,
            entry,
            view.vms.entries.get(own) if id_ else None,
            view.handles.entries.get(f"{_HANDLES}{project}/{id_}") if id_ else None,
            self._strays(user, own) if keys and (len(keys) > 1 or own not in keys) else (),
        )

    async def read(self, user: str, guard: Comparison) -> LabSnapshot:
        """Read the current state from the store; other VMs of the user come from the caches.

        Raise LeadershipLost if the guard no longer holds.
        """
        mirrored = self._view.labs.get(user=user)
        id_ = _machine_of(mirrored)
        while True:
            place: dict[str, Any] = {"org": ORG, "project": lab_project(user), "vm": id_}
            reads = [Get(guard.key), LAB.get_op(user=user)]
            if id_:
                reads += [VM.get_op(**place), HANDLE.get_op(**place)]
            found: list[Any] = list((await self._store.txn([], reads)).responses)
            check_guard(guard, found[0])
            try:
                entry = _entry(LAB, found[1])
                if _machine_of(entry) == id_:
                    vm, handle = (_entry(VM, found[2]), _entry(HANDLE, found[3])) if id_ else (None, None)
                    return self._seen(user, entry, vm, handle, self._strays(user, f"{_VMS}{lab_project(user)}/{id_}"))
            except Damaged:
                return LabSnapshot(user, None, unreadable=True)
            id_ = _machine_of(entry)

    # Internals

    def _seen(
        self,
        user: str,
        entry: Entry[LabUser] | None,
        vm: Entry[VirtualMachine] | None,
        handle: Entry[VmHandle] | None,
        strays: tuple[Entry[VirtualMachine], ...],
    ) -> LabSnapshot:
        left = None if handle is None else self._ground.silent_in(handle.value.node)
        return LabSnapshot(user, entry, vm, handle, strays, silent=left == 0.0, silent_in=left or None)

    def _index(self, key: str) -> bool:
        """Update the index. Return whether the key is of org `labs`."""
        if not key.startswith(_VMS):
            return False
        user = _user(key, _VMS)
        if key in self._view.vms.entries or key in self._view.vms.unreadable:
            self._machines.setdefault(user, {})[key] = None
        elif (keys := self._machines.get(user)) is not None:
            keys.pop(key, None)
            if not keys:
                del self._machines[user]
        return True

    def _strays(self, user: str, own: str) -> tuple[Entry[VirtualMachine], ...]:
        entries = self._view.vms.entries
        others = [entries[key] for key in self._machines.get(user, ()) if key != own and key in entries]
        return tuple(entry for entry in others if LAB_LABEL in entry.value.labels)


def _machine_of(entry: Entry[LabUser] | None) -> str:
    return "" if entry is None or entry.value.lab is None else entry.value.lab.vm


def _any_unreadable(view: View, keys: dict[str, None] | None) -> bool:
    return any(key in view.vms.unreadable for key in keys or ())


def _user(key: str, prefix: str) -> str:
    return lab_user(key[len(prefix) : key.rindex("/")])


def _entry(key: Key[Any], kv: KeyValue | None) -> Any:
    return None if kv is None else key.entry(kv)


QUIET = 10.0
"""Seconds for which a node may be unreachable, as during a restart of its agent, before its labs report it."""


class LabNodeCache:
    """The nodes of one leadership. The cost of a query does not depend on the number of nodes and labs."""

    def __init__(self, view: View, *, clock: Clock) -> None:
        self._view, self._clock = view, clock
        self._where: dict[str, str] = {}  # node by handle key
        self._on: dict[str, dict[str, None]] = {}  # the inverse
        self._lives: set[str] = set()
        self._since: dict[str, float] = {}  # since when the others are seen to be unreachable

    def listen(self, changed: Callable[[str], None]) -> list[Callable[[], None]]:
        """Call `changed(handle key)` when its node becomes unreachable or is back. The returned functions end this."""

        def alive_changed(key: str) -> None:
            node = ALIVE.parse(key)["node"]
            if self._looked_at(node):
                for handle in tuple(self._on.get(node, ())):
                    changed(handle)

        for key in self._view.alive.entries:
            self._looked_at(ALIVE.parse(key)["node"])
        for key in self._view.handles.entries:
            self._noted(key)
        return [self._view.alive.listen(alive_changed), self._view.handles.listen(self._noted)]

    def silent_in(self, node: str) -> float | None:
        """Return the seconds until the node counts as unreachable, 0 if it does; None: reachable, or no node."""
        if not node or self._view.alive.get(node=node) is not None:
            return None
        now = self._clock.now()
        return max(0.0, self._since.setdefault(fold(node), now) + QUIET - now)

    def _looked_at(self, node: str) -> bool:
        """Update the state of a node. Return whether it became reachable or unreachable."""
        if (self._view.alive.get(node=node) is not None) == (node in self._lives):
            return False
        if node in self._lives:
            self._lives.discard(node)
            self._since[node] = self._clock.now()
        else:
            self._lives.add(node)
            self._since.pop(node, None)
        return True

    def _noted(self, key: str) -> None:
        if not key.startswith(_HANDLES):
            return
        entry = self._view.handles.entries.get(key)
        new, old = "" if entry is None else fold(entry.value.node), self._where.pop(key, "")
        if old and old != new:
            del self._on[old][key]
            if not self._on[old]:
                del self._on[old]
        if new:
            self._where[key] = new
            self._on.setdefault(new, {})[key] = None

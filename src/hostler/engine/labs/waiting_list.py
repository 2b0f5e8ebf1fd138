"""The waiting users in order, and the number of labs of each kind. Derived from the caches, for display.

The cost of each update and query does not depend on the number of labs.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, TypeAlias

from hostler.keys.families import HANDLE, VM
from hostler.model.lab import POOL_ORG, LabPhase
from hostler.model.vm import Step

if TYPE_CHECKING:
    from hostler.engine.view import View

_Place: TypeAlias = tuple[float, str]
_POOL = VM.prefix(org=POOL_ORG)
_HANDLES = HANDLE.prefix(org=POOL_ORG)


class WaitingList:
    """The waiting list; one per process. It follows the view and is never older than it."""

    def __init__(self, view: View) -> None:
        self._labs, self._vms, self._handles = view.labs, view.vms, view.handles
        self._places: list[_Place] = []
        self._known: dict[str, tuple[int, _Place | None]] = {}  # by key: the lab id, and its place in the list
        self.running: Counter[int] = Counter()
        """By lab id: labs with a VM."""
        self.waiting: Counter[int] = Counter()
        """By lab id: labs without a VM."""
        self._pool: defaultdict[str, set[str]] = defaultdict(set)  # by lab id: keys of its pool VMs
        for key in self._labs.entries:
            self._lab_changed(key)
        for key in self._vms.entries:
            self._vm_changed(key)
        self._labs.listen(self._lab_changed)
        self._vms.listen(self._vm_changed)

    def position(self, user: str, requested_at: float) -> int:
        """Return the position of a request of that time, from 1; also if the cache does not contain it yet."""
        return bisect_left(self._places, (requested_at, user)) + 1

    def warm(self, lab_id: int) -> int:
        """Return the number of ready VMs in the warm pool of a lab."""
        return sum(self._is_ready(key) for key in self._pool.get(str(lab_id), ()))

    def warm_in_all(self) -> int:
        """Return the number of ready VMs in the warm pools of all labs."""
        return sum(self._is_ready(key) for keys in self._pool.values() for key in keys)

    # Internals

    def _is_ready(self, key: str) -> bool:
        handle = self._handles.entries.get(_HANDLES + key[len(_POOL) :])
        readiness = None if handle is None else handle.value.readiness
        return readiness is not None and readiness.step is Step.AVAILABLE

    def _lab_changed(self, key: str) -> None:
        entry = self._labs.entries.get(key)
        lab = None if entry is None else entry.value.lab
        new: tuple[int, _Place | None] | None = None
        if entry is not None and lab is not None:
            place = (lab.requested_at, entry.value.user) if lab.phase is LabPhase.WAITING else None
            new = (lab.lab_id, place)
        old = self._known.get(key)
        if new == old:
            return
        if old is not None:
            self._leave(*old)
            del self._known[key]
        if new is not None:
            self._known[key] = new
            self._enter(*new)

    def _enter(self, lab_id: int, place: _Place | None) -> None:
        if place is None:
            self.running[lab_id] += 1
        else:
            insort(self._places, place)
            self.waiting[lab_id] += 1

    def _leave(self, lab_id: int, place: _Place | None) -> None:
        counter = self.running if place is None else self.waiting
        counter[lab_id] -= 1
        if not counter[lab_id]:
            del counter[lab_id]
        if place is not None:
            del self._places[bisect_left(self._places, place)]

    def _vm_changed(self, key: str) -> None:
        if not key.startswith(_POOL):
            return
        lab_id = key[len(_POOL) :].partition("/")[0]
        if key in self._vms.entries:
            self._pool[lab_id].add(key)
        elif lab_id in self._pool:
            self._pool[lab_id].discard(key)
            if not self._pool[lab_id]:
                del self._pool[lab_id]

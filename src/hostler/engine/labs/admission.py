"""The order in which waiting labs get VMs, and the waiting list that users see. Updates are incremental.

Labs get their turn in the order of their requests. A lab that cannot get a VM for a reason of its own (the limit of its
kind is reached, no node has room for it) does not delay others. A turn counts until the record shows its effect.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from hostler.keys.families import HANDLE, VM
from hostler.model.lab import POOL_ORG, LabPhase
from hostler.model.vm import MachineState, Step

if TYPE_CHECKING:
    from hostler.engine.view import View
    from hostler.model.lab import LabCatalogue, LabUser
    from hostler.model.vm import VmHandle


UNPLACED = 8
"""Maximum number of labs of one kind without a node; one, if there was no room, so that the order is kept."""
_Kind: TypeAlias = tuple[str, str]
"""Requirements on nodes: the kind of machines, and the image. A kind that no node has does not delay others."""

_SOON = "other labs are getting their machines first"


class _Known(msgspec.Struct, frozen=True):
    """The last known state of a user's lab."""

    lab_id: int
    generation: int
    requested_at: float
    waits: bool
    held: bool = False
    """It waits, and cannot use a turn now."""
    kind: _Kind = ("", "")
    placed: bool = True
    pending: bool = False


class Admission:
    """The admission queue of one leadership."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._lines: defaultdict[int, list[tuple[float, str]]] = defaultdict(list)
        self._kinds: dict[int, _Kind] = {}  # of the labs that users wait for
        self._by_kind: defaultdict[_Kind, dict[int, None]] = defaultdict(dict)  # the inverse
        self._catalogue: LabCatalogue | None = None  # the catalogue that these two are based on
        self._running: Counter[int] = Counter()
        self.running = 0
        """Number of labs that have a VM or are about to get one."""
        self._unplaced: defaultdict[_Kind, set[str]] = defaultdict(set)
        self._pending: defaultdict[_Kind, set[str]] = defaultdict(set)
        self._scarce: set[_Kind] = set()  # kinds that had no room at some time since users began to wait for them
        self._given: dict[str, _Kind] = {}

    @property
    def waiting(self) -> int:
        """Number of labs without a VM."""
        return sum(len(line) for line in self._lines.values())

    def pending(self) -> list[str]:
        """Return the users for whose VMs no node has room."""
        return [user for users in self._pending.values() for user in users]

    def turn(self, user: str, generation: int) -> bool | None:
        """Return whether the lab of that generation has its turn; None: that lab is not known."""
        known = self._known.get(user)
        return None if known is None or known.generation != generation else user in self._given

    def position(self, user: str) -> int:
        """Return the position among all waiting labs, from 1."""
        known = self._known[user]
        place = (known.requested_at, user)
        return 1 + sum(bisect_left(line, place) for line in self._lines.values())

    def note(
        self,
        user: str,
        record: LabUser | None,
        handle: VmHandle | None,
        catalogue: LabCatalogue,
        *,
        held: bool = False,
    ) -> None:
        """Update the state of a user. While the same lab waits, it keeps a turn that it was given.

        `held`: it cannot use a turn now. Others go first in the meantime; it keeps its position.
        """
        new = _known(record, handle, catalogue)
        if new is not None and new.waits and held:
            new = msgspec.structs.replace(new, held=True)
        old = self._known.get(user)
        if new == old:
            return
        if old is not None:
            self._take_out(user, old)
        if new is None:
            return
        self._known[user] = new
        if new.held:
            return
        if new.waits:
            self._enter(user, new, catalogue)
        else:
            self._count(new.lab_id, 1)
            if not new.placed:
                self._unplaced[new.kind].add(user)
            if new.pending:
                self._pending[new.kind].add(user)
                self._scarce.add(new.kind)

    def hold(self, user: str, *, has_machine: bool) -> None:
        """Handle a record that cannot be decoded: it counts as before, or as running if the user has a VM."""
        if has_machine and user not in self._known:
            self._known[user] = _Known(0, 0, 0.0, waits=False)
            self._count(0, 1)

    def give(self, catalogue: LabCatalogue) -> list[str]:
        """Give turns to as many labs as possible, and return their users in order."""
        given: list[str] = []
        self._sort(catalogue)
        self._scarce &= self._by_kind.keys()
        most = catalogue.at_once
        if most is not None and self.running >= most:
            return given
        kinds = (labs for kind, labs in self._by_kind.items() if not self._crowded(kind))
        heads = [(*self._lines[lab_id][0], lab_id) for labs in kinds for lab_id in labs]
        heapify(heads)
        while heads and (most is None or self.running < most):
            _, user, lab_id = heappop(heads)
            if self._shut(lab_id, catalogue):
                continue  # further turns do not change this
            kind, known = self._kinds[lab_id], self._known[user]
            self._leave(user, known)
            self._give(user, known, kind)
            given.append(user)
            if lab_id in self._lines:
                heappush(heads, (*self._lines[lab_id][0], lab_id))
        return given

    def why_not(self, user: str, catalogue: LabCatalogue) -> str:
        """Return why the lab waits; empty: it will not wait long."""
        if catalogue.at_once is not None and self.running >= catalogue.at_once:
            return f"the limit of {catalogue.at_once} concurrent labs is reached"
        why = self._shut(self._known[user].lab_id, catalogue)
        return "" if why == _SOON else why

    # Internals

    def _shut(self, lab_id: int, catalogue: LabCatalogue) -> str:
        """Return why no lab of this id gets a turn; empty: it may."""
        template = catalogue.find(lab_id)
        if template is None:
            return ""  # it gets its turn, and is then refused
        if template.at_once is not None and self._running[lab_id] >= template.at_once:
            return f"the limit of {template.at_once} for lab {lab_id} is reached"
        return self._crowded(_kind(lab_id, catalogue))

    def _crowded(self, kind: _Kind) -> str:
        """Return why no lab of this kind gets a turn."""
        if self._pending.get(kind):
            return "no node has room for it at present"
        most = 1 if kind in self._scarce else UNPLACED
        return _SOON if len(self._unplaced.get(kind, ())) >= most else ""

    def _give(self, user: str, known: _Known, kind: _Kind) -> None:
        self._given[user] = kind
        self._count(known.lab_id, 1)
        self._unplaced[kind].add(user)

    def _take_out(self, user: str, known: _Known) -> None:
        del self._known[user]
        kind = self._given.pop(user, None)
        if kind is None and known.waits:
            if not known.held:
                self._leave(user, known)
            return
        self._count(known.lab_id, -1)
        for sets in (self._unplaced, self._pending):
            _discard(sets, known.kind if kind is None else kind, user)

    def _count(self, lab_id: int, more: int) -> None:
        self.running += more
        self._running[lab_id] += more
        if not self._running[lab_id]:
            del self._running[lab_id]

    def _sort(self, catalogue: LabCatalogue) -> None:
        """Update the kinds if the catalogue has changed."""
        if catalogue is self._catalogue or catalogue == self._catalogue:
            return
        self._catalogue = catalogue
        self._kinds = {lab_id: _kind(lab_id, catalogue) for lab_id in self._lines}
        self._by_kind.clear()
        for lab_id, kind in self._kinds.items():
            self._by_kind[kind][lab_id] = None

    def _enter(self, user: str, known: _Known, catalogue: LabCatalogue) -> None:
        self._sort(catalogue)
        insort(self._lines[known.lab_id], (known.requested_at, user))
        kind = self._kinds[known.lab_id] = _kind(known.lab_id, catalogue)
        self._by_kind[kind][known.lab_id] = None

    def _leave(self, user: str, known: _Known) -> None:
        line = self._lines[known.lab_id]
        del line[bisect_left(line, (known.requested_at, user))]
        if line:
            return
        kind = self._kinds.pop(known.lab_id)
        del self._lines[known.lab_id], self._by_kind[kind][known.lab_id]
        if not self._by_kind[kind]:
            del self._by_kind[kind]


def _known(record: LabUser | None, handle: VmHandle | None, catalogue: LabCatalogue) -> _Known | None:
    lab = None if record is None else record.lab
    if lab is None:
        return None
    known = _Known(lab.lab_id, lab.generation, lab.requested_at, lab.phase is LabPhase.WAITING)
    if lab.phase is not LabPhase.PROVISIONING or (handle is not None and handle.node):
        return known
    pending = handle is not None and handle.state is MachineState.PENDING
    return msgspec.structs.replace(known, kind=_kind(lab.lab_id, catalogue), placed=False, pending=pending)


def _kind(lab_id: int, catalogue: LabCatalogue) -> _Kind:
    template = catalogue.find(lab_id)
    return ("", "") if template is None else (template.provider, template.image)


def _discard(sets: defaultdict[_Kind, set[str]], kind: _Kind, user: str) -> None:
    if kind in sets:
        sets[kind].discard(user)
        if not sets[kind]:
            del sets[kind]


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

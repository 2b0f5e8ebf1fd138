"""Whose turn it is to get a machine. Pure: it is told what changes, and each change costs what it touches.

The order is that of the requests; a lab that cannot be given a machine for a reason of its own (all of its kind that
may run do, no node has room for it) holds up nobody else. A turn that was given counts until the record says more.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from hostler.model.lab import LabPhase
from hostler.model.vm import MachineState

if TYPE_CHECKING:
    from hostler.model.lab import LabCatalogue, LabUser
    from hostler.model.vm import VmHandle

UNPLACED = 8
"""Labs for one kind of node that may be without one at once; one, where there was no room: so the order is kept."""
_Kind: TypeAlias = tuple[str, str]
"""What nodes are asked for: the kind of machines, and the image. One that no node has holds up no others."""

_SOON = "others are just being given their machines"


class _Known(msgspec.Struct, frozen=True):
    """What was last heard of a user's lab."""

    lab_id: int
    generation: int
    requested_at: float
    waits: bool
    held: bool = False
    """It waits, and could do nothing with a turn."""
    kind: _Kind = ("", "")
    placed: bool = True
    pending: bool = False


class Admission:
    """Made for one leadership."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._lines: defaultdict[int, list[tuple[float, str]]] = defaultdict(list)
        self._kinds: dict[int, _Kind] = {}  # of the labs for which somebody waits
        self._by_kind: defaultdict[_Kind, dict[int, None]] = defaultdict(dict)  # and the other way
        self._catalogue: LabCatalogue | None = None  # by which these two are
        self._running: Counter[int] = Counter()
        self.running = 0
        """Labs that have a machine, or are about to."""
        self._unplaced: defaultdict[_Kind, set[str]] = defaultdict(set)
        self._pending: defaultdict[_Kind, set[str]] = defaultdict(set)
        self._scarce: set[_Kind] = set()  # where there was no room at some time since nobody waited for such a one
        self._given: dict[str, _Kind] = {}

    @property
    def waiting(self) -> int:
        """Labs that have none."""
        return sum(len(line) for line in self._lines.values())

    def pending(self) -> list[str]:
        """Whose machines no node has room for."""
        return [user for users in self._pending.values() for user in users]

    def turn(self, user: str, generation: int) -> bool | None:
        """Whether the lab of that generation was given its turn; None: that lab is not known."""
        known = self._known.get(user)
        return None if known is None or known.generation != generation else user in self._given

    def position(self, user: str) -> int:
        """Among all that wait, from 1."""
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
        """What is known of a user now. While it is the same lab that waits, a turn that it was given stays.

        `held`: it could not use one now. Others shall have it meanwhile; its place among them is as before.
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
        """Nobody can read its record: it counts as before, or as one that is there, if it has a machine."""
        if has_machine and user not in self._known:
            self._known[user] = _Known(0, 0, 0.0, waits=False)
            self._count(0, 1)

    def give(self, catalogue: LabCatalogue) -> list[str]:
        """Turns, to as many as may go on now, in order."""
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
                continue  # and it stays so, whoever else is given a turn
            kind, known = self._kinds[lab_id], self._known[user]
            self._leave(user, known)
            self._give(user, known, kind)
            given.append(user)
            if lab_id in self._lines:
                heappush(heads, (*self._lines[lab_id][0], lab_id))
        return given

    def why_not(self, user: str, catalogue: LabCatalogue) -> str:
        """Why it waits; empty: it will not for long."""
        if catalogue.at_once is not None and self.running >= catalogue.at_once:
            return f"all {catalogue.at_once} labs that may be there at once are"
        why = self._shut(self._known[user].lab_id, catalogue)
        return "" if why == _SOON else why

    # Inside

    def _shut(self, lab_id: int, catalogue: LabCatalogue) -> str:
        """Why none of this lab is given a turn; empty: it may be."""
        template = catalogue.find(lab_id)
        if template is None:
            return ""  # it has its turn to be refused
        if template.at_once is not None and self._running[lab_id] >= template.at_once:
            return f"all {template.at_once} of lab {lab_id} that may be there at once are"
        return self._crowded(_kind(lab_id, catalogue))

    def _crowded(self, kind: _Kind) -> str:
        """Why none of this kind is."""
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
        """By another catalogue labs may be of other kinds."""
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

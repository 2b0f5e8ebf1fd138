"""The place of simulated machines. It outlives the driver, as a real machine outlives its agent.

Every change is one atomic step. A machine's row records since when it runs (`on`) and when it last went off (`off`), so
that the machines themselves document when they ran: tests check `intervals` against "never two at once".

The dead man's switch belongs to the place: a fenced machine goes off at the instant when its hold ends, even if nothing
reads the place then. A later read shows the interval ended at that instant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec

from hostler.errors import Closed, Unavailable
from hostler.model.vm import MachineState, VmSpec
from hostler.ports.machines import Label  # noqa: TC001 - msgspec reads annotations at run time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Interval: TypeAlias = tuple[float, float | None]
"""Start and end of a run; None: it still runs."""

RUNS_KEPT = 1_000
"""Number of newest runs kept per machine."""
DELETED_KEPT = 100_000
"""Number of newest deleted machines whose intervals are kept."""
LAPSED = "its fence was not extended, so it stopped by itself"


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="machine", tag_field="is"):
    """One machine, complete or not."""

    label: Label
    number: int
    """Number on this place, in the order of creation."""
    spec: VmSpec
    name: str = ""
    tags: dict[str, str] = {}
    fenced: bool = False
    resets: int = 0
    boots: int = 0
    restored: int = 0
    snapshots: dict[str, str] = {}
    """Disk content by snapshot name."""
    disk: str = ""
    disk_id: str = ""
    """A new disk has a new id; a migrated machine keeps it."""
    disk_made_at: float = 0.0
    """Seconds since 1970."""
    writes: int = 0
    """Number of writes of the guest, the age of the disk's content.

    The guest writes when it boots, when it is reset, for `save` on its console, and until it goes off. 0: only its
    image.
    """
    restoring: tuple[str, int] | None = None
    """A restore that has begun: its snapshot and number. The disk is incomplete."""
    moved: int = 0
    """Number of its last move, to or from here."""
    over: bool = False
    """That move was given up: the machine continued here after it had departed."""
    whole: bool = False
    """ARRIVING, DEPARTED: the other node has, or had, all of it."""
    memory: bool = False
    """ARRIVING, DEPARTED: it was running, and resumes when it is started."""
    state: MachineState
    detail: str = ""
    on: float | None = None
    """Since when it runs; None: it is off."""
    off: float | None = None
    """When it last went off."""
    ready: float | None = None
    """Since when its user can log in, in seconds since 1970."""

    @property
    def vm(self) -> str:
        return self.label.vm


class Moved(msgspec.Struct, frozen=True, omit_defaults=True, tag="moved", tag_field="is"):
    """A step in which only the state of a machine changed: the most frequent one."""

    vm: str
    state: MachineState
    detail: str = ""
    on: float | None = None
    off: float | None = None
    ready: float | None = None
    writes: int | None = None
    """None: unchanged, in a journal of an earlier release."""


class Deleted(msgspec.Struct, frozen=True, tag="deleted", tag_field="is"):
    """Deletes a machine."""

    vm: str


class Held(msgspec.Struct, frozen=True, tag="held", tag_field="is"):
    """Fenced machines go off at `until`."""

    until: float


class Kept(msgspec.Struct, frozen=True, tag="kept", tag_field="is"):
    """Takes a machine out of service; its row is kept under `name`."""

    name: str
    row: Row
    at: float
    """Seconds since 1970."""


class Reinstated(msgspec.Struct, frozen=True, tag="reinstated", tag_field="is"):
    """Puts the machine kept under `name` back in service as this row."""

    name: str
    row: Row


class Discarded(msgspec.Struct, frozen=True, tag="discarded", tag_field="is"):
    """Deletes the machine kept under `name`."""

    name: str


Step: TypeAlias = Row | Moved | Deleted | Held | Kept | Reinstated | Discarded


def step_to(old: Row | None, new: Row) -> Step:
    """Return the shortest step from one row to the next."""
    if old is None:
        return new
    moved = Moved(new.vm, new.state, new.detail, new.on, new.off, new.ready, new.writes)
    return moved if after(old, moved) == new else new


def after(row: Row, step: Moved) -> Row:
    """Return the row after the step."""
    writes = row.writes if step.writes is None else step.writes
    return msgspec.structs.replace(
        row, state=step.state, detail=step.detail, on=step.on, off=step.off, ready=step.ready, writes=writes
    )


def switched_off(row: Row, now: float, state: MachineState = MachineState.STOPPED, detail: str = "") -> Row:
    """Return the row of a machine that does not run from `now` on."""
    if row.on is None:
        return msgspec.structs.replace(row, state=state, detail=detail, ready=None)
    off, writes = max(now, row.on), row.writes + 1
    return msgspec.structs.replace(row, state=state, detail=detail, on=None, off=off, ready=None, writes=writes)


class Contents:
    """The content of a place: the sum of its steps."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.kept: dict[str, Kept] = {}
        """Retained machines by name."""
        self.next_number = 1
        self.changes = 0
        """Number of changes of rows."""
        self.held_until: float | None = None
        """None: never held."""
        self.fenced_on: set[str] = set()
        self._ended: dict[str, list[tuple[float, float]]] = {}
        self._deleted: dict[str, None] = {}

    def apply(self, step: Step) -> None:
        """Apply a step."""
        if isinstance(step, Row):
            self._replace(step.vm, step)
        elif isinstance(step, Moved):
            row = self.rows.get(step.vm)
            if row is not None:
                self._replace(step.vm, after(row, step))
        elif isinstance(step, Deleted):
            self._replace(step.vm, None)
        elif isinstance(step, Kept):
            self._replace(step.row.vm, None)
            self.kept[step.name] = step
            self.next_number = max(self.next_number, step.row.number + 1)
        elif isinstance(step, Reinstated):
            self.kept.pop(step.name, None)
            self._replace(step.row.vm, step.row)
        elif isinstance(step, Discarded):
            self.kept.pop(step.name, None)
        else:
            self.held_until = step.until

    def lapsed_rows(self, now: float) -> list[Row]:
        """Return the rows of fenced machines whose hold has ended, as they are since then."""
        if not self.fenced_on:
            return []
        end = self.held_until
        if end is None or now < end:
            return []
        return [switched_off(self.rows[vm], end, detail=LAPSED) for vm in sorted(self.fenced_on)]

    def intervals(self, vm: str) -> Sequence[Interval]:
        """Return when the machines of that name ran, oldest first."""
        row = self.rows.get(vm)
        ended: list[Interval] = list(self._ended.get(vm, ()))
        return ended if row is None or row.on is None else [*ended, (row.on, None)]

    def ended_intervals(self) -> Mapping[str, Sequence[tuple[float, float]]]:
        """Return all ended intervals by machine; deleted machines come last, in the order of their deletion."""
        present = {vm: runs for vm, runs in self._ended.items() if vm not in self._deleted}
        return present | {vm: self._ended[vm] for vm in self._deleted}

    def remember(self, vm: str, runs: Iterable[tuple[float, float]]) -> None:
        """Set intervals of earlier runs, for a place that is being read."""
        self._ended[vm] = list(runs)
        if vm not in self.rows:
            self._forget_oldest(vm)

    def forget_runs(self) -> None:
        """Delete all runs: they were recorded on another clock than the current one."""
        self._ended.clear()
        self._deleted.clear()
        self.rows = {vm: msgspec.structs.replace(row, on=None, off=None) for vm, row in self.rows.items()}
        self.changes += 1
        self.fenced_on.clear()

    def _replace(self, vm: str, new: Row | None) -> None:
        self.changes += 1
        old = self.rows.get(vm)
        if old is not None and old.on is not None and (new is None or new.on != old.on):
            end = new.off if new is not None and new.off is not None else old.on
            runs = self._ended.setdefault(vm, [])
            runs.append((old.on, end))
            if len(runs) > 2 * RUNS_KEPT:
                del runs[:-RUNS_KEPT]
        if new is None:
            self.rows.pop(vm, None)
            if vm in self._ended:
                self._forget_oldest(vm)
        else:
            self.rows[vm] = new
            self._deleted.pop(vm, None)
            self.next_number = max(self.next_number, new.number + 1)
        if new is not None and new.fenced and new.on is not None:
            self.fenced_on.add(vm)
        else:
            self.fenced_on.discard(vm)

    def _forget_oldest(self, vm: str) -> None:
        self._deleted.pop(vm, None)
        self._deleted[vm] = None
        if len(self._deleted) > DELETED_KEPT:
            oldest = next(iter(self._deleted))
            del self._deleted[oldest], self._ended[oldest]


class SimulatedHost:
    """The machines of one node. One driver at a time has it open; `MemoryHost` and `FilePlace` are the kinds."""

    def __init__(self) -> None:
        self.contents = Contents()
        self._opener: object | None = None

    @property
    def id(self) -> str:
        """Id that stays the same for as long as the machines exist."""
        raise NotImplementedError

    def open(self, opener: object) -> None:
        """Open the place for `opener`. Unavailable: it is already open."""
        if self._opener is not None:
            raise self._taken_error()
        self._load()
        self._opener = opener

    def close(self, opener: object) -> None:
        """Close the place, if `opener` still has it open."""
        if self._opener is opener:
            self._opener = None
            self._release()

    def disown(self) -> None:
        """Act as if the opener's process died: from now on its calls have no effect."""
        if self._opener is not None:
            self.close(self._opener)

    def belongs_to(self, opener: object) -> bool:
        return self._opener is opener

    def expire(self, now: float) -> None:
        """Record which fenced machines have stopped by themselves."""
        contents = self.contents
        if contents.fenced_on and contents.held_until is not None and now >= contents.held_until:
            self.put(contents.lapsed_rows(now))

    def put(self, rows: Sequence[Row]) -> None:
        """Change machines in one step. Unchanged ones cost nothing."""
        known = self.contents.rows
        if len(rows) == 1 and known.get(rows[0].vm) == rows[0]:
            return
        self._do([step_to(known.get(row.vm), row) for row in rows])

    def delete(self, vm: str, now: float) -> None:
        """Remove a machine. If it runs, it runs until now."""
        row = self.contents.rows.get(vm)
        if row is not None:
            off = [] if row.on is None else [step_to(row, switched_off(row, now))]
            self._do([*off, Deleted(vm)])

    def keep(self, vm: str, name: str, now: float, at: float) -> None:
        """Take a machine out of service and keep it under `name`. If it runs, it runs until now."""
        row = self.contents.rows[vm]
        off = switched_off(row, now)
        steps: list[Step] = [] if row.on is None else [step_to(row, off)]
        self._do([*steps, Kept(name, off, at)])

    def reinstate(self, name: str, row: Row) -> None:
        """Put the machine kept under `name` back in service as this row."""
        self._do([Reinstated(name, row)])

    def discard(self, name: str) -> None:
        """Delete the machine kept under `name`."""
        self._do([Discarded(name)])

    def hold(self, until: float, now: float) -> None:
        """Let fenced machines that still run go off at `until`."""
        self.expire(now)
        self._do([Held(until)])

    def power_off(self, now: float) -> None:
        """Cut the node's power: every machine goes off now, and the opener is dead."""
        self.expire(now)
        on = [row for row in self.contents.rows.values() if row.on is not None]
        self.put([switched_off(row, now, detail="its node was switched off") for row in on])
        self.put([msgspec.structs.replace(row, memory=False) for row in self.contents.rows.values() if row.memory])
        self.disown()

    def intervals(self, vm: str, now: float) -> Sequence[Interval]:
        """Return when the machines of that name ran, as of `now`; any caller may ask."""
        ended = self.contents.intervals(vm)
        until = self.contents.held_until
        if ended and ended[-1][1] is None and vm in self.contents.fenced_on and until is not None and now >= until:
            return [*ended[:-1], (ended[-1][0], max(ended[-1][0], until))]
        return ended

    def _do(self, steps: Sequence[Step]) -> None:
        if not steps:
            return
        self._write(steps)
        for step in steps:
            self.contents.apply(step)

    # Differences between kinds of places

    def _taken_error(self) -> Unavailable:
        return Unavailable("simulated machines: another driver has this place open; close that one first")

    def _load(self) -> None:
        """Read the existing content."""

    def _release(self) -> None:
        """Release what opening acquired."""

    def _write(self, steps: Sequence[Step]) -> None:
        """Make the steps outlive the process. Unavailable: not done."""


class MemoryHost(SimulatedHost):
    """A place in this process: drivers opened on the same object one after the other find the same machines."""

    def __init__(self, id: str = "memory") -> None:  # noqa: A002 - the property's name
        super().__init__()
        self._id = id

    @property
    def id(self) -> str:
        return self._id

    def put(self, rows: Sequence[Row]) -> None:
        known = self.contents.rows
        for row in rows:  # nothing is written, so the shortest form is not needed
            if known.get(row.vm) != row:
                self.contents.apply(row)


def closed(what: str) -> Closed:
    return Closed(f"simulated machines: {what} needs the driver to be open; enter it with `async with` first")

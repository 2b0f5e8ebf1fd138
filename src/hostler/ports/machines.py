"""Machines: where virtual machines really are. One driver serves one node.

Every verb may be repeated and may be interrupted anywhere, by cancelling it or by killing the process: repeating it
finishes what was begun. Machines outlive the process that made them. A verb that returns has happened; what a verb that
raised has done is seen by `inspect`.

    Refused      this cannot be, and repeating it will not help (an unknown image, a snapshot that does not exist)
    Invalid      (a Refused) an argument that nothing could make right: an empty name, a negative `grace`
    NotFound     (a Refused) there is no such machine; explicit, never a guess
    Unavailable  not now; nothing changed
    Uncertain    it may have happened; inspect

    Closed       (a Refused) the driver is not open

Verbs of one machine may be called at once; they then follow each other in some order. The suite that every driver
passes is `hostler.testing.check_machines`.

A lookup that fails is not an absence: `inspect` answers None only when there certainly is no such machine.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

import msgspec

from hostler.model.inventory import Capacity  # noqa: TC001 - msgspec reads annotations at run time
from hostler.model.node import ImageNeeds  # noqa: TC001 - as above
from hostler.model.vm import Access, MachineState, Readiness, VmSpec  # noqa: TC001 - as above

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType


class Label(msgspec.Struct, frozen=True):
    """What every machine of ours carries, so that it can be found again without the store."""

    org: str
    project: str
    vm: str
    cluster: str = ""
    """Of the control plane that made it: another one's machines are left alone."""
    node: str = ""
    """For which it was made: an agent of another name leaves it alone."""


class MachinePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to make."""

    label: Label
    spec: VmSpec
    name: str = ""
    fenced: bool = False
    """It stops by itself when it is not held (see `Machines.hold`)."""
    tags: dict[str, str] = {}
    """For people who look at the provider: whose it is, until when. They say nothing to us."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine as it is."""

    label: Label
    id: str
    """The provider's."""
    state: MachineState
    """CREATING: it is not whole, for its creation or its destruction was begun: `create` again, or `delete`.

    STOPPED. STARTING, STOPPING: begun, and it may run; repeat the verb. RUNNING. FAILED: it broke and is off; `detail`
    says how; `create`, `start` and `stop` take it as they take a stopped one. ARRIVING, DEPARTED: it is handed over
    (`receive`, `send`); it does not run, and `create` leaves it as it is.
    """
    spec: VmSpec
    """What it runs with, or would start with."""
    fenced: bool = False
    tags: dict[str, str] = {}
    cloud_status: str = ""
    """The provider's own word for its state; empty: it has none but ours."""
    address: str = ""
    detail: str = ""
    resets: int = 0
    """The number of the last reset."""
    restored: int = 0
    """The number of the last restore."""
    moved: int = 0
    """The number of the last move: of the last `receive`, or of the last `send` that was begun."""
    snapshots: tuple[str, ...] = ()
    readiness: Readiness | None = None
    """While it runs."""
    access: Access | None = None
    paused: bool = False
    """It is RUNNING, and its guest is paused until its node has room for what it writes; `detail` says so."""


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What a node has to offer."""

    capacity: Capacity
    """In all; what is used is no less there."""
    images: tuple[str, ...] | None = None
    """What machines can be made of here; None: of anything."""
    image_needs: dict[str, ImageNeeds] = {}
    """Of those of which it is known."""
    facts: dict[str, str] = {}
    """What was found out about the place, for people: `acceleration`, `version`, …"""
    refuses: str = ""
    """Why no further machine is made at present, such as a disk that is almost full; empty: they are."""


class RetainedMachine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that is out of service and is kept with its disk and snapshots (`Machines.retain`)."""

    name: str
    """Of what is kept: a node has one of a name."""
    label: Label
    """That it carried. Its node may have another machine of the same `vm` now."""
    machine_name: str = ""
    """What its owner called it."""
    spec: VmSpec
    snapshots: tuple[str, ...] = ()
    retained_at: float
    """Seconds since 1970."""
    disk_bytes: int = 0
    """What it takes on the node; 0: not known."""


class Door(enum.StrEnum):
    """Where bytes go in and out of a machine."""

    CONSOLE = "console"
    """Its serial port: everybody who is there hears it and may type."""
    SSH = "ssh"
    """A new connection to the server that is inside (`Machine.access`)."""
    LOG = "log"
    """What its serial port said last, a bounded amount; then it ends. A machine that is off has it, too."""
    SLICE_LOG = "slice-log"
    """Of the node, and of no machine: what a slice of it printed, for one question (`engine/slices/logs.py`)."""
    ARRIVAL_STATE = "arrival-state"
    """One that arrives: its memory and devices, from the other machine. Once at a time."""
    ARRIVAL_DISK = "arrival-disk"
    """The same for its disk."""


class Channel(Protocol):
    """Bytes both ways. An async context manager."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    async def read(self) -> bytes:
        """What comes out next; empty once the other side has ended it, as a machine that goes off does."""

    async def write(self, data: bytes) -> None:
        """Send; waits while the other side does not take it."""


@runtime_checkable
class Machines(Protocol):
    """The port. An async context manager. Machines are named by the id of their virtual machine (`Label.vm`)."""

    @property
    def name(self) -> str:
        """Of the technology: `simulated`, `qemu`."""

    @property
    def place(self) -> str:
        """An id that stays the same for as long as the machines do. While open, no other process has it open."""

    @property
    def fences(self) -> bool:
        """Whether `fenced` machines really stop when they are not held, even if this process is dead."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    @property
    def moves(self) -> bool:
        """Whether machines can be handed to another place of the same driver (`receive`, `send`)."""

    def listen(self, changed: Callable[[str], None]) -> None:
        """Call `changed(vm)`, on the event loop, when a machine changed by itself: it went off, it became available.

        Told at least once, soon, while the driver is open; not for what a verb did.
        """

    async def offer(self) -> Offer:
        """What the node offers now."""

    async def create(self, plan: MachinePlan) -> Machine:
        """Make it exist, stopped. One that exists stopped takes the plan's shape and tags; a running one is left as it
        is. Refused: a machine of that name carries another label (`mark` changes that).
        """

    async def mark(self, plan: MachinePlan) -> Machine:
        """Let it carry the plan's label and tags, running or not: it belongs to another project now. Nothing else of it
        changes. NotFound: there is none of that id. Refused: it is of another cluster, or of another node.
        """

    async def start(self, vm: str) -> Machine:
        """Let it run. A running one stays as it is. A fenced one whose time has run out does not start: Unavailable."""

    async def stop(self, vm: str, *, grace: float) -> Machine:
        """Ask it to shut down; after `grace` seconds switch it off. 0: switch it off at once. Stopped is fine."""

    async def reset(self, vm: str, number: int) -> Machine:
        """Reset a running machine, unless its last reset has this number or a higher one. A stopped one only counts."""

    async def delete(self, vm: str) -> None:
        """Destroy it, its disk and its snapshots, running or not. No such machine is fine."""

    async def retain(self, vm: str, name: str) -> RetainedMachine | None:
        """Switch a machine off and keep it as `name`, with its disk, snapshots and label, until it is reinstated or
        discarded. `list` and `inspect` no longer show it, and another machine `vm` can be created.

        A retain that was begun under another name is finished under that one: the answer has the name that counts.
        Repeated after it was done, it is done. None: nothing was kept, for there was no written disk to keep. There is
        no such machine, or it was never whole (its creation was begun, or not all of it arrived), or its `delete` was
        begun; what there was of it is deleted. Refused: another machine is retained as `name`.
        """

    async def retained(self) -> Sequence[RetainedMachine]:
        """All that is retained here."""

    async def reinstate(self, name: str, plan: MachinePlan) -> Machine:
        """Let what is retained as `name` be machine `plan.label.vm`, stopped, with its disk and snapshots. It carries
        the plan's label and tags; it keeps its shape until `create` gives it another.

        Repeated after it was done, it is done: nothing is retained as `name`, and the machine exists. A machine of
        which only the creation was begun gives way. Refused: another machine has that id. NotFound: neither.
        """

    async def discard(self, name: str) -> None:
        """Delete what is retained as `name`, with disk and snapshots, for good. Nothing of that name is fine."""

    async def inspect(self, vm: str) -> Machine | None:
        """The machine as it is now; None if there is none."""

    async def list(self) -> Sequence[Machine]:
        """Everything here that carries our label, to find what is not assigned to this node."""

    async def snapshot(self, vm: str, name: str) -> Machine:
        """Take a snapshot. One that exists by that name stays as it is."""

    async def restore(self, vm: str, name: str, number: int) -> Machine:
        """Go back to a snapshot, unless the last restore has this number or a higher one. Leaves it stopped."""

    async def drop_snapshot(self, vm: str, name: str) -> Machine:
        """Delete a snapshot. No such snapshot is fine."""

    def channel(self, vm: str, door: Door) -> Channel:
        """Through a door of it, to be entered. NotFound on entering: there is no such machine, or it is off.

        Unavailable: not at present (the guest does not answer; one that arrives is not ready, or somebody is there).
        """

    async def receive(self, plan: MachinePlan, number: int) -> Machine:
        """Make room for a machine that comes from elsewhere as move `number`, which is above 0; it is then ARRIVING.

        Its doors for arrivals are open when this returns. Repeated under the same number, what was sent completely
        stays as it is, whatever happened here since; what was not, and is of no use any more (its process died), is
        begun anew, as under another number. Refused: a machine of that name stands here that is not ARRIVING, or it
        cannot be received here (`moves`). `delete` ends it. `start`, which may only come after the handover, lets it
        run: from the memory it was sent or, if that got lost here, from the disk it was sent; `stop` makes it a stopped
        machine with that disk. Both are Refused while not all of it was sent.
        """

    async def send(self, vm: str, number: int, connect: Callable[[Door], Channel], *, live: bool = True) -> Machine:
        """Hand a machine over to who is at the other end of `connect`: the doors of one that arrives there.

        When it returns, the other place has all of it, and this one is DEPARTED: it does not run. Who decides that the
        other one runs must be certain that this one is never started again; who decides otherwise starts this one,
        which goes on where it was, or stops it; then the move of this number is over. Repeated after it was done, it is
        done; one that has departed under another number is started or stopped first (else Refused).

        A running machine runs until the last instant; with `live=False` it must be off (Refused), and only its disk
        goes. Snapshots stay behind. Raised, or cut: it runs on as it did, or `start` lets it; `inspect` tells. Refused:
        it cannot be handed over, for what it is or for what the other side is.
        """

    async def hold(self, seconds: float, *, since: float | None = None) -> None:
        """The dead man's switch of all fenced machines: each stops by itself after `seconds`, unless held again.

        Counted from `since`, an instant of the driver's clock (`SystemClock.now()`, unless it was given another), so
        that who is suspended on the way here does not hold for longer; without one, or with a later one, from the call.
        The clock also runs while the machine sleeps, and the hold stands whether or not this process still lives. The
        last hold counts, also when it is shorter; one of 0 or less is over at once. It starts nothing.
        A place that was never held, or not since the host booted, is not held.
        """


@runtime_checkable
class Fencing(Protocol):
    """What a driver can also do whose fenced machines run on this host."""

    async def overdue(self, late: float) -> Sequence[str]:
        """Return the fenced machines that still run `late` seconds after the end of their hold.

        Unavailable: that cannot be found out.
        """

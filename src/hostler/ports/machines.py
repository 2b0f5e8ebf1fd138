"""Machines: the virtual machines that exist on a node. One driver serves one node.

Every verb may be repeated and may be interrupted at any point, by cancelling it or by killing the process: repeating it
finishes what was begun. Machines outlive the process that created them. A verb that returns has taken effect; after a
verb that raised, `inspect` shows what it has done.

    Refused      impossible, and repeating it does not help (an unknown image, a snapshot that does not exist)
    Invalid      (a Refused) an argument that is never valid: an empty name, a negative `grace`
    NotFound     (a Refused) there is no such machine; explicit, never a guess
    Unavailable  not now; nothing changed
    Uncertain    it may have happened; inspect

    Closed       (a Refused) the driver is not open

Verbs of one machine may be called concurrently; they then take effect one after the other, in some order. Every driver
passes the suite `hostler.testing.check_machines`.

A lookup that fails is not an absence: `inspect` answers None only when there certainly is no such machine.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Protocol, Self, TypeVar, cast, runtime_checkable

import msgspec

from hostler.errors import Refused
from hostler.kit.lazy_import import old_names
from hostler.model.inventory import Capacity  # noqa: TC001 - msgspec reads annotations at run time
from hostler.model.node import ImageNeeds  # noqa: TC001 - as above
from hostler.model.vm import (
    Access,  # noqa: TC001 - as above
    MachineState,  # noqa: TC001 - as above
    Readiness,  # noqa: TC001 - as above
    VmSpec,  # noqa: TC001 - as above
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType


class Label(msgspec.Struct, frozen=True):
    """The label that every machine of Hostler carries, so that it can be found without the store."""

    org: str
    project: str
    vm: str
    cluster: str = ""
    """The control plane that created it; machines of other control planes are left alone."""
    node: str = ""
    """The node that it was created for; an agent of another node leaves it alone."""


class MachinePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The machine to create."""

    label: Label
    spec: VmSpec
    name: str = ""
    fenced: bool = False
    """The machine stops by itself when its fence is not extended (see `Fencing.hold`)."""
    tags: dict[str, str] = {}
    """For people who look at the provider: owner, expiry. Hostler does not read them."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine as observed."""

    label: Label
    id: str
    """The provider's id."""
    state: MachineState
    """CREATING: incomplete, because its creation or deletion was begun; call `create` again, or `delete`.

    STOPPED. STARTING, STOPPING: begun, and it may run; repeat the verb. RUNNING. FAILED: it broke and is off; `detail`
    says how; `create`, `start` and `stop` treat it like a stopped machine. ARRIVING, DEPARTED: it is being migrated
    (`receive`, `send`); it does not run, and `create` leaves it unchanged.
    """
    spec: VmSpec
    """What it runs with, or would start with."""
    fenced: bool = False
    tags: dict[str, str] = {}
    cloud_status: str = ""
    """The provider's own name of its state; empty: the provider has none."""
    address: str = ""
    detail: str = ""
    resets: int = 0
    """The number of the last reset."""
    restored: int = 0
    """The number of the last restore."""
    moved: int = 0
    """The number of the last migration: of the last `receive`, or of the last `send` that was begun."""
    snapshots: tuple[str, ...] = ()
    readiness: Readiness | None = None
    """Set while it runs."""
    access: Access | None = None
    paused: bool = False
    """RUNNING, but the guest is paused until the node has room for its writes; `detail` says so."""


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What a node offers."""

    capacity: Capacity
    """Total capacity; usage is not subtracted."""
    images: tuple[str, ...] | None = None
    """Images that machines can be created from on this node; None: any image."""
    image_needs: dict[str, ImageNeeds] = {}
    """Requirements of those images for which they are known."""
    facts: dict[str, str] = {}
    """Properties of the node, for people: `acceleration`, `version`, …"""
    refuses: str = ""
    """Why the node accepts no further machines, such as an almost full disk; empty: it accepts them."""


class RetainedMachine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that is out of service and is retained with its disk and snapshots (`Retention.retain`)."""

    name: str
    """Name of the retained machine, unique on its node."""
    label: Label
    """The label that it carried. Its node may have another machine of the same `vm` now."""
    machine_name: str = ""
    """The name that its owner gave it."""
    spec: VmSpec
    snapshots: tuple[str, ...] = ()
    retained_at: float
    """Seconds since 1970."""
    disk_bytes: int = 0
    """Space that it takes on the node; 0: not known."""


class ChannelKind(enum.StrEnum):
    """The kinds of byte channels into a machine."""

    CONSOLE = "console"
    """The serial port: everyone connected sees the output and may type."""
    SSH = "ssh"
    """A new connection to the SSH server of the guest (`Machine.access`)."""
    LOG = "log"
    """The last output of the serial port, bounded in size; then it ends. Also available when the machine is off."""
    SLICE_LOG = "slice-log"
    """Of the node, not of a machine: the output of a slice, for one query (`engine/slices/logs.py`)."""
    ARRIVAL_STATE = "arrival-state"
    """For an ARRIVING machine: memory and devices, from the source machine. One connection at a time."""
    ARRIVAL_DISK = "arrival-disk"
    """For an ARRIVING machine: the disk. One connection at a time."""


class Channel(Protocol):
    """A bidirectional byte stream. An async context manager."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    async def read(self) -> bytes:
        """Return the next bytes; empty after the other side closed, for example because the machine went off."""

    async def write(self, data: bytes) -> None:
        """Send; waits while the other side does not accept data."""


@runtime_checkable
class Machines(Protocol):
    """The machines of one node: what every driver does. An async context manager.

    A machine is named by the id of its virtual machine (`Label.vm`). What only some drivers do are the protocols below:
    a driver has an ability if it has all verbs of its protocol (`ability`). What the driver of a node cannot do is
    refused with that reason; no machine is deleted instead.
    """

    @property
    def name(self) -> str:
        """The kind of the machines: the name under which the driver is installed."""

    @property
    def place(self) -> str:
        """An id that stays the same for as long as the machines exist.

        While this driver is open, no other process has the same id open.
        """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def listen(self, changed: Callable[[str], None]) -> None:
        """Call `changed(vm)`, on the event loop, when a machine changed by itself: it went off, it became available.

        Called at least once per change, soon, while the driver is open; not for changes made by a verb.
        """

    async def offer(self) -> Offer:
        """Return what the node offers now."""

    async def create(self, plan: MachinePlan) -> Machine:
        """Create the machine, stopped.

        A stopped machine that exists takes the plan's shape and tags; a running one is left unchanged. Refused: a
        machine of that name carries another label (`Ownership.mark` changes a label), or it must be fenced and the
        driver has no `Fencing`.
        """

    async def start(self, vm: str) -> Machine:
        """Start the machine. A running one stays as it is. Unavailable: the fence of a fenced one has expired."""

    async def stop(self, vm: str, *, grace: float) -> Machine:
        """Ask the guest to shut down; power it off after `grace` seconds. 0: power it off at once. Stopped is fine."""

    async def delete(self, vm: str) -> None:
        """Delete the machine, its disk and its snapshots, running or not. No such machine is fine."""

    async def inspect(self, vm: str) -> Machine | None:
        """Return the machine as it is now; None if there is none."""

    async def list(self) -> Sequence[Machine]:
        """Return every machine here that carries Hostler's label, to find those that are not assigned to this node."""

    def channel(self, vm: str, kind: ChannelKind) -> Channel:
        """Return a channel into the machine, to be entered.

        On entering, NotFound: there is no such machine, or it is off. Unavailable: not at present (the guest does not
        answer; an ARRIVING machine is not ready, or its channel is in use).
        """


@runtime_checkable
class Resets(Protocol):
    """Ability: machines can be reset."""

    async def reset(self, vm: str, number: int) -> Machine:
        """Reset a running machine, unless its last reset has this number or a higher one.

        For a stopped machine, only the number is recorded.
        """


@runtime_checkable
class Snapshots(Protocol):
    """Ability: snapshots of a machine's disk."""

    async def snapshot(self, vm: str, name: str) -> Machine:
        """Take a snapshot. An existing snapshot of that name is left unchanged."""

    async def restore(self, vm: str, name: str, number: int) -> Machine:
        """Restore a snapshot, unless the last restore has this number or a higher one. Leaves the machine stopped."""

    async def drop_snapshot(self, vm: str, name: str) -> Machine:
        """Delete a snapshot. No such snapshot is fine."""


@runtime_checkable
class Ownership(Protocol):
    """Ability: a machine can be given to another project, as machines of a warm pool are."""

    async def mark(self, plan: MachinePlan) -> Machine:
        """Set the label and tags of a machine to the plan's, running or not: it belongs to another project now.

        Nothing else of it changes. NotFound: there is no machine with that id. Refused: it belongs to another cluster,
        or to another node.
        """


@runtime_checkable
class Retention(Protocol):
    """Ability: machines can be taken out of service with their disks.

    Without it, a machine that is not assigned to its node is stopped and stays as it is.
    """

    async def retain(self, vm: str, name: str) -> RetainedMachine | None:
        """Switch a machine off and retain it as `name`, with disk, snapshots and label, until reinstated or discarded.

        `list` and `inspect` no longer show it, and another machine `vm` can be created.

        A retain that was begun under another name is finished under that name: the answer has the name that counts.
        Repeating a completed retain is fine. None: nothing was retained, because there was no written disk. That is,
        there is no such machine, or it was never complete (its creation was begun, or not all of it arrived), or its
        `delete` was begun; its remains are deleted. Refused: another machine is retained as `name`.
        """

    async def retained(self) -> Sequence[RetainedMachine]:
        """Return all retained machines of this node."""

    async def reinstate(self, name: str, plan: MachinePlan) -> Machine:
        """Turn the retained machine `name` into machine `plan.label.vm`, stopped, with its disk and snapshots.

        It carries the plan's label and tags; it keeps its shape until `create` gives it another.

        Repeating a completed reinstate is fine: nothing is retained as `name`, and the machine exists. A machine whose
        creation was only begun is replaced. Refused: another machine has that id. NotFound: neither the retained
        machine nor the machine exists.
        """

    async def discard(self, name: str) -> None:
        """Delete the retained machine `name` permanently, with disk and snapshots. Nothing of that name is fine."""


@runtime_checkable
class Migration(Protocol):
    """Ability: machines can be migrated to another node with the same driver."""

    @property
    def moves(self) -> bool:
        """Whether they can with the options that this driver has."""

    async def receive(self, plan: MachinePlan, number: int) -> Machine:
        """Prepare for a machine that migrates here as migration `number`, which is above 0; it is then ARRIVING.

        Its arrival channels are open when this returns. When repeated with the same number, a machine that was sent
        completely stays as it is, whatever happened here since; one that was sent in part and can no longer be
        completed (its process died) starts over, as with another number. Refused: a machine of that name exists here
        and is not ARRIVING, or it cannot be received here. `delete` aborts the migration. `start`, which may
        only be called after the handover, runs the machine: from the memory it was sent or, if that got
        lost here, from the disk it was sent; `stop` makes it a stopped machine with that disk. Both are Refused while
        the machine was not sent completely.
        """

    async def send(
        self, vm: str, number: int, connect: Callable[[ChannelKind], Channel], *, live: bool = True
    ) -> Machine:
        """Send a machine to the other end of `connect`: the arrival channels of the ARRIVING machine there.

        When it returns, the other node has all of it, and this machine is DEPARTED: it does not run. A caller that
        decides to run the other machine must be certain that this one is never started again. A caller that decides
        otherwise starts this one, which continues where it was, or stops it; then the migration of this number is over.
        Repeating a completed send is fine; a machine that departed under another number must be started or stopped
        first (else Refused).

        A running machine runs until the last instant; with `live=False` it must be off (Refused), and only its disk is
        sent. Snapshots stay behind. If `send` raises or is interrupted, the machine runs on, or `start` runs it;
        `inspect` shows which. Refused: the machine cannot be sent, because of what it is or because of what the other
        side is.
        """


@runtime_checkable
class Fencing(Protocol):
    """Ability: `fenced` machines stop by themselves when `hold` is not repeated, even if this process is dead."""

    @property
    def fences(self) -> bool:
        """Whether they really do with the options that this driver has."""

    async def hold(self, seconds: float, *, since: float | None = None) -> None:
        """Extend the fence of all fenced machines: each stops by itself after `seconds`, unless extended again.

        Counted from `since`, an instant of the driver's clock (`SystemClock.now()`, unless it was given another), so
        that a caller that is suspended on the way here does not extend it for longer; without `since`, or with a later
        instant, counted from the call. The clock also runs while the host sleeps, and the fence holds whether or not
        this process is alive. The last call counts, also when it is shorter; 0 or less expires at once. It starts no
        machine. A node on which `hold` was never called, or not since the host booted, has an expired fence.
        """


@runtime_checkable
class OverdueFences(Protocol):
    """Ability: fenced machines run on this host, so that its watchdog can guard their end."""

    async def overdue(self, late: float) -> Sequence[str]:
        """Return the fenced machines that still run `late` seconds after their fence expired.

        Unavailable: that cannot be determined.
        """


A = TypeVar("A")


def ability(machines: object, kind: type[A]) -> A | None:
    """Return the machines as `kind`, one of the protocols above, if they have all of its verbs; else None.

    Unlike `isinstance` on Python 3.12 and later, it also counts verbs that a wrapper passes on by `__getattr__`.
    """
    verbs = (name for name in vars(kind) if not name.startswith("_"))
    return cast("A", machines) if all(hasattr(machines, verb) for verb in verbs) else None


def required(machines: Machines, kind: type[A]) -> A:
    """Return the machines as `kind`. Refused: they do not have this ability."""
    found = ability(machines, kind)
    if found is None:
        raise Refused(
            f"machines of kind {machines.name!r} have no {kind.__name__.lower()}; use a node with another driver"
        )
    return found


def migration_of(machines: Machines) -> Migration | None:
    """Return the ability to migrate, if the machines have it now."""
    found = ability(machines, Migration)
    return found if found is not None and found.moves else None


def fencing_of(machines: Machines) -> Fencing | None:
    """Return the ability to fence, if the machines have it now."""
    found = ability(machines, Fencing)
    return found if found is not None and found.fences else None


if not TYPE_CHECKING:  # the checker accepts the new names only
    __getattr__ = old_names(__name__, {"Door": "ChannelKind"})


class NodeChannels(Protocol):
    """The part of `Machines` that other nodes can reach: its `channel`."""

    def channel(self, vm: str, kind: ChannelKind) -> Channel:
        """Return a channel, to be entered; for `ChannelKind.SLICE_LOG`, `vm` is an artifact."""


class Peers(Protocol):
    """The `NodeChannels` of all nodes."""

    def channel(self, node: str, vm: str, kind: ChannelKind) -> Channel:
        """Return a channel into a machine of that node, to be entered.

        On entering as `Machines.channel`; Unavailable also: the node, or its agent, cannot be reached at present.
        """

"""Transfer of a VM to another project in one transaction. The VM keeps running and is not created, moved or removed.

    VM, NAME, HANDLE   move from one project to the other; the id stays
    COMMAND            stays where it is, and now names the other project
    QUOTA              of both projects, if they have one

The command is what keeps the machine. It exists at all times, so the agent and every sweep always find the machine
commanded. A decision based on the earlier records compares at least one of them, and each of them has changed. So the
order in which other processes learn of the transfer does not matter.

Only a VM at rest can be transferred: its node has the current spec, and it is not being migrated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from hostler.engine.controllers.decision import tags_of
from hostler.engine.controllers.migration import is_move_requested
from hostler.engine.controllers.snapshot import name_of_command
from hostler.engine.quotas import Bound, quota_transfer, share
from hostler.errors import Conflict
from hostler.keys.families import COMMAND, HANDLE, LOCK, NAME, VM
from hostler.model.vm import MachineState, VirtualMachine
from hostler.ports.store import Delete, Put, Value

if TYPE_CHECKING:
    from hostler.engine.quotas import Pieces
    from hostler.keys.entry import Entry
    from hostler.model.node import VmCommand
    from hostler.model.vm import VmHandle
    from hostler.ports.store import Comparison, Operation, Store

_AT_REST = (MachineState.RUNNING, MachineState.STOPPED)


class Held(msgspec.Struct, frozen=True):
    """A VM and its records as read; each may be from a different time."""

    vm: Entry[VirtualMachine]
    handle: Entry[VmHandle]
    command: Entry[VmCommand]


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The new owner, and the properties of the VM there."""

    org: str
    project: str
    name: str
    labels: dict[str, str]
    expires_at: float | None = None


def unfit(held: Held) -> str:
    """Return why the VM cannot be transferred now; empty: it can."""
    vm, handle, command = held.vm.value, held.handle.value, held.command.value
    why = ""
    if vm.deleting or command.deleting:
        why = "it is being deleted"
    elif name_of_command(command) != f"{vm.org}/{vm.project}/{vm.id}" or handle.node != held.command.parts["node"]:
        why = "its node has just changed"
    elif handle.state not in _AT_REST:
        why = f"it is {handle.state}"
    elif command.departing is not None or is_move_requested(vm, handle):
        why = "it is being moved"
    elif command.generation != vm.generation:
        why = "its node does not have the current spec yet"
    return why


async def transfer(store: Store, held: Held, to: Owner, *, fence: int) -> Pieces:
    """Return the comparisons and operations of the transaction. The caller adds the leader's guard, with this `fence`.

    Raise Conflict if the VM cannot be transferred now, QuotaExceeded if the new owner's quota is used up, and
    Unavailable or Uncertain if the quotas could not be read.
    """
    if why := unfit(held):
        raise Conflict(f"vm {held.vm.value.name}: {why}; it cannot be given to {to.org}/{to.project} now")
    when, then = reassignment(held, to, fence=fence)
    vm, size = held.vm.value, share(held.vm.value.spec)
    compared, written = await quota_transfer(store, Bound(vm.org, vm.project), Bound(to.org, to.project), size)
    return [*when, *compared], [*then, *written]


def reassignment(held: Held, to: Owner, *, fence: int) -> Pieces:
    """Return the comparisons and operations without the quotas. Pure."""
    old = held.vm.value
    new = msgspec.structs.replace(
        old,
        org=to.org,
        project=to.project,
        name=to.name,
        labels=to.labels,
        expires_at=to.expires_at,
        generation=old.generation + 1,
    )
    command = msgspec.structs.replace(
        held.command.value,
        org=new.org,
        project=new.project,
        name=new.name,
        tags=tags_of(new),
        generation=new.generation,
        fence=fence,
    )
    before: dict[str, Any] = {"org": old.org, "project": old.project}
    after: dict[str, Any] = {"org": new.org, "project": new.project}
    name = NAME.fill(name=old.name, **before)
    when: list[Comparison] = [
        VM.unchanged(held.vm),
        HANDLE.unchanged(held.handle),
        COMMAND.unchanged(held.command),
        LOCK.absent(vm=old.id, **before),
        Value(name) == NAME.encode(old.id),
        VM.absent(vm=old.id, **after),
        HANDLE.absent(vm=old.id, **after),
        NAME.absent(name=new.name, **after),
    ]
    then: list[Operation] = [
        Delete(held.vm.key),
        Delete(held.handle.key),
        Delete(name),
        VM.put(new, vm=new.id, **after),
        HANDLE.put(held.handle.value, vm=new.id, **after),
        NAME.put(new.id, name=new.name, **after),
        Put(held.command.key, COMMAND.encode(command)),
    ]
    return when, then

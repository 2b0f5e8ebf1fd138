"""Next step for a node, and its transaction. Pure: from the records of the node, and how long it is unreachable."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import msgspec

from hostler.engine.runtime.guarded_writer import Txn, Why
from hostler.keys.families import ALIVE, MEMBER
from hostler.model.node import POWER, DrainMode, Lifecycle, OffConfirmation
from hostler.ports.store import Put

if TYPE_CHECKING:
    from hostler.keys.entry import Entry
    from hostler.model.node import Heartbeat, NodeRecord

POWER_GRACE = 30.0
ASK_POWER_EVERY = 60.0
_LEAVING = (Lifecycle.SHUTTING_DOWN, Lifecycle.DECOMMISSIONED)


class Act(enum.Enum):
    NOTHING = enum.auto()
    PUT_ON_DUTY = enum.auto()
    DECOMMISSION = enum.auto()
    """The node is drained, and empty in the caches. The store has to confirm that before the transaction."""
    SWITCH_OFF = enum.auto()
    """Switch off the node as soon as the brake permits it. The switch confirms it before the transaction."""


class NodeSnapshot(msgspec.Struct, frozen=True):
    """What one decision about a node is based on."""

    member: Entry[NodeRecord]
    heartbeat: Entry[Heartbeat] | None
    machines: int
    """Number of machines with a command for the node."""
    is_empty: bool
    """Whether the node has, and expects, no machine and no slice."""
    unreachable_for: float
    """Seconds without heartbeats under this record, as the leader observed them."""
    power_asked_at: float | None
    """When the power switch of the node was last asked to switch it off."""

    @property
    def node(self) -> str:
        return self.member.parts["node"]


class PowerRules(msgspec.Struct, frozen=True):
    """When unreachable nodes are switched off."""

    grace: float = POWER_GRACE
    """Seconds for which a node must be unreachable."""
    settle: float = 0.0
    """As `grace`, at most: nodes that are cut off together become unreachable one after the other."""


class Step(msgspec.Struct, frozen=True):
    """The next step for a node; decide again `after` so many seconds, unless the node changes before that."""

    act: Act = Act.NOTHING
    after: float | None = None


NOTHING = Step()


def decide(snapshot: NodeSnapshot, power: PowerRules | None, now: float) -> Step:
    """Return the next step. `power`: None if there are no power switches."""
    record = snapshot.member.value
    if record.lifecycle is Lifecycle.JOINING and snapshot.heartbeat is not None:
        return Step(Act.PUT_ON_DUTY)
    if record.lifecycle is Lifecycle.DRAINING and record.drain is DrainMode.MOVE and snapshot.is_empty:
        return Step(Act.DECOMMISSION)
    if snapshot.heartbeat is not None or power is None:
        return NOTHING
    return _power_step(snapshot, power, now)


def _power_step(snapshot: NodeSnapshot, power: PowerRules, now: float) -> Step:
    """Switch off a node that became unreachable unexpectedly and has machines that others could run."""
    record = snapshot.member.value
    is_left = record.lifecycle in _LEAVING or not record.lifecycle.is_known
    if record.off is not None or is_left or not snapshot.machines:
        return NOTHING
    if record.awaited:
        return NOTHING  # its agent may still be about to connect to this store, which is a copy
    # The leases of nodes that are cut off together end one after the other: by then the brake knows all of them.
    left = max(power.grace, min(power.settle, record.fencing_time / 4)) - snapshot.unreachable_for
    if snapshot.power_asked_at is not None:
        left = max(left, snapshot.power_asked_at + ASK_POWER_EVERY - now)
    return Step(after=left + 0.001) if left > 0 else Step(Act.SWITCH_OFF)


def power_permission(snapshot: NodeSnapshot) -> Txn:
    """Return the conditions under which the leader may ask the power switch: the record is unchanged, no heartbeat."""
    return Txn([MEMBER.unchanged(snapshot.member), ALIVE.absent(node=snapshot.node)], [])


def transaction(snapshot: NodeSnapshot, act: Act, *, at: float, silence: str = "") -> tuple[Txn, Why]:
    """Return the transaction of a step, and its decision. `silence`: the decision that recorded it as unreachable."""
    record, node = snapshot.member.value, snapshot.node
    member, when = snapshot.member, [MEMBER.unchanged(snapshot.member)]
    cause: Entry[Any] | str | None = None
    match act:
        case Act.PUT_ON_DUTY:
            record = msgspec.structs.replace(record, lifecycle=Lifecycle.ON_DUTY)
            when.append(ALIVE.exists(node=node))
            what, why, cause = "on_duty", "it has joined and is alive", snapshot.heartbeat
        case Act.DECOMMISSION:
            record = msgspec.structs.replace(record, lifecycle=Lifecycle.DECOMMISSIONED)
            what, why = "decommissioned", "it is drained and empty"
        case Act.SWITCH_OFF:
            record = msgspec.structs.replace(record, off=OffConfirmation(by=POWER, at=at))
            when.append(ALIVE.absent(node=node))
            what, cause = "switched_off", silence
            why = f"it was unreachable for {snapshot.unreachable_for:.0f} s, and was switched off"
        case _:
            raise ValueError(f"{act} writes nothing")
    txn = Txn(when, [Put(member.key, MEMBER.encode(record))])
    return txn, Why(what=what, why=why, read=(member,), cause=cause or "")

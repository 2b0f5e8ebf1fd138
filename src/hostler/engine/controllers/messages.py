"""Messages for each decision about a machine: one sentence, and the cause. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from hostler.engine.controllers.decision import Act, Duty, NodeCase
from hostler.model.vm import Power

if TYPE_CHECKING:
    from hostler.engine.controllers.decision import Step
    from hostler.engine.controllers.snapshot import VmSnapshot
    from hostler.engine.placement import Decision
    from hostler.keys.entry import Entry
    from hostler.model.node import VmCommand
    from hostler.model.trace import Reason

_QUIET = frozenset(("generation", "reasons", "fence", "fenced_since", "unknown", "org", "project", "vm", "lost"))
"""Fields that change together with others, and mean nothing by themselves."""


class DecisionMessage(msgspec.Struct, frozen=True):
    """A message. `cause`: the entry that caused the decision, or the id of a decision."""

    why: str
    cause: Entry[Any] | str = ""
    reasons: tuple[Reason, ...] = ()


class Circumstances(msgspec.Struct, frozen=True):
    """The circumstances of a step, in addition to the records."""

    case: NodeCase
    duty: Duty
    silent_for: float = 0.0
    silence: str = ""
    """The id of the decision that recorded its node as unreachable, if known."""


def newest(*entries: Entry[Any] | None) -> Entry[Any] | str:
    """Return the entry that was written last; empty if there is none."""
    found = [entry for entry in entries if entry is not None]
    return max(found, key=lambda entry: entry.mod_revision) if found else ""


def placement(seen: VmSnapshot, decision: Decision) -> DecisionMessage:
    """Return the message of a placement, or of a failed one."""
    why = f"placed on {decision.summary.removeprefix('node ')}" if decision.node is not None else decision.summary
    return DecisionMessage(why, newest(seen.vm, seen.handle), decision.reasons)


def moving(seen: VmSnapshot, to: str, *, wish: int) -> DecisionMessage:
    """Return the message of a move that begins."""
    if wish:
        return DecisionMessage(f"moves from {seen.node} to {to}: as requested", newest(seen.vm))
    return DecisionMessage(f"moves from {seen.node} to {to}: {seen.node} is drained", newest(seen.member))


def not_moved(seen: VmSnapshot, why: str) -> DecisionMessage:
    """Return the message of a requested move that ended before it began."""
    return DecisionMessage(f"stays on {seen.node}: {why}" if why else f"is on {seen.node} already", newest(seen.vm))


def not_expected(seen: VmSnapshot) -> DecisionMessage:
    """Return the message about nodes that expect a machine which does not arrive."""
    nodes = ", ".join(sorted(entry.parts["node"] for entry in seen.strays))
    return DecisionMessage(f"it does not arrive at {nodes}, which expected it", newest(*seen.strays))


def trimming(seen: VmSnapshot) -> DecisionMessage:
    """Return the message about several nodes with a command."""
    nodes = ", ".join(sorted(entry.parts["node"] for entry in seen.extra))
    return DecisionMessage(f"it is on {seen.node}; {nodes} had a wrong command, which is deleted", newest(*seen.extra))


def drain_stuck(seen: VmSnapshot, why: str) -> DecisionMessage:
    """Return the message about a machine that cannot leave a drained node."""
    return DecisionMessage(why, newest(seen.member))


def step(step: Step, seen: VmSnapshot, around: Circumstances) -> DecisionMessage:
    """Return the message of any other step."""
    node, vm, handle, command = seen.node, seen.vm, seen.handle, seen.command
    if step.act in (Act.TAKE, Act.FORGET_LOST):
        return _loss(seen, around, "taken from" if step.act is Act.TAKE else "deleted, with")
    if step.act is Act.INSTRUCT and step.command is not None and command is not None:
        return DecisionMessage(_command_change(node, command.value, step.command, around.duty), _wisher(seen))
    told = {
        Act.RELEASE: (f"taken from {node}, where it no longer exists: it is placed again", newest(handle)),
        Act.FORGET: (f"it is removed{f' from {node}' if node else ''}, as requested", newest(vm, handle)),
        Act.SWEEP: ("it has no VM record: its handle and command are deleted", newest(handle, command)),
        Act.ADOPT: (f"{node} has its command, but its handle does not name {node}: corrected", newest(command, handle)),
        Act.TELL_AGAIN: (f"{node} gets its command again, which was missing", newest(handle, seen.member)),
        Act.STAY: (f"stays on {node}: {step.why}", newest(*seen.arrivals, vm, command)),
        Act.UNPLACE: (f"{node} has no command and no machine for it: it is placed again", newest(handle, seen.member)),
    }
    why, cause = told.get(step.act, ("", newest(vm, handle)))
    return DecisionMessage(why, cause)


def records_read(seen: VmSnapshot) -> tuple[Entry[Any] | None, ...]:
    """Return the records of the machine that the decision is based on."""
    return (seen.vm, seen.handle, seen.command, *seen.extra, *seen.arrivals)


def _loss(seen: VmSnapshot, around: Circumstances, done: str) -> DecisionMessage:
    off = None if seen.member is None else seen.member.value.off
    if around.case is NodeCase.OFF and off is not None:
        return DecisionMessage(f"{done} {seen.node}: it is off, confirmed by {off.by}", newest(seen.member))
    why = f"{done} {seen.node}: it was unreachable for {around.silent_for:.0f} s, its fenced machines have stopped"
    return DecisionMessage(why, around.silence or newest(seen.member))


def _wisher(seen: VmSnapshot) -> Entry[Any] | str:
    """Return the record whose change changed the command: that of the machine, else that of the node."""
    since = 0 if seen.command is None else seen.command.mod_revision
    if seen.vm is not None and seen.vm.mod_revision > since:
        return seen.vm
    if seen.member is not None and seen.member.mod_revision > since:
        return seen.member
    return newest(seen.vm, seen.handle)


def _command_change(node: str, old: VmCommand, new: VmCommand, duty: Duty) -> str:
    if new.deleting and not old.deleting:
        if duty is Duty.MOVE:
            return f"{node} is commanded to destroy it: the node is drained, and it is created elsewhere"
        return f"{node} is commanded to destroy it, as requested"
    if new.power is not old.power:
        drained = duty in (Duty.STOP, Duty.STAY_OFF) and new.power is Power.OFF
        why = "the node is drained" if drained else "as requested"
        return f"{node} is commanded to switch it {new.power.value}: {why}"
    changed = [
        name for name in new.__struct_fields__ if name not in _QUIET and getattr(old, name) != getattr(new, name)
    ]
    return f"{node} gets the new spec: {', '.join(changed) or 'nothing else'}"

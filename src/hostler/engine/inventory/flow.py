"""Burn-in and retirement: the next single step of a blade or rack, as a pure function of its records.

    burn_in    waiting → watching → operational, or failed: out_for_repair with the reason
    retiring   draining → retired, or blocked with the reason until an operator removes it

A rack takes its blades through the same flow: it is operational when each of them has passed or failed, and one has
passed; it is retired when all of them are. No step deletes a machine, a disk or a retained machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hostler.kit.plural import counted
from hostler.model.inventory import Condition, FlowStep, HardwareFlow
from hostler.model.node import DrainMode, Lifecycle, NodeRecord

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hostler.model.inventory import Blade, Hardware, Rack

NAMED = 3
"""Number of machines, or blades, that a reason names."""


class BladeSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a step of a blade is decided from."""

    node: str
    rack: Rack
    blade: Blade
    flow: HardwareFlow | None = None
    member: NodeRecord | None = None
    heartbeat: str = ""
    """Identity of the running agent; empty: it is not alive."""
    machines: tuple[str, ...] = ()
    """Machines that it has, or expects."""
    stuck: str = ""
    """Why one of them cannot leave."""
    slices: int = 0
    retained: tuple[str, ...] = ()


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be written. `again`: check again after this many seconds."""

    flow: HardwareFlow | None = None
    """None: there is none, or no longer."""
    condition: Condition | None = None
    """The new condition of the hardware."""
    member: NodeRecord | None = None
    """The new record of the node."""
    why: str = ""
    again: float | None = None


def flow_of(rack: Rack, blade: Blade) -> Condition | None:
    """Return the flow of a blade; None: none."""
    if blade.condition is Condition.RETIRING:
        return Condition.RETIRING
    if rack.condition is Condition.RETIRING:
        return None if blade.condition is Condition.RETIRED else Condition.RETIRING
    if blade.condition is Condition.BURN_IN:
        return Condition.BURN_IN
    if rack.condition is Condition.BURN_IN and blade.condition is Condition.OPERATIONAL:
        return Condition.BURN_IN
    return None


def decide_blade(seen: BladeSnapshot, now: float, period: float) -> Step:
    """Return the next step of a blade."""
    wanted = flow_of(seen.rack, seen.blade)
    if wanted is Condition.BURN_IN:
        return _burn_in(seen, now, period)
    if wanted is Condition.RETIRING:
        return _retire(seen, now)
    return _over(seen)


def decide_rack(
    rack: Rack, flow: HardwareFlow | None, blades: Mapping[str, tuple[Blade, HardwareFlow | None]], now: float
) -> Step:
    """Return the next step of a rack, from those of its blades by name."""
    if rack.condition is Condition.BURN_IN:
        return _rack_burn_in(rack, flow, blades, now)
    if rack.condition is Condition.RETIRING:
        left = {name: found for name, (blade, found) in blades.items() if blade.condition is not Condition.RETIRED}
        if not left:
            why = "every blade of it is retired"
            return Step(
                flow=_flow(flow, Condition.RETIRING, FlowStep.RETIRED, why, now), condition=Condition.RETIRED, why=why
            )
        blocked = {name: found for name, found in left.items() if found and found.step is FlowStep.BLOCKED}
        step = FlowStep.BLOCKED if blocked else FlowStep.DRAINING
        done = f"{len(blades) - len(left)} of {counted(len(blades), 'blade is', 'blades are')} retired"
        why = f"{done}; {_named(blocked or left)}"
        return Step(flow=_flow(flow, Condition.RETIRING, step, why, now), why=why)
    return Step(flow=flow if _is_told(rack, flow) else None, why="its condition was set")


# Burn-in


def _burn_in(seen: BladeSnapshot, now: float, period: float) -> Step:
    flow, node = seen.flow, seen.node
    begun = flow is not None and flow.step in (FlowStep.WATCHING, FlowStep.PASSED)
    if flow is not None and begun:
        after = f"{_span(now - flow.step_at)} after its burn-in period began"
        if not seen.heartbeat and not _is_expected_away(seen.member):
            return _failure_step(seen, f"node {node} became unreachable, {after}", now)
        if seen.member is not None and seen.member.refuses:
            return _failure_step(seen, f"node {node} reported a fault, {after}: {seen.member.refuses}", now)
    if not seen.blade.enabled or not seen.rack.enabled:
        what = "the blade" if not seen.blade.enabled else "its rack"
        return _at(seen, Condition.BURN_IN, FlowStep.WAITING, f"{what} is not enabled; enable it", now)
    if seen.member is None or not seen.heartbeat:
        return _at(seen, Condition.BURN_IN, FlowStep.WAITING, f"the agent of node {node} does not run; start it", now)
    if seen.member.refuses:
        why = f"node {node} takes no machines: {seen.member.refuses}"
        return _at(seen, Condition.BURN_IN, FlowStep.WAITING, why, now)
    if flow is None or not begun or flow.heartbeat != seen.heartbeat:
        restarted = f"the agent of node {node} was restarted, so the period starts again; " if flow and begun else ""
        why = f"{restarted}operational after {_span(period)} without a fault"
        fresh = _flow(flow, Condition.BURN_IN, FlowStep.WATCHING, why, now)
        watching = msgspec.structs.replace(fresh, step_at=now, until=now + period, heartbeat=seen.heartbeat)
        return Step(flow=watching, why=why, again=period)
    if flow.step is FlowStep.PASSED:
        return Step(flow=flow)
    left = (flow.until or now) - now
    if left > 0:
        return Step(flow=flow, again=left)
    why = f"{_span(now - flow.step_at)} of burn-in without a fault"
    passed = None
    if seen.rack.condition is Condition.BURN_IN:
        passed = msgspec.structs.replace(flow, step=FlowStep.PASSED, reason=why, step_at=now, until=None)
    condition = Condition.OPERATIONAL if seen.blade.condition is Condition.BURN_IN else None
    return Step(flow=passed, condition=condition, why=why)


def _is_expected_away(member: NodeRecord | None) -> bool:
    """Return whether its agent was shut down normally, or has not returned since the store was copied or restored."""
    return member is not None and (member.awaited or member.lifecycle is Lifecycle.SHUTTING_DOWN)


def _failure_step(seen: BladeSnapshot, why: str, now: float) -> Step:
    flow = _flow(seen.flow, Condition.BURN_IN, FlowStep.FAILED, why, now)
    return Step(flow=flow, condition=Condition.OUT_FOR_REPAIR, why=f"its burn-in failed: {why}")


def _rack_burn_in(
    rack: Rack, flow: HardwareFlow | None, blades: Mapping[str, tuple[Blade, HardwareFlow | None]], now: float
) -> Step:
    watched = {name: found for name, (blade, found) in blades.items() if flow_of(rack, blade) is Condition.BURN_IN}
    waits = {name: found for name, found in watched.items() if found is None or found.step is not FlowStep.PASSED}
    passed = len(watched) - len(waits)
    if watched and not waits:
        why = f"{counted(passed, 'blade has', 'blades have')} passed the burn-in"
        return Step(condition=Condition.OPERATIONAL, why=why)
    if not watched:
        why = "no blade of it can pass: none is in burn-in or operational; repair one and set it to burn_in"
        return Step(flow=_flow(flow, Condition.BURN_IN, FlowStep.BLOCKED, why, now), why=why)
    why = f"{passed} of {counted(len(watched), 'blade has', 'blades have')} passed; {_named(waits)}"
    return Step(flow=_flow(flow, Condition.BURN_IN, FlowStep.WATCHING, why, now), why=why)


# Retirement


def _retire(seen: BladeSnapshot, now: float) -> Step:
    member, node = seen.member, seen.node
    if member is None or member.lifecycle in (Lifecycle.DECOMMISSIONED, Lifecycle.SHUTTING_DOWN):
        if seen.machines:
            why = f"node {node} has {_listed(seen.machines)}, and no agent; start its agent, or confirm that it is off"
            return _at(seen, Condition.RETIRING, FlowStep.BLOCKED, why, now)
        if seen.retained:
            return _at(seen, Condition.RETIRING, FlowStep.BLOCKED, _kept(seen), now)
        if not seen.slices:
            why = "it is empty: no machine, no slice and no retained disk is left on it"
            flow = _flow(seen.flow, Condition.RETIRING, FlowStep.RETIRED, why, now)
            return Step(flow=flow, condition=Condition.RETIRED, why=why)
    elif member.lifecycle in (Lifecycle.ON_DUTY, Lifecycle.JOINING):
        if seen.machines and not member.moves:
            why = (
                f"node {node} cannot hand over {_listed(seen.machines)}, whose disks are local; delete them, or let"
                f" hostler node drain {node} recreate them elsewhere from their image"
            )
            return _at(seen, Condition.RETIRING, FlowStep.BLOCKED, why, now)
        why = "the blade is retiring, so its node is drained"
        draining = msgspec.structs.replace(
            member, lifecycle=Lifecycle.DRAINING, drain=DrainMode.MOVE, drop_snapshots=False
        )
        flow = msgspec.structs.replace(
            _flow(seen.flow, Condition.RETIRING, FlowStep.DRAINING, _left(seen), now), drained=True
        )
        return Step(flow=flow, member=draining, why=why)
    if member is not None and member.lifecycle is Lifecycle.DRAINING and seen.machines:
        why = ""
        if member.drain is not DrainMode.MOVE:
            why = f"node {node} is drained by stopping, so {_listed(seen.machines)} stay; hostler node drain {node}"
        elif not seen.heartbeat:
            why = (
                f"node {node} is unreachable and has {_listed(seen.machines)}; bring it back, or confirm that it is off"
            )
        elif seen.stuck:
            why = seen.stuck
        if why:
            return _at(seen, Condition.RETIRING, FlowStep.BLOCKED, why, now)
    return _at(seen, Condition.RETIRING, FlowStep.DRAINING, _left(seen), now)


def _over(seen: BladeSnapshot) -> Step:
    """Return the step that ends a flow which the blade is no longer in."""
    flow, member = seen.flow, seen.member
    if flow is None or _is_told(seen.blade, flow):
        return Step(flow=flow)
    if flow.drained and seen.blade.condition is not Condition.RETIRED and member is not None:
        back = member.lifecycle in (Lifecycle.DRAINING, Lifecycle.DECOMMISSIONED)
        if back:
            why = "its retirement was cancelled, so its node goes on duty again"
            return Step(member=msgspec.structs.replace(member, lifecycle=Lifecycle.ON_DUTY), why=why)
    return Step(why="its condition was set")


def _is_told(hardware: Hardware, flow: HardwareFlow | None) -> bool:
    """Return whether the flow is over and the hardware has its final condition: then its reason is kept."""
    if flow is None:
        return False
    ends = {FlowStep.FAILED: Condition.OUT_FOR_REPAIR, FlowStep.RETIRED: Condition.RETIRED}
    return ends.get(flow.step) is hardware.condition


# Text


def _at(seen: BladeSnapshot, condition: Condition, step: FlowStep, why: str, now: float) -> Step:
    return Step(flow=_flow(seen.flow, condition, step, why, now), why=why)


def _flow(before: HardwareFlow | None, condition: Condition, step: FlowStep, why: str, now: float) -> HardwareFlow:
    same = before is not None and before.condition is condition
    return HardwareFlow(
        condition=condition,
        step=step,
        reason=why,
        since=before.since if before is not None and same else now,
        step_at=before.step_at if before is not None and same and before.step is step else now,
        drained=before.drained if before is not None else False,
    )


def _left(seen: BladeSnapshot) -> str:
    parts = [_listed(seen.machines)] if seen.machines else []
    parts += [counted(seen.slices, "slice")] if seen.slices else []
    return f"{' and '.join(parts)} to go" if parts else "waits until its node is decommissioned"


def _kept(seen: BladeSnapshot) -> str:
    kept = f"{counted(len(seen.retained), 'retained machine')} ({_some(seen.retained)})"
    return f"node {seen.node} keeps the disks of {kept}; restore or delete them (hostler vm retained list)"


def _listed(machines: Sequence[str]) -> str:
    return f"{counted(len(machines), 'machine')} ({_some(machines)})"


def _some(names: Sequence[str]) -> str:
    return ", ".join(sorted(names)[:NAMED]) + (", …" if len(names) > NAMED else "")


def _named(flows: Mapping[str, HardwareFlow | None]) -> str:
    shown = [
        f"{name}: {'not checked yet' if flow is None else flow.reason}" for name, flow in sorted(flows.items())[:NAMED]
    ]
    return "; ".join(shown) + (f"; {len(flows) - NAMED} more" if len(flows) > NAMED else "")


def _span(seconds: float) -> str:
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"

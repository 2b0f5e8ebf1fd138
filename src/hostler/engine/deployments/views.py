"""API views of blueprints and slices. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hostler.engine.deployments.rollout import possible
from hostler.kit.plural import counted
from hostler.model.blueprint_api import (
    AlertView,
    BlueprintPhase,
    BlueprintStatus,
    BlueprintView,
    GateView,
    NodeCount,
    RolloutVerb,
    RolloutView,
    SliceStatus,
    StageView,
    VersionStatus,
)
from hostler.model.deployment import LEAVING, USUAL_STAGES, SliceSettings, SliceState, Strategy, StrategyKind
from hostler.model.rollout import AlertState, Phase
from hostler.model.slice_api import EndpointView, SliceInstanceView, SliceView

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hostler.keys.entry import Entry
    from hostler.model.deployment import AlertRule, Blueprint, Endpoint, SliceInstance, SliceRecord, SliceSpec
    from hostler.model.rollout import Alert, Deployment, Retries, SliceDecision

NAMED = 50
"""Nodes of a version that are listed by name."""
_BUSY = {
    Phase.STARTING: "its first version is starting",
    Phase.ROLLING: "one version replaces the other",
    Phase.STANDBY: "the new instances start next to the old ones",
    Phase.KEEPING: "the new version serves, the old one is kept for now",
    Phase.BACKING_OUT: "the new version is being rolled back",
    Phase.DONE: "instances are added and removed",
}


class InstanceGroup(msgspec.Struct, frozen=True):
    """A group of equal instances: there may be a million of them, so they are not handled one by one."""

    node: str
    artifact: str
    settings: SliceSettings
    state: SliceState
    ready: bool
    count: int = 1
    left: bool = False
    """They are LOADED because they were deactivated, and will be unloaded next."""

    @property
    def goes(self) -> bool:
        """Whether they will not serve again."""
        return self.left or self.state in LEAVING

    @property
    def serves(self) -> bool:
        """Whether calls go to them."""
        return self.state is SliceState.ACTIVE and self.ready


class SliceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of one slice."""

    base: str
    spec: SliceSpec | None
    """None: no blueprint names it any more."""
    number: int = 0
    """Number of the blueprint's revision that last named it."""
    deployment: Deployment | None = None
    seen: Sequence[InstanceGroup] = ()
    retries: Mapping[str, Retries] = {}
    decision: SliceDecision | None = None
    unmet: tuple[str, ...] = ()
    """Slices that it needs and that have no active instance."""
    drained: frozenset[str] = frozenset()
    """Nodes that are being drained."""
    crowded: tuple[str, str] | None = None
    """The node that has all of its instances, and another one that accepts slices (`SliceCache.crowded_nodes`)."""
    alerts: Mapping[str, Alert] = {}
    """Alerts that have fired at least once, by name."""

    @property
    def wished(self) -> int:
        """The desired number of instances."""
        if self.spec is None:
            return 0
        scale = None if self.deployment is None or self.spec.autoscale is None else self.deployment.scale
        return self.spec.instances if scale is None else scale

    def is_wanted(self, seen: InstanceGroup) -> bool:
        """Return whether the instances match the blueprint: its version and settings, and not leaving."""
        if self.spec is None or seen.artifact != self.spec.artifact or seen.goes:
            return False
        return seen.settings == self.spec.settings


def total(some: Iterable[InstanceGroup]) -> int:
    """Return the number of instances in these groups."""
    return sum([one.count for one in some])


def is_ready(one: SliceInstance) -> bool:
    """Return whether the instance serves."""
    return one.state is SliceState.ACTIVE and one.ready


def slice_status(known: SliceFacts) -> SliceStatus:
    """Return the status of one slice."""
    spec, deployment = known.spec, known.deployment
    wanted = [one for one in known.seen if known.is_wanted(one)]
    there = total(wanted)
    others = total(one for one in known.seen if not one.goes) - there
    failed = total(one for one in known.seen if one.state is SliceState.FAILED)
    leaving = total(one for one in known.seen if one.goes) - failed
    serving = total(one for one in wanted if one.serves)
    calm = not others and not leaving and not failed and serving == there == known.wished
    phase = _phase(known, calm=calm, there=there)
    strategy = _strategy(known)
    stages = len(strategy.stages or USUAL_STAGES) if strategy.type is StrategyKind.CANARY else 0
    stage = deployment.stage + 1 if deployment is not None and deployment.phase is Phase.CANARY else 0
    return SliceStatus(
        base=known.base,
        artifact="" if spec is None else spec.artifact,
        previous="" if deployment is None else deployment.previous,
        phase=phase,
        step=None if deployment is None else deployment.phase,
        strategy=strategy.type,
        stage=stage if stage <= stages else 0,  # 0 after the last stage, on the way to all calls
        stages=stages,
        detail=_detail(known, phase, there=there, leaving=leaving + others + failed),
        wished=known.wished,
        ready=total(one for one in known.seen if one.serves),
        leaving=leaving,
        failed=failed,
        weights={} if deployment is None else dict(sorted(deployment.weights.items())),
        versions=_versions(known),
        needs=() if spec is None else spec.needs,
        reasons=known.decision.passed_over if known.decision is not None and known.decision.waiting else (),
        since=None if deployment is None else deployment.changed_at,
        rollout=None if deployment is None else _rollout(deployment, strategy),
        alerts=() if spec is None else tuple(_alert(rule, known.alerts.get(rule.name)) for rule in spec.alerts),
    )


def _alert(rule: AlertRule, found: Alert | None) -> AlertView:
    return AlertView(
        name=rule.name,
        metric=rule.metric,
        above=rule.above,
        below=rule.below,
        after=rule.after,
        clear=rule.clear,
        firing=found is not None and found.state is AlertState.FIRING,
        value=None if found is None else found.value,
        since=None if found is None else found.at,
        why="" if found is None else found.why,
        fired=0 if found is None else found.fired,
    )


def _rollout(deployment: Deployment, strategy: Strategy) -> RolloutView:
    control = deployment.control
    gate, canary = strategy.gate, strategy.type is StrategyKind.CANARY
    stages = (strategy.stages or USUAL_STAGES) if canary else ()
    return RolloutView(
        stages=tuple(StageView(weight=stage.weight, hold=stage.hold) for stage in stages),
        gate=GateView(max_error_rate=gate.max_error_rate, max_latency_ms=gate.max_latency_ms, min_calls=gate.min_calls)
        if canary
        else None,
        bake=strategy.bake,
        keep=strategy.keep,
        started_at=deployment.started_at,
        changed_at=deployment.changed_at,
        why=deployment.why,
        approval=strategy.approval,
        paused=control.paused,
        awaits_approval=control.awaiting,
        ordered=RolloutVerb.ABORT if control.abort else None if control.promote is None else RolloutVerb.PROMOTE,
        ordered_by=control.by,
        refused=control.answer,
        actions=possible(deployment),
    )


def _strategy(known: SliceFacts) -> Strategy:
    """Return the strategy of the upgrade in progress; otherwise that of the next one."""
    if known.deployment is not None and (known.spec is None or known.deployment.phase is not Phase.DONE):
        return known.deployment.strategy
    return Strategy() if known.spec is None else known.spec.strategy


def _phase(known: SliceFacts, *, calm: bool, there: int) -> BlueprintPhase:
    spec, deployment = known.spec, known.deployment
    if spec is None:
        return BlueprintPhase.REMOVING
    if deployment is None:
        return BlueprintPhase.CHANGING
    if deployment.phase is Phase.FAILED and deployment.number >= known.number:
        return BlueprintPhase.FAILED
    at_it = deployment.artifact == spec.artifact and deployment.settings == spec.settings
    if calm and at_it and deployment.phase is Phase.DONE:
        return BlueprintPhase.READY
    if (known.unmet and there) or _waiting(known, there) or _hold_reason(deployment):
        return BlueprintPhase.WAITING
    return BlueprintPhase.CHANGING


def _hold_reason(deployment: Deployment) -> str:
    """Return what a user must do before the rollout continues; empty: nothing."""
    control = deployment.control
    if control.paused:
        return f"paused by {control.by}; resume to continue, abort to roll back"
    if control.awaiting:
        return f"{deployment.why}; approve to continue, abort to roll back"
    return ""


def _waiting(known: SliceFacts, there: int) -> int:
    """Return the number of instances without a node."""
    return 0 if known.decision is None or there >= known.wished else known.decision.waiting


def _detail(known: SliceFacts, phase: BlueprintPhase, *, there: int, leaving: int) -> str:
    deployment = known.deployment
    if phase is BlueprintPhase.REMOVING:
        return f"{leaving} instance{'s are' if leaving != 1 else ' is'} left"
    if deployment is None:
        return "not processed by the leader yet"
    if phase is BlueprintPhase.FAILED:
        return deployment.why or _failures(known) or "its version was given up"
    if phase is BlueprintPhase.WAITING:
        return _why_waiting(known, there)
    if phase is BlueprintPhase.READY:
        return _stuck_drain(known) or _crowded(known)
    said = "; ".join(filter(None, [deployment.why or _BUSY.get(deployment.phase, ""), deployment.control.answer]))
    if deployment.phase is Phase.DONE:
        move = deployment.move
        moves = "" if move is None else f"one instance moves from {move.source} to {move.target}: {move.why}"
        said = (moves or _BUSY[Phase.DONE]) if deployment.number >= known.number else "not processed by the leader yet"
    return "; ".join(part for part in (said, _failures(known)) if part)


def _why_waiting(known: SliceFacts, there: int) -> str:
    parts = []
    count = _waiting(known, there)
    if count and known.decision is not None:
        why = "; ".join(f"{reason.subject}: {reason.why}" for reason in known.decision.passed_over[:3])
        parts.append(f"{count} instance{'s have' if count != 1 else ' has'} no node{f' ({why})' if why else ''}")
    if known.unmet:
        parts.append(f"it needs {' and '.join(known.unmet)}, which has no active instance")
    held = "" if known.deployment is None else _hold_reason(known.deployment)
    return "; ".join([*filter(None, [held]), *parts, *filter(None, [_failures(known)])])


def _stuck_drain(known: SliceFacts) -> str:
    on = sorted({seen.node for seen in known.seen if seen.node in known.drained})
    if not on or known.decision is None or not known.decision.waiting:
        return ""
    return f"instances on {', '.join(on[:5])} cannot leave: no other node accepts them"


def _crowded(known: SliceFacts) -> str:
    """Warn if all instances are on one node: they move one at a time, or never, and until then its loss affects all."""
    if known.crowded is None:
        return ""
    node, other = known.crowded
    why = _failures(known)
    return f"all of its instances are on node {node}, none on {other}{f' ({why})' if why else ''}"


def _failures(known: SliceFacts) -> str:
    """Return what last went wrong with the desired version."""
    if known.spec is None:
        return ""
    found = known.retries.get(known.spec.artifact)
    if found is None or not found.failures:
        return ""
    times = "once" if found.failures == 1 else f"{found.failures} times in a row"
    return f"failed {times}: {found.why}" if found.why else f"failed {times}"


def _versions(known: SliceFacts) -> tuple[VersionStatus, ...]:
    """Return the desired version first, even if it has no instances yet; then the others."""
    desired = "" if known.spec is None else known.spec.artifact
    artifacts = {seen.artifact for seen in known.seen} | ({desired} if desired else set())
    ordered = sorted(artifacts, key=lambda artifact: (artifact != desired, artifact))
    return tuple(_version(known, artifact) for artifact in ordered)


def _unknown(states: Iterable[SliceState]) -> list[SliceState]:
    return sorted(state for state in states if not state.is_known)


def _version(known: SliceFacts, artifact: str) -> VersionStatus:
    states: dict[SliceState, int] = {}
    on: dict[str, tuple[int, int]] = {}
    for one in known.seen:
        if one.artifact == artifact:
            states[one.state] = states.get(one.state, 0) + one.count
            there, ready = on.get(one.node, (0, 0))
            on[one.node] = there + one.count, ready + (one.count if one.serves else 0)
    named = sorted(on)[:NAMED]
    weights = {} if known.deployment is None else known.deployment.weights
    retries = known.retries.get(artifact)
    return VersionStatus(
        artifact=artifact,
        weight=weights.get(artifact, 0) if weights else None,
        ready=sum(ready for _, ready in on.values()),
        states={state.value: states[state] for state in (*SliceState, *_unknown(states)) if state in states},
        nodes=tuple(NodeCount(node=node, instances=on[node][0], ready=on[node][1]) for node in named),
        more_nodes=len(on) - len(named),
        failures=0 if retries is None else retries.failures,
        retry_at=0.0 if retries is None else retries.not_before,
        given_up=retries is not None and retries.given_up,
        why="" if retries is None else retries.why,
    )


# Blueprints

_WORST = (BlueprintPhase.FAILED, BlueprintPhase.WAITING, BlueprintPhase.CHANGING, BlueprintPhase.REMOVING)


def blueprint_status(
    name: str, blueprint: Blueprint | None, number: int, revision: int, slices: Sequence[SliceStatus]
) -> BlueprintStatus:
    """Return the status of a blueprint, or of a deleted one whose slices are still being removed."""
    phase, detail = _together(slices)
    if blueprint is None:
        phase = BlueprintPhase.REMOVING
        detail = f"it was deleted; {counted(len(slices), 'slice')} still to go"
    return BlueprintStatus(
        name=name,
        number=number,
        phase=phase,
        detail=detail,
        settled=phase is BlueprintPhase.READY,
        slices=tuple(slices),
        revision=revision,
    )


def damaged_status(status: BlueprintStatus, why: str) -> BlueprintStatus:
    """Mark a blueprint whose stored record is unreadable: nothing changes until it is readable again."""
    if not why:
        return status
    detail = f"damaged, and left unchanged: {why}; the last applied revision is shown: apply it again, or delete it"
    return msgspec.structs.replace(status, phase=BlueprintPhase.FAILED, detail=detail, settled=False)


def blueprint_view(name: str, blueprint: Blueprint, status: BlueprintStatus) -> BlueprintView:
    """Return the short form of a blueprint's status."""
    return BlueprintView(
        name=name,
        number=status.number,
        slices=blueprint.slices,
        phase=status.phase,
        detail=status.detail,
        instances=sum(one.wished for one in status.slices),
        ready=sum(min(one.ready, one.wished) for one in status.slices),
        settled=status.settled,
        revision=status.revision,
        firing=tuple(f"{one.base} {alert.name}" for one in status.slices for alert in one.alerts if alert.firing),
    )


def _together(slices: Sequence[SliceStatus]) -> tuple[BlueprintPhase, str]:
    for phase in _WORST:
        found = [one for one in slices if one.phase is phase]
        if found:
            first = found[0]
            more = f"; and {len(found) - 1} more {'is' if len(found) == 2 else 'are'} {phase.value}"
            detail = f"{first.base}: {first.detail or first.phase.value}{more if len(found) > 1 else ''}"
            return BlueprintPhase.CHANGING if phase is BlueprintPhase.REMOVING else phase, detail
    return BlueprintPhase.READY, "; ".join(f"{one.base}: {one.detail}" for one in slices if one.detail)


# Slices and endpoints


def slice_view(entry: Entry[SliceRecord]) -> SliceView:
    """Return the view of one slice key."""
    record = entry.value
    return SliceView(
        node=entry.parts["node"],
        artifact=entry.parts["artifact"],
        state=record.state,
        instances=tuple(
            SliceInstanceView(
                instance=number,
                state=one.state,
                ready=is_ready(one),
                since=one.since or record.timestamp,
                restarts=one.restarts,
                template=one.template,
                why=one.why,
            )
            for number, one in sorted(record.each().items())
        ),
        methods=record.methods,
        revision=entry.mod_revision,
    )


def endpoint_view(entry: Entry[Endpoint]) -> EndpointView:
    """Return the view of one endpoint."""
    return EndpointView(
        artifact=entry.parts["artifact"],
        method=entry.parts["method"],
        instance=entry.value.instance,
        node=entry.value.node_id,
        address=entry.value.address,
        idempotent=entry.value.idempotent,
        streams=entry.value.streams,
        revision=entry.mod_revision,
    )

"""What is next for hardware that is in burn-in or retires: a function of what is known of it."""

from __future__ import annotations

from msgspec.structs import replace

from hostler.engine.inventory.flow import BladeSnapshot, decide_blade, decide_rack
from hostler.model.inventory import Blade, Capacity, Condition, FlowStep, HardwareFlow, Rack
from hostler.model.node import DrainMode, Lifecycle, NodeRecord

NOTHING = Capacity(cpus=0, memory_mib=0)
RACK = Rack(name="r1")
MEMBER = NodeRecord(node="r1-b1", lifecycle=Lifecycle.ON_DUTY, capacity=NOTHING, moves=True, registered_at=1.0)
DAY = 86400.0


def blade(condition: Condition, *, enabled: bool = True) -> Blade:
    return Blade(name="b1", condition=condition, capacity=NOTHING, enabled=enabled)


def seen(condition: Condition, **fields: object) -> BladeSnapshot:
    return BladeSnapshot(node="r1-b1", **{"rack": RACK, "blade": blade(condition), **fields})  # type: ignore[arg-type]


def test_i48_a_burn_in_waits_for_the_agent_then_for_its_period_and_ends_operational() -> None:
    waiting = decide_blade(seen(Condition.BURN_IN), 10.0, DAY)
    assert (waiting.flow and waiting.flow.step, waiting.condition) == (FlowStep.WAITING, None)
    there = seen(Condition.BURN_IN, member=MEMBER, heartbeat="a@1", flow=waiting.flow)
    watching = decide_blade(there, 20.0, DAY)
    assert watching.flow is not None
    assert (watching.flow.step, watching.flow.since, watching.flow.until) == (FlowStep.WATCHING, 10.0, 20.0 + DAY)
    there = replace(there, flow=watching.flow)
    assert decide_blade(there, 30.0, DAY) == replace(decide_blade(there, 30.0, DAY), flow=watching.flow, condition=None)
    done = decide_blade(there, 20.0 + DAY, DAY)
    assert (done.flow, done.condition, done.why) == (None, Condition.OPERATIONAL, "1 d of burn-in without a fault")


def test_i48_every_fault_in_the_period_ends_it_and_a_fault_before_it_only_delays_it() -> None:
    flow = HardwareFlow(
        condition=Condition.BURN_IN,
        step=FlowStep.WATCHING,
        reason="",
        since=1.0,
        step_at=1.0,
        until=99.0,
        heartbeat="a@1",
    )
    sick = replace(MEMBER, refuses="the disk of its machines cannot be written")
    for member, heartbeat, why in (
        (MEMBER, "", "became unreachable"),
        (None, "", "became unreachable"),
        (sick, "a@1", "cannot be written"),
    ):
        step = decide_blade(seen(Condition.BURN_IN, member=member, heartbeat=heartbeat, flow=flow), 61.0, DAY)
        assert (step.condition, step.flow and step.flow.step) == (Condition.OUT_FOR_REPAIR, FlowStep.FAILED)
        assert why in step.why
        assert "1 min after its burn-in period began" in step.why
    for away in (replace(MEMBER, awaited=True), replace(MEMBER, lifecycle=Lifecycle.SHUTTING_DOWN)):
        step = decide_blade(seen(Condition.BURN_IN, member=away, flow=flow), 61.0, DAY)
        assert (step.condition, step.flow and step.flow.step) == (None, FlowStep.WAITING)
    delayed = decide_blade(seen(Condition.BURN_IN, member=sick, heartbeat="a@1"), 61.0, DAY)
    assert (delayed.condition, delayed.flow and delayed.flow.step) == (None, FlowStep.WAITING)
    off = decide_blade(seen(Condition.BURN_IN, blade=blade(Condition.BURN_IN, enabled=False)), 61.0, DAY)
    assert off.flow is not None
    assert off.flow.reason == "the blade is not enabled; enable it"


def test_i48_what_blocks_a_retirement_is_named() -> None:
    draining = replace(MEMBER, lifecycle=Lifecycle.DRAINING)
    empty = replace(MEMBER, lifecycle=Lifecycle.DECOMMISSIONED)
    one = ("acme/shop/web",)
    cases = (
        (
            {"member": replace(MEMBER, moves=False), "heartbeat": "a@1", "machines": one},
            "cannot hand over 1 machine (acme/shop/web)",
        ),
        ({"member": draining, "machines": one}, "is unreachable and has 1 machine"),
        (
            {"member": replace(draining, drain=DrainMode.STOP), "heartbeat": "a@1", "machines": one},
            "drained by stopping",
        ),
        (
            {"member": draining, "heartbeat": "a@1", "machines": one, "stuck": "no other node has room"},
            "no other node has room",
        ),
        ({"member": empty, "retained": ("web",)}, "keeps the disks of 1 retained machine (web)"),
        ({"machines": one}, "and no agent"),
    )
    for fields, why in cases:
        step = decide_blade(seen(Condition.RETIRING, **fields), 5.0, DAY)
        assert (step.condition, step.member, step.flow and step.flow.step) == (None, None, FlowStep.BLOCKED), fields
        assert step.flow is not None
        assert why in step.flow.reason
    for fields in ({"member": empty}, {}):
        assert decide_blade(seen(Condition.RETIRING, **fields), 5.0, DAY).condition is Condition.RETIRED
    begun = decide_blade(seen(Condition.RETIRING, member=MEMBER, heartbeat="a@1", machines=one), 5.0, DAY)
    assert begun.member is not None
    assert (begun.member.lifecycle, begun.member.drop_snapshots) == (Lifecycle.DRAINING, False)
    for fields in ({"member": draining, "heartbeat": "a@1", "machines": one}, {"member": empty, "slices": 1}):
        step = decide_blade(seen(Condition.RETIRING, **fields), 5.0, DAY)
        assert (step.condition, step.flow and step.flow.step) == (None, FlowStep.DRAINING)


def test_i48_a_rack_whose_blades_all_failed_stays_in_burn_in_and_says_why() -> None:
    rack = replace(RACK, condition=Condition.BURN_IN)
    step = decide_rack(rack, None, {"b1": (blade(Condition.OUT_FOR_REPAIR), None)}, 1.0)
    assert (step.condition, step.flow and step.flow.step) == (None, FlowStep.BLOCKED)
    assert "no blade of it can pass" in step.why

"""Repairs: what is proposed for what is amiss, and where performing it leads."""

from __future__ import annotations

import itertools
import random

import pytest
from dose import dose
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hostler.sim.hardware import (
    BladePlan,
    Connect,
    Crash,
    Cut,
    DevicePlan,
    Disconnect,
    Event,
    PduState,
    PowerOff,
    PowerOn,
    Proposal,
    RackPlan,
    Racks,
    Repair,
    Replace,
    Start,
    Stick,
    Stop,
    Target,
    perform,
    propose,
)
from hostler.sim.hardware.blade import Life

from .hardware_scene import events_on, rack, racks

PLAN = rack(blades=3)
TWO = rack(blades=2, pdus=2, tors=2)
ROUNDS = 10
"""More than any state takes: what feeds, what is fed, then two failures of what was fed."""


def proposals(hardware: Racks, plan: RackPlan = PLAN) -> tuple[Proposal, ...]:
    return propose(Target([plan]), hardware)


def after(*events: Event, plan: RackPlan = PLAN, wait: float = 0.0) -> tuple[Proposal, ...]:
    hardware = racks(plan)
    for now, event in enumerate(events):
        hardware.apply(event, now=now * 20.0)
    hardware.advance(len(events) * 20.0 + wait)
    return proposals(hardware, plan)


def told(found: tuple[Proposal, ...]) -> list[tuple[str, str, bool]]:
    return [(each.text, each.reason, each.automatic) for each in found]


def repaired(hardware: Racks, target: Target) -> None:
    """Perform all that is proposed, let time pass, and look again, until nothing is proposed and nothing under way."""
    for _ in range(ROUNDS):
        found = propose(target, hardware)
        for proposal in found:
            for event in perform(proposal):
                hardware.apply(event, now=hardware._now)
        if not found and not under_way(hardware):
            return
        hardware.advance(hardware._now + 10.0)
    raise AssertionError(f"still amiss: {list(hardware.amiss)}; proposed: {told(propose(target, hardware))}")


def under_way(hardware: Racks) -> bool:
    return any(hardware.blade(each).life in (Life.BOOTING, Life.STOPPING) for each in hardware.blades())


# The rules


def test_nothing_is_proposed_where_all_works() -> None:
    assert after() == ()


@pytest.mark.parametrize(
    ("events", "text", "reason", "automatic"),
    [
        ([PowerOff("r1/pdu1")], "power on pdu pdu1 in rack r1", "it should be on, but is off", True),
        ([Cut("r1/pdu1")], "ask a human: restore the feed of pdu pdu1 in rack r1", "it has no feed", False),
        ([Stick("r1/pdu1")], "ask a human: fix pdu pdu1 in rack r1", "it ignores commands", False),
        (
            [Stick("r1/pdu1", at=False)],
            "ask a human: fix pdu pdu1 in rack r1",
            "it ignores commands, and it is off",
            False,
        ),
        (
            [PowerOff("r1/b3")],
            "power on port 3 of pdu1 for blade b3 in rack r1",
            "port 3 of pdu1 should be on, but is off",
            True,
        ),
        (
            [Stick("r1/pdu1:3", at=False)],
            "ask a human: fix the power connection of blade b3 in rack r1",
            "port 3 of pdu1 is stuck at off",
            False,
        ),
        (
            [Stick("r1/pdu1:3")],
            "ask a human: fix the power connection of blade b3 in rack r1",
            "port 3 of pdu1 is stuck at on",
            False,
        ),
        (
            [Cut("r1/pdu1:3")],
            "ask a human: fix the power connection of blade b3 in rack r1",
            "the cable in port 3 of pdu1 is unplugged",
            False,
        ),
        (
            [Cut("r1/pdu1:4")],
            "ask a human: fix the power connection of tor tor1 in rack r1",
            "the cable in port 4 of pdu1 is unplugged",
            False,
        ),
        (
            [Disconnect("r1/b2")],
            "reconnect blade b2 in rack r1 to port 2 of tor1",
            "port 2 of tor1 should be on, but is off",
            True,
        ),
        (
            [Cut("r1/tor1:2")],
            "ask a human: fix the network connection of blade b2 in rack r1",
            "the cable in port 2 of tor1 is unplugged",
            False,
        ),
        ([Cut("r1/tor1")], "ask a human: fix the uplink of tor tor1 in rack r1", "its uplink is down", False),
        ([Stick("r1/tor1")], "ask a human: fix tor tor1 in rack r1", "it ignores commands", False),
        ([Stop("r1/b1")], "start blade b1 in rack r1", "it has power, but is stopped", True),
        ([Crash("r1/b1")], "restart blade b1 in rack r1", "it failed; its power is switched off and on", True),
    ],
)
def test_each_trouble_has_one_proposal_with_its_reason(
    events: list[Event], text: str, reason: str, automatic: bool
) -> None:
    assert told(after(*events)) == [(text, reason, automatic)]


def test_a_blade_that_fails_a_second_time_is_replaced() -> None:
    hardware = racks()
    hardware.apply(Crash("r1/b1", lasting=True), now=0.0)
    (first,) = proposals(hardware)
    assert (first.kind, perform(first)) == ("restart", (PowerOff("r1/pdu1:1"), PowerOn("r1/pdu1:1")))
    for event in perform(first):
        hardware.apply(event, now=1.0)
    assert proposals(hardware) == (), "it boots"
    hardware.advance(10.0)
    (second,) = proposals(hardware)
    assert told((second,)) == [
        ("ask a human: replace blade b1 in rack r1", "it failed 2 times; restarting did not help", False)
    ]
    assert perform(second) == (Replace("r1/b1"),)
    hardware.apply(Replace("r1/b1"), now=11.0)
    hardware.advance(20.0)
    assert hardware.blade("r1/b1").working
    assert hardware.blade("r1/b1").serial == 2


def test_a_failure_of_long_ago_does_not_count() -> None:
    hardware = racks()
    for now in (0.0, 5000.0):
        hardware.apply(Crash("r1/b1"), now=now)
        (found,) = proposals(hardware)
        assert found.kind == "restart"
        for event in perform(found):
            hardware.apply(event, now=now)


def test_a_blade_whose_power_cannot_be_switched_is_restarted_by_hand() -> None:
    hardware = racks()
    hardware.apply(Stick("r1/pdu1:1"), now=0.0)
    hardware.apply(Crash("r1/b1"), now=1.0)
    found = proposals(hardware)
    assert told(found)[1] == (
        "ask a human: restart blade b1 in rack r1",
        "it failed, and its power cannot be switched: port 1 of pdu1 is stuck",
        False,
    )
    assert perform(found[1]) == (Repair("r1/b1"),)


def test_of_two_pdus_only_the_one_that_feeds_is_switched_for_a_restart() -> None:
    hardware = racks(TWO)
    hardware.apply(PowerOff("r1/pdu2:1"), now=0.0)
    hardware.apply(Crash("r1/b1"), now=1.0)
    on, restart = proposals(hardware, TWO)
    assert perform(on) == (PowerOn("r1/pdu2:1"),)
    assert perform(restart) == (PowerOff("r1/pdu1:1"), PowerOn("r1/pdu1:1"))


def test_what_follows_from_something_else_is_not_proposed_and_what_stands_above_comes_first() -> None:
    hardware = racks(rack(blades=3), rack("r2"))
    for event in (Crash("r1/b2"), Disconnect("r1/b1"), Cut("r2/tor1"), PowerOff("r2/pdu1"), Stick("r1/pdu1")):
        hardware.apply(event, now=0.0)
    found = propose(Target([rack(), rack("r2")]), hardware)
    assert [each.component for each in found] == ["r1/pdu1", "r2/pdu1", "r2/tor1", "r1/tor1:1", "r1/b2"]


def test_ports_of_what_is_stuck_are_not_asked_to_follow() -> None:
    hardware = racks()
    for event in (PowerOff("r1/b1"), Disconnect("r1/b2"), Stick("r1/pdu1"), Stick("r1/tor1")):
        hardware.apply(event, now=0.0)
    assert [each.component for each in proposals(hardware)] == ["r1/pdu1", "r1/tor1"]


def test_the_same_trouble_has_the_same_id_and_it_can_stand_in_a_url() -> None:
    found = [*after(Cut("r1/pdu1:3")), *after(Crash("r1/b1")), *after(Stick("r1/tor1"))]
    assert [each.id for each in found] == ["fix~r1~pdu1~3", "restart~r1~b1", "fix~r1~tor1"]
    assert after(Cut("r1/pdu1:3"), wait=99.0) == after(Cut("r1/pdu1:3"))


def test_nothing_is_proposed_for_what_is_not_on_duty() -> None:
    def duty(**off: bool) -> RackPlan:
        return RackPlan(
            name="r1",
            pdus=(DevicePlan(name="pdu1", ports=PLAN.pdus[0].ports, on_duty=off.get("pdu1", True)),),
            tors=(DevicePlan(name="tor1", ports=PLAN.tors[0].ports, on_duty=off.get("tor1", True)),),
            blades=tuple(BladePlan(name=each.name, on_duty=off.get(each.name, True)) for each in PLAN.blades),
            on_duty=off.get("rack", True),
        )

    hardware = racks()
    for event in (Crash("r1/b1"), PowerOff("r1/b2"), Disconnect("r1/b3"), Stick("r1/pdu1:4"), Stick("r1/tor1")):
        hardware.apply(event, now=0.0)

    def about(plan: RackPlan) -> list[str]:
        return [each.component for each in propose(Target([plan]), hardware)]

    assert about(duty()) == ["r1/tor1", "r1/pdu1:2", "r1/pdu1:4", "r1/b1"]
    assert about(duty(b1=False, b2=False)) == ["r1/tor1", "r1/pdu1:4"]
    assert about(duty(tor1=False)) == ["r1/pdu1:2"], "no blade can be reached"
    assert about(duty(pdu1=False)) == [], "no blade can have power"
    assert about(duty(rack=False)) == []
    assert propose(Target([]), hardware) == ()


# Where it leads


BITS = list(itertools.product((True, False), repeat=3))


def brought(hardware: Racks, address: str, *, on: bool, joined: bool, stuck: bool) -> None:
    """Make a pdu, tor or cable so."""
    off = Disconnect(address) if address.startswith("r1/tor1:") else PowerOff(address)
    for event, wanted in ((off, not on), (Cut(address), not joined), (Stick(address), stuck)):
        if wanted:
            hardware.apply(event, now=0.0)


def test_from_every_state_of_a_pdu_its_cables_and_a_tor_repairs_lead_back_to_work() -> None:
    """The whole product: 8 pdu × 8 cable of the blade × 8 cable of the tor × 4 tor; the network cable's 8 by turns."""
    plan = rack(blades=1)
    target = Target([plan])
    links = itertools.cycle(BITS)
    for pdu, feed, uplink, (joined, stuck) in itertools.product(
        BITS, BITS, BITS, itertools.product((True, False), repeat=2)
    ):
        hardware = racks(plan)
        # What is wired to it first: a stuck pdu would let none of its ports be switched.
        for address, bits in (("r1/tor1:1", next(links)), ("r1/pdu1:1", feed), ("r1/pdu1:2", uplink), ("r1/pdu1", pdu)):
            brought(hardware, address, on=bits[0], joined=bits[1], stuck=bits[2])
        brought(hardware, "r1/tor1", on=True, joined=joined, stuck=stuck)
        assert hardware.pdu("r1/pdu1") == PduState(on=pdu[0], joined=pdu[1], stuck=pdu[2])
        repaired(hardware, target)
        assert not hardware.amiss


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("life", list(Life))
def test_from_every_state_of_a_blade_repairs_lead_back_to_work(life: Life, broken: bool) -> None:
    plan, blade = rack(blades=1), "r1/b1"
    cycle = [PowerOff(blade), *([Crash(blade, lasting=True)] if broken else []), PowerOn(blade)]
    ways: dict[Life, list[Event | float]] = {
        Life.UP: [],
        Life.BOOTING: [*cycle],
        Life.STOPPING: [*cycle, Stop(blade)],
        Life.DOWN: [*cycle, Stop(blade), 5.0],
        Life.FAULTED: [Crash(blade, lasting=broken)],
    }
    for failures, stuck, on in itertools.product((0, 1, 2), (True, False), (True, False)):
        hardware, now = racks(plan), 0.0
        way = [*[Crash(blade), PowerOff(blade), PowerOn(blade), 10.0] * failures, *ways[life]]
        for step in way:
            if isinstance(step, float):
                hardware.advance(now := now + step)
            else:
                hardware.apply(step, now=now)
        assert hardware.blade(blade).life is life
        assert hardware.blade(blade).broken is (broken and life is not Life.UP)
        if stuck:
            hardware.apply(Stick("r1/pdu1:1", at=on), now=now)
        repaired(hardware, Target([plan]))
        assert not hardware.amiss


@settings(max_examples=dose(test=100, full=4000), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_from_any_state_that_any_sequence_leads_to_repairs_lead_back_to_work(data: st.DataObject) -> None:
    hardware = racks(TWO, seed=data.draw(st.integers(0, 99)))
    events, now = list(events_on(hardware)), 0.0
    for pick, wait in data.draw(st.lists(st.tuples(st.sampled_from(events), st.integers(0, 9)), min_size=3)):
        now += wait
        hardware.apply(pick, now=now)
    repaired(hardware, Target([TWO]))
    assert not hardware.amiss


def test_where_nobody_has_to_go_there_commands_are_enough() -> None:
    soft: list[type] = [PowerOff, PowerOn, Connect, Disconnect, Start, Stop, Crash]
    hardware, rng = racks(TWO), random.Random(3)
    target = Target([TWO])
    orders = [event for event in events_on(hardware) if type(event) in soft and not getattr(event, "lasting", False)]
    for _ in range(50):
        hardware = racks(TWO)
        for _ in range(5):
            event = rng.choice(orders)
            if isinstance(event, Crash) and hardware.blade(event.on).failures:
                continue  # A second failure needs hands.
            hardware.apply(event, now=hardware._now + rng.random() * 9)
        for _ in range(ROUNDS):
            found = propose(target, hardware)
            assert all(each.automatic for each in found)
            for event in itertools.chain.from_iterable(map(perform, found)):
                hardware.apply(event, now=hardware._now)
            hardware.advance(hardware._now + 10.0)
        assert not hardware.amiss

"""Racks: what is done to one component, and what follows for the others."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from dose import dose, part
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hostler.engine.inventory.inventory_file import read_inventory
from hostler.errors import Invalid, NotFound
from hostler.sim.hardware import (
    BladePlan,
    BladeState,
    Change,
    Connect,
    Crash,
    Cut,
    DevicePlan,
    Disconnect,
    Event,
    Join,
    PowerOff,
    PowerOn,
    RackPlan,
    Racks,
    Replace,
    Start,
    Stick,
    Stop,
    Unstick,
    address_of,
    node_of,
    plans_of,
)
from hostler.sim.hardware.blade import Life

from .hardware_scene import events_on, everything, rack, racks, settle

TWO = rack(blades=2, pdus=2, tors=2)
COMMANDS = (PowerOff, PowerOn, Connect, Disconnect)


def told(changes: list[Change]) -> list[str]:
    return [change.text for change in changes]


# Any sequence


def powers(racks: Racks, item: str) -> bool:
    """From the states of pdus and cables alone, as somebody would who walks along the wires."""
    wiring = racks.wiring("r1")
    return any(
        racks.pdu(cable.source).on
        and racks.pdu(cable.source).joined
        and racks.cable(cable.address).on
        and racks.cable(cable.address).joined
        for cable in wiring.power_to(item)
    )


def connects(racks: Racks, item: str) -> bool:
    return any(
        powers(racks, cable.source)
        and racks.tor(cable.source).joined
        and racks.cable(cable.address).on
        and racks.cable(cable.address).joined
        for cable in racks.wiring("r1").network_to(item)
    )


def check(racks: Racks, before: dict[str, object], changes: list[Change], event: Event | None) -> None:
    after = everything(racks)
    replayed = dict(before)
    for n, change in enumerate(changes):
        assert replayed[change.component] == change.before
        replayed[change.component] = change.after
        assert change.why
        assert change.cause in ("", "asked", *(earlier.component for earlier in changes[:n]))
    assert replayed == after, "the changes tell all that changed"
    assert list(racks.amiss) == list(dict.fromkeys(racks.amiss))
    assert set(racks.amiss) == {address for address, state in after.items() if not state.sound}  # type: ignore[attr-defined]
    ticking = {(address, epoch) for _, _, address, epoch in racks._timers}
    live = [due for due, _, address, epoch in racks._timers if after[address].epoch == epoch]  # type: ignore[attr-defined]
    assert racks.next_at() == min(live, default=None), "a timer of an older epoch wakes nobody"
    for tor in ("r1/tor1", "r1/tor2"):
        assert racks.tor(tor).powered is powers(racks, tor)
    for address in racks.blades():
        blade = racks.blade(address)
        assert (blade.powered, blade.connected) == (powers(racks, address), connects(racks, address))
        assert blade.powered or blade.life is Life.DOWN, "a blade without power runs nothing"
        if blade.life in (Life.BOOTING, Life.STOPPING):
            assert (address, blade.epoch) in ticking, "what is under way comes to an end"
        old = before[address]
        assert isinstance(old, BladeState)
        if old.runs and blade.powered and not (isinstance(event, Stop | Crash | Replace) and event.on == address):
            assert blade.runs, "isolated or not, its work goes on"
    if isinstance(event, COMMANDS):
        stuck = [address for address, state in before.items() if getattr(state, "stuck", False)]
        for address in stuck:
            assert after[address].on is before[address].on  # type: ignore[attr-defined]


@settings(max_examples=dose(test=120, full=4000), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_after_any_sequence_all_is_as_the_wires_have_it(data: st.DataObject) -> None:
    hardware = racks(TWO, seed=data.draw(st.integers(0, 99)), cold=data.draw(st.booleans()))
    events, now = list(events_on(hardware)), 0.0
    for pick, wait in data.draw(
        st.lists(st.tuples(st.sampled_from(events), st.integers(0, 9)), min_size=5, max_size=40)
    ):
        now += wait
        before = everything(hardware)
        check(hardware, before, hardware.advance(now), None)
        before = everything(hardware)
        check(hardware, before, hardware.apply(pick, now=now, cause="asked"), pick)
    before = everything(hardware)
    settle(hardware)
    assert hardware.next_at() is None
    assert not any(hardware.blade(each).life in (Life.BOOTING, Life.STOPPING) for each in hardware.blades())


# What holds by name


def test_a_pdu_that_fails_takes_its_blades_and_its_tor_with_it_and_each_says_why() -> None:
    hardware = racks()
    changes = hardware.apply(Cut("r1/pdu1"), now=2.0, cause="fault-1")
    assert told(changes) == [
        "r1/pdu1: working → no feed: its feed was lost",
        "r1/tor1: working → no power: r1/pdu1: its feed was lost",
        "r1/b1: working → off, disconnected: r1/pdu1: its feed was lost",
        "r1/b2: working → off, disconnected: r1/pdu1: its feed was lost",
        "r1/b3: working → off, disconnected: r1/pdu1: its feed was lost",
    ]
    assert [change.cause for change in changes] == ["fault-1", *["r1/pdu1"] * 4]
    hardware.apply(Join("r1/pdu1"), now=3.0)
    booted = hardware.advance(20.0)
    assert [change.component for change in booted if change.after and change.after.word == "working"]
    assert all(8.0 <= change.at <= 11.0 for change in booted)
    assert not hardware.amiss


def test_a_blade_with_two_pdus_survives_the_loss_of_one() -> None:
    hardware = racks(TWO)
    assert told(hardware.apply(Cut("r1/pdu1"), now=1.0)) == ["r1/pdu1: working → no feed: its feed was lost"]
    assert hardware.blade("r1/b1").working
    assert len(hardware.apply(PowerOff("r1/pdu2"), now=2.0)) == 1 + 2 + 2
    assert hardware.blade("r1/b1").word == "off"


def test_a_tor_without_power_isolates_its_blades_and_their_work_goes_on() -> None:
    hardware = racks()
    feed = "r1/pdu1:4"
    changes = hardware.apply(PowerOff(feed), now=1.0, cause="hand")
    assert [(change.component, change.cause) for change in changes] == [
        (feed, "hand"),
        ("r1/tor1", feed),
        *((f"r1/b{n}", "r1/tor1") for n in (1, 2, 3)),
    ]
    assert all(hardware.blade(each).word == "isolated" and hardware.blade(each).runs for each in hardware.blades())
    hardware.apply(PowerOn(feed), now=2.0)
    assert not hardware.amiss
    assert hardware.next_at() is None, "nobody had to boot"


def test_a_stuck_pdu_does_not_obey_and_neither_do_its_ports() -> None:
    hardware = racks()
    hardware.apply(Stick("r1/pdu1"), now=1.0)
    for order, told_why in (
        (PowerOff("r1/pdu1"), "r1/pdu1: switched off, without effect: it is stuck, and stays on"),
        (PowerOff("r1/pdu1:1"), "r1/pdu1:1: switched off, without effect: r1/pdu1 is stuck"),
        (PowerOff("r1/b1"), "r1/pdu1:1: switched off, without effect: r1/pdu1 is stuck"),
    ):
        changes = hardware.apply(order, now=2.0)
        assert told(changes) == [told_why]
        assert not changes[0].moved
    assert all(hardware.blade(each).working for each in hardware.blades())
    hardware.apply(Unstick("r1/pdu1"), now=3.0)
    assert hardware.apply(PowerOff("r1/b1"), now=4.0)[-1].text.startswith("r1/b1: working → off")
    assert hardware.apply(PowerOff("r1/b1"), now=4.0) == [], "it is off already"


def test_a_cable_that_sticks_off_keeps_its_blade_dark_until_it_is_mended() -> None:
    hardware = racks()
    hardware.apply(Stick("r1/pdu1:2", at=False), now=1.0)
    assert hardware.blade("r1/b2").word == "off"
    assert not hardware.apply(PowerOn("r1/b2"), now=2.0)[0].moved
    hardware.apply(Unstick("r1/pdu1:2"), now=3.0)
    assert hardware.blade("r1/b2").word == "off", "it is where it was"
    hardware.apply(PowerOn("r1/b2"), now=4.0)
    assert hardware.blade("r1/b2").word == "booting"


def test_a_timer_from_before_a_power_cut_does_not_end_the_boot_after_it() -> None:
    hardware = racks(cold=True)
    first = hardware.next_at()
    assert first is not None
    hardware.apply(PowerOff("r1/pdu1"), now=first - 0.5)
    hardware.apply(PowerOn("r1/pdu1"), now=first - 0.4)
    hardware.advance(first + 4.5)
    assert {hardware.blade(each).word for each in hardware.blades()} == {"booting"}
    assert (hardware.next_at() or 0.0) >= first + 4.6
    hardware.advance(first + 8.0)
    assert {hardware.blade(each).word for each in hardware.blades()} == {"working"}


def test_what_was_due_happens_first_and_at_its_own_instant() -> None:
    hardware = racks(rack(blades=1), cold=True)
    due = hardware.next_at()
    changes = hardware.apply(Crash("r1/b1"), now=100.0)
    assert [(change.at, change.after.word if change.after else "") for change in changes] == [
        (due, "working"),
        (100.0, "faulted"),
    ]


def test_a_blade_that_is_stopped_stays_so_until_it_is_started_or_its_power_returns() -> None:
    hardware = racks()
    hardware.apply(Stop("r1/b1"), now=0.0)
    assert hardware.blade("r1/b1").word == "stopping"
    hardware.advance(1000.0)
    assert hardware.blade("r1/b1").word == "powered"
    hardware.apply(Start("r1/b1"), now=1000.0)
    hardware.advance(1008.0)
    assert hardware.blade("r1/b1").working


def test_what_cannot_be_done_is_refused_before_anything_happens() -> None:
    hardware = racks(rack(), rack("r2", tors_fed=False))
    before = everything(hardware)
    for event, error, message in (
        (PowerOff("r1/tor1:1"), Invalid, "r1/tor1:1: PowerOff does not apply to a cable; name a pdu, a cable of"),
        (Connect("r1/pdu1:1"), Invalid, "Connect does not apply to a cable"),
        (Connect("r1"), Invalid, "Connect does not apply to a rack"),
        (Cut("r1"), Invalid, "r1: Cut does not apply to a rack; name a pdu, a tor or a cable"),
        (Cut("r1/b1"), Invalid, "Cut does not apply to a blade"),
        (Stick("r1/b1"), Invalid, "Stick"),
        (Crash("r1/pdu1"), Invalid, "r1/pdu1: Crash does not apply to a pdu; name a blade or a rack"),
        (Replace("r1"), Invalid, "Replace"),
        (PowerOff("r2/tor1"), Invalid, "a blade or tor that a pdu feeds"),
        (Cut("r3/pdu1"), NotFound, "rack r3: no such rack; there are r1, r2"),
        (Cut("r1/pdu2"), NotFound, "r1/pdu2: no such component; rack r1 has r1/pdu1, r1/tor1"),
    ):
        with pytest.raises(error) as caught:
            hardware.apply(event, now=5.0)
        assert message in str(caught.value)
    assert everything(hardware) == before
    hardware.advance(6.0)
    with pytest.raises(Invalid, match="time went back"):
        hardware.apply(Cut("r1/pdu1"), now=5.0)
    with pytest.raises(Invalid, match="r1/pdu1: not a blade"):
        hardware.blade("r1/pdu1")


def test_a_rack_is_switched_by_its_pdus_and_its_blades_are_reached_through_it() -> None:
    hardware = racks(TWO)
    hardware.apply(PowerOff("r1"), now=1.0)
    assert not any(hardware.blade(each).powered for each in hardware.blades())
    hardware.apply(PowerOn("r1"), now=2.0)
    hardware.advance(20.0)
    hardware.apply(Crash("r1"), now=20.0)
    assert {hardware.blade(each).word for each in hardware.blades()} == {"faulted"}


def test_what_to_cut_to_take_power_or_network() -> None:
    hardware = racks(TWO)
    assert hardware.power_of("r1") == hardware.power_of("R1") == ("r1/pdu1", "r1/pdu2")
    assert hardware.power_of("r1/b2") == ("r1/pdu1:2", "r1/pdu2:2")
    assert hardware.power_of("r1/tor2") == ("r1/pdu1:4", "r1/pdu2:4")
    assert hardware.network_of("r1/b2") == ("r1/tor1:2", "r1/tor2:2")
    assert hardware.network_of("r1") == ("r1/tor1", "r1/tor2")
    assert hardware.network_of("r1/tor1:1") == ("r1/tor1:1",)
    for nothing in ("r1/pdu1", "r1/pdu1:1"):
        with pytest.raises(Invalid, match="has no network that could be cut"):
            hardware.network_of(nothing)
    for each in hardware.power_of("r1/b2"):
        hardware.apply(Cut(each), now=1.0)
    assert [hardware.blade(each).word for each in hardware.blades()] == ["working", "off"]


def test_a_rack_whose_wires_nobody_knows_has_power_and_network() -> None:
    hardware = racks(RackPlan(name="r1", blades=(BladePlan(name="b1"),)))
    assert hardware.blade("r1/b1").working
    partly = RackPlan(
        name="r1",
        pdus=(DevicePlan(name="pdu1", ports={1: "b1", 2: "nobody", 3: "pdu1"}),),
        blades=(BladePlan(name="b1"), BladePlan(name="b2")),
    )
    hardware = racks(partly)
    assert [hardware.blade(each).word for each in hardware.blades()] == ["working", "off"]
    with pytest.raises(Invalid, match="r1/b1: two components of the rack have this name"):
        racks(RackPlan(name="r1", blades=(BladePlan(name="b1"), BladePlan(name="b1"))))


def test_racks_are_made_of_an_inventory() -> None:
    inventory = read_inventory("""
        regions:
          - name: eu
            enabled: false
            zones:
              - name: eu-1
                racks:
                  - name: R1
                    pdus: [{name: pdu1, ports: 8}]
                    tors: [{name: tor1, ports: 8}]
                    blades: {count: 3, prefix: B, cpus: 4, memory: 8GiB}
        racks:
          - name: r2
            pdus: [{name: pdu1, ports: 8}, {name: pdu2, ports: {1: b1, 2: tor1}}]
            tors: [{name: tor1, ports: 8}]
            blades: {count: 2, cpus: 4, memory: 8GiB}
    """)
    plans = plans_of(inventory)
    assert [(plan.name, plan.on_duty) for plan in plans] == [("r1", False), ("r2", True)]
    hardware = racks(*plans)
    assert list(hardware.blades()) == ["r1/b1", "r1/b2", "r1/b3", "r2/b1", "r2/b2"]
    assert [node for node, _, _ in inventory.nodes()] == [node_of(each) for each in hardware.blades()]
    assert [address_of(node_of(each)) for each in hardware.blades()] == list(hardware.blades())
    hardware.apply(Cut("R2/PDU1"), now=1.0)
    assert [hardware.blade(each).word for each in ("r2/b1", "r2/b2")] == ["working", "off"]


# Other racks


def test_what_is_taken_out_is_gone_what_stays_keeps_its_state_and_a_new_blade_boots() -> None:
    hardware = racks(rack(blades=3), rack("r2"), cold=True)
    hardware.advance(10.0)
    hardware.apply(Crash("r1/b1"), now=10.0)
    changes = hardware.revise([rack(blades=4)], now=11.0)
    assert [change.component for change in changes if change.after is None] == [
        *rack_addresses("r2"),
        "r1/pdu1:4",  # It led to the tor, and leads to a blade now.
    ]
    assert hardware.blade("r1/b1").word == "faulted"
    assert hardware.blade("r1/b4").word == "booting"
    assert hardware.racks() == ("r1",)
    assert hardware.revise([rack(blades=4)], now=12.0) == []
    hardware.advance(30.0)
    assert list(hardware.amiss) == ["r1/b1"]


def rack_addresses(name: str) -> list[str]:
    return list(racks(rack(name)).wiring(name).kinds)


def test_a_blade_that_comes_in_the_place_of_another_hears_none_of_its_timers() -> None:
    hardware = racks(rack(blades=2), cold=True)
    first = hardware.blade("r1/b2")
    hardware.revise([rack(blades=1)], now=1.0)
    with pytest.raises(NotFound):
        hardware.blade("r1/b2")
    hardware.revise([rack(blades=2)], now=4.9)
    second = hardware.blade("r1/b2")
    assert (second.serial, second.word) == (first.serial + 1, "booting")
    hardware.advance(9.8)
    assert hardware.blade("r1/b2").word == "booting", "5 ticks are not over"
    hardware.advance(12.9)
    assert hardware.blade("r1/b2").word == "working"


def test_a_blade_that_is_wired_to_nothing_any_more_goes_dark() -> None:
    hardware = racks(TWO)
    plan = RackPlan(
        name="r1",
        pdus=tuple(DevicePlan(name=f"pdu{n}", ports={1: "b1", 3: "tor1", 4: "tor2"}) for n in (1, 2)),
        tors=TWO.tors,
        blades=TWO.blades,
    )
    hardware.revise([plan], now=1.0)
    assert [hardware.blade(each).word for each in hardware.blades()] == ["working", "off"]


# Determinism and cost

PROGRAM = """
import sys
from sim.test_hardware import campaign
print(campaign(int(sys.argv[1])))
"""


def campaign(seed: int) -> str:
    """What a few hundred random events did, to the byte."""
    rng, digest = random.Random(seed), hashlib.sha256()
    hardware = racks(rack(pdus=2), rack("r2"), seed=seed, cold=True)
    events = [*events_on(hardware, "r1"), *events_on(hardware, "r2")]
    now = 0.0
    for _ in range(400):
        now += rng.random() * 5
        for change in hardware.apply(rng.choice(events), now=now):
            digest.update(f"{change!r}\n".encode())
    return digest.hexdigest()


def test_the_same_seed_gives_the_same_changes_in_any_process() -> None:
    assert campaign(1) != campaign(2)
    for hash_seed in part(("0", "1"), test=1):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        tests = Path(__file__).parent.parent
        environment["PYTHONPATH"] = os.pathsep.join([str(tests), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, "1"], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == campaign(1)


def calls(hardware: Racks, event: Event, now: float) -> int:
    """How many functions one event and the time after it take."""
    count = 0

    def seen(*_: object) -> None:
        nonlocal count
        count += 1

    sys.setprofile(seen)
    try:
        hardware.apply(event, now=now)
        hardware.next_at()
        hardware.advance(now + 20.0)
    finally:
        sys.setprofile(None)
    return count


def test_a_fault_costs_what_it_touches_and_not_what_there_is() -> None:
    few = racks(*(rack(f"r{n}", blades=20) for n in range(5)))
    many = racks(*(rack(f"r{n}", blades=20) for n in range(500)))
    for event in (Cut("r1/pdu1"), Join("r1/pdu1"), Crash("r1/b3"), Cut("r1/tor1:4")):
        assert calls(few, event, few._now) == calls(many, event, many._now)
    cable, pdu = calls(many, PowerOff("r2/pdu1:1"), many._now), calls(many, PowerOff("r3/pdu1"), many._now)
    assert cable * 5 < pdu, "a port costs less than all of them"

"""The machines of blades, pdus, tors and cables, in every state that they can be in."""

from __future__ import annotations

import itertools
import random
from collections import deque
from typing import TypeAlias

import msgspec
import pytest

from hostler.sim.hardware import (
    BladePlan,
    BladeState,
    CableState,
    DevicePlan,
    PduState,
    RackPlan,
    Racks,
    TorState,
    blade,
    switch,
)
from hostler.sim.hardware.blade import BOOT_TICKS, ENOUGH, PROVEN, STOP_TICKS, Due, Life, Supply, Timer
from hostler.sim.hardware.event import (
    Connect,
    Crash,
    Cut,
    Disconnect,
    Event,
    Join,
    PowerOff,
    PowerOn,
    Repair,
    Replace,
    Start,
    Stick,
    Stop,
    Unstick,
)

from .hardware_scene import clone, events_on, rack, racks

B = "r1/b1"
SUPPLIES = [Supply(powered, connected) for powered in (True, False) for connected in (True, False)]
ORDERS = [Crash(B), Crash(B, lasting=True), Start(B), Stop(B), Repair(B), Replace(B)]
SWITCH_EVENTS = [
    PowerOff(B), PowerOn(B), Disconnect(B), Connect(B), Cut(B), Join(B), Stick(B), Stick(B, True), Stick(B, False),
    Unstick(B), Repair(B), Replace(B),
]  # fmt: skip


class Reached(msgspec.Struct, frozen=True):
    """A blade, and whether a timer of its epoch is set."""

    state: BladeState
    ticking: bool


def walk_blade(at: Reached, event: blade.BladeEvent) -> Reached:
    before = at.state
    after, effects = blade.step(before, event, now=100.0, rng=random.Random(1))
    timers = [effect for effect in effects if isinstance(effect, Timer)]
    assert all(timer.epoch == after.epoch and timer.due > 100.0 for timer in timers), "a timer is of its own epoch"
    assert len(timers) <= 1
    assert after.epoch >= before.epoch
    assert after.life is before.life or after.epoch > before.epoch, "each change of life is an epoch of its own"
    kept = at.ticking and after.epoch == before.epoch and not isinstance(event, Due)
    # Epochs and serials only grow; what a blade does depends on neither.
    return Reached(msgspec.structs.replace(after, epoch=5, serial=1), ticking=bool(timers) or kept)


def blade_moves(at: Reached) -> list[blade.BladeEvent]:
    return [*SUPPLIES, *ORDERS, *([Due(at.state.epoch)] if at.ticking else [])]


def all_blades() -> dict[Reached, list[tuple[blade.BladeEvent, Reached]]]:
    """Every state of a blade that any sequence of events leads to, and where each event leads from there."""
    first = Reached(BladeState(life=Life.DOWN, powered=False, connected=False, epoch=5), ticking=False)
    graph: dict[Reached, list[tuple[blade.BladeEvent, Reached]]] = {}
    ahead = deque([first])
    while ahead:
        at = ahead.popleft()
        if at not in graph:
            graph[at] = [(event, walk_blade(at, event)) for event in blade_moves(at)]
            ahead += [after for _, after in graph[at]]
    return graph


BLADES = all_blades()


def test_every_state_of_the_contract_can_be_reached_and_nothing_else() -> None:
    words = {(at.state.word, at.state.connected) for at in BLADES}
    assert words == {
        *itertools.product(("off", "powered", "booting", "stopping", "faulted"), (True, False)),
        ("working", True),
        ("isolated", False),
    }


def test_a_blade_without_power_runs_nothing_and_waits_for_nothing() -> None:
    for at in BLADES:
        if not at.state.powered:
            assert at.state.life is Life.DOWN
            assert not (at.state.runs)
            assert not (at.state.working)
            assert not (at.state.reaches_network)
            assert not at.ticking


def test_whatever_boots_or_stops_has_a_timer_and_whatever_is_at_rest_has_none() -> None:
    for at in BLADES:
        if at.state.life in (Life.BOOTING, Life.STOPPING):
            assert at.ticking, at
        if at.state.life in (Life.DOWN, Life.FAULTED):
            assert not at.ticking, at


def test_a_timer_of_another_epoch_does_nothing_in_any_state() -> None:
    for at in BLADES:
        for epoch in (at.state.epoch - 1, at.state.epoch - 2, at.state.epoch + 1):
            assert blade.step(at.state, Due(epoch), now=1.0, rng=random.Random(1)) == (at.state, ())


def leads_to_work(graph: dict[Reached, list[tuple[blade.BladeEvent, Reached]]]) -> set[Reached]:
    """Every state from which some way leads to one that works."""
    back: dict[Reached, list[Reached]] = {}
    for at, moves in graph.items():
        for _, after in moves:
            back.setdefault(after, []).append(at)
    ahead = deque(at for at in graph if at.state.sound)
    found = set(ahead)
    while ahead:
        for before in back.get(ahead.popleft(), []):
            if before not in found:
                found.add(before)
                ahead.append(before)
    return found


def test_no_state_is_without_a_way_out() -> None:
    assert leads_to_work(BLADES) == set(BLADES)


def test_a_blade_that_is_not_broken_comes_back_by_switching_its_power_off_and_on() -> None:
    for at in BLADES:
        cycled = walk_blade(walk_blade(at, Supply(False, True)), Supply(True, True))
        assert cycled.state.life is Life.BOOTING
        booted = walk_blade(cycled, Due(5)).state
        assert booted.word == ("faulted" if at.state.broken else "working")


@pytest.mark.parametrize("mend", [Repair(B), Replace(B)])
def test_repair_and_replacement_make_any_blade_work_that_has_power_and_network(mend: Repair | Replace) -> None:
    for at in BLADES:
        mended = walk_blade(walk_blade(at, Supply(True, True)), mend)
        if mended.state.life is Life.STOPPING:  # It is being shut down: that goes on, and it can be started then.
            mended = walk_blade(walk_blade(mended, Due(5)), Start(B))
        if not mended.state.runs:
            mended = walk_blade(mended, Due(5))
        assert mended.state.sound, (at, mended)
        assert not mended.state.failures


def test_losing_the_network_stops_nothing_and_having_it_again_starts_nothing() -> None:
    for at, supply in itertools.product(BLADES, SUPPLIES):
        if supply.powered is at.state.powered:
            after = walk_blade(at, supply)
            assert (after.state.life, after.ticking) == (at.state.life, at.ticking)
            assert after.state.runs is at.state.runs


def test_a_faulted_blade_hears_no_order() -> None:
    for at in BLADES:
        if at.state.life is Life.FAULTED:
            for order in (Start(B), Stop(B)):
                after, effects = blade.step(at.state, order, now=1.0, rng=random.Random(1))
                assert after == at.state
                assert [type(effect) for effect in effects] == [switch.Ignored]


def test_booting_takes_five_to_eight_ticks_and_each_of_them_is_drawn() -> None:
    rng, off = random.Random(7), BladeState(life=Life.DOWN, powered=False)
    drawn = [blade.step(off, Supply(True, True), now=10.0, rng=rng)[1][0] for _ in range(200)]
    assert {timer.due - 10.0 for timer in drawn if isinstance(timer, Timer)} == {5.0, 6.0, 7.0, 8.0}
    assert BOOT_TICKS == (5, 8)
    stops = [blade.step(BladeState(), Stop(B), now=10.0, rng=rng)[1][0] for _ in range(200)]
    assert {timer.due - 10.0 for timer in stops if isinstance(timer, Timer)} == {
        float(ticks) for ticks in range(STOP_TICKS[0], STOP_TICKS[1] + 1)
    }


def test_failures_are_counted_until_the_blade_has_proven_itself() -> None:
    rng, state = random.Random(1), BladeState()
    for n in (1, 2, 3):
        state, _ = blade.step(state, Crash(B), now=0.0, rng=rng)
        assert state.failures == min(n, ENOUGH)
        state, _ = blade.step(state, Supply(False, True), now=0.0, rng=rng)
        state, _ = blade.step(state, Supply(True, True), now=0.0, rng=rng)
        state, effects = blade.step(state, Due(state.epoch), now=8.0, rng=rng)
        assert effects == (Timer(8.0 + PROVEN, state.epoch),)
    isolated, _ = blade.step(state, Supply(True, False), now=9.0, rng=rng)
    proven, _ = blade.step(isolated, Due(state.epoch), now=8.0 + PROVEN, rng=rng)
    assert proven.failures == 0


def test_another_piece_of_hardware_has_another_serial_and_nothing_of_the_last() -> None:
    for at in BLADES:
        after, _ = blade.step(at.state, Replace(B), now=1.0, rng=random.Random(1))
        assert after.serial == at.state.serial + 1
        assert (after.broken, after.failures) == (False, 0)
        assert after.life is (Life.BOOTING if at.state.powered else Life.DOWN)


# What is switched


@pytest.mark.parametrize("first", [PduState(), CableState(), TorState()])
def test_a_switch_can_be_in_few_states_and_repair_ends_all_of_them(first: PduState | CableState | TorState) -> None:
    step = switch.step_tor if isinstance(first, TorState) else switch.step
    events = [e for e in SWITCH_EVENTS if not (isinstance(first, TorState) and isinstance(e, PowerOff | Disconnect))]
    found, ahead = {first}, deque([first])
    while ahead:
        state = ahead.popleft()
        for event in events:
            after, ignored = step(state, event)  # type: ignore[arg-type]
            assert not ignored or after == state
            if after not in found:
                found.add(after)
                ahead.append(after)
    assert len(found) == (4 if isinstance(first, TorState) else 8)
    for state in found:
        for mend in (Repair(B), Replace(B)):
            assert step(state, mend) == (first, ())  # type: ignore[arg-type]


def test_what_is_stuck_stays_where_it_is_and_says_so() -> None:
    for on in (True, False):
        for order, wants in ((PowerOff(B), False), (PowerOn(B), True), (Disconnect(B), False), (Connect(B), True)):
            stuck = PduState(on=on, stuck=True)
            after, ignored = switch.step(stuck, order)
            assert after == stuck
            assert bool(ignored) is (wants is not on)
    assert switch.step(PduState(stuck=True), Cut(B))[0].carries is False  # A lost feed asks nobody.


def test_words_of_the_contract() -> None:
    assert [PduState().word, PduState(on=False).word, PduState(stuck=True).word] == ["working", "off", "stuck"]
    assert [TorState().word, TorState(stuck=True).word, TorState(powered=False).word] == ["working", "stuck", "off"]
    assert [CableState().word, CableState(on=False).word, CableState(stuck=True).word] == ["on", "off", "faulted"]


# Wired together


Shape: TypeAlias = tuple[object, ...]


def shape(racks: Racks) -> Shape:
    """What a rack is, but for how often things happened to it."""
    ticking = {(address, epoch) for _, _, address, epoch in racks._timers}
    states: list[object] = []
    for address, state in racks._states.items():
        if isinstance(state, BladeState):
            states.append((msgspec.structs.replace(state, epoch=0, serial=0), (address, state.epoch) in ticking))
        else:
            states.append(state)
    return tuple(states)


def explored(start: Racks, events: list[Event]) -> tuple[dict[Shape, Racks], dict[Shape, set[Shape]]]:
    """Every state that some sequence of these events, and of time, leads to; and from which states each is reached."""
    where, back = {shape(start): start}, {}
    ahead = deque(where)
    while ahead:
        at = ahead.popleft()
        for event in [*events, None]:
            racks = clone(where[at])
            if event is not None:
                racks.apply(event, now=racks._now)
            elif (due := racks.next_at()) is not None:
                racks.advance(due)
            after = shape(racks)
            back.setdefault(after, set()).add(at)
            if after not in where:
                where[after] = racks
                ahead.append(after)
    return where, back


def lead_to(goals: set[Shape], back: dict[Shape, set[Shape]]) -> set[Shape]:
    found, ahead = set(goals), deque(goals)
    while ahead:
        new = back.get(ahead.popleft(), set()) - found
        found |= new
        ahead += new
    return found


def test_every_state_of_a_pdu_its_cable_and_a_blade_has_a_way_back() -> None:
    start = racks(rack(blades=1, tors=0))
    where, back = explored(start, list(events_on(start)))
    switches = set()
    for each in where.values():
        pdu, cable, b1 = each.pdu("r1/pdu1"), each.cable("r1/pdu1:1"), each.blade(B)
        assert b1.powered is (pdu.on and pdu.joined and cable.on and cable.joined)
        assert ("r1/b1" in each.amiss) is not b1.sound
        switches.add((pdu, cable))
    assert len(switches) == 8 * 8
    assert lead_to({at for at, each in where.items() if not each.amiss}, back) == set(where)


def test_every_state_of_a_pdu_that_feeds_a_tor_and_of_what_hangs_on_it_has_a_way_back() -> None:
    ports = {1: "b1"}
    plan = RackPlan(
        name="r1",
        pdus=(DevicePlan(name="pdu1", ports={9: "tor1"}), DevicePlan(name="pdu2", ports=ports)),
        tors=(DevicePlan(name="tor1", ports=ports),),
        blades=(BladePlan(name="b1"),),
    )
    start = racks(plan)
    touched = ("r1/pdu1", "r1/pdu1:9", "r1/tor1", "r1/tor1:1")
    where, back = explored(start, [event for event in events_on(start) if event.on in touched])
    for each in where.values():
        pdu, feed, tor1, link = (
            each.pdu(touched[0]),
            each.cable(touched[1]),
            each.tor(touched[2]),
            each.cable(touched[3]),
        )
        b1 = each.blade(B)
        assert tor1.powered is (pdu.on and pdu.joined and feed.on and feed.joined)
        assert b1.connected is (tor1.powered and tor1.joined and link.on and link.joined)
        assert b1.runs, "who is isolated goes on"
        assert b1.word == ("working" if b1.connected else "isolated")
    assert len(where) == 8 * 8 * 4 * 8
    assert lead_to({at for at, each in where.items() if not each.amiss}, back) == set(where)

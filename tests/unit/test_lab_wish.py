"""What requests, and sights of a machine, make of a user's record: every phase with every request, and any story."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hostler.engine.labs import state_machine
from hostler.engine.labs.state_machine import LabStart
from hostler.model.lab import NEWS_KEPT, Lab, LabCatalogue, LabEvent, LabPhase, LabTemplate, LabUser
from hostler.model.vm import Access, MachineState, Readiness, Step, VmHandle

if TYPE_CHECKING:
    from collections.abc import Callable

CATALOGUE = LabCatalogue(
    labs={
        "3": LabTemplate(life=600.0, grace=30.0, user="three"),
        "5": LabTemplate(life=1200.0, grace=60.0, user="five"),
        "12": LabTemplate(),
    }
)
NOW = 1000.0
WAITING, PROVISIONING, RUNNING, STOPPING = LabPhase


def lab(phase: LabPhase, lab_id: int = 3, **more: Any) -> Lab:
    fields: dict[str, Any] = {"lab_id": lab_id, "generation": 4, "phase": phase, "requested_at": 10.0, "life": 600.0}
    if phase is not WAITING:
        fields |= {"vm": "vm-4", "expires_at": 2000.0}
    if phase is STOPPING:
        fields |= {"ending": LabEvent.STOPPED}
    return Lab(**{**fields, **more})


def having(phase: LabPhase | None, **more: Any) -> LabUser:
    """Who has lab 3 in that phase; None: no lab, and none before."""
    there = None if phase is None else lab(phase, **more)
    return LabUser(user="mia", generation=4 if there else 0, lab=there, changed_at=20.0)


def start(record: LabUser | None, lab_id: int, *, switch: bool = False) -> LabUser:
    return state_machine.start(record, "mia", LabStart(lab_id, switch=switch), catalogue=CATALOGUE, now=NOW)


def handle(state: MachineState = MachineState.RUNNING, step: Step | None = None, **more: Any) -> VmHandle:
    readiness = None if step is None else Readiness(step=step, since=1.0)
    fields: dict[str, Any] = {"id": "vm-4", "node": "n1", "state": state, "readiness": readiness, "seen_at": 1.0}
    return VmHandle(**{**fields, **more})


def last(record: LabUser) -> tuple[LabEvent, int | None, str]:
    return record.news[-1].event, record.news[-1].lab_id, record.news[-1].reason


# Every phase with every request. What is expected: the news, its lab, and what changed of the lab ("=": nothing).

E = LabEvent
SAME = "="
NEW = {"lab_id": 5, "phase": WAITING, "generation": 5}
STOPS = {"phase": STOPPING, "ending": E.STOPPED, "available": False}

REQUESTS: dict[str, Callable[[LabUser], LabUser]] = {
    "start the same": lambda record: start(record, 3),
    "start another": lambda record: start(record, 5),
    "start an unknown one": lambda record: start(record, 9),
    "switch to another": lambda record: start(record, 5, switch=True),
    "stop the same": lambda record: state_machine.stop(record, "mia", 3, now=NOW),
    "stop another": lambda record: state_machine.stop(record, "mia", 5, now=NOW),
    "stop any": lambda record: state_machine.stop(record, "mia", None, now=NOW),
    "extend the same": lambda record: state_machine.extend(record, "mia", 2.0, 3, now=NOW),
    "extend another": lambda record: state_machine.extend(record, "mia", 2.0, 5, now=NOW),
    "extend any": lambda record: state_machine.extend(record, "mia", 2.0, None, now=NOW),
}
LONGER = {"expires_at": 2120.0}
ANSWERS: dict[str, dict[LabPhase | None, tuple[LabEvent, int | None, Any]]] = {
    "start the same": {
        None: (E.REQUESTED, 3, {"lab_id": 3, "phase": WAITING, "generation": 1}),
        WAITING: (E.ALREADY, 3, SAME),
        PROVISIONING: (E.ALREADY, 3, SAME),
        RUNNING: (E.ALREADY, 3, SAME),
        STOPPING: (E.REQUESTED, 3, {"again": 3}),
    },
    "start another": {
        None: (E.REQUESTED, 5, {"lab_id": 5, "phase": WAITING, "generation": 1}),
        WAITING: (E.REFUSED, 5, SAME),
        PROVISIONING: (E.REFUSED, 5, SAME),
        RUNNING: (E.REFUSED, 5, SAME),
        STOPPING: (E.REQUESTED, 5, {"again": 5}),
    },
    "start an unknown one": dict.fromkeys((None, *LabPhase), (E.REFUSED, 9, SAME)),
    "switch to another": {
        None: (E.REQUESTED, 5, {"lab_id": 5, "phase": WAITING, "generation": 1}),
        WAITING: (E.REQUESTED, 5, NEW),
        PROVISIONING: (E.STOPPING, 3, {**STOPS, "again": 5}),
        RUNNING: (E.STOPPING, 3, {**STOPS, "again": 5}),
        STOPPING: (E.REQUESTED, 5, {"again": 5}),
    },
    "stop the same": {
        None: (E.IGNORED, 3, None),
        WAITING: (E.STOPPED, 3, None),
        PROVISIONING: (E.STOPPING, 3, STOPS),
        RUNNING: (E.STOPPING, 3, STOPS),
        STOPPING: (E.ALREADY, 3, SAME),
    },
    "stop another": {
        None: (E.IGNORED, 5, None),
        **dict.fromkeys(LabPhase, (E.IGNORED, 5, SAME)),
    },
    "stop any": {
        None: (E.IGNORED, None, None),
        WAITING: (E.STOPPED, 3, None),
        PROVISIONING: (E.STOPPING, 3, STOPS),
        RUNNING: (E.STOPPING, 3, STOPS),
        STOPPING: (E.ALREADY, 3, SAME),
    },
    "extend the same": {
        None: (E.REFUSED, 3, None),
        WAITING: (E.REFUSED, 3, SAME),
        PROVISIONING: (E.EXTENDED, 3, LONGER),
        RUNNING: (E.EXTENDED, 3, LONGER),
        STOPPING: (E.REFUSED, 3, SAME),
    },
    "extend another": dict.fromkeys((None, *LabPhase), (E.REFUSED, 5, SAME)),
    "extend any": {
        None: (E.REFUSED, None, None),
        WAITING: (E.REFUSED, 3, SAME),
        PROVISIONING: (E.EXTENDED, 3, LONGER),
        RUNNING: (E.EXTENDED, 3, LONGER),
        STOPPING: (E.REFUSED, 3, SAME),
    },
}


@pytest.mark.parametrize("phase", [None, *LabPhase])
@pytest.mark.parametrize("request_", REQUESTS)
def test_a_request_in_a_phase(request_: str, phase: LabPhase | None) -> None:
    before = having(phase)
    after = REQUESTS[request_](before)
    event, lab_id, changed = ANSWERS[request_][phase]
    assert last(after)[:2] == (event, lab_id)
    assert len(after.news) == 1, "a request has one answer"
    assert (after.news[0].at, after.changed_at, after.user) == (NOW, NOW, "mia")
    if changed is None or phase is None:
        assert (after.lab is None) == (changed in (None, SAME))
    if changed == SAME:
        assert (after.lab, after.generation) == (before.lab, before.generation)
    elif changed is not None:
        assert after.lab is not None
        assert {name: getattr(after.lab, name) for name in changed} == changed
        if "generation" not in changed:
            assert before.lab is not None
            kept = {name: getattr(before.lab, name) for name in (*changed, "ending_reason", "detail", "warned")}
            assert replace(after.lab, **kept) == before.lab, "something else changed too"
    assert LabUser.decode(after.encode()) == after


def test_who_was_never_heard_of_gets_a_record_by_any_request() -> None:
    assert start(None, 3) == start(LabUser(user="mia", changed_at=NOW), 3)
    assert last(state_machine.stop(None, "mia", 3, now=NOW))[0] is E.IGNORED
    assert last(state_machine.extend(None, "mia", 1.0, None, now=NOW))[0] is E.REFUSED


def test_a_new_lab_has_what_its_template_says() -> None:
    made = start(None, 5).lab
    assert made == Lab(
        lab_id=5, generation=1, phase=WAITING, requested_at=NOW, life=1200.0, grace=60.0, user="five", port=22
    )


def test_a_refusal_says_what_there_is() -> None:
    assert last(start(None, 9))[2] == "there is no lab 9; there are 3, 5, 12"
    assert last(start(having(RUNNING), 5))[2] == "lab 3 is active; stop it first"
    many = LabCatalogue(labs={str(number): LabTemplate() for number in range(10, 99)})
    said = last(state_machine.start(None, "mia", LabStart(9, switch=False), catalogue=many, now=NOW))[2]
    assert said.endswith("28, 29, …")
    none = state_machine.start(None, "mia", LabStart(9, switch=False), catalogue=LabCatalogue(labs={}), now=NOW)
    assert last(none)[2] == "there is no lab 9; the catalogue is empty"


def test_without_a_catalogue_every_lab_is_the_default() -> None:
    record = state_machine.start(None, "mia", LabStart(2**31 - 1, switch=False), catalogue=LabCatalogue(), now=NOW)
    assert last(record)[:2] == (E.REQUESTED, 2**31 - 1)


@pytest.mark.parametrize(
    ("asked", "event", "again"),
    [(5, E.STOPPING, None), (3, E.ALREADY, 5), (None, E.STOPPING, None), (7, E.IGNORED, 5)],
)
def test_stopping_what_shall_follow_a_lab_that_stops(asked: int | None, event: LabEvent, again: int | None) -> None:
    after = state_machine.stop(having(STOPPING, again=5), "mia", asked, now=NOW)
    assert after.lab == lab(STOPPING, again=again)
    assert last(after)[0] is event


def test_asking_again_for_what_shall_follow_changes_nothing() -> None:
    before = having(STOPPING, again=5)
    after = start(before, 5)
    assert (last(after)[0], after.lab) == (E.ALREADY, before.lab)


def test_an_extension_takes_the_warning_back() -> None:
    warned = state_machine.warn(having(RUNNING), NOW)
    assert last(warned) == (E.EXPIRES_SOON, 3, "it ends at 1970-01-01T00:33:20Z")
    assert state_machine.warn(warned, NOW + 1) is warned
    longer = state_machine.extend(warned, "mia", 2.0, None, now=NOW)
    assert longer.lab is not None
    assert not longer.lab.warned
    assert last(state_machine.warn(longer, NOW))[0] is E.EXPIRES_SOON


@pytest.mark.parametrize("phase", [None, WAITING, STOPPING])
def test_who_waits_or_stops_is_not_warned(phase: LabPhase | None) -> None:
    record = having(phase)
    assert state_machine.warn(record, NOW) is record


# What the controller does, and sees


def test_it_is_told_once_that_a_lab_waits() -> None:
    first = state_machine.put_off(having(WAITING), 7, "20 labs run already", NOW)
    assert last(first) == (E.WAITING, 3, "position 7: 20 labs run already")
    assert state_machine.put_off(first, 6, "20 labs run already", NOW) is first
    other = state_machine.put_off(first, 6, "no room", NOW)
    assert (other.news, other.lab) == (first.news, replace(first.lab, detail="no room"))  # type: ignore[type-var]


@pytest.mark.parametrize("phase", [None, PROVISIONING, RUNNING, STOPPING])
def test_only_who_waits_is_admitted_or_put_off(phase: LabPhase | None) -> None:
    record = having(phase)
    assert state_machine.admit(record, "vm-9", LabTemplate(), NOW) is record
    assert state_machine.put_off(record, 1, "full", NOW) is record


def test_its_time_begins_with_its_machine() -> None:
    waits = state_machine.put_off(having(WAITING), 1, "full", NOW)
    after = state_machine.admit(waits, "vm-9", LabTemplate(life=50.0, grace=5.0, user="root"), NOW)
    assert after.lab == lab(
        PROVISIONING, vm="vm-9", life=50.0, grace=5.0, user="root", expires_at=NOW + 50, provisioned_by=NOW + 600
    )
    assert last(after)[0] is E.STARTED


def test_what_is_seen_of_a_machine() -> None:
    access = Access(host="fd00::5", port=2222, user="x")
    here = handle(step=Step.AVAILABLE, machine="m-1", cloud_status="up", access=access)
    running = state_machine.observe(having(PROVISIONING, provisioned_by=NOW), here, NOW)
    assert last(running)[0] is E.AVAILABLE
    assert running.lab == lab(
        RUNNING,
        provisioned_by=NOW,
        machine_runs=True,
        available=True,
        cloud_status="up",
        server_id="m-1",
        address="fd00::5",
        port=2222,
    )
    assert state_machine.observe(running, here, NOW + 1) is running
    lost = state_machine.observe(running, handle(step=Step.SSH, address="fd00::6", detail="no answer"), NOW + 1)
    assert (lost.news, lost.changed_at) == (running.news, NOW + 1)
    assert lost.lab is not None
    assert (lost.lab.phase, lost.lab.available, lost.lab.address, lost.lab.port) == (RUNNING, False, "fd00::6", 22)
    assert (lost.lab.cloud_status, lost.lab.detail) == ("running", "no answer")
    back = state_machine.observe(lost, here, NOW + 2)
    assert len(back.news) == len(running.news), "that it is available is told once"


def test_only_a_machine_that_runs_is_available() -> None:
    after = state_machine.observe(having(PROVISIONING), handle(MachineState.STOPPED, Step.AVAILABLE), NOW)
    assert after.lab is not None
    assert (after.lab.available, after.lab.phase, after.lab.machine_runs) == (False, PROVISIONING, False)


def test_the_limit_counts_from_when_a_node_has_room() -> None:
    pending = state_machine.observe(
        having(PROVISIONING, provisioned_by=1500.0), handle(MachineState.PENDING, node=""), NOW
    )
    assert pending.lab is not None
    assert pending.lab.provisioned_by is None
    placed = state_machine.observe(pending, handle(MachineState.PLACED), NOW + 900)
    assert placed.lab is not None
    assert placed.lab.provisioned_by == NOW + 900 + state_machine.PROVISIONED_WITHIN
    on = state_machine.observe(placed, handle(MachineState.CREATING), NOW + 950)
    assert on.lab is not None
    assert on.lab.provisioned_by == placed.lab.provisioned_by


def test_the_end_moves_on_while_no_node_has_room_and_all_of_its_life_is_left_then() -> None:
    pending = handle(MachineState.PENDING, node="")
    first = state_machine.observe(
        having(PROVISIONING, provisioned_by=NOW + 600, life=1000.0, expires_at=NOW + 1000), pending, NOW
    )
    assert first.lab is not None
    assert first.lab.expires_at == NOW + 1000
    assert state_machine.observe(first, pending, NOW + 499) is first, "it is not written at every look"
    later = state_machine.observe(first, pending, NOW + 500)
    assert later.lab is not None
    assert later.lab.expires_at == NOW + 1500
    placed = state_machine.observe(later, handle(MachineState.PLACED), NOW + 700)
    assert placed.lab is not None
    assert placed.lab.expires_at == NOW + 1700
    longer = state_machine.observe(
        state_machine.extend(later, "mia", 60, None, now=NOW), handle(MachineState.PLACED), NOW + 700
    )
    assert longer.lab is not None
    assert longer.lab.expires_at == NOW + 1500 + 3600
    on = state_machine.observe(placed, handle(MachineState.CREATING), NOW + 800)
    assert on.lab is not None
    assert on.lab.expires_at == NOW + 1700


def test_another_machine_tells_nothing() -> None:
    for phase in LabPhase:
        record = having(phase)
        assert state_machine.observe(record, handle(id="vm-3", step=Step.AVAILABLE), NOW) is record
    assert state_machine.observe(having(None), handle(id=""), NOW) == having(None)


def test_a_lab_that_stops_is_not_available_whatever_is_seen() -> None:
    running = having(RUNNING, available=True, address="fd00::1", server_id="s-1")
    stops = state_machine.stopping(running, E.EXPIRED, "its time is over", NOW)
    assert last(stops) == (E.STOPPING, 3, "its time is over")
    after = state_machine.observe(stops, handle(step=Step.AVAILABLE), NOW)
    assert after.lab is not None
    assert (after.lab.phase, after.lab.available) == (STOPPING, False)
    assert state_machine.observe(after, handle(step=Step.AVAILABLE), NOW) is after
    stopped = state_machine.observe(after, handle(MachineState.STOPPED, machine="", address="", access=None), NOW)
    assert stopped.lab is not None
    assert stopped.lab == replace(after.lab, machine_runs=False, cloud_status="stopped")
    assert state_machine.stopping(stops, E.FAILED, "late", NOW) is stops


def test_when_its_machine_is_gone_the_lab_is_and_the_next_one_begins() -> None:
    stops = state_machine.stopping(having(RUNNING), E.EXPIRED, "its time is over", NOW)
    after = state_machine.gone(stops, NOW, CATALOGUE)
    assert (after.lab, after.generation, last(after)) == (None, 4, (E.EXPIRED, 3, "its time is over"))
    follows = state_machine.gone(start(stops, 5), NOW, CATALOGUE)
    assert follows.lab is not None
    assert (follows.lab.lab_id, follows.lab.phase, follows.lab.generation) == (5, WAITING, 5)
    assert [news.event for news in follows.news[-2:]] == [E.EXPIRED, E.REQUESTED]
    dropped = state_machine.gone(start(stops, 5), NOW, LabCatalogue(labs={}))
    assert (dropped.lab, last(dropped)[0]) == (None, E.REFUSED)


def test_a_machine_that_goes_by_itself_is_a_failure() -> None:
    assert last(state_machine.gone(having(RUNNING), NOW, CATALOGUE)) == (E.FAILED, 3, "its machine was deleted")
    assert state_machine.gone(having(None), NOW, CATALOGUE) == having(None)
    waits = having(WAITING)
    assert state_machine.gone(waits, NOW, CATALOGUE) is waits


def test_tokens_are_kept_by_queue() -> None:
    record = state_machine.mark_processed(
        state_machine.mark_processed(having(None), "provision", "a"), "decommission", "b"
    )
    assert state_machine.mark_processed(record, "provision", "c").worked == {"provision": "c", "decommission": "b"}
    assert record.worked == {"provision": "a", "decommission": "b"}


def test_the_last_news_are_kept_and_their_numbers_go_on() -> None:
    record = having(None)
    for _ in range(2 * NEWS_KEPT + 3):
        record = state_machine.add_event(record, E.IGNORED, NOW)
    assert [news.number for news in record.news] == list(range(NEWS_KEPT + 4, 2 * NEWS_KEPT + 4))


def test_messages_push_no_news_out_and_are_counted_with_them() -> None:
    record = start(having(None), 3)
    for number in range(2 * NEWS_KEPT):
        record = state_machine.message(record, f"say {number}", now=NOW + number)
    record = state_machine.stop(record, "mia", None, now=NOW + 99)
    assert [news.event for news in record.news] == [E.REQUESTED, E.STOPPED]
    assert [said.reason for said in record.messages] == [f"say {n}" for n in range(NEWS_KEPT, 2 * NEWS_KEPT)]
    shown = record.events
    assert [one.event for one in shown] == [E.REQUESTED, *[E.MESSAGE] * NEWS_KEPT, E.STOPPED]
    assert [one.number for one in shown] == [1, *range(NEWS_KEPT + 2, 2 * NEWS_KEPT + 3)]
    assert record.last_number == shown[-1].number


# Any story

IDS = st.sampled_from([3, 5, 9])
STEPS = st.one_of(
    st.tuples(st.just("start"), IDS, st.booleans()),
    st.tuples(st.just("stop"), st.one_of(st.none(), IDS)),
    st.tuples(st.just("extend"), st.one_of(st.none(), IDS)),
    st.tuples(st.just("admitted")),
    st.tuples(st.just("put_off")),
    st.tuples(st.just("seen"), st.integers(0, 2), st.sampled_from(MachineState), st.sampled_from([None, *Step])),
    st.tuples(st.just("warned")),
    st.tuples(st.just("stopping")),
    st.tuples(st.just("gone")),
)


def stepped(record: LabUser | None, step: tuple[Any, ...], now: float) -> LabUser | None:
    """One step of a story; each lab's machine is called after its generation, and older ones are seen too."""
    match step:
        case ("start", lab_id, switch):
            return state_machine.start(record, "mia", LabStart(lab_id, switch=switch), catalogue=CATALOGUE, now=now)
        case ("stop", lab_id):
            return state_machine.stop(record, "mia", lab_id, now=now)
        case ("extend", lab_id):
            return state_machine.extend(record, "mia", 1.0, lab_id, now=now)
    if record is None:
        return None
    match step:
        case ("admitted",):
            return state_machine.admit(record, f"vm-{record.generation}", LabTemplate(), now)
        case ("put_off",):
            return state_machine.put_off(record, 1, f"full at {now}", now)
        case ("seen", back, state, ready):
            return state_machine.observe(record, handle(state, ready, id=f"vm-{record.generation - back}"), now)
        case ("warned",):
            return state_machine.warn(record, now)
        case ("stopping",):
            return state_machine.stopping(record, E.EXPIRED, "over", now)
    return state_machine.gone(record, now, CATALOGUE)


@given(st.lists(STEPS, max_size=60))
def test_in_any_story_there_is_one_lab_at_most_and_nothing_goes_back(steps: list[tuple[Any, ...]]) -> None:
    record: LabUser | None = None
    for now, step in enumerate(steps):
        before, record = record, stepped(record, step, float(now))
        if record is None:
            continue
        lab, old = record.lab, None if before is None else before.lab
        # Numbers: without a gap, growing, and never given twice.
        numbers = [news.number for news in record.news]
        known = () if before is None else before.news
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert len(numbers) <= NEWS_KEPT
        assert numbers[-1] >= (known[-1].number if known else 0)
        assert all(news in known or news.at == now for news in record.news)
        if step[0] in ("start", "stop", "extend"):
            assert numbers[-1] == (known[-1].number if known else 0) + 1
        # Generations: only grow, and a machine belongs to one.
        assert record.generation >= (0 if before is None else before.generation)
        if lab is None:
            continue
        assert lab.generation == record.generation
        assert lab.vm in ("", f"vm-{lab.generation}")
        assert bool(lab.vm) == (lab.phase is not WAITING) == (lab.expires_at is not None)
        assert (lab.ending is not None) == (lab.phase is STOPPING)
        assert lab.again is None or lab.phase is STOPPING
        if old is not None and old.generation != lab.generation:
            assert old.phase in (WAITING, STOPPING), "a lab with a machine made room before it was gone"
            assert old.phase is WAITING or step == ("gone",)
        if step[0] == "seen" and step[1]:
            assert record is before, "a machine of an older lab changed the newer one"
        assert LabUser.decode(record.encode()) == record


def test_a_machine_that_does_not_answer_at_port_22_is_not_there_for_the_front_end() -> None:
    record = having(RUNNING, address="127.0.0.1", port=20022, available=True, machine_runs=True)
    assert record.lab is not None
    shown = record.lab.server("mia")
    assert (shown.address, shown.available) == ("", False)
    shown = replace(record.lab, address="fd00::1", port=22).server("mia")
    assert (shown.address, shown.available) == ("fd00::1", True)


def test_a_lab_that_waits_for_longer_than_its_life_is_not_shown_as_over() -> None:
    waits = having(WAITING, expires_at=None)
    assert waits.lab is not None
    shown = waits.lab.server("mia")
    assert shown.expires == waits.lab.requested_at + 24 * 3600.0 > waits.lab.requested_at + waits.lab.life


# What a user has of a lab each day


def own_start(record: LabUser | None, now: float, lab_id: int = 3) -> LabUser:
    return state_machine.start(record, "mia", LabStart(lab_id, switch=False, own=True), catalogue=CATALOGUE, now=now)


def admit(record: LabUser, now: float, **more: Any) -> LabUser:
    template = replace(CATALOGUE.find(3) or LabTemplate(), **more)
    return state_machine.admit(record, "vm-1", template, now)


def had(record: LabUser, now: float, seconds: float) -> LabUser:
    """The user starts lab 3, has it for so long, and stops it."""
    record = admit(own_start(record, now), now)
    record = state_machine.stop(record, "mia", None, now=now + seconds)
    return state_machine.gone(record, now + seconds, CATALOGUE)


def test_a_lab_that_its_user_starts_again_goes_on_with_the_time_that_is_left() -> None:
    record = had(LabUser(user="mia", changed_at=0.0), 1000.0, 400.0)
    again = admit(own_start(record, 2000.0), 2000.0)
    assert again.lab is not None
    assert (again.lab.life, again.lab.expires_at) == (200.0, 2200.0)
    record = state_machine.gone(state_machine.stopping(again, LabEvent.EXPIRED, "", 2230.0), 2230.0, CATALOGUE)
    refused = own_start(record, 3000.0)
    assert refused.lab is None
    event, _, reason = last(refused)
    assert event is LabEvent.REFUSED
    assert "used up (10 min); start it after 1970-01-02T00:00:00Z, or ask your teacher" in reason
    assert own_start(record, 3000.0, lab_id=5).lab is not None, "another lab has its own time"
    tomorrow = admit(own_start(record, state_machine.DAY + 1), state_machine.DAY + 1)
    assert tomorrow.lab is not None
    assert tomorrow.lab.life == 600.0


def test_a_teacher_and_a_front_end_start_a_lab_for_its_whole_life() -> None:
    record = had(LabUser(user="mia", changed_at=0.0), 1000.0, 600.0)
    for door in ("", "redis"):
        started = state_machine.start(
            record, "mia", LabStart(3, switch=False, door=door), catalogue=CATALOGUE, now=2000.0
        )
        started = admit(started, 2000.0)
        assert started.lab is not None
        assert started.lab.expires_at == 2600.0


def test_what_follows_a_lab_that_stops_is_its_users_own_as_well() -> None:
    record = admit(own_start(None, 0.0), 0.0)
    record = state_machine.stop(record, "mia", None, now=500.0)
    record = state_machine.gone(own_start(record, 510.0), 520.0, CATALOGUE)
    record = admit(record, 530.0)
    assert record.lab is not None
    assert record.lab.life == 100.0


def test_stopping_at_once_uses_a_lab_up_as_well() -> None:
    record, starts = LabUser(user="mia", changed_at=0.0), 0
    while own_start(record, 1000.0).lab is not None:
        record, starts = had(record, 1000.0, 0.0), starts + 1
    assert starts == 10


def test_added_time_and_a_lab_that_failed_to_begin_are_not_counted() -> None:
    record = admit(own_start(None, 0.0), 0.0)
    record = state_machine.extend(record, "mia", 10.0, None, now=1.0)
    record = state_machine.stop(record, "mia", None, now=700.0)
    assert record.used["3"].seconds == 100.0
    record = admit(own_start(None, 0.0), 0.0)
    assert state_machine.stopping(record, LabEvent.FAILED, "no disk", 500.0).used == {}


def test_a_catalogue_may_give_more_of_a_lab_each_day() -> None:
    record = had(LabUser(user="mia", changed_at=0.0), 1000.0, 600.0)
    template = replace(CATALOGUE.find(3) or LabTemplate(), per_day=900.0)
    assert state_machine.left_today(record, 3, template, 2000.0) == 300.0

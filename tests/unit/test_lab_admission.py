"""Whose turn it is, against a model that looks at everything each time."""

from __future__ import annotations

import random
from typing import Any

import pytest

from hostler.engine.labs.admission import UNPLACED, Admission
from hostler.model.lab import Lab, LabCatalogue, LabPhase, LabTemplate, LabUser
from hostler.model.vm import MachineState, VmHandle

PHASES = (LabPhase.PROVISIONING, LabPhase.RUNNING, LabPhase.STOPPING)
CATALOGUE = LabCatalogue(
    at_once=12,
    labs={
        "1": LabTemplate(at_once=3, image="a"),
        "2": LabTemplate(image="a"),
        "3": LabTemplate(image="b", provider="qemu"),
    },
)


def lab(user: str, lab_id: int = 2, at: float = 0.0, phase: LabPhase = LabPhase.WAITING, generation: int = 1) -> Any:
    fields: dict[str, Any] = {"lab_id": lab_id, "generation": generation, "phase": phase, "requested_at": at}
    return LabUser(user=user, changed_at=at, lab=Lab(life=60.0, **fields))


def handle(state: MachineState = MachineState.PLACED, node: str = "n1") -> VmHandle:
    return VmHandle(id="v", node=node, state=state, seen_at=0.0)


PENDING = handle(MachineState.PENDING, "")


def test_turns_are_given_in_the_order_of_the_requests() -> None:
    admission, catalogue = Admission(), LabCatalogue(at_once=2)
    for user, at in (("c", 3.0), ("a", 2.0), ("b", 2.0)):
        admission.note(user, lab(user, at=at), None, catalogue)
    assert [admission.position(user) for user in "abc"] == [1, 2, 3]
    assert admission.give(catalogue) == ["a", "b"]
    assert admission.give(catalogue) == []
    assert admission.position("c") == 1
    assert admission.why_not("c", catalogue) == "the limit of 2 concurrent labs is reached"
    admission.note("a", None, None, catalogue)
    assert admission.give(catalogue) == ["c"]


def test_a_turn_stays_while_the_lab_waits_and_goes_with_it() -> None:
    admission, catalogue = Admission(), LabCatalogue(at_once=1)
    admission.note("a", lab("a"), None, catalogue)
    admission.note("b", lab("b", at=1.0), None, catalogue)
    assert admission.give(catalogue) == ["a"]
    admission.note("a", lab("a"), None, catalogue)
    assert admission.turn("a", 1) is True
    assert admission.turn("a", 2) is None
    assert admission.turn("b", 1) is False
    admission.note("a", lab("a", at=5.0, generation=2), None, catalogue)  # stopped, and asked for again
    assert admission.turn("a", 2) is False
    assert admission.give(catalogue) == ["b"]


def test_where_no_node_has_room_one_at_a_time_is_admitted_and_other_kinds_are_not_held_up() -> None:
    admission = Admission()
    catalogue = LabCatalogue(labs={"1": LabTemplate(image="a"), "2": LabTemplate(image="b")})
    users = [f"u{number:02}" for number in range(2 * UNPLACED)]
    for user in users:
        admission.note(user, lab(user, 1), None, catalogue)
    assert admission.give(catalogue) == users[:UNPLACED]
    assert admission.why_not(users[-1], catalogue) == ""
    admission.note(users[0], lab(users[0], 1, phase=LabPhase.PROVISIONING), PENDING, catalogue)
    for user in users[1:UNPLACED]:
        admission.note(user, lab(user, 1, phase=LabPhase.PROVISIONING), handle(), catalogue)
    assert admission.give(catalogue) == []
    assert "room" in admission.why_not(users[-1], catalogue)
    admission.note("other", lab("other", 2, at=9.0), None, catalogue)
    assert admission.give(catalogue) == ["other"]
    admission.note(users[0], lab(users[0], 1, phase=LabPhase.PROVISIONING), handle(), catalogue)
    assert admission.give(catalogue) == [users[UNPLACED]]


def test_a_lab_that_is_in_the_catalogue_no_more_has_its_turn_to_be_refused() -> None:
    admission = Admission()
    admission.note("a", lab("a", 9), None, CATALOGUE)
    assert admission.give(CATALOGUE) == ["a"]


def test_a_record_that_nobody_can_read_counts_as_before() -> None:
    admission, catalogue = Admission(), LabCatalogue(at_once=2)
    admission.note("a", lab("a", phase=LabPhase.RUNNING), handle(), catalogue)
    for user, has_machine in (("a", True), ("b", True), ("c", False)):
        admission.hold(user, has_machine=has_machine)
    assert admission.running == 2
    admission.note("d", lab("d"), None, catalogue)
    assert admission.give(catalogue) == []
    admission.note("b", None, None, catalogue)
    assert admission.give(catalogue) == ["d"]


def test_one_that_cannot_use_its_turn_holds_up_nobody_and_keeps_its_place() -> None:
    admission, catalogue = Admission(), LabCatalogue(at_once=1)
    for user, at in (("a", 1.0), ("b", 2.0), ("c", 3.0)):
        admission.note(user, lab(user, at=at), None, catalogue)
    assert admission.give(catalogue) == ["a"]
    admission.note("a", lab("a", at=1.0), None, catalogue, held=True)
    assert (admission.turn("a", 1), admission.running) == (False, 0)
    assert admission.give(catalogue) == ["b"]
    admission.note("a", lab("a", at=1.0), None, catalogue)
    assert admission.position("a") == 1
    admission.note("b", None, None, catalogue)
    assert admission.give(catalogue) == ["a"]
    admission.note("c", lab("c", at=3.0), None, catalogue, held=True)
    admission.note("c", None, None, catalogue)
    assert admission.waiting == 0


def test_what_had_no_room_is_given_out_as_ever_once_nobody_waits_for_such_a_one() -> None:
    admission = Admission()
    catalogue = LabCatalogue(labs={"1": LabTemplate(image="a"), "2": LabTemplate(image="b", at_once=1)})
    for user in ("y", "z"):
        admission.note(user, lab(user, 2), None, catalogue)  # one of them waits all the time
    admission.note("a", lab("a", 1, phase=LabPhase.PROVISIONING), PENDING, catalogue)
    admission.note("b", lab("b", 1), None, catalogue)
    assert admission.give(catalogue) == ["y"]
    admission.note("a", None, None, catalogue)
    assert admission.give(catalogue) == ["b"]
    admission.note("b", lab("b", 1, phase=LabPhase.RUNNING), handle(), catalogue)
    assert admission.give(catalogue) == []
    for user in ("c", "d"):
        admission.note(user, lab(user, 1), None, catalogue)
    assert admission.give(catalogue) == ["c", "d"]


def test_another_catalogue_may_sort_labs_into_other_kinds() -> None:
    admission = Admission()
    before = LabCatalogue(labs={"1": LabTemplate(image="a"), "2": LabTemplate(image="a")})
    after = LabCatalogue(labs={"1": LabTemplate(image="a"), "2": LabTemplate(image="b")})
    admission.note("a", lab("a", 1, phase=LabPhase.PROVISIONING), PENDING, before)
    admission.note("b", lab("b", 2), None, before)
    assert admission.give(before) == []
    assert admission.give(after) == ["b"]


def test_a_change_costs_nothing_for_those_that_no_node_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    admission, catalogue = Admission(), LabCatalogue()
    admission.note("a", lab("a", 1, phase=LabPhase.PROVISIONING), PENDING, catalogue)
    for number in range(2, 500):
        admission.note(f"u{number}", lab(f"u{number}", number, float(number)), None, catalogue)
    looked_at: list[int] = []
    shut = Admission._shut
    monkeypatch.setattr(Admission, "_shut", lambda self, lab_id, of: looked_at.append(lab_id) or shut(self, lab_id, of))
    assert admission.give(catalogue) == []
    assert not looked_at
    admission.note("a", None, None, catalogue)
    assert admission.give(catalogue) == ["u2"], "one at a time"
    assert len(looked_at) <= 500


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_the_limits_hold_and_nobody_waits_without_a_reason(seed: int) -> None:
    rng, admission = random.Random(seed), Admission()
    labs: dict[str, tuple[Any, Any]] = {}  # record and handle
    generation = 0
    for turn in range(400):
        user = f"u{rng.randrange(30):02}"
        record = labs.get(user, (None, None))[0]
        what = rng.random()
        if record is None or what < 0.2:
            generation += 1
            labs[user] = (lab(user, rng.choice((1, 2, 3)), float(turn), generation=generation), None)
            if record is not None and record.lab.phase is not LabPhase.WAITING:
                labs[user] = (None, None)
        elif record.lab.phase is LabPhase.WAITING:
            if admission.turn(user, record.lab.generation):
                labs[user] = (_moved(record, LabPhase.PROVISIONING), rng.choice((None, PENDING, handle())))
        else:
            labs[user] = (_moved(record, rng.choice(PHASES)), rng.choice((None, PENDING, handle())))
        admission.note(user, *labs[user], CATALOGUE)
        given = admission.give(CATALOGUE)
        _check(admission, labs, given)


def _moved(record: LabUser, phase: LabPhase) -> LabUser:
    assert record.lab is not None
    old = record.lab
    return lab(record.user, old.lab_id, old.requested_at, phase, old.generation)  # type: ignore[no-any-return]


def _check(admission: Admission, labs: dict[str, tuple[Any, Any]], given: list[str]) -> None:
    there = {user: record.lab for user, (record, _) in labs.items() if record is not None}
    waiting = {
        user
        for user, one in there.items()
        if one.phase is LabPhase.WAITING and not admission.turn(user, one.generation)
    }
    running = [one.lab_id for user, one in there.items() if user not in waiting]
    assert admission.running == len(running)
    assert admission.waiting == len(waiting)
    order = sorted(waiting, key=lambda user: (there[user].requested_at, user))
    assert [admission.position(user) for user in order] == list(range(1, len(order) + 1))
    if given:
        assert len(running) <= 12
        assert running.count(1) <= 3
    places = [(there[user].requested_at, user) for user in given]
    assert places == sorted(places)
    for user in order:
        lab_id = there[user].lab_id
        alike = [other for other, one in there.items() if one.lab_id in ((3,) if lab_id == 3 else (1, 2))]
        unplaced = [
            other
            for other in alike
            if other not in waiting
            and there[other].phase in (LabPhase.WAITING, LabPhase.PROVISIONING)
            and (labs[other][1] is None or not labs[other][1].node)
        ]
        assert len(running) >= 12 or (lab_id == 1 and running.count(1) >= 3) or unplaced, (user, there[user])

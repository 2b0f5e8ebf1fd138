"""Labs that were asked for through Redis: whoever asks there connects to port 22."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hostler.engine.labs import state_machine
from hostler.engine.labs.catalogue import shape_of
from hostler.engine.labs.decide import SPARE, Act, LabConditions, decide
from hostler.engine.labs.queue_consumer import Rules
from hostler.engine.labs.state_machine import LabStart
from hostler.model.lab import ORG, REDIS_DOOR, LabCatalogue, LabEvent, LabPhase, LabTemplate, LabUser
from hostler.model.vm import Access, MachineState, VirtualMachine, VmHandle
from hostler.ports.inbox import Taken

CATALOGUE = LabCatalogue(default=LabTemplate(life=1000.0, grace=100.0))


def asked(record: LabUser | None = None, lab_id: int = 5, door: str = REDIS_DOOR, **more: Any) -> LabUser:
    return state_machine.start(
        record, "ada", LabStart(lab_id, **{"switch": False, "door": door, **more}), catalogue=CATALOGUE, now=0.0
    )


def provisioned(door: str) -> LabUser:
    return state_machine.admit(asked(door=door), "v", CATALOGUE.default, 0.0)


def door_of(record: LabUser) -> tuple[int, str]:
    assert record.lab is not None
    return record.lab.lab_id, record.lab.door


@pytest.mark.parametrize(("door", "port", "ends"), [("redis", 20_001, True), ("", 20_001, False), ("redis", 22, False)])
def test_a_lab_from_redis_whose_machine_has_a_forwarded_port_fails_with_that_reason(
    door: str, port: int, ends: bool
) -> None:
    spec = shape_of(CATALOGUE.default, ())
    fields: dict[str, Any] = {"id": "v", "name": "n", "org": ORG, "project": "ada", "created_at": 0.0}
    vm = VirtualMachine(**fields, spec=spec, expires_at=1100.0 + SPARE)
    access = Access(host="::1", port=port, user="student", host_keys=())
    seen = VmHandle(id="v", node="r1-1", state=MachineState.RUNNING, seen_at=0.0, access=access)
    step = decide(provisioned(door), vm, seen, LabConditions(catalogue=CATALOGUE), now=1.0)
    assert step.record is not None
    lab = step.record.lab
    assert lab is not None
    assert (step.act is Act.DELETE, lab.ending is LabEvent.FAILED) == (ends, ends)
    assert lab.ending_reason.startswith("node r1-1 reaches its guests only through forwarded ports") is ends


def test_the_door_stays_with_what_was_asked_for_through_it() -> None:
    taken = Taken(queue="provision", token="t", raw=b'{"webuserid": "ada", "labId": 5}')
    change = Rules(lambda: CATALOGUE).decode(taken).change
    assert door_of(change(None, 0.0)) == (5, REDIS_DOOR)
    for first, then in ((REDIS_DOOR, ""), ("", REDIS_DOOR)):
        stops = state_machine.stopping(provisioned(first), LabEvent.STOPPED, "", 1.0)
        for follows in (asked(stops, 6, then), asked(provisioned(first), 6, then, switch=True)):
            assert follows.lab is not None
            assert (follows.lab.phase, follows.lab.again) == (LabPhase.STOPPING, 6)
            assert door_of(state_machine.gone(follows, 2.0, CATALOGUE)) == (6, then)


def test_a_record_of_before_has_no_door() -> None:
    plain = msgspec.to_builtins(asked())
    del plain["lab"]["door"]
    assert door_of(msgspec.convert(plain, LabUser)) == (5, "")

"""Next step for a node: decisions from values, without a store."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hostler.engine.controllers.node_decision import (
    ASK_POWER_EVERY,
    NOTHING,
    Act,
    NodeSnapshot,
    PowerRules,
    Step,
    decide,
    transaction,
)
from hostler.keys.entry import Entry
from hostler.keys.families import ALIVE, MEMBER
from hostler.model.inventory import Capacity
from hostler.model.node import DrainMode, Heartbeat, Lifecycle, NodeRecord

POWER = PowerRules(grace=30.0, settle=4.0)


def node(**fields: Any) -> NodeRecord:
    """Return a node on duty."""
    capacity = Capacity(cpus=4, memory_mib=4096, disk_gib=10)
    values = {"node": "n", "lifecycle": Lifecycle.ON_DUTY, "capacity": capacity, "registered_at": 1.0}
    return NodeRecord(**{**values, **fields})


def snapshot(record: NodeRecord, *, alive: bool = False, **more: Any) -> NodeSnapshot:
    """Return a snapshot of a node with machines that has been unreachable for a minute."""
    heartbeat = entry(ALIVE.fill(node="n"), Heartbeat(holder="h", started_at=1.0)) if alive else None
    values: dict[str, Any] = {"machines": 2, "is_empty": False, "unreachable_for": 60.0, "power_asked_at": None}
    return NodeSnapshot(member=entry(MEMBER.fill(node="n"), record), heartbeat=heartbeat, **{**values, **more})


def entry(key: str, value: Any) -> Entry[Any]:
    """Return an entry as a cache has it."""
    return Entry(value, {"node": "n"}, key, create_revision=3, mod_revision=7, version=2)


def test_a_node_that_joined_is_put_on_duty_once_it_is_alive() -> None:
    record = node(lifecycle=Lifecycle.JOINING)
    assert decide(snapshot(record, alive=True), POWER, 0.0) == Step(Act.PUT_ON_DUTY)
    assert decide(snapshot(record, alive=False), None, 0.0) == NOTHING


@pytest.mark.parametrize("alive", [True, False])
def test_a_drained_node_is_decommissioned_exactly_if_it_is_empty_and_was_to_be_emptied(alive: bool) -> None:
    record = node(lifecycle=Lifecycle.DRAINING, drain=DrainMode.MOVE)
    assert decide(snapshot(record, alive=alive, is_empty=True, machines=0), None, 0.0) == Step(Act.DECOMMISSION)
    assert decide(snapshot(record, alive=alive), None, 0.0) == NOTHING
    stopped = msgspec.structs.replace(record, drain=DrainMode.STOP)
    assert decide(snapshot(stopped, alive=alive, is_empty=True, machines=0), None, 0.0) == NOTHING


def test_an_unreachable_node_is_switched_off_after_the_grace_time_and_asked_again_after_a_pause() -> None:
    record = node(lifecycle=Lifecycle.ON_DUTY)
    assert decide(snapshot(record), POWER, 100.0) == Step(Act.SWITCH_OFF)
    assert decide(snapshot(record, unreachable_for=20.0), POWER, 100.0) == Step(after=10.001)
    asked = snapshot(record, power_asked_at=90.0)
    assert decide(asked, POWER, 100.0) == Step(after=ASK_POWER_EVERY - 10.0 + 0.001)
    assert decide(asked, POWER, 90.0 + ASK_POWER_EVERY) == Step(Act.SWITCH_OFF)


@pytest.mark.parametrize("record", [node(lifecycle=Lifecycle.SHUTTING_DOWN), node(awaited=True)])
def test_a_node_that_left_or_may_still_arrive_is_not_switched_off(record: NodeRecord) -> None:
    assert decide(snapshot(record), POWER, 0.0) == NOTHING


def test_a_node_without_machines_or_power_switch_is_not_switched_off() -> None:
    record = node(lifecycle=Lifecycle.ON_DUTY)
    assert decide(snapshot(record, machines=0), POWER, 0.0) == NOTHING
    assert decide(snapshot(record), None, 0.0) == NOTHING
    assert decide(snapshot(record, alive=True), POWER, 0.0) == NOTHING


def test_each_transaction_compares_the_record_it_was_decided_from() -> None:
    for act in (Act.PUT_ON_DUTY, Act.DECOMMISSION, Act.SWITCH_OFF):
        one = snapshot(node(), alive=act is Act.PUT_ON_DUTY)
        txn, why = transaction(one, act, at=5.0)
        assert txn.when[0] == MEMBER.unchanged(one.member)
        assert why.read == (one.member,)
    with pytest.raises(ValueError, match="writes nothing"):
        transaction(snapshot(node()), Act.NOTHING, at=5.0)

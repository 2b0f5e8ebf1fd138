"""Faults as values, and the log of a simulation."""

from __future__ import annotations

import pytest

from hostler.errors import Invalid
from hostler.sim.fault import FAULTS, Partition, PowerFault, fault_of, fields_of
from hostler.sim.world.event_log import Log, LogEntry, read_log

NAMES = """power network cable_stuck pdu_stuck tor_stuck blade_crash slow_disk store_unavailable store_slow answer_lost
    watch_lost partition leader_paused leader_killed replica_killed clock_rate provider_errors agent_killed
    agent_slow slice_crash slice_refuses"""


def test_every_fault_has_its_name_and_is_read_back_as_it_was_written() -> None:
    assert list(FAULTS) == NAMES.split()
    for name in FAULTS:
        fault = fault_of({"fault": name, "on": "r1/b1", "for": 30})
        assert (fault.name, fault.on, fault.for_) == (name, "r1/b1", 30.0)
        assert fields_of(fault) == {"fault": name, "on": "r1/b1", "for": 30.0}
        assert fault_of(fields_of(fault)) == fault


def test_a_fault_is_told_in_one_line() -> None:
    assert PowerFault(on="r1/pdu1", for_=30).told() == "power r1/pdu1 for 30 s"
    assert Partition(names=("replica-1", "r1")).told() == "partition names=replica-1,r1"
    assert fault_of({"fault": "clock_rate", "on": "r1/b1", "rate": 1.5}).told() == "clock_rate r1/b1 rate=1.5"


def test_a_partition_names_each_of_its_members_once() -> None:
    assert Partition(on="r1", names=("replica-1", "r1", "r2/b1")).members == ("r1", "replica-1", "r2/b1")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"fault": "flood"}, "fault 'flood': no such fault; the faults are power, network"),
        ({}, "no such fault"),
        ({"fault": "power", "by": 3}, "fault power: object contains unknown field `by`"),
        ({"fault": "power", "for": 0}, "fault power: for 0: must be above 0 seconds"),
        ({"fault": "power", "for": "long"}, "fault power: expected `float | null`, got `str`"),
        ({"fault": "clock_rate", "rate": 0}, "fault clock_rate: rate 0: must be from 0.01 to 100"),
        ({"fault": "answer_lost", "chance": 1.5}, "fault answer_lost: chance 1.5: must be above 0 and at most 1"),
        ({"fault": "provider_errors", "chance": 0}, "chance 0: must be above 0 and at most 1"),
        ({"fault": "store_slow", "slowest": -1}, "slowest -1: must be above 0 seconds"),
        ({"fault": "slow_disk", "delay": 0}, "delay 0: must be above 0 seconds"),
        ({"fault": "agent_slow", "delay": float("inf")}, "delay inf: must be above 0 seconds"),
    ],
)
def test_what_is_no_fault_is_refused_with_its_reason(fields: dict[str, object], why: str) -> None:
    with pytest.raises(Invalid) as refused:
        fault_of(fields)
    assert why in str(refused.value)


def test_a_log_counts_its_entries_and_is_read_back_from_its_lines() -> None:
    told: list[LogEntry] = []
    log = Log(lambda: 1.23456789, tell=told.append)
    log.add("fault", "r1/pdu1", "fault-1: power", id="fault-1")
    log.add("hardware", "r1/b1", "working → off", "r1/pdu1")
    assert len(log) == 2
    assert list(log) == told
    assert read_log(log.lines()) == told
    assert log.lines().splitlines()[1].decode() == (
        '{"number":2,"at":1.234568,"kind":"hardware","component":"r1/b1","text":"working → off","cause":"r1/pdu1"}'
    )


def test_a_log_that_is_not_kept_is_told_and_counted() -> None:
    told: list[LogEntry] = []
    log = Log(lambda: 0.0, tell=told.append, kept=False)
    log.add("fault", "r1", "power")
    assert (len(log), log.entries, len(told)) == (1, [], 1)

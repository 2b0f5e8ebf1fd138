"""D37: the processor time of instances is measured on their node, and told with the calls."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from hostler.drivers.slices.process.process import cpu_seconds
from hostler.engine.invocation.call_metrics import Measures
from hostler.kit.clock import SystemClock

if TYPE_CHECKING:
    from pathlib import Path


class Hand(SystemClock):
    """Goes when it is moved."""

    at = 100.0

    def now(self) -> float:
        return self.at


def test_d37_rates_are_by_artifact_over_all_instances_of_the_node() -> None:
    clock = Hand()
    measures = Measures(clock)
    used = {"a:b:1#1": 10.0, "a:b:1#2": 0.0, "a:c:1#1": 5.0}
    assert measures.seconds_after("r", 0).cpu == {}, "a process without slices"
    with measures.cpu.counting(lambda: dict(used)):
        assert measures.seconds_after("r", 0).cpu == {}, "one sample is no rate"
        clock.at += 2
        used.update({"a:b:1#1": 11.0, "a:b:1#2": 1.0, "a:b:1#3": 77.0})
        assert measures.seconds_after("r", 0).cpu == {"a:b:1": 1.0}, (
            "half a processor each; a new instance has no rate yet"
        )
        clock.at += 8
        used.update({"a:b:1#1": 0.5})  # started again
        assert measures.seconds_after("r", 0).cpu == {}
        clock.at += 8
        used.update({"a:b:1#1": 8.5, "a:c:1#1": 9.0})
        assert measures.seconds_after("r", 0).cpu == {"a:b:1": 1.0, "a:c:1": 0.5}
    assert measures.seconds_after("r", 0).cpu == {}


def test_d37_a_process_is_measured_by_its_group_else_by_proc(tmp_path: Path) -> None:
    before, end = cpu_seconds(os.getpid()), time.process_time() + 0.1
    assert before is not None
    while time.process_time() < end:
        pass
    after = cpu_seconds(os.getpid(), (str(tmp_path),))  # a group that tells nothing
    assert after is not None
    assert after - before >= 0.05
    (tmp_path / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    assert cpu_seconds(os.getpid(), (str(tmp_path),)) == pytest.approx(2.5)
    assert cpu_seconds(2**22 + 1) is None

"""What the status of a workload says, of one and of many."""

from __future__ import annotations

import pytest

from hostler.engine.workloads.instance_index import WorkloadInstances
from hostler.engine.workloads.views import _detail
from hostler.model.vm import VmSpec
from hostler.model.workload import Workload
from hostler.model.workload_api import WorkloadPhase


@pytest.mark.parametrize(
    ("instances", "said"),
    [(4, "why"), (5, "why; 1 more is not created for that reason"), (7, "why; 3 more are not created for that reason")],
)
def test_those_that_are_not_made_are_counted_as_people_do(instances: int, said: str) -> None:
    workload = Workload(name="web", instances=instances, spec=VmSpec(cpus=1, memory_mib=1), created_at=1.0)
    assert _detail(WorkloadPhase.PENDING, workload, WorkloadInstances(), "why", made=4, updated=0) == said

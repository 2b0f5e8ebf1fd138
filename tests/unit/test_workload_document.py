"""Workload files: what people write becomes what is applied, and everything that is wrong is told with its line."""

from __future__ import annotations

import json

import msgspec
import pytest
from msgspec import UNSET

from hostler.engine.workloads.workload_file import read_workload
from hostler.errors import Invalid
from hostler.model.vm import Level, OnNodeLoss, RestartPolicy, VmSpec
from hostler.model.workload import Rollout, Workload
from hostler.model.workload_api import WorkloadApply, WorkloadRule, apply_of

SMALL = "name: web\ncpus: 1\nmemory: 512MiB\n"
WHOLE = """
name: Web
org: acme
project: shop
enabled: false
instances: 12
spec:
  cpus: 2
  memory: 2GiB
  disk: 10GiB
  image: debian-12
  user: ada
  user_data: |
    #cloud-config
  ssh_keys: [ssh-ed25519 AAAA ada]
  cpu_share: 200
affinity:
  - {together: false, level: node}
  - {together: true, level: rack, labels: {app: db}, required: false}
node_labels: {disk: ssd}
on_node_loss: wait
restart: on_failure
rollout: {max_surge: 2}
labels: {tier: 1}
"""


def test_a_workload_that_does_not_say_waits_for_a_lost_node_and_a_stored_one_keeps_what_it_meant() -> None:
    assert read_workload(SMALL).on_node_loss is OnNodeLoss.WAIT
    assert WorkloadApply(name="web", spec=VmSpec(cpus=1, memory_mib=512)).on_node_loss is OnNodeLoss.WAIT
    old = b'{"name": "web", "instances": 1, "spec": {"cpus": 1, "memory_mib": 512}}'
    assert Workload.decode(old).on_node_loss is OnNodeLoss.FENCE
    assert Workload.decode(old).loss is OnNodeLoss.RECREATE


def test_a_fence_that_is_asked_for_now_returns_and_an_older_one_is_shown_as_what_it_does() -> None:
    from hostler.engine.workloads.changes import apply, new_workload
    from hostler.engine.workloads.vm_template import vm_of_instance

    wanted = read_workload(SMALL + "on_node_loss: fence\n")
    new = new_workload(wanted, 5.0)
    assert (new.loss, apply_of(new).on_node_loss) == (OnNodeLoss.FENCE, OnNodeLoss.FENCE)
    assert not vm_of_instance(new, 1, vm="i", name="n", at=0.0).recreates
    old = msgspec.structs.replace(new, returns=False)
    assert vm_of_instance(old, 1, vm="i", name="n", at=0.0).recreates
    assert apply_of(old).on_node_loss is OnNodeLoss.RECREATE
    assert apply(old, new, wanted).returns, "applied again, it means what it means now"


def test_a_small_file_and_a_whole_one() -> None:
    assert read_workload(SMALL) == WorkloadApply(name="web", spec=VmSpec(cpus=1, memory_mib=512))
    assert read_workload(SMALL).instances is UNSET
    found = read_workload(WHOLE)
    assert found == WorkloadApply(
        name="Web",
        org="acme",
        project="shop",
        enabled=False,
        instances=12,
        spec=VmSpec(
            cpus=2,
            memory_mib=2048,
            disk_gib=10,
            image="debian-12",
            user="ada",
            user_data="#cloud-config\n",
            ssh_keys=("ssh-ed25519 AAAA ada",),
            cpu_share=200,
        ),
        affinity=(
            WorkloadRule(together=False, level=Level.NODE),
            WorkloadRule(together=True, level=Level.RACK, labels={"app": "db"}, required=False),
        ),
        node_labels={"disk": "ssd"},
        on_node_loss=OnNodeLoss.WAIT,
        restart=RestartPolicy.ON_FAILURE,
        rollout=Rollout(max_surge=2),
        labels={"tier": "1"},
    )


def test_what_the_api_takes_can_be_read_as_a_file() -> None:
    """`hostler workload status -o json`, and what a program sends, have the exact names."""
    found = read_workload(WHOLE)
    sent = json.loads(found.encode())
    sent["spec"] = {name: value for name, value in sent["spec"].items() if name != "origin"}
    assert read_workload(json.dumps(sent)) == found
    assert WorkloadApply.decode(found.encode(), strict=True) == found


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("cpus: 1\nmemory: 1G", ["w.yaml:1: name: is missing"]),
        ("name: web", ["w.yaml:1: cpus: is missing", "w.yaml:1: memory: is missing"]),
        (SMALL + "instances: many", ["w.yaml:4: instances: must be a whole number, not 'many'"]),
        (SMALL + "instances: -1", ["w.yaml:4: instances: must be from 0 to 1000000"]),
        (SMALL + "cpu: 2", ["w.yaml:4: cpu: unknown field; did you mean cpus?"]),
        (SMALL + "restart: sometimes", ["w.yaml:4: restart: must be always, on_failure or never"]),
        (SMALL + "memory_mib: 5", ["w.yaml:1: memory: is given twice, also as memory_mib; leave one out"]),
        (SMALL + "disk: 5", ["w.yaml:4: disk: must be whole GiB; write 10GiB"]),
        (SMALL + "disk: some", ["w.yaml:4: disk: 'some' is not a size; write 512M or 2G"]),
        (SMALL + "spec: {cpus: 1, memory: 1G}", ["w.yaml:2: cpus: is next to spec", "w.yaml:3: memory: is next to"]),
        (SMALL + "affinity:\n- {level: node}", ["w.yaml:5: affinity[0].together: is missing"]),
        (SMALL + "affinity:\n- {together: false, level: room}", ["affinity[0].level: must be node, rack, pdu or tor"]),
        (SMALL + "rollout: {max: 1}", ["w.yaml:4: rollout.max: unknown field"]),
        (SMALL + f"org: {'x' * 256}", ["w.yaml:4: org: must have from 0 to 255 characters"]),
        ("name: [web", ["w.yaml:2: not YAML"]),
        ("", ["must be a map, not empty"]),
        ("name: " + "x" * 41 + "\ncpus: 1\nmemory: 1G", ["w.yaml:1: name: must have from 1 to 40 characters"]),
    ],
)
def test_everything_that_is_wrong_is_told_with_its_line(text: str, told: list[str]) -> None:
    with pytest.raises(Invalid) as caught:
        read_workload(text, "w.yaml")
    lines = str(caught.value).splitlines()
    assert len(lines) >= len(told)
    for line in told:
        assert any(line in said for said in lines), (line, lines)


def test_a_record_can_be_asked_for_as_it_is() -> None:
    from hostler.engine.workloads.changes import new_workload

    wanted = read_workload(WHOLE)
    assert apply_of(new_workload(wanted, 5.0)) == wanted

"""Workloads ask for an architecture, accelerators and volumes; nodes say what they have, and each says why not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hostler.engine.inventory.inventory_file import read_inventory
from hostler.engine.placement import Cluster, NodeState, PlacementRequest, judge, place
from hostler.engine.workloads.workload_file import read_workload
from hostler.entry.agent import plan_of
from hostler.entry.cli.workload.read import _shape
from hostler.errors import Invalid
from hostler.model.inventory import Capacity
from hostler.model.vm import VmSpec, architecture, hardware_labels
from hostler.settings import load

ROOM = Capacity(cpus=64, memory_mib=65536, disk_gib=1000)
WORKLOAD = """
name: train
cpus: 4
memory: 8GiB
arch: amd64
accelerators: {gpu: 2}
volumes: [scratch, models]
"""


def wanted(vm: str, spec: VmSpec) -> PlacementRequest:
    return PlacementRequest(vm=vm, project="acme/ml", spec=spec, name=vm)


def cluster(**nodes: dict[str, str]) -> Cluster:
    found = Cluster()
    for node, labels in nodes.items():
        found.put_node(NodeState(node=node, capacity=ROOM, labels=labels, rack="r1"))
    return found


def test_i47_a_workload_file_names_architecture_accelerators_and_volumes() -> None:
    spec = read_workload(WORKLOAD).spec
    assert (spec.arch, spec.accelerators, spec.volumes) == ("x86_64", {"gpu": 2}, ("scratch", "models"))
    assert _shape(spec).endswith("arch x86_64, 2 accelerators gpu, volume scratch, volume models")
    for before, after, told in (
        ("{gpu: 2}", "{gpu: 0}", "accelerators.gpu: must be from 1 to 1024"),
        ("{gpu: 2}", "[gpu]", "accelerators"),
        ("{gpu: 2}", "{'g p': 1}", "must be up to 63 letters"),
        ("[scratch, models]", "[scratch, scratch]", "scratch is listed twice"),
        ("[scratch, models]", "[a/b]", "must be up to 63 letters"),
    ):
        with pytest.raises(Invalid, match=told):
            read_workload(WORKLOAD.replace(before, after))
    for bad in ({"accelerators": {"gpu": 0}}, {"volumes": ("",)}, {"arch": "x 64"}, {"accelerators": {"": 1}}):
        with pytest.raises(Invalid):
            VmSpec.decode(VmSpec(cpus=1, memory_mib=1, **bad).encode(), strict=True)  # type: ignore[arg-type]


def test_i47_placement_honours_them_and_says_per_node_why_not() -> None:
    spec = read_workload(WORKLOAD).spec
    whole = hardware_labels("X64", {"gpu": 4}, ("scratch", "models"))
    nodes = cluster(
        good=whole,
        arm={**whole, "arch": "aarch64"},
        few={**whole, "accelerator.gpu": "1"},
        bare={name: value for name, value in whole.items() if name != "volume.models"},
        odd={**whole, "accelerator.gpu": "many"},
        none={},
    )
    assert place(wanted("a", spec), nodes).node == "good"
    said = {each.node: each.reasons for each in judge(wanted("a", spec), nodes) if not each.fits}
    assert said == {
        "arm": ("not of architecture x86_64",),
        "few": ("1 of 2 accelerators of kind gpu free",),
        "bare": ("without volume models",),
        "odd": ("0 of 2 accelerators of kind gpu free",),
        "none": (
            *("not of architecture x86_64", "without volume scratch", "without volume models"),
            "0 of 2 accelerators of kind gpu free",
        ),
    }


def test_i47_among_many_nodes_the_few_that_will_do_are_found() -> None:
    spec = read_workload(WORKLOAD).spec
    whole = hardware_labels("x86_64", {"gpu": 2}, ("scratch", "models"))
    nodes = cluster(**{f"n{number}": {"arch": "x86_64"} for number in range(200)}, good=whole)
    assert place(wanted("a", spec), nodes).node == "good"
    nodes.use("a", "good", wanted("a", spec))
    refused = place(wanted("b", spec), nodes)
    assert refused.node is None
    assert {reason.why.partition(" (")[0] for reason in refused.reasons} == {
        *("without volume scratch", "too few free accelerators of kind gpu: 2 wanted"),
    }


def test_i47_accelerators_are_taken_by_machines_and_given_back() -> None:
    spec = VmSpec(cpus=1, memory_mib=1024, accelerators={"gpu": 2})
    nodes = cluster(n1=hardware_labels("", {"gpu": 4}, ()), n2={})
    for vm in ("a", "b"):
        assert place(wanted(vm, spec), nodes).node == "n1"
        nodes.use(vm, "n1", wanted(vm, spec))
    refused = place(wanted("c", spec), nodes)
    assert refused.node is None
    assert refused.summary == "no node will do: 2 nodes have too few free accelerators of kind gpu: 2 wanted"
    assert place(wanted("d", replace(spec, accelerators={})), nodes).node is not None
    nodes.free("a")
    assert place(wanted("c", spec), nodes).node == "n1"


def test_i47_an_inventory_file_and_an_agent_say_what_a_node_has() -> None:
    text = """
racks:
  - name: r1
    pdus: [{name: pdu1, ports: 4}]
    tors: [{name: tor1, ports: 4}]
    blades:
      - {name: b1, cpus: 8, memory: 16GiB, arch: arm64, accelerators: {gpu: 4}, volumes: [scratch], labels: {disk: ssd}}
      - {count: 2, first: 2, cpus: 8, memory: 16GiB, volumes: [scratch]}
"""
    blades = [record for record in read_inventory(text, "dc.yaml").records().values() if hasattr(record, "capacity")]
    has = {"arch": "aarch64", "accelerator.gpu": "4", "volume.scratch": "yes", "disk": "ssd"}
    assert [blade.labels for blade in blades] == [has, {"volume.scratch": "yes"}, {"volume.scratch": "yes"}]
    with pytest.raises(Invalid, match="arch is given twice"):
        read_inventory(text.replace("disk: ssd", "arch: x"), "dc.yaml")
    settings = load({"labels": ("accelerator.gpu=2", "volume.scratch=yes")}, {})
    labels = plan_of(settings, "r1-b1", "r1").labels
    assert (labels["accelerator.gpu"], labels["volume.scratch"]) == ("2", "yes")
    assert labels["arch"] == architecture(labels["arch"]) != ""
    assert "arch" not in plan_of(load({"machines": "hetzner"}, {}), "r1-b1", "r1").labels

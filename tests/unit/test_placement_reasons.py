"""What a decision says of itself: node by node where there are few, honestly summed up where there are many."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hostler.engine.placement import (
    Cluster,
    Decision,
    NodeState,
    PlacementRequest,
    explain,
    judge,
    node_state,
    place,
    wanted_of,
    wanted_of_command,
)
from hostler.model.inventory import Capacity
from hostler.model.node import Lifecycle, NodeRecord, VmCommand
from hostler.model.vm import Affinity, Level, OnNodeLoss, VirtualMachine, VmSpec

CAPACITY = Capacity(cpus=8, memory_mib=4096, disk_gib=100)


def node(name: str, **more: Any) -> NodeState:
    return NodeState(**({"node": name, "capacity": CAPACITY} | more))


def wish(vm: str, *, cpus: int = 2, memory_mib: int = 1024, disk_gib: int = 10, **more: Any) -> PlacementRequest:
    spec = VmSpec(cpus=cpus, memory_mib=memory_mib, disk_gib=disk_gib)
    return PlacementRequest(**({"vm": vm, "project": "o/p", "spec": spec} | more))


def told(decision: Decision) -> dict[str, str]:
    return {reason.subject: reason.why for reason in decision.reasons}


def verdicts(wanted: PlacementRequest, cluster: Cluster) -> dict[str, tuple[str, ...]]:
    return {verdict.node: verdict.reasons for verdict in judge(wanted, cluster)}


def apart(level: Level, **labels: str) -> Affinity:
    return Affinity(together=False, level=level, labels=labels)


def together(level: Level, **labels: str) -> Affinity:
    return Affinity(together=True, level=level, labels=labels)


# Few nodes


def test_in_a_small_cluster_every_node_has_its_reason() -> None:
    cluster = Cluster(
        [
            node("free"),
            node("half"),
            node("full"),
            node("leaving", on_duty=False, why_not="draining"),
            node("away", on_duty=False, why_not="unreachable"),
        ]
    )
    cluster.use("x", "half", wish("x", cpus=4, memory_mib=2048))
    cluster.use("y", "full", wish("y", cpus=7, memory_mib=4000))
    decision = place(wish("new", cpus=3, project="o/q"), cluster)
    assert decision.node == "free"
    assert told(decision) == {
        "free": "chosen: score 77.5 (62% stays free, spread 100%)",
        "half": "fits: score 47.5 (12% stays free, spread 100%)",
        "away": "not on duty: unreachable",
        "full": "no room: 2 of 3 cpus and 928 of 1,024 MiB of memory missing",
        "leaving": "not on duty: draining",
    }
    assert decision.summary == "node free: score 77.5, the best of 2 that will do, of 5"
    assert decision.score == pytest.approx(77.5)


def test_a_machine_that_no_node_takes_is_told_how_much_is_missing() -> None:
    cluster = Cluster([node("a"), node("b"), node("c", on_duty=False, why_not="still joining")])
    cluster.use("x", "b", wish("x", disk_gib=95))
    decision = place(wish("new", memory_mib=5000, disk_gib=20), cluster)
    assert (decision.node, decision.score) == (None, 0.0)
    assert told(decision) == {
        "a": "no room: 904 of 5,000 MiB of memory missing",
        "b": "no room: 1,928 of 5,000 MiB of memory and 15 of 20 GiB of disk missing",
        "c": "not on duty: still joining; no room: 904 of 5,000 MiB of memory missing",
    }
    assert decision.summary == (
        "no node will do: 1 node not on duty: still joining; 1 node has too little memory;"
        " 1 node has too little memory and too little disk"
    )


def test_a_verdict_holds_everything_that_is_against_a_node() -> None:
    cluster = Cluster([node("a", on_duty=False, why_not="draining", labels={"zone": "x"})])
    wanted = wish("new", cpus=9, node_labels={"zone": "y", "node": "b"}, fenced=True, exclude=frozenset(["a"]))
    [verdict] = judge(wanted, cluster)
    assert not verdict.fits
    assert verdict.reasons == (
        "not on duty: draining",
        "not labelled zone=y",
        "not labelled node=b",
        "excluded",
        "cannot fence machines",
        "no room: 1 of 9 cpus missing",
    )


def test_a_verdict_in_favour_says_what_stays_free_and_who_else_is_there() -> None:
    cluster = Cluster([node("a", rack="r1"), node("b", rack="r1"), node("c", rack="r2")])
    cluster.use("x", "a", wish("x"))
    found = judge(wish("new"), cluster)
    assert [(verdict.node, verdict.fits) for verdict in found] == [("c", True), ("b", True), ("a", True)]
    assert [verdict.score for verdict in found] == sorted((verdict.score for verdict in found), reverse=True)
    assert found[0].reasons == (
        "75% stays free: 6 of 8 cpus, 3,072 of 4,096 MiB of memory, 90 of 100 GiB of disk",
        "spread 100%: of 1 other of the project, none shares anything",
    )
    assert found[2].reasons[1] == "spread 30%: of 1 other of the project, 1 on node a, 1 on rack r1"


def test_best_come_first_and_then_those_with_the_fewest_reasons_against() -> None:
    cluster = Cluster([node("a", on_duty=False), node("b"), node("c", on_duty=False, labels={"z": "1"}), node("d")])
    cluster.use("x", "d", wish("x", project="o/x"))
    wanted = wish("new", exclude=frozenset(["a"]))
    assert [verdict.node for verdict in judge(wanted, cluster)] == ["b", "d", "c", "a"]
    assert [verdict.node for verdict in judge(wanted, cluster, limit=3)] == ["b", "d", "c"]
    assert [verdict.node for verdict in judge(wanted, cluster, limit=1)] == ["b"]


# Rules


def test_the_machine_to_be_apart_from_is_named() -> None:
    cluster = Cluster([node("a", rack="r1"), node("b", rack="r1"), node("c", rack="r2")])
    cluster.use("x", "a", wish("x", name="db-1", labels={"app": "db"}))
    wanted = wish("new", affinity=(apart(Level.RACK, app="db"),))
    against = "must be apart from db-1 (a machine labelled app=db), which is on rack r1 too"
    assert told(place(wanted, cluster)) == {
        "c": "chosen: score 85.0 (75% stays free, spread 100%)",
        "a": against,
        "b": against,
    }


def test_apart_by_pdu_means_to_share_none_and_together_to_share_one() -> None:
    cluster = Cluster(
        [
            node("a", pdus=("p1", "p2")),
            node("b", pdus=("p2", "p3")),
            node("c", pdus=("p3", "p4")),
        ]
    )
    cluster.use("x", "a", wish("x", labels={"app": "db"}))
    assert place(wish("new", affinity=(apart(Level.PDU, app="db"),)), cluster).node == "c"
    near = wish("new", affinity=(together(Level.PDU, app="db"),), exclude=frozenset(["a"]))
    assert place(near, cluster).node == "b"


def test_together_with_nobody_yet_holds_anywhere_and_says_so() -> None:
    cluster = Cluster([node("a")])
    wanted = wish("new", affinity=(together(Level.RACK, app="db"),))
    assert place(wanted, cluster).node == "a"
    assert verdicts(wanted, cluster)["a"][1:] == ("a machine labelled app=db does not exist yet: any node will do",)


def test_machines_of_other_projects_mean_nothing_to_a_rule() -> None:
    cluster = Cluster([node("a")])
    cluster.use("x", "a", wish("x", project="o/q", labels={"app": "db"}))
    assert place(wish("new", affinity=(apart(Level.NODE, app="db"),)), cluster).node == "a"


def test_a_newcomer_keeps_away_from_those_that_must_be_apart_from_it() -> None:
    cluster = Cluster([node("a", tors=("t1",)), node("b", tors=("t1",))])
    cluster.use("x", "a", wish("x", name="lonely", affinity=(apart(Level.TOR, app="web"),)))
    decision = place(wish("new", labels={"app": "web"}), cluster)
    assert decision.node is None
    assert told(decision)["b"] == (
        "must be apart from lonely (a machine whose own rule it would break), which is on tor t1 too"
    )
    assert place(wish("new", labels={"app": "db"}), cluster).node == "b"


def test_what_is_not_known_of_a_rack_keeps_no_promise() -> None:
    cluster = Cluster([node("a", rack="r1"), node("b")])
    cluster.use("x", "a", wish("x", labels={"app": "db"}))
    wanted = wish("new", affinity=(apart(Level.RACK, app="db"),))
    assert told(place(wanted, cluster))["b"] == "may share a rack with a machine labelled app=db: that is not known"
    cluster.use("x", "b", wish("x", labels={"app": "db"}))
    assert place(wanted, cluster).node is None


def test_a_preference_that_is_not_kept_is_told() -> None:
    cluster = Cluster([node("a"), node("b")])
    cluster.use("x", "a", wish("x", name="db-1", labels={"app": "db"}))
    rule = msgspec.structs.replace(apart(Level.NODE, app="db"), required=False)
    found = verdicts(wish("new", affinity=(rule,)), cluster)
    assert found["a"][-1] == (
        "preferred, not kept: must be apart from db-1 (a machine labelled app=db), which is on node a too"
    )
    assert found["b"][-1] == "preferred: shares no node with a machine labelled app=db"


# Many nodes


def crowd(count: int, **more: Any) -> list[NodeState]:
    return [node(f"n{number:04}", rack=f"r{number % 50}", **more) for number in range(count)]


def test_in_a_large_cluster_the_reasons_say_what_was_looked_at_and_what_not() -> None:
    off = [node(f"off{number}", on_duty=False, why_not="unreachable") for number in range(7)]
    decision = place(wish("new"), Cluster([*crowd(5000), *off]))
    subjects = [reason.subject for reason in decision.reasons]
    assert subjects[0] == decision.node
    assert decision.reasons[0].why == "chosen: score 85.0 (75% stays free, spread 100%)"
    assert subjects[4:] == ["4 nodes", "4,992 nodes", "7 nodes"]
    assert decision.reasons[4].why.startswith("fit: score 85.0 or less (n")
    assert [reason.why for reason in decision.reasons[5:]] == ["not looked at: no emptier than these", "not on duty"]
    assert decision.summary.endswith("score 85.0, the best of 8 that were scored, of 5,007")


def test_every_node_of_a_large_cluster_is_counted_once() -> None:
    cluster = Cluster(
        [*crowd(300), *(node(f"gpu{number}", labels={"gpu": "yes"}, fences=True) for number in range(90))]
    )
    for number in range(0, 300, 2):
        cluster.use(f"x{number}", f"n{number:04}", wish(f"x{number}", cpus=7))
    for wanted in (
        wish("a"),
        wish("a", node_labels={"gpu": "yes"}),
        wish("a", node_labels={"rack": "r7"}),
        wish("a", fenced=True, cpus=3),
        wish("a", exclude=frozenset(["n0001", "gpu1"])),
        wish("a", node_labels={"gpu": "no"}),
        wish("a", cpus=9),
    ):
        subjects = [reason.subject for reason in place(wanted, cluster).reasons]
        counts = [int(subject.split()[0].replace(",", "")) if " node" in subject else 1 for subject in subjects]
        assert sum(counts) == 390, (wanted, subjects)


def test_a_large_cluster_without_room_is_told_in_groups_with_what_the_roomiest_has() -> None:
    cluster = Cluster(
        [*crowd(3120), *(node(f"s{number}", on_duty=False, why_not="unreachable") for number in range(5))]
    )
    decision = place(wish("new", memory_mib=9000), cluster)
    assert [(reason.subject, reason.why) for reason in decision.reasons] == [
        ("3,120 nodes", "too little memory: 4,096 of 9,000 MiB of memory free at most (n0000, n0001, n0002, …)"),
        ("5 nodes", "not on duty: unreachable (s0, s1, s2, …)"),
    ]
    assert decision.summary == "no node will do: 3,120 nodes have too little memory; 5 nodes not on duty: unreachable"
    labelled = place(wish("new", node_labels={"gpu": "yes"}), cluster)
    assert labelled.reasons[0].why == "not labelled gpu=yes (n0000, n0001, n0002, …)"


def test_nodes_that_lack_a_rare_label_are_said_to_be_not_looked_at() -> None:
    cluster = Cluster([*crowd(400), node("gpu", labels={"gpu": "yes"})])
    decision = place(wish("new", node_labels={"gpu": "yes"}), cluster)
    assert decision.node == "gpu"
    assert told(decision)["400 nodes"] == "not looked at: not labelled so, or no emptier"


@pytest.mark.parametrize("count", [5, 32, 33, 400])
@pytest.mark.parametrize("cpus", [1, 99])
def test_the_reasons_stay_short_however_long_the_names(count: int, cpus: int) -> None:
    long = "x" * 200
    nodes = [
        node(f"{long}{number}", on_duty=number % 3 > 0, why_not=f"{long}{number}", rack=f"{long}{number % 7}")
        for number in range(count)
    ]
    rule = apart(Level.RACK, **{f"{long}{number}": long for number in range(16)})
    decision = place(wish("new", cpus=cpus, affinity=(rule,), node_labels={"rack": f"{long}1"}), Cluster(nodes))
    assert len(decision.reasons) > 1
    assert len(msgspec.json.encode(decision.reasons)) <= 3200
    assert sum(len(reason.subject) + len(reason.why) for reason in decision.reasons) <= 2048


def test_thirty_two_nodes_with_usual_names_have_a_reason_each() -> None:
    cluster = Cluster(node(f"rack{number % 4}-blade{number:02}", rack=f"rack{number % 4}") for number in range(32))
    for cpus in (1, 9):
        assert {reason.subject for reason in place(wish("new", cpus=cpus), cluster).reasons} == set(cluster.slots)


# From records


def record(**more: Any) -> NodeRecord:
    usual = {"node": "r1-1", "lifecycle": Lifecycle.ON_DUTY, "capacity": CAPACITY, "registered_at": 0.0}
    return NodeRecord(**(usual | more))


@pytest.mark.parametrize(
    ("lifecycle", "alive", "why_not"),
    [
        (Lifecycle.ON_DUTY, True, ""),
        (Lifecycle.ON_DUTY, False, "unreachable"),
        (Lifecycle.JOINING, True, "still joining"),
        (Lifecycle.DRAINING, True, "draining"),
        (Lifecycle.DECOMMISSIONED, False, "decommissioned"),
        (Lifecycle.SHUTTING_DOWN, True, "shutting down"),
    ],
)
def test_only_a_living_node_on_duty_is_given_machines(lifecycle: Lifecycle, alive: bool, why_not: str) -> None:
    state = node_state(record(lifecycle=lifecycle, rack="r1", pdus=("p",), tors=("t",), fences=True), alive)
    assert (state.on_duty, state.why_not) == (not why_not, why_not)
    assert (state.node, state.rack, state.pdus, state.tors, state.fences) == ("r1-1", "r1", ("p",), ("t",), True)


def test_a_wish_and_its_command_are_wanted_alike() -> None:
    spec = VmSpec(cpus=1, memory_mib=512)
    vm = VirtualMachine(
        id="v",
        name="web",
        org="o",
        project="p",
        spec=spec,
        labels={"app": "web"},
        on_node_loss=OnNodeLoss.FENCE,
        affinity=(apart(Level.NODE, app="web"),),
        node_labels={"zone": "a"},
        created_at=0.0,
    )
    command = VmCommand(org="o", project="p", vm="v", spec=spec, fenced=True)
    assert wanted_of(vm) == wanted_of_command(command, vm)
    assert wanted_of(vm, exclude=frozenset(["n"])).exclude == {"n"}
    bare = wanted_of_command(command, None)
    assert (bare.vm, bare.project, bare.spec, bare.labels, bare.affinity) == ("v", "o/p", spec, {}, ())


# What nodes say of themselves


def test_a_node_without_the_image_will_not_do_and_says_what_to_do() -> None:
    cluster = Cluster([node("a", images=frozenset({"tiny"})), node("b", images=frozenset()), node("c")])
    debian = wish("v", spec=VmSpec(cpus=1, memory_mib=64, image="debian"))
    assert place(debian, cluster).node == "c"
    assert (
        told(place(debian, cluster))["a"] == "without image 'debian'; add it there (hostler image add), or name another"
    )
    default = verdicts(wish("w"), cluster)
    assert default["b"] == ("without any image; add or build one there (hostler image)",)
    assert place(wish("w", exclude=frozenset({"c"})), cluster).node == "a"


def test_a_node_that_refuses_says_why() -> None:
    cluster = Cluster([node("a", refuses="its disk is almost full")])
    decision = place(wish("v"), cluster)
    assert decision.node is None
    assert told(decision) == {"a": "taking no more machines: its disk is almost full"}
    cluster.put_node(node("a"))
    assert place(wish("v"), cluster).node == "a"


def test_in_a_large_cluster_only_nodes_with_the_image_are_chosen_and_refusals_are_kept_by_image() -> None:
    cluster = Cluster([node(f"n{n:02}", images=frozenset({"tiny"})) for n in range(40)])
    assert place(wish("v", spec=VmSpec(cpus=1, memory_mib=64, image="debian")), cluster).node is None
    assert place(wish("v", spec=VmSpec(cpus=1, memory_mib=64, image="tiny")), cluster).node is not None
    assert (
        "40 nodes without image 'debian'"
        in place(wish("v", spec=VmSpec(cpus=1, memory_mib=64, image="debian")), cluster).summary
    )


def test_a_machine_that_is_tied_to_a_node_says_so_and_needs_no_image() -> None:
    cluster = Cluster([node("a", images=frozenset({"tiny"})), node("b")])
    vm = VirtualMachine(
        id="v",
        name="v",
        org="o",
        project="p",
        spec=VmSpec(cpus=1, memory_mib=64, image="debian"),
        created_at=1.0,
        node_labels={"node": "A"},
    )
    decision = place(wanted_of(vm, only="A", tied="its origin is on node a"), cluster)
    assert decision.node == "a"
    assert told(decision)["b"] == "its origin is on node a"


def test_what_a_node_offers_is_what_placement_sees() -> None:
    record = NodeRecord(
        node="N", lifecycle=Lifecycle.ON_DUTY, capacity=CAPACITY, images=("tiny",), refuses="full", registered_at=1.0
    )
    state = node_state(record, alive=True)
    assert (state.images, state.refuses) == (frozenset({"tiny"}), "full")


@pytest.mark.parametrize(
    ("count", "why", "said"),
    [
        (1, "shares a node with a machine", "1 node shares a node with a machine"),
        (3, "shares a node with a machine", "3 nodes share a node with a machine"),
        (2, "shares no rack with a machine", "2 nodes share no rack with a machine"),
        (1, "too few cpus", "1 node has too few cpus"),
        (3, "too few cpus and too little disk", "3 nodes have too few cpus and too little disk"),
        (2, "not on duty: unreachable", "2 nodes not on duty: unreachable"),
    ],
)
def test_one_and_many_are_spoken_of_as_people_do(count: int, why: str, said: str) -> None:
    assert explain.sentence(count, why) == said


def test_nodes_that_break_a_rule_are_many_in_the_summary_and_in_its_reasons() -> None:
    cluster = Cluster([node(f"n{number:02}") for number in range(40)])
    for number in range(40):
        cluster.use(f"v{number}", f"n{number:02}", wish(f"v{number}", labels={"app": "web"}))
    decision = place(wish("new", affinity=(apart(Level.NODE, app="web"),)), cluster)
    assert decision.summary == "no node will do: 40 nodes share a node with a machine labelled app=web"
    assert decision.reasons[0].why.startswith("share a node with a machine labelled app=web (n00")

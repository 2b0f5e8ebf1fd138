"""Which node a machine goes to: whatever happens, room is kept, rules are kept, and what can be placed is."""

from __future__ import annotations

import random
import time

import msgspec
import pytest
from dose import dose
from harness.pace import check
from hypothesis import given, settings
from hypothesis import strategies as st

from hostler.engine.placement import (
    Cluster,
    Decision,
    NodeState,
    PlacementRequest,
    constraints,
    judge,
    node_order,
    place,
    select,
)
from hostler.errors import Invalid
from hostler.model.inventory import Capacity
from hostler.model.vm import Affinity, Level, VmSpec

NODES = [f"n{number}" for number in range(9)]
VMS = [f"vm{number}" for number in range(14)]
labels = st.dictionaries(st.sampled_from("ab"), st.sampled_from("xy"), max_size=2)
affinities = st.lists(
    st.builds(Affinity, together=st.booleans(), level=st.sampled_from(Level), labels=labels, required=st.booleans()),
    max_size=2,
).map(tuple)


@st.composite
def states(draw: st.DrawFn, node: str | None = None) -> NodeState:
    return NodeState(
        node=node or draw(st.sampled_from(NODES)),
        capacity=Capacity(
            cpus=draw(st.integers(0, 8)), memory_mib=draw(st.integers(0, 8)), disk_gib=draw(st.sampled_from([0, 4, 8]))
        ),
        labels=draw(labels),
        rack=draw(st.sampled_from([None, "r1", "r2"])),
        pdus=draw(st.sampled_from([(), ("p1",), ("p2",), ("p1", "p2"), ("p3", "p3")])),
        tors=draw(st.sampled_from([(), ("t1",), ("t2",)])),
        fences=draw(st.booleans()),
        on_duty=draw(st.sampled_from([True, True, True, False])),
        why_not="draining",
        host=draw(st.sampled_from(["", "", "h1", "h2"])),
        whole_host=draw(st.booleans()),
    )


@st.composite
def wishes(draw: st.DrawFn, vm: str | None = None) -> PlacementRequest:
    return PlacementRequest(
        vm=vm or draw(st.sampled_from(VMS)),
        project=draw(st.sampled_from(["o/p", "o/p", "o/q"])),
        spec=VmSpec(cpus=draw(st.integers(1, 4)), memory_mib=draw(st.integers(1, 4)), disk_gib=draw(st.integers(0, 3))),
        labels=draw(labels),
        affinity=draw(affinities),
        node_labels=draw(st.one_of(st.just({}), labels, st.sampled_from([{"node": "n1"}, {"rack": "r1"}]))),
        fenced=draw(st.booleans()),
        exclude=frozenset(draw(st.lists(st.sampled_from(NODES), max_size=2))),
    )


clusters = st.lists(st.sampled_from(NODES), unique=True).flatmap(
    lambda names: st.tuples(*(states(name) for name in names))
)
crowds = st.lists(wishes(), max_size=len(VMS), unique_by=lambda wanted: wanted.vm)
searches = pytest.mark.parametrize("small", [32, 0], ids=["every node looked at", "walked from the emptiest"])


# A second opinion, as simple as can be: it looks at every node and every machine.


def places(state: NodeState, level: Level) -> set[str]:
    if level is Level.NODE:
        return {state.node}
    if level is Level.RACK:
        return set() if state.rack is None else {state.rack}
    return set(state.pdus if level is Level.PDU else state.tors)


def share(one: NodeState, other: NodeState, level: Level) -> bool | None:
    """None: not known."""
    if one.node == other.node or places(one, level) & places(other, level):
        return True
    return False if places(one, level) and places(other, level) else None


def has(wanted: PlacementRequest, some: dict[str, str]) -> bool:
    return all(wanted.labels.get(name) == value for name, value in some.items())


def rules_kept(wanted: PlacementRequest, state: NodeState, placed: list[tuple[PlacementRequest, NodeState]]) -> bool:
    others = [(other, there) for other, there in placed if other.project == wanted.project and other.vm != wanted.vm]
    for rule in wanted.affinity:
        shared = [share(state, there, rule.level) for other, there in others if has(other, rule.labels)]
        if rule.required and shared and not (any(shared) if rule.together else set(shared) == {False}):
            return False
    return all(
        share(state, there, rule.level) is False
        for other, there in others
        for rule in other.affinity
        if rule.required and not rule.together and has(wanted, rule.labels)
    )


def room_for(wanted: PlacementRequest, state: NodeState, placed: list[tuple[PlacementRequest, NodeState]]) -> bool:
    others = [(other.spec, there) for other, there in placed if other.vm != wanted.vm]
    specs = [spec for spec, there in others if there.node == state.node]
    specs.append(wanted.spec)
    host = state.host if state.whole_host else ""
    beside = [spec for spec, there in others if host and there.host == host and there.node != state.node]
    return (
        sum(spec.cpus for spec in (*specs, *beside)) <= state.capacity.cpus
        and sum(spec.memory_mib for spec in (*specs, *beside)) <= state.capacity.memory_mib
        and sum(spec.disk_gib for spec in specs) <= state.capacity.disk_gib
    )


def will_do(wanted: PlacementRequest, state: NodeState, placed: list[tuple[PlacementRequest, NodeState]]) -> bool:
    known = {**state.labels, **({"rack": state.rack} if state.rack else {}), "node": state.node}
    return (
        state.on_duty
        and all(known.get(name) == value for name, value in wanted.node_labels.items())
        and state.node not in wanted.exclude
        and (state.fences or not wanted.fenced)
        and room_for(wanted, state, placed)
        and rules_kept(wanted, state, placed)
    )


@pytest.mark.slow
@searches
@settings(max_examples=dose(test=50, full=5000), deadline=None)
@given(nodes=clusters, wishes=crowds)
def test_a_node_is_found_exactly_if_one_will_do_and_that_one_will_do(
    small: int, nodes: tuple[NodeState, ...], wishes: list[PlacementRequest]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(select, "SMALL", small)
        patch.setattr(node_order, "BLOCK", 2)
        cluster, placed = Cluster(nodes), list[tuple[PlacementRequest, NodeState]]()
        by_name = {state.node: state for state in nodes}
        for wanted in wishes:
            good = {state.node for state in nodes if will_do(wanted, state, placed)}
            decision = place(wanted, cluster)
            assert (decision.node in good) if good else (decision.node is None)
            verdicts = judge(wanted, cluster)
            assert {verdict.node for verdict in verdicts if verdict.fits} == good
            assert {verdict.node for verdict in verdicts} == set(by_name)
            assert all(verdict.reasons for verdict in verdicts)
            if decision.node is not None:
                cluster.use(wanted.vm, decision.node, wanted)
                placed.append((wanted, by_name[decision.node]))
        again = [judge(wanted, cluster) for wanted, _ in placed]  # as if each stood nowhere
        for (wanted, _), verdicts in zip(placed, again):
            good = {state.node for state in nodes if will_do(wanted, state, placed)}
            assert {verdict.node for verdict in verdicts if verdict.fits} == good


# What the cluster knows


def known(cluster: Cluster, wishes: list[PlacementRequest]) -> object:
    """All that can be asked."""
    figures = {
        name: (slot.state, slot.cpus, slot.memory, slot.disk, dict(slot.vms)) for name, slot in cluster.slots.items()
    }
    projects = {
        name: (
            {vm: slot.node for vm, slot in project.all.vms.items()},
            dict(project.all.counts),
            dict(project.all.unknown),
            {key: (dict(held.counts), dict(held.unknown)) for key, held in project.guards.items()},
        )
        for name, project in cluster.projects.items()
    }
    decisions = [(place(wanted, cluster), judge(wanted, cluster)) for wanted in wishes]
    # A refusal may be remembered: its figures are then those of the first time, "at most" so much.
    told = [(made if made.node else made.node, verdicts) for made, verdicts in decisions]
    return figures, projects, [slot.node for slot in cluster.order], len(cluster), told


def check_shortcuts(cluster: Cluster) -> None:
    """What is kept so that placing is fast says the same as what it stands for."""
    for slot in cluster.slots.values():
        counted = [(slot.own, 0.4), *slot.site.counted]
        for project in cluster.projects.values():
            count = project.all.counts.get
            whole = sum(weight * count(domain, 0) for domain, weight in slot.domains)
            assert sum(weight * count(domain, 0) for domain, weight in counted) == pytest.approx(whole)
    for block in cluster.order.blocks:
        assert block.positions == sorted(slot.position for slot in block.slots)
        for slot in block.slots:
            assert block.least_cpus <= slot.cpus <= block.cpus
            assert block.least_memory <= slot.memory <= block.memory
            assert block.least_disk <= slot.disk <= block.disk


changes = st.lists(
    st.one_of(
        states(), st.sampled_from(NODES), st.tuples(wishes(), st.sampled_from(NODES)), st.sampled_from(VMS).map(list)
    ),
    max_size=30,
)


@pytest.mark.slow
@searches
@settings(max_examples=dose(test=40, full=3000), deadline=None)
@given(changes=changes, asked=st.lists(wishes(), max_size=4), rng=st.randoms(use_true_random=False))
def test_what_a_cluster_knows_does_not_depend_on_how_it_came_to_be(
    small: int, changes: list[object], asked: list[PlacementRequest], rng: random.Random
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(select, "SMALL", small)
        patch.setattr(node_order, "BLOCK", 2)
        patch.setattr(constraints, "SELECTORS", 2)
        cluster = Cluster()
        nodes: dict[str, NodeState] = {}
        stand: dict[str, tuple[PlacementRequest, str]] = {}
        for change in changes:
            if isinstance(change, NodeState):
                cluster.put_node(change)
                nodes[change.node] = change
            elif isinstance(change, str):
                cluster.remove_node(change)
                nodes.pop(change, None)
            elif isinstance(change, list):
                cluster.free("".join(change))
                stand.pop("".join(change), None)
            elif isinstance(change, tuple):
                wanted, node = change
                cluster.use(wanted.vm, node, wanted)
                stand[wanted.vm] = wanted, node
            for wanted in asked:
                place(wanted, cluster)
        other = Cluster()
        steps: list[tuple[object, ...]] = [(state,) for state in nodes.values()] + list(stand.values())
        rng.shuffle(steps)
        for step in steps:
            if len(step) == 1:
                other.put_node(step[0])  # type: ignore[arg-type]
            else:
                other.use(step[0].vm, step[1], step[0])  # type: ignore[attr-defined,arg-type]
        assert known(cluster, asked) == known(other, asked)
        check_shortcuts(cluster)
        for vm in rng.sample(list(stand), len(stand)):
            cluster.free(vm)
        assert known(cluster, asked) == known(Cluster(nodes.values()), asked)


@settings(max_examples=dose(test=30, full=2000), deadline=None)
@given(nodes=clusters, wanted=wishes(), node=st.sampled_from(NODES))
def test_a_machine_that_has_a_node_is_judged_as_if_it_had_none(
    nodes: tuple[NodeState, ...], wanted: PlacementRequest, node: str
) -> None:
    bare, used = Cluster(nodes), Cluster(nodes)
    used.use(wanted.vm, node, wanted)
    before = known(used, [])
    assert place(wanted, used) == place(wanted, bare)
    assert judge(wanted, used) == judge(wanted, bare)
    assert known(used, []) == before


def test_a_refusal_that_is_remembered_is_forgotten_as_soon_as_room_is_made() -> None:
    cluster = Cluster(plain(40, cpus=4))
    for number in range(40):
        cluster.use(f"old{number}", f"n{number}", wish(f"old{number}", cpus=3))
    assert place(wish("new", cpus=2), cluster).node is None
    cluster.use("more", "n7", wish("more", cpus=1))
    assert place(wish("new", cpus=2), cluster).node is None
    cluster.free("old11")
    assert place(wish("new", cpus=2), cluster).node == "n11"
    cluster.use("new", "n11", wish("new", cpus=4))
    assert place(wish("other", cpus=2), cluster).node is None
    cluster.put_node(plain(41, cpus=4)[40])
    assert place(wish("other", cpus=2), cluster).node == "n40"
    cluster.remove_node("n40")
    assert place(wish("other", cpus=2), cluster).node is None


def test_a_machine_can_stand_on_a_node_before_the_node_is_known() -> None:
    cluster = Cluster()
    cluster.use("a", "n0", wish("a", cpus=3))
    assert (len(cluster), place(wish("b"), cluster).summary) == (0, "no node will do: there is none")
    cluster.put_node(plain(1, cpus=4)[0])
    assert place(wish("b", cpus=2), cluster).node is None
    assert place(wish("b", cpus=1), cluster).node == "n0"
    assert cluster.used("n0") == Capacity(cpus=3, memory_mib=1)
    assert (cluster.node_of("a"), list(cluster.on("n0"))) == ("n0", ["a"])


def test_a_machine_stands_in_one_place_only() -> None:
    cluster = Cluster(plain(2))
    cluster.use("a", "n0", wish("a"))
    cluster.use("a", "n1", wish("a"))
    assert (cluster.node_of("a"), cluster.used("n0").cpus, cluster.used("n1").cpus) == ("n1", 0, 1)
    with pytest.raises(Invalid, match="put each as itself"):
        cluster.use("a", "n0", wish("b"))


# Which of several


def plain(count: int, *, cpus: int = 64, rack_of: int = 0) -> list[NodeState]:
    return [
        NodeState(
            node=f"n{number}",
            capacity=Capacity(cpus=cpus, memory_mib=1024 * cpus, disk_gib=1000),
            rack=f"r{number // rack_of}" if rack_of else None,
        )
        for number in range(count)
    ]


def wish(vm: str, *, cpus: int = 1, project: str = "o/p") -> PlacementRequest:
    return PlacementRequest(vm=vm, project=project, spec=VmSpec(cpus=cpus, memory_mib=1, disk_gib=0))


def fill(cluster: Cluster, wishes: list[PlacementRequest]) -> list[Decision]:
    made = []
    for wanted in wishes:
        decision = place(wanted, cluster)
        if decision.node is not None:
            cluster.use(wanted.vm, decision.node, wanted)
        made.append(decision)
    return made


@pytest.mark.parametrize("nodes", [12, 120])
def test_the_machines_of_a_project_spread_over_nodes_and_racks(nodes: int) -> None:
    cluster = Cluster(plain(nodes, rack_of=nodes // 4))
    fill(cluster, [wish(f"vm{number}") for number in range(8)])
    assert len({cluster.node_of(f"vm{number}") for number in range(8)}) == 8
    racks = [cluster.slots[cluster.node_of(f"vm{number}") or ""].rack for number in range(8)]
    assert sorted(map(racks.count, set(racks))) == [2, 2, 2, 2]


def test_a_decision_that_is_told_later_tells_what_was_seen_then() -> None:
    now, later = Cluster(plain(60, cpus=8, rack_of=6)), Cluster(plain(60, cpus=8, rack_of=6))
    wishes = [wish(f"vm{number}", cpus=1 + number % 3, project=f"o/{number % 3}") for number in range(150)]
    at_once = []
    for wanted in wishes:
        decision = place(wanted, now)
        at_once.append((decision.node, decision.score, decision.reasons, decision.summary))
        if decision.node is not None:
            now.use(wanted.vm, decision.node, wanted)
    made = fill(later, wishes)
    later.remove_node("n7")
    for wanted in wishes:
        later.free(wanted.vm)
    assert [(one.node, one.score, one.reasons, one.summary) for one in made] == at_once


def test_pdus_that_racks_share_count_for_each_of_them_and_those_of_one_rack_count_as_one() -> None:
    cluster = Cluster(
        NodeState(node=f"r{rack}-{number}", capacity=Capacity(cpus=8, memory_mib=8), rack=f"r{rack}", pdus=pdus)
        for rack, pdus in enumerate((("a", "b"), ("c", "row"), ("d", "row")))
        for number in range(2)
    )
    counted = {slot.rack: [domain for domain, _ in slot.site.counted] for slot in cluster.slots.values()}
    assert counted == {"r0": ["rack r0"], "r1": ["rack r1", "pdu row"], "r2": ["rack r2", "pdu row"]}
    cluster.use("x", "r1-0", wish("x"))
    check_shortcuts(cluster)
    for number in range(2):
        cluster.remove_node(f"r2-{number}")
    assert [domain for domain, _ in cluster.slots["r1-1"].site.counted] == ["rack r1"]
    check_shortcuts(cluster)


def test_an_even_load_comes_of_even_machines() -> None:
    cluster = Cluster(plain(100, rack_of=10))
    fill(cluster, [wish(f"vm{number}", cpus=4, project=f"o/{number % 7}") for number in range(800)])
    loads = [cluster.used(f"n{number}").cpus for number in range(100)]
    assert sum(loads) == 3200
    assert max(loads) - min(loads) <= 8


def test_the_scarcest_of_what_a_node_has_decides() -> None:
    roomy = Capacity(cpus=64, memory_mib=64, disk_gib=64)
    cluster = Cluster([NodeState(node="cpus", capacity=roomy), NodeState(node="all", capacity=roomy)])
    cluster.use("x", "cpus", PlacementRequest(vm="x", project="o/x", spec=VmSpec(cpus=40, memory_mib=1)))
    cluster.use("y", "all", PlacementRequest(vm="y", project="o/y", spec=VmSpec(cpus=30, memory_mib=30, disk_gib=30)))
    assert place(wish("new"), cluster).node == "all"


def test_a_cluster_can_be_filled_to_the_last_cpu() -> None:
    cluster = Cluster(plain(200, cpus=8, rack_of=20))
    made = fill(cluster, [wish(f"vm{number}", cpus=2, project=f"o/{number % 11}") for number in range(801)])
    assert [decision.node is None for decision in made] == [False] * 800 + [True]


def test_one_node_with_room_behind_thousands_of_emptier_small_ones_is_found() -> None:
    big = NodeState(node="big", capacity=Capacity(cpus=100, memory_mib=2**20, disk_gib=10))
    cluster = Cluster([*plain(3000, cpus=2), big])
    cluster.use("much", "big", wish("much", cpus=80))
    decision = place(wish("new", cpus=10), cluster)
    assert decision.node == "big"
    assert [one.subject for one in decision.reasons] == ["big", "3,000 nodes"]
    assert decision.reasons[1].why.startswith("too little room (n")


def test_nodes_that_are_passed_over_for_a_large_machine_still_take_a_small_one() -> None:
    wide, deep = Capacity(cpus=8, memory_mib=1, disk_gib=1), Capacity(cpus=1, memory_mib=8, disk_gib=1)
    cluster = Cluster(NodeState(node=f"n{number}", capacity=(wide, deep)[number % 2]) for number in range(200))
    large = PlacementRequest(vm="large", project="o/p", spec=VmSpec(cpus=8, memory_mib=8))
    for _ in range(2):
        assert place(large, cluster).node is None
        assert place(msgspec.structs.replace(large, fenced=True), cluster).node is None
        assert place(wish("small"), cluster).node is not None


def test_candidates_come_from_as_many_racks_as_there_are_nearby() -> None:
    one = place(wish("vm"), Cluster(plain(100, rack_of=100)))
    assert "the best of 8 that were scored" in one.summary
    assert ("24 nodes", "fit, but not scored: no emptier than these") in [
        (reason.subject, reason.why) for reason in one.reasons
    ]
    three = place(wish("vm"), Cluster(plain(99, rack_of=33)))
    assert "the best of 8 that were scored" in three.summary


def test_a_preference_outweighs_room_but_never_prevents() -> None:
    cluster = Cluster(plain(3))
    db = msgspec.structs.replace(wish("db", cpus=30), labels={"app": "db"}, name="db-1")
    cluster.use("db", "n1", db)
    near = Affinity(together=True, level=Level.NODE, labels={"app": "db"}, required=False)
    asked = msgspec.structs.replace(wish("web"), affinity=(near,))
    assert place(asked, cluster).node == "n1"
    assert place(msgspec.structs.replace(asked, exclude=frozenset(["n1"])), cluster).node in {"n0", "n2"}


def test_the_same_question_has_the_same_answer_and_equals_are_mixed_by_machine() -> None:
    chosen = {place(wish(f"vm{number}"), Cluster(plain(20))).node for number in range(50)}
    assert len(chosen) > 5
    assert place(wish("vm"), Cluster(plain(500))) == place(wish("vm"), Cluster(reversed(plain(500))))


# Speed


@pytest.mark.timeout(60)
def test_five_thousand_nodes_take_five_thousand_machines_a_second_at_the_very_least() -> None:
    wishes = [wish(f"vm{number}", project=f"o/{number % 50}") for number in range(3000)]
    cluster = Cluster(plain(5000, rack_of=40))
    since, began = time.monotonic(), time.process_time()
    fill(cluster, wishes)
    # On a busy machine processors share their caches, and even processor time grows.
    check(time.process_time() - began, 3000 / 5000, since=since, what="placing 3000 machines")


@pytest.mark.timeout(60)
def test_a_cluster_that_is_full_says_so_quickly() -> None:
    cluster = Cluster(plain(5000, cpus=2, rack_of=40))
    for number in range(5000):
        cluster.use(f"old{number}", f"n{number}", wish(f"old{number}", cpus=2))
    since, began = time.monotonic(), time.process_time()
    assert {place(wish(f"vm{number}"), cluster).node for number in range(3000)} == {None}
    check(time.process_time() - began, 3000 / 5000, since=since, what="refusing 3000 machines")


# What is remembered and indexed


def test_a_machine_may_stay_where_it_is_though_another_of_its_shape_was_refused() -> None:
    cluster = Cluster(plain(40, cpus=4))
    for number in range(40):
        cluster.use(f"old{number}", f"n{number}", wish(f"old{number}", cpus=3))
    assert place(wish("new", cpus=3), cluster).node is None
    assert place(wish("old5", cpus=3), cluster).node == "n5"
    assert place(wish("new", cpus=3), cluster).node is None


def test_labels_that_a_node_has_no_more_are_not_kept() -> None:
    cluster = Cluster(plain(2))
    before = {pair: set(having) for pair, having in cluster._labelled.items()}
    cluster.put_node(msgspec.structs.replace(plain(1)[0], labels={"gpu": "yes"}, rack="r9"))
    assert cluster._labelled["gpu", "yes"].keys() == {"n0"}
    cluster.put_node(plain(1)[0])
    cluster.put_node(plain(3)[2])
    cluster.remove_node("n2")
    assert {pair: set(having) for pair, having in cluster._labelled.items()} == before


def test_nodes_that_each_promise_their_whole_host_share_it() -> None:
    capacity = Capacity(cpus=4, memory_mib=4096, disk_gib=100)
    one, two = (NodeState(node=name, capacity=capacity, fences=True, host="h") for name in ("n1", "n2"))
    cluster = Cluster([one, two])
    large = VmSpec(cpus=3, memory_mib=3072, disk_gib=100)
    cluster.use("vm1", "n1", PlacementRequest(vm="vm1", project="o/p", spec=large))
    decision = place(PlacementRequest(vm="vm2", project="o/p", spec=large), cluster)
    assert decision.node is None
    small = msgspec.structs.replace(large, cpus=1, memory_mib=1024)
    assert (
        place(PlacementRequest(vm="vm2", project="o/p", spec=small), cluster).node == "n2"
    )  # each has a disk of its own
    cluster.free("vm1")
    assert place(PlacementRequest(vm="vm2", project="o/p", spec=large), cluster).node is not None
    # an agent that comes later finds what stands there, and one that divides the host with others keeps its share
    cluster.use("vm1", "n1", PlacementRequest(vm="vm1", project="o/p", spec=large))
    cluster.put_node(msgspec.structs.replace(two, whole_host=False))
    assert place(PlacementRequest(vm="vm2", project="o/p", spec=large), cluster).node == "n2"
    cluster.put_node(two)
    assert place(PlacementRequest(vm="vm2", project="o/p", spec=large), cluster).node is None
    cluster.put_node(msgspec.structs.replace(two, host="h2"))
    assert place(PlacementRequest(vm="vm2", project="o/p", spec=large), cluster).node == "n2"

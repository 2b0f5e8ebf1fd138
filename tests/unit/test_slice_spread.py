"""Instances are spread evenly over nodes, racks, pdus and tors, and every node knows why, or why not."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from dose import dose
from hypothesis import given, settings
from hypothesis import strategies as st

from hostler.engine.deployments.instance_index import InstanceIndex, InstanceState, Numbers
from hostler.engine.deployments.node_cache import NodeCache
from hostler.engine.deployments.rebalance import better
from hostler.engine.deployments.spread import MOST, NAMED, assign, passed_over
from hostler.engine.inventory.topology_cache import Wiring
from hostler.model.inventory import Capacity
from hostler.model.node import Lifecycle, NodeRecord

ART = "org:web:1"


def record(node: str, **more: Any) -> NodeRecord:
    said: dict[str, Any] = {"lifecycle": Lifecycle.ON_DUTY, **more}
    return NodeRecord(node=node, capacity=Capacity(cpus=1, memory_mib=1, disk_gib=1), registered_at=0.0, **said)


def ground_of(**wirings: Wiring) -> NodeCache:
    ground = NodeCache(SimpleNamespace())  # type: ignore[arg-type]
    for node, wiring in wirings.items():
        ground.know(node, record(node), alive=True, wiring=wiring)
    return ground


def racks(count: int, nodes: int) -> NodeCache:
    wiring = {
        f"r{rack}_{node}": Wiring(f"r{rack}", (f"r{rack}/pdu{node % 2}",), (f"r{rack}/tor",))
        for rack in range(count)
        for node in range(nodes)
    }
    return ground_of(**wiring)


def put(roster: InstanceIndex, ground: NodeCache, node: str, *, first: int = 1, count: int = 1) -> None:
    for number in range(first, first + count):
        roster.add(node, ground.site(node).place, ART, number, 0, InstanceState.ACTIVE)
        ground.add(node, 1)


def chosen(count: int, roster: InstanceIndex, ground: NodeCache, **more: Any) -> list[str]:
    said: dict[str, Any] = {"labels": {}, "failed": {}, **more}
    return [choice.node for choice in assign(count, roster, ground, **said)]


def test_five_instances_on_two_nodes_are_three_and_two() -> None:
    ground = ground_of(a=Wiring(""), b=Wiring(""))
    assert sorted(Counter(chosen(5, InstanceIndex(), ground)).values()) == [2, 3]


@settings(max_examples=dose(test=40, full=1000), deadline=None)
@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 40), st.integers(0, 30))
def test_nodes_and_racks_differ_by_one_at_most(many: int, each: int, count: int, before: int) -> None:
    ground, roster = racks(many, each), InstanceIndex()
    for number, node in enumerate(chosen(before, roster, ground)):
        put(roster, ground, node, first=number + 1)
    found = chosen(count, roster, ground)
    assert len(found) == count
    on = Counter(dict.fromkeys(ground.sites, 0)) + Counter()
    for node in [*found, *(node for node, here in roster.on.items() for _ in range(here))]:
        on[node] += 1
    by_node = [on[node] for node in ground.sites]
    by_rack = Counter({f"r{rack}": 0 for rack in range(many)})
    for node, here in on.items():
        by_rack[node.partition("_")[0]] += here
    per_rack = [by_rack[f"r{rack}"] for rack in range(many)]
    assert max(by_node) - min(by_node) <= 1
    assert max(per_rack) - min(per_rack) <= 1


@pytest.mark.parametrize("ground", [racks(1, 3), racks(3, 1)], ids=["a rack", "racks"])
def test_of_nodes_that_have_as_many_those_are_first_that_have_fewer_of_the_version(ground: NodeCache) -> None:
    roster = InstanceIndex()
    for number, node in enumerate(ground.sites):
        put(roster, ground, node, first=number + 1)
    for new in ground.sites:  # the others have the version that goes: two of three would be left on one node
        found = chosen(3, roster, ground, same=lambda node, new=new: int(node == new))
        assert found[2] == new
        assert sorted(found) == sorted(ground.sites)


def test_pdus_and_tors_are_spread_over_within_a_rack() -> None:
    ground = ground_of(
        a=Wiring("r", ("r/p1",), ("r/t1",)),
        b=Wiring("r", ("r/p1",), ("r/t2",)),
        c=Wiring("r", ("r/p2",), ("r/t1",)),
        d=Wiring("r", ("r/p2",), ("r/t2",)),
    )
    assert chosen(2, InstanceIndex(), ground) == ["a", "d"], "another pdu, and another tor"


def test_a_node_with_fewer_slices_of_others_comes_first() -> None:
    ground = ground_of(a=Wiring(""), b=Wiring(""), c=Wiring(""))
    ground.add("a", 3)
    ground.add("b", 1)
    assert chosen(3, InstanceIndex(), ground) == ["c", "b", "a"]


def test_slices_with_one_instance_each_go_round() -> None:
    ground = ground_of(a=Wiring("r1"), b=Wiring("r2"), c=Wiring("r3"))
    seen = []
    for _ in range(6):
        node = chosen(1, InstanceIndex(), ground)[0]
        ground.add(node, 1)
        seen.append(node)
    assert Counter(seen) == {"a": 2, "b": 2, "c": 2}


def test_where_it_failed_comes_last() -> None:
    ground = racks(2, 2)
    failed = {"r0_0": 1, "r1_0": 4}
    assert set(chosen(8, InstanceIndex(), ground, failed=failed)) == {"r0_1", "r1_1"}
    everywhere = dict.fromkeys(ground.sites, 2) | {"r1_1": 1}
    assert set(chosen(2, InstanceIndex(), ground, failed=everywhere)) == {"r1_1"}, "where it failed least"


def test_only_nodes_that_take_slices_and_have_the_labels() -> None:
    ground = ground_of(a=Wiring(""), b=Wiring(""), c=Wiring(""), d=Wiring(""), e=Wiring(""))
    ground.know("a", record("a"), alive=False)
    ground.know("b", record("b", lifecycle=Lifecycle.DRAINING), alive=True)
    ground.know("c", record("c"), alive=True, objection="blade r/c: not enabled")
    ground.know("d", record("d", labels={"disk": "fast"}), alive=True)
    assert set(chosen(4, InstanceIndex(), ground)) == {"d", "e"}
    assert set(chosen(4, InstanceIndex(), ground, labels={"disk": "fast"})) == {"d"}
    assert chosen(1, InstanceIndex(), ground, labels={"disk": "slow"}) == []
    assert ground.takes({"disk": "fast"})
    assert not ground.takes({"disk": "slow"})


def test_every_node_that_was_not_chosen_is_told_why() -> None:
    ground, roster = racks(3, 3), InstanceIndex()
    ground.know("r0_0", record("r0_0"), alive=False)
    ground.know("r0_1", record("r0_1", lifecycle=Lifecycle.DRAINING), alive=True)
    ground.know("gone", None, alive=True)
    failed = {"r1_0": 2}
    nodes = chosen(2, roster, ground, failed=failed)
    reasons = {one.subject: one.why for one in passed_over(nodes, roster, ground, labels={}, failed=failed)}
    assert set(reasons) == set(ground.sites) - set(nodes)
    assert "unreachable" in reasons["r0_0"]
    assert "drained" in reasons["r0_1"]
    assert "failed there 2 times" in reasons["r1_0"]
    assert "registered" in reasons["gone"]


def test_many_nodes_are_counted_not_named() -> None:
    ground, roster = racks(10, 20), InstanceIndex()
    for node in list(ground.sites)[:60]:
        ground.know(node, record(node), alive=False, wiring=Wiring(node.partition("_")[0]))
    reasons = passed_over(chosen(1, roster, ground), roster, ground, labels={}, failed={})
    assert len(reasons) <= NAMED
    assert any("60 nodes" in one.subject for one in reasons)
    assert any("139 other nodes" in one.subject for one in reasons)


def test_a_choice_says_why() -> None:
    ground, roster = racks(2, 1), InstanceIndex()
    put(roster, ground, "r0_0")
    choice = assign(1, roster, ground, labels={}, failed={})[0]
    assert (choice.node, choice.why) == ("r1_0", "0 on this node, 0 in rack r1")


def test_numbers_are_the_lowest_free_ones_and_never_twice() -> None:
    rng, numbers, used = random.Random(4), Numbers(), set[int]()
    for _ in range(400):
        if used and rng.random() < 0.5:
            gone = rng.choice(sorted(used))
            used.discard(gone)
            numbers.drop(gone)
        else:
            taken = numbers.take(rng.randint(1, 4))
            free = [n for n in range(1, len(used) + 9) if n not in used]
            assert taken == free[: len(taken)]
            keep = taken[: rng.randint(0, len(taken))]
            for number in taken:
                if number in keep:
                    numbers.use(number)
                numbers.give_back(number)
            used |= set(keep)


def test_numbers_that_others_chose_leave_gaps_to_be_filled() -> None:
    numbers = Numbers()
    for number in (7, 3):
        numbers.use(number)
    assert numbers.take(6) == [1, 2, 4, 5, 6, 8]


def test_where_it_did_not_fail_gets_no_more_than_twice_its_share() -> None:
    ground = racks(1, 10)
    failed = {f"r0_{node}": 1 + node % 2 for node in range(9)}
    counts = Counter(chosen(10, InstanceIndex(), ground, failed=failed))
    assert counts["r0_9"] == 2
    assert max(counts.values()) == 2


def test_a_broken_node_of_three_gets_nothing() -> None:
    ground = ground_of(a=Wiring(""), b=Wiring(""), c=Wiring(""))
    assert Counter(chosen(6, InstanceIndex(), ground, failed={"b": 3})) == {"a": 3, "c": 3}


def test_no_node_gets_more_than_its_key_can_hold() -> None:
    ground, roster = ground_of(a=Wiring(""), b=Wiring("")), InstanceIndex()
    roster.settle("a", ground.site("a").place, MOST - 1)
    nodes = chosen(2 * MOST, roster, ground)
    assert Counter(nodes) == {"a": 1, "b": MOST}
    for node in nodes:
        roster.settle(node, ground.site(node).place, 1)
    assert chosen(1, roster, ground) == []
    assert chosen(1, roster, ground, failed={"a": 1}) == []
    assert all(str(MOST) in one.why for one in passed_over((), roster, ground, labels={}, failed={}))


def test_d10_a_move_to_an_empty_rack_improves_the_spread_and_then_none_does() -> None:
    ground, roster = racks(2, 2), InstanceIndex()
    put(roster, ground, "r0_0", first=1)
    put(roster, ground, "r0_1", first=2)
    found = better(roster, ground, lambda _: True)
    assert found is not None
    source, target, why = found
    assert (source[:2], target[:2]) == ("r0", "r1")
    assert why == f"fewer instances share rack r1 than share those of {source}"
    _move(roster, ground, source, target)
    assert better(roster, ground, lambda _: True) is None


@settings(max_examples=dose(test=60, full=2000), deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.lists(st.integers(0, 15), min_size=1, max_size=24))
def test_d10_moves_from_any_spread_end_with_nodes_that_differ_by_one_at_most(
    many: int, each: int, where: list[int]
) -> None:
    ground, roster = racks(many, each), InstanceIndex()
    names = list(ground.sites)
    for number, at in enumerate(where):
        put(roster, ground, names[at % len(names)], first=number + 1)
    before = _squares(roster)
    for _ in range(10_000):
        found = better(roster, ground, lambda _: True)
        if found is None:
            break
        _move(roster, ground, found[0], found[1])
        after = _squares(roster)
        assert after < before
        before = after
    on = [roster.on.get(node, 0) for node in names]
    by_rack = [roster.racks.get(f"r{rack}", 0) for rack in range(many)]
    assert max(on) - min(on) <= 1
    assert max(by_rack) - min(by_rack) <= 1


def _squares(roster: InstanceIndex) -> tuple[int, ...]:
    return tuple(
        sum(count * count for count in counts.values())
        for counts in (roster.on, roster.racks, roster.pdus, roster.tors)
    )


def _move(roster: InstanceIndex, ground: NodeCache, source: str, target: str) -> None:
    roster.settle(source, ground.site(source).place, -1)
    ground.add(source, -1)
    roster.settle(target, ground.site(target).place, 1)
    ground.add(target, 1)

"""What is to be done about a workload's instances: from every mixture to what is wished, and within the bounds."""

from __future__ import annotations

import itertools
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostler.engine.workloads.decide import WorkloadSteps, can_have, decide
from hostler.engine.workloads.instance_index import Condition, WorkloadInstances, WorkloadInstanceState
from hostler.engine.workloads.vm_template import same_template, tune_of, tune_of_machine, vm_of_instance
from hostler.model.vm import Affinity, Level, OnNodeLoss, Power, RestartPolicy, VmSpec
from hostler.model.workload import Rollout, Workload

SPEC = VmSpec(cpus=1, memory_mib=64)
WEB = Workload(name="Web", instances=3, spec=SPEC)
TUNE = tune_of(WEB)


def web(**changes: Any) -> Workload:
    return msgspec.structs.replace(WEB, **changes)


def kept(template: int = 1, *, ready: bool = True, **changes: Any) -> Condition:
    return Condition(WorkloadInstanceState.KEPT, template, ready, msgspec.structs.replace(TUNE, **changes))


def roll_of(conditions: dict[int, Condition]) -> WorkloadInstances:
    roll = WorkloadInstances()
    for number, condition in conditions.items():
        roll.put(number, condition)
    return roll


def planned(workload: Workload | None, conditions: dict[int, Condition], **more: Any) -> WorkloadSteps:
    return decide(workload, roll_of(conditions), **more)


def test_the_lowest_free_numbers_are_given() -> None:
    assert planned(WEB, {}).make == (1, 2, 3)
    assert planned(WEB, {2: kept()}).make == (1, 3)
    assert planned(web(instances=50), {}).make == tuple(range(1, 21))
    assert planned(WEB, {n: kept() for n in (1, 2, 3)}).is_empty


def test_too_many_go_from_the_highest_number_on_and_first_those_that_do_not_serve() -> None:
    there = {
        1: kept(ready=False),
        2: kept(),
        3: kept(),
        4: kept(),
        5: kept(ready=False),
        6: Condition(WorkloadInstanceState.WAITING, 1),
    }
    assert planned(web(instances=1), there) == WorkloadSteps(remove=(5, 1, 4, 3), drop=(6,))
    assert planned(web(instances=5), there).drop == (6,)
    assert planned(web(instances=4), there).remove == (5,)


def test_what_is_going_is_waited_for_unless_its_node_is_silent() -> None:
    assert planned(WEB, {1: kept(), 2: Condition(WorkloadInstanceState.LEAVING)}).make == (3,)
    assert planned(WEB, {1: kept(), 2: Condition(WorkloadInstanceState.AWAY)}).make == (3, 4)
    assert planned(WEB, {1: kept(), 2: kept(), 3: Condition(WorkloadInstanceState.LEAVING)}).is_empty


def test_what_nobody_can_tell_counts_and_is_left_alone() -> None:
    blind = {number: Condition(WorkloadInstanceState.BLIND) for number in (1, 2, 3)}
    assert planned(WEB, blind).is_empty
    assert planned(web(instances=1), blind).is_empty
    lost = {1: Condition(WorkloadInstanceState.LOST), 2: kept()}
    assert planned(WEB, lost) == WorkloadSteps(make=(3,), drop=(1,)), (
        "another takes its place when it is certainly gone"
    )


def test_what_waits_for_a_machine_goes_before_others_are_made() -> None:
    waiting = {1: kept(), 2: Condition(WorkloadInstanceState.WAITING, 1)}
    assert planned(WEB, waiting) == WorkloadSteps(equip=(2,))
    older = {**waiting, 3: kept(), 4: kept()}
    assert planned(web(template=2), older).equip == (), "there is no room while the older ones are there"
    assert planned(web(instances=1), waiting) == WorkloadSteps(drop=(2,))


@pytest.mark.parametrize(
    ("surge", "missing", "first"),
    [
        (0, 1, WorkloadSteps(remove=(3,))),
        (0, 2, WorkloadSteps(remove=(3, 2))),
        (1, 0, WorkloadSteps(make=(4,))),
        (2, 1, WorkloadSteps(make=(4, 5), remove=(3,))),
        (9, 9, WorkloadSteps(make=(4, 5, 6), remove=(3, 2, 1))),
    ],
)
def test_an_update_begins_within_its_bounds(surge: int, missing: int, first: WorkloadSteps) -> None:
    rollout = Rollout(max_surge=surge, max_unavailable=missing)
    assert planned(web(template=2, rollout=rollout), {n: kept() for n in (1, 2, 3)}) == first


def test_new_ones_that_do_not_come_up_hold_the_update_back() -> None:
    assert planned(web(template=2), {1: kept(), 2: kept(), 3: kept(2, ready=False)}).is_empty
    broken = {1: kept(ready=False), 2: kept(ready=False), 3: kept(ready=False)}
    assert planned(web(template=2), broken).remove == (3,), "what does not serve is replaced in turn, too"
    assert planned(web(template=2), {1: kept(), 2: kept(), 3: kept(2)}).remove == (2,)


def test_power_restart_and_labels_are_changed_in_place() -> None:
    there = {1: kept(), 2: kept(power=Power.OFF), 3: kept(restart=RestartPolicy.NEVER)}
    assert planned(WEB, there).tune == (2, 3)
    assert planned(web(enabled=False), there).tune == (1, 3)
    assert planned(web(labels={"a": "b"}), there).tune == (1, 2, 3)
    assert planned(web(on_node_loss=OnNodeLoss.WAIT), there).tune == (1, 2, 3)
    assert planned(web(returns=True), there).tune == (1, 2, 3)


def test_a_workload_that_is_deleted_goes_when_nothing_is_left() -> None:
    there = {
        1: kept(),
        2: Condition(WorkloadInstanceState.WAITING, 1),
        3: Condition(WorkloadInstanceState.LEAVING),
        4: kept(2, ready=False),
    }
    for wish in (web(deleting=True), None):
        assert planned(wish, there) == WorkloadSteps(remove=(4, 1), drop=(2,))
    assert planned(web(deleting=True), {3: Condition(WorkloadInstanceState.LEAVING)}).is_empty
    assert planned(web(deleting=True), {}) == WorkloadSteps(over=True)
    assert planned(None, {}).is_empty
    roll = WorkloadInstances()
    roll.strays["a machine"] = None
    assert not decide(web(deleting=True), roll).over


# Everything at once: a world that does what is planned


class World:
    """Instances, and what time does to them. Every batch is small, so that each step is seen."""

    def __init__(self, workload: Workload, conditions: dict[int, Condition], rng: random.Random) -> None:
        self.workload, self.roll, self.rng = workload, roll_of(conditions), rng

    def count(self, what: WorkloadInstanceState) -> int:
        return self.roll.count(what)

    def machines(self) -> int:
        return (
            self.count(WorkloadInstanceState.KEPT)
            + self.count(WorkloadInstanceState.LEAVING)
            + self.count(WorkloadInstanceState.BLIND)
        )

    def ready(self) -> int:
        return sum(len(numbers) for (_, ready), numbers in self.roll.kept.items() if ready)

    def act(self, plan: WorkloadSteps) -> None:
        for number in plan.drop:
            assert self.roll.conditions[number].what in (WorkloadInstanceState.WAITING, WorkloadInstanceState.LOST)
            self.roll.put(number, None)
        for number in plan.remove:
            assert self.roll.conditions[number].what is WorkloadInstanceState.KEPT
            self.roll.put(number, Condition(WorkloadInstanceState.LEAVING))
        for number in plan.tune:
            condition = self.roll.conditions[number]
            self.roll.put(number, msgspec.structs.replace(condition, tune=tune_of(self.workload)))
        for number in (*plan.make, *plan.equip):
            assert (number in self.roll.conditions) is (number in plan.equip)
            self.roll.put(
                number, Condition(WorkloadInstanceState.KEPT, self.workload.template, False, tune_of(self.workload))
            )

    def pass_time(self) -> bool:
        """Something comes up, or is gone; False: there is nothing that could."""
        changing = [
            number
            for number, condition in self.roll.conditions.items()
            if condition.what in (WorkloadInstanceState.LEAVING, WorkloadInstanceState.AWAY)
            or (condition.what is WorkloadInstanceState.KEPT and not condition.ready)
        ]
        if not changing:
            return False
        number = self.rng.choice(changing)
        condition = self.roll.conditions[number]
        up = msgspec.structs.replace(condition, ready=True)
        self.roll.put(number, up if condition.what is WorkloadInstanceState.KEPT else None)
        return True


CONDITIONS = st.one_of(
    st.builds(kept, st.integers(1, 3), ready=st.booleans(), power=st.sampled_from(Power)),
    st.builds(
        Condition,
        st.sampled_from(
            [
                WorkloadInstanceState.WAITING,
                WorkloadInstanceState.LEAVING,
                WorkloadInstanceState.AWAY,
                WorkloadInstanceState.LOST,
            ]
        ),
    ),
)


@pytest.mark.slow
@settings(max_examples=150)
@given(
    st.dictionaries(st.integers(1, 12), CONDITIONS, max_size=12),
    st.integers(0, 8),
    st.integers(0, 3),
    st.integers(0, 3),
    st.booleans(),
    st.booleans(),
    st.integers(1, 20),
    st.randoms(use_true_random=False),
)
def test_whatever_there_is_becomes_what_is_wished_and_no_bound_is_passed_on_the_way(  # noqa: PLR0917
    conditions: dict[int, Condition],
    wished: int,
    surge: int,
    missing: int,
    enabled: bool,
    deleting: bool,
    most: int,
    rng: random.Random,
) -> None:
    rollout = Rollout(max_surge=surge, max_unavailable=missing if surge else max(1, missing))
    wish = web(instances=wished, template=3, rollout=rollout, enabled=enabled, deleting=deleting, had=wished)
    world = World(wish, conditions, rng)
    bound = wished + surge
    least = max(0, wished - rollout.max_unavailable)
    for _ in range(400):
        plan = decide(wish, world.roll, most=most)
        assert max(map(len, (plan.make, plan.equip, plan.remove, plan.tune))) <= most
        assert not {*plan.remove} & {*plan.tune, *plan.make, *plan.equip, *plan.drop}
        machines, ready = world.machines(), world.ready()
        world.act(plan)
        if plan.make or plan.equip:
            assert world.machines() <= bound, plan
        if plan.remove and not deleting:
            assert world.ready() >= min(ready, least), plan
        assert world.machines() <= max(machines, bound)
        if plan.over:
            assert world.roll.is_empty
            return
        if not world.pass_time() and plan.is_empty:
            break
    rest = world.roll.conditions.values()
    assert not deleting or not rest
    if not deleting:
        assert len(rest) == wished
        assert {condition.template for condition in rest} <= {3}
        assert {condition.tune for condition in rest} <= {tune_of(wish)}


class NarrowWorld(World):
    """One whose project may have so many machines, and with nodes for so many; for the template `odd` with none."""

    def __init__(self, workload: Workload, rng: random.Random, *, quota: int, nodes: int, odd: int = 0) -> None:
        super().__init__(workload, {}, rng)
        self.quota, self.nodes, self.odd = quota, nodes, odd

    def act(self, plan: WorkloadSteps) -> None:
        wanted = plan.equip or plan.make
        room = max(0, self.quota - len(self.roll) + self.count(WorkloadInstanceState.WAITING))
        fit = wanted[:room]
        super().act(msgspec.structs.replace(plan, make=() if plan.equip else fit, equip=fit if plan.equip else ()))
        if wanted and not fit:
            self.roll.put(wanted[0], Condition(WorkloadInstanceState.WAITING, self.workload.template))

    def pass_time(self) -> bool:
        """Those for which there is no node say so, and are placed when there is one."""
        changing = []
        free = self.nodes - self.count(WorkloadInstanceState.LEAVING)
        for one in self.roll.conditions.values():
            free -= one.what is WorkloadInstanceState.KEPT and one.ready
        for number, one in self.roll.conditions.items():
            if one.what is WorkloadInstanceState.LEAVING:
                changing.append((number, None))
            elif one.what is WorkloadInstanceState.KEPT and not one.ready:
                fits = free > 0 and one.template != self.odd
                new = msgspec.structs.replace(one, ready=fits, pending=not fits)
                changing += [(number, new)] if new != one else []
        if not changing:
            return False
        self.roll.put(*self.rng.choice(changing))
        return True

    def run(self, most: int, least: int = 0) -> None:
        """Until nothing changes any more."""
        for _ in range(600):
            plan = decide(self.workload, self.roll, most=most)
            before, ready = dict(self.roll.conditions), self.ready()
            self.act(plan)
            assert self.ready() >= min(ready, least), plan
            acted = before != self.roll.conditions
            if not self.pass_time() and not acted:
                return
        raise AssertionError("it never ends")


@settings(max_examples=100)
@given(
    st.integers(1, 7),
    st.integers(0, 8),
    st.integers(0, 8),
    st.integers(0, 2),
    st.integers(1, 3),
    st.integers(1, 20),
    st.integers(-2, 2),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_an_update_ends_though_not_all_can_be_had_and_takes_no_more_than_it_may(  # noqa: PLR0917
    wished: int,
    quota: int,
    nodes: int,
    surge: int,
    missing: int,
    most: int,
    more: int,
    odd: bool,
    rng: random.Random,
) -> None:
    rollout = Rollout(max_surge=surge, max_unavailable=missing)
    world = NarrowWorld(web(instances=wished, rollout=rollout), rng, quota=quota, nodes=nodes, odd=2 if odd else 0)
    world.run(most)
    ready = world.ready()
    assert ready == min(wished, quota, nodes), "as many as can be had"
    had = can_have(world.workload, world.roll)
    assert had == ready
    world.workload = web(instances=max(0, wished + more), rollout=rollout, template=2, had=had)
    least = max(0, min(had, world.workload.instances) - missing)
    world.run(most, least)
    if odd:
        assert world.ready() >= least, "what fits nowhere takes the place of no more"
    else:
        assert {one.template for one in world.roll.conditions.values() if one.what is WorkloadInstanceState.KEPT} <= {2}
        assert world.ready() == min(world.workload.instances, quota, nodes)


def test_an_update_goes_through_what_there_is_where_not_all_can_be_had() -> None:
    there = {1: kept(), 2: kept(), 3: kept(), 4: Condition(WorkloadInstanceState.WAITING, 2)}
    wish = web(instances=5, template=2, had=3)
    assert planned(wish, there) == WorkloadSteps(remove=(3,), equip=(4,))
    del there[3]
    assert planned(wish, there).remove == (), "one is missing already"
    pending = msgspec.structs.replace(kept(2, ready=False), pending=True)
    assert planned(wish, {1: kept(), 2: kept(), 3: kept(), 4: pending, 5: pending}).remove == (3,)
    assert planned(web(instances=3, template=2, had=3), {1: kept(), 2: kept(), 3: pending}).remove == ()


# The machine of an instance


def test_the_machine_of_an_instance() -> None:
    rules = (
        Affinity(together=False, level=Level.NODE, labels={}),
        Affinity(together=True, level=Level.RACK, labels={"app": "db"}, required=False),
    )
    wish = web(affinity=rules, node_labels={"disk": "ssd"}, labels={"tier": "a"}, enabled=False, org="acme")
    vm = vm_of_instance(wish, 7, vm="id-1", name="Web-7", at=5.0)
    assert (vm.org, vm.project, vm.name, vm.instance) == ("acme", "web", "Web-7", "web/7")
    assert vm.labels == {"tier": "a", "workload": "web"}
    assert [rule.labels for rule in vm.affinity] == [{"workload": "web"}, {"app": "db"}]
    assert (vm.power, vm.on_node_loss, vm.node_labels) == (Power.OFF, OnNodeLoss.FENCE, {"disk": "ssd"})
    assert tune_of_machine(vm) == tune_of(wish)
    assert WEB.home == ("workloads", "web")
    assert vm_of_instance(WEB, 1, vm="i", name="n", at=0.0).org == "workloads"


def test_what_is_replaced_and_what_is_not() -> None:
    in_place: list[dict[str, Any]] = [{"instances": 9}, {"enabled": False}, {"restart": RestartPolicy.NEVER}]
    in_place += [{"labels": {"a": "b"}}, {"on_node_loss": OnNodeLoss.WAIT}, {"rollout": Rollout(max_surge=3)}]
    for changes in in_place:
        assert same_template(WEB, web(**changes)), changes
    rule = Affinity(together=True, level=Level.RACK, labels={})
    anew: list[dict[str, Any]] = [{"spec": VmSpec(cpus=2, memory_mib=64)}, {"node_labels": {"a": "b"}}]
    for changes in [*anew, {"affinity": (rule,)}]:
        assert not same_template(WEB, web(**changes)), changes


def test_a_roll_of_many_costs_next_to_nothing_to_decide_from() -> None:
    roll = WorkloadInstances()
    for number in range(1, 50_001):
        roll.put(number, kept(1 + number % 2, ready=bool(number % 3)))
    wish = web(instances=60_000, template=2, rollout=Rollout(max_surge=5, max_unavailable=50_000))
    plan = decide(wish, roll)
    assert plan.make == tuple(range(50_001, 50_021))
    assert len(plan.remove) == 20
    assert set(itertools.pairwise(plan.remove)) == {(n, n - 6) for n in plan.remove[:-1]}, "unready, of template 1"

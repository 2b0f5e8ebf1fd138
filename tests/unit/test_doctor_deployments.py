"""The doctor on deployments: what nobody can read or follows, what belongs to nothing, and what was given up."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec

from hostler.drivers.store.memory import MemoryStore
from hostler.engine.view import View
from hostler.entry.doctor.records import MOST, deployments
from hostler.keys.families import ALERT, ALIVE, BLUEPRINT, DEPLOYMENT, MEMBER, SLICE, SLICE_OWNER
from hostler.kit.virtual_loop import VirtualClock, run_virtual
from hostler.model.deployment import (
    AlertMetric,
    AlertRule,
    Blueprint,
    SliceInstance,
    SliceRecord,
    SliceSpec,
    SliceState,
)
from hostler.model.inventory import Capacity
from hostler.model.node import Heartbeat, Lifecycle, NodeRecord
from hostler.model.rollout import Alert, AlertState, Deployment, Phase, SliceOwner
from hostler.ports.machine_driver import Level
from hostler.ports.store import Put

if TYPE_CHECKING:
    from hostler.ports.machine_driver import Finding

SHOP = BLUEPRINT.put(Blueprint(slices=(SliceSpec(artifact="o:web:1", instances=1),)), blueprint="shop")


def running(node: str, artifact: str, *numbers: int) -> Put:
    one = SliceInstance(state=SliceState.ACTIVE)
    record = SliceRecord(state=SliceState.ACTIVE, timestamp=1, instances=dict.fromkeys(numbers, one))
    return SLICE.put(record, node=node, artifact=artifact)


def examined(*puts: Put) -> list[Finding]:
    found: list[Finding] = []

    async def main() -> None:
        clock = VirtualClock()
        async with MemoryStore(clock=clock) as store:
            for put in puts:
                await store.txn([], [put])
            view = View(store, clock=clock, rng=random.Random(1))
            await view.refresh()
            found.extend(await deployments(store, view))

    run_virtual(main)
    return found


def test_nothing_is_said_where_there_is_nothing_and_little_where_all_is_well() -> None:
    assert examined() == []
    (fine,) = examined(SHOP, running("a", "o:web:1", 1, 2))
    assert (fine.level, fine.what) == (Level.OK, "1 blueprint, 2 instances")


def test_what_cannot_be_read_is_told_and_its_slices_are_not_nobodys() -> None:
    found = examined(
        Put("blueprints/shop", b"no"),
        SLICE_OWNER.put(SliceOwner(blueprint="shop", number=1), base="o:web"),
        running("a", "o:web:1", 1),
        Put("slices/b/o:web:1", b"{}"),
    )
    assert [(one.level, one.what.partition(" ")[0]) for one in found] == [
        (Level.FAIL, "blueprints/shop"),
        (Level.FAIL, "slices/b/o:web:1"),
    ]


def test_a_blueprint_under_a_name_that_is_none_is_told() -> None:
    (found,) = examined(Put("blueprints/Shop", SHOP.value))
    assert "blueprints/Shop" in found.what
    assert "lower-case letters" in found.next


def test_slices_of_no_blueprint_and_numbers_of_two_are_told() -> None:
    found = examined(SHOP, running("a", "o:web:1", 1), running("b", "o:web:1", 1, 2), running("a", "o:gone:1", 1))
    assert [one.what.partition(" ")[0] for one in found] == ["o:gone:1:", "o:web:1#1"]


def test_what_was_given_up_is_told() -> None:
    given_up = Deployment(
        blueprint="shop",
        number=2,
        artifact="o:web:2",
        previous="o:web:1",
        phase=Phase.FAILED,
        why="it crashed",
        started_at=0.0,
        changed_at=0.0,
    )
    (found,) = examined(SHOP, DEPLOYMENT.put(given_up, base="o:web"))
    assert found.what == "o:web of blueprint shop: it crashed; o:web:1 serves"


def test_many_of_a_kind_are_counted() -> None:
    found = examined(*(Put(f"blueprints/X{number}", b"{}") for number in range(MOST + 3)))
    assert len(found) == MOST + 1
    assert found[-1].what == "3 more of this kind"


def test_a_slice_with_all_instances_on_one_node_is_told_while_another_node_takes_slices() -> None:
    blueprint = Blueprint(slices=(SliceSpec(artifact="o:web:1", instances=2),))
    puts = [BLUEPRINT.put(blueprint, blueprint="shop"), running("a", "o:web:1", 1, 2)]
    assert [one.level for one in examined(*puts, *on_duty("a"))] == [Level.OK]
    (found,) = examined(*puts, *on_duty("a"), *on_duty("b"))
    assert (found.level, found.what) == (Level.WARN, "o:web:1: all of its instances are on node a, none on b")
    assert "hostler blueprint status" in found.next
    apart = [BLUEPRINT.put(blueprint, blueprint="shop"), running("a", "o:web:1", 1), running("b", "o:web:1", 2)]
    assert [one.level for one in examined(*apart, *on_duty("a"), *on_duty("b"))] == [Level.OK]


def on_duty(node: str) -> list[Put]:
    capacity = Capacity(cpus=4, memory_mib=4096)
    record = NodeRecord(node=node, lifecycle=Lifecycle.ON_DUTY, capacity=capacity, registered_at=0.0)
    return [MEMBER.put(record, node=node), ALIVE.put(Heartbeat(holder=node, started_at=0.0), node=node)]


def test_d41_alerts_that_fire_are_told() -> None:
    rule = AlertRule(name="slow", metric=AlertMetric.P95_MS, above=5.0)
    firing = Alert(blueprint="shop", rule=rule, state=AlertState.FIRING, value=9.0, at=1.0, why="alert slow fires")
    resolved = msgspec.structs.replace(firing, state=AlertState.RESOLVED)
    (found,) = examined(
        SHOP,
        running("a", "o:web:1", 1),
        ALERT.put(firing, base="o:web", alert="slow"),
        ALERT.put(resolved, base="o:web", alert="busy"),
    )
    assert (found.level, found.what) == (Level.WARN, "blueprint shop: alert slow fires")
    assert "hostler blueprint status" in found.next

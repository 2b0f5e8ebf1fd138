"""What a load would do: nothing for the same, all that differs otherwise, in an order that leaves nothing dangling."""

from __future__ import annotations

from typing import Any

import msgspec
from dose import dose
from hypothesis import given, settings
from hypothesis import strategies as st
from inventory_files import SMALL, documents, rack

from hostler.engine.inventory.inventory_file import inventory_in, read_inventory
from hostler.engine.inventory.plan import batches, desired_records, plan, records_after
from hostler.keys.families import BLADE, IN_RACKS, RACK, REGION, ZONE
from hostler.model.inventory import Blade, Condition, Hardware, Rack, Zone
from hostler.model.name import fold

Records = dict[str, Hardware]


def records_of(document: dict[str, Any]) -> Records:
    return inventory_in(document).records()


def nothing_dangles(records: Records) -> bool:
    """Every record has what stands above it."""
    for key, record in records.items():
        if isinstance(record, Zone) and REGION.fill(region=record.region) not in records:
            return False
        if (
            isinstance(record, Rack)
            and record.zone
            and ZONE.fill(region=record.region, zone=record.zone) not in records
        ):
            return False
        inside = IN_RACKS.match(key)
        if inside is not None and RACK.fill(rack=inside["rack"]) not in records:
            return False
    return True


@settings(max_examples=dose(test=40, full=1000), deadline=None)
@given(documents(), documents(), st.integers(1, 9))
def test_applying_a_plan_to_the_old_gives_the_new_and_nothing_dangles_on_the_way(
    before: dict[str, Any], after: dict[str, Any], most: int
) -> None:
    old, new = records_of(before), records_of(after)
    steps = plan(old, new)
    assert records_after(old, steps) == new
    assert [step for batch in batches(steps, most) for step in batch] == list(steps)
    now = old
    for batch in batches(steps, most):
        assert 1 <= len(batch) <= most
        now = records_after(now, batch)
        assert nothing_dangles(now)
    assert now == new
    assert all(step.fields() for step in steps if step.before is not None and step.after is not None)


@settings(max_examples=dose(test=20, full=500), deadline=None)
@given(documents())
def test_the_plan_of_the_same_is_empty(document: dict[str, Any]) -> None:
    records = records_of(document)
    assert plan(records, dict(reversed(records.items()))) == ()
    assert desired_records(inventory_in(document), records) == records


@settings(max_examples=dose(test=20, full=500), deadline=None)
@given(documents(), documents())
def test_loading_twice_is_loading_once(before: dict[str, Any], after: dict[str, Any]) -> None:
    once = desired_records(inventory_in(after), records_of(before))
    assert plan(once, desired_records(inventory_in(after), once)) == ()


def test_a_step_says_what_changes_in_words() -> None:
    old = read_inventory(SMALL).records()
    text = (
        SMALL.replace("cpus: 16", "cpus: 32").replace("disk: ssd", "disk: nvme").replace("9: null", "9: null, 4: null")
    )
    text = text.replace("2: big, 3: tor1", "3: big").replace("hall 2", "hall 3").replace("count: 2", "count: 3")
    text = text.replace("ports: 2}", "ports: 3}")
    steps = plan(old, read_inventory(text).records())
    told = {f"{step.kind} {step.name}": step.fields() for step in steps}
    assert told["rack r1"] == (("location", "hall 2", "hall 3"),)
    assert told["blade r1/b2"] == (("cpus", "16", "32"), ("label disk", "ssd", "nvme"))
    assert told["pdu r2/pdu1"] == (("port 2", "big", "unwired"), ("port 3", "tor1", "big"))
    assert told["tor lone/t"] == (("port 3", "", "3"),)
    assert told["blade lone/3"] == ()
    assert [step.node for step in steps if step.name == "lone/3"] == ["lone-3"]
    gone = plan(old, {})
    assert [step.kind for step in gone][-3:] == ["rack", "zone", "region"]
    assert next((step.name, step.node) for step in gone if step.kind == "blade") == ("r2/big", "r2-big")


def test_what_the_file_does_not_say_stays_as_somebody_set_it() -> None:
    blades = [{"name": "b1", "condition": "operational"}, {"name": "b2"}]
    inventory = inventory_in({"racks": [rack(blades=blades)]})
    old = inventory.records()
    for name in ("b1", "b2"):
        key = BLADE.fill(rack="r1", blade=name)
        old[key] = msgspec.structs.replace(old[key], enabled=False, condition=Condition.OUT_FOR_REPAIR)
    new = desired_records(inventory, old)
    b1, b2 = (new[BLADE.fill(rack="r1", blade=name)] for name in ("b1", "b2"))
    assert (b1.enabled, b1.condition) == (False, Condition.OPERATIONAL)
    assert (b2.enabled, b2.condition) == (False, Condition.OUT_FOR_REPAIR)
    renamed = desired_records(inventory_in({"racks": [rack(pdus=[{"name": "other", "ports": 4}])]}), _off(old))
    assert {fold(each.name): each.enabled for each in renamed.values()} == {
        "r1": False,
        "tor1": False,
        "b1": False,
        "b2": False,
        "other": True,
    }


def _off(records: Records) -> Records:
    return {key: msgspec.structs.replace(record, enabled=False) for key, record in records.items()}


def test_what_a_later_release_wrote_is_kept() -> None:
    inventory = inventory_in({"racks": [rack()]})
    old = inventory.records()
    key = BLADE.fill(rack="r1", blade="b1")
    old[key] = Blade.decode(old[key].encode()[:-1] + b',"colour":"red"}')
    assert b"colour" in desired_records(inventory, old)[key].encode()
    assert plan(old, desired_records(inventory, old)) == ()


def test_a_rack_is_written_at_once_where_it_fits() -> None:
    steps = plan({}, records_of({"racks": [rack(f"r{n}") for n in range(10)]}))
    assert len(steps) == 50
    assert [sorted({step.rack for step in batch}) for batch in batches(steps, 12)][:2] == [["r0", "r1"], ["r2", "r3"]]
    assert [len(batch) for batch in batches(steps, 3)][:4] == [3, 2, 3, 2]
    assert list(batches((), 3)) == []

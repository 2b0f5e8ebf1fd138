"""How a plan, a rack and its wiring are told on a terminal."""

from __future__ import annotations

import pytest
from inventory_files import SMALL, rack

from hostler.engine.inventory.inventory_file import inventory_in, read_inventory
from hostler.engine.inventory.plan import plan
from hostler.engine.inventory.service import _change_view
from hostler.entry.cli.inventory import _count_text, _lines
from hostler.entry.cli.rack import runs, standing
from hostler.model.inventory import Condition, Hardware

Records = dict[str, Hardware]


def told(old: Records, new: Records) -> list[str]:
    return [f"{what} {line}" for what, line in _lines([_change_view(step) for step in plan(old, new)])]


def test_what_comes_and_goes_with_its_rack_is_told_with_the_rack() -> None:
    records = read_inventory(SMALL).records()
    assert told({}, records) == [
        "add region EU",
        "add zone EU/eu-1",
        "add rack lone: 1 pdu, 1 tor, 2 blades",
        "add rack r1: 2 pdus, 1 tor, 4 blades",
        "add rack R2: 1 pdu, 1 tor, 2 blades",
    ]
    gone = told(records, {})
    assert gone[0] == "remove rack R2: 1 pdu, 1 tor, 2 blades"
    assert gone[-1] == "remove region EU"
    steps = [_change_view(step) for step in plan({}, records)]
    assert (_count_text(steps), _count_text(steps, done=True)) == ("20 to add", "20 added")


def test_what_is_alike_is_told_together() -> None:
    old = inventory_in({"racks": [rack(pdus=[{"name": "p", "ports": 9}], tors=[{"name": "t", "ports": 9}])]}).records()
    blades = [{"count": 1, "cpus": 9, "memory": "16GiB"}, {"name": "b2", "cpus": 9, "memory": "16GiB"}]
    more = [*blades, {"count": 3, "first": 3}, {"name": "b9"}]
    feeds = {"pdus": [{"name": "p", "ports": 9}], "tors": [{"name": "t", "ports": 9}]}
    new = inventory_in({"racks": [rack(**feeds, blades=more)]}).records()
    lines = told(old, new)
    assert lines[0].startswith("change pdu r1/p: port 3: t → b3, port 4: unwired → b4")
    assert lines[2:] == ["change 2 blades of r1 (b1–b2): cpus 8 → 9", "add 4 blades of r1 (b3–b5, b9)"]
    assert told(new, old)[-1] == "remove 4 blades of r1 (b3–b5, b9)"


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ([], []),
        (["b1", "b2", "b3", "tor1"], ["b1–b3", "tor1"]),
        (["b1", "b3", "c4", "x"], ["b1", "b3", "c4", "x"]),
        (["1", "2", "9"], ["1–2", "9"]),
        (["x", "x"], ["x", "x"]),
    ],
)
def test_names_that_follow_each_other_are_told_shortly(names: list[str], shown: list[str]) -> None:
    assert runs(names) == shown


def test_standing_in_words() -> None:
    assert standing(True, Condition.OPERATIONAL) == "operational"
    assert standing(False, Condition.OPERATIONAL) == "disabled"
    assert standing(True, Condition.OUT_FOR_REPAIR) == "out for repair"
    assert standing(False, Condition.BURN_IN) == "disabled, burn in"

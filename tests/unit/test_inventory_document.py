"""The inventory file: what is read, what is refused with line and field, and that it can be written back."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from inventory_files import SMALL, documents, rack

from hostler.engine.inventory.export import document_of, inventory_from, natural
from hostler.engine.inventory.inventory_file import inventory_in, read_inventory
from hostler.errors import Invalid
from hostler.model.inventory import Capacity, Condition


def test_a_file_is_read_into_records_at_the_keys_of_the_contract() -> None:
    inventory = read_inventory(SMALL)
    records = inventory.records()
    root = "/CloudChamber/V0.1"
    assert list(records)[:8] == [
        "/hostler/v1/regions/eu",
        "/hostler/v1/zones/eu/eu-1",
        f"{root}/racks/r1",
        f"{root}/rack/r1/pdu",
        f"{root}/rack/r1/pdus/2",
        f"{root}/rack/r1/tor",
        f"{root}/rack/r1/blades/b1",
        f"{root}/rack/r1/blades/b2",
    ]
    r1 = inventory.rack("R1")
    assert r1 is not None
    assert (r1.rack.region, r1.rack.zone, r1.rack.location) == ("EU", "eu-1", "hall 2")
    assert r1.blades[3].capacity == Capacity(cpus=16, memory_mib=65536, disk_gib=500)
    assert [(node, blade.name) for node, _, blade in inventory.nodes()][-4:] == [
        ("r2-a", "a"),
        ("r2-big", "big"),
        ("lone-1", "1"),
        ("lone-2", "2"),
    ]


def test_blades_are_wired_in_order_and_then_the_tors_unless_the_file_says_otherwise() -> None:
    inventory = read_inventory(SMALL)
    r1, r2, lone = inventory.racks
    assert [(pdu.name, port) for pdu, port in r1.feeds("B3")] == [("pdu1", 3), ("pdu2", 3)]
    assert [(pdu.name, port) for pdu, port in r1.feeds("tor1")] == [("pdu1", 5), ("pdu2", 5)]
    assert [(tor.name, port) for tor, port in r1.links("b4")] == [("tor1", 4)]
    assert [port.wired for port in r2.pdus[0].ports.values()] == [True] * 3 + [False] * 6
    assert [port.item for port in lone.pdus[0].ports.values()] == ["1", "2"]


def test_enabled_and_condition_are_two_things() -> None:
    a, big = read_inventory(SMALL).racks[1].blades
    assert (a.enabled, a.condition, a.on_duty) == (True, Condition.BURN_IN, False)
    assert (big.enabled, big.condition, big.on_duty) == (False, Condition.OPERATIONAL, False)


@settings(max_examples=60, deadline=None)
@given(documents())
def test_what_was_read_can_be_written_and_read_again(document: dict[str, Any]) -> None:
    inventory = inventory_in(document)
    records = inventory.records()
    written = document_of(inventory)
    assert inventory_in(written).records() == records
    assert read_inventory(yaml.safe_dump(written, sort_keys=False)).records() == records
    assert inventory_from(dict(sorted(records.items()))).records() == records


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no pdu": ({"pdus": []}, "pdus: a rack has 1 or 2, not 0"),
    "three tors": ({"tors": [{"name": f"t{n}", "ports": 2} for n in range(3)]}, "tors: a rack has 1 or 2, not 3"),
    "no blades": ({"blades": []}, "blades: a rack has from 1 to 1000, not 0"),
    "too many": ({"blades": {"count": 1001}}, "blades.count: must be from 1 to 1000"),
    "too many in parts": (
        {"blades": [{"count": 999}, {"count": 9, "prefix": "c"}]},
        "blades: a rack has from 1 to 1000, not 1008",
    ),
    "few ports": ({"pdus": [{"name": "p", "ports": 1}]}, "pdus[0].ports: 1 is too few for 2 blades"),
    "no ports": ({"pdus": [{"name": "p"}]}, "pdus[0].ports: is missing"),
    "text as ports": ({"pdus": [{"name": "p", "ports": "4"}]}, "pdus[0].ports: must be the number of ports, or a map"),
    "pdu to pdu": (
        {"pdus": [{"name": "p", "ports": 2}, {"name": "q", "ports": {"1": "b1", "2": "P"}}]},
        "pdus[1].ports.2: P is a pdu; the port of a pdu takes a blade or a tor",
    ),
    "tor to tor": (
        {"tors": [{"name": "t", "ports": 2}, {"name": "u", "ports": {"1": "t", "2": "b2"}}]},
        "tors[1].ports.1: t is a tor; the port of a tor takes a blade",
    ),
    "tor to pdu": ({"tors": [{"name": "t", "ports": {"2": "pdu1"}}]}, "tors[0].ports.2: pdu1 is a pdu"),
    "unknown item": ({"tors": [{"name": "t", "ports": {"2": "b7"}}]}, "tors[0].ports.2: b7 is not in this rack"),
    "unwired with item": (
        {"tors": [{"name": "t", "ports": {"2": {"wired": False, "item": "b1"}}}]},
        "tors[0].ports.2: an unwired port has no item, and this one has b1",
    ),
    "wired to nothing": (
        {"tors": [{"name": "t", "ports": {"2": {"wired": True}}}]},
        "tors[0].ports.2: a wired port names the item",
    ),
    "wired twice": (
        {"tors": [{"name": "t", "ports": {"1": "b1", "2": "B1"}}]},
        "tors[0].ports.2: B1 is wired to port 1 already",
    ),
    "port 0": ({"tors": [{"name": "t", "ports": {"0": "b1", "2": None}}]}, "tors[0].ports.0: a port is a number"),
    "blade twice": (
        {"blades": [{"name": "b1"}, {"name": "B1"}]},
        "blades[1].name: B1 is the name of blade 1 of the rack already",
    ),
    "blade like a tor": ({"blades": [{"name": "Tor1"}]}, "blades[0].name: Tor1 is the name of tor 1 of the rack"),
    "dash": ({"name": "r-1"}, "name: a rack's name must not contain '-'"),
    "slash": ({"blades": [{"name": "a/b"}]}, "blades[0].name: must not hold a '/'"),
    "colon": ({"blades": [{"name": "a:b"}]}, "blades[0].name: must not contain a space or ':'"),
    "no name": ({"blades": [{"cpus": 1}]}, "blades[0].name: is missing"),
    "cpus": ({"blades": [{"name": "a", "cpus": 5000}]}, "blades[0].cpus: must be from 1 to 4096"),
    "no cpus": ({"blades": {"count": 2, "cpus": 0}}, "blades.cpus: must be from 1 to 4096"),
    "memory": ({"blades": {"count": 2, "memory": "65TiB"}}, "blades.memory: must be from 1MiB to 67108864MiB"),
    "bare memory": ({"blades": {"count": 2, "memory": 64}}, "blades.memory: 64 is not a size; write a number with its"),
    "disk": ({"blades": {"count": 2, "disk": "512M"}}, "blades.disk: 512M is not a whole number of GiB"),
    "condition": ({"condition": "broken"}, "condition: must be operational, not_in_service, burn_in"),
    "enabled": ({"enabled": "no"}, "enabled: must be true or false, not 'no'"),
    "typo": ({"pduz": []}, "pduz: unknown field; did you mean pdus?"),
    "labels": ({"blades": {"count": 1, "labels": {"a": []}}}, "blades.labels.a: must be text, not a list"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_is_refused_with_its_field(name: str) -> None:
    more, message = BAD[name]
    with pytest.raises(Invalid) as refused:
        inventory_in({"racks": [rack(**more)]})
    assert str(refused.value).startswith(f"racks[0].{message}")
    assert len(str(refused.value).splitlines()) == (3 if name == "too many in parts" else 1)


def test_every_mistake_is_told_with_its_line() -> None:
    text = SMALL.replace("count: 4, cpus: 16", "count: 4, cpus: 0").replace("9: null", "9: nobody")
    text = text.replace("enabled: false", "enabled: maybe").replace("name: lone", "name: R1")
    with pytest.raises(Invalid) as refused:
        read_inventory(text, "dc.yaml")
    assert str(refused.value).splitlines() == [
        "dc.yaml:10: regions[0].zones[0].racks[0].blades.cpus: must be from 1 to 4096",
        "dc.yaml:12: regions[0].zones[0].racks[1].pdus[0].ports.9: nobody is not in this rack",
        "dc.yaml:16: regions[0].zones[0].racks[1].blades[1].enabled: must be true or false, not 'maybe'",
        "dc.yaml:18: racks[0].name: there is a rack R1 already: regions[0].zones[0].racks[0] in line 6",
    ]


def test_levels_are_there_once() -> None:
    document = {"regions": [{"name": "eu", "zones": [{"name": "a"}, {"name": "A"}]}, {"name": "EU"}]}
    with pytest.raises(Invalid) as refused:
        inventory_in(document)
    assert str(refused.value).splitlines() == [
        "regions[1].name: there is a region EU already: regions[0]",
        "regions[0].zones[1].name: there is a zone eu/A already: regions[0].zones[0]; correct the inventory",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "racks: {}",
        "a: &a [x]\nb: *a",
        "racks: !!set {}",
        "[" * 10_000,
        "racks:\n\t- name: a",
        "racks: []\nracks: []",
        "racks: \0",
    ],
)
def test_what_is_no_inventory_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        read_inventory(text, "f.yaml")
    assert len(str(refused.value).splitlines()) == 1
    assert str(refused.value).startswith("f.yaml:")


@pytest.mark.slow
def test_a_few_lines_cannot_ask_for_billions() -> None:
    many = {"racks": [rack(f"r{n}", blades=[{"count": 1000}] * 50) for n in range(1000)]}
    wide = {"racks": [rack(f"r{n}", tors=[{"name": "t", "ports": 2000}]) for n in range(1000)]}
    started = time.process_time()
    for document, what in ((many, "are"), (wide, "more than 1000000 ports")):
        with pytest.raises(Invalid, match=what):
            inventory_in(document)
    assert time.process_time() - started < 5.0


def test_names_are_sorted_as_people_do() -> None:
    assert sorted(["b10", "B2", "a", "b1", "2", "10"], key=natural) == ["2", "10", "a", "b1", "B2", "b10"]


def test_the_file_of_the_guide_can_be_loaded() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "inventory.md").read_text(encoding="utf-8")
    inventory = read_inventory(guide.partition("```yaml\n")[2].partition("```")[0])
    assert [(full.rack.name, len(full.blades)) for full in inventory.racks] == [("r1", 8), ("r2", 2)]
    assert [len(pdu.ports) for pdu in inventory.racks[1].pdus] == [12]

"""I40: an inventory file of CloudChamber is imported."""

from __future__ import annotations

import msgspec
import pytest
from click.testing import CliRunner

from hostler.engine.inventory.export import read_document
from hostler.engine.inventory.inventory_file import inventory_in
from hostler.engine.inventory.streaming_json import decode_document
from hostler.entry.cli.inventory import check as check_command
from hostler.errors import Invalid
from hostler.model.inventory import Condition

SAMPLE = """\
Details: {Name: lab room, Notes: one rack}
BladeTypes:
  - &small
    Details: {Enabled: true, Condition: operational}
    BootOnPowerOn: true
    BootInfo: {Source: network, Image: base.img, Version: latest, Parameters: ""}
    Capacity: {Cores: 8, MemoryInMb: 16384, DiskInGb: 100, NetworkBandwidthInMbps: 1000, Arch: X64}
Regions:
  - Name: north
    Details: {State: in_service, Location: hall 1, Notes: ""}
    Zones:
      - name: a
        Details: {Enabled: "true", State: Commissioning, Location: row 1, Notes: ""}
        Racks:
          - Name: r-1
            Details: {Enabled: true, Condition: operational, Location: slot 1, Notes: ""}
            Pdus:
              - Index: 0
                Details: {Enabled: true, Condition: operational}
                Ports:
                  - {Index: 0, Wired: true, Item: {Type: tor, Id: 0, Port: 0}}
                  - {Index: 1, Wired: true, Item: {Type: blade, Id: 1, Port: 0}}
                  - {Index: 2, Wired: true, Item: {Type: blade, Id: 2, Port: 1}}
                  - {Index: 3, Wired: true, Item: {Type: blade, Id: 9, Port: 0}}
            Tors:
              - Index: 0
                Details: {Enabled: true, Condition: operational}
                Ports:
                  - {Index: 0, Wired: true, Item: {Type: pdu, Id: 0, Port: 0}}
                  - {Index: 1, Wired: true, Item: {Type: blade, Id: 1, Port: 0}}
                  - {Index: 2, Wired: true, Item: {Type: blade, Id: 2, Port: 0}}
            Blades:
              - {Index: 1, <<: *small}
              - <<: *small
                Index: "2"
                details: {Enabled: 0, Condition: burn_in}
"""


def test_i40_regions_zones_racks_blades_pdus_and_tors_are_imported() -> None:
    document = read_document(SAMPLE, "Inventory.yaml", "cloudchamber")
    found = inventory_in({"regions": list(document.regions), "racks": list(document.racks)})
    assert [(each.name, each.condition) for each in found.regions] == [("north", Condition.OPERATIONAL)]
    assert [(each.name, each.enabled, each.condition) for each in found.zones] == [("a", True, Condition.BURN_IN)]
    [full] = found.racks
    assert (full.rack.name, full.rack.region, full.rack.zone, full.rack.location) == ("r_1", "north", "a", "slot 1")
    assert [blade.name for blade in full.blades] == ["b1", "b2"]
    first, second = full.blades
    capacity = first.capacity
    assert (capacity.cpus, capacity.memory_mib, capacity.disk_gib, capacity.network_mbps) == (8, 16384, 100, 1000)
    assert first.labels == {"arch": "x86_64"}
    assert (first.enabled, first.condition) == (True, Condition.OPERATIONAL)
    assert (second.enabled, second.condition) == (False, Condition.BURN_IN)
    [pdu], [tor] = full.pdus, full.tors
    assert (pdu.name, {n: port.item for n, port in pdu.ports.items()}) == (
        "pdu0",
        {1: "b1", 2: "b2", 3: None, 4: "tor0"},
    )
    assert (tor.name, {n: port.item for n, port in tor.ports.items()}) == ("tor0", {1: "b1", 2: "b2"})


def test_i40_what_has_no_meaning_here_is_reported_with_its_place_and_does_not_stop_the_import() -> None:
    document = read_document(SAMPLE, "Inventory.yaml", "cloudchamber")
    told = "\n".join(document.notes)
    for words in (
        "Details.Name was left out",
        "Details.Location of a region or zone was left out",
        "BootInfo was left out",
        "Item.Port was left out",
        "a cable to a component that is not in the rack was left out (1 place; first: line 24,",
        "a tor's port to a pdu was left out",
        "port 0 became the last port",
        "characters of a name became '_'",
    ):
        assert words in told, words
    assert decode_document(msgspec.json.encode(document)).racks == document.racks  # what was read can be planned


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("Cores: 8", "Cores: none", r"x.yaml:7: .*Cores: must be a whole number"),
        ("Condition: burn_in", "Condition: tired", r"x.yaml:36: .*Condition: must be "),
        ("State: in_service, ", "", r"x.yaml:10: regions\[0\].*State: is missing"),
        ("Notes: one rack", "Colour: red", r"x.yaml:1: Details.Colour: unknown field"),
        ("*small\n", "*large\n", r"x.yaml:34: no anchor &large"),
        ("{Type: blade, Id: 9, Port: 0}", "{Type: pdu, Id: 0, Port: 0}", r"x.yaml:24: .*does not lead to a pdu"),
        ('Index: "2"', "Index: 1", r"x.yaml:\d+: .*b1 is the name of blade 1 of the rack already"),
        ("MemoryInMb: 16384", "MemoryInMb: 0", r"x.yaml:7: .*MemoryInMb: must be from 1"),
    ],
)
def test_i40_every_mistake_has_its_line_and_field(before: str, after: str, told: str) -> None:
    assert before in SAMPLE
    with pytest.raises(Invalid, match=told.replace("regions", "(?i:regions)")):
        read_document(SAMPLE.replace(before, after), "x.yaml", "cloudchamber")


def test_i40_the_earlier_format_is_imported() -> None:
    text = """\
Racks:
  - Name: old
    Pdu: {}
    Tor: {}
    Blades:
      - {Index: 1, Arch: arm64, Cores: 4, DiskInGb: 10, MemoryInMb: 1024, NetworkBandwidthInMbps: 100}
      - {Index: 2, Arch: X64, Cores: 4, DiskInGb: 10, MemoryInMb: 1024, NetworkBandwidthInMbps: 100}
"""
    document = read_document(text, "old.yaml", "cloudchamber")
    [full] = inventory_in({"racks": list(document.racks)}).racks
    assert [blade.labels["arch"] for blade in full.blades] == ["aarch64", "x86_64"]
    assert full.feeds("b2")[0][1] == 2
    assert full.feeds("tor0")[0][1] == 3


def test_i40_aliases_of_aliases_are_bounded_and_only_read_where_they_are_asked_for() -> None:
    levels = [f"  - &a{n} [{', '.join(f'*a{n - 1}' for _ in range(10))}]" for n in range(1, 9)]
    bomb = "\n".join(["ZoneTypes:", "  - &a0 [x, x, x, x, x, x, x, x, x, x]", *levels])
    with pytest.raises(Invalid, match="too many values"):
        read_document(bomb, "x.yaml", "cloudchamber")
    with pytest.raises(Invalid, match="inside its own anchor"):
        read_document("ZoneTypes: &a [*a]", "x.yaml", "cloudchamber")
    with pytest.raises(Invalid, match="anchors"):
        read_document(SAMPLE, "x.yaml")


def test_i40_the_command_line_checks_such_a_file_and_tells_what_it_left_out(tmp_path) -> None:
    file = tmp_path / "Inventory.yaml"
    file.write_text(SAMPLE)
    done = CliRunner().invoke(check_command, [str(file), "--format", "cloudchamber"])
    assert done.exit_code == 0, done.output
    assert "1 region, 1 zone, 1 rack, 2 blades" in done.output
    assert "note: BootInfo was left out" in done.output


def test_i40_a_number_with_zeros_in_front_is_the_same_number() -> None:
    zeros = "0" * 30
    padded = SAMPLE.replace('Index: "2"', f'Index: "{zeros}2"').replace("Cores: 8", f'Cores: "{zeros}8"')
    assert read_document(padded, "f", "cloudchamber") == read_document(SAMPLE, "f", "cloudchamber")
    with pytest.raises(Invalid, match="must be from 1 to"):
        read_document(SAMPLE.replace("Cores: 8", f'Cores: "1{zeros}"'), "f", "cloudchamber")

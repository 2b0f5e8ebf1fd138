"""The file of a scenario: what it says, what is wrong with it and where; what is drawn from a seed; and shrinking."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import yaml

from hostler.errors import Invalid, NotFound
from hostler.model.node import DrainMode
from hostler.model.vm import Level, OnNodeLoss
from hostler.sim.fault import BladeCrash, PowerFault
from hostler.sim.scenario import actions, library
from hostler.sim.scenario.format import read_scenario, scenario_text
from hostler.sim.scenario.scenario import INVARIANTS, draw_moments
from hostler.sim.scenario.shrink import Search, fewest, simplest

RACK = """
    - name: r1
      pdus: [{name: pdu1, ports: 5}]
      tors: [{name: tor1, ports: 5}]
      blades: {count: 4, prefix: b, cpus: 4, memory: 8GiB}
"""
SMALL = f"""
name: small
about: nothing happens
length: 2m
inventory:
  racks:{RACK}
"""


def doubts(text: str) -> list[str]:
    with pytest.raises(Invalid) as raised:
        read_scenario(text, "s.yaml")
    return str(raised.value).splitlines()


def test_the_least_that_a_scenario_says() -> None:
    scenario = read_scenario(SMALL)
    assert (scenario.name, scenario.length, scenario.replicas, scenario.seed) == ("small", 120.0, 2, 1)
    assert scenario.invariants == INVARIANTS
    assert [node for node, *_ in scenario.inventory.nodes()] == ["r1-b1", "r1-b2", "r1-b3", "r1-b4"]


def test_all_that_a_scenario_can_say() -> None:
    scenario = read_scenario(
        SMALL
        + """
seed: 7
settle: 90
replicas: 3
settings: {node_ttl: 8, fencing_time: 16s, power: true, agents: light, boots: 4}
workloads:
  - name: web
    instances: 3
    cpus: 1
    memory: 1GiB
    affinity: [{together: false, level: rack}]
    rollout: {max_unavailable: 2}
vms:
  - {name: db, count: 2, cpus: 2, on_node_loss: wait, labels: {tier: db}, affinity: [{together: false, level: node}]}
  - {name: one, org: other, project: thing, expires: 1m}
labs:
  - {user: ada, lab: 5}
  - {user: s, count: 2}
catalogue: {at_once: 3, default: {life: 60, grace: 5}}
timeline:
  - {at: 10, fault: power, on: R1/pdu1, for: 30s}
  - {at: 1m, do: drain, on: [r1/b1, r1/b2], mode: stop}
  - {at: 61, do: activate, on: r1}
  - {at: 62, do: scale, workload: web, instances: 5}
  - {at: 63, do: delete, workload: web, refused: true}
  - {at: 64, do: apply, workload: {name: web, instances: 1, cpus: 1, memory: 1GiB}}
  - {at: 65, do: set, on: r1/b1, condition: out_for_repair, enabled: false}
  - {at: 66, do: lab_start, user: t, count: 2, lab: 6}
  - {at: 67, do: lab_stop, user: ada}
  - {at: 68, do: create_vm, vm: {name: late}}
  - {at: 69, do: delete_vm, name: db, count: 2}
  - {at: 70, do: confirm_off, on: r1/b3}
  - {at: 71, do: repair}
  - {at: 72, do: repair, on: r1/pdu1}
chances:
  - {fault: blade_crash, per_hour: 60, for: [10, 20]}
  - {fault: answer_lost, per_hour: 60, chance: 0.3, on: replicas, for: 5}
invariants: [wishes_met, no_vm_twice]
pending: 2
"""
    )
    assert scenario.settings == {"node_ttl": 8.0, "fencing_time": 16.0, "power": True, "agents": "light", "boots": 4}
    (web,) = scenario.workloads
    assert (web.instances, web.spec.memory_mib, web.affinity[0].level) == (3, 1024, Level.RACK)
    db, one = scenario.vms
    assert db.names == ("db-1", "db-2")
    assert db.wanted.on_node_loss is OnNodeLoss.WAIT
    assert db.wanted.affinity[0].labels == {"tier": "db"}
    assert (one.org, one.project, one.wanted.expires_in) == ("other", "thing", 60.0)
    assert [(lab.users, lab.lab_id) for lab in scenario.labs] == [(("ada",), 5), (("s-1", "s-2"), 1)]
    assert scenario.catalogue is not None
    assert scenario.catalogue.default.life == 60
    first, drain, activate, *_, repair = [moment.what for moment in scenario.timeline]
    assert first == PowerFault(on="R1/pdu1", for_=30.0)
    assert drain == actions.DrainNodes(nodes=("r1-b1", "r1-b2"), mode=DrainMode.STOP)
    assert activate == actions.ActivateNodes(nodes=("r1-b1", "r1-b2", "r1-b3", "r1-b4"))
    assert [moment.what for moment in scenario.timeline if getattr(moment.what, "refused", False)] == [
        actions.Delete(workload="web", refused=True)
    ]
    assert repair == actions.Repair(on="r1/pdu1")
    assert scenario.chances[0].on == ("r1/b1", "r1/b2", "r1/b3", "r1/b4")
    assert scenario.chances[1].on == ("replica-1", "replica-2", "replica-3")
    assert scenario.invariants == ("no_vm_twice", "wishes_met")
    assert scenario.pending == 2
    assert msgspec.structs.asdict(read_scenario(scenario_text(scenario))) == msgspec.structs.asdict(scenario)


def test_what_light_agents_would_not_feel_is_refused() -> None:
    text = SMALL + (
        "settings: {agents: light, latency: 0.1}\n"
        "timeline:\n"
        "  - {at: 1, fault: store_slow}\n"
        "  - {at: 1, fault: watch_lost, on: r1/b1}\n"
        "  - {at: 1, fault: answer_lost, on: replica-1}\n"
        "  - {at: 1, fault: store_unavailable}\n"
        "chances:\n"
        "  - {fault: answer_lost, per_hour: 6, on: [replicas, blades]}\n"
        "  - {fault: answer_lost, per_hour: 6, on: [replica-1, Replica-2]}\n"
    )
    places = ("settings.latency", "timeline[0].fault", "timeline[1].fault", "chances[0].fault")
    told = doubts(text)
    assert len(told) == len(places)
    for place, line in zip(places, told, strict=True):
        assert place in line
        assert "does not affect light agents; use real agents" in line
    assert read_scenario(text.replace("agents: light", "agents: real")).chances[0].on


def test_everything_that_is_wrong_is_told_with_its_line() -> None:
    text = SMALL.replace("length: 2m", "length: two") + (
        "blueprints: []\n"
        "settings: {node_ttl: 10, fencing_time: 12, speed: 9}\n"
        "workloads: [{instances: 3, memory: 1x, rollout: {max_surge: -1}}]\n"
        "vms: [{name: db, on_node_loss: perhaps}]\n"
        'labs: [{user: "a\\u200bb"}]\n'
        "catalogue: {default: {life: -5}}\n"
        "timeline:\n"
        "  - {at: 1, fault: power, on: r1/pdu9}\n"
        "  - {at: 1, fault: power, on: replica-1}\n"
        "  - {at: 1, fault: powr}\n"
        "  - {at: 1, fault: answer_lost, chance: 2}\n"
        "  - {at: 1, do: drian}\n"
        "  - {at: 1, do: drain, on: r2}\n"
        "  - {at: 1, do: drain, fault: power}\n"
        "  - {do: scale, workload: web, instances: many}\n"
        "  - {at: 1, do: set, on: r1/b9}\n"
        "  - {at: 1, do: load_inventory, inventory: {racks: [{name: r-2}]}}\n"
        "chances:\n"
        "  - {fault: blade_crash, per_hour: 6, for: [10, 5]}\n"
        "  - {fault: blade_crash, per_hour: 6, on: tors}\n"
        "  - {fault: blade_crash}\n"
        "invariants: [no_vm_twic]\n"
        "pending: -1\n"
    )
    told = doubts(text)
    for line, what in (
        (4, "length: 'two' is not a duration"),
        (12, "blueprints: must be a map, not a list"),
        (13, "settings.speed: unknown field"),
        (13, "settings.fencing_time: must be at least twice node_ttl, 20 seconds"),
        (14, "workloads[0].name: is missing"),
        (14, "workloads[0].memory: '1x' is not a size"),
        (14, "workloads[0].rollout.max_surge: must be from 0"),
        (15, "vms[0].on_node_loss: must be recreate, fence or wait"),
        (16, "labs[0].user: webuserid 'a\\u200bb': must not hold '\\u200b', which cannot be printed"),
        (17, "catalogue.default.life: expected `float` > 0.0"),
        (19, "timeline[0].on: r1/pdu9 is not in the inventory"),
        (20, "timeline[1].on: replica-1 is a replica; power affects a rack or pdu or blade"),
        (21, "timeline[2].fault: unknown fault powr; did you mean power?"),
        (22, "timeline[3]: fault answer_lost: chance 2: must be above 0 and at most 1"),
        (23, "timeline[4].do: unknown action drian; did you mean drain?"),
        (24, "timeline[5].on: r2 is not a blade or rack of the inventory"),
        (25, "timeline[6]: must have either a fault or a do"),
        (26, "timeline[7].at: is missing"),
        (26, "timeline[7].instances: must be a whole number, not 'many'"),
        (27, "timeline[8].on: r1/b9 is not a region, zone, rack, pdu, tor or blade of the inventory"),
        (27, "timeline[8]: must say what to set"),
        (28, "timeline[9].inventory.racks[0].name"),
        (30, "chances[0].for: must be a number of seconds, or a range of two numbers"),
        (31, "chances[1].on: r1/tor1 is a tor; blade_crash affects a blade"),
        (32, "chances[2].per_hour: is missing"),
        (33, "invariants[0]: must be"),
        (34, "pending: must be from 0"),
    ):
        assert any(found.startswith(f"s.yaml:{line}: {what}") for found in told), (line, what, told)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "must be a map"),
        ("[]", "must be a map"),
        ("name: [", "not YAML"),
        ("name: x", "length: is missing"),
        ("name: x", "inventory: is missing"),
        (SMALL + "timeline: [{at: 121, fault: leader_killed}]", "is after the end of the scenario at 120 seconds"),
        (SMALL + "inventory: {}", "is duplicated"),
    ],
)
def test_what_is_no_scenario(text: str, told: str) -> None:
    assert any(told in line for line in doubts(text)), doubts(text)


def test_no_file_whatever_it_holds_ends_in_anything_but_a_refusal() -> None:
    rng = random.Random(1)
    tokens = [
        *SMALL.split(),
        "-",
        "{",
        "}",
        "[",
        "]",
        ":",
        "&a",
        "*a",
        "!!python/object",
        "\x00",
        "~",
        "1e400",
        "'",
        "null",
    ]
    for _ in range(300):
        text = " ".join(rng.choices(tokens, k=rng.randint(0, 30)))
        with pytest.raises(Invalid):
            read_scenario(text)
    fields = ["timeline", "chances", "vms", "workloads", "labs", "settings", "catalogue", "invariants", "seed"]
    values: list[Any] = [
        None,
        1,
        -1,
        "x",
        [],
        {},
        [1],
        [None],
        [[]],
        [{}],
        {"x": 1},
        [{"at": {}, "fault": [], "do": 3}],
    ]
    values += [[{"at": 1, "fault": "power", "on": []}], [{"at": 1, "do": "apply", "workload": []}], [{"do": "repair"}]]
    values += [[{"fault": "power", "per_hour": [], "on": {}}], [{"name": {}, "count": -1}], [{"user": None}], 10**30]
    for field in fields:
        for value in values:
            text = SMALL + yaml.safe_dump({field: value})
            try:
                read_scenario(text)
            except Invalid as error:
                assert field in str(error)  # noqa: PT017 - some are fine


def test_an_inventory_of_another_file() -> None:
    text = "name: x\nabout: y\nlength: 9\ninventory: racks.yaml\n"
    scenario = read_scenario(text, include=lambda path: f"racks:{RACK}" if path == "racks.yaml" else "")
    assert len(list(scenario.inventory.nodes())) == 4
    assert read_scenario(scenario_text(scenario)).inventory == scenario.inventory  # without the other file
    with pytest.raises(Invalid, match=r"inventory: racks.yaml:1: racks: must be a list"):
        read_scenario(text, include=lambda _: "racks: 3")


# Chance

CHANCES = SMALL.replace("2m", "1h") + "chances: [{fault: blade_crash, per_hour: 60, for: [10, 20], on: blades}]"


def test_a_seed_draws_the_same_faults_every_time_and_another_seed_others() -> None:
    scenario = read_scenario(CHANCES)
    found = draw_moments(scenario, 3)
    assert found == draw_moments(scenario, 3) != draw_moments(scenario, 4)
    assert [moment.at for moment in found] == sorted(moment.at for moment in found)
    faults = [moment.what for moment in found]
    assert all(isinstance(fault, BladeCrash) and 10 <= (fault.for_ or 0) <= 20 for fault in faults)
    assert {fault.on for fault in faults} == {"r1/b1", "r1/b2", "r1/b3", "r1/b4"}
    many = [len(draw_moments(scenario, seed)) for seed in range(50)]
    assert 54 < sum(many) / len(many) < 66


def test_what_was_drawn_is_a_timeline_that_says_the_same() -> None:
    scenario = read_scenario(CHANCES)
    found = draw_moments(scenario, 3)
    explicit = read_scenario(scenario_text(scenario.with_timeline(found, seed=3)))
    assert explicit.chances == ()
    assert [(moment.at, moment.what) for moment in draw_moments(explicit, 99)] == [(m.at, m.what) for m in found]


# Shrinking


def shrunk(items: Sequence[int], fails: Any, tries: int = 1000) -> tuple[list[int], int]:
    search = Search[int](fails, tries=tries)
    return fewest(items, search), search.asked


@pytest.mark.parametrize("needed", [(), (0,), (63,), (5, 50), (1, 2, 3), (0, 31, 32, 63), tuple(range(0, 64, 9))])
def test_exactly_what_a_failure_needs_is_left(needed: tuple[int, ...]) -> None:
    found, asked = shrunk(range(64), lambda some: set(needed) <= set(some))
    assert found == list(needed)
    assert asked < 300


def test_what_is_left_fails_and_does_not_without_any_one_of_it() -> None:
    rng = random.Random(2)
    for _ in range(50):
        ways = [set(rng.sample(range(20), rng.randint(1, 4))) for _ in range(3)]

        def fails(some: Sequence[int], ways: list[set[int]] = ways) -> bool:
            return any(way <= set(some) for way in ways)

        found, _ = shrunk(range(20), fails)
        assert fails(found)
        assert not any(fails([item for item in found if item != gone]) for gone in found)


def test_no_more_is_asked_than_allowed_and_what_is_left_still_fails() -> None:
    needed = {3, 40, 60}
    for tries in range(1, 40):
        found, asked = shrunk(range(64), lambda some: needed <= set(some), tries)
        assert asked <= tries
        assert needed <= set(found)


def test_what_is_left_becomes_simpler_as_long_as_it_fails() -> None:
    search = Search[int](lambda some: sum(some) >= 20, tries=1000)
    assert simplest([64, 3], lambda item: (0, item // 2, item - 1), search) == [17, 3]


# The library


def test_a_name_that_is_nearly_right_is_corrected() -> None:
    name = library.names()[0]
    with pytest.raises(NotFound, match=f"did you mean {name}"):
        library.find(name[:-1])
    with pytest.raises(NotFound, match="cannot be read: No such file or directory"):
        library.find("./nowhere.yaml")


def test_blueprints_are_read_and_what_is_wrong_with_them_is_told_with_its_line() -> None:
    text = SMALL + (
        "blueprints:\n"
        "  shop:\n"
        "    slices:\n"
        '      - {artifact: "org.shop:cart:1.0.0", instances: 3, needs: ["org.shop:prices"]}\n'
        '      - {artifact: "org.shop:prices:1.0.0", instances: 1}\n'
        'given_up: ["org.shop:cart"]\n'
        "timeline:\n"
        "  - {at: 1, do: rollback_blueprint, name: shop, to: 1}\n"
        '  - {at: 2, do: calls, artifact: "org.shop:cart", per_second: 5}\n'
        '  - {at: 3, fault: slice_refuses, artifact: "org.shop:cart", step: load, for: 5}\n'
        "  - {at: 4, do: delete_blueprint, name: shop}\n"
    )
    scenario = read_scenario(text)
    assert [spec.instances for spec in scenario.blueprints["shop"].slices] == [3, 1]
    assert scenario.given_up == ("org.shop:cart",)
    assert read_scenario(scenario_text(scenario)) == scenario

    told = doubts(
        text.replace('"org.shop:cart:1.0.0", instances: 3', '"org.shop:cart", instances: 0')
        .replace('artifact: "org.shop:prices:1.0.0"', 'artifact: "org.shop:prices:1.0.0", size: 4')
        .replace("to: 1", "to: 0")
        .replace("step: load", "step: begin")
        .replace("per_second: 5", "per_second: 5, errors: 2")
        .replace('given_up: ["org.shop:cart"]', "given_up: [cart]")
        .replace("delete_blueprint, name: shop", "delete_blueprint, name: Shop Two")
    )
    for what in (
        "blueprints.shop.slices[0].artifact",
        "given_up[0]: must be group:name",
        "timeline[0].to: must be from 1",
        "timeline[1].errors: must be from 0 to 1",
        "timeline[2]: fault slice_refuses",
        "timeline[3].name: a blueprint's name consists of a-z",
    ):
        assert any(what in line for line in told), (what, told)


def test_a_blueprint_that_could_not_be_applied_is_no_part_of_a_scenario() -> None:
    text = SMALL + (
        "blueprints:\n"
        "  shop:\n"
        "    slices:\n"
        '      - {artifact: "org.shop:cart:1.0.0", instances: 3, needs: ["org.shop:cart"]}\n'
        '      - {artifact: "org.shop:cart:1.0.1", instances: 3}\n'
    )
    told = doubts(text)
    assert any("itself" in line for line in told), told
    assert any("slices[1]" in line for line in told), told

"""Runs of scenarios: the same for the same seed, what is looked at and what is found, and what people ask for."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from dose import part

from hostler.engine.control_plane import ControlPlane
from hostler.keys.families import BLADE, COMMAND, HANDLE, LEADER, RACK, REGION, TRACE, VM, ZONE
from hostler.model.inventory import Blade, Capacity, Condition, Rack, Region, Zone
from hostler.model.lab import LAB_LABEL, LabServer, LabStatus
from hostler.model.node import VmCommand
from hostler.model.replica import LeaderRecord
from hostler.model.trace import Trace
from hostler.model.vm import Affinity, Level, MachineState, VirtualMachine, VmHandle, VmSpec
from hostler.ports.store import Delete
from hostler.sim.invariants import Invariants
from hostler.sim.scenario import library
from hostler.sim.scenario.format import read_scenario, scenario_text
from hostler.sim.scenario.run import run_scenario
from hostler.sim.scenario.scenario import INVARIANTS
from hostler.sim.scenario.shrink import smallest
from hostler.sim.world import Factories, WorldConfig, run_world

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hostler.sim.scenario.run import Outcome
    from hostler.sim.scenario.scenario import Scenario
    from hostler.sim.world import World

HEAD = """
name: tried
about: for a test
length: 60
inventory:
  racks:
    - name: r1
      pdus: [{name: pdu1, ports: 3}]
      tors: [{name: tor1, ports: 2}]
      blades: {count: 2, prefix: b, cpus: 4, memory: 8GiB}
"""
SPEC = VmSpec(cpus=1, memory_mib=256)
ROOM = Capacity(cpus=4, memory_mib=8192)


def scenario(more: str = "") -> Scenario:
    return read_scenario(HEAD + more)


# The same for the same seed


def test_a_seed_is_a_story_to_the_byte_and_another_seed_another_one() -> None:
    chaos = library.find("chaos")
    first, again, other = (run_scenario(chaos, seed) for seed in (5, 5, 6))
    assert first.log_lines() == again.log_lines() != other.log_lines()
    assert first.counters == again.counters


def test_another_process_with_another_hash_seed_tells_the_same_story() -> None:
    program = (
        "import hashlib, sys\n"
        "from hostler.sim.scenario import library\n"
        "from hostler.sim.scenario.run import run_scenario\n"
        "print(hashlib.sha256(run_scenario(library.find(sys.argv[1]), 3).log_lines()).hexdigest())"
    )
    name = "chaos-in-class"
    ours = hashlib.sha256(run_scenario(library.find(name), 3).log_lines()).hexdigest()
    for hash_seed in part(("1", "2"), test=1):
        told = subprocess.run(
            [sys.executable, "-c", program, name],
            env={"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            timeout=180,
        )
        assert told.stdout.decode().strip() == ours


def test_whether_anybody_listens_or_keeps_the_log_changes_nothing() -> None:
    chaos, heard = library.find("bad-network-day"), []
    kept = run_scenario(chaos, 2, tell=heard.append)
    assert tuple(heard) == kept.log
    assert run_scenario(chaos, 2, kept=False).counters == kept.counters


# What people ask for


def test_what_should_be_refused_and_is_done_is_told_and_so_is_the_other_way_round() -> None:
    outcome = run_scenario(
        scenario(
            "vms: [{name: a}]\n"
            "timeline:\n"
            "  - {at: 10, do: delete_vm, name: a, refused: true}\n"
            "  - {at: 20, do: delete_vm, name: nobody}\n"
            "  - {at: 30, do: delete_vm, name: nobody, refused: true}\n"
        )
    )
    assert outcome.broken == {"requests_answered"}
    (verdict,) = [verdict for verdict in outcome.verdicts if not verdict.held]
    assert [(found.at, found.component) for found in verdict.violations] == [
        (10.0, "delete_vm name=a refused=True"),
        (20.0, "delete_vm name=nobody"),
    ]
    assert "should have been refused" in verdict.violations[0].text
    assert "NotFound" in verdict.violations[1].text


def test_a_restore_goes_back_to_the_last_backup_and_without_one_is_refused() -> None:
    vm = "create_vm, vm: {name: a}"
    early = f"timeline: [{{at: 5, do: {vm}}}, {{at: 10, do: restore, refused: true}}, {{at: 20, do: backup}}"
    outcome = run_scenario(scenario(early + ", {at: 30, do: delete_vm, name: a}, {at: 40, do: restore}]"))
    assert outcome.passed, outcome.violations
    (again,) = {entry.component for entry in outcome.log if entry.kind == "machine" and "running" in entry.text}
    assert [e.at for e in outcome.log if e.component == again and "running" in e.text][-1] > 40, (
        "it is wished for again"
    )


def test_the_time_of_retained_machines_runs_out_in_a_scenario() -> None:
    outcome = run_scenario(library.find("retention-runs-out"), 1, kept=False)
    assert outcome.passed, outcome.violations
    (kept,) = (verdict for verdict in outcome.verdicts if verdict.invariant == "disks_kept")
    assert kept.looks > 0, "written disks were deleted, each when it might be"


def test_what_is_pending_in_the_end_is_counted() -> None:
    more = "vms: [{name: a, count: 5, cpus: 2}]\n"
    assert run_scenario(scenario(more + "pending: 1\n")).passed
    for wrong in (0, 2):
        outcome = run_scenario(scenario(more + f"pending: {wrong}\nsettle: 5\n"))
        assert outcome.broken == {"wishes_met"}
        told = "pending" if wrong == 0 else "1 wait for capacity, 2 should"
        assert told in outcome.violations[0].text


def test_fewer_that_wait_than_should_are_as_wrong_as_more() -> None:
    few = scenario("vms: [{name: a}]\nsettle: 5\ntimeline: [{at: 30, do: expect, pending: 3}]\npending: 2\n")
    (verdict,) = [verdict for verdict in run_scenario(few).verdicts if not verdict.held]
    assert [(found.at, found.text) for found in verdict.violations] == [
        (30.0, "0 wait for capacity, 3 should"),
        (65.0, "0 wait for capacity, 2 should"),
    ]


def test_what_is_expected_in_the_middle_and_is_not_so_is_told() -> None:
    outcome = run_scenario(
        scenario(
            "vms: [{name: a, count: 4}]\n"
            "timeline:\n"
            "  - {at: 5, do: expect}\n"
            "  - {at: 10, fault: power, on: r1, for: 30}\n"
            "  - {at: 20, do: expect}\n"
        )
    )
    assert outcome.broken == {"wishes_met"}
    assert {violation.at for verdict in outcome.verdicts for violation in verdict.violations} == {20.0}


def test_hardware_that_is_set_out_of_service_takes_nothing_and_is_not_repaired() -> None:
    outcome = run_scenario(
        scenario(
            "vms: [{name: a, count: 2}]\n"
            "timeline:\n"
            "  - {at: 5, do: drain, on: r1/b1}\n"
            "  - {at: 10, do: set, on: r1/b1, condition: out_for_repair}\n"
            "  - {at: 11, fault: blade_crash, on: r1/b1}\n"
            "  - {at: 20, do: create_vm, vm: {name: b, count: 2}}\n"
            "  - {at: 30, do: expect}\n"
        )
    )
    assert outcome.passed, outcome.violations
    placed = [entry.text for entry in outcome.log if entry.kind == "placed" and entry.at >= 20]
    assert len(placed) == 2
    assert all("node r1-b2" in text for text in placed)
    assert Condition.OUT_FOR_REPAIR in next(
        entry.component for entry in outcome.log if entry.kind == "done" and "set" in entry.component
    )


def test_faults_that_are_left_are_lifted_at_the_end_and_what_is_broken_is_repaired() -> None:
    outcome = run_scenario(
        scenario(
            "vms: [{name: a, count: 4}]\n"
            "timeline:\n"
            "  - {at: 10, fault: power, on: r1/pdu1}\n"
            "  - {at: 11, fault: pdu_stuck, on: r1/pdu1}\n"
            "  - {at: 12, fault: blade_crash, on: r1/b2, lasting: true}\n"
            "  - {at: 13, fault: store_unavailable}\n"
        )
    )
    assert outcome.passed, outcome.violations
    assert sum(entry.kind == "lifted" for entry in outcome.log) == 4


def test_a_fault_of_something_that_is_gone_by_then_happens_to_nothing() -> None:
    outcome = run_scenario(
        scenario(
            "timeline:\n"
            "  - at: 10\n"
            "    do: load_inventory\n"
            "    inventory: {racks: [{name: r1, pdus: [{name: pdu1, ports: 3}], tors: [{name: tor1, ports: 2}],"
            " blades: {count: 1, prefix: b, cpus: 4, memory: 8GiB}}]}\n"
            "  - {at: 20, fault: power, on: r1/b2, for: 5}\n"
        )
    )
    assert outcome.passed, outcome.violations
    assert any("no effect: " in entry.text for entry in outcome.log)


# What is found


def test_a_process_that_ends_by_an_error_is_a_finding_and_no_accident() -> None:
    class Broken(ControlPlane):
        def node_controller(self, *_: Any) -> Any:
            raise RuntimeError("a defect")

    short = read_scenario(HEAD.replace("length: 60", "length: 8") + "settle: 2\n")
    outcome = run_scenario(short, parts=Factories(plane=Broken))
    assert "nothing_broke" in outcome.broken
    assert "RuntimeError: a defect" in [
        found.text for verdict in outcome.verdicts for found in verdict.violations if found.invariant == "nothing_broke"
    ]


def watched(story: Callable[[World], Awaitable[None]], *, labs: bool = False) -> dict[str, list[str]]:
    """What the invariants find in a world in which only this happens: there are no replicas that could meddle."""

    async def main(world: World) -> dict[str, list[str]]:
        for host in world.replicas.values():
            host.kill()
        invariants = Invariants(world, INVARIANTS)
        await story(world)
        await asyncio.sleep(1)
        invariants.check_runs()
        invariants.stop()
        return {
            verdict.invariant: [found.text for found in verdict.violations]
            for verdict in invariants.verdicts()
            if not verdict.held
        }

    plan = WorldConfig(inventory=scenario().inventory, replicas=1, labs=labs, node_ttl=5.0, fencing_time=10.0)
    return run_world(plan, main)


def vm(id_: str, *, project: str = "shop", org: str = "acme", **fields: Any) -> VirtualMachine:
    return VirtualMachine(id=id_, name=id_, org=org, project=project, spec=SPEC, created_at=0.0, **fields)


async def wish(world: World, machine: VirtualMachine) -> None:
    put = VM.put(machine, org=machine.org, project=machine.project, vm=machine.id)
    await world.store.txn([], [put])


async def command(world: World, node: str, machine: VirtualMachine, fence: int = 0) -> None:
    told = VmCommand(org=machine.org, project=machine.project, vm=machine.id, spec=SPEC, fence=fence, arrived=0)
    await world.store.txn([], [COMMAND.put(told, node=node, vm=machine.id)])


async def lead(world: World, fence: int) -> None:
    record = LeaderRecord(address="a", holder="h", fence=fence)
    await world.store.txn([], [LEADER.put(record, n=1)])


def test_a_wish_that_goes_though_nobody_wished_it_away_is_lost() -> None:
    async def story(world: World) -> None:
        for machine in (vm("a"), vm("b", deleting=True), vm("c")):
            await wish(world, machine)
        await world.store.delete(VM.fill(org="acme", project="shop", vm="a"))
        await world.store.delete(VM.fill(org="acme", project="shop", vm="b"))
        moved = vm("c", project="else")  # a warm machine that is claimed: the same machine, in another project
        await world.store.txn(
            [], [VM.delete(org="acme", project="shop", vm="c"), VM.put(moved, org="acme", project="else", vm="c")]
        )

    found = watched(story)
    assert list(found) == ["no_vm_lost"]
    assert found["no_vm_lost"] == ["/plasmavmc/vms/acme/shop/a is gone without a request to delete it"]


def test_what_is_written_under_a_fence_that_is_not_the_leader_s_is_stale() -> None:
    async def story(world: World) -> None:
        def trace(id_: str, fence: int) -> Any:
            made = Trace(id=f"d/{id_}", actor="machines", what="place", subject=id_, fence=fence, at=0.0)
            return TRACE.put(made, day="d", decision=id_)

        await lead(world, 3)
        await world.store.txn([], [trace("fine", 3)])
        await world.store.txn([], [trace("late", 2)])
        await world.store.delete(LEADER.fill(n=1))
        await world.store.txn([], [trace("nobody", 3)])
        await command(world, "r1-b1", vm("a"), fence=3)

    found = watched(story)
    assert list(found) == ["no_stale_leader_write"]
    assert found["no_stale_leader_write"] == [
        "place was decided under fence 2, though the leader has fence 3",
        "place was decided under fence 3, though there is no leader",
        "node r1-b1 was commanded to run it under fence 3, though there is no leader",
    ]


@pytest.mark.parametrize(
    ("rule", "nodes", "broken"),
    [
        (Affinity(together=False, level=Level.NODE, labels={"app": "db"}), ("r1-b1", "r1-b1"), True),
        (Affinity(together=False, level=Level.NODE, labels={"app": "db"}), ("r1-b1", "r1-b2"), False),
        (Affinity(together=False, level=Level.RACK, labels={"app": "db"}), ("r1-b1", "r1-b2"), True),
        (Affinity(together=False, level=Level.PDU, labels={"app": "db"}), ("r1-b1", "r1-b2"), True),
        (Affinity(together=False, level=Level.TOR, labels={"app": "web"}), ("r1-b1", "r1-b2"), False),
        (Affinity(together=False, level=Level.RACK, labels={"app": "db"}, required=False), ("r1-b1", "r1-b2"), False),
        (Affinity(together=True, level=Level.NODE, labels={"app": "db"}), ("r1-b1", "r1-b2"), True),
        (Affinity(together=True, level=Level.RACK, labels={"app": "db"}), ("r1-b1", "r1-b2"), False),
    ],
)
@pytest.mark.parametrize("ruled", ["first", "second"])
def test_a_machine_that_is_placed_against_a_required_rule_is_found(
    rule: Affinity, nodes: tuple[str, str], broken: bool, ruled: str
) -> None:
    """The rule is that of the machine that is placed, or of the one that was there before: then it only keeps others
    away."""

    async def story(world: World) -> None:
        await lead(world, 1)
        for name, node in zip(("first", "second"), nodes):
            machine = vm(name, labels={"app": "db"}, affinity=(rule,) if name == ruled else ())
            await wish(world, machine)
            await command(world, node, machine, fence=1)

    expected = broken and not (rule.together and ruled == "first")
    assert list(watched(story)) == (["rules_kept"] if expected else [])


def test_who_has_left_a_node_is_in_nobody_s_way() -> None:
    async def story(world: World) -> None:
        await lead(world, 1)
        rule = Affinity(together=False, level=Level.NODE, labels={})
        for name in ("a", "b"):
            await wish(world, vm(name, affinity=(rule,)))
        await command(world, "r1-b1", vm("a"), fence=1)
        await world.store.delete(COMMAND.fill(node="r1-b1", vm="a"))
        await command(world, "r1-b1", vm("b"), fence=1)

    assert watched(story) == {}


def test_two_nodes_that_were_told_to_have_one_machine_are_found_and_handing_it_over_is_another_matter() -> None:
    async def story(world: World) -> None:
        await lead(world, 1)
        for name in ("a", "b"):
            await wish(world, vm(name))
            await command(world, "r1-b1", vm(name), fence=1)
        there = await COMMAND.get(world.store, node="r1-b1", vm="a")
        assert there is not None
        await world.store.txn([], [COMMAND.put(there.value, node="r1-b2", vm="a"), Delete(there.key)])
        await command(world, "r1-b2", vm("b"), fence=1)
        await world.store.delete(COMMAND.fill(node="r1-b2", vm="b"))

    assert watched(story) == {"no_vm_twice": ["r1-b1 and r1-b2 were both commanded to run it"]}


@pytest.mark.parametrize("level", ["blade", "rack", "zone", "region"])
def test_a_machine_that_is_placed_on_what_is_out_of_use_is_found_when_everybody_must_know(level: str) -> None:
    async def story(world: World) -> None:
        world.replicas["replica-1"].leads = True  # else nobody is there who could know
        await lead(world, 1)
        out: dict[str, Any] = {"enabled": False} if level == "rack" else {"condition": Condition.OUT_FOR_REPAIR}
        rack = Rack(name="r1", region="eu", zone="eu-1", **(out if level == "rack" else {}))
        puts = {
            "blade": BLADE.put(Blade(name="b1", capacity=ROOM, **out), rack="r1", blade="b1"),
            "zone": ZONE.put(Zone(name="eu-1", region="eu", **out), region="eu", zone="eu-1"),
            "region": REGION.put(Region(name="eu", **out), region="eu"),
        }
        await world.store.txn([], [RACK.put(rack, rack="r1"), *([puts[level]] if level in puts else [])])
        for name in "abc":
            await wish(world, vm(name))
        await command(world, "r1-b1", vm("a"), fence=1)
        await world.sleep(30)
        await command(world, "r1-b1", vm("b"), fence=1)
        back = [RACK.put(Rack(name="r1"), rack="r1"), BLADE.put(Blade(name="b1", capacity=ROOM), rack="r1", blade="b1")]
        await world.store.txn([], back)
        await command(world, "r1-b1", vm("c"), fence=1)

    found = watched(story)
    assert list(found) == ["inventory_heeded"]
    assert len(found["inventory_heeded"]) == 1
    assert found["inventory_heeded"][0].startswith("placed on r1-b1, though ")
    assert found["inventory_heeded"][0].endswith(" since 0 s")


def test_what_waits_and_does_not_say_why_is_found() -> None:
    async def story(world: World) -> None:
        for name, detail in (("a", "no node will do"), ("b", "")):
            handle = VmHandle(id=name, state=MachineState.PENDING, detail=detail, seen_at=0.0)
            await world.store.txn([], [HANDLE.put(handle, org="acme", project="shop", vm=name)])

    assert watched(story) == {"pending_has_reason": ["it is pending without a reason"]}


def test_a_second_machine_of_a_user_s_lab_is_found() -> None:
    async def story(world: World) -> None:
        for id_, user in (("a", "ada"), ("b", "bob"), ("c", "ada")):
            await wish(world, vm(id_, org="labs", project=user, labels={LAB_LABEL: "5"}))

    assert watched(story) == {"one_lab_per_user": ["2 machines: ['a', 'c']"]}


def test_a_lab_that_is_shown_and_cannot_be_reached_is_found_after_its_grace() -> None:
    shown = LabServer(
        user="student",
        address="10.0.0.1",
        status=LabStatus.RUNNING,
        available=True,
        cloud_status="running",
        server_id="1",
        expires_at="2026-01-01T01:00:00Z",
        web_user_id="ada",
        lab_id=5,
    )

    def story_of(seconds: float) -> Callable[[World], Awaitable[None]]:
        async def story(world: World) -> None:
            for host in world.replicas.values():
                host.leads = True  # somebody who shows wrong things
            world.lab_redis.records["ada"] = shown
            world.lab_redis.records["bob"] = msgspec.structs.replace(shown, available=False)
            await asyncio.sleep(seconds)

        return story

    found = watched(story_of(60), labs=True)
    assert list(found) == ["no_unreachable_endpoint"]
    assert len(found["no_unreachable_endpoint"]) == 1
    assert watched(story_of(20), labs=True) == {}


def test_a_machine_that_ran_in_two_places_at_once_is_found_whenever_that_was() -> None:
    from hostler.drivers.machines.simulated.host import Row
    from hostler.ports.machines import Label

    async def story(world: World) -> None:
        one, other = (host.place for host in world.blades.values())
        label = Label(cluster="c", org="acme", project="shop", vm="a", node="r1-b1")
        row = Row(label=label, number=1, spec=SPEC, state=MachineState.RUNNING, on=1.0)
        one.put([row])
        await asyncio.sleep(5)
        other.put([msgspec.structs.replace(row, on=4.0)])
        one.put([msgspec.structs.replace(row, on=None, off=4.5, state=MachineState.STOPPED)])
        other.put([msgspec.structs.replace(row, on=None, off=4.9, state=MachineState.STOPPED)])

    found = watched(story)
    assert found == {"no_vm_twice": ["ran on r1-b1 until 4.5 s, and on r1-b2 from 4 s"]}


def test_a_run_can_end_as_soon_as_something_is_broken() -> None:
    more = "vms: [{name: a}]\ntimeline: [{at: 10, do: delete_vm, name: nobody}]\n"
    whole = run_scenario(scenario(more))
    short = run_scenario(scenario(more), until="requests_answered")
    assert short.broken == whole.broken == {"requests_answered"}
    assert short.log == whole.log[: len(short.log)]
    assert short.counters["revisions"] <= whole.counters["revisions"]
    assert run_scenario(scenario(more), until="wishes_met").log == whole.log


def test_the_smallest_part_of_a_scenario_that_still_fails() -> None:
    failing = scenario(
        "vms: [{name: a}, {name: b, count: 2}]\n"
        "chances: [{fault: agent_killed, per_hour: 600, on: blades}]\n"
        "timeline:\n"
        "  - {at: 10, fault: leader_killed}\n"
        "  - {at: 20.25, do: delete_vm, name: nobody}\n"
        "  - {at: 30, fault: network, on: r1/tor1, for: 5}\n"
    )
    outcome = run_scenario(failing, 4)
    assert len(outcome.moments) > 6
    found = smallest(failing, outcome, tries=60)
    assert found.complete
    assert [moment.document() for moment in found.scenario.timeline] == [
        {"at": 20, "do": "delete_vm", "name": "nobody"}
    ]
    assert (found.scenario.vms, found.scenario.chances, found.scenario.length) == ((), (), 20.0)
    assert found.outcome.broken == {"requests_answered"}
    assert "seed 4" in found.scenario.about


def test_what_is_not_settled_at_once_is_no_failure_that_needs_only_time() -> None:
    """The rack has no power when it is looked at. Without that look everything comes true in the end."""
    failing = scenario("vms: [{name: a}]\ntimeline: [{at: 20, fault: power, on: r1}, {at: 30, do: expect}]\n")
    outcome = run_scenario(failing)
    found = smallest(failing, outcome)
    assert [moment.document().get("do") for moment in found.scenario.timeline] == [None, "expect"]
    assert outcome.broken == found.outcome.broken == {"wishes_met"}
    assert run_scenario(read_scenario(scenario_text(found.scenario))).broken == {"wishes_met"}


def test_what_does_not_fail_when_it_is_played_whole_is_not_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    more = "".join(f"  - {{at: {at}, do: delete_vm, name: nobody}}\n" for at in (10, 20, 30))
    failing = scenario(f"timeline:\n{more}")
    outcome, fine = run_scenario(failing), run_scenario(scenario())

    def played(candidate: Scenario, *, kept: bool = True, **_: Any) -> Outcome:
        return outcome if not kept or len(candidate.timeline) > 1 else fine

    monkeypatch.setattr("hostler.sim.scenario.shrink.run_scenario", played)
    found = smallest(failing, outcome)
    assert (len(found.scenario.timeline), found.outcome, found.complete) == (3, outcome, False)

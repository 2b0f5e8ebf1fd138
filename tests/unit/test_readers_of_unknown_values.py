"""What is done about values that this release does not know: nothing that cannot be undone."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from controller_world import ORG, PROJECT, World, play
from later_value import later
from service_scene import ADMIN, MEMBER_OF_ACME, Scene, asked
from service_scene import play as play_service

from hostler.engine.access.account_cache import counts
from hostler.engine.agent.decide import NOTHING, Action, decide, has_ended
from hostler.engine.agent.node_registration import outlives_agent
from hostler.engine.controllers.decision import Duty
from hostler.engine.controllers.drain import duty_of
from hostler.engine.deployments.instance_index import InstanceState, kind_of
from hostler.engine.deployments.node_cache import _objection
from hostler.engine.phase import phase
from hostler.engine.placement.request import node_state
from hostler.errors import Conflict
from hostler.keys.families import MEMBER, VM
from hostler.model.access import Token, TokenKind
from hostler.model.deployment import SliceInstance, SliceState, aggregate, may_move
from hostler.model.inventory import Capacity, User
from hostler.model.node import DrainMode, Lifecycle, NodeRecord, VmCommand
from hostler.model.vm import Affinity, Level, MachineState, OnNodeLoss, Power, RestartPolicy, VmHandle, VmSpec
from hostler.model.vm_api import VmPhase
from hostler.ports.machines import Label, Machine

replace = msgspec.structs.replace
RUNNING = MachineState.RUNNING
SPEC = VmSpec(cpus=1, memory_mib=64)
NODE = NodeRecord(
    node="n1", lifecycle=Lifecycle.ON_DUTY, capacity=Capacity(cpus=4, memory_mib=4096, disk_gib=10), registered_at=1.0
)


def test_a_value_says_that_it_is_unknown() -> None:
    unknown = later(Lifecycle, "MAINTENANCE")
    assert (unknown.is_known, unknown.words, f"{unknown}") == (False, "unknown (maintenance)", "MAINTENANCE")
    assert (Lifecycle.ON_DUTY.is_known, Lifecycle.ON_DUTY.words) == (True, "on duty")
    assert unknown not in tuple(Lifecycle)
    assert {unknown: 1}[later(Lifecycle, "MAINTENANCE")] == 1
    with pytest.raises(ValueError, match="MAINTENANCE"):
        Lifecycle("MAINTENANCE")


def test_a_node_of_an_unknown_lifecycle_takes_nothing_loses_nothing_and_stays_so() -> None:
    record = replace(NODE, lifecycle=later(Lifecycle, "MAINTENANCE"))
    state = node_state(record, alive=True)
    assert (state.on_duty, state.why_not) == (False, "unknown (maintenance)")
    assert duty_of(record) is Duty.SERVE
    assert _objection(record, True, "")[1] == "its lifecycle is unknown (maintenance)"
    assert outlives_agent(record.lifecycle)
    assert not outlives_agent(Lifecycle.ON_DUTY)
    draining = replace(NODE, lifecycle=Lifecycle.DRAINING, drain=later(DrainMode, "evict"))
    assert duty_of(draining) is Duty.SERVE


@pytest.mark.parametrize("silent", [False, True])
def test_the_leader_leaves_a_node_of_an_unknown_lifecycle_as_it_is(silent: bool) -> None:
    class Switch:
        asked = 0

        async def switch_off(self, _: str) -> bool:
            self.asked += 1
            return True

    async def story(world: World) -> None:
        switch = Switch()
        await world.leader(power=switch)
        joined = await world.node("n1")
        await world.create("a")
        await world.until_state("a", RUNNING)
        await world.member("n1", lifecycle=later(Lifecycle, "MAINTENANCE"))
        await world.create("b")
        if silent:
            await joined.fall_silent()
        await asyncio.sleep(300)
        entry = await MEMBER.get(world.raw, node="n1")
        assert entry is not None
        assert entry.value.lifecycle == "MAINTENANCE"
        assert switch.asked == 0
        assert await world.state("a") is RUNNING
        assert await world.state("b") is MachineState.PENDING
        await world.member("n1", lifecycle=Lifecycle.ON_DUTY)
        if not silent:
            await world.until_state("b", RUNNING)

    play(story)


def test_a_machine_with_an_unknown_answer_to_the_loss_of_its_node_waits() -> None:
    async def story(world: World) -> None:
        await world.leader()
        joined = await world.node("n1", fences=True, fencing_time=30.0)
        await world.create("a", on_node_loss=later(OnNodeLoss, "replicate"))
        await world.until_state("a", RUNNING)
        command = await world.command("n1", "a")
        assert command is not None
        assert not command.fenced
        await world.node("n2", fences=True, fencing_time=30.0)
        await joined.fall_silent()
        await asyncio.sleep(600)
        handle = await world.handle("a")
        assert handle is not None
        assert handle.node == "n1"
        entry = await VM.get(world.raw, org=ORG, project=PROJECT, vm="a")
        assert entry is not None
        assert entry.value.on_node_loss == "replicate"

    play(story)


def test_nodes_of_an_unknown_lifecycle_are_listed_and_no_machine_is_sent_there() -> None:
    async def story(scene: Scene) -> None:
        await scene.node()
        await scene.node("local-2", lifecycle=later(Lifecycle, "MAINTENANCE"))
        for stale in (False, True):
            page = await scene.nodes.list(MEMBER_OF_ACME, stale=stale)
            assert [(each.node, each.lifecycle.words) for each in page.items] == [
                ("local-1", "on duty"),
                ("local-2", "unknown (maintenance)"),
            ]
        assert (await scene.nodes.activate(asked(ADMIN), "local-2")).value.lifecycle is Lifecycle.ON_DUTY
        await scene.node("local-3", lifecycle=later(Lifecycle, "MAINTENANCE"))
        with pytest.raises(Conflict):
            await scene.nodes.forget(asked(ADMIN), "local-3")

    play_service(story)


@pytest.mark.parametrize("state", [RUNNING, MachineState.STOPPED])
def test_a_machine_of_an_unknown_power_is_left_as_it_is(state: MachineState) -> None:
    label = Label("o", "p", "v", "c")
    command = VmCommand(org="o", project="p", vm="v", spec=SPEC, power=later(Power, "suspended"))
    machine = Machine(label=label, id="m", state=state, spec=SPEC)
    assert decide(command, machine, settled=0) == NOTHING
    stopping = decide(replace(command, power=Power.OFF), replace(machine, state=RUNNING), settled=0)
    assert stopping.action is Action.STOP


def test_a_machine_in_an_unknown_state_is_shown_as_unknown() -> None:
    handle = VmHandle(id="v", node="n1", state=later(MachineState, "hibernating"), generation=1, seen_at=1.0)
    vm = VM.record.decode(
        b'{"id":"v","name":"v","org":"o","project":"p","spec":{"cpus":1,"memory_mib":64},"created_at":1}'
    )
    assert phase(vm, handle, alive=True) is VmPhase.UNKNOWN
    assert phase(vm, handle, alive=False) is VmPhase.SILENT


def test_a_token_of_an_unknown_kind_opens_nothing() -> None:
    user = User(name="ada", password_hash="")
    token = Token(id="t", user="ada", purpose=TokenKind.API, created_at=1.0, era=user.era)
    assert counts(token, user, 2.0)
    assert not counts(replace(token, purpose=later(TokenKind, "readonly")), user, 2.0)


def test_an_instance_of_a_slice_in_an_unknown_state_is_waited_for() -> None:
    state = later(SliceState, "PAUSED")
    assert kind_of(SliceInstance(state=state)) == InstanceState.UNLOADING
    assert not any(may_move(state, each) for each in SliceState)
    assert may_move(state, None, node_dead=True)
    active = SliceInstance(state=SliceState.ACTIVE)
    assert aggregate({1: SliceInstance(state=state), 2: active}) is SliceState.ACTIVE


@pytest.mark.parametrize("together", [True, False])
def test_a_rule_on_an_unknown_level_is_not_taken_for_kept(together: bool) -> None:
    async def story(world: World) -> None:
        await world.leader()
        await world.node("n1")
        await world.node("n2")
        await world.create("a", labels={"app": "db"})
        await world.until_state("a", RUNNING)
        rule = Affinity(together=together, level=later(Level, "room"), labels={"app": "db"}, required=True)
        await world.create("b", affinity=(rule,))
        await asyncio.sleep(30)
        first, second = await world.handle("a"), await world.handle("b")
        assert first is not None
        assert second is not None
        assert second.node == (first.node if together else "")

    play(story)


def test_an_unknown_restart_policy_starts_nothing_again() -> None:
    command = VmCommand(org="o", project="p", vm="v", spec=SPEC, restart=later(RestartPolicy, "twice"))
    machine = Machine(label=Label("o", "p", "v", "c"), id="m", state=MachineState.FAILED, spec=SPEC)
    before = VmHandle(id="v", node="n1", state=RUNNING, generation=1, seen_at=1.0)
    assert has_ended(command, machine, before, node="n1", ran=True)

"""Kill -9 of agent, replica, and both, at every point of every verb; and every answer of the store lost once.

Each verb is run again and again, with the fault further on each time, until the verb is over before the fault. `make
soak` meets every point; `make test` every seventh, others with each commit. A point is: a request is about to be sent;
it was done but not answered; before and after each step inside the machine driver.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest
from dose import every_nth
from environment import env_on

from hostler.engine.idempotent_writer import Writer
from hostler.engine.nodes import NodeService
from hostler.engine.request import HOSTLER, Request
from hostler.engine.retained import RetainedService
from hostler.engine.view import View
from hostler.engine.vm_queries import VmQuery
from hostler.errors import Conflict, NotFound, Refused
from hostler.keys.families import COMMAND, HANDLE, NAME, RETAINED, VM
from hostler.model.inventory_api import Drain
from hostler.model.vm import OnNodeLoss, Power, VmSpec
from hostler.model.vm_api import MoveRequest, RetainedRestore, SnapshotRequest, VmCreate, VmUpdate
from hostler.ports.store import Delete

from .plane import ORG, PATIENCE, PROJECT, Crash, Loss, Plane

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hostler.engine.request import Written
    from hostler.engine.vms import VmService
    from hostler.model.vm_api import VmView

SPEC = VmSpec(cpus=2, memory_mib=512, disk_gib=4)
AT = (ORG, PROJECT)
MOST = 400
"""Points that no verb has: more of them means that the enumeration does not end."""
POINTS = every_nth(range(1, MOST), 7)


async def create(plane: Plane, power: Power = Power.ON, on_node_loss: OnNodeLoss = OnNodeLoss.WAIT) -> None:
    wanted = VmCreate(name="web", spec=SPEC, power=power, on_node_loss=on_node_loss)
    await plane.wish(lambda vms, request: vms.create(request, *AT, wanted))


async def begin_on(plane: Plane) -> None:
    await create(plane)
    await plane.settled()


async def begin_off(plane: Plane) -> None:
    await create(plane, Power.OFF)
    await plane.settled()


async def begin_with_snapshot(plane: Plane) -> None:
    await begin_on(plane)
    await snapshot(plane)
    await plane.settled()


async def begin_with_nothing(plane: Plane) -> None:
    await plane.wish(lambda vms, _: vms.list(HOSTLER, VmQuery(*AT)))  # until somebody answers


async def start(plane: Plane) -> None:
    await plane.wish(lambda vms, request: vms.start(request, *AT, "web"))


async def stop(plane: Plane) -> None:
    await plane.wish(lambda vms, request: vms.stop(request, *AT, "web"))


async def reset(plane: Plane) -> None:
    await plane.wish(lambda vms, request: vms.reset(request, *AT, "web"))


async def delete(plane: Plane) -> None:
    await plane.wish(lambda vms, request: vms.delete(request, *AT, "web"))


async def update(plane: Plane) -> None:
    await plane.wish(lambda vms, request: vms.update(request, *AT, "web", VmUpdate(name="shop", cpus=4)))


async def snapshot(plane: Plane) -> None:
    name = SnapshotRequest(name="before").name
    await plane.wish(lambda vms, request: vms.snapshot(request, *AT, "web", name))


async def restore(plane: Plane) -> None:
    await plane.wish(lambda vms, request: vms.restore(request, *AT, "web", "before"))


async def begin_saved(plane: Plane, on_node_loss: OnNodeLoss = OnNodeLoss.WAIT) -> None:
    """With something on its disk, so that it is seen whether it came along."""
    await create(plane, on_node_loss=on_node_loss)
    await plane.settled()
    place = next(place for place in plane.places.values() if place.contents.rows)
    (row,) = place.contents.rows.values()
    place.put([msgspec.structs.replace(row, disk="precious")])


async def begin_saved_off(plane: Plane) -> None:
    await begin_saved(plane)
    await stop(plane)
    await plane.settled()


async def move(plane: Plane) -> None:
    """To the other node. Whether it arrives depends on what is killed; nothing is lost, and it is told."""
    (here,) = [node for node, place in plane.places.items() if place.contents.rows]
    (other,) = set(plane.places) - {here}
    while True:  # the node that is moved to may have just come back, and not be on duty
        try:
            await plane.wish(lambda vms, request: vms.move(request, *AT, "web", MoveRequest(to=other)))
        except NotFound:  # it was deleted meanwhile
            return
        except Refused:
            await asyncio.sleep(0.25)
        else:
            return


async def lose_command(plane: Plane) -> None:
    """Its node no longer has a command: the machine is retained; the leader tells the node again: it is reinstated."""
    (command,) = (await COMMAND.list(plane.store)).entries
    plane.kill("replica-1")  # so that the agent is first
    await plane.store.delete(command.key)
    (place,) = [place for place in plane.places.values() if place.contents.rows]
    while True:
        again = await COMMAND.get(plane.store, **command.parts)
        if again is not None and place.contents.rows and not place.contents.kept:
            return
        await asyncio.sleep(0.25)


async def begin_retained(plane: Plane) -> None:
    """A retained machine whose VM has no record, as after a restore from a backup that is older than the VM."""
    await begin_saved(plane)
    (vm,) = (await VM.list(plane.store)).entries
    (command,) = (await COMMAND.list(plane.store)).entries
    lost = [vm.key, command.key, HANDLE.fill(**vm.parts), NAME.fill(org=ORG, project=PROJECT, name="web")]
    await plane.store.txn([], [Delete(key) for key in lost])
    while not (await RETAINED.list(plane.store)).entries:
        await asyncio.sleep(0.25)


async def ask_restore(plane: Plane, wanted: RetainedRestore) -> None:
    """As `hostler vm retained restore`: the service runs in a replica, and asks the store over the replica's wire."""
    (entry,) = (await RETAINED.list(plane.store)).entries
    node, name = entry.parts["node"], entry.parts["name"]

    def asked(vms: VmService, request: Request) -> Awaitable[Written[VmView]]:
        env = env_on(plane.clock, new_id=vms._new_id)
        retained = RetainedService(vms._store, vms._writer, vms._view, vms, env)
        return retained.restore(request, node, name, wanted)

    await plane.wish(asked)


async def until_in_service(plane: Plane) -> None:
    """Until the agent has put the disk back into service."""
    async with asyncio.timeout(PATIENCE):
        while (await RETAINED.list(plane.store)).entries:
            await asyncio.sleep(0.25)


async def restore_retained(plane: Plane) -> None:
    """A new virtual machine of it: its own has no record any more."""
    await ask_restore(plane, RetainedRestore())
    await until_in_service(plane)


async def begin_pending(plane: Plane) -> None:
    """A virtual machine without a node; its disk is retained on one of two nodes, neither of which takes machines."""
    await begin_saved(plane)
    for node in plane.places:
        await operate(plane, lambda nodes, node=node: nodes.drain(Request(HOSTLER), node, Drain(drop_snapshots=True)))
    await asyncio.sleep(5.0)
    (vm,) = (await VM.list(plane.store)).entries
    (command,) = (await COMMAND.list(plane.store)).entries
    await plane.store.txn([], [Delete(command.key), Delete(HANDLE.fill(**vm.parts))])
    while not (await RETAINED.list(plane.store)).entries:
        await asyncio.sleep(0.25)


async def bring_back(plane: Plane) -> None:
    """The virtual machine comes back to its disk, on the node that has it; the other node takes machines earlier."""
    (entry,) = (await RETAINED.list(plane.store)).entries
    await ask_restore(plane, RetainedRestore())
    for node in sorted(plane.places, key=lambda node: node == entry.parts["node"]):
        await operate(plane, lambda nodes, node=node: nodes.activate(Request(HOSTLER), node))
    await until_in_service(plane)
    assert (await HANDLE.list(plane.store)).entries[0].value.node == entry.parts["node"]


async def take_over(plane: Plane) -> None:
    """A new virtual machine gets the only disk of one that waits for a node: both are asked for, one of them has it."""
    await ask_restore(plane, RetainedRestore(name="again"))
    for node in plane.places:
        await operate(plane, lambda nodes, node=node: nodes.activate(Request(HOSTLER), node))
    await until_in_service(plane)


async def operate(plane: Plane, do: Callable[[NodeService], Awaitable[object]]) -> None:
    """What an operator asks of a node, again until the node can be asked."""
    writer = Writer(plane.store, clock=plane.clock, new_id=plane.hosts["replica-1"].new_id)
    nodes = NodeService(plane.store, writer, View(plane.store, clock=plane.clock), clock=plane.clock)
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await do(nodes)
            except (Conflict, Refused):
                await asyncio.sleep(0.25)
            else:
                return


async def begin_replaced(plane: Plane) -> None:
    """A virtual machine that got a new disk on the other node; the old disk is retained where it was."""
    plane.hands_over = False
    await begin_saved(plane)
    (here,) = [node for node, place in plane.places.items() if place.contents.rows]
    await operate(plane, lambda nodes: nodes.drain(Request(HOSTLER), here, Drain()))
    while not (await RETAINED.list(plane.store)).entries:
        await asyncio.sleep(0.25)
    await plane.settled()
    await operate(plane, lambda nodes: nodes.activate(Request(HOSTLER), here))


async def restore_as_another(plane: Plane) -> None:
    """A new virtual machine of the old disk; its own keeps the new one."""
    await ask_restore(plane, RetainedRestore(name="again"))
    await until_in_service(plane)


def kept(plane: Plane, *others: str) -> None:
    """What was on its disk is on its disk, and nowhere else."""
    rows = [row for place in plane.places.values() for row in place.contents.rows.values()]
    rows += [kept.row for place in plane.places.values() for kept in place.contents.kept.values()]
    assert sorted(row.disk for row in rows) == sorted(["precious", *others]), rows


VERBS: dict[str, tuple[Callable[[Plane], Awaitable[None]], Callable[[Plane], Awaitable[None]], int]] = {
    "create": (begin_with_nothing, create, 1),
    "start": (begin_off, start, 1),
    "stop": (begin_on, stop, 1),
    "reset": (begin_on, reset, 1),
    "update": (begin_off, update, 1),
    "snapshot": (begin_on, snapshot, 1),
    "restore": (begin_with_snapshot, restore, 1),
    "delete": (begin_on, delete, 0),
    "move": (begin_saved, move, 1),
    "move off": (begin_saved_off, move, 1),
    "retain and reinstate": (begin_saved, lose_command, 1),
    "restore retained": (begin_retained, restore_retained, 1),
    "bring back": (begin_pending, bring_back, 1),
    "restore as another": (begin_replaced, restore_as_another, 2),
    "take over": (begin_pending, take_over, 2),
}
"""How it begins, what is done, and how many machines there are in the end."""


def story(verb: str, plane: Plane) -> None:
    """The verb, with the fault armed from just before it until everything has settled."""
    begin, act, machines = VERBS[verb]

    async def scenario(plane: Plane) -> None:
        await begin(plane)
        fault = plane.crash or plane.loss
        assert fault is not None
        fault.armed = True
        await act(plane)
        await plane.settled()
        fault.armed = False
        await plane.check(machines=machines)
        if act in (move, lose_command, restore_retained, bring_back):
            kept(plane)
        if act in (restore_as_another, take_over):
            kept(plane, "")

    plane.run(scenario)


VICTIMS = {
    "the agent": ("agent", ("agent",)),
    "the replica": ("replica", ("replica",)),
    "both, where the agent is": ("agent", ("agent", "replica")),
    "both, where the replica is": ("replica", ("agent", "replica")),
}


@pytest.mark.parametrize("who", VICTIMS)
@pytest.mark.parametrize("verb", VERBS)
def test_killed_at_every_point_of_a_verb_all_that_was_wished_for_exists_once(verb: str, who: str) -> None:
    watched, victims = VICTIMS[who]
    for at in POINTS:
        crash = Crash(watched, victims, at)
        try:
            story(verb, Plane(seed=at, crash=crash))
        except BaseException as error:
            error.add_note(f"{verb}, {who} killed at point {at} ({crash.where})")
            raise
        if not crash.where:
            assert crash.passed >= 4, f"{verb}: only {crash.passed} points were found"
            return
    pytest.fail(f"{verb}: more than {MOST} points")


@pytest.mark.parametrize("kind", ["lost", "never", "unavailable"])
@pytest.mark.parametrize("watched", ["agent", "replica"])
@pytest.mark.parametrize("verb", VERBS)
def test_with_every_answer_of_the_store_lost_once_all_that_was_wished_for_exists_once(
    verb: str, watched: str, kind: str
) -> None:
    for at in POINTS:
        loss = Loss(watched, kind, at)
        try:
            story(verb, Plane(seed=at, loss=loss))
        except BaseException as error:
            error.add_note(f"{verb}, request {at} of the {watched}: {kind} ({loss.where})")
            raise
        if not loss.where:
            assert loss.passed, f"{verb}: no request was met"
            return
    pytest.fail(f"{verb}: more than {MOST} requests")

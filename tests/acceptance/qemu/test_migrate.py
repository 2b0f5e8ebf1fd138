"""Machines go from host to host by what a person types; whoever is killed on the way, exactly one runs.

One control plane serves all tests of this file, but that of the bridge; each leaves it without a machine.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from apart import run_apart
from dose import dose, rotates, seeds
from guests import repeat
from harness.artefacts import safe
from harness.pace import patience
from moving_plane import NODES, MovingPlane, Watch
from moving_session import LOAD
from pausing_agent import HALF
from warm_image import warm_images

from hostler.testing.servers import find_binary

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from up_process import HostlerProcess

    from hostler.drivers.machines.qemu.images.folder import ImageFolder
    from hostler.model.vm_api import VmView

pytestmark = [pytest.mark.timeout(600), rotates(2, "src/hostler/drivers/machines/qemu", "src/hostler/engine/agent")]
BOOT = "cat /proc/sys/kernel/random/boot_id"
COUNT = f"(i=0; {repeat('i=$((i+1)); echo $i >> /tmp/count', every=0.02)}) > /dev/null 2>&1 < /dev/null &"
COUNTED = "a=$(wc -c < /tmp/count); usleep 500000; test $(wc -c < /tmp/count) -gt $a && echo counts"


@pytest.fixture(scope="module")
def images() -> ImageFolder:
    return warm_images()


@pytest.fixture(scope="module")
def shared(images: ImageFolder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MovingPlane]:
    plane = MovingPlane(tmp_path_factory.mktemp("migrate"), images)
    asyncio.run(plane.__aenter__())
    try:
        yield plane
    finally:
        asyncio.run(plane.__aexit__())


@pytest.fixture
async def plane(shared: MovingPlane) -> AsyncIterator[MovingPlane]:
    yield shared
    await shared.clear()


async def make(plane: MovingPlane, vm: str) -> str:
    """A machine that runs, counts, and has a file; the boot that it is in."""
    await plane.cli("vm", "create", vm, "--memory", "128M", "--wait")
    return await plane.inside(vm, f"echo {vm} kept > file; sync; {COUNT} {BOOT}")


async def node_of(plane: MovingPlane, vm: str) -> tuple[str, str]:
    """Where it is, and the other node."""
    node = (await plane.seen(vm, lambda view: view.node is not None)).node
    assert node is not None
    (other,) = set(NODES) - {node}
    return node, other


async def test_a_running_machine_goes_to_another_host_and_nothing_of_it_stays(plane: MovingPlane) -> None:
    async with Watch(plane) as watch:
        boot = await make(plane, "web")
        before = await plane.seen("web", lambda view: view.available)
        here, there = await node_of(plane, "web")
        first = plane.process_on(here)
        await plane.inside("web", LOAD)

        moved = await plane.cli("vm", "migrate", "web", "--to", there, "--wait")
        assert f"on {there}" in moved.out
        after = await plane.seen("web", lambda view: view.available)
        assert (after.node, after.moved, after.settled) == (there, 1, True)
        assert after.id == before.id
        assert after.access is not None
        assert before.access is not None
        assert after.access.host_keys == before.access.host_keys
        assert await plane.inside("web", f"cat file; {BOOT}; {COUNTED}") == f"web kept\n{boot}\ncounts"
        await plane.check_only_on(there, before.id)
        second = plane.process_on(there)
        assert [pid for _, pid in plane.guests()] == [second]
        assert {first, second} <= watch.ran, "the watch sees who runs"

        # It is there already; and there is no such node.
        already = await plane.cli("vm", "migrate", "web", "--to", there, "--wait", code=4)
        assert f"on node {there} already" in already.err
        nowhere = await plane.cli("vm", "migrate", "web", "--to", "r1-nowhere", "--wait", code=3)
        assert "r1-nowhere" in nowhere.err
        assert plane.process_on(there) == second


# Killed half way

POINTS = (
    "send.open:after",
    "send.held:after",
    HALF,
    "send.memory:after",
    "send.switched:after",
    "receive.sealed:after",
    "send.done:after",
)
NOT_ALL_IS_THERE = {"the QEMU that sends": POINTS[:4], "the QEMU that receives": POINTS[:5]}
"""It is whole when the other agent has sealed it; what has sent all of it is not needed for that."""
AGENTS = ("the agent that sends", "the agent that receives", "the leader")
QEMUS = ("the QEMU that sends", "the QEMU that receives")
KILLS = [(victim, point) for victim in (*AGENTS, *QEMUS) for point in POINTS]


random.Random(0).shuffle(KILLS)  # so that those of one commit are of several kinds


async def test_a_move_that_is_killed_half_way_leaves_exactly_one_machine_that_runs(plane: MovingPlane) -> None:
    async with Watch(plane) as watch:
        boot = await make(plane, "web")
        for number in seeds(test=2, pool=len(KILLS)):
            victim, point = KILLS[number % len(KILLS)]
            print(f"kill {number}: {victim} at {point}", flush=True)
            boot = await kill_half_way(plane, victim, point, boot)
            watch.check()


async def kill_half_way(plane: MovingPlane, victim: str, point: str, boot: str) -> str:
    """Kill, start again what was killed, and see what became of it; the boot that it is in now."""
    here, there = await node_of(plane, "web")
    plane.pause_at(point)
    await plane.cli("vm", "migrate", "web", "--to", there)
    await plane.paused_at(point)
    await kill(plane, victim, here, there)
    plane.go_on(point)
    await start_again(plane, victim, here, there)

    after = await plane.seen("web", lambda view: view.settled and view.available)
    told = f"{victim} at {point}: {after}"
    assert after.node in (here, there), told
    assert after.node == there or "move" in after.detail, f"it says why it stayed: {told}"
    await plane.check_only_on(after.node, after.id)
    safe(len(plane.guests()) == 1, f"it runs once: {told}", guests=plane.guests(), said=plane.said())
    found = (await plane.inside("web", f"cat file; {BOOT}")).splitlines()
    safe(found[0] == "web kept", f"what it wrote is there: {told}", said=plane.said())
    if victim in AGENTS:
        safe(found[1] == boot, f"it went on: {told}", said=plane.said())
        assert await plane.inside("web", COUNTED) == "counts", told
    if victim == "the leader":
        assert after.node == there, f"nobody else is needed to hand it over: {told}"
    if point in NOT_ALL_IS_THERE.get(victim, ()):
        assert after.node == here, f"not all of it was there: {told}"
        assert (found[1] == boot) is (victim == "the QEMU that receives"), told
    if found[1] != boot:
        await plane.inside("web", COUNT)
    return found[1]


async def kill(plane: MovingPlane, victim: str, here: str, there: str) -> None:
    if victim in QEMUS:
        os.kill(plane.process_on(here if victim == "the QEMU that sends" else there), signal.SIGKILL)
    else:
        process_of(plane, victim, here, there).kill()


def process_of(plane: MovingPlane, victim: str, here: str, there: str) -> HostlerProcess:
    if victim == "the leader":
        return plane.replica
    return plane.agents[here if victim == "the agent that sends" else there]


async def start_again(plane: MovingPlane, victim: str, here: str, there: str) -> None:
    if victim == "the leader":
        plane.start_replica()
        await plane.ask_replica()
    elif victim in AGENTS:
        plane.start_agent(here if victim == "the agent that sends" else there)


# Nodes that are emptied


async def test_a_node_is_drained_while_its_machines_run(plane: MovingPlane) -> None:
    here, there = NODES
    async with Watch(plane):
        await plane.cli("node", "drain", there, "--wait")
        boots = dict(zip(("web", "db", "off"), await asyncio.gather(*(make(plane, vm) for vm in ("web", "db", "off")))))
        await plane.cli("vm", "stop", "off", "--wait")
        await plane.cli("node", "activate", there)
        for one, other in ((here, there), (there, here))[: dose(test=1, full=2)]:
            await plane.cli("node", "drain", one, "--wait")
            views: list[VmView] = []
            for vm in boots:
                views.append(await plane.seen(vm, lambda view: view.settled and (view.available or view.name == "off")))
                assert views[-1].node == other, views[-1]
            await plane.check_only_on(other, *(view.id for view in views))
            assert len(plane.guests()) == 2
            await plane.cli("node", "activate", one)
        for vm in ("web", "db"):
            assert await plane.inside(vm, f"cat file; {BOOT}; {COUNTED}") == f"{vm} kept\n{boots[vm]}\ncounts"
        await plane.cli("vm", "start", "off", "--wait")
        assert await plane.inside("off", "cat file") == "off kept"


OTHER_QEMU = """#!/bin/sh
[ "$1" = --version ] && {{ echo "QEMU emulator version 99.0.0"; exit; }}
exec {real} "$@"
"""


@contextmanager
def other_qemu() -> Iterator[Path]:
    """A folder with a QEMU that says it is of another release; the users that machines run as can read it."""
    with tempfile.TemporaryDirectory(prefix="hostler-programs-") as folder:
        program = Path(folder) / "qemu-system-x86_64"
        program.write_text(OTHER_QEMU.format(real=find_binary(program.name)), encoding="ascii")
        for path in (program, program.parent):
            path.chmod(0o755)
        yield program.parent


async def test_where_memory_does_not_fit_a_machine_stays_unless_it_may_be_stopped(plane: MovingPlane) -> None:
    """The other node has another release of QEMU."""
    with other_qemu() as programs:
        plane.environs[NODES[1]] = {"PATH": f"{programs}:{os.environ['PATH']}"}
        try:
            await again(plane, NODES[1])
            await stay_or_be_stopped(plane)
            await plane.clear()
        finally:
            del plane.environs[NODES[1]]
            await again(plane, NODES[1])


async def again(plane: MovingPlane, node: str) -> None:
    """Another agent of the node."""
    plane.agents[node].kill()
    plane.start_agent(node)
    await plane.agents[node].says("registered\n", patience(20))


async def stay_or_be_stopped(plane: MovingPlane) -> None:
    async with Watch(plane):
        await plane.cli("node", "drain", NODES[1])
        boot = await make(plane, "web")
        await plane.cli("node", "activate", NODES[1])
        view = await plane.seen("web", lambda view: view.available)
        process = plane.process_on(NODES[0])

        stays = await plane.cli("vm", "migrate", "web", "--to", NODES[1], "--wait", code=11)
        assert "'99.0.0'" in stays.err
        assert stays.err.rstrip().endswith("next: move it while it is off, or allow stopping it")
        await plane.check_only_on(NODES[0], view.id)
        assert plane.process_on(NODES[0]) == process
        assert await plane.inside("web", f"{BOOT}; {COUNTED}") == f"{boot}\ncounts"

        await plane.cli("vm", "migrate", "web", "--to", NODES[1], "--stop", "--wait")
        await plane.seen("web", lambda view: view.settled and view.available and view.node == NODES[1])
        await plane.check_only_on(NODES[1], view.id)
        assert len(plane.guests()) == 1
        file, now = (await plane.inside("web", f"cat file; {BOOT}")).split("\n")
        assert file == "web kept"
        assert now != boot


async def test_a_session_on_a_bridge_counts_on_while_its_machine_goes_from_host_to_host(
    images: ImageFolder, tmp_path: Path
) -> None:
    """The whole control plane is in namespaces of its own, which end with the process."""
    del images
    found = await run_apart(Path(__file__).parent / "migrating_session.py", tmp_path, within=patience(60))
    assert found["same boot"] is True
    assert found["moves"] == 2, "its address is the same"
    assert found["nodes"][0] == found["nodes"][2] != found["nodes"][1]
    assert found["lines lost"] == 0
    assert found["lines"] > 20

"""`hostler sim serve` as its users meet it: a process with the whole API, whose time they move and whose racks they
break."""

from __future__ import annotations

import asyncio
import signal
import stat
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
import running
from harness import pace
from up_process import HostlerProcess, hostler, well

from hostler.client import Client
from hostler.errors import Conflict, Forbidden, Invalid, NotFound
from hostler.model.access import Role
from hostler.model.access_api import TokenCreate, UserCreate
from hostler.model.deployment import Blueprint, SliceSpec
from hostler.model.sim_api import FaultInject, Mode
from hostler.model.vm import OnNodeLoss, VmSpec
from hostler.model.vm_api import VmCreate, VmPhase
from hostler.sim.journal import load

SCENARIO = """
name: two-racks
about: Two racks, and nothing happens by itself but one crash after two hours.
length: 3h
settings: {brake_share: 0.5}
inventory:
  racks:
    - name: r1
      pdus: [{name: pdu1, ports: 8}]
      tors: [{name: tor1, ports: 8}]
      blades: {count: 3, prefix: b, cpus: 8, memory: 16GiB}
    - name: r2
      pdus: [{name: pdu1, ports: 8}]
      tors: [{name: tor1, ports: 8}]
      blades: {count: 3, prefix: b, cpus: 8, memory: 16GiB}
timeline:
  - {at: 2h, fault: blade_crash, on: r2/b3, for: 60}
"""
SMALL, FENCE = VmSpec(cpus=1, memory_mib=256), OnNodeLoss.RECREATE


class Service:
    """One `hostler sim serve`."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        self.folder, self.data = folder, folder / "data"
        (folder / "two-racks.yaml").write_text(SCENARIO)
        self.process = HostlerProcess(
            *("sim", "serve", folder / "two-racks.yaml", "--listen", "127.0.0.1:0", "--data", self.data),
            *arguments,
            folder=folder,
        )

    @property
    def environ(self) -> dict[str, str]:
        return {"HOSTLER_DATA": str(self.data)}

    def token(self) -> str:
        return (self.data / "admin.token").read_text().strip()

    async def client(self) -> Client:
        return Client(await self.process.url(), self.token())


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One for all tests here, in manual mode; each leaves it in manual mode and whole."""
    service = Service(tmp_path_factory.mktemp("sim"), "--mode", "manual")
    service.process.wait_for("ready http")
    service.process.wait_for(f"web --data {service.data})")
    yield service
    service.process.kill()


@pytest.fixture
async def client(service: Service) -> AsyncIterator[Client]:
    async with await service.client() as client:
        yield client
        view = await client.sim.get()
        await client.sim.set_mode(Mode.MANUAL, epoch=view.epoch)
        await client.sim.auto_repair(False)
        for fault in view.faults:
            await client.sim.lift(fault.id)
        for proposal in (await client.sim.proposals()).items:
            await client.sim.repair(proposal.id)
        await client.sim.step(60)
        assert (await client.sim.get()).failures == ()


async def test_every_command_works_against_it(service: Service) -> None:
    environ = service.environ
    assert stat.S_IMODE((service.data / "admin.token").stat().st_mode) == 0o600
    nodes, made, status, rack, workloads = await asyncio.gather(
        well("node", "list", "-o", "json", **environ),
        well("vm", "create", "web", "--cpus", 1, "--wait", **environ),
        well("sim", "status", **environ),
        well("rack", "show", "r1", "-o", "json", **environ),
        well("workload", "list", "-o", "json", **environ),
    )
    assert {(node["node"], node["lifecycle"]) for node in nodes.json} == {
        (f"r{rack}-b{blade}", "ON_DUTY") for rack in (1, 2) for blade in (1, 2, 3)
    }
    assert made.out.startswith("web: running on r")
    assert "two-racks, seed 1" in status.out
    assert "manual, epoch" in status.out
    assert "b3" in rack.out
    assert workloads.json == []
    listed, broken, refused, stepped, log = [
        await each
        for each in (
            well("vm", "list", "-o", "json", **environ),
            well("sim", "fault", "network", "r1/b1", "--for", "5s", **environ),
            hostler("sim", "fault", "network", "r1/b9", **environ),
            well("sim", "step", "10s", **environ),
            well("sim", "log", "-o", "json", **environ),
        )
    ]
    assert [vm["name"] for vm in listed.json] == ["web"]
    assert "10 s later" in stepped.out
    assert "network r1/b1 for 5 s" in broken.out
    assert (refused.code, "did you mean r1/b" in refused.err) == (3, True), refused
    assert log.json[-1]["component"].startswith("r1/")
    await well("vm", "delete", "web", "--wait", **environ)


async def test_a_pdu_fails_and_what_ran_on_it_runs_elsewhere(client: Client) -> None:
    start = (await client.sim.get()).now
    assert (await client.control.leader()).fence > 0
    for number in range(6):
        await client.vms.create("acme", "shop", VmCreate(name=f"vm{number}", spec=SMALL, on_node_loss=FENCE))
    await client.sim.step(5)
    before = [vm async for vm in client.vms.list("acme", "shop")]
    assert {vm.phase for vm in before} == {VmPhase.RUNNING}
    on_r1 = {vm.name for vm in before if str(vm.node).startswith("r1-")}
    assert on_r1
    fault = await client.sim.inject(FaultInject(fault="power", on="r1/pdu1"))
    await client.sim.step(120)
    view = await client.sim.get()
    assert view.now == pytest.approx(start + 125)
    assert [(rack.name, rack.working) for rack in view.racks] == [("r1", 0), ("r2", 3)]
    after = [vm async for vm in client.vms.list("acme", "shop")]
    assert {(vm.phase, str(vm.node)[:3]) for vm in after} == {(VmPhase.RUNNING, "r2-")}
    assert not (await client.nodes.get("r1-b1")).alive
    [proposal] = view.proposals
    assert proposal.text.startswith("ask a human: ")
    await client.sim.lift(fault.id)
    await client.sim.step(60)
    assert (await client.nodes.get("r1-b1")).alive
    assert (await client.sim.get()).proposals == ()
    for vm in after:
        await client.vms.delete("acme", "shop", vm.id)


async def test_which_faults_there_are_is_told_and_the_log_names_what_others_name_as_their_cause(client: Client) -> None:
    kinds = {kind.fault: kind for kind in (await client.sim.kinds()).items}
    assert {"power", "network", "blade_crash", "leader_killed"} <= kinds.keys()
    assert kinds["power"].places == ("rack", "pdu", "blade", "power cable")
    assert kinds["power"].about.startswith("Power loss: the feed of a pdu")
    told = {kind.fault: {number.name: number.default for number in kind.numbers} for kind in kinds.values()}
    assert (told["power"], told["blade_crash"]) == ({}, {"lasting": "false"})
    assert told["store_slow"] == {"chance": "1.0", "slowest": "2.0"}
    assert (await client.racks.summary()).simulation
    fault = await client.sim.inject(FaultInject(fault="power", on="r2/pdu1"))
    await client.sim.lift(fault.id)
    log = (await client.sim.log(last=True, limit=100)).items
    assert [entry.component for entry in log if entry.id == fault.id] == ["r2/pdu1"]
    assert any(entry.cause == fault.id and entry.what == "hardware" for entry in log)


async def test_a_blueprint_is_applied_though_nobody_pushed_its_slices(client: Client) -> None:
    await client.blueprints.apply("shop", Blueprint(slices=(SliceSpec(artifact="org.shop:cart:1.0.0", instances=3),)))
    await client.sim.step(60)
    status = await client.blueprints.status("shop")
    assert status.settled, status
    assert len([slice_ async for slice_ in client.blueprints.slices()]) == 3
    await client.blueprints.delete("shop")


async def test_the_timeline_happens_when_its_time_has_come(client: Client) -> None:
    assert (await client.sim.get()).timeline == 1
    now = (await client.sim.get()).now
    await client.sim.step(7200 + 10 - now)
    view = await client.sim.get()
    assert view.timeline == 0
    assert [(fault.fault, fault.on) for fault in view.faults] == [("blade_crash", "r2/b3")]
    await client.sim.step(60)
    assert (await client.sim.get()).faults == ()


async def test_two_who_step_at_once_both_get_their_time(client: Client) -> None:
    before = (await client.sim.get()).now
    steps = await asyncio.gather(*(client.sim.step(10) for _ in range(10)))
    assert sorted(step.now - before for step in steps) == pytest.approx([10 * number for number in range(1, 11)])
    assert (await client.sim.get()).now == pytest.approx(before + 100)


async def test_who_decides_from_old_news_changes_nothing(client: Client) -> None:
    view = await client.sim.get()
    changed = await client.sim.set_mode(Mode.MEASURED, rate=5.0, epoch=view.epoch)
    assert (changed.mode, changed.rate, changed.epoch) == (Mode.MEASURED, 5.0, view.epoch + 1)
    with pytest.raises(Conflict, match="measured"):
        await client.sim.set_mode(Mode.NO_WAIT, epoch=view.epoch)
    with pytest.raises(Conflict, match="manual"):
        await client.sim.step(1)
    begun = (await client.sim.get()).now
    await until_later(client, begun + 1)  # time goes by itself
    await client.sim.set_mode(Mode.NO_WAIT, epoch=changed.epoch)
    await until_later(client, begun + 1000)


async def test_a_change_of_mode_ends_the_step_of_somebody_else(client: Client) -> None:
    view = await client.sim.get()
    waiting = asyncio.create_task(client.sim.step(7 * 86400.0))
    while not (await client.sim.get()).steps:
        await asyncio.sleep(0.005)
    await client.sim.set_mode(Mode.MANUAL, epoch=view.epoch)
    with pytest.raises(Conflict, match="dropped"):
        await waiting
    stopped = (await client.sim.get()).now
    assert stopped < view.now + 7 * 86400
    assert (await client.sim.step(events=1)).now >= stopped


async def test_a_client_that_is_killed_while_it_waits_leaves_a_whole_step(service: Service, client: Client) -> None:
    before = (await client.sim.get()).now
    killed = running.fork_server().start(["sim", "step", "2h"], environ={**service.environ, "PATH": "/usr/bin"})
    while not (view := await client.sim.get()).steps and view.now == before:
        assert killed.poll() is None
        await asyncio.sleep(0.002)
    killed.kill()
    killed.wait()
    while (await client.sim.get()).steps:
        await asyncio.sleep(0.01)
    assert (await client.sim.get()).now == pytest.approx(before + 7200)


async def test_what_cannot_be_is_refused_at_the_door(service: Service, client: Client) -> None:
    url, headers = f"{client.url}/v1/sim", {"Authorization": f"Bearer {service.token()}"}
    epoch = (await client.sim.get()).epoch
    wrong: tuple[tuple[str, str, object], ...] = (
        ("POST", "/step", {"seconds": -1}),
        ("POST", "/step", {"seconds": 0}),
        ("POST", "/step", {"seconds": 1e300}),
        ("POST", "/step", {"seconds": 604801}),
        ("POST", "/step", {"events": 0}),
        ("POST", "/step", {"events": 10**9}),
        ("POST", "/step", {"events": 1.5}),
        ("POST", "/step", {}),
        ("POST", "/step", {"seconds": 1, "events": 1}),
        ("POST", "/step", {"second": 1}),
        ("POST", "/step", [1]),
        ("PUT", "/mode", {"mode": "manual"}),
        ("PUT", "/mode", {"mode": "fast", "epoch": epoch}),
        ("PUT", "/mode", {"mode": "measured", "rate": 0, "epoch": epoch}),
        ("PUT", "/mode", {"mode": "measured", "rate": -3, "epoch": epoch}),
        ("PUT", "/mode", {"mode": "measured", "rate": 1e99, "epoch": epoch}),
        ("POST", "/faults", {"fault": "nothing"}),
        ("POST", "/faults", {"fault": "power"}),
        ("POST", "/faults", {"fault": "power", "on": "r1", "for": -1}),
        ("POST", "/faults", {"fault": "power", "on": "r1", "chance": 0.5}),
        ("POST", "/faults", {"fault": "answer_lost", "chance": 2}),
        ("PUT", "/repairs", {"automatic": "yes"}),
    )
    before = await client.sim.get()
    async with aiohttp.ClientSession(headers=headers) as http:
        for method, path, body in wrong:
            async with http.request(method, url + path, json=body) as answer:
                assert answer.status == 400, (method, path, body, await answer.text())
        for path in ("/log?after=x", "/log?limit=0", "/log?limit=100000", "/nothing"):
            async with http.get(url + path) as answer:
                assert answer.status in (400, 404), path
    after = await client.sim.get()
    assert (after.now, after.epoch, after.faults) == (before.now, before.epoch, before.faults)
    with pytest.raises(NotFound, match="did you mean r2/pdu1"):
        await client.sim.inject(FaultInject(fault="power", on="r2/pud1"))
    with pytest.raises(NotFound, match="not active"):
        await client.sim.lift("fault-0")
    with pytest.raises(NotFound, match="not proposed"):
        await client.sim.repair("fix~r1")
    with pytest.raises(Invalid):
        await client.sim.step(-1)


async def test_time_faults_and_repairs_each_need_their_right(client: Client) -> None:
    await client.users.create(UserCreate(name="vic", role=Role.VIEWER, memberships=("acme",)))
    issued = await client.users.issue("vic", TokenCreate(name="t"))
    async with Client(client.url, issued.token) as viewer:
        view = await viewer.sim.get()
        assert (await viewer.sim.log(limit=3)).total == view.log
        with pytest.raises(Forbidden, match="step_time"):
            await viewer.sim.step(1)
        with pytest.raises(Forbidden, match="step_time"):
            await viewer.sim.set_mode(Mode.MANUAL, epoch=view.epoch)
        with pytest.raises(Forbidden, match="inject_faults"):
            await viewer.sim.inject(FaultInject(fault="power", on="r1"))
        with pytest.raises(Forbidden, match="perform_repairs"):
            await viewer.sim.auto_repair(True)
    assert (await client.sim.get()).epoch == view.epoch


async def test_it_ends_soon_whatever_runs_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "two-racks.yaml").write_text(SCENARIO)
    process = HostlerProcess(
        *("sim", "serve", tmp_path / "two-racks.yaml", "--listen", "127.0.0.1:0", "--mode", "no_wait"),
        folder=tmp_path,
        environ={"TMPDIR": str(tmp_path)},
    )
    try:
        url = await process.url()
        await process.says("end: Ctrl-C")
        [data] = tmp_path.glob("hostler-sim-*")
        async with Client(url, (data / "admin.token").read_text().strip()) as client:
            view = await client.sim.get()
            await client.sim.set_mode(Mode.MANUAL, epoch=view.epoch)
            waiting = asyncio.create_task(client.sim.step(7 * 86400.0))
            while not (await client.sim.get()).steps:
                await asyncio.sleep(0.005)
            asked = time.monotonic()
            process.signal(signal.SIGINT)
            with pytest.raises(Conflict):
                await waiting
        assert await process.ends() == 0
        pace.check(time.monotonic() - asked, 2.0, since=asked, what="its end")
        assert "Traceback" not in process.text
        assert "simulation:" not in process.text
        assert list(tmp_path.glob("hostler-sim-*")) == []
    finally:
        process.kill()


async def test_what_cannot_be_served_is_refused(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "admin.token").write_text("somebody's")
    (tmp_path / "two-racks.yaml").write_text(SCENARIO)
    (tmp_path / "wrong.yaml").write_text(SCENARIO.replace("r2/b3", "r2/b4"))
    there, wrong, nowhere = await asyncio.gather(
        hostler("sim", "serve", tmp_path / "two-racks.yaml", "--data", taken, "--listen", "127.0.0.1:0"),
        hostler("sim", "serve", tmp_path / "wrong.yaml", "--listen", "127.0.0.1:0"),
        hostler("sim", "serve", "two-racs", "--listen", "127.0.0.1:0"),
    )
    assert there.code != 0
    assert "belongs to hostler up" in there.err
    assert (taken / "admin.token").read_text() == "somebody's"
    assert "wrong.yaml:17" in wrong.err, wrong
    assert "r2/b4" in wrong.err
    assert nowhere.code == 3, nowhere


async def until_later(client: Client, now: float) -> None:
    end = time.monotonic() + 60
    while (await client.sim.get()).now < now:
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


async def test_i45_a_service_that_is_killed_is_resumed_where_it_was_saved(tmp_path: Path) -> None:
    world = tmp_path / "world.sim"
    first = Service(tmp_path, "--mode", "manual", "--save", world)
    try:
        async with await first.client() as client:
            vm = await client.vms.create("acme", "shop", VmCreate(name="web", spec=SMALL, on_node_loss=FENCE))
            fault = await client.sim.inject(FaultInject(fault="power", on="r2/pdu1"))
            await client.sim.step(100)
            before = await client.sim.get()
            log = (await client.sim.log(limit=1000, last=True)).items
            await well("sim", "save", tmp_path / "copy.sim", **first.environ)
            first.process.signal(signal.SIGTERM)
        assert await first.process.ends() == 0
        assert world.exists(), first.process.text
    finally:
        first.process.kill()
    again = HostlerProcess(
        *("sim", "serve", "--resume", world, "--save", world, "--listen", "127.0.0.1:0", "--data", tmp_path / "other"),
        folder=tmp_path,
    )
    try:
        url = await again.url()
        async with Client(url, (tmp_path / "other/admin.token").read_text().strip()) as client:
            after = await client.sim.get()
            assert (after.now, after.mode, after.faults, after.racks) == (
                before.now,
                Mode.MANUAL,
                before.faults,
                before.racks,
            )
            assert (await client.sim.log(limit=1000, last=True)).items[: len(log)] == log
            found = await client.vms.get("acme", "shop", vm.id)
            assert (found.phase, str(found.node)[:3]) == (VmPhase.RUNNING, "r1-")
            await client.sim.lift(fault.id)
            await client.sim.step(60)
        again.kill()  # -9, while it keeps its file
    finally:
        again.kill()
    damaged, taken, overwritten = tmp_path / "damaged.sim", tmp_path / "taken", tmp_path / "copy.sim"
    damaged.write_bytes(world.read_bytes()[:-200])
    taken.write_text("somebody's")
    answers = await asyncio.gather(
        hostler("sim", "serve", "--resume", damaged, "--listen", "127.0.0.1:0"),
        hostler("sim", "serve", "--resume", taken, "--listen", "127.0.0.1:0"),
        hostler("sim", "serve", tmp_path / "two-racks.yaml", "--save", overwritten, "--listen", "127.0.0.1:0"),
        hostler("sim", "serve", "--listen", "127.0.0.1:0"),
    )
    assert all(answer.code != 0 and "Traceback" not in answer.err for answer in answers), answers
    words = ("the file is damaged", "not a saved simulation", "resume it with --resume", "--resume")
    assert all(word in answer.err for word, answer in zip(words, answers, strict=True)), answers
    assert (taken.read_text(), damaged.exists(), overwritten.exists()) == ("somebody's", True, True)
    for file in (world, overwritten):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        load(file)

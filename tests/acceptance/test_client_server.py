"""The client against the real server: every route, every error that matters, and streams over a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from api_server import Api, api_on, serving, stop_throttle
from up_process import hostler as command

import hostler
from hostler.client import Client
from hostler.entry.server.app import build
from hostler.entry.server.serve import ListenAddress, Server
from hostler.errors import (
    Conflict,
    Forbidden,
    Invalid,
    KeyReused,
    NotFound,
    QuotaExceeded,
    Stale,
    TooManyTries,
    Unauthenticated,
    Unavailable,
)
from hostler.keys.families import HANDLE, MEMBER, VM
from hostler.model.access import Role
from hostler.model.access_api import QuotaSet, TokenCreate, UserCreate, UserUpdate
from hostler.model.deployment import Blueprint, SliceSpec
from hostler.model.inventory_api import Drain, HardwareSet, InventoryDocument
from hostler.model.node import DrainMode, Lifecycle
from hostler.model.vm import MachineState, VmHandle, VmSpec
from hostler.model.vm_api import VmCreate, VmPhase, VmUpdate
from hostler.model.workload_api import WorkloadApply, WorkloadPhase

SPEC = VmSpec(cpus=1, memory_mib=64)
UNTYPED = {
    *("health.alive", "health.ready", "health.metrics", "health.openapi", "health.docs"),
    *("site.page", "site.asset", "site.icon", "site.licences", "session.sign_in", "session.browser"),
    *("vm.console", "vm.ssh", "vm.shell", "lab.terminal"),
    *("route.get", "route.put", "route.post", "route.patch", "route.delete"),
}
"""Routes for probes, browsers and callers of slices, which the client has no methods for; and doors, which want a
running machine."""
SIMULATED = "sim."
"""This server is no simulation: /v1/sim answers 404 here, and its methods are tested in test_sim_service."""


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with serving(sockets=True) as made:
        yield made


@pytest.fixture
async def client(api: Api) -> AsyncIterator[Client]:
    async with Client(api.url, api.admin) as opened:
        yield opened


def vm(name: str = "www", cpus: int = 1) -> VmCreate:
    return VmCreate(name=name, spec=VmSpec(cpus=cpus, memory_mib=64))


async def test_every_route_has_a_method_that_works(api: Api, client: Client, tmp_path: Path) -> None:
    used: set[str] = set()
    find = api.app._router.find

    def noticed(method: str, path: str):  # type: ignore[no-untyped-def]
        found = find(method, path)
        used.add(found[0].name)
        return found

    api.app._router.find = noticed  # type: ignore[method-assign]
    await _machines(client)
    await _labs(api, client)
    await _nodes(api, client)
    await _retained(client)
    await _racks(client)
    await _workloads(client)
    await _artifacts(client, tmp_path)
    await _blueprints(client)
    await _people(client)
    await client.quotas.set("acme", "web", QuotaSet(vms=5))
    assert (await client.quotas.get("acme", "web")).limits.vms == 5
    await client.quotas.delete("acme", "web")
    assert (await client.quotas.set("acme", "", QuotaSet(vms=50))).project == ""
    assert (await client.quotas.get("acme", "web")).inherited.vms == 50
    assert (await client.quotas.get("acme", "")).limits.vms == 50
    await client.quotas.delete("acme", "")
    assert (await client.projects.create("acme", "mobile")).created_by == "admin"
    assert "mobile" in {project.name for project in (await client.projects.list(org="acme")).items}
    assert (await client.control.leader()).address is None
    assert (await client.control.replicas()).items == ()
    assert (await client.control.overview()).store.answers
    audit = [line async for line in client.control.audit(limit=3)]
    assert {"user.first", "vm.create", "node.drain", "session.begin", "quota.set"} <= {line.verb for line in audit}
    async with client.events(1) as events:
        assert (await anext(events)).type == "put"
    await client.decisions.list(limit=1)
    assert (await client.decisions.why("workload/web")).steps[-1].what == "workload.apply"
    with pytest.raises(NotFound, match="not a simulation"):
        await client.sim.get()
    missing = {route.name for route in api.app.routes} - used
    assert {name for name in missing if not name.startswith(SIMULATED)} == UNTYPED


async def _machines(client: Client) -> None:
    made = await client.vms.create("acme", "web", vm())
    assert (made.phase, made.name) == (VmPhase.PENDING, "www")
    assert await client.vms.get("acme", "web", "www") == await client.vms.get("acme", "web", made.id, stale=True)
    changed = await client.vms.update("acme", "web", "www", VmUpdate(labels={"a": "b"}), if_match=made.revision)
    with pytest.raises(Stale):
        await client.vms.update("acme", "web", "www", VmUpdate(labels={}), if_match=made.revision)
    assert changed.generation > made.generation
    await client.vms.start("acme", "web", "www")
    assert (await client.vms.snapshot("acme", "web", "www", "one")).snapshots == {"one": None}
    with pytest.raises((Conflict, NotFound, Invalid)):
        await client.vms.restore("acme", "web", "www", "none")
    await client.vms.drop_snapshot("acme", "web", "www", "one")
    await client.vms.reset("acme", "web", "www")
    with pytest.raises(NotFound):
        await client.vms.move("acme", "web", "www", "nowhere")
    assert (await client.vms.ticket("acme", "web", "www", "ssh")).url.endswith(f"/{made.id}/ssh")
    assert (await client.vms.images()).items == ()
    assert not await client.vms.terminal_key()
    assert not await client.vms.log("acme", "web", "www")
    await client.vms.stop("acme", "web", "www")
    assert (await client.vms.why("acme", "web", "www")).node is None
    assert [one.id async for one in client.vms.list("acme", "web", labels={"a": "b"})] == [made.id]
    assert [one.id for one in (await client.vms.list(stale=True)).items] == [made.id]
    await client.vms.delete("acme", "web", "www")


async def _labs(api: Api, client: Client) -> None:
    """More of them is in test_api_labs."""
    assert (await client.labs.start("ada", 5)).lab is not None
    await api.lab("ada")
    assert (await client.labs.get("ada")).lab_id == 5
    assert [lab.user async for lab in client.labs.list(limit=1)] == ["ada"]
    assert (await client.labs.extend("ada", 10)).news.event == "extended"
    assert (await client.labs.message("ada", "five more minutes")).news.event == "message"
    assert (await client.labs.ticket("ada")).url == "/v1/labs/ada/terminal"
    assert (await client.labs.stop("ada", 5)).news.event == "stopping"
    assert (await client.labs.news("ada")).items[-1].event == "stopping"
    assert [offer.lab_id for offer in (await client.labs.offers()).items] == [None]


async def _nodes(api: Api, client: Client) -> None:
    await api.node("local-1")
    await api.node("local-2", alive=False)
    assert [node.node async for node in client.nodes.list(limit=1)] == ["local-1", "local-2"]
    assert (await client.nodes.drain("local-1", Drain(mode=DrainMode.STOP))).lifecycle is Lifecycle.DRAINING
    assert (await client.nodes.activate("local-1")).lifecycle is Lifecycle.ON_DUTY
    with pytest.raises(Conflict):
        await client.nodes.confirm_off("local-1")
    assert (await client.nodes.confirm_off("local-2")).off is not None
    assert not (await client.nodes.brake()).held
    with pytest.raises(Conflict):
        await client.nodes.release_brake()
    await client.nodes.forget("local-2")
    with pytest.raises(NotFound):
        await client.nodes.get("local-2")


async def _retained(client: Client) -> None:
    assert (await client.retained.list()).items == ()
    for verb in (client.retained.get, client.retained.restore, client.retained.delete):
        with pytest.raises(NotFound):
            await verb("local-1", "none")


async def _workloads(client: Client) -> None:
    """More of them is in test_api_workloads."""
    made = await client.workloads.apply(WorkloadApply(name="web", spec=SPEC))
    assert (made.instances, (await client.workloads.get("web")).name) == (1, "web")
    assert [one.name async for one in client.workloads.list()] == ["web"]
    assert (await client.workloads.scale("web", 2)).instances == 2
    assert [one.instance async for one in client.workloads.instances("web")] == []
    assert (await client.workloads.delete("web")).phase is WorkloadPhase.DELETING


SLICE = "from hostler.slices import method\n\n\n@method\ndef greet() -> None: ...\n"


async def _artifacts(client: Client, folder: Path) -> None:
    """More of them is in test_artifacts_http."""
    (folder / "greeting.py").write_text(SLICE)
    made = await client.artifacts.publish("org.example:greeting:1", folder / "greeting.py")
    assert [one.artifact async for one in client.artifacts.list()] == [made.artifact]
    assert await client.artifacts.get(made.artifact) == made
    assert (await client.artifacts.fetch(made.artifact, folder / "to")).read_text() == SLICE


async def _blueprints(client: Client) -> None:
    """More of them is in test_blueprint_service and in deployments."""
    once, twice = (Blueprint(slices=(SliceSpec(artifact="org.example:greeting:1", instances=n),)) for n in (1, 2))
    assert (await client.blueprints.read('{"name": "shop", "slices": []}', "shop.json")).name == "shop"
    assert (await client.blueprints.plan("shop", once)).changes
    assert (await client.blueprints.apply("shop", once)).number == 1
    assert (await client.blueprints.apply("shop", twice)).instances == 2
    assert (await client.blueprints.get("shop")).number == 2
    assert (await client.blueprints.status("shop")).number == 2
    assert (await client.blueprints.calls("shop")).name == "shop"
    assert [one.name async for one in client.blueprints.list()] == ["shop"]
    assert [one.number async for one in client.blueprints.history("shop")] == [2, 1]
    assert (await client.blueprints.revision("shop", 1)).slices == once.slices
    assert (await client.blueprints.rollback("shop", 1)).instances == 1
    blueprints = client.blueprints
    for order in (blueprints.promote, blueprints.pause, blueprints.resume, blueprints.approve, blueprints.abort):
        with pytest.raises(Conflict, match="no rollout is in progress|has not processed it yet|has not started"):
            await order("shop", "org.example:greeting")
    assert [one async for one in client.blueprints.slices()] == [one async for one in client.blueprints.endpoints()]
    with pytest.raises(NotFound, match="there is no instance, and none has failed"):
        await client.blueprints.log("org.example:greeting")
    with pytest.raises((NotFound, Unavailable)):
        await client.invoke("org.example:greeting", "greet", {})
    await client.blueprints.delete("shop")


async def _racks(client: Client) -> None:
    """More of them is in test_api_racks."""
    feeds = {kind: [{"name": kind, "ports": 2}] for kind in ("pdus", "tors")}
    rack = {"name": "r1", "blades": {"count": 1}, **feeds}
    document = InventoryDocument(regions=({"name": "eu", "zones": [{"name": "a", "racks": [rack]}]},))
    assert len((await client.inventory.plan(document)).changes) == (await client.inventory.load(document)).added == 6
    assert [one.name async for one in client.racks.list()] == ["r1"]
    assert [one.name for one in (await client.racks.summary()).racks] == ["r1"]
    assert (await client.inventory.read("racks: []")).racks == ()
    shown = await client.racks.get("r1")
    assert (await client.racks.pdu("r1"), await client.racks.tor("r1")) == (*shown.pdus, *shown.tors)
    assert ((await client.racks.pdus("r1")).items, (await client.racks.tors("r1")).items) == (shown.pdus, shown.tors)
    assert (await client.racks.blade("r1", "b1"),) == (await client.racks.blades("r1")).items == shown.blades
    off = HardwareSet(enabled=False)
    await client.racks.set("r1", off)
    await client.racks.set_blade("r1", "b1", off)
    await client.racks.set_pdu("r1", "pdus", off)
    await client.racks.set_tor("r1", "tors", off)
    await client.inventory.set_zone("eu", "a", off)
    assert (await client.inventory.set_region("eu", off)).enabled is False
    assert len((await client.inventory.regions()).items) == len((await client.inventory.get()).regions) == 1


async def _people(client: Client) -> None:
    await client.users.create(UserCreate(name="Ada", role=Role.MEMBER, password="password", memberships=("acme",)))
    assert (await client.users.get("ada")).name == "Ada"
    assert [user.name async for user in client.users.list(limit=1)] == ["Ada", "admin"]
    assert (await client.users.update("ada", UserUpdate(full_name="Ada L."))).full_name == "Ada L."
    issued = await client.users.issue("ada", TokenCreate(name="laptop"))
    assert [token.name for token in (await client.users.tokens("ada")).items] == ["laptop"]
    async with Client(client.url) as other:
        await other.login("ADA", "password")
        assert (await other.users.me()).full_name == "Ada L."
        await other.logout()
        with pytest.raises(Unauthenticated):
            await other.users.me()
    async with Client(client.url, issued.token) as other:
        assert (await other.users.me()).name == "Ada"
        assert (await other.users.web_ticket()).url == "/#/sign-in"
        await client.users.revoke("ada", issued.id)
        with pytest.raises(Unauthenticated):
            await other.users.me()
    await client.users.delete("ada")
    with pytest.raises(NotFound):
        await client.users.get("ada")


async def test_errors_are_those_of_the_services(api: Api, client: Client) -> None:
    await client.vms.create("acme", "web", vm(), key="k1")
    again = await client.vms.create("acme", "web", vm(), key="k1")
    assert again.name == "www"
    with pytest.raises(KeyReused):
        await client.vms.create("acme", "web", vm("other"), key="k1")
    with pytest.raises(Conflict, match="www"):
        await client.vms.create("acme", "web", vm())
    await client.quotas.set("acme", "web", QuotaSet(vms=1))
    with pytest.raises(QuotaExceeded):
        await client.vms.create("acme", "web", vm("two"))
    with pytest.raises(NotFound):
        await client.vms.get("acme", "web", "none")
    async with Client(api.url, await api.user(Role.VIEWER, "acme")) as viewer:
        with pytest.raises(Forbidden, match="modify_workloads"):
            await viewer.vms.start("acme", "web", "www")
        with pytest.raises(NotFound):
            await viewer.vms.get("other", "web", "www")
    stop_throttle(api)
    async with Client(api.url) as nobody:
        with pytest.raises(Unauthenticated):
            await nobody.vms.list()
        for _ in range(5):
            with pytest.raises(Unauthenticated, match="name or password is wrong"):
                await nobody.login("admin", "wrong")
        with pytest.raises(TooManyTries) as caught:
            await nobody.login("admin", "wrong")
        assert 0 < caught.value.after <= 60
    assert await client.vms.get("acme", "web", "www") is not None


async def test_a_token_that_was_guessed_a_hundred_times_is_let_in_nevertheless(api: Api, client: Client) -> None:
    stop_throttle(api)
    async with Client(api.url, "hst_guess") as guesser:
        got = await asyncio.gather(*(guesser.users.me() for _ in range(100)), return_exceptions=True)
    kinds = [type(error) for error in got]
    assert (kinds.count(Unauthenticated), kinds.count(TooManyTries)) == (20, 80)
    assert (await client.users.me()).name == "admin"


async def test_no_event_is_missed_or_doubled_when_the_server_is_restarted() -> None:
    async with hostler.open_store("memory://") as store, api_on(store, sockets=True) as api:
        port = api.server.port
        async with Client(api.url, api.admin) as client, client.events(kinds=("vm",)) as events:
            following = asyncio.create_task(_subjects(events, 30))
            await events.connected.wait()
            made = [await _made(client, n) for n in range(10)]
            await api.server.__aexit__(None, None, None)
            for n in range(10, 20):
                await _written(api, n, made)
            app = build(api.services)
            async with Server(app, ListenAddress(port=port)):
                made += [await _made(client, n) for n in range(20, 30)]
                async with asyncio.timeout(90):
                    assert await following == made


async def _subjects(events: hostler.client.Events, count: int) -> list[str]:
    found: list[str] = []
    async for event in events:
        found.append(event.subject)
        if len(found) == count:
            break
    return found


async def _made(client: Client, n: int) -> str:
    return f"acme/web/{(await client.vms.create('acme', 'web', vm(f'vm-{n}'))).id}"


async def _written(api: Api, n: int, made: list[str]) -> None:
    from hostler.engine.request import HOSTLER, Request

    done = await api.services.vms.create(Request(HOSTLER), "acme", "web", vm(f"vm-{n}"))
    made.append(f"acme/web/{done.value.id}")


async def test_waiting_follows_a_machine_to_its_end(api: Api, client: Client) -> None:
    made = await client.vms.create("acme", "web", vm())
    ids = {"org": "acme", "project": "web", "vm": made.id}
    seen: list[VmPhase] = []

    async def life() -> None:
        for state in (MachineState.CREATING, MachineState.STARTING, MachineState.RUNNING):
            handle = VmHandle(id=made.id, node="local-1", state=state, generation=made.generation, seen_at=1.0)
            before = len(seen)
            await api.store.txn([], [HANDLE.put(handle, **ids)])
            while len(seen) == before:
                await asyncio.sleep(0.005)

    await api.node("local-1")
    living = asyncio.create_task(life())
    async with asyncio.timeout(90):
        got = await client.vms.wait(
            "acme", "web", "www", settled=True, phase=VmPhase.RUNNING, on_change=lambda now: seen.append(now.phase)
        )
    await living
    assert got is not None
    assert seen[-3:] == [VmPhase.CREATING, VmPhase.STARTING, VmPhase.RUNNING]
    waiting = asyncio.create_task(client.vms.wait("acme", "web", "www", gone=True))
    await client.vms.delete("acme", "web", "www")
    await api.store.txn([], [VM.delete(**ids), HANDLE.delete(**ids)])
    async with asyncio.timeout(90):
        assert await waiting is None


async def test_a_lost_answer_is_asked_for_again_and_the_machine_made_once(api: Api) -> None:
    """A proxy that swallows the first answers; the Idempotency-Key does the rest."""
    losses = 2

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, lose: bool) -> None:
        try:
            while data := await reader.read(65536):
                if lose:
                    break
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def through(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal losses
        lose, losses = losses > 0, losses - 1
        inner = await asyncio.open_connection("127.0.0.1", api.server.port)
        await asyncio.gather(pump(reader, inner[1], lose=False), pump(inner[0], writer, lose=lose))

    proxy = await asyncio.start_server(through, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
    async with Client(url, api.admin) as client:
        made = await client.vms.create("acme", "web", vm())
        assert losses < 0
        assert [one.id async for one in client.vms.list()] == [made.id]
    proxy.close()
    await proxy.wait_closed()


async def test_a_server_that_closes_is_unavailable_not_a_stack_of_foreign_errors(api: Api) -> None:
    async with Client(api.url, api.admin, retries=1) as client:
        await client.users.me()
        await api.server.__aexit__(None, None, None)
        with pytest.raises(Unavailable, match="cannot be reached"):
            await client.users.me()
        with pytest.raises(Unavailable, match="cannot be reached"):
            await client.vms.create("acme", "web", vm())


async def test_a_node_of_an_unknown_lifecycle_is_listed(api: Api) -> None:
    await api.node("local-1")
    key = MEMBER.fill(node="local-1")
    written = await api.services.store.get(key)
    assert written is not None
    await api.services.store.put(key, written.value.replace(b'"ON_DUTY"', b'"MAINTENANCE"'))
    done = await command("node", "list", HOSTLER_SERVER=api.url, HOSTLER_TOKEN=api.admin)
    assert done.code == 0, done
    [line] = [line for line in done.out.splitlines() if "local-1" in line]
    assert "unknown (maintenance)" in line

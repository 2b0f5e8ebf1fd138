"""What a page about machines asks for: rows in brief, images, what a console said, and a shell by SSH."""

from __future__ import annotations

import asyncio
import gzip
import random
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import pytest
from api_server import VM_BODY, Api, run_machine, serving
from terminal_guest import Browser
from terminal_place import Place, placed

from hostler import Client
from hostler.drivers.machines.simulated import MemoryHost, SimulatedMachines
from hostler.keys.families import ALIVE, HANDLE, MEMBER
from hostler.kit.clock import SystemClock
from hostler.model.access import Role
from hostler.model.inventory import Capacity
from hostler.model.node import Heartbeat, ImageNeeds, Lifecycle, NodeRecord
from hostler.model.vm import Access, MachineState, Readiness, Step, VmHandle
from hostler.ports.machines import ChannelKind

VMS = "/v1/orgs/acme/projects/web/vms"


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with serving() as api:
        yield api


async def test_rows_are_the_machines_in_brief_page_by_page(api: Api) -> None:
    await api.listen()
    for number in range(3):
        body = {**VM_BODY, "name": f"m{number}", "labels": {"n": str(number)}}
        assert (await api.call("POST", VMS, json=body)).status == 201
    whole = (await api.call("GET", "/v1/vms")).json["items"]
    async with Client(api.url, api.admin) as client:
        rows = [row async for row in client.vms.rows(limit=2)]
        one = [row async for row in client.vms.rows("acme", "web", labels={"n": "1"})]
    assert [row.id for row in rows] == [vm["id"] for vm in whole]
    assert [row.name for row in one] == ["m1"]
    for row, vm in zip(rows, whole, strict=True):
        assert {"cpus": row.cpus, "memory_mib": row.memory_mib}.items() <= vm["spec"].items()
        for name in ("name", "org", "project", "phase", "node", "available", "detail", "labels", "created_at"):
            assert getattr(row, name) == vm[name], name


async def test_a_row_has_the_state_that_was_seen_last_also_of_a_node_that_is_silent(api: Api) -> None:
    vm = (await api.call("POST", VMS, json=VM_BODY)).json
    await api.node("n1", alive=False)
    handle = VmHandle(id=vm["id"], node="n1", state=MachineState.FAILED, generation=1, seen_at=0.0, detail="x" * 500)
    await api.store.txn([], [HANDLE.put(handle, org="acme", project="web", vm=vm["id"])])
    (row,) = (await api.call("GET", "/v1/vms?brief=true")).json["items"]
    assert (row["phase"], row["state"], row["node"]) == ("silent", "failed", "n1")
    await api.node("n1")
    (row,) = (await api.call("GET", f"{VMS}?brief=true")).json["items"]
    assert (row["phase"], row["state"], len(row["detail"])) == ("failed", "failed", 160)


async def test_rows_are_compressed_for_who_takes_that(api: Api) -> None:
    await api.call("POST", VMS, json=VM_BODY)
    plain = await api.call("GET", "/v1/vms?brief=true", Accept_Encoding="identity")
    assert "Content-Encoding" not in plain.headers
    packed = await api.call("GET", "/v1/vms?brief=true", Accept_Encoding="gzip, br")
    assert packed.headers["Content-Encoding"] == "gzip"
    assert packed.headers["Vary"].lower() == "accept-encoding"
    assert gzip.decompress(packed.body) == plain.body


async def test_rows_of_others_are_not_told(api: Api) -> None:
    await api.call("POST", VMS, json=VM_BODY)
    stranger = await api.user(Role.MEMBER, "acme/other")
    assert (await api.call("GET", "/v1/vms?brief=true", token=stranger)).json["items"] == []
    assert (await api.call("GET", f"{VMS}?brief=true", token=stranger)).status == 404


async def test_images_are_those_of_nodes_on_duty_with_what_is_enough_for_each(api: Api) -> None:
    await api.listen()
    capacity = Capacity(cpus=4, memory_mib=4096, disk_gib=10)
    needs = {"tiny": ImageNeeds(memory_mib=128, disk_gib=1, user="hostler", default=True)}
    more = {"tiny": ImageNeeds(memory_mib=256, disk_gib=1, user="hostler")}
    nodes = (
        ("n1", Lifecycle.ON_DUTY, ("", "tiny"), needs),
        ("n2", Lifecycle.ON_DUTY, ("debian", "tiny"), more),
        ("n3", Lifecycle.DRAINING, ("other",), {}),
    )
    for name, lifecycle, images, known in nodes:
        record = NodeRecord(
            node=name, lifecycle=lifecycle, capacity=capacity, images=images, image_needs=known, registered_at=0.0
        )
        alive = ALIVE.put(Heartbeat(holder="test", started_at=0.0), node=name)
        await api.store.txn([], [MEMBER.put(record, node=name), alive])
    await api.services.view.refresh(api.services.view.members, api.services.view.alive)
    async with Client(api.url, api.admin) as client:
        found = await client.vms.images()
    assert not found.any
    told = [(one.name, one.nodes, one.default, one.memory_mib, one.user) for one in found.items]
    assert told == [("debian", 1, False, 0, ""), ("tiny", 2, True, 256, "hostler")]
    await api.node("n4")
    assert (await api.call("GET", "/v1/images")).json["any"] is True


async def test_what_a_console_said_is_told_of_a_machine_that_is_off_too() -> None:
    async with (
        SimulatedMachines(MemoryHost(), clock=SystemClock(), rng=random.Random(1)) as machines,
        serving(machines_of={"n1": machines}.get, sockets=True) as api,
        Client(api.url, api.admin) as client,
    ):
        vm = await run_machine(api, machines)
        assert "simulated machine" in await client.vms.log("acme", "web", "one")
        await machines.stop(vm, grace=0)
        assert "boot 1" in await client.vms.log("acme", "web", "one")
        assert len(await client.vms.log("acme", "web", "one", tail=5)) == 5
        assert (await api.call("GET", f"{VMS}/one/log?tail=262145")).status == 400
        viewer = await api.user(Role.VIEWER, "acme/web")
        assert (await api.call("GET", f"{VMS}/one/log", token=viewer)).status == 403


# A shell


async def _machine(place: Place) -> str:
    vm: str = (await place.api.call("POST", VMS, json=VM_BODY)).json["id"]
    await place.api.node("n1")
    access = Access(host="127.0.0.1", port=22, user="hostler", host_keys=(place.guest.public_key,))
    ready = Readiness(step=Step.AVAILABLE, since=0.0)
    handle = VmHandle(
        id=vm, node="n1", state=MachineState.RUNNING, generation=1, access=access, readiness=ready, seen_at=0.0
    )
    await place.api.store.txn([], [HANDLE.put(handle, org="acme", project="web", vm=vm)])
    place.doubles.ports[vm, ChannelKind.SSH] = place.guest.port
    return vm


async def _shell(api: Api) -> Browser:
    ticket = (await api.call("POST", f"{VMS}/one/tickets", json={"door": "shell"})).json
    return Browser(await api.open_websocket(f"{ticket['url']}?ticket={ticket['ticket']}"))


async def test_a_shell_in_a_machine_types_and_speaks_until_it_ends(tmp_path: Path) -> None:
    async with placed(tmp_path) as place:
        await _machine(place)
        page = await _shell(place.api)
        await page.until(kind="connected")
        await page.say(type="resize", cols=100, rows=30)
        await page.type("who\r")
        await page.until(said="shell 1 is here")
        assert place.guest.users == ["hostler"]
        await page.socket.send_str("nonsense")
        await page.until(kind="error", said="message:")
        await page.type("exit 3\r")
        await page.until(kind="info", said="exit status 3")
        assert await page.closed() == 1000
        assert place.api.app.feed.streams == 0


async def test_shells_count_for_the_account_that_opens_them(tmp_path: Path) -> None:
    async with placed(tmp_path) as place:
        await _machine(place)
        page = await _shell(place.api)
        await page.until(kind="connected")
        assert place.api.app.feed.held == {"admin": 1}
        place.api.app.feed.held["admin"] = 1000
        with pytest.raises(aiohttp.WSServerHandshakeError, match="503"):
            await _shell(place.api)


async def test_who_goes_while_the_server_logs_in_gives_the_place_back_at_once(tmp_path: Path) -> None:
    async with placed(tmp_path) as place, asyncio.timeout(45):  # it would wait a minute for an answer
        vm = await _machine(place)
        mute = await asyncio.start_server(lambda reader, _: reader.read(), "127.0.0.1", 0)
        place.doubles.ports[vm, ChannelKind.SSH] = mute.sockets[0].getsockname()[1]
        page = await _shell(place.api)
        await page.say(type="resize", cols=100, rows=30)
        assert place.api.app.feed.streams == 1
        await page.leave()
        while place.api.app.feed.streams:
            await asyncio.sleep(0.01)
        mute.close()


async def test_a_machine_that_does_not_take_the_key_says_what_to_do(tmp_path: Path) -> None:
    async with placed(tmp_path) as place:
        await _machine(place)
        place.guest.allowed.clear()
        page = await _shell(place.api)
        await page.until(kind="error", said="/v1/terminal-key")
        assert await page.closed() == 1011


async def test_a_machine_that_nobody_can_log_into_says_so(tmp_path: Path) -> None:
    async with placed(tmp_path) as place:
        await place.api.call("POST", VMS, json=VM_BODY)
        page = await _shell(place.api)
        await page.until(kind="error", said="no SSH access yet")
        assert await page.closed() == 1011


async def test_the_shell_is_for_who_may_change_the_machine_and_its_ticket_for_nothing_else(tmp_path: Path) -> None:
    async with placed(tmp_path) as place:
        await _machine(place)
        api = place.api
        viewer = await api.user(Role.VIEWER, "acme/web")
        body = {"door": "shell"}
        assert (await api.call("POST", f"{VMS}/one/tickets", json=body, token=viewer)).status == 403
        ticket = (await api.call("POST", f"{VMS}/one/tickets", json=body)).json
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await api.http.ws_connect(f"{api.url}{VMS}/one/console?ticket={ticket['ticket']}")
        assert refused.value.status == 401
        member = await api.user(Role.MEMBER, "acme/web")
        socket = await api.http.ws_connect(f"{api.url}{VMS}/one/shell", headers={"Authorization": f"Bearer {member}"})
        page = Browser(socket)
        await page.until(kind="connected")
        audit = [(line["verb"], line["who"]) for line in (await api.call("GET", "/v1/audit")).json["items"]]
        assert [line for line in audit if line[0].startswith("ticket.")] == [], "the ticket was not used"
        assert [line for line in audit if line[0] == "shell.open"] == [("shell.open", "member-2")]
        other = Browser(await api.http.ws_connect(f"{api.url}{VMS}/one/shell?ticket={ticket['ticket']}"))
        await other.until(kind="connected")
        audit = [(line["verb"], line["who"]) for line in (await api.call("GET", "/v1/audit")).json["items"]]
        assert ("ticket.shell", "admin") in audit
        tokens = await api.call("GET", "/v1/users/member-2/tokens")
        for one in tokens.json["items"]:
            await api.call("DELETE", f"/v1/users/member-2/tokens/{one['id']}")
        assert await page.closed() == 1008


async def test_the_key_to_let_in_is_the_one_that_logs_in(tmp_path: Path) -> None:
    async with placed(tmp_path) as place, Client(place.api.url, place.api.admin) as client:
        key = await client.vms.terminal_key()
        assert place.guest.allowed[0].export_public_key().decode().split()[:2] == key.split()[:2]
        body = {**VM_BODY, "spec": {**VM_BODY["spec"], "ssh_keys": [key]}}  # type: ignore[dict-item]
        assert (await place.api.call("POST", VMS, json=msgspec.to_builtins(body))).status == 201

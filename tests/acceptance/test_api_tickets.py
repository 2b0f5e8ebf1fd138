"""Doors of machines through the API: tickets, the SSH relay, and machines of other processes."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest
from api_server import VM_BODY, Api, run_machine, serving
from doubles import DoorMachines, SocketChannel
from harness import pace

from hostler import Client
from hostler.drivers.machines.simulated import MemoryHost, SimulatedMachines
from hostler.engine.tickets import PeerTickets
from hostler.entry.relay import ProcessPeers, RelayApp
from hostler.entry.server import serve, vm_channels, websocket
from hostler.entry.server.concurrency_limits import share
from hostler.entry.server.pin import pin_of
from hostler.entry.server.serve import ListenAddress, Server
from hostler.errors import HostlerError, NotFound, Unavailable
from hostler.keys.families import MEMBER, TICKET
from hostler.kit.clock import SystemClock
from hostler.model.access import Role
from hostler.ports.machines import Channel, ChannelKind

VMS = "/v1/orgs/acme/projects/web/vms"
ONE = f"{VMS}/one"


class Place:
    """A server whose process has the machine `one`, with a plain echo behind its SSH door."""

    def __init__(self, api: Api, vm: str, doubles: DoorMachines) -> None:
        self.api, self.vm, self.doubles = api, vm, doubles

    async def ticket(self, door: str = "ssh", token: str = "", vm: str = "one") -> str:
        reply = await self.api.call("POST", f"{VMS}/{vm}/tickets", json={"door": door}, token=token)
        assert reply.status == 201, reply.body
        return str(reply.json["ticket"])

    def opened(self, ticket: str, door: str = "ssh", **headers: str) -> aiohttp.client._WSRequestContextManager:
        return self.api.http.ws_connect(f"{self.api.url}{ONE}/{door}?ticket={ticket}", headers=headers)

    async def refused(self, ticket: str, door: str = "ssh", vm: str = "one", **headers: str) -> int:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await self.api.http.ws_connect(f"{self.api.url}{VMS}/{vm}/{door}?ticket={ticket}", headers=headers)
        return refused.value.status


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


@asynccontextmanager
async def echoing() -> AsyncIterator[int]:
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@asynccontextmanager
async def placed(url: str = "memory://") -> AsyncIterator[Place]:
    clock = SystemClock()
    doubles = DoorMachines({})
    async with (
        SimulatedMachines(MemoryHost(), clock=clock, rng=random.Random(1)) as simulated,
        echoing() as port,
        serving(url, machines_of=lambda node: doubles if node == "n1" else None, sockets=True) as api,
    ):
        vm = await run_machine(api, simulated)
        doubles.ports |= {(vm, ChannelKind.SSH): port, (vm, ChannelKind.CONSOLE): port}
        yield Place(api, vm, doubles)


async def until(condition: object) -> None:
    async with asyncio.timeout(60):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.01)


async def echoes(socket: aiohttp.ClientWebSocketResponse, data: bytes) -> None:
    await socket.send_bytes(data)
    got = b""
    async with asyncio.timeout(60):
        while len(got) < len(data):
            got += await socket.receive_bytes()
    assert got == data


async def test_a_ticket_opens_its_door_once() -> None:
    async with placed() as place:
        ticket = await place.ticket()
        async with place.opened(ticket) as socket:
            await echoes(socket, b"SSH-2.0-\x00\xff")
            assert place.api.app.feed.streams == 1
        assert await place.refused(ticket) == 401
        await until(lambda: not place.api.app.feed.streams)


@pytest.mark.parametrize("url", ["memory://", "sqlite"])
async def test_of_many_who_come_with_one_ticket_at_once_one_is_let_in(url: str, tmp_path: Path) -> None:
    async with placed(url if url != "sqlite" else f"sqlite://{tmp_path}/store.db") as place:
        ticket = await place.ticket()
        came = await asyncio.gather(*(place.opened(ticket) for _ in range(20)), return_exceptions=True)
        sockets = [each for each in came if isinstance(each, aiohttp.ClientWebSocketResponse)]
        assert len(sockets) == 1
        statuses = {each.status for each in came if isinstance(each, aiohttp.WSServerHandshakeError)}
        assert statuses <= {401, 429}
        await sockets[0].close()
        await until(lambda: not place.api.app.feed.streams)


async def test_a_ticket_counts_for_its_machine_and_its_door_only_and_is_not_used_up_elsewhere() -> None:
    async with placed() as place:
        assert (await place.api.call("POST", VMS, json=VM_BODY | {"name": "two"})).status == 201
        ticket = await place.ticket("ssh")
        assert await place.refused(ticket, "console") == 401
        assert await place.refused(ticket, "ssh", vm="two") == 401
        async with place.opened(ticket) as socket:
            await echoes(socket, b"x")


async def test_a_token_in_the_url_lets_nobody_in() -> None:
    async with placed() as place:
        admin = place.api.admin
        for query, status in ((f"token={admin}", 400), (f"ticket={admin}", 401), (f"access_token={admin}", 400)):
            answer = await place.api.call("GET", f"{ONE}/ssh?{query}", token=None)
            assert answer.status == status
            assert admin.encode() not in answer.body
        both = await place.api.call("GET", f"{ONE}/ssh?ticket={await place.ticket()}")
        assert both.status == 400
        assert (await place.api.call("GET", f"{ONE}/ssh", token=None)).status == 401


async def test_a_header_works_as_well() -> None:
    async with placed() as place, Client(place.api.url, place.api.admin) as client:
        async with client.vms.ssh("acme", "web", "one") as channel:
            await channel.write(b"SSH-2.0-x\r\n")
            assert await channel.read() == b"SSH-2.0-x\r\n"
        issued = await client.vms.ticket("acme", "web", "one", "ssh")
        assert issued.url == f"{VMS}/{place.vm}/ssh"
        assert issued.ticket not in repr(issued)
        async with place.api.http.ws_connect(f"{place.api.url}{issued.url}?ticket={issued.ticket}") as socket:
            await echoes(socket, b"x")


async def test_only_who_may_change_a_machine_gets_a_ticket_for_it() -> None:
    async with placed() as place:
        viewer, stranger = await place.api.user(Role.VIEWER, "acme"), await place.api.user(Role.MEMBER, "other")
        for token, status in ((viewer, 403), (stranger, 404)):
            reply = await place.api.call("POST", f"{ONE}/tickets", json={"door": "ssh"}, token=token)
            assert reply.status == status
        reply = await place.api.call("POST", f"{ONE}/tickets", json={"door": "arrival-state"})
        assert reply.status == 400
        assert not (await TICKET.list(place.api.store)).entries


@pytest.mark.parametrize("loss", ["revoked", "right", "membership"])
async def test_what_a_ticket_opened_ends_with_the_token_and_the_right_that_it_stands_on(
    loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vm_channels, "LOOK_EVERY", 0.05)
    async with placed() as place:
        await place.api.user(Role.MEMBER, "acme", name="ann")
        issued = (await place.api.call("POST", "/v1/users/ann/tokens", json={})).json
        async with place.opened(await place.ticket(token=issued["token"])) as socket:
            await echoes(socket, b"x")
            changes = {"right": {"role": "viewer"}, "membership": {"memberships": ["other"]}}
            if loss == "revoked":
                assert (await place.api.call("DELETE", f"/v1/users/ann/tokens/{issued['id']}")).status == 200
            else:
                assert (await place.api.call("PATCH", "/v1/users/ann", json=changes[loss])).status == 200
            async with asyncio.timeout(60):
                message = await socket.receive()
            assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 1008)


async def test_a_ticket_of_a_token_that_was_revoked_since_opens_nothing() -> None:
    async with placed() as place:
        await place.api.user(Role.MEMBER, "acme", name="ann")
        issued = (await place.api.call("POST", "/v1/users/ann/tokens", json={})).json
        ticket = await place.ticket(token=issued["token"])
        await place.api.call("DELETE", f"/v1/users/ann/tokens/{issued['id']}")
        assert await place.refused(ticket) == 401


async def test_who_guesses_tickets_is_slowed_down() -> None:
    async with placed() as place:
        statuses = [await place.refused(f"hstt_{n}") for n in range(30)]
        assert set(statuses) == {401, 429}
        assert statuses[0] == 401
        assert statuses[-1] == 429


async def test_pages_of_other_servers_are_not_let_in() -> None:
    async with placed() as place:
        for origin in ("https://evil.example", "null", "http://127.0.0.1:1", "http://[", ""):
            assert await place.refused(await place.ticket(), Origin=origin) == 403
        async with place.opened(await place.ticket(), Origin=place.api.url) as socket:
            await echoes(socket, b"x")


async def test_no_ticket_is_ever_logged(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("uvicorn").setLevel(logging.DEBUG)
    try:
        async with placed() as place:
            first, second = await place.ticket(), await place.ticket("console")
            async with place.opened(first) as socket:
                await echoes(socket, b"x")
            await place.refused(first)
            await place.refused(second, "ssh")
            await place.api.call("GET", f"{ONE}/console?ticket={second}", token=None)
    finally:
        logging.getLogger("uvicorn").setLevel(logging.NOTSET)
    said = caplog.text.replace("ws_connect", "") + "".join(capfd.readouterr())
    for ticket in (first, second):
        assert ticket not in said


async def test_all_that_the_machine_said_arrives_before_the_end_and_all_that_was_sent_goes_in_first() -> None:
    async with placed() as place:
        heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        last = b"last words" * 100_000

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(last)
            writer.close()

        async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heard.set_result(await reader.read(-1))
            writer.close()

        async with (
            await asyncio.start_server(talk, "127.0.0.1", 0) as talker,
            await asyncio.start_server(listen, "127.0.0.1", 0) as listener,
        ):
            place.doubles.ports[place.vm, ChannelKind.SSH] = talker.sockets[0].getsockname()[1]
            async with place.opened(await place.ticket()) as socket:
                got = b""
                async with asyncio.timeout(60):
                    while (message := await socket.receive()).type is aiohttp.WSMsgType.BINARY:
                        got += message.data
                assert got == last
                assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 1000)
            place.doubles.ports[place.vm, ChannelKind.SSH] = listener.sockets[0].getsockname()[1]
            async with place.opened(await place.ticket()) as socket:
                for _ in range(50):
                    await socket.send_bytes(b"x" * 60_000)
            async with asyncio.timeout(60):
                assert len(await heard) == 3_000_000


async def test_a_machine_that_takes_nothing_holds_its_caller_up_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serve, "PING_EVERY", 0.4)
    async with placed() as place:
        go, heard = asyncio.Event(), asyncio.Event()
        total = 60_000_000

        async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await go.wait()
            size = 0
            while size < total and (data := await reader.read(1 << 20)):
                size += len(data)
            if size == total:
                heard.set()
            writer.close()

        async with await asyncio.start_server(slow, "127.0.0.1", 0) as server:
            place.doubles.ports[place.vm, ChannelKind.SSH] = server.sockets[0].getsockname()[1]
            async with Client(place.api.url, place.api.admin) as client, client.vms.ssh("acme", "web", "one") as door:
                sending = asyncio.create_task(door.write(b"x" * total))
                done, _ = await asyncio.wait((sending,), timeout=1.6)  # four times what an unanswered ping may take
                assert not done, "sixty megabytes went nowhere"
                go.set()
                async with asyncio.timeout(60):
                    await sending
                    await heard.wait()


class DeafChannel(SocketChannel):
    """One whose machine takes nothing."""

    async def write(self, data: bytes) -> None:  # noqa: ARG002
        await asyncio.Event().wait()


@pytest.mark.parametrize("stays", [True, False])
async def test_a_machine_that_takes_nothing_keeps_no_place_for_ever(
    stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "TAKEN_WITHIN", 0.3)
    async with placed() as place:
        place.doubles.channel = lambda vm, door: DeafChannel(place.doubles.ports[vm, door])  # type: ignore[method-assign]
        socket = await place.opened(await place.ticket())
        await socket.send_bytes(b"x")
        if stays:
            async with asyncio.timeout(60):
                ended = await socket.receive()
            assert (ended.data, ended.extra) == (1011, "the machine takes no input")
        else:
            await socket.close()
        await until(lambda: not place.api.app.feed.streams)


async def test_no_more_streams_are_taken_than_there_may_be() -> None:
    async with placed() as place:
        place.api.app.feed.streams = 1000
        ticket = await place.ticket()
        assert await place.refused(ticket) == 503
        place.api.app.feed.streams = 0
        async with place.opened(ticket) as socket:  # it was not used up
            await echoes(socket, b"x")


async def test_doors_count_for_the_account_that_opens_them() -> None:
    async with placed() as place:
        eve = await place.api.user(Role.OPERATOR, "acme", name="eve")
        held = place.api.app.feed.held
        held["eve"] = share(1000, manages=False)
        ticket = await place.ticket(token=eve)
        assert await place.refused(ticket) == 503
        async with place.opened(await place.ticket()) as socket:
            await echoes(socket, b"x")
        held["eve"] -= 1
        async with place.opened(ticket) as socket:  # it was not used up
            await echoes(socket, b"x")
            assert held["eve"] == share(1000, manages=False)
        await until(lambda: held == {"eve": share(1000, manages=False) - 1})


async def test_a_machine_that_is_off_is_told_so() -> None:
    async with placed() as place, Client(place.api.url, place.api.admin) as client:
        del place.doubles.ports[place.vm, ChannelKind.SSH]
        with pytest.raises(NotFound, match="it is off"):
            async with client.vms.ssh("acme", "web", "one"):
                pass


# Machines of other processes


@asynccontextmanager
async def elsewhere(**tls: Path) -> AsyncIterator[tuple[Api, ProcessPeers, RelayApp, DoorMachines, str]]:
    """A server, and beside it an agent's relay that has the machine `one`, as if it were another process."""
    clock = SystemClock()
    doubles = DoorMachines({})
    async with (
        SimulatedMachines(MemoryHost(), clock=clock, rng=random.Random(1)) as simulated,
        echoing() as port,
        serving(sockets=True) as api,
    ):
        vm = await run_machine(api, simulated)
        doubles.ports |= {(vm, door): port for door in ChannelKind}
        numbers = iter(range(1000))
        tickets = PeerTickets(api.store, clock=clock, secret=lambda: f"s{next(numbers)}", by="node:n1")
        relay = RelayApp(tickets, lambda node: doubles if node == "n1" else None)  # type: ignore[arg-type,return-value]
        async with Server(relay, ListenAddress(**tls)) as server:  # type: ignore[arg-type]
            await announce(api, server.url)
            yield api, api.services.peers, relay, doubles, vm  # type: ignore[misc]


async def announce(api: Api, address: str) -> None:
    entry = await MEMBER.get(api.store, node="n1")
    assert entry is not None
    await MEMBER.replace(api.store, entry, msgspec.structs.replace(entry.value, address=address))


async def test_machines_of_other_processes_are_reached_through_their_agents() -> None:
    async with elsewhere() as (api, peers, relay, _, vm):
        async with Client(api.url, api.admin) as client, client.vms.console("acme", "web", "one") as console:
            await console.write(b"hello")
            assert await console.read() == b"hello"
            assert relay.streams == 1
        await until(lambda: not relay.streams)
        for door in (ChannelKind.ARRIVAL_STATE, ChannelKind.ARRIVAL_DISK):
            async with peers.channel("n1", vm, door) as channel:
                await channel.write(b"x" * 500_000)
                got = b""
                while len(got) < 500_000:
                    got += await channel.read()
        assert not (await TICKET.list(api.store)).entries


async def test_a_relay_is_known_by_its_certificate(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subject = ("-subj", "/CN=whoever", "-days", "1", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
    openssl = await asyncio.create_subprocess_exec(
        *("openssl", "req", "-x509", *subject, "-keyout", key, "-out", cert), stderr=asyncio.subprocess.DEVNULL
    )
    assert await openssl.wait() == 0
    async with elsewhere(cert=cert, key=key) as (api, peers, _, _, vm):
        entry = await MEMBER.get(api.store, node="n1")
        assert entry is not None
        url = entry.value.address
        assert url.startswith("https://")
        await announce(api, f"{url}{pin_of(cert)}")
        async with peers.channel("n1", vm, ChannelKind.SSH) as channel:
            await channel.write(b"x")
            assert await channel.read() == b"x"
        for pin in (f"#sha256:{'00' * 32}", "", "#sha256:00"):
            await announce(api, f"{url}{pin}")
            with pytest.raises(Unavailable):
                async with peers.channel("n1", vm, ChannelKind.SSH):
                    pass
        assert not [each for each in (await TICKET.list(api.store)).entries if each.value.token]


async def test_a_machine_that_is_off_or_gone_elsewhere_is_told_so_through_the_relay() -> None:
    async with elsewhere() as (api, peers, _, doubles, vm):
        doubles.ports.clear()
        with pytest.raises(NotFound, match="it is off"):
            async with peers.channel("n1", vm, ChannelKind.SSH):
                pass
        with pytest.raises(NotFound, match="not found"):
            async with peers.channel("n9", vm, ChannelKind.SSH):
                pass
        hasty = ProcessPeers(api.store, peers._tickets, lambda _: None, within=pace.patience(0.2))
        for address, words in (("", "no relay"), ("http://127.0.0.1:1", "cannot be reached"), ("https://x#y", "start")):
            await announce(api, address)
            with pytest.raises(Unavailable, match=words):
                async with hasty.channel("n1", vm, ChannelKind.SSH):
                    pass


async def test_a_connection_waits_until_an_agent_that_was_killed_has_registered_again() -> None:
    async with elsewhere() as (api, peers, _, _, vm):
        entry = await MEMBER.get(api.store, node="n1")
        assert entry is not None
        await announce(api, "http://127.0.0.1:1")  # of the agent that is dead

        async def register() -> None:
            while len((await TICKET.list(api.store)).entries) < 2:  # until the dead address was tried twice
                await asyncio.sleep(0.02)
            await announce(api, entry.value.address)

        registering = asyncio.create_task(register())
        async with peers.channel("n1", vm, ChannelKind.SSH) as channel:
            await channel.write(b"x")
            assert await channel.read() == b"x"
        await registering


async def test_the_relay_lets_only_tickets_for_that_very_door_in() -> None:
    async with elsewhere() as (api, _, relay, _, vm):
        entry = await MEMBER.get(api.store, node="n1")
        assert entry is not None
        url = f"{entry.value.address}/relay/n1/{vm}"
        mine = PeerTickets(api.store, clock=SystemClock(), secret=lambda: "mine", by="x")
        user = (await api.call("POST", f"{ONE}/tickets", json={"door": "ssh"})).json["ticket"]
        for authorization in ("", f"Bearer {api.admin}", "Ticket", "Ticket hstt_none", f"Ticket {user}"):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await api.http.ws_connect(f"{url}/ssh", headers={"Authorization": authorization})
            assert refused.value.status == 401
        for path, status in ((f"{url}/cellar", 404), (f"{entry.value.address}/v1/vms", 404), (f"{url}/ssh/x", 404)):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await api.http.ws_connect(path)
            assert refused.value.status == status
        good = {"Authorization": f"Ticket {await mine.issue('n1', vm, ChannelKind.SSH)}"}
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await api.http.ws_connect(f"{url}/console", headers=good)
        async with api.http.get(f"{url}/ssh", headers=good) as answer:
            assert answer.status == 400
        async with api.http.ws_connect(f"{url}/ssh", headers=good) as socket:
            await echoes(socket, b"x")
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await api.http.ws_connect(f"{url}/ssh", headers=good)
        await until(lambda: not relay.streams)


async def test_a_relay_that_closes_ends_its_streams_and_they_are_told_from_a_machine_that_is_off() -> None:
    async with elsewhere() as (_, peers, relay, _, vm), peers.channel("n1", vm, ChannelKind.CONSOLE) as channel:
        await channel.write(b"x")
        assert await channel.read() == b"x"
        relay.close()
        with pytest.raises(Unavailable):
            await asyncio.wait_for(channel.read(), 60)
        with pytest.raises(HostlerError):
            await _typing(channel)


async def _typing(channel: Channel) -> None:
    for _ in range(100):
        await channel.write(b"y")
        await asyncio.sleep(0.01)

"""What one connection, one account and one address may take of the API, and what the audit log says of refusals."""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest
from api_server import VM_BODY, Api, StoppedClock, run_machine, serving, stop_throttle

from hostler.drivers.machines.simulated import MemoryHost, SimulatedMachines
from hostler.engine.access.rate_limits import BudgetConfig
from hostler.engine.request import Caller
from hostler.engine.tickets import PeerTickets
from hostler.entry.relay import GUESSES, RelayApp
from hostler.entry.server import concurrency_limits, protocol
from hostler.entry.server.serve import Server
from hostler.entry.server.services import ServerConfig
from hostler.keys.families import CLUSTER
from hostler.kit import connections
from hostler.kit.clock import SystemClock
from hostler.kit.connections import ConnectionLimits
from hostler.model.access import Role
from hostler.model.control_api import TracePage
from hostler.model.node import Cluster
from hostler.ports.machines import ChannelKind

VMS = "/v1/orgs/acme/projects/web/vms"
FEW = ConnectionLimits(total=12, per_source=12, unproven=4, unproven_per_source=4, reserve=2)
KEY = base64.b64encode(bytes(16)).decode()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at connections often, and have little patience with them."""
    monkeypatch.setattr(connections, "SWEEP_EVERY", 0.02)
    for name in ("HEAD_WITHIN", "UNREAD_WITHIN", "MESSAGE_WITHIN"):
        monkeypatch.setattr(protocol, name, 0.3)


@asynccontextmanager
async def sending(api: Api, first: str, then: bytes = b"", every: float = 0.05) -> AsyncIterator[asyncio.StreamReader]:
    """A connection that sends `first`, and then something for ever, until the other side ends it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    writer.write(first.encode())

    async def send() -> None:
        with suppress(ConnectionError):
            while then:
                writer.write(then)
                await writer.drain()
                await asyncio.sleep(every)

    task = asyncio.create_task(send())
    try:
        yield reader
    finally:
        task.cancel()
        await asyncio.wait((task,))
        writer.close()


async def ends(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(30):
            while await reader.read(4096):
                pass
    except ConnectionError:
        pass
    return True


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("", b""),
        ("GET / HT", b""),
        ("GET / HTTP/1.1\r\nX: ", b"a"),
        ("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET", b"a"),
    ],
    ids=["nothing", "a part", "byte by byte", "after another request"],
)
async def test_a_head_that_does_not_come_in_time_ends_the_connection(first: str, then: bytes) -> None:
    async with serving(sockets=True) as api, sending(api, first, then) as reader:
        assert await ends(reader)


async def test_an_answer_that_nobody_reads_ends_the_connection_and_an_idle_one_stays() -> None:
    async with serving(sockets=True) as api:
        await api.call("GET", "/healthz")
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port, limit=1024)
        request = f"GET /openapi.json HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.admin}\r\n\r\n".encode()
        writer.write(request * 100)  # more than the buffers of the system hold
        accepting = api.server.connections
        assert accepting is not None
        await until(lambda: accepting.counts.accepted == 2 and len(accepting) == 1)
        assert accepting.counts.late == 1
        assert (await api.call("GET", "/healthz")).status == 200
        assert accepting.counts.accepted == 2, "the idle connection was used again"
        writer.close()
        _ = reader


async def test_a_connection_that_is_idle_for_long_is_closed_and_not_counted_as_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hostler.entry.server.serve.KEEP_ALIVE", 0.3)
    request = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    async with (
        serving(sockets=True) as api,
        sending(api, request) as idle,
        sending(api, request, request.encode()) as busy,
    ):
        assert await ends(idle)
        assert not busy.at_eof()
        assert api.server.connections is not None
        assert api.server.connections.counts.late == 0


async def test_of_pipelined_requests_some_are_answered_and_the_last_closes_the_connection() -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    async with serving(sockets=True) as api:
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
        writer.write(request * 3000)
        async with asyncio.timeout(30):
            answers = (await reader.read()).split(b"HTTP/1.1 ")[1:]
        writer.close()
        assert [answer[:3] for answer in answers] == [b"200"] * (protocol.MAX_PIPELINED + 1)
        assert [b"connection: close" in answer for answer in answers] == [False] * protocol.MAX_PIPELINED + [True]
        assert (await api.call("GET", "/healthz")).status == 200


async def test_slow_bodies_without_credentials_keep_nobody_out() -> None:
    slow = "POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
    async with serving() as api, Server(_Shared(api.app), limits=FEW) as server:
        api.url = server.url
        peers = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(30)]
        for _, writer in peers:
            writer.write(slow.encode())
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        async with asyncio.timeout(30):
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
        for _, each in (*peers, (reader, writer)):
            each.close()


class _Shared:
    """The app of a server that is there already."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def start(self) -> None:
        """It was started."""

    def close(self) -> None:
        """Others close it."""

    async def aclose(self) -> None:
        """Others close it."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)


async def test_accounts_that_hold_all_places_leave_some_to_administrators() -> None:
    async with serving() as api:
        member = await api.user(Role.MEMBER, "acme/web")
        async with Server(_Shared(api.app), limits=FEW) as server:
            url = server.port

            async def stream(token: str) -> tuple[bytes, asyncio.StreamWriter]:
                reader, writer = await asyncio.open_connection("127.0.0.1", url)
                request = f"GET /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
                writer.write(request.encode())
                async with asyncio.timeout(30):
                    return (await reader.readline())[9:12], writer

            taken = [await stream(member) for _ in range(7)]
            assert [status for status, _ in taken] == [b"200"] * 6 + [b"503"]
            last, writer = await stream(api.admin)
            assert last == b"200"
            for _, each in (*taken, (last, writer)):
                each.close()


async def test_administrators_of_some_orgs_do_not_take_the_places_in_reserve() -> None:
    async with serving() as api:
        chief = await api.user(Role.ADMIN, "acme")
        async with Server(_Shared(api.app), limits=FEW) as server:

            async def stream(token: str) -> tuple[bytes, asyncio.StreamWriter]:
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(f"GET /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
                async with asyncio.timeout(30):
                    return (await reader.readline())[9:12], writer

            taken = [await stream(chief) for _ in range(8)]
            last = await stream(api.admin)
            for _, each in (*taken, last):
                each.close()
            assert [status for status, _ in taken] == [b"200"] * 6 + [b"503"] * 2
            assert last[0] == b"200"


async def test_administrators_of_some_orgs_leave_streams_to_those_of_all() -> None:
    async with serving(plan=ServerConfig(max_streams=10)) as api:
        chiefs = [await api.user(Role.ADMIN, "acme") for _ in range(3)]
        async with AsyncExitStack() as stack:

            async def follow(token: str) -> int:
                stream = api.stream("GET", "/v1/events", [("Authorization", f"Bearer {token}")])
                return (await stack.enter_async_context(stream)).status

            assert [await follow(chief) for chief in chiefs for _ in range(5)].count(200) == 9
            assert await follow(api.admin) == 200


async def test_a_message_that_never_ends_ends_the_stream_and_a_silent_stream_stays() -> None:
    async with (
        SimulatedMachines(MemoryHost(), clock=SystemClock(), rng=random.Random(1)) as machines,
        serving(machines_of={"n1": machines}.get, sockets=True) as api,
    ):
        await run_machine(api, machines)
        head = (
            f"GET {VMS}/one/console HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.admin}\r\nConnection: Upgrade\r\n"
            f"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n\r\n"
        )
        async with sending(api, head) as silent:
            await silent.readuntil(b"\r\n\r\n")
            frame = "\x02\x7f" + "\x00" * 5 + "\x01\x00\x00"  # not the end of a message of 64 KiB
            async with sending(api, head + frame, b"a") as slow:
                assert await ends(slow)
            await until(lambda: api.app.feed.streams == 1)


# Budgets


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    budget = BudgetConfig(write_rate=0.01, write_burst=5, request_rate=0.01, request_burst=20)
    async with serving(plan=ServerConfig(budget=budget)) as api:
        yield api


async def test_an_account_without_rights_cannot_fill_the_store_and_can_be_disabled(api: Api) -> None:
    viewer = await api.user(Role.VIEWER)
    keys = len((await api.store.range("/hostler/v1/audit/")).items)
    answers = await asyncio.gather(*(api.call("POST", "/v1/sessions/tickets", token=viewer) for _ in range(15)))
    assert sorted(answer.status for answer in answers) == [201] * 5 + [429] * 10
    refused = next(answer for answer in answers if answer.status == 429)
    assert int(refused.headers["Retry-After"]) == 100
    assert refused.json["type"] == "about:hostler/too-many-requests"
    assert "5 at once" in refused.json["detail"]
    assert "write_rate" in refused.json["next"]
    assert (await api.call("GET", "/v1/sessions", token=viewer)).status == 200, "it may still read"
    assert len((await api.store.range("/hostler/v1/audit/")).items) == keys, "tickets that are not used are not audited"
    done = await api.call("PATCH", "/v1/users/viewer-1", json={"enabled": False})
    assert done.status == 200


async def test_sessions_that_a_token_begins_are_writes_of_its_account(api: Api) -> None:
    viewer = await api.user(Role.VIEWER)

    async def sign_in(token: str) -> int:
        return (await api.call("POST", "/v1/sessions/browser", token=None, json={"token": token})).status

    assert [await sign_in(viewer) for _ in range(8)] == [201] * 5 + [429] * 3
    assert [await sign_in(api.admin) for _ in range(8)] == [201] * 8


async def test_doors_of_machines_are_writes_because_each_is_audited(api: Api) -> None:
    member = await api.user(Role.MEMBER, "acme/web")
    assert (await api.call("POST", VMS, json=VM_BODY)).status == 201
    doors = [(await api.call("GET", f"{VMS}/one/{door}", token=member)).status for door in ("console", "shell", "log")]
    assert doors == [400, 400, 200]
    assert [(await api.call("GET", f"{VMS}/one/ssh", token=member)).status for _ in range(3)] == [400, 400, 429]
    assert (await api.call("GET", f"{VMS}/one/log", token=member)).status == 429, "its node is asked by a ticket"
    assert (await api.call("GET", f"{VMS}/one", token=member)).status == 200


async def test_requests_of_an_account_have_a_budget_and_those_of_an_administrator_none(api: Api) -> None:
    member = await api.user(Role.MEMBER, "acme/web")
    found = [(await api.call("GET", "/v1/sessions", token=member)).status for _ in range(25)]
    assert found == [200] * 20 + [429] * 5
    assert [(await api.call("GET", "/v1/sessions")).status for _ in range(50)] == [200] * 50
    for number in range(10):
        assert (await api.call("POST", VMS, json={**VM_BODY, "name": f"vm-{number}"})).status == 201


async def test_an_administrator_of_one_org_can_disable_an_account_after_the_other_writes(api: Api) -> None:
    chief = await api.user(Role.ADMIN, "acme")
    await api.user(Role.MEMBER, "acme/web")
    created = [
        (await api.call("POST", VMS, json={**VM_BODY, "name": f"vm-{number}"}, token=chief)).status
        for number in range(6)
    ]
    assert created == [201] * 5 + [429]
    done = await api.call("PATCH", "/v1/users/member-2", json={"enabled": False}, token=chief)
    assert done.status == 200


async def test_long_reads_of_an_account_wait_for_each_other_and_those_of_administrators_for_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(concurrency_limits, "WITHIN", 0.05)
    under_way: list[str] = []
    most: list[list[str]] = []
    go_on = asyncio.Event()

    async def read(caller: Caller, **_: Any) -> TracePage:
        under_way.append(caller.name)
        most.append(list(under_way))
        await go_on.wait()
        under_way.remove(caller.name)
        return TracePage(items=())

    async with serving() as api:
        monkeypatch.setattr(api.services.traces, "list", read)
        ada, bob, eve = [await api.user(Role.VIEWER, name=name) for name in ("ada", "bob", "eve")]
        asked = [asyncio.create_task(api.call("GET", "/v1/decisions", token=token)) for token in (ada, ada, bob, eve)]
        await until(lambda: sum(task.done() for task in asked) == 2)
        chief = asyncio.create_task(api.call("GET", "/v1/decisions"))
        await until(lambda: "admin" in under_way)
        assert sorted(under_way) == ["ada", "admin", "bob"]
        go_on.set()
        assert (await chief).status == 200
        assert [(await task).status for task in asked] == [200, 503, 200, 503]
        assert (await api.call("GET", "/v1/decisions", token=eve)).status == 200


async def test_requests_without_an_account_have_a_budget_by_address() -> None:
    plan = ServerConfig(budget=BudgetConfig(address_rate=0.01, address_burst=5), trusted_proxies=("127.0.0.0/8",))
    async with serving(plan=plan) as api:

        async def got(path: str, source: str, token: str | None = None) -> int:
            return (await api.call("GET", path, token=token, X_Forwarded_For=source)).status

        assert [await got("/healthz", "192.0.2.1") for _ in range(7)] == [200] * 5 + [429] * 2
        assert [await got("/v1/sessions", "192.0.2.2") for _ in range(7)] == [401] * 5 + [429] * 2
        assert await got("/healthz", "192.0.2.3") == 200
        assert [await got("/no/such/path", "192.0.2.4") for _ in range(7)] == [404] * 5 + [429] * 2
        assert [await got("/healthz?x=1", "192.0.2.5") for _ in range(7)] == [400] * 5 + [429] * 2
        assert await got("/v1/sessions", "192.0.2.1", api.admin) == 200, "who has an account is not concerned"


# The audit log


async def test_refused_requests_are_audited_by_account_address_and_kind() -> None:
    async with serving() as api:
        viewer = await api.user(Role.VIEWER, "acme/web")
        for _ in range(3):
            await api.call("POST", VMS, json=VM_BODY, token=viewer)
            await api.call("POST", "/v1/sessions", token=None, json={"name": "Viewer-1", "password": "wrong"})
            await api.call("POST", "/v1/sessions", token=None, json={"name": "my password", "password": "ada"})
            await api.call("GET", "/v1/vms", token="hst_wrong")
        await api.app.refusals.flush()
        lines = (await api.call("GET", "/v1/audit?verb=refused.")).json["items"]
        found = {(line["verb"], line["who"]): line for line in lines}
        assert len(lines) == len(found)
        counts = {key: line["count"] for key, line in found.items()}
        assert counts == {
            ("refused.right", "viewer-1"): 3,
            ("refused.sign-in", "viewer-1"): 3,
            ("refused.sign-in", ""): 3,
            ("refused.credential", ""): 3,
        }
        assert found["refused.right", "viewer-1"]["name"] == "vm.create"
        assert found["refused.right", "viewer-1"]["subject"].endswith("/viewer-1")
        assert {line["source"] for line in lines} == {"127.0.0.1"}
        assert "my password" not in str(lines), "what no account is called is not written"


# The relay


async def test_guesses_of_tickets_at_a_relay_are_slowed_and_the_store_is_asked_no_more() -> None:
    reads = 0
    async with serving() as api:
        store = api.store
        tickets = PeerTickets(store, clock=SystemClock(), secret=lambda: "s" * 43, by="node:n1")
        found = tickets.redeem

        async def redeem(*arguments: Any) -> Any:
            nonlocal reads
            reads += 1
            return await found(*arguments)

        tickets.redeem = redeem  # type: ignore[method-assign]
        async with Server(RelayApp(tickets, lambda _: None, clock=StoppedClock())) as server:
            statuses = [await _upgrade(server.port, f"hstt_{number}") for number in range(GUESSES + 10)]
    assert statuses == [401] * GUESSES + [429] * 10
    assert reads == GUESSES


async def test_guesses_do_not_lock_out_who_shows_a_real_ticket_from_the_same_address() -> None:
    async with serving() as api:
        await CLUSTER.create(api.store, Cluster(id="of-the-cluster", created_at=0.0))
        ours = PeerTickets(api.store, clock=SystemClock(), secret=lambda: "s" * 43, by="replica")
        theirs = PeerTickets(api.store, clock=SystemClock(), secret=lambda: "t" * 43, by="node:n1")
        stop_throttle(api)
        async with Server(RelayApp(theirs, lambda _: None, clock=StoppedClock())) as server:
            statuses = [await _upgrade(server.port, f"hstt_{'x' * 43}.{number:016}") for number in range(GUESSES + 2)]
            assert statuses == [401] * GUESSES + [429] * 2
            ticket = await ours.issue("n1", "v", ChannelKind.SSH)
            assert await _upgrade(server.port, ticket) == 503, "it was taken; the node is not there"
            assert await _upgrade(server.port, ticket) == 401, "it counts once"
            assert await _upgrade(server.port, "hstt_more") == 429
        issued = await api.call("POST", "/v1/sessions/tickets")
        for _ in range(30):
            await api.call("GET", "/v1/vms", token="hst_wrong")
        wrong = await api.call("POST", "/v1/sessions/browser", token=None, json={"ticket": "hstt_wrong"})
        assert wrong.status == 429
        strange = {"ticket": "hstt_x." + "é" * 16}
        assert (await api.call("POST", "/v1/sessions/browser", token=None, json=strange)).status == 429
        body = {"ticket": issued.json["ticket"]}
        assert (await api.call("POST", "/v1/sessions/browser", token=None, json=body)).status == 201


async def _upgrade(port: int, ticket: str) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        f"GET /relay/n1/v/ssh HTTP/1.1\r\nHost: x\r\nAuthorization: Ticket {ticket}\r\nConnection: Upgrade\r\n"
        f"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n\r\n".encode()
    )
    async with asyncio.timeout(30):
        status = int((await reader.readline())[9:12])
    writer.close()
    return status


def test_the_plan_has_the_defaults_of_the_settings() -> None:
    from hostler.entry.control_plane import budget_of
    from hostler.settings import load

    settings = load({}, {}, toml="")
    assert msgspec.structs.asdict(budget_of(settings)) == msgspec.structs.asdict(BudgetConfig())

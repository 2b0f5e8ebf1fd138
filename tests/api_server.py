"""The API with real services on a real store, without controllers or agents: what it is told stays as it is.

Requests go to the ASGI app in this process. Tests of what is between a caller and the app (framing, TLS, connections
that end, WebSockets, clients) ask for a server: `serving(sockets=True)` or `await api.listen()`; from then on all
requests go through it. `test_api_serving.py` compares the two.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import secrets
import shutil
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import aiohttp
import msgspec
from multidict import CIMultiDict
from yarl import URL

import hostler
from hostler.drivers.artifacts.folder import FolderArtifacts
from hostler.drivers.calling.connection_pool import TcpConnectionPool
from hostler.engine.control_plane import ControlPlane, ControlPlaneConfig, Ports
from hostler.engine.invocation.endpoints import Why
from hostler.engine.invocation.router import Router
from hostler.engine.invocation.service import InvokeService
from hostler.engine.request import HOSTLER, Request
from hostler.engine.runtime.env import Env
from hostler.engine.tickets import PeerTickets
from hostler.entry.relay import ProcessPeers
from hostler.entry.server.app import App, build
from hostler.entry.server.serve import Server
from hostler.entry.server.services import ServerConfig, Services
from hostler.keys.families import ALIVE, COMMAND, HANDLE, MEMBER
from hostler.keys.lab import LAB
from hostler.kit.clock import SystemClock
from hostler.model.access import Role
from hostler.model.access_api import TokenCreate, UserCreate
from hostler.model.inventory import Capacity
from hostler.model.lab import Lab, LabCatalogue, LabEvent, LabNews, LabPhase, LabUser
from hostler.model.node import Heartbeat, Lifecycle, NodeRecord, VmCommand
from hostler.model.vm import MachineState, VmHandle, VmSpec
from hostler.ports.machines import Label, MachinePlan

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from hostler.ports.machines import Machines
    from hostler.ports.slices import Artifacts
    from hostler.ports.store import Store

VM_BODY = {"name": "one", "spec": {"cpus": 1, "memory_mib": 64}}


class PlainHasher:
    """Passwords as they are: quick, and good enough for tests of the door."""

    async def hash(self, password: str) -> str:
        return f"plain:{password}"

    async def verify(self, kept: str, password: str) -> bool:
        return kept == f"plain:{password}"

    async def aclose(self) -> None:
        return


class Reply(msgspec.Struct):
    """An answer, read whole."""

    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class StreamedReply:
    """An answer that has begun; `content` is read as it comes."""

    def __init__(self, status: int, headers: Any, content: Any) -> None:
        self.status, self.headers, self.content = status, headers, content

    async def read(self) -> bytes:
        """The whole body."""
        return bytes(await self.content.read())


class _Exchange:
    """One request to an ASGI app in this process, in a task of its own, as a server has it."""

    def __init__(
        self, app: App, at: URL, method: str, target: str, *, headers: Sequence[tuple[str, str]], data: bytes | None
    ) -> None:
        sent = [(name.lower().encode("latin-1"), _header(value)) for name, value in headers]
        names = {name for name, _ in sent}
        if b"host" not in names:
            sent.insert(0, (b"host", at.authority.encode()))
        if data is not None and b"transfer-encoding" not in names:
            sent.append((b"content-length", b"%d" % len(data)))
        path, _, query = target.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "server": (at.host, at.port),
            "client": ("127.0.0.1", 50000),
            "scheme": at.scheme,
            "root_path": "",
            "method": method,
            "path": unquote(path) if "%" in path else path,
            "raw_path": path.encode("ascii"),
            "query_string": query.encode("ascii"),
            "headers": sent,
            "state": {},
        }
        self._data: bytes | None = data or b""
        self._bodiless = method == "HEAD"
        self._gone = asyncio.Event()
        self.answer: asyncio.Future[tuple[int, Any]] = asyncio.get_running_loop().create_future()
        self.content = asyncio.StreamReader(limit=2**26)
        self._task = asyncio.create_task(app(scope, self._receive, self._send), name=f"request {method} {path[:80]}")
        self._task.add_done_callback(self._ended)

    async def leave(self) -> None:
        """The caller is gone: tell the app, and wait until it has noticed."""
        self._gone.set()
        await asyncio.wait((self._task,))
        self._task.result()

    async def _receive(self) -> dict[str, Any]:
        if self._data is not None:
            data, self._data = self._data, None
            return {"type": "http.request", "body": data, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if self._gone.is_set():
            return
        if message["type"] == "http.response.start":
            headers = CIMultiDict(
                (name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"]
            )
            self.answer.set_result((message["status"], headers))
            return
        if not self._bodiless and message.get("body"):
            self.content.feed_data(message["body"])
        if not message.get("more_body"):
            self.content.feed_eof()
            self._gone.set()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not self.answer.done():
            failed = None if task.cancelled() else task.exception()
            self.answer.set_exception(failed or ConnectionError("the app ended without an answer"))
        elif not self.content.at_eof():
            self.content.feed_eof()


def _header(value: str) -> bytes:
    return value.lstrip(" \t").encode()  # as the parser of the server has it


class Api:
    """The app, and a caller that shows everything. `url` is where a server serves it, or would."""

    def __init__(self, app: App, services: Services, stack: AsyncExitStack) -> None:
        self.app, self.services, self._stack = app, services, stack
        self.store: Store = services.store
        self.url = "http://127.0.0.1:1"  # where nothing listens
        self.admin = ""
        self._names = itertools.count(1)
        self._server: Server | None = None
        self._http: aiohttp.ClientSession | None = None
        self._opened: list[aiohttp.ClientWebSocketResponse] = []

    async def listen(self) -> None:
        """Serve on a socket from now on; all requests go through it."""
        if self._server is not None:
            return
        server = await self._stack.enter_async_context(Server(Started(self.app)))
        connector = aiohttp.TCPConnector(limit=0)
        self._http = await self._stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        self._server, self.url = server, server.url

    @property
    def server(self) -> Server:
        assert self._server is not None, "it serves in this process only: sockets=True, or await api.listen()"
        return self._server

    @property
    def http(self) -> aiohttp.ClientSession:
        assert self._http is not None, "it serves in this process only: sockets=True, or await api.listen()"
        return self._http

    async def open_websocket(self, path: str, headers: dict[str, str] | None = None) -> aiohttp.ClientWebSocketResponse:
        """Open a WebSocket that lasts until it is closed or the session ends.

        Garbage collection would close one that a test drops, with an error in the log.
        """
        self._opened.append(await self.http.ws_connect(self.url + path, headers=headers))
        return self._opened[-1]

    @property
    def port(self) -> int:
        return URL(self.url).port or 0

    async def call(
        self, method: str, path: str, *, token: str | None = "", json: Any = None, data: Any = None, **headers: str
    ) -> Reply:
        """One request. `token=""`: the admin's; None: none."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent.setdefault("Authorization", f"Bearer {token or self.admin}")
        if json is not None:
            data, sent = msgspec.json.encode(json), {"Content-Type": "application/json", **sent}
        async with self.stream(method, path, list(sent.items()), data) as answer:
            return Reply(answer.status, answer.headers, await answer.read())

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, headers: Sequence[tuple[str, str]] = (), data: Any = None
    ) -> AsyncIterator[StreamedReply]:
        """An answer to be read as it comes; it is left at the end of the block. Headers as they are, none added."""
        if self._http is not None:
            url = URL(self.url + path, encoded=True)
            endless = aiohttp.ClientTimeout(total=None)
            async with self._http.request(
                method, url, data=data, headers=CIMultiDict(headers), allow_redirects=False, timeout=endless
            ) as answer:
                yield StreamedReply(answer.status, answer.headers, answer.content)
                return
        exchange = _Exchange(self.app, URL(self.url), method, path, headers=headers, data=data)
        try:
            status, answered = await exchange.answer
            yield StreamedReply(status, answered, exchange.content)
        finally:
            await exchange.leave()

    async def user(self, role: Role, *memberships: str, name: str | None = None) -> str:
        """A new account's token."""
        name = name or f"{role.value}-{next(self._names)}"
        await self.services.users.create(
            Request(HOSTLER), UserCreate(name=name, role=role, password="password", memberships=memberships)
        )
        return (await self.services.users.issue(Request(HOSTLER), name, TokenCreate())).value.token

    async def node(self, name: str, *, alive: bool = True, lifecycle: Lifecycle = Lifecycle.ON_DUTY) -> None:
        """A node in the store, with nothing behind it."""
        capacity = Capacity(cpus=64, memory_mib=65536, disk_gib=1000)
        record = NodeRecord(node=name, lifecycle=lifecycle, capacity=capacity, registered_at=0.0)
        await self.store.txn([], [MEMBER.put(record, node=name)])
        if alive:
            await self.store.txn([], [ALIVE.put(Heartbeat(holder="test", started_at=0.0), node=name)])
        await self.services.view.refresh(self.services.view.members, self.services.view.alive)

    async def lab(self, user: str, lab_id: int = 5, phase: LabPhase = LabPhase.RUNNING, vm: str = "vm1") -> None:
        """A user's lab in the store, with nothing behind it."""
        wall = SystemClock().wall()
        lab = Lab(lab_id=lab_id, generation=1, phase=phase, requested_at=wall, life=1800.0, user="student")
        if phase is not LabPhase.WAITING:
            lab = msgspec.structs.replace(lab, vm=vm, expires_at=wall + 1800.0, machine_runs=True, available=True)
        news = (LabNews(number=1, at=wall, event=LabEvent.REQUESTED, lab_id=lab_id),)
        record = LabUser(user=user, generation=1, lab=lab, news=news, changed_at=wall)
        await self.store.txn([], [LAB.put(record, user=user)])
        await self.services.view.refresh(self.services.view.labs)


class StoppedClock(SystemClock):
    """A clock that stands still, for what counts within a second: a busy machine may need longer."""

    def __init__(self) -> None:
        self._now = super().now()

    def now(self) -> float:
        return self._now


def stop_throttle(api: Api) -> None:
    """Let the waits after wrong passwords, tokens and tickets never end."""
    door, clock = api.services.users._door, StoppedClock()
    for throttle in (door._by_account, door._by_source, door._by_token):
        throttle._clock = clock


async def run_machine(api: Api, machines: Machines, org: str = "acme", project: str = "web") -> str:
    """The id of the project's machine `one`, which runs on node n1, as far as the store and the driver say."""
    made = (await api.call("POST", f"/v1/orgs/{org}/projects/{project}/vms", json=VM_BODY)).json
    await api.node("n1")
    label = Label(org, project, made["id"])
    spec = VmSpec(cpus=1, memory_mib=64)
    await machines.create(MachinePlan(label=label, spec=spec))
    await machines.start(made["id"])
    async with asyncio.timeout(60):
        while (seen := await machines.inspect(made["id"])) is None or seen.state is not MachineState.RUNNING:
            await asyncio.sleep(0.01)
    handle = VmHandle(id=made["id"], node="n1", state=MachineState.RUNNING, generation=1, seen_at=0.0)
    command = VmCommand(org=org, project=project, vm=made["id"], spec=spec)
    await api.store.txn(
        [],
        [HANDLE.put(handle, org=org, project=project, vm=made["id"]), COMMAND.put(command, node="n1", vm=made["id"])],
    )
    return str(made["id"])


def control_plane_on(store: Store, artifacts: Artifacts, catalogue: LabCatalogue | None) -> ControlPlane:
    """The control plane of a process, without anything around it."""
    env = Env(SystemClock(), random.Random(1), _new_id, secrets.token_urlsafe)
    ports = Ports(artifacts=artifacts, hasher=PlainHasher())
    graph = ControlPlane(store, env, ports, ControlPlaneConfig(catalogue=catalogue))
    graph.holder = _new_id()
    return graph


def _nowhere() -> Path:
    """A folder that is not there, and is made when something is published."""
    return Path(tempfile.gettempdir()) / f"hostler-artifacts-{secrets.token_hex(8)}"


def _new_id() -> str:
    return secrets.token_hex(8)


@asynccontextmanager
async def api_on(
    store: Store, plan: ServerConfig | None = None, *, sockets: bool = False, **more: Any
) -> AsyncIterator[Api]:
    """The API on an open store; `sockets`: behind a server."""
    async with AsyncExitStack() as stack:
        nowhere = _nowhere()
        stack.callback(shutil.rmtree, nowhere, ignore_errors=True)
        graph = control_plane_on(store, more.pop("artifacts", FolderArtifacts(nowhere)), more.pop("catalogue", None))
        following = asyncio.create_task(graph.view.run(), name="view")
        stack.push_async_callback(_ended, following)
        await graph.view.ready()
        if "calls" not in more:
            lines = TcpConnectionPool(secrets.token_urlsafe())
            stack.push_async_callback(lines.aclose)
            router = Router(store, lines, clock=SystemClock(), rng=random.Random(1), why=Why(store, graph.view))
            stack.push_async_callback(_ended, asyncio.create_task(router.run(), name="router"))
            more["calls"] = InvokeService(router, graph.view)
        tickets = PeerTickets(store, clock=graph.env.clock, secret=secrets.token_urlsafe, by="replica")
        peers = ProcessPeers(store, tickets, more.pop("machines_of", lambda _: None))
        services = Services.of(graph, peers=peers, **more)
        app = build(services, plan)
        await app.start()
        stack.push_async_callback(app.aclose)
        api = Api(app, services, stack)
        if sockets:
            await api.listen()
        api.admin = await services.users.first_admin() or ""
        while app.feed.floor is None:
            await asyncio.sleep(0.001)
        yield api


class Started:
    """An app that was started before its server."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.close, self.aclose = app.close, app.aclose

    async def start(self) -> None:
        """Nothing is left to do."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)


@asynccontextmanager
async def serving(url: str = "memory://", plan: ServerConfig | None = None, **more: Any) -> AsyncIterator[Api]:
    """The API on a store of its own."""
    async with hostler.open_store(url) as store, api_on(store, plan, **more) as api:
        yield api


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait((task,))

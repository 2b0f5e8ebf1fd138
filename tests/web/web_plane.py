"""Control planes that the page is shown by: real processes, or a server in the test's own loop where that is enough."""

from __future__ import annotations

import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
from api_server import Api, Reply, serving
from harness import pace
from up_process import HostlerProcess, token_told

from hostler.testing.servers import EtcdServer

PASSWORD = "correct horse"
TTL = 3
"""Of leaderships and nodes, where the end of one is waited for."""
NODE_TIMES = ("--node-ttl", TTL, "--fencing-time", 2 * TTL)
START = 10.0
"""Seconds that a process may take to start on a quiet machine, where it takes less than one."""


class Plane:
    """One server, its administrator's token, and what tests do with it."""

    def __init__(self, url: str, admin: str, http: aiohttp.ClientSession) -> None:
        self.url, self.admin, self._http = url, admin, http
        self.processes: list[HostlerProcess] = []
        """Servers first; agents after them."""
        self.data: Path | None = None
        self.api: Api | None = None
        """Where the server is in the test's own process: its store, and what else it has."""
        self.others: list[str] = []
        """Addresses of further replicas."""
        self._command: tuple[object, ...] = ()

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc

    @property
    def process(self) -> HostlerProcess:
        return self.processes[0]

    @property
    def environ(self) -> dict[str, str]:
        """With which a command finds it: `await well("vm", "list", **plane.environ)`."""
        return {"HOSTLER_SERVER": self.url, "HOSTLER_TOKEN": self.admin}

    async def ask(self, method: str, path: str, json: Any = None, *, token: str = "", **headers: str) -> Reply:
        """One request to the API, as the administrator unless told otherwise."""
        sent = {"Authorization": f"Bearer {token or self.admin}"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        data = None
        if json is not None:
            data, sent["Content-Type"] = msgspec.json.encode(json), "application/json"
        async with self._http.request(method, self.url + path, data=data, headers=sent) as answer:
            return Reply(answer.status, answer.headers, await answer.read())

    async def call(self, method: str, path: str, json: Any = None, **options: Any) -> Any:
        """The answer of a request that must succeed."""
        reply = await self.ask(method, path, json, **options)
        assert reply.status < 300, f"{method} {path}: {reply.status} {reply.body!r}"
        return reply.json if reply.body else None

    async def user(self, name: str, role: str = "member", *memberships: str, **more: Any) -> str:
        """A new account with the usual password; its name."""
        body = {"name": name, "password": PASSWORD, "role": role, "memberships": memberships, **more}
        await self.call("POST", "/v1/users", body)
        return name

    async def token(self, name: str) -> str:
        """A new API token of this account."""
        return str((await self.call("POST", f"/v1/users/{name}/tokens", {}))["token"])

    def suspend(self) -> None:
        """The server hangs: it is there, and answers nothing."""
        self.process.suspend()

    def proceed(self) -> None:
        self.process.resume()

    async def restart(self) -> None:
        """Kill the server, and start it again on the same data and port."""
        self.process.kill()
        self.processes[0] = HostlerProcess(*self._command, folder=self.process.log.parent)
        await serving_at(self.process)


async def serving_at(process: HostlerProcess, word: str = "ready") -> str:
    """Where it serves, once it does."""
    await process.says(f"{word} http", pace.patience(START))
    return (await process.url(word)).rstrip("/")


class Planes:
    """Makes planes, and ends them."""

    def __init__(self, folder: Path, stack: AsyncExitStack, http: aiohttp.ClientSession, hosts: set[str]) -> None:
        self._folder, self._stack, self._http, self._hosts = folder, stack, http, hosts
        self._begun_so_far = 0

    async def cheap(self, **more: Any) -> Plane:
        """A server in this very loop, without controllers or agents: what it is told stays as it is."""
        api = await self._stack.enter_async_context(serving(sockets=True, **more))
        plane = Plane(api.url, api.admin, self._http)
        plane.api = api
        self._hosts.add(plane.host)
        return plane

    def known(self, url: str, admin: str) -> Plane:
        """A server that the test has started itself, and ends."""
        plane = Plane(url.rstrip("/"), admin, self._http)
        self._hosts.add(plane.host)
        return plane

    async def up(self, *options: object, nodes: int = 2, machines: str = "simulated", labs: str = "") -> Plane:
        """`hostler up`; `labs`: the text of a labs.toml."""
        more: tuple[object, ...] = ("--nodes", nodes, "--machines", machines, *options)
        if labs:
            (self._folder / "labs.toml").write_text(labs)
            more += ("--labs", self._folder / "labs.toml")
        return await self._begun("up", *more)

    async def simulated(self, scenario: str, *options: object) -> Plane:
        """`hostler sim serve`; the text of a scenario, or the name of one that Hostler brings along."""
        if "\n" in scenario:
            file = self._folder / "scenario.yaml"
            file.write_text(scenario)
            scenario = str(file)
        return await self._begun("sim", "serve", scenario, *options)

    async def replicated(self, replicas: int = 2, nodes: int = 2, *, prefix: str = "n") -> Plane:
        """Several replicas and some agents on one etcd: `n1`, `n2`, …, or with another prefix."""
        etcd = self._stack.enter_context(EtcdServer())
        plane = Plane("", "", self._http)
        for number in range(replicas):
            data = ("--data", self._folder / f"replica-{number}", "--leadership-ttl", TTL, *NODE_TIMES)
            self._start(plane, "replica", "--store", etcd.url, "--listen", "127.0.0.1:0", *data)
            if number == replicas - 1:  # agents need the store only, and come up beside the last one
                self._agents(plane, etcd.url, nodes, prefix)
            if number == 0:
                told = "the administrator's token is kept in "
                await plane.process.says(told, pace.patience(START))
                plane.url = await serving_at(plane.process, "serving")
                plane.admin = token_told(plane.process.text)
                await plane.process.says("leading with fence", pace.patience(START))  # and none of the others
        plane.others = [await serving_at(process, "serving") for process in plane.processes[1:replicas]]
        self._hosts.update(urlsplit(url).netloc for url in (plane.url, *plane.others))
        return plane

    def _agents(self, plane: Plane, store: str, nodes: int, prefix: str) -> None:
        for number in range(1, nodes + 1):
            self._start(
                *(plane, "agent", "--node", f"{prefix}{number}", "--store", store),
                *("--data", self._folder / f"agent-{number}", *NODE_TIMES),
            )

    async def _begun(self, *arguments: object) -> Plane:
        plane = Plane("", "", self._http)
        self._begun_so_far += 1
        plane.data = self._folder / f"plane-{self._begun_so_far}"
        command = (*arguments, "--data", plane.data, "--listen")
        self._start(plane, *command, "127.0.0.1:0")
        plane.url = await serving_at(plane.process)
        plane._command = (*command, plane.host)  # the same port again
        plane.admin = (plane.data / "admin.token").read_text().strip()
        self._hosts.add(plane.host)
        return plane

    def _start(self, plane: Plane, *arguments: object) -> None:
        process = HostlerProcess(*arguments, folder=self._folder)
        plane.processes.append(process)
        if len(plane.processes) == 1:
            self._stack.callback(_ended, plane)


def _ended(plane: Plane) -> None:
    for process in plane.processes:
        process.signal(signal.SIGCONT)
        process.signal(signal.SIGTERM)
    for process in plane.processes:
        process.kill()

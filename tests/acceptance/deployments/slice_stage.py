"""Slices for real: `hostler up`, or replicas and agents on an etcd, as processes; artifacts; and a constant load."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from harness import pace
from harness.artefacts import safe
from up_process import HostlerProcess, token_told

from hostler import Client
from hostler.errors import HostlerError
from hostler.model.deployment import Blueprint, SliceSpec
from hostler.model.node import Lifecycle
from hostler.wiring import pack_artifact

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostler.model.blueprint_api import BlueprintStatus
    from hostler.model.slice_api import EndpointView, SliceView
    from hostler.testing.servers import EtcdServer

GROUP = "org.example"
BASE = f"{GROUP}:probe"
SETTLED = 30.0
"""Seconds in which a blueprint is as it was wished for; waits are longer where the machine is slow."""
TIMES = ("--node-ttl", 6, "--fencing-time", 12)
PROBE = '''
"""Says who it is."""

import asyncio
import os
import time

from hostler.slices import context, method

VERSION = "{version}"


@method(idempotent=True)
async def who(pause: float = 0.0) -> dict:
    here, at = context(), time.monotonic()
    if pause:
        await asyncio.sleep(pause)
    worker = os.environ["SLICE_RUN"]
    return {{"version": VERSION, "instance": here.instance, "node": here.node, "worker": worker, "at": at}}


@method
async def once(pause: float = 0.0) -> dict:
    return await who(pause)


@method
async def count(to: int):
    for number in range(to):
        yield number


@method(idempotent=True)
async def crash() -> None:
    os._exit(3)
'''


def artifact(version: str, name: str = "probe") -> str:
    """Of the probe."""
    return f"{GROUP}:{name}:{version}"


SOON = {"HOSTLER_SLICE_MIN_READY": "1"}
"""Upgrades go on as soon as they may."""


class Stage:
    """A control plane and an open client. What is started in it, the workers of slices too, ends with it."""

    nodes: tuple[str, ...] = ()

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[HostlerProcess] = []
        self.client: Client
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            url, token = await self._begin()
            self.client = await self._stack.enter_async_context(Client(url, token))
            await self._until_on_duty()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *ended: object) -> None:
        await self._stack.aclose()
        for process in self.processes:
            if process.running:
                process.signal(signal.SIGCONT)
                process.signal(signal.SIGTERM)
        for process in self.processes:
            with suppress(AssertionError):
                await process.ends(30)
            process.kill()
        for pid in processes(self.folder):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def _begin(self) -> tuple[str, str]:
        raise NotImplementedError

    async def _until_on_duty(self) -> None:
        """Wait until instances can be placed on every node: what is placed before goes to fewer."""
        async with asyncio.timeout(pace.patience(10)):
            for node in self.nodes:
                while (await self.client.nodes.get(node)).lifecycle is not Lifecycle.ON_DUTY:
                    await asyncio.sleep(0.02)

    def start(self, *arguments: object, environ: dict[str, str] | None = None) -> HostlerProcess:
        """One more process."""
        self.processes.append(HostlerProcess(*arguments, folder=self.folder, environ=SOON | (environ or {})))
        return self.processes[-1]

    async def push(self, version: str, source: str = PROBE, name: str = "probe") -> str:
        """Publish a version of the probe, or of something else; what it is called."""
        made = self.folder / "source" / f"{name}-{version}"
        made.mkdir(parents=True)
        (made / f"{name}.py").write_text(source.format(version=version) if source is PROBE else source)
        (made / "pyproject.toml").write_text(
            f'[project]\nname = "{name}"\nversion = "{version}"\n[tool.hostler]\ngroup = "{GROUP}"\n'
        )
        info, file = pack_artifact(made, made)
        return (await self.client.artifacts.publish(info.artifact, file)).artifact

    async def apply(self, name: str, *slices: SliceSpec) -> None:
        """Wish for it."""
        await self.client.blueprints.apply(name, Blueprint(slices=slices))

    async def settled(self, name: str, *slices: SliceSpec, within: float = SETTLED) -> BlueprintStatus:
        """Wish for it, if it is said what, and wait until it is so, or was given up."""
        if slices:
            await self.apply(name, *slices)
        status = await self.client.blueprints.wait(name, settled=True, within=pace.patience(within))
        assert status is not None
        return status

    async def slices(self, base: str = BASE) -> list[SliceView]:
        """What there is on nodes."""
        return [view async for view in self.client.blueprints.slices(artifact=base)]

    async def endpoints(self, base: str = BASE, method: str = "who") -> list[EndpointView]:
        """Where it can be called."""
        found = [view async for view in self.client.blueprints.endpoints(artifact=base)]
        return [view for view in found if view.method == method]

    async def who(self, target: str = BASE, **arguments: Any) -> dict[str, Any]:
        """Which instance answers."""
        return await self.client.invoke(target, "who", arguments)  # type: ignore[no-any-return]

    async def until(self, condition: Callable[[], Any], within: float = SETTLED) -> None:
        """Wait for what a coroutine function finds."""
        patience = pace.patience(within)
        end = time.monotonic() + patience
        while not (found := await condition()):
            assert time.monotonic() < end, f"not within {patience:g} s: {found}"
            await asyncio.sleep(0.05)


class UpStage(Stage):
    """`hostler up` with so many nodes."""

    def __init__(self, folder: Path, nodes: int = 2) -> None:
        super().__init__(folder)
        self.data, self._nodes = folder / "data", nodes

    async def _begin(self) -> tuple[str, str]:
        up = self.start("up", "--data", self.data, "--listen", "127.0.0.1:0", "--nodes", self._nodes)
        await up.says("end: Ctrl-C")
        return (self.data / "server").read_text().strip(), (self.data / "admin.token").read_text().strip()


class ClusterStage(Stage):
    """Replicas and agents, each a process of its own, on one etcd and one folder of artifacts.

    No instance moves to a node that returns: on a slow machine that would be in the middle of a test.
    """

    def __init__(
        self,
        folder: Path,
        etcd: EtcdServer,
        nodes: Sequence[str] = ("r1-a", "r1-b", "r1-c"),
        times: Sequence[object] = TIMES,
    ) -> None:
        super().__init__(folder)
        self.etcd, self.nodes, self._times = etcd, tuple(nodes), times
        self.agents: dict[str, HostlerProcess] = {}
        self._environ = {"HOSTLER_ARTIFACTS": str(folder / "artifacts"), "HOSTLER_SLICE_REBALANCE": "never"}

    async def _begin(self) -> tuple[str, str]:
        first = self.replica()
        await first.says("leading with fence")
        for node in self.nodes:
            self.agent(node)
        for agent in self.agents.values():
            await agent.says("registered\n")
        self.token = token_told(first.text)
        return await first.url("serving"), self.token

    def replica(self) -> HostlerProcess:
        """One more."""
        listen = ("--listen", "127.0.0.1:0", "--leadership-ttl", 8, "--data", self.folder / "replica")
        return self.start("replica", "--store", self.etcd.url, *listen, *self._times, environ=self._environ)

    def agent(self, node: str) -> HostlerProcess:
        """That of a node, for the first time or again."""
        at = ("--node", node, "--store", self.etcd.url, "--data", self.folder / node)
        self.agents[node] = self.start("agent", *at, *self._times, environ=self._environ)
        return self.agents[node]

    def kill_node(self, node: str) -> None:
        """As if its power went: the agent, and every worker."""
        self.agents[node].kill()
        for pid in processes(self.folder / node):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def workers(folder: Path) -> set[str]:
    """Instances of slices whose files are below a folder: each is several processes, and they call themselves alike."""
    found = set()
    for pid in processes(folder):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            found |= {word.partition(b"=")[2].decode() for word in words if word.startswith(b"SLICE_RUN=")}
    return found


def processes(folder: Path) -> set[int]:
    """Processes of slices whose files are below a folder."""
    found = set()
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with suppress(OSError):
            line = (process / "cmdline").read_bytes()
            if b"hostler.slices" in line and _is_below(process, folder, line):
                found.add(int(process.name))
    return found


def _is_below(process: Path, folder: Path, line: bytes) -> bool:
    return str(folder).encode() + b"/" in line + b"\0" + os.readlink(process / "cwd").encode() + b"/"


class Load:
    """So many calls in a second, whatever becomes of them; counted from entering to leaving."""

    def __init__(self, client: Client, rate: float, *, target: str = BASE, method: str = "who", within: float = 30.0):
        self._client, self._rate, self._target, self._method, self._within = client, rate, target, method, within
        self.answers: list[tuple[float, dict[str, Any]]] = []
        """When each came, and what it was."""
        self.failures: list[tuple[float, str]] = []
        self.slowest = 0.0
        self.seconds = 0.0
        """For how long there were new calls."""
        self._calls: set[asyncio.Task[None]] = set()
        self._running: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._began = time.monotonic()
        self._running = asyncio.create_task(self._run(), name="load")
        return self

    async def __aexit__(self, *ended: object) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait((self._running,))
            self.seconds = time.monotonic() - self._began
        if self._calls:
            await asyncio.wait(self._calls, timeout=self._within * 2)

    @property
    def calls(self) -> int:
        return len(self.answers) + len(self.failures)

    def check_none_failed(self) -> None:
        """Not one call failed; and so many were made as were to be, at the machine's pace."""
        safe(not self.failures, f"{len(self.failures)} of {self.calls} calls failed", failures=self.failures)
        least = 0.9 * self._rate * self.seconds / pace.slowdown(self._began)
        assert self.calls >= least, f"only {self.calls} calls in {self.seconds:.1f} s, not {least:.0f}"

    def versions(self, since: float = 0.0) -> Counter[str]:
        """How many answers came from each version."""
        return Counter(answer["version"] for at, answer in self.answers if at >= since)

    async def _run(self) -> None:
        started, number = self._began, 0
        while True:
            number += 1
            call = asyncio.create_task(self._call(), name="load: call")
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
            await asyncio.sleep(max(0.0, started + number / self._rate - time.monotonic()))

    async def _call(self) -> None:
        started = time.monotonic()
        try:
            found = await self._client.invoke(self._target, self._method, within=self._within)
            self.answers.append((started, found))
        except HostlerError as error:
            self.failures.append((started, f"{type(error).__name__}: {error}"))
        self.slowest = max(self.slowest, time.monotonic() - started)

"""Three replicas and three agents as processes on one etcd cluster, with somebody who supervises the replicas."""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections.abc import Coroutine, Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from harness import pace
from up_process import START, HostlerProcess, token_told, until

from hostler import Client, open_store
from hostler.errors import HostlerError
from hostler.keys.families import LEADER
from hostler.model.replica import LeaderRecord
from hostler.model.vm import OnNodeLoss, Power
from hostler.model.vm_api import VmView
from hostler.testing.servers import EtcdCluster, free_ports
from plane.record import Machines, check_commands
from plane.traffic import KINDS, ORG, PROJECT, Asking, Wishes

NODES = ("r1-a", "r1-b", "r1-c")
LEADERSHIP_TTL = 4.0
NODE_TTL = 3.0
FENCING_TIME = 8.0
TIMES = ("--node-ttl", NODE_TTL, "--fencing-time", FENCING_TIME, "--log-level", "warning")
STEADY = 2
"""Machines of each kind that every node has to have at least, and that nobody changes."""
GAP = 1.0
"""Seconds without an answer, at the machine's own pace; 0.2 is usual."""
SETTLED = 30.0
"""Seconds in which everything is as it was wished for once nothing fails any more; more where the machine is slow."""
RESTART = 1.0
"""Seconds that a supervisor waits before it starts a process again."""


class Post:
    """A process that is started again in the same place. `supervised`: by itself, whenever it ended."""

    def __init__(
        self, *arguments: object, folder: Path, network: str | None = None, environ: dict[str, str] | None = None
    ) -> None:
        self._arguments, self._folder, self._network, self._environ = arguments, folder, network, environ
        self.process: HostlerProcess
        self.supervised = False
        self.start()

    def start(self) -> None:
        self.process = HostlerProcess(
            *self._arguments, folder=self._folder, network=self._network, environ=self._environ
        )

    def kill(self) -> float:
        """SIGKILL, and nobody starts it again; when."""
        self.supervised = False
        self.process.kill()
        return time.monotonic()

    def suspend(self) -> None:
        """SIGSTOP; every thread of it stands still afterwards."""
        self.process.suspend()

    def resume(self) -> None:
        self.process.resume()


class Company:
    """All of it, with traffic. Everything is ended when it is left."""

    def __init__(self, etcd: EtcdCluster, folder: Path, *, apart: bool = False, seed: int = 1) -> None:
        """`apart`: the agent of each node is in the network namespace of that name."""
        self.etcd, self._folder, self._apart, self._seed = etcd, folder, apart, seed
        self.replicas: dict[str, Post] = {}
        """By address."""
        self.agents: dict[str, Post] = {}
        folders = {node: folder / node / "machines" / node for node in NODES}
        self.machines = Machines(folders)
        self.asking: dict[str, Asking] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for post in (*self.replicas.values(), *self.agents.values()):
            post.kill()
        for task in self._tasks:
            task.cancel()
        outcomes = await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    async def _open(self) -> None:
        self.store = await self._stack.enter_async_context(open_store(self.etcd.url))
        members = self.etcd.endpoints
        for number, port in enumerate(free_ports(3)):
            address = f"127.0.0.1:{port}"
            # Each asks another member first, so that none can fail unnoticed.
            url = self.etcd.url_of([*members[number:], *members[:number]])
            arguments = ("replica", "--store", url, "--listen", address, "--leadership-ttl", LEADERSHIP_TTL)
            data = ("--data", self._folder / f"replica-{port}")
            # Who dies while it holds the lock of a machine holds others up for that long.
            environ = {"HOSTLER_LOCK_TTL": "3"}
            self.replicas[address] = Post(*arguments, *data, *TIMES, folder=self._folder, environ=environ)
        for node in NODES:
            own = ("agent", "--node", node, "--store", self.etcd.url, "--data", self._folder / node)
            self.agents[node] = Post(*own, *TIMES, folder=self._folder, network=node if self._apart else None)
        for post in self.replicas.values():
            await post.process.says("serving http", START * 2)
            post.supervised = True
        for post in self.agents.values():
            await post.process.says(" registered", START * 2)
        told = "the administrator's token is kept in "
        await until(lambda: any(told in post.process.text for post in self.replicas.values()), START, lambda: told)
        [said] = [post.process.text for post in self.replicas.values() if told in post.process.text]
        self.token = token_told(said)
        await self._go()

    async def _go(self) -> None:
        urls = [f"http://{address}" for address in self.replicas]
        self.wishes = await self._stack.enter_async_context(Wishes(urls, self.token, self._seed))
        self.asking = {address: Asking(url, self.token) for address, url in zip(self.replicas, urls)}
        self._run(self._supervise(), *(asking.run() for asking in self.asking.values()))
        for address in self.replicas:  # each has to hear of the token, which one of them has just made
            await self.views(address)
        for _ in range(3 * STEADY):
            for kind in KINDS:
                await self.wishes.make(self.wishes.new("steady", kind))
        await self.stocked(*NODES)
        self.passing = asyncio.create_task(self.wishes.run(), name="wishes")
        self._tasks.append(self.passing)

    def _run(self, *work: Coroutine[None, None, None]) -> None:
        self._tasks += [asyncio.create_task(each) for each in work]

    async def _supervise(self) -> None:
        while True:
            for post in self.replicas.values():
                if post.supervised and not post.process.running:
                    await asyncio.sleep(RESTART)
                    if post.supervised and not post.process.running:
                        post.start()
            await asyncio.sleep(0.1)

    # Who leads

    async def leader(self) -> tuple[str, int]:
        """Address and fence of who leads; waits until somebody does."""
        return await self.led_after(0)

    async def led_after(self, fence: int) -> tuple[str, int]:
        """The same with a higher fence than that."""
        found: list[LeaderRecord] = []
        end = time.monotonic() + pace.patience(SETTLED)
        while not (found and found[-1].fence > fence):
            assert time.monotonic() < end, f"nobody leads after fence {fence}: {self.said()}"
            await asyncio.sleep(0.05)
            try:
                entry = await LEADER.get(self.store, n=1)
            except HostlerError:
                continue
            found += [entry.value] if entry is not None else []
        return found[-1].address, found[-1].fence

    def said(self) -> str:
        """The last words of every process."""
        posts = {**self.replicas, **self.agents}
        return "\n".join(f"--- {name}\n{post.process.tail(15)}" for name, post in posts.items())

    # Machines

    def client(self, address: str | None = None, *, retries: int = 5) -> Client:
        """For one look at one replica."""
        return Client(f"http://{address or next(iter(self.replicas))}", self.token, timeout=30, retries=retries)

    async def views(self, address: str | None = None) -> dict[str, VmView]:
        """All machines by name, as the API has them; an outage is waited for."""
        end = time.monotonic() + pace.patience(SETTLED)
        while True:
            try:
                async with self.client(address) as client:
                    return {view.name: view async for view in client.vms.list(ORG, PROJECT)}
            except HostlerError as error:
                if time.monotonic() > end:
                    raise AssertionError(f"the API does not answer: {error}; {self.said()}") from None
                await asyncio.sleep(0.2)

    @staticmethod
    def steady(views: dict[str, VmView], node: str, kind: OnNodeLoss) -> dict[str, VmView]:
        """Machines that nobody changes, of that kind on that node."""
        return {
            view.id: view
            for name, view in views.items()
            if name.startswith("steady") and view.node == node and view.on_node_loss is kind
        }

    async def settled(self, *, within: float = SETTLED) -> dict[str, VmView]:
        """Wait until the API and the machines themselves say that all steady machines run."""
        end = time.monotonic() + pace.patience(within)
        while True:
            views = await self.views()
            found = {name: v for name, v in views.items() if name.startswith("steady") and v.phase != "deleting"}
            running = self.machines.running()
            if all(view.phase == "running" and view.id in running for view in found.values()):
                return found
            late = {
                name: (view.phase, view.node, view.detail) for name, view in found.items() if view.id not in running
            }
            assert time.monotonic() < end, f"not running: {late}: {self.said()}"
            await asyncio.sleep(0.2)

    async def stocked(self, *nodes: str) -> dict[str, VmView]:
        """Make steady machines until each of the nodes has enough of both kinds; all of them, once they run.

        What any node has too many of is deleted, so that two nodes can hold what three have.
        """
        for _ in range(20):
            views = await self.settled()
            if all(len(self.steady(views, node, kind)) >= STEADY for node in nodes for kind in KINDS):
                break
            for kind in KINDS:
                await self.wishes.make(self.wishes.new("steady", kind))
        else:
            raise AssertionError(f"no machine comes to one of {nodes}: {[(v.name, v.node) for v in views.values()]}")
        for node, kind in itertools.product(NODES, KINDS):
            for view in list(self.steady(views, node, kind).values())[2 * STEADY :]:
                await self.wishes.drop(view.name)
                del views[view.name]
        return views

    async def works(self, address: str) -> None:
        """A machine that is wished for now, at that replica, comes to run; and the traffic goes on."""
        done = self.wishes.done
        view = await self.wishes.make(self.wishes.new("steady", OnNodeLoss.WAIT))
        await until(lambda: view.id in self.machines.running(), SETTLED, lambda: f"{view.name} runs: {self.said()}")
        async with self.client(address) as client:
            assert (await client.vms.get(ORG, PROJECT, view.name)).id == view.id
        await until(lambda: self.wishes.done > done, SETTLED, lambda: f"traffic goes on: {self.said()}")

    async def run_elsewhere(self, vms: Iterable[str], node: str, *, within: float = SETTLED) -> None:
        """Wait until all of them run on other nodes, by their own records."""
        wanted = set(vms)

        def there() -> set[str]:
            return {vm for vm, runs in self.machines.running().items() if any(run.node != node for run in runs)}

        await until(lambda: wanted <= there(), within, lambda: f"{wanted - there()} run elsewhere: {self.said()}")

    def check_answered_meanwhile(self, since: float, *, but: str) -> None:
        """Every replica but one has answered between then and now: while nobody led."""
        for address, asking in self.asking.items():
            answers = [at for at in asking.answers if at > since + 0.2]
            assert address == but or answers, f"{address} waits for a leader: {asking.failed(since)}: {self.said()}"

    def check_answered(self, since: float, within: float, *, but: str | None = None) -> None:
        """Every replica (but one) answered all the time, with no gap longer than that."""
        gaps = {address: asking.gap(since) for address, asking in self.asking.items() if address != but}
        failed = {address: asking.failed(since)[:5] for address, asking in self.asking.items() if address in gaps}
        pace.check(max(gaps.values()), within, since=since, what=f"an answer ({gaps}: {failed}: {self.said()})")
        print(f"{time.monotonic() - since:.1f} s; longest gaps {[round(gap, 2) for gap in gaps.values()]}")

    async def check_ends_well(self) -> int:
        """Everything that is wished for exists once and runs if it shall; nothing else exists. How many commands."""
        self.wishes.end()
        await self.passing
        wishes, views = self.wishes, await self.views()

        def wrong() -> tuple[object, ...]:
            running = {vm: [run.node for run in runs] for vm, runs in self.machines.running().items()}
            ids = {view.id for name, view in views.items() if wishes.power.get(name) is Power.ON}
            there = sorted(vm for node in NODES for vm in self.machines.there(node))
            return (
                set(views) ^ set(wishes.power),
                set(running) ^ ids,
                [vm for vm, nodes in running.items() if len(nodes) > 1],
                [] if there == sorted(view.id for view in views.values()) else there,
                [view.name for view in views.values() if not view.settled],
            )

        end = time.monotonic() + pace.patience(SETTLED)
        while any(wrong()):
            assert time.monotonic() < end, f"not as wished for: {wrong()}: {self.said()}"
            await asyncio.sleep(0.5)
            views = await self.views()
        self.machines.check_never_twice()
        await self._end()
        return await check_commands(self.store)

    async def _end(self) -> None:
        """Ask every process to end; none needs more than its time."""
        posts = [*self.replicas.values(), *self.agents.values()]
        for post in posts:
            post.supervised = False
            post.process.signal(signal.SIGTERM)
        for post in posts:
            assert await post.process.ends() == 0, post.process.tail()

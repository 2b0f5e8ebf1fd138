"""Labs on a folder and a Redis database of their own: two replicas, two workers alone and a node, each a process.

Whoever dies is started again at once, as a supervisor does; until it is up, the others go on. Who ends unasked must
have said that it lost its leadership: on a busy machine that may be.
"""

from __future__ import annotations

import asyncio
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from harness.pace import patience
from redis.asyncio import Redis
from witness import Witness

from hostler import open_store
from hostler.keys.families import ALIVE, HANDLE, MEMBER
from hostler.model.lab import POOL_ORG
from hostler.model.node import Lifecycle
from hostler.model.vm import Step

if TYPE_CHECKING:
    from collections.abc import Callable

    from crash_points.children import Child, Launcher

LAB_ID = 5
NODE = "r1-1"
ROLES = {"replica-1": "replica", "replica-2": "replica", "worker-1": "worker", "worker-2": "worker", NODE: "agent"}
TTLS = {"node_ttl": 2.0, "fencing_time": 4.0, "leadership_ttl": 1.5, "lock_ttl": 1.0}
LOOK = 0.02
SOME = 20.0
"""Seconds, at most, for what a quiet machine does in some."""
LOST = re.compile(r"problem: (service [^:]+: failed: )?leadership ")
"""How a process says that it leads no more: its monitor, or a service that met the guard before."""
KILLED = "hostler: leadership "
"""How it begins to say that it is ended because it did not stop in time."""


class LabScene:
    """Entered: everybody is up, one leads. Left: everybody is dead. `store`: SQLite's in the folder unless told."""

    def __init__(
        self, launcher: Launcher, folder: Path, redis: str, *, store: str | None = None, warm: int = 0
    ) -> None:
        self._launcher, self._folder, self._url, self._warm = launcher, folder, redis, warm
        folder.mkdir()
        (folder / "labs.toml").write_text(f"[labs.{LAB_ID}]\nwarm = {warm}\n")
        self._store_url = store or f"sqlite://{folder}/hostler.db"
        self.store = open_store(self._store_url)
        self.redis = Redis.from_url(redis)
        self.children: dict[str, Child] = {}
        self.crashes: list[Child] = []
        """Who came to the point it was told, and died or is suspended."""
        self.ended: list[str] = []
        """Who ended unasked, and said why."""
        self._unexplained: list[str] = []
        self._replaced: list[Child] = []
        """Who ended unasked since the others were told to count: its points count, too."""
        self._arming: Callable[[Child], None] = lambda _: None
        self._logs: dict[Child, int] = {}
        """How long the log was when a child was started."""
        self.killed = 0
        self.witness = Witness(self.store, self.redis, lambda: [folder / "machines" / NODE])
        self._arms: set[asyncio.Future[None]] = set()
        self._ending = False

    async def __aenter__(self) -> Self:
        try:
            self._start("replica-1")
            first = self.children["replica-1"]
            await first.until(lambda: first.told("leading ") is not None)
            await self.store.__aenter__()
            await self.witness.__aenter__()
            for name in ROLES:
                if name not in self.children:
                    self._start(name)
            await self.up()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ending = True
        for child in self.children.values():
            await child.kill()
        await self.witness.__aexit__()
        await self.redis.aclose()
        await self.store.aclose()

    def _start(self, name: str) -> None:
        role = ROLES[name]
        flags: dict[str, Any] = {"data": str(self._folder), "log": str(self._folder / f"{name}.log"), **TTLS}
        flags["store"] = self._store_url
        if role == "agent":
            flags |= {"node": NODE, "rack": "r1"}
        else:
            flags |= {"redis": self._url, "labs": str(self._folder / "labs.toml")}
        if role == "replica":
            flags |= {"listen": "127.0.0.1:0"}
        log = Path(flags["log"])
        child = self.children[name] = self._launcher.start(role, self._heard, **flags)
        self._logs[child] = log.stat().st_size if log.exists() else 0

    def _heard(self, child: Child, message: dict[str, Any]) -> None:
        name = next(name for name, known in self.children.items() if known is child)
        if message["is"] == "crash":
            self.crashes.append(child)
        elif message["is"] == "ended" and not self._ending:
            self._start(name)
            if child.code == -signal.SIGKILL:
                self.killed += 1
            else:
                self._ended_unasked(name, child)
                self._replaced.append(child)
                self._arming(self.children[name])  # it takes the place of one that would have come to the point

    def _ended_unasked(self, name: str, child: Child) -> None:
        log = (self._folder / f"{name}.log").read_bytes()[self._logs[child] :].decode(errors="replace")
        what = f"{name} ended with {child.code}: {child.said[-3:]}; {log[-500:]}"
        explained = KILLED in log or any(map(LOST.match, child.said))
        (self.ended if explained and child.code == 1 else self._unexplained).append(what)

    async def up(self) -> None:
        """Until everybody is up, one leads, the node is on duty, and as many machines are ready as shall be."""
        await self.until(self._not_up)

    async def arm(self, target: tuple[str, int] | None, *, everybody: bool = False, **more: object) -> None:
        """Let everyone who takes or leads count, and who comes to `target` die; with `everybody` else, or alone.

        `sleeps`: it does not die but is suspended.
        """
        self.crashes.clear()
        self._replaced.clear()

        def others(child: Child) -> list[Child]:
            return [other for other in self.children.values() if other is not child] if everybody else []

        def arm_next(child: Child) -> None:
            if child.role != "agent" and not self.crashes:
                arming = asyncio.ensure_future(child.arm(target, others(child), **more))
                self._arms.add(arming)
                arming.add_done_callback(self._arms.discard)

        for child in list(self.children.values()):
            if child.role != "agent":
                await child.arm(target, others(child), **more)
        self._arming = arm_next

    async def came(self, within: float) -> bool:
        """Whether somebody comes to the point: all may be seen to be done before its last step has ended."""
        end = asyncio.get_running_loop().time() + within
        while not self.crashes and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(LOOK)
        return bool(self.crashes)

    async def answered(self) -> None:
        """Until each step that was begun has ended: what is done may be seen before its answer has come."""
        for child in list(self.children.values()):
            if child.role != "agent":
                await child.answered()

    async def disarm(self) -> list[tuple[str, int]]:
        """The points that were passed, in order."""
        self._arming = lambda _: None
        counted = (*self.children.values(), *self.crashes, *self._replaced)
        watched = [child for child in dict.fromkeys(counted) if child.role != "agent"]
        for child in watched:
            await child.disarm()
        passed = sorted(point for child in watched for point in child.passed)
        return list(dict.fromkeys((name, number) for _, name, number in passed))

    async def until(self, missing: Callable[[], Any]) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + patience(SOME)
        while (what := await missing()) is not None:
            self.check()
            assert loop.time() < end, f"not within {patience(SOME):g} s: {what}; {self.ended}; {self._last_words()}"
            await asyncio.sleep(LOOK)

    def check(self) -> None:
        """Nothing that must never be was seen, and nobody ended who was not asked to and said nothing of it."""
        self.witness.check_so_far()
        assert not self._unexplained, self._unexplained

    def _last_words(self) -> str:
        logs = (f"{log.name}: {log.read_text(errors='replace')[-1500:]}" for log in self._folder.glob("*.log"))
        return "\n".join(logs)

    async def _not_up(self) -> str | None:
        said = {"replica": "serving ", "worker": "ready", "agent": "registered"}
        for name, child in self.children.items():
            if child.told(said[child.role]) is None:
                return f"{name} is not up: {child.said}"
        if all(child.told("leading ") is None for child in self.children.values()):
            return "nobody leads"
        member, alive = await MEMBER.get(self.store, node=NODE), await ALIVE.get(self.store, node=NODE)
        if member is None or alive is None or member.value.lifecycle is not Lifecycle.ON_DUTY:
            return "the node is not on duty"
        return await self.not_ready_ahead()

    async def not_ready_ahead(self) -> str | None:
        """None: as many machines are ready ahead as shall be."""
        handles = [entry.value for entry in (await HANDLE.list(self.store, org=POOL_ORG)).entries]
        ready = [handle for handle in handles if handle.readiness and handle.readiness.step is Step.AVAILABLE]
        return None if len(ready) == self._warm else f"{len(ready)} machines are ready ahead, not {self._warm}"

"""One control plane on a folder of its own: a replica and two nodes, each a process, on one SQLite file.

Whoever dies is started again at once, as a supervisor does. What a user wishes for goes through the HTTP API, with one
Idempotency-Key however often it must be asked for.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from harness import pace
from harness.artefacts import Unsafe

from hostler import Client, open_store
from hostler.drivers.machines.simulated import read_intervals
from hostler.drivers.machines.simulated.journal import _read_journal
from hostler.errors import Conflict, HostlerError, Unavailable, Uncertain
from hostler.keys.families import ALIVE, AUDIT, COMMAND, HANDLE, LOCK, MEMBER, NAME, VM
from hostler.kit.clock import SystemClock
from hostler.model.node import Lifecycle
from hostler.model.vm import MachineState, Power

from .children import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hostler.drivers.machines.simulated.host import Row
    from hostler.keys.key import Key
    from hostler.model.vm import VirtualMachine, VmHandle

    from .children import Child, Launcher

T = TypeVar("T")

ORG, PROJECT = "acme", "shop"
NODES = ("r1-1", "r1-2")
TTLS = {"node_ttl": 2.0, "fencing_time": 4.0, "leadership_ttl": 2.0, "lock_ttl": 1.0}
LOOK = 0.02
TOKEN = "the administrator's token is kept in "
LOST = re.compile(r"problem: (service [^:]+: failed: )?leadership ")
"""How a replica says that it leads no more: its monitor, or a service that met the guard before."""


class Wrong(Unsafe):
    """Something that must never be."""


class Scene:
    """Entered: everybody is up, one leads, both nodes are on duty. Left: everybody is dead."""

    def __init__(self, launcher: Launcher, folder: Path) -> None:
        self._launcher, self._folder = launcher, folder
        folder.mkdir()
        self.store = open_store(f"sqlite://{folder}/hostler.db")
        self.children: dict[str, Child] = {}
        self.token = ""
        self.restarts: list[tuple[str, Child]] = []
        """Who ended, and was started again."""
        self.crashes: list[tuple[str, Child]] = []
        """Who died at the point it was told."""
        self._ending = False

    async def __aenter__(self) -> Self:
        try:
            self._start("replica")
            first = self.children["replica"]
            await first.until(lambda: bool(self.token))  # with which it tells that the store was begun
            await self.store.__aenter__()
            for node in NODES:
                self._start(node)
            await self.up()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def up(self) -> None:
        """Until everybody is up, one leads, both nodes are on duty."""
        await self._until(self._not_up)

    async def __aexit__(self, *_: object) -> None:
        await self.end()
        await self.store.aclose()

    async def end(self) -> None:
        """Kill everybody; nobody comes back."""
        self._ending = True
        for child in self.children.values():
            await child.kill()

    def _start(self, name: str) -> None:
        data, log = str(self._folder), str(self._folder / f"{name}.log")
        if name == "replica":
            child = self._launcher.start("replica", self._heard, data=data, log=log, listen="127.0.0.1:0", **TTLS)
        else:
            child = self._launcher.start("agent", self._heard, data=data, log=log, node=name, rack="r1", **TTLS)
        self.children[name] = child

    def _heard(self, child: Child, message: dict[str, Any]) -> None:
        name = next(name for name, known in self.children.items() if known is child)
        if message["is"] == "says" and message["text"].startswith(TOKEN):
            self.token = Path(message["text"].removeprefix(TOKEN)).read_text(encoding="ascii").strip()
        elif message["is"] == "crash":
            self.crashes.append((name, child))
        elif message["is"] == "ended" and not self._ending:
            self.restarts.append((name, child))
            self._start(name)

    def ended(self) -> list[str]:
        """Who ended, how, and with which words."""
        return [f"{name} ended with {child.code}: {child.said[-2:]}" for name, child in self.restarts]

    def explained(self, name: str, child: Child) -> bool:
        """Whether the child was killed, or lost its leadership and said so: a machine that is slow may cost it that."""
        if child.code == -9:
            return True
        said = any(map(LOST.match, child.said))
        ended = "was lost and the process did not stop in time" in (self._folder / f"{name}.log").read_text()
        return name == "replica" and child.code == 1 and (said or ended)

    # Where to die

    async def arm(self, role: str, target: tuple[str, int] | None, *, both: bool) -> list[Child]:
        """Let every process of that role count, and die at `target`, with those of the other role if `both`."""
        watched = [child for child in self.children.values() if child.role == role]
        others = [child for child in self.children.values() if child.role != role] if both else []
        for child in (*watched, *others):
            await child.until(lambda child=child: child.pid > 0)  # type: ignore[misc]
        for child in watched:
            await child.arm(target, others)
        return watched

    # What a user does

    async def wish(self, do: Callable[[Client, str], Awaitable[T]]) -> T:
        """Ask until it is answered; each time with the same Idempotency-Key."""
        key, end = uuid.uuid4().hex, time.monotonic() + pace.patience(PATIENCE)
        while True:
            try:
                url = self.children["replica"].told("serving ")
                if url is None:
                    raise Unavailable("replica: it does not serve yet")
                async with Client(url, self.token, retries=0, timeout=10.0) as client:
                    return await do(client, key)
            except (Conflict, Unavailable, Uncertain):  # a conflict: who died while it held the lock still holds it
                if time.monotonic() > end:
                    raise
                await asyncio.sleep(LOOK)

    async def settled(self) -> None:
        """Until every wish is what there is."""
        await self._until(self._unsettled)

    # What must be

    async def check(self, verb: str, *, machines: int) -> None:
        """The end of every story: what was wished for exists once, nothing else does, and it was wished for once."""
        await self.settled()
        await self._until(self._locked)  # a lock whose holder died is there until its lease ends
        await self.end()
        if (what := await self._unsettled()) is not None:
            raise Wrong(f"after everybody had ended: {what}")
        rows = [row for node in NODES for row in self._rows(node).values()]
        if len(rows) != machines:
            raise Wrong(f"{len(rows)} machines, {machines} were wished for: {rows}")
        for key in (VM, NAME, HANDLE, COMMAND):
            await self._count(key, machines)
        self._check_runs()
        written = [entry.value for entry in (await AUDIT.list(self.store)).entries if entry.value.verb == verb]
        if len(written) != 1:
            raise Wrong(f"{verb}: written {len(written)} times: {written}")

    async def _count(self, key: Key[Any], most: int) -> None:
        found = (await key.list(self.store)).entries
        if len(found) != most:
            raise Wrong(f"{len(found)} of {key.template}, not {most}: {found}")

    def _check_runs(self) -> None:
        """No machine ever ran in two places at one instant, as the places themselves wrote it down."""
        now = SystemClock().now()
        runs: dict[str, list[tuple[float, float, str]]] = {}
        for node in NODES:
            for vm, intervals in read_intervals(self._place(node), now=now).items():
                runs.setdefault(vm, []).extend((start, now if end is None else end, node) for start, end in intervals)
        for vm, intervals_of in runs.items():
            for (_, end, first), (start, _, second) in pairwise(sorted(intervals_of)):
                if start < end:
                    raise Wrong(f"{vm} ran on {first} until {end:g} and on {second} from {start:g}")

    def _place(self, node: str) -> Path:
        return self._folder / "machines" / node

    def _rows(self, node: str) -> dict[str, Row]:
        return _read_journal(self._place(node), whole=True).rows

    async def _until(self, missing: Callable[[], Awaitable[str | None]]) -> None:
        end = time.monotonic() + pace.patience(PATIENCE)
        while (what := await missing()) is not None:
            if time.monotonic() > end:
                raise Wrong(f"not {PATIENCE:g} s later: {what}; restarts: {self.ended()}; {self._last_words()}")
            await asyncio.sleep(LOOK)

    def _last_words(self) -> str:
        logs = (f"{log.name}: {log.read_text(errors='replace')[-1000:]}" for log in self._folder.glob("*.log"))
        return "\n".join(logs)

    async def _not_up(self) -> str | None:
        if self.children["replica"].told("leading ") is None:
            return "nobody leads"
        for node in NODES:
            member = await MEMBER.get(self.store, node=node)
            alive = await ALIVE.get(self.store, node=node)
            if member is None or alive is None or member.value.lifecycle is not Lifecycle.ON_DUTY:
                return f"{node} is not on duty"
        return None

    async def _locked(self) -> str | None:
        locks = (await LOCK.list(self.store)).entries
        return f"locks are left: {locks}" if locks else None

    async def _unsettled(self) -> str | None:
        """What is not yet as it was wished for."""
        try:
            wishes = {entry.value.id: entry.value for entry in (await VM.list(self.store)).entries}
            handles = {entry.value.id: entry.value for entry in (await HANDLE.list(self.store)).entries}
        except HostlerError as error:
            return str(error)
        there: dict[str, list[tuple[str, Row]]] = {}
        for node in NODES:
            for vm, row in self._rows(node).items():
                there.setdefault(vm, []).append((node, row))
        for vm in {*there, *handles} - set(wishes):
            return f"{vm}: there though nobody wishes for it: {there.get(vm)}, {handles.get(vm)}"
        for id_, wish in wishes.items():
            if (what := _unlike(wish, handles.get(id_), there.get(id_, []))) is not None:
                return f"{id_}: {what}"
        return None


def _unlike(wish: VirtualMachine, handle: VmHandle | None, there: list[tuple[str, Row]]) -> str | None:
    if wish.deleting:
        return f"still being deleted: {handle}"
    if handle is None or len(there) != 1:
        return f"handle {handle}, machines {there}"
    node, row = there[0]
    state = MachineState.RUNNING if wish.power is Power.ON else MachineState.STOPPED
    if handle.node != node or handle.generation != wish.generation or {handle.state, row.state} != {state}:
        return f"wished {wish.power} (generation {wish.generation}); handle {handle}, machine {row}"
    if row.spec != wish.spec or not set(wish.snapshots) == set(row.snapshots) == set(handle.snapshots):
        return f"wished {wish}; handle {handle}, machine {row}"
    return None

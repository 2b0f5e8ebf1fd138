"""Reads servers with one API call for all callers at the same time, and detects machines that changed by themselves.

The API allows about one call per second. Callers that arrive during a listing share the next one. All callers that
wait for actions share one list of actions, polled at growing intervals.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeVar

from hostler.drivers.machines.hetzner.api_types import Action
from hostler.errors import Closed, Forbidden, HostlerError, TooManyTries, Unavailable, Uncertain
from hostler.kit.rate_limit import Backoff

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from hostler.drivers.machines.hetzner.api import Api
    from hostler.drivers.machines.hetzner.api_types import Server
    from hostler.drivers.machines.hetzner.descriptor import Pace
    from hostler.kit.clock import Clock
    from hostler.ports.machines import Machine

T = TypeVar("T")
W = TypeVar("W")
_ALL = ""
_log = logging.getLogger("hostler.machines")


class Poller:
    """Current servers: no answer is older than its request."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._asked: dict[str, list[asyncio.Future[Sequence[Server]]]] = {}
        self._task: asyncio.Task[None] | None = None

    async def server(self, name: str) -> Server | None:
        """Return the server with that name; None: it certainly does not exist."""
        return next(iter(await self._ask(name)), None)

    async def all(self) -> Sequence[Server]:
        """Return all of Hostler's servers."""
        return await self._ask(_ALL)

    async def aclose(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
        asked, self._asked = self._asked, {}
        for waiting in asked.values():
            for answer in waiting:
                if not answer.done():
                    answer.set_exception(Closed("Hetzner machines: the driver was closed"))

    async def _ask(self, name: str) -> Sequence[Server]:
        answer: asyncio.Future[Sequence[Server]] = asyncio.get_running_loop().create_future()
        self._asked.setdefault(name, []).append(answer)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._answer(), name="hetzner: looking")
        return await answer

    async def _answer(self) -> None:
        while self._asked:
            asked, self._asked = self._asked, {}
            try:
                await self._look(asked)
            except Exception as error:  # noqa: BLE001 - callers that arrived since wait for the next listing
                _log.exception("Hetzner Cloud: listing the servers failed")
                for waiting in asked.values():
                    _fail(waiting, Unavailable(f"servers: they cannot be listed ({type(error).__name__}); try again"))
            finally:
                for waiting in asked.values():
                    _fail(waiting, Closed("Hetzner machines: the driver was closed"))

    async def _look(self, asked: dict[str, list[asyncio.Future[Sequence[Server]]]]) -> None:
        single = len(asked) == 1 and _ALL not in asked
        try:
            found = [] if single else await self._api.servers()
        except HostlerError as error:
            for waiting in asked.values():
                _fail(waiting, error)
            return
        by_name = {server.name: server for server in found}
        for name, waiting in asked.items():
            if name == _ALL:
                _give(waiting, found)
            elif name in by_name:
                _give(waiting, [by_name[name]])
            else:
                # Not Hostler's, or missed because deletions shifted the pages: only a request by name is certain.
                try:
                    _give(waiting, await self._api.servers(name=name))
                except HostlerError as error:
                    _fail(waiting, error)


class Goings:
    """Waits until actions end, and until servers reach a state."""

    def __init__(self, api: Api, looks: Poller, pace: Pace, *, clock: Clock) -> None:
        self._api, self._looks, self._pace, self._clock = api, looks, pace, clock
        self._actions: dict[asyncio.Future[Action], int] = {}
        self._servers: dict[asyncio.Future[Server | None], tuple[str, Callable[[Server | None], bool]]] = {}
        self._backoff = Backoff(first=pace.poll_first, most=pace.poll_most)
        self._task: asyncio.Task[None] | None = None

    async def wait_until_ended(self, action: Action, what: str) -> Action:
        """Return the action once it has ended. Uncertain: it is still running after `patience` seconds."""
        if action.status != "running":
            return action
        try:
            return await self._wait(self._actions, action.id, self._pace.patience)
        except TimeoutError:
            raise Uncertain(
                f"{what}: {action.command} is still running after {self._pace.patience:g} s; inspect the machine"
            ) from None

    async def became(self, name: str, is_so: Callable[[Server | None], bool], *, within: float) -> Server | None:
        """Return the server once `is_so` holds. TimeoutError: it does not hold within the time limit."""
        seen = await self._looks.server(name)
        if is_so(seen):
            return seen
        return await self._wait(self._servers, (name, is_so), within)

    async def aclose(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
        self._fail_all(Closed("Hetzner machines: the driver was closed"))

    async def _wait(self, waiting: dict[asyncio.Future[T], W], wanted: W, within: float) -> T:
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        waiting[answer] = wanted
        self._backoff.reset()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._poll(), name="hetzner: polling")
        try:
            async with asyncio.timeout(within):
                return await answer
        finally:
            waiting.pop(answer, None)

    async def _poll(self) -> None:
        while self._actions or self._servers:
            await self._clock.sleep(max(self._backoff.next(), self._api.pause()))
            try:
                await self._look()
            except TooManyTries as error:
                await self._clock.sleep(error.after)
            except (Forbidden, Closed) as error:
                self._fail_all(error)
            except HostlerError:
                continue  # each waiter reports its own timeout
            except Exception:  # noqa: BLE001 - all waiters depend on this task
                _log.exception("Hetzner Cloud: polling the actions failed")

    async def _look(self) -> None:
        actions, servers = dict(self._actions), dict(self._servers)
        found = await self._api.actions(sorted(set(actions.values()))) if actions else {}
        for answer, number in actions.items():
            action = found.get(number) or Action(id=number, status="unknown")
            if action.status != "running":
                _give([answer], action)
        names = sorted({name for name, _ in servers.values()})
        seen = dict(zip(names, await asyncio.gather(*map(self._looks.server, names)), strict=True))
        for future, (name, is_so) in servers.items():
            if is_so(seen[name]):
                _give([future], seen[name])

    def _fail_all(self, error: HostlerError) -> None:
        _fail([*self._actions, *self._servers], error)


def _give(waiting: Sequence[asyncio.Future[T]], answer: T) -> None:
    for future in waiting:
        if not future.done():
            future.set_result(answer)


def _fail(waiting: Sequence[asyncio.Future[Any]], error: HostlerError) -> None:
    for future in waiting:
        if not future.done():
            future.set_exception(error)


class Watch:
    """Compares each listing with the previous one, and makes one itself when the last is too old."""

    def __init__(
        self,
        clock: Clock,
        pace: Pace,
        look: Callable[[], Awaitable[Sequence[Machine]]],
        *,
        skips: Callable[[str], bool],
        spares: Callable[[int], float],
    ) -> None:
        """Set up the watch.

        `skips(vm)`: whether a verb is changing the machine, so that no change is reported. `spares(machines)`: minimum
        seconds between two listings of that many machines, because of the rate limit.
        """
        self._clock, self._pace, self._look, self._skips, self._spares = clock, pace, look, skips, spares
        self._listeners: list[Callable[[str], None]] = []
        self._known: dict[str, str] = {}
        """Last status of each machine that listeners know of."""
        self._last: Sequence[Machine] | None = None
        self._looked_at = 0.0
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        self._known.clear()
        self._last = None
        self._task = asyncio.create_task(self._run(), name="hetzner: watching")

    async def aclose(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))

    def listen(self, changed: Callable[[str], None]) -> None:
        self._listeners.append(changed)

    def tell(self, vm: str) -> None:
        """Notify the listeners that a machine changed."""
        for changed in self._listeners:
            changed(vm)

    def changing(self, vm: str) -> None:
        """Record that a verb changes the machine. Without `record_status`, the next listing reports it as changed."""
        self._known[vm] = ""
        self._last = None

    def record_status(self, vm: str, status: str) -> None:
        """Record the status that a verb left, so that it is not reported as a change."""
        self._known[vm] = status
        self._last = None

    def forget_status(self, vm: str) -> None:
        self._known.pop(vm, None)
        self._last = None

    def recent(self) -> Sequence[Machine] | None:
        """Return the last listing if nothing changed since and the rate limit forbids another one so soon."""
        if self._last is None or self._clock.now() - self._looked_at >= self._spares(len(self._last)):
            return None
        return self._last

    def saw(self, machines: Sequence[Machine]) -> None:
        """Take a listing of all machines and report what changed."""
        self._looked_at, self._last = self._clock.now(), machines
        now = {machine.label.vm: machine.cloud_status for machine in machines}
        busy = {vm: status for vm, status in self._known.items() if self._skips(vm)}
        news = [vm for vm, status in self._known.items() if vm not in busy and now.get(vm) != status]
        self._known = now | busy
        for vm in news:
            self.tell(vm)

    async def _run(self) -> None:
        while True:
            every = max(self._pace.watch_every, self._spares(len(self._known)))
            await self._clock.sleep(every)
            if self._clock.now() - self._looked_at < every or not self._listeners:
                continue
            try:
                await self._look()
            except TooManyTries as error:
                await self._clock.sleep(error.after)
            except HostlerError as error:
                _log.warning("Hetzner Cloud: cannot list the servers: %s", error)

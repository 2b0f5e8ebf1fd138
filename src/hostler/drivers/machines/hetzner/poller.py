"""Reads servers and actions with one API call for all callers at the same time.

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
    from collections.abc import Callable, Sequence

    from hostler.drivers.machines.hetzner.api import Api
    from hostler.drivers.machines.hetzner.api_types import Server
    from hostler.drivers.machines.hetzner.options import Pace
    from hostler.kit.clock import Clock

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

    async def ended(self, action: Action, what: str) -> Action:
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

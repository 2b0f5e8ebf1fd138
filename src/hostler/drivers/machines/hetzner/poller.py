"""Looking at servers and at what goes on with them: one call for all who ask at the same time.

The API allows about one call each second. So while one look is under way, everybody who comes later shares the next
one; and all who wait for actions share one list of actions, asked for ever more rarely.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeVar

from hostler.drivers.machines.hetzner.api_types import Action
from hostler.errors import Closed, Forbidden, HostlerError, TooManyTries, Unavailable, Uncertain
from hostler.kit.backoff import Backoff

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


class Looks:
    """The servers as they are: no answer is older than its question."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._asked: dict[str, list[asyncio.Future[Sequence[Server]]]] = {}
        self._task: asyncio.Task[None] | None = None

    async def server(self, name: str) -> Server | None:
        """The one of that name; None: there certainly is none."""
        return next(iter(await self._ask(name)), None)

    async def all(self) -> Sequence[Server]:
        """All of ours."""
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
            except Exception as error:  # noqa: BLE001 - who asks meanwhile waits for the next look
                _log.exception("Hetzner Cloud: a look at the servers failed")
                for waiting in asked.values():
                    _fail(
                        waiting, Unavailable(f"servers: they cannot be looked at ({type(error).__name__}); try again")
                    )
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
                # Not ours, or on no page because others went meanwhile: only asking for it alone tells.
                try:
                    _give(waiting, await self._api.servers(name=name))
                except HostlerError as error:
                    _fail(waiting, error)


class Goings:
    """Waits for actions to end, and for servers to become something."""

    def __init__(self, api: Api, looks: Looks, pace: Pace, *, clock: Clock) -> None:
        self._api, self._looks, self._pace, self._clock = api, looks, pace, clock
        self._actions: dict[asyncio.Future[Action], int] = {}
        self._servers: dict[asyncio.Future[Server | None], tuple[str, Callable[[Server | None], bool]]] = {}
        self._backoff = Backoff(first=pace.poll_first, most=pace.poll_most)
        self._task: asyncio.Task[None] | None = None

    async def ended(self, action: Action, what: str) -> Action:
        """As it has ended. Uncertain: it goes on for too long."""
        if action.status != "running":
            return action
        try:
            return await self._wait(self._actions, action.id, self._pace.patience)
        except TimeoutError:
            raise Uncertain(
                f"{what}: {action.command} goes on for more than {self._pace.patience:g} s; inspect the machine"
            ) from None

    async def became(self, name: str, is_so: Callable[[Server | None], bool], *, within: float) -> Server | None:
        """The server, once it is so. TimeoutError: it is not by then."""
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
                continue  # who waits for too long says so
            except Exception:  # noqa: BLE001 - all who wait hang on this task
                _log.exception("Hetzner Cloud: a look at what goes on failed")

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

"""The lab queues in Redis, and the wait for requests to arrive in them."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from typing import TYPE_CHECKING, Any, Self

import msgspec
from redis.exceptions import RedisError

from hostler.drivers.inbox.redis import scripts
from hostler.drivers.redis_client import ANSWERS
from hostler.errors import Forbidden, Invalid
from hostler.keys.lab import FIRST
from hostler.ports.inbox import QUEUES, Taken

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from redis.asyncio import Connection

    from hostler.drivers.redis_client import Answers, RedisLink, Words
    from hostler.keys.lab import LabNames
    from hostler.ports.inbox import QueueName

LISTENS = 5
"""Seconds after which the server answers that nothing arrived."""


class BlockingWait:
    """Moves the head of each queue onto itself as soon as there is one: that changes nothing, and can be waited for.

    One connection per queue, which keeps listening between two waits.
    """

    def __init__(self, link: RedisLink, queues: Sequence[str]) -> None:
        self._link, self._queues = link, queues
        self._listening: dict[str, asyncio.Task[None]] = {}
        self._connections: dict[str, Connection] = {}

    async def wait(self, within: float) -> None:
        """Wait until a request may have arrived, or the time is over. Raises what the client raises."""
        for queue in self._queues:
            before = self._listening.get(queue)
            if before is not None and before.done():
                _ignore(before)  # its result or error is outdated
                before = None
            if before is None:
                self._listening[queue] = asyncio.create_task(self._listen(queue), name=f"redis: {queue}")
        ended, _ = await asyncio.wait(self._listening.values(), timeout=within, return_when=asyncio.FIRST_COMPLETED)
        for queue, task in list(self._listening.items()):
            if task in ended:
                del self._listening[queue]
        for task in ended:
            _ignore(task)  # both may have failed, and only one error can be raised
        for task in ended:
            if not task.cancelled():
                task.result()

    async def aclose(self) -> None:
        """Stop listening and wake waiters."""
        tasks = list(self._listening.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for task in tasks:
            _ignore(task)
        self._listening.clear()
        while self._connections:
            await self._link.drop(self._connections.popitem()[1])

    async def _listen(self, queue: str) -> None:
        connection = self._connections.pop(queue, None)
        if connection is None or not connection.is_connected:
            connection = await self._link.connect()
        heard = False
        try:
            async with asyncio.timeout(LISTENS + self._link.timeout):
                await connection.send_command("BLMOVE", queue, queue, "LEFT", "LEFT", LISTENS)
                await connection.read_response()
            heard = True
        finally:
            if heard:
                self._connections[queue] = connection
            else:
                await self._link.drop(connection)


def _ignore(task: asyncio.Task[None]) -> None:
    """Retrieve the task's error, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()


STEPS = 1_000
"""Requests that the server examines in one script beyond those it delivers; other clients wait during a script."""
BATCH = 1_000
"""Requests that are acknowledged in one script."""

LAB_ANSWERS: Answers = {
    **ANSWERS,
    "NOPERM": (Forbidden, f"the user has no permission for this; labs need all keys that begin with {FIRST} and eval"),
    "WRONGTYPE": (
        Invalid,
        f"a key that begins with {FIRST} holds a value of the wrong type; check it, and remove it",
    ),
}


class RedisInbox:
    """Owns its link: closes it when it is closed."""

    def __init__(self, link: RedisLink, names: LabNames) -> None:
        link.answers = LAB_ANSWERS
        self._link, self._calls, self._names = link, link.calls, names
        self._queues = (names.provision, names.decommission)
        self._bell = BlockingWait(link, self._queues)
        self._source, self._count = secrets.token_hex(8), itertools.count(1)

    async def __aenter__(self) -> Self:
        self._calls.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._calls.shut()
        await self._bell.aclose()
        await self._link.aclose()

    async def take(self, worker: str, *, limit: int, within: float) -> Sequence[Taken]:
        self._calls.check()
        now = asyncio.get_running_loop().time
        end = now() + within
        while limit > 0:
            more, taken = await self._take(worker, limit)
            left = end - now()
            if taken or left <= 0:
                return taken
            if not more:
                await self._wait(worker, left)
        return ()

    async def take_of(self, worker: str, queue: QueueName, user: str) -> Taken | bool:
        names, token = self._names, f"{self._tokens()}.1"
        processing = names.processing(queue, worker)
        keys = [names.workers, self._queues[QUEUES.index(queue)], names.busy(queue), processing]
        arguments = [worker, token, user, processing.removesuffix(worker), names.next(queue) + user]
        answer = await self._run("take of a user", worker, scripts.TAKE_OF, keys, arguments)
        return Taken(queue, token, answer) if isinstance(answer, bytes) else bool(answer)

    async def behind(self, queue: QueueName, user: str) -> Sequence[bytes]:
        keys = [self._queues[QUEUES.index(queue)], self._names.next(queue) + user]
        async with self._calls.call("behind", user, writes=False) as call:
            found: list[bytes] = await self._link.ask(call, "EVAL", scripts.BEHIND_IT, len(keys), *keys, user)
            return found

    async def held(self, worker: str) -> Sequence[Taken]:
        async with self._calls.call("held", worker, writes=False) as call:
            found = []
            for queue in QUEUES:
                key = self._names.processing(queue, worker)
                for entry in await self._link.ask(call, "LRANGE", key, 0, -1):
                    token, _, raw = entry.partition(b" ")
                    found.append(Taken(queue, token.decode(), raw))
            return found

    async def acknowledge(self, worker: str, done: Sequence[Taken]) -> Sequence[Taken]:
        self._calls.check()
        following: list[Taken] = []
        for start in range(0, len(done), BATCH):
            following += await self._remove_done("acknowledge", worker, done[start : start + BATCH])
        return following

    async def bury(self, worker: str, taken: Taken, reason: str, at: float) -> Sequence[Taken]:
        dead = msgspec.json.encode(
            {
                "queue": taken.queue,
                "request": taken.raw.decode(errors="backslashreplace"),
                "reason": reason,
                "at": at,
                "worker": worker,
            }
        )
        return await self._remove_done("bury", worker, [taken], dead)

    async def workers(self) -> frozenset[str]:
        async with self._calls.call("workers", self._names.workers, writes=False) as call:
            return frozenset(map(bytes.decode, await self._link.ask(call, "SMEMBERS", self._names.workers)))

    async def release(self, worker: str, done: Sequence[Taken]) -> int:
        names = self._names
        keys = [names.workers, *self._keys_of(worker)]
        arguments = [worker, *map(names.next, QUEUES), *(taken.token for taken in done)]
        count: int = await self._run("release", worker, scripts.RELEASE, keys, arguments)
        return count

    # Internal

    async def _take(self, worker: str, limit: int) -> tuple[bool, list[Taken]]:
        names = self._names
        keys = [names.workers, *self._keys_of(worker), names.dead]
        # The prefix of the workers' lists: the name of this worker's list without the worker.
        lists = [names.processing(queue, worker).removesuffix(worker) for queue in QUEUES]
        arguments: list[Words] = [worker, self._tokens(), limit, limit + STEPS]
        arguments += itertools.chain.from_iterable(zip(map(names.next, QUEUES), lists, QUEUES))
        more, *flat = await self._run("take", worker, scripts.TAKE, keys, arguments)
        return bool(more), _taken_of(flat)

    async def _wait(self, worker: str, within: float) -> None:
        try:
            await self._bell.wait(within)
        except TimeoutError as error:
            raise self._link.trouble(f"{self._link.name}: take of {worker!r}", error) from None
        except (RedisError, OSError) as error:
            raise self._link.trouble(f"{self._link.name}: take of {worker!r}", error) from error
        self._calls.check()

    async def _remove_done(self, verb: str, worker: str, done: Sequence[Taken], dead: bytes = b"") -> list[Taken]:
        names = self._names
        keys = [names.dead]
        for queue in QUEUES:
            keys += [names.busy(queue), names.processing(queue, worker)]
        arguments: list[Words] = [worker, self._tokens(), *map(names.next, QUEUES), dead]
        for taken in done:
            arguments += [QUEUES.index(taken.queue), b"%s %s" % (taken.token.encode(), taken.raw)]
        return _taken_of(await self._run(verb, worker, scripts.DONE, keys, arguments))

    def _keys_of(self, worker: str) -> list[str]:
        keys = []
        for queue, key in zip(QUEUES, self._queues):
            keys += [key, self._names.busy(queue), self._names.processing(queue, worker)]
        return keys

    def _tokens(self) -> str:
        """Return a token prefix that no other call uses."""
        return f"{self._source}.{next(self._count)}"

    async def _run(self, verb: str, worker: str, script: str, keys: Sequence[str], arguments: Sequence[Words]) -> Any:
        async with self._calls.call(verb, worker, writes=True) as call:
            return await self._link.ask(call, "EVAL", script, len(keys), *keys, *arguments)


def _taken_of(flat: Sequence[Any]) -> list[Taken]:
    return [Taken(QUEUES[number], token.decode(), raw) for number, token, raw in zip(flat[::3], flat[1::3], flat[2::3])]

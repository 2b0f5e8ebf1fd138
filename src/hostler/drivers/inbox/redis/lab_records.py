"""The lab records in Redis."""

from __future__ import annotations

import itertools
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from hostler.drivers.inbox.redis import scripts
from hostler.drivers.inbox.redis.inbox import LAB_ANSWERS
from hostler.errors import Damaged, Invalid
from hostler.keys.lab import check_user
from hostler.model.lab import LabServer, utc_time
from hostler.ports.inbox import Shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

    from hostler.drivers.redis_client import RedisLink, Words
    from hostler.keys.lab import LabNames
    from hostler.ports.inbox import Published

LIFE = 24 * 3600
"""Seconds for which a record is kept without a refresh."""
REVISION_LIFE = 25 * 3600
"""Longer than the record's: a record made from an older revision must not follow it."""
NEWS_SHOWN = 100
CHANGES = 50
"""Changes that are published in one script; the server does nothing else during a script."""
READ = 1_000
"""Records that are read in one request."""


class RedisLabRecords:
    """Owns its link: closes it when it is closed."""

    def __init__(self, link: RedisLink, names: LabNames) -> None:
        link.answers = LAB_ANSWERS
        self._link, self._calls, self._names = link, link.calls, names

    async def __aenter__(self) -> Self:
        self._calls.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._link.aclose()

    async def epoch(self) -> str:
        answer: bytes = await self._run("epoch", self._names.epoch, scripts.EPOCH, [self._names.epoch], [_word()])
        return answer.decode()

    async def publish(self, changes: Sequence[Published]) -> int:
        self._calls.check()
        for change in changes:
            check_user(change.user)  # before any is published
        count = 0
        for part in _parts(changes, CHANGES):
            arguments: list[Words] = [LIFE, REVISION_LIFE, NEWS_SHOWN]
            for change in part:
                arguments += self._change(change)
            subject = part[0].user if len(part) == 1 else f"{len(part)} users"
            count += await self._run("publish", subject, scripts.PUBLISH, [self._names.waiting], arguments)
        return count

    async def refresh(self, users: Sequence[str]) -> Sequence[str]:
        self._calls.check()
        missing: list[str] = []
        for part in _parts(users, READ):
            keys = [self._names.waiting]
            for user in part:
                keys += [self._names.server(user), self._names.generation(user), self._names.events(user)]
            places = await self._run("refresh", f"{len(part)} users", scripts.REFRESH, keys, [LIFE, REVISION_LIFE])
            missing += [part[place] for place in places]
        return missing

    async def servers(self) -> dict[str, LabServer | None]:
        found: dict[str, LabServer | None] = {}
        cursor = b"0"
        while True:
            async with self._calls.call("scan", self._names.servers, writes=False) as call:
                cursor, keys = await self._link.ask(call, "SCAN", cursor, "MATCH", self._names.servers, "COUNT", READ)
                values = await self._link.ask(call, "MGET", *keys) if keys else []
                for key, value in zip(keys, values):
                    if value is not None or await self._link.ask(call, "EXISTS", key):
                        with suppress(Invalid, UnicodeDecodeError):  # not the name of a user
                            found[self._names.user_of(key.decode())] = _read(value)
            if cursor == b"0":
                return found

    async def withdraw(self, user: str, revision: int) -> bool:
        names = self._names
        keys = [names.server(user), names.generation(user), names.waiting]
        removed: int = await self._run("withdraw", user, scripts.WITHDRAW, keys, [user, revision, REVISION_LIFE])
        return removed == 1

    async def shown(self) -> dict[str, Shown]:
        found: dict[str, Shown] = {}
        start, cursor = len(self._names.generations) - 1, b"0"
        while True:
            async with self._calls.call("scan", self._names.generations, writes=False) as call:
                cursor, keys = await self._link.ask(
                    call, "SCAN", cursor, "MATCH", self._names.generations, "COUNT", READ
                )
                users = []
                for key in keys:
                    with suppress(Invalid, UnicodeDecodeError):  # not the name of a user
                        users.append(check_user(key.decode()[start:]))
                pairs = [name for user in users for name in (self._names.generation(user), self._names.events(user))]
                answer = await self._link.ask(call, "EVAL", scripts.SHOWN, len(pairs), *pairs)
                for user, revision, news in zip(users, answer[::2], answer[1::2]):
                    if revision.isdigit():
                        found[user] = Shown(int(revision), int(news))
            if cursor == b"0":
                return found

    async def forget(self, user: str, revision: int) -> bool:
        names = self._names
        keys = [names.server(user), names.generation(user), names.events(user), names.waiting]
        removed: int = await self._run("forget", user, scripts.FORGET, keys, [user, revision])
        return removed == 1

    # Internal

    def _change(self, change: Published) -> Iterator[Words]:
        names, user = self._names, change.user
        yield from (names.server(user), names.generation(user), names.events(user), user, change.revision)
        yield b"" if change.server is None else change.server.encode()
        yield "" if change.waits_since is None else repr(float(change.waits_since))
        yield len(change.news)
        for news in change.news:
            yield from (news.number, news.event.value, utc_time(news.at))
            yield from ("" if news.lab_id is None else news.lab_id, news.reason)

    async def _run(self, verb: str, subject: str, script: str, keys: Sequence[str], arguments: Sequence[Words]) -> Any:
        async with self._calls.call(verb, subject, writes=True) as call:
            return await self._link.ask(call, "EVAL", script, len(keys), *keys, *arguments)


def _parts(whole: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (whole[start : start + size] for start in itertools.takewhile(len(whole).__gt__, itertools.count(0, size)))


def _read(value: bytes | None) -> LabServer | None:
    with suppress(Damaged, Invalid):
        return None if value is None else LabServer.decode(value)
    return None


def _word() -> str:
    return secrets.token_hex(8)

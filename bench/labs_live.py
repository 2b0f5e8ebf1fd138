"""Writes in Redis by many idle labs, and when one of them changes."""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from bench.labs_worker import at_work
from bench.plane_http import until
from bench.report import Row
from hostler.client import Client
from hostler.errors import Unavailable
from hostler.keys.lab import LabNames
from hostler.model.lab import LabRequest, LabServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from bench.labs_worker import Crew

LAB_ID = 5
ON_A_NODE = 25
PATIENCE = 300.0
SETTLED = 1.5
"""Seconds without a change after which no more changes are expected."""
NAMES = LabNames()


class Change(msgspec.Struct, frozen=True):
    """A command that changed a key, as reported by Redis."""

    key: str
    command: str


async def measure(
    redis: Any, url: str, folder: Path, *, labs: int, quiet: float, changes: int, tell: Callable[[str], None]
) -> list[Row]:
    """Start labs on simulated machines, wait while they are idle, then extend some of them one by one."""
    await redis.flushdb()
    data = folder / "live"
    data.mkdir()
    environ = {"HOSTLER_CONFIG": os.devnull, "HOSTLER_DATA": str(data), "HOSTLER_REDIS": url}
    nodes = str(labs // ON_A_NODE + 1)
    command = [sys.executable, "-m", "hostler", "up", "--machines", "simulated", "--nodes", nodes]
    arguments = ["--listen", "127.0.0.1:0", "--log-level", "warning"]
    async with at_work([*command, *arguments], environ, data) as crew:
        address = await _said(crew, "ready ")
        users = [str(uuid.uuid4()) for _ in range(labs)]
        for user in users:
            await redis.rpush(NAMES.provision, LabRequest(webuserid=user, lab_id=LAB_ID).encode())
        tell(f"starting {labs:,} labs")
        took = await until(f"{labs} labs", lambda: _all_available(redis, users, crew), PATIENCE)
        async with _heard(redis) as heard:
            await _quiet(heard)
            tell(f"{labs:,} labs at rest")
            heard.clear()
            await asyncio.sleep(quiet)
            rest = list(heard)
            tell(f"{changes} changes")
            token = (data / "admin.token").read_text(encoding="ascii").strip()
            found = []
            async with Client(address, token) as client:
                for user in users[:changes]:
                    heard.clear()
                    await client.labs.extend(user, 1)
                    await _quiet(heard)
                    found.append((user, list(heard)))
    return [
        Row(
            what=f"{labs:,} labs live: changes in Redis in {quiet:g} s of rest",
            found=len(rest),
            unit="",
            wanted=0,
            at_most=True,
        ),
        *rows(found),
        Row(what=f"{labs:,} labs: from the first request until all are available", found=took, unit="s"),
    ]


def rows(found: Sequence[tuple[str, Sequence[Change]]]) -> list[Row]:
    """Return the rows: each item is a lab that was changed, and the changes observed after that."""
    own = [sum(1 for change in heard if change == Change(NAMES.server(user), "set")) for user, heard in found]
    foreign = [sum(1 for change in heard if not change.key.endswith(f":{user}")) for user, heard in found]
    return [
        Row(
            what="… times its record is written when one lab changes, at most",
            found=max(own),
            unit="",
            wanted=1,
            at_most=True,
        ),
        Row(
            what="… changes of anything else than that lab's, at most",
            found=max(foreign),
            unit="",
            wanted=0,
            at_most=True,
        ),
        Row(
            what="… commands that change a key, for one lab's change",
            found=sum(len(heard) for _, heard in found) / len(found),
            unit="",
        ),
    ]


async def _said(crew: Crew, text: str) -> str:
    async def done() -> bool:
        crew.check()
        return text in crew.output()

    await until(f"hostler up: {text}", done, PATIENCE)
    return crew.output().partition(text)[2].split()[0]


async def _all_available(redis: Any, users: Sequence[str], crew: Crew) -> bool:
    crew.check()
    await asyncio.sleep(0.2)  # each check reads every record
    values = await redis.mget([NAMES.server(user) for user in users])
    return all(value is not None and LabServer.decode(value).available for value in values)


@asynccontextmanager
async def _heard(redis: Any) -> AsyncIterator[list[Change]]:
    """Collect keyspace notifications of Redis while the context is open."""
    option = "notify-keyspace-events"
    before = (await redis.config_get(option))[option]
    heard: list[Change] = []
    async with redis.pubsub() as listening:
        await listening.psubscribe("__keyspace@*__:*")
        await redis.config_set(option, "KA")
        reading = asyncio.create_task(_read(listening, heard), name="bench: listening")
        try:
            yield heard
        finally:
            reading.cancel()
            await asyncio.wait((reading,))
            await redis.config_set(option, before)
        if not reading.cancelled():
            raise Unavailable(f"bench: Redis notifications ended: {reading.exception()}")


async def _read(listening: Any, heard: list[Change]) -> None:
    async for message in listening.listen():
        if message["type"] == "pmessage":
            key = message["channel"].decode().partition("__:")[2]
            heard.append(Change(key, message["data"].decode()))


async def _quiet(heard: list[Change]) -> None:
    """Wait until nothing has changed for `SETTLED` seconds."""
    count = -1
    while count != len(heard):
        count = len(heard)
        await asyncio.sleep(SETTLED)

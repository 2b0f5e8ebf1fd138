"""LabMan: a front end written from the interface's document alone. It knows Redis and nothing of Hostler.

Everything it reads is checked field by field and type by type, at every look.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any, Self

import redis.asyncio

PROVISION, DECOMMISSION = "vmmanager:provision", "vmmanager:decommission"
FIELDS = {
    "user": str,
    "address": str,
    "status": str,
    "available": bool,
    "cloudStatus": str,
    "serverId": str,
    "expiresAt": str,
    "webUserId": str,
    "labId": int,
}
STATUSES = ("provisioning", "running", "stopping")
ISO8601 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
DAY = 24 * 3600
LOOK_EVERY = 0.02

Server = dict[str, Any]
Connect = Callable[[str, str], Awaitable[None]]
"""Logs in as a user at an address, on port 22, and does something there."""


def check(text: bytes, webuserid: str) -> Server:
    """A record, exactly as the document has it."""
    found = json.loads(text)
    assert list(found) == list(FIELDS), f"not the nine fields in their order: {found}"
    for name, kind in FIELDS.items():
        assert type(found[name]) is kind, f"{name} is a {type(found[name]).__name__}: {found}"
    assert found["status"] in STATUSES, found
    assert ISO8601.fullmatch(found["expiresAt"]), found
    assert found["webUserId"] == webuserid, found
    assert found["labId"] >= 1, found
    assert found["user"], found
    assert found["cloudStatus"], found
    if found["available"]:
        assert found["status"] == "running", found
        assert found["serverId"], found
        assert ipaddress.ip_address(found["address"]).version == 6, found
    return found


class LabMan:
    """One front end. `patience`: seconds that a student waits for anything."""

    def __init__(self, url: str, *, patience: float) -> None:
        self.redis = redis.asyncio.Redis.from_url(url)
        self._patience = patience

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.redis.aclose()

    # What it can do

    async def ask(self, webuserid: str, lab: int) -> None:
        """RPUSH vmmanager:provision"""
        await self.redis.rpush(PROVISION, json.dumps({"webuserid": webuserid, "labId": lab}))

    async def ask_to_end(self, webuserid: str, lab: int | None) -> None:
        """RPUSH vmmanager:decommission"""
        request: dict[str, Any] = {"webuserid": webuserid}
        if lab is not None:
            request["labId"] = lab
        await self.redis.rpush(DECOMMISSION, json.dumps(request))

    async def server(self, webuserid: str) -> Server | None:
        """GET vmmanager:servers:{webuserid}, which lives for a day at most."""
        key = f"vmmanager:servers:{webuserid}"
        text, left = await asyncio.gather(self.redis.get(key), self.redis.ttl(key))
        if text is None:
            return None
        assert left == -2 or 0 < left <= DAY, f"{key} lives for {left} s"  # -2: it went between the two
        return check(text, webuserid)

    async def until(self, webuserid: str, is_so: Callable[[Server | None], bool]) -> Server | None:
        """Poll."""
        end = time.monotonic() + self._patience
        while not is_so(found := await self.server(webuserid)):
            assert time.monotonic() < end, f"{webuserid}: still {found}"
            await asyncio.sleep(LOOK_EVERY)
        return found

    async def available(self, webuserid: str, lab: int) -> Server:
        """Poll until it can be logged into; it is the lab that was asked for."""
        found = await self.until(webuserid, lambda found: found is not None and found["available"])
        assert found is not None
        assert found["labId"] == lab, found
        return found

    async def gone(self, webuserid: str) -> None:
        """Poll until the key is deleted."""
        await self.until(webuserid, lambda found: found is None)

    # The four scenarios

    async def first_time(self, webuserid: str, lab: int, connect: Connect) -> Server:
        """A user who has no lab gets one, sees it being made, and logs in."""
        assert await self.server(webuserid) is None
        await self.ask(webuserid, lab)
        await self.until(webuserid, lambda found: found is not None)
        found = await self.available(webuserid, lab)
        assert found["user"] == "student"
        await connect(found["user"], found["address"])
        return found

    async def switch(self, webuserid: str, old: int, new: int, connect: Connect) -> Server:
        """From one lab to another: end the old one, wait until it is gone, ask for the new one."""
        before = await self.server(webuserid)
        assert before is not None
        assert before["labId"] == old, before
        await self.ask_to_end(webuserid, old)
        await self.gone(webuserid)
        await self.ask(webuserid, new)
        found = await self.available(webuserid, new)
        assert found["serverId"] != before["serverId"], "another machine"
        await connect(found["user"], found["address"])
        return found

    async def reconnect(self, webuserid: str, lab: int, connect: Connect) -> Server:
        """A user comes back: the lab is there, and asking for it once more changes nothing."""
        before = await self.server(webuserid)
        assert before is not None
        assert (before["labId"], before["available"]) == (lab, True), before
        await connect(before["user"], before["address"])
        await self.ask(webuserid, lab)
        await self.answered()
        assert await self.server(webuserid) == before
        await connect(before["user"], before["address"])
        return before

    async def disconnect_and_time_out(self, webuserid: str, lab: int) -> None:
        """A user went away and did not come back in time. What the front end then sends late hurts nobody."""
        await self.ask_to_end(webuserid, lab + 1)  # a request about another lab is out of date
        await self.answered()
        found = await self.server(webuserid)
        assert found is not None
        assert (found["labId"], found["status"]) == (lab, "running"), found
        await self.ask_to_end(webuserid, lab)
        await self.gone(webuserid)
        await self.ask_to_end(webuserid, lab)  # once more
        await self.ask_to_end(webuserid, None)
        await self.answered()
        assert await self.server(webuserid) is None

    async def answered(self) -> None:
        """Until nothing is left in the queues or in the hands of workers."""
        end = time.monotonic() + self._patience
        quiet = 0
        while quiet < 3:
            left = await self.redis.llen(PROVISION) + await self.redis.llen(DECOMMISSION)
            async for _ in self.redis.scan_iter("vmmanager:processing:*"):
                left += 1
            quiet = 0 if left else quiet + 1
            assert time.monotonic() < end, f"{left} requests are not answered"
            await asyncio.sleep(LOOK_EVERY)

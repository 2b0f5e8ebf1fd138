"""The one connection that hears Redis' announcements: whoever waits is subscribed, whenever he joins."""

from __future__ import annotations

import asyncio
from typing import Any

from hostler.drivers.ttl.redis import Listener


class SlowConnection:
    """Sends its first command only once it is let; hears nothing."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, ...]] = []
        self.sending, self.let = asyncio.Event(), asyncio.Event()

    async def send_command(self, *words: str) -> None:
        self.sent.append(words)
        self.sending.set()
        await self.let.wait()

    async def read_response(self, **_: object) -> Any:
        await asyncio.Event().wait()

    async def disconnect(self, *, nowait: bool) -> None:
        assert nowait


async def test_who_joins_while_the_first_subscription_is_being_sent_is_subscribed_too() -> None:
    connection = SlowConnection()

    async def connect() -> Any:
        return connection

    listener = Listener(connect)
    async with listener.listening("one"):
        await connection.sending.wait()
        asyncio.get_running_loop().call_soon(connection.let.set)
        async with listener.listening("two"):
            assert connection.sent == [("SUBSCRIBE", "one"), ("SUBSCRIBE", "two")]
    assert connection.sent[2:] == [("UNSUBSCRIBE", "two")]

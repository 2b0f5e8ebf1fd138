"""The wire that tests break: when it is taken away, nothing of it is left."""

from __future__ import annotations

import asyncio

from hostler.testing.proxy import FaultyProxy


async def test_a_connection_whose_turn_comes_after_the_end_is_refused() -> None:
    """On a machine that is busy it may have been accepted, and nothing else done yet."""
    came: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    async with await asyncio.start_server(lambda *both: came.put_nowait(both), "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with FaultyProxy(f"127.0.0.1:{port}") as proxy:
            pass
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(20):
            await proxy._accept(*await came.get())
        writer.close()
        assert came.empty(), "it was connected to its target"

"""The server of the invocation benchmark: a complete server on an in-memory store with one worker.

python -m bench.invoke_server FOLDER WORKER     serves until it is ended; prints its URL and tokens
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from bench.invoke_worker import ARTIFACT, METHOD
from hostler.entry.control_plane import ControlPlaneProcess, first_admin
from hostler.entry.data_dir import DataFolder
from hostler.entry.server.logs import configure
from hostler.keys.families import ENDPOINT
from hostler.model.deployment import Endpoint, SliceState
from hostler.settings import load
from hostler.wiring import open_store


async def _serve(folder: Path, worker: str) -> None:
    configure("warning", sys.stderr, "text")
    settings = load({"data": folder, "listen": "127.0.0.1:0"}, environ={})
    endpoint = Endpoint(node_id="bench-1", instance=1, state=SliceState.ACTIVE, address=worker)
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store("memory://"))
        await store.txn([], [ENDPOINT.put(endpoint, artifact=ARTIFACT, method=METHOD, instance=1)])
        plane = await stack.enter_async_context(ControlPlaneProcess(store, settings))
        server = await stack.enter_async_context(plane.served())
        token = await first_admin(plane.users, DataFolder(folder))
        while not plane.view.routers.entries:  # noqa: ASYNC110 - it registers in a moment
            await asyncio.sleep(0.01)
        admitted = next(iter(plane.view.routers.entries.values())).value.token_sha256
        for line in (f"token {token}", f"admit {admitted}", f"serving {server.url}"):
            print(line, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), sys.argv[2]))

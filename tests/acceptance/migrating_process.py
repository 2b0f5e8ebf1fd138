"""The process that moves machines from a state file into a cluster and is killed, and the one it is forked from.

`python migrating_process.py` imports everything once and forks a process for each order it reads (one JSON line), so
that a round costs milliseconds. It answers with how that process ended, and with what it said if it came to its end.

An order may name a write, by its number, at which the process ends itself as kill -9 does: before the store has seen
it, or after it was done and before anybody learned of it. Writes to both stores count.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import uuid
from typing import Any

import hostler
import hostler.drivers.store.file
import hostler.drivers.store.sqlite
from hostler.engine.migration import migrate
from hostler.kit.clock import SystemClock

WRITES = ("txn", "put", "delete", "delete_prefix", "grant")


class Mortal:
    """A store whose process dies at one of its writes."""

    writes = 0

    def __init__(self, store: Any, order: dict[str, Any]) -> None:
        self._store, self._order = store, order

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._store, name)
        if name not in WRITES:
            return verb

        async def counted(*args: Any, **more: Any) -> Any:
            Mortal.writes += 1
            last = Mortal.writes == self._order.get("nth")
            if last and self._order["when"] == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            result = await verb(*args, **more)
            if last:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return counted


async def move(order: dict[str, Any]) -> str:
    async with hostler.open_store(order["old"]) as old, hostler.open_store(order["new"]) as new:
        done = await migrate(
            Mortal(old, order),  # type: ignore[arg-type]
            Mortal(new, order),  # type: ignore[arg-type]
            source=order["old"],
            clock=SystemClock(),
            new_id=lambda: uuid.uuid4().hex,
        )
        return str(done)


def serve() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        receiving, sending = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(receiving)
            os.write(sending, asyncio.run(move(order)).encode())
            os._exit(0)
        os.close(sending)
        with os.fdopen(receiving, "rb") as pipe:
            said = pipe.read().decode()
        _, status = os.waitpid(pid, 0)
        print(json.dumps({"ended": os.waitstatus_to_exitcode(status), "said": said}), flush=True)


if __name__ == "__main__":
    serve()

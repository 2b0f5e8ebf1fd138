"""One contestant of an election, as a process: python -m bench.election_contestant URL TTL

It reads commands from standard input, one per line, and answers with lines of JSON. All times are CLOCK_MONOTONIC,
which all processes of the host share.

    stand     answers {"leading": t} once it leads
    release   answers {"releasing": t} before it gives up, and {"released": t} after
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from hostler.engine.replica import Replica, ReplicaConfig
from hostler.wiring import open_ttl_storage


def say(what: str) -> None:
    """Answer with the current time."""
    print(json.dumps({what: time.monotonic()}), flush=True)


async def obey(url: str, ttl: float) -> None:
    """Execute commands until the input ends."""
    loop = asyncio.get_running_loop()
    async with open_ttl_storage(url) as storage:
        replica: Replica | None = None
        say("ready")
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            if line.strip() == "stand":
                replica = Replica(ReplicaConfig(ip="contestant"), storage, [])
                problem = await replica.launch(ttl, None)
                if problem.error is not None:
                    raise problem.error
                say("leading")
            elif replica is not None:
                say("releasing")
                await replica.shutdown()
                say("released")


if __name__ == "__main__":
    asyncio.run(obey(sys.argv[1], float(sys.argv[2])))

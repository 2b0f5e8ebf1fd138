"""The worker of the invocation benchmark: a slice with one method, served as by every worker.

python -m bench.invoke_worker PORT SHA256 [SHA256…]     accepts calls with these tokens
"""

from __future__ import annotations

import asyncio
import sys
from types import ModuleType
from typing import Any

from hostler.slices.calls import Calls
from hostler.slices.client import Context
from hostler.slices.module import SliceModule, method
from hostler.slices.serving import Connection, Serving

ARTIFACT, BASE, METHOD = "bench:echo:1.0", "bench:echo", "echo"


@method(idempotent=True)
async def echo(text: str) -> dict[str, Any]:
    """Return the text."""
    return {"text": text}


async def _serve(port: int, tokens: frozenset[str]) -> None:
    module = ModuleType("echo")
    module.echo = echo  # type: ignore[attr-defined]
    calls = Calls(SliceModule(module), Context(artifact=ARTIFACT, instance=1, node="bench-1"), concurrency=1000)
    calls.is_active = True
    serving = Serving(calls, tokens)
    await asyncio.get_running_loop().create_server(lambda: Connection(serving), "127.0.0.1", port, backlog=128)
    print(f"taking calls at 127.0.0.1:{port}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), frozenset(sys.argv[2:])))

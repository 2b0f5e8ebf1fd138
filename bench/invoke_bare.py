"""The bare framework: a Starlette route that echoes the request body, in the server that Hostler uses.

python -m bench.invoke_bare     serves until it is ended; prints its URL
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import uvicorn

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request

PATH = "/v1/invoke/{artifact}/{method}"


def app() -> Starlette:
    """Return the echo app. The framework is needed only for the comparison."""
    try:
        from starlette.applications import Starlette
        from starlette.responses import Response
        from starlette.routing import Route
    except ImportError:
        raise SystemExit("starlette: not installed, but needed for the comparison; pip install starlette") from None

    async def echo(request: Request) -> Response:
        return Response(await request.body(), media_type="application/json")

    return Starlette(routes=[Route(PATH, echo, methods=["POST"])])


async def _serve() -> None:
    # The protocol is given explicitly, because asyncio sets TCP_NODELAY only then.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)  # before the URL is printed, so that no client is refused
    config = uvicorn.Config(
        app(), http="httptools", loop="none", lifespan="off", log_config=None, access_log=False, ws="none"
    )
    print(f"serving http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    await uvicorn.Server(config).serve(sockets=[listener])


if __name__ == "__main__":
    asyncio.run(_serve())

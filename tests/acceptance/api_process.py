"""A server on SQLite as a process of its own, until its standard input ends. Prints its address and a token."""

from __future__ import annotations

import asyncio
import sys

from api_server import VM_BODY, serving


async def main(folder: str) -> None:
    """Serve what the fuzzer shall find: a project with a machine, a node, an account."""
    async with serving(f"sqlite://{folder}/api.db", sockets=True) as api:
        await api.node("n1")
        await api.call("POST", "/v1/orgs/acme/projects/web/vms", json=VM_BODY)
        await api.call("POST", "/v1/users", json={"name": "ann", "password": "password", "memberships": ["acme"]})
        print(api.url, api.admin, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

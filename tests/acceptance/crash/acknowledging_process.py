"""Writes a little of everything, one step at a time, and says so after each: for a test that watches its system calls.

python acknowledging_process.py STORE_URL ACKNOWLEDGEMENTS_FILE
"""

from __future__ import annotations

import asyncio
import os
import sys

import hostler
from hostler import Delete, ModRevision, Put


async def main(url: str, file: str) -> None:
    acknowledgements = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def acknowledge(what: str) -> None:
        os.write(acknowledgements, f"{what}\n".encode())

    async with hostler.open_store(url) as store:
        for number in range(40):
            revision = await store.put("/a", b"%d" % number * 200)
            acknowledge(f"put {number}")
            await store.txn([ModRevision("/a") == revision], [Put("/b", b"b"), Put("/c", b"c" * 3000), Delete("/d")])
            acknowledge(f"txn {number}")
            await asyncio.gather(*(store.put(f"/many/{n}", b"%d" % number) for n in range(8)))
            acknowledge(f"eight puts {number}")
            lease = await store.grant(60)
            acknowledge(f"grant {number}")
            await store.put("/d", b"d", lease=lease)
            acknowledge(f"leased put {number}")
            await lease.keep_alive()
            acknowledge(f"keep-alive {number}")
            await lease.revoke()
            acknowledge(f"revoke {number}")
            await store.delete_prefix("/many/")
            acknowledge(f"delete {number}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

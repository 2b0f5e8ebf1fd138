"""The measured operations on a store and on a bare engine, as similar as the two allow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.ports.store import Put, Version

if TYPE_CHECKING:
    from hostler.entry.bench.measure import Operation
    from hostler.ports.bare import Bare
    from hostler.ports.store import Store

VALUE = b'{"name":"vm-0042","node":"rack1-blade7","power":"on","image":"debian-12","memory_mib":2048,"labels":{"a":1}}'
KEYS = 1_000
"""Keys of the range; gets read one of them, puts overwrite one."""


def key(root: str, kind: str, number: int) -> str:
    """Return a key of typical length."""
    return f"{root}{kind}/{number % KEYS:06d}"


def of_store(store: Store, root: str) -> dict[str, Operation]:
    """Return the operations on a store by name."""

    async def put(client: int, turn: int) -> object:
        return await store.put(key(root, "p", client * 37 + turn), VALUE)

    async def get(client: int, turn: int) -> object:
        return await store.get(key(root, "d", client * 37 + turn))

    async def txn(client: int, turn: int) -> object:
        names = _three(root, client, turn)
        return await store.txn([Version(names[0]) > -1], [Put(name, VALUE) for name in names])

    async def range_(client: int, turn: int) -> object:  # noqa: ARG001 - every range is the same
        return await store.range(f"{root}d/", limit=KEYS)

    return {"put": put, "get": get, "txn of 3": txn, "range of 1,000": range_}


def of_bare(bare: Bare, root: str) -> dict[str, Operation]:
    """Return the same operations on a bare engine."""

    async def put(client: int, turn: int) -> object:
        return await bare.put(key(root, "p", client * 37 + turn).encode(), VALUE)

    async def get(client: int, turn: int) -> object:
        return await bare.get(key(root, "d", client * 37 + turn).encode())

    async def txn(client: int, turn: int) -> object:
        return await bare.txn3([name.encode() for name in _three(root, client, turn)], VALUE)

    async def range_(client: int, turn: int) -> object:  # noqa: ARG001 - every range is the same
        return await bare.range(f"{root}d/".encode(), KEYS)

    return {"put": put, "get": get, "txn of 3": txn, "range of 1,000": range_}


def _three(root: str, client: int, turn: int) -> list[str]:
    return [key(root, f"t{part}", client * 37 + turn) for part in "abc"]


async def prepare_store(store: Store, root: str) -> None:
    """Write the keys that gets and ranges read."""
    for first in range(0, KEYS, 100):
        await store.txn([], [Put(key(root, "d", number), VALUE) for number in range(first, first + 100)])


async def prepare_bare(bare: Bare, root: str) -> None:
    """Write the same keys to a bare engine."""
    for number in range(KEYS):
        await bare.put(key(root, "d", number).encode(), VALUE)

"""`python -m bench store`: a store compared with the engine below its driver, and a store of a million keys.

`python -m bench store` measures the same operations without these two.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from bench.bare import open_bare
from bench.many_keys import million, million_pairs
from hostler.entry.cli.bench import Supplement, measure_store, store_options
from hostler.entry.cli.options import path_url
from hostler.entry.store_benchmark import KEYS, VALUE, key, three_keys
from hostler.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from bench.bare import Bare
    from hostler.entry.store_benchmark import Baseline, Operation

MILLION = 1_000_000


@click.command()
@store_options
@click.option(
    "--million", "with_million", is_flag=True, help="Also a store of a million keys (sqlite only; half a minute)."
)
def store(url: str | None, with_million: bool, **options: Any) -> None:
    """Compare the store at URL with its bare engine, in alternating rounds. Default: a new embedded store.

    The benchmark writes under its own prefix and deletes it afterwards. A ratio is the rate of the store divided by the
    rate of the bare engine or peer.
    """
    if with_million and url is not None and not url.startswith("sqlite:"):
        raise Invalid("--million: is for sqlite stores; leave it out, or name a sqlite:// URL")
    measure_store(url, baseline_of=_baseline, supplement=_million if with_million else None, **options)


def _million(folder: Path) -> Supplement:
    found = million(path_url("sqlite", folder / "million.db"), path_url("sqlite", folder / "empty.db"), MILLION)
    return Supplement("million", "a million keys", found, million_pairs(found))


def _baseline(url: str) -> Baseline | None:
    bare = open_bare(url)
    return None if bare is None else partial(_prepare, bare)


@asynccontextmanager
async def _prepare(bare: Bare, root: str) -> AsyncIterator[Mapping[str, Operation]]:
    async with bare:
        await prepare_bare(bare, root)
        yield bare_operations(bare, root)


def bare_operations(bare: Bare, root: str) -> dict[str, Operation]:
    """Return the same operations on a bare engine."""

    async def put(client: int, turn: int) -> object:
        return await bare.put(key(root, "p", client * 37 + turn).encode(), VALUE)

    async def get(client: int, turn: int) -> object:
        return await bare.get(key(root, "d", client * 37 + turn).encode())

    async def txn(client: int, turn: int) -> object:
        return await bare.txn3([name.encode() for name in three_keys(root, client, turn)], VALUE)

    async def range_(client: int, turn: int) -> object:  # noqa: ARG001 - every range is the same
        return await bare.range(f"{root}d/".encode(), KEYS)

    return {"put": put, "get": get, "txn of 3": txn, "range of 1,000": range_}


async def prepare_bare(bare: Bare, root: str) -> None:
    """Write the same keys to a bare engine."""
    for number in range(KEYS):
        await bare.put(key(root, "d", number).encode(), VALUE)

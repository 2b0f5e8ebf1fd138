"""Paged scan of a store at one revision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from hostler.ports.store import KeyValue, Page, Store

FIRST, MOST, LEAST = 128, 1_000, 8
PAGE_BYTES = 4 * 1024 * 1024


async def pages(
    store: Store, prefix: str, *, revision: int | None = None, limit: int | None = None, keys_only: bool = False
) -> AsyncGenerator[Page, None]:
    """Yield the keys under `prefix`, all at one revision: at least one page, at most `limit` keys.

    Pages grow to about `PAGE_BYTES`, so that neither tiny nor huge values cost much time or memory.
    """
    after: str | None = None
    size = FIRST
    while True:
        wanted = size if limit is None else min(size, limit)
        page = await store.range(prefix, after=after, limit=wanted, revision=revision, keys_only=keys_only)
        yield page
        if limit is not None:
            limit -= len(page.items)
        if not page.more or not page.items or limit == 0:
            return
        after, revision = page.items[-1].key, page.revision
        held = sum(len(kv.key) + len(kv.value) + 64 for kv in page.items)
        size = max(LEAST, min(MOST, PAGE_BYTES * len(page.items) // held))


async def items(store: Store, prefix: str, *, revision: int | None = None) -> AsyncGenerator[KeyValue, None]:
    """Yield every key under `prefix`, at one revision. Invalid: one is not UTF-8, so no other store accepts it."""
    async for page in pages(store, prefix, revision=revision):
        for kv in page.items:
            _check_text(kv.key)
            yield kv


def _check_text(key: str) -> None:
    try:
        key.encode()
    except UnicodeEncodeError:
        raw = key.encode("utf-8", "surrogateescape")
        raise Invalid(
            f"key {raw!r}: not UTF-8, so another program wrote it; delete it there, or choose a prefix without it"
        ) from None


async def side_by_side(
    left: AsyncGenerator[KeyValue, None], right: AsyncGenerator[KeyValue, None]
) -> AsyncGenerator[tuple[KeyValue | None, KeyValue | None], None]:
    """Merge two scans in key order: a key that only one side has is paired with None.

    Stores order keys by their UTF-8 bytes, which is also the order of Python strings.
    """
    a, b = await anext(left, None), await anext(right, None)
    while a is not None or b is not None:
        if b is None or (a is not None and a.key < b.key):
            yield a, None
            a = await anext(left, None)
        elif a is None or b.key < a.key:
            yield None, b
            b = await anext(right, None)
        else:
            yield a, b
            a, b = await anext(left, None), await anext(right, None)

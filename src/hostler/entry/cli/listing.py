"""Lists: read page by page, and shown as a table or as data."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from hostler.entry.cli import show
from hostler.entry.cli.failure import note
from hostler.entry.cli.server_options import read

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from hostler.client import Client
    from hostler.client.pages import Page, Pages

P = TypeVar("P")
T = TypeVar("T")

PAGE = 500


async def all_of(client: Client, list_: Callable[..., Pages[P, T]], limit: int | None = None) -> AsyncIterator[T]:
    """Yield all items that `list_` of the client returns, or the first `limit`; each page is fetched by `read`."""
    left, after = limit, None
    while left is None or left > 0:
        count = PAGE if left is None else min(PAGE, left)

        def asked(stale: bool, after: str | None = after, count: int = count) -> Pages[P, T]:
            return list_(limit=count, after=after, stale=stale)

        page: Page[T] = await read(client, asked)  # type: ignore[arg-type]
        for item in page.items:
            yield item
        left = None if left is None else left - len(page.items)
        after = page.after
        if after is None:
            return


def show_all(
    found: Sequence[T], output: str, heads: Sequence[str], row: Callable[[T], Sequence[str]], none: str
) -> None:
    """Show all items; if a table would be empty, print the note `none`."""
    if output != "table":
        show.emit(msgspec.to_builtins(found), output)
    elif not found:
        note(none)
    else:
        show.Columns(*heads).rows([row(each) for each in found])

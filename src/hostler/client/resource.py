"""What the methods of all resources share: their options, and lists page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypedDict, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Generator

    from hostler.client.transport import HttpTransport

T = TypeVar("T")
P = TypeVar("P")
Item_co = TypeVar("Item_co", covariant=True)


class Page(Protocol[Item_co]):
    """What every page has."""

    @property
    def items(self) -> tuple[Item_co, ...]: ...

    @property
    def after(self) -> str | None: ...


class Pages(Generic[P, T]):
    """`await` it for one page; `async for` over it for every item, page after page."""

    def __init__(self, page: Callable[[str | None], Awaitable[P]], after: str | None) -> None:
        self._page, self._after = page, after

    def __await__(self) -> Generator[None, None, P]:
        return self._page(self._after).__await__()

    async def __aiter__(self) -> AsyncIterator[T]:
        after, more = self._after, True
        while more:
            page: Page[T] = await self._page(after)  # type: ignore[assignment]
            for item in page.items:
                yield item
            after, more = page.after, page.after is not None


class Keyed(TypedDict, total=False):
    """An option of every write."""

    key: str | None
    """An Idempotency-Key; default: a new one, so that the write can be repeated after a lost answer."""


class WriteOptions(Keyed, total=False):
    """Options of a write of something that exists."""

    if_match: int | None
    """The revision that it is based on."""


class CallOptions(WriteOptions, total=False):
    """Options of a request."""

    stale: bool
    """Accept an answer from the server's memory."""


class Paging(TypedDict, total=False):
    """Options of a list."""

    limit: int | None
    """The size of a page."""
    after: str | None
    """Where the page before ended."""


class StalePaging(Paging, total=False):
    """Options of a list that the server can answer from memory."""

    stale: bool


class TransportOptions(TypedDict, total=False):
    """More options of a client."""

    ca: str | None
    """A file of certificates to trust."""
    on_slowed: Callable[[str], None] | None
    """Gets a message when a request waits for a rate limit."""


class Resource:
    """The operations of a kind of resource."""

    def __init__(self, wire: HttpTransport) -> None:
        self._wire = wire

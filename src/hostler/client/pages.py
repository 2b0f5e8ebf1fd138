"""Lists: one page, or all items page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Generator

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

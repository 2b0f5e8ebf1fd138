"""`expect` of Playwright, which looks more often and waits as long as the pace of the machine asks for.

Playwright looks once a second after its first second, and gives up after a fixed time. Here it looks about ten times a
second. `SOON` is what a page may take on a quiet machine; twice that is waited, times how much slower the machine was
meanwhile.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, overload

import playwright.async_api
from harness import pace
from playwright.async_api import Locator, LocatorAssertions, Page, PageAssertions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

SOON = 4.0
"""Seconds in which a page shows what a test expects of it, unless the test says otherwise."""
LOOK = 150.0
"""Milliseconds of one call of Playwright, which looks at once and after 100 milliseconds."""


@overload
def expect(actual: Locator, message: str | None = None, *, within: float = SOON) -> LocatorAssertions: ...
@overload
def expect(actual: Page, message: str | None = None, *, within: float = SOON) -> PageAssertions: ...
def expect(actual: Any, message: str | None = None, *, within: float = SOON) -> Any:
    """Expect something of a page. `within`: seconds that it may take on a quiet machine."""
    return _Patient(playwright.async_api.expect(actual, message), within)


def milliseconds(seconds: float = SOON) -> float:
    """As `pace.patience`, for time limits of Playwright."""
    return 1000.0 * pace.patience(seconds)


class _Patient:
    def __init__(self, assertions: Any, within: float) -> None:
        self._assertions, self._within = assertions, within

    def __getattr__(self, name: str) -> Callable[..., Awaitable[None]]:
        look = getattr(self._assertions, name)

        async def wait(*expected: Any, **options: Any) -> None:
            began = time.monotonic()
            while True:
                try:
                    return await look(*expected, timeout=LOOK, **options)
                except AssertionError:
                    waited = time.monotonic() - began
                    if waited > 2 * self._within and waited > 2 * self._within * pace.slowdown(began):
                        raise

        return wait

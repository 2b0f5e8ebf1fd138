"""`expect` of Playwright, which looks more often and waits as long as the pace of the machine asks for.

Playwright looks once a second after its first second, and gives up after a fixed time. Here it looks about ten times a
second. `SOON` is what a page may take on a quiet machine; twice that is waited, times how much slower the machine was
meanwhile.

While an element is missing, Playwright describes the whole page for its message each time it looks. That used a third
of the processor time of the browser, so an element is awaited without it first.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, overload

import playwright.async_api
from harness import pace
from playwright.async_api import Locator, LocatorAssertions, Page, PageAssertions
from playwright.async_api import TimeoutError as NotInTime

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

SOON = 4.0
"""Seconds in which a page shows what a test expects of it, unless the test says otherwise."""
LOOK = 150.0
"""Milliseconds of one call of Playwright, which looks at once and after 100 milliseconds."""
APPEAR = 500.0
"""Milliseconds of one call that waits for an element; it looks every 100 milliseconds at the longest."""
NEED_AN_ELEMENT = frozenset(
    {
        *("to_be_visible", "to_be_enabled", "to_be_disabled", "to_be_checked", "to_be_focused", "to_be_editable"),
        *("to_contain_text", "to_have_text", "to_have_value", "to_have_attribute", "to_have_class", "to_have_css"),
        *("to_have_accessible_name", "to_have_accessible_description", "to_have_role", "to_have_id"),
    }
)
"""Expectations that fail while the element is missing."""


@overload
def expect(actual: Locator, message: str | None = None, *, within: float = SOON) -> LocatorAssertions: ...
@overload
def expect(actual: Page, message: str | None = None, *, within: float = SOON) -> PageAssertions: ...
def expect(actual: Any, message: str | None = None, *, within: float = SOON) -> Any:
    """Expect something of a page. `within`: seconds that it may take on a quiet machine."""
    return _Patient(actual, playwright.async_api.expect(actual, message), within)


def milliseconds(seconds: float = SOON) -> float:
    """As `pace.patience`, for time limits of Playwright."""
    return 1000.0 * pace.patience(seconds)


class _Patient:
    def __init__(self, actual: Any, assertions: Any, within: float) -> None:
        self._actual, self._assertions, self._within = actual, assertions, within

    def __getattr__(self, name: str) -> Callable[..., Awaitable[None]]:
        look = getattr(self._assertions, name)

        async def wait(*expected: Any, **options: Any) -> None:
            began = time.monotonic()

            def is_over() -> bool:
                waited = time.monotonic() - began
                return waited > 2 * self._within and waited > 2 * self._within * pace.slowdown(began)

            if name in NEED_AN_ELEMENT and isinstance(self._actual, Locator) and _is_of_one(expected, options):
                while not await _appears(self._actual) and not is_over():
                    pass
            while True:
                try:
                    return await look(*expected, timeout=LOOK, **options)
                except AssertionError:
                    if is_over():
                        raise

        return wait


def _is_of_one(expected: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Whether the expectation is about one element that is there, and not about a list or an absence."""
    return not any(isinstance(each, list | tuple) for each in expected) and False not in options.values()


async def _appears(locator: Locator) -> bool:
    try:
        await locator.first.wait_for(state="attached", timeout=APPEAR)
    except NotInTime:
        return False
    return True

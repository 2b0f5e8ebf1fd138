"""What the fixtures of the web tests are called with."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from playwright.async_api import Page
from web_plane import PASSWORD, Plane

WIDE, NARROW = (1280, 800), (360, 740)
SHOTS = bool(os.environ.get("HOSTLER_SHOTS"))
"""Pictures are taken for the documentation (`make shots`)."""

Check = Callable[[Page], Awaitable[None]]
"""`axe`, `narrow`: await it with the page as it is now."""


class NewPage(Protocol):
    def __call__(self, size: tuple[int, int] = WIDE, **options: Any) -> Awaitable[Page]: ...


class SignIn(Protocol):
    def __call__(self, page: Page, plane: Plane, name: str, password: str = PASSWORD) -> Awaitable[None]: ...


class Enter(Protocol):
    def __call__(self, page: Page, plane: Plane, name: str = "admin", at: str = "#/overview") -> Awaitable[None]: ...


class Shot(Protocol):
    def __call__(self, page: Page, name: str, *, scheme: str = "light") -> Awaitable[None]: ...

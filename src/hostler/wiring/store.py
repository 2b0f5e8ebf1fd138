"""Stores by their URLs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.ports.url_driver import StoreDriver
from hostler.settings.driver import STORES, installed
from hostler.wiring.url import InstalledOpeners, opened_by

if TYPE_CHECKING:
    from hostler.ports.store import Store


def open_store(url: str) -> Store:
    """Return the store at `url`, to be entered with `async with`.

    `memory://`, `sqlite:///abs/path.db`, `file:///abs/path/state.json`, `etcd://host:port[,host:port…]`, `etcds://…`,
    and the URLs of installed drivers.
    """
    return opened_by(url, STORE_OPENERS, "store URL")


def is_store(url: str) -> bool:
    """Return whether `open_store` accepts the scheme of `url`."""
    return url.partition("://")[0] in STORE_OPENERS


def is_shared_store(url: str) -> bool:
    """Return whether several hosts can use the store."""
    return is_store(url) and installed(STORES).get(url.partition("://")[0], StoreDriver, "store URL").shared


STORE_OPENERS = InstalledOpeners(STORES, StoreDriver, lambda driver: driver.open)

"""TTL storages by their URLs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.ports.url_driver import StoreDriver, TtlDriver
from hostler.settings.driver import STORES, TTL
from hostler.wiring.url import InstalledOpeners, Opener, opened_by

if TYPE_CHECKING:
    from urllib.parse import SplitResult

    from hostler.ports.store import Store
    from hostler.ports.ttl import TtlStorage
    from hostler.ports.url import Options


def open_ttl_storage(url: str) -> TtlStorage:
    """Return the TTL storage at `url`, to be entered with `async with`.

    Every store URL; `redis://host:port/db`, `rediss://…`, `dynamodb://table?region=…`,
    `cassandra://host:port/keyspace`; and the URLs of installed drivers.
    """
    return opened_by(url, _OPENERS, "ttl storage URL")


def ttl_storage_on(store: Store) -> TtlStorage:
    """Return a TTL storage on a store that is opened and closed elsewhere; it is not entered."""
    from hostler.drivers.ttl.store import StoreTtlStorage

    return StoreTtlStorage(store)


def _on_store(driver: StoreDriver) -> Opener[TtlStorage]:
    def opened(url: SplitResult, options: Options) -> TtlStorage:
        return ttl_storage_on(driver.open(url, options))

    return opened


_OPENERS = InstalledOpeners(
    TTL, TtlDriver, lambda driver: driver.open, before=[InstalledOpeners(STORES, StoreDriver, _on_store)]
)

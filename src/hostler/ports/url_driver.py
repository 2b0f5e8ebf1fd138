"""The descriptors of drivers that a URL selects. The name of the entry point is the scheme.

A driver with several schemes has an entry point for each. The module of a descriptor must be quick to import: the
driver itself is imported by `open`, which takes the options that it knows out of the URL; what remains is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.settings.driver import Driver

if TYPE_CHECKING:
    from collections.abc import Callable
    from urllib.parse import SplitResult

    from hostler.ports.power import Power
    from hostler.ports.store import Store
    from hostler.ports.ttl import TtlStorage
    from hostler.ports.url import Options


class StoreDriver(Driver, frozen=True, kw_only=True):
    """A store: entry points in the group `hostler.stores`. Every store is a TTL storage too."""

    open: Callable[[SplitResult, Options], Store]
    """Return the store, to be entered. Nothing is touched before that."""
    shared: bool = False
    """Several hosts can use one store."""


class TtlDriver(Driver, frozen=True, kw_only=True):
    """A TTL storage that is not a store: entry points in the group `hostler.ttl`."""

    open: Callable[[SplitResult, Options], TtlStorage]
    """Return the storage, to be entered. Nothing is touched before that."""


class PowerDriver(Driver, frozen=True, kw_only=True):
    """A kind of power switch: entry points in the group `hostler.power`."""

    open: Callable[[SplitResult, Options, float, Callable[[str], None]], Power | None]
    """Return the switch at a URL in which the name of the node is already inserted.

    Takes a time limit in seconds, and a receiver of messages. None: the URL's host is not a host name,
    because of the name of the node.
    """

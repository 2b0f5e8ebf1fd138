"""Stores, TTL storages, lab queues and power switches: each opened by the scheme of its URL."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import SplitResult, quote, urlsplit

from hostler.errors import Invalid
from hostler.keys.lab import LabNames
from hostler.ports.power import OneSystem
from hostler.ports.url import ESCAPE, Options, PowerDriver, StoreDriver, TtlDriver, extra
from hostler.settings.driver import POWER, STORES, TO_ADD, TTL, Driver, installed
from hostler.settings.value import COMMAND, NODE, read_power_command

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hostler.drivers.power import PowerByNode
    from hostler.drivers.redis_client import RedisLink
    from hostler.ports.inbox import Inbox, LabRecords
    from hostler.ports.power import HostWatchdog, Power, PowerReader
    from hostler.ports.store import Store
    from hostler.ports.ttl import TtlStorage

T = TypeVar("T")
D = TypeVar("D", bound=Driver)
Opener = Callable[[SplitResult, Options], T]


class InstalledOpeners(Mapping[str, Opener[T]]):
    """The openers of the installed drivers of a group, by scheme; drivers are loaded when they are used.

    `opener` takes the opener out of a descriptor. `before`: other openers, which are tried first.
    """

    def __init__(
        self,
        group: str,
        kind: type[D],
        opener: Callable[[D], Opener[T]],
        *,
        before: Sequence[Mapping[str, Opener[T]]] = (),
    ) -> None:
        self._group, self._before = group, before
        self._find: Callable[[str], Opener[T]] = lambda scheme: opener(installed(group).get(scheme, kind, "scheme"))

    def __getitem__(self, scheme: str) -> Opener[T]:
        for openers in self._before:
            if scheme in openers:
                return openers[scheme]
        if not installed(self._group).has(scheme):
            raise KeyError(scheme)
        return self._find(scheme)

    def __contains__(self, scheme: object) -> bool:
        return any(scheme in openers for openers in self._before) or installed(self._group).has(str(scheme))

    def __iter__(self) -> Iterator[str]:
        for openers in self._before:
            yield from openers
        yield from installed(self._group).names

    def __len__(self) -> int:
        return len(list(iter(self)))


def open_by_scheme(url: str, openers: Mapping[str, Callable[[SplitResult, Options], T]], what: str) -> T:
    """Call the opener of the URL's scheme. Invalid: unknown scheme, or an unknown option."""
    if not isinstance(url, str):
        raise Invalid(f"{what}: must be a str, not {type(url).__name__}")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise Invalid(f"{what}: cannot be read as SCHEME://HOST:PORT; {ESCAPE}") from None
    opener = openers.get(parts.scheme)
    if opener is None:
        known = ", ".join(f"{scheme}://" for scheme in openers)
        which = f"with scheme {parts.scheme!r}" if "://" in url else "without a scheme"
        advice = f"; {TO_ADD}" if isinstance(openers, InstalledOpeners) else ""
        raise Invalid(f"{what} {which}: unknown; known are {known}{advice}")
    if parts.fragment:
        raise Invalid(f"{what} {parts.scheme}://…: a '#' in it must be written %23; {ESCAPE}")
    options = Options(parts, what)
    opened = opener(parts, options)
    options.finish()
    return opened


def open_store(url: str) -> Store:
    """Return the store at `url`, to be entered with `async with`.

    `memory://`, `sqlite:///abs/path.db`, `file:///abs/path/state.json`, `etcd://host:port[,host:port…]`, `etcds://…`,
    and the URLs of installed drivers.
    """
    return open_by_scheme(url, STORE_OPENERS, "store URL")


def is_store(url: str) -> bool:
    """Return whether `open_store` accepts the scheme of `url`."""
    return url.partition("://")[0] in STORE_OPENERS


def is_shared_store(url: str) -> bool:
    """Return whether several hosts can use the store."""
    return is_store(url) and installed(STORES).get(url.partition("://")[0], StoreDriver, "store URL").shared


STORE_OPENERS = InstalledOpeners(STORES, StoreDriver, lambda driver: driver.open)


def open_ttl_storage(url: str) -> TtlStorage:
    """Return the TTL storage at `url`, to be entered with `async with`.

    Every store URL; `redis://host:port/db`, `rediss://…`, `dynamodb://table?region=…`,
    `cassandra://host:port/keyspace`; and the URLs of installed drivers.
    """
    return open_by_scheme(url, _OPENERS, "ttl storage URL")


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


_WHAT = "Redis URL of the labs"


def open_inbox(url: str, *, names: LabNames | None = None) -> Inbox:
    """Return the queues at `redis://host:port/db` or `rediss://…`, to be entered with `async with`."""
    with extra("redis"):
        from hostler.drivers.inbox.redis import RedisInbox

        return RedisInbox(_link(url, "hostler.wiring.open_inbox"), names or LabNames())


def open_board(url: str, *, names: LabNames | None = None) -> LabRecords:
    """Return the records at `redis://host:port/db` or `rediss://…`, to be entered with `async with`."""
    with extra("redis"):
        from hostler.drivers.inbox.redis import RedisLabRecords

        return RedisLabRecords(_link(url, "hostler.wiring.open_board"), names or LabNames())


def _link(url: str, opener: str) -> RedisLink:
    from hostler.drivers.redis_client import redis_link

    def linked(parts: SplitResult, options: Options) -> RedisLink:
        return redis_link(parts, options, _WHAT, opener=opener, fenced=True)

    openers: dict[str, Callable[[SplitResult, Options], RedisLink]] = {"redis": linked, "rediss": linked}
    return open_by_scheme(url, openers, _WHAT)


WHAT = "power URL"


def open_power(
    command: Sequence[str], boards: Mapping[str, str] | None = None, *, timeout: float, tell: Callable[[str], None]
) -> Power | None:
    """Return the switches of the settings `power_command` and `power`; None: there are none.

    `tell` receives messages about their actions. Invalid: an entry of `power` is not valid.
    """
    from hostler.drivers.power import CommandPower

    otherwise = CommandPower(command, timeout=timeout, tell=tell) if command else None
    return _by_node(boards, otherwise, timeout=timeout, tell=tell) if boards else otherwise


def open_power_reader(command: Sequence[str], boards: Mapping[str, str]) -> PowerReader:
    """Return a reader of the power state, by the same settings. It changes nothing. Invalid: a setting is not valid."""
    from hostler.drivers.power import CommandPower

    return _by_node(boards, CommandPower(command) if command else None, timeout=60.0, tell=lambda _: None)


def open_watchdog(path: Path, *, timeout: float) -> HostWatchdog:
    """Open this host's watchdog, which starts it. Unavailable: it cannot be used."""
    from hostler.drivers.watchdog import WatchdogDevice

    return WatchdogDevice(path, timeout=timeout)


def _by_node(
    boards: Mapping[str, str], otherwise: Power | None, *, timeout: float, tell: Callable[[str], None]
) -> PowerByNode:
    from hostler.drivers.power import PowerByNode

    openers: dict[str, Callable[[str], Power | None]] = {}
    names: dict[str, str] = {}
    for pattern, url in boards.items():
        opener = openers[pattern] = partial(_open_switch, url, timeout=timeout, tell=tell)
        many = any(each in pattern for each in "*?[")
        try:
            sample = opener("node" if many else pattern)
            if sample is None:
                raise Invalid(f"{WHAT}: this name cannot replace {NODE} in a host name; write the address")
            if many and NODE not in url:
                raise Invalid(f"{WHAT}: a pattern names many nodes, so its URL must contain {NODE}")
        except Invalid as error:
            raise Invalid(f"power, node {pattern!r}: {error}") from None
        if isinstance(sample, OneSystem) and not many:
            # Otherwise one node would be switched off in place of the other, and be read as off while the other runs
            # on.
            same = names.setdefault(sample.system, pattern)
            if same != pattern:
                raise Invalid(f"power: nodes {same!r} and {pattern!r} have the same system; correct one of the URLs")
    return PowerByNode(openers, otherwise=otherwise, tell=tell)


def _open_switch(url: str, node: str, *, timeout: float, tell: Callable[[str], None]) -> Power | None:
    """Return the switch of a node; None: its name cannot be used in the URL's host."""
    from hostler.drivers.power import CommandPower

    if url.startswith(COMMAND):
        try:
            words = read_power_command(url.removeprefix(COMMAND))
        except ValueError as error:
            raise Invalid(f"{WHAT} {COMMAND}: {error}") from None
        return CommandPower(words, setting="power", timeout=timeout, tell=tell)

    def opener(driver: PowerDriver) -> Opener[Power | None]:
        return lambda parts, options: driver.open(parts, options, timeout, tell)

    openers = InstalledOpeners(POWER, PowerDriver, opener)
    power = open_by_scheme(url.replace(NODE, quote(node, safe="")), openers, WHAT)
    if power is None:
        tell(f"power of node {node}: this name cannot be part of a host name; add an entry for it to the setting power")
    return power

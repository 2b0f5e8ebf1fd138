"""Where ports meet drivers: URLs in, open objects out. Only this module (and `hostler.sim`) names drivers."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from hostler.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hostler.ports.bare import Bare
    from hostler.ports.store import Store

DEFAULT_TIMEOUT = 5.0


class Options:
    """The query parameters of a URL, taken out one by one; what is left over is an error."""

    def __init__(self, url: SplitResult) -> None:
        self._scheme = url.scheme
        self._values: dict[str, str] = {}
        for name, value in parse_qsl(url.query, keep_blank_values=True):
            if name in self._values:
                raise Invalid(f"store URL {url.scheme}://…: the option {name!r} is given twice")
            self._values[name] = value
        self._known: set[str] = set()

    def text(self, name: str) -> str | None:
        """An option as it is."""
        self._known.add(name)
        value = self._values.pop(name, None)
        if value == "":
            raise Invalid(f"store URL {self._scheme}://…: the option {name!r} is empty")
        return value

    def number(self, name: str, default: float, *, least: float) -> float:
        """An option that is a number of at least `least`."""
        text = self.text(name)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not least <= value < float("inf"):
            raise Invalid(f"store URL {self._scheme}://…: {name}={text!r} must be a number of at least {least:g}")
        return value

    def finish(self) -> None:
        """Invalid: an option was given that nobody asked for."""
        if self._values:
            unknown = ", ".join(repr(name) for name in self._values)
            known = ", ".join(sorted(self._known)) or "none"
            raise Invalid(f"store URL {self._scheme}://…: unknown option {unknown}; known: {known}")


def open_store(url: str) -> Store:
    """The store behind `url`, to be entered with `async with`.

    `memory://`, `sqlite:///abs/path.db`, `file:///abs/path/state.json`, `etcd://host:port[,host:port…]`, `etcds://…`.
    """
    if not isinstance(url, str):
        raise Invalid(f"store URL: must be a str, not {type(url).__name__}")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise Invalid(f"store URL: {error}") from None
    opener = _STORES.get(parts.scheme)
    if opener is None:
        known = ", ".join(f"{scheme}://" for scheme in _STORES)
        raise Invalid(f"store URL with scheme {parts.scheme!r}: unknown; known are {known}")
    if parts.fragment:
        raise Invalid(f"store URL {parts.scheme}://…: a '#' in it must be written %23")
    options = Options(parts)
    store = opener(parts, options)
    options.finish()
    return store


def local_path(url: SplitResult) -> str:
    """The absolute path that a URL with three slashes names."""
    path = unquote(url.path)
    if url.netloc or not path.startswith("/"):
        raise Invalid(
            f"store URL {url.scheme}://…: needs an absolute path, with three slashes: {url.scheme}:///abs/path"
        )
    if path.endswith("/") or "\0" in path:
        raise Invalid(f"store URL {url.scheme}://{path!r}: must name a file")
    return path


def _open_memory(url: SplitResult, options: Options) -> Store:
    from hostler.drivers.store.memory import HISTORY, MemoryStore

    if url.netloc or url.path not in ("", "/"):
        raise Invalid("store URL memory://: takes no host and no path")
    return MemoryStore(history=int(options.number("history", HISTORY, least=1)))


def _open_sqlite(url: SplitResult, options: Options) -> Store:
    from hostler.drivers.store.sqlite import SqliteStore
    from hostler.drivers.store.sqlite.store import HISTORY_AGE, HISTORY_MIB

    return SqliteStore(
        local_path(url),
        timeout=options.number("timeout", DEFAULT_TIMEOUT, least=0.001),
        history_age=options.number("history_age", HISTORY_AGE, least=0),
        history_mib=options.number("history_mib", HISTORY_MIB, least=0),
    )


def _open_file(url: SplitResult, options: Options) -> Store:
    from hostler.drivers.store.file import FileStore
    from hostler.drivers.store.file_state import Bounds

    bounds = Bounds()
    return FileStore(
        local_path(url),
        timeout=options.number("timeout", DEFAULT_TIMEOUT, least=0.001),
        bounds=Bounds(
            revisions=int(options.number("history", bounds.revisions, least=1)),
            age=options.number("history_age", bounds.age, least=0),
            size_bytes=int(options.number("history_mib", bounds.size_bytes / 2**20, least=0) * 2**20),
        ),
    )


def _open_etcd(url: SplitResult, options: Options) -> Store:
    from hostler.drivers.store.etcd import EtcdStore
    from hostler.drivers.store.etcd.access import Access

    if url.path not in ("", "/"):
        raise Invalid(f"store URL {url.scheme}://…: takes no path, only host:port[,host:port…]")
    if "@" in url.netloc:
        raise Invalid(f"store URL {url.scheme}://…: give the user as ?user=…&password=… (or password_file=…)")
    access = Access(
        tls=url.scheme == "etcds",
        **{name: options.text(name) for name in ("ca", "cert", "key", "user", "password", "password_file")},
    )
    timeout = options.number("timeout", DEFAULT_TIMEOUT, least=0.01)
    return EtcdStore([_endpoint(url.scheme, part) for part in url.netloc.split(",")], access=access, timeout=timeout)


def _endpoint(scheme: str, text: str) -> str:
    """`host:port` with etcd's port if none is given."""
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, "2379"
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise Invalid(f"store URL {scheme}://…: {text!r} is no host:port")
    return f"{host}:{port}"


_STORES: Mapping[str, Callable[[SplitResult, Options], Store]] = {
    "memory": _open_memory,
    "etcd": _open_etcd,
    "etcds": _open_etcd,
    "sqlite": _open_sqlite,
    "file": _open_file,
}


def open_bare(url: str) -> Bare | None:
    """The engine behind `url` without Hostler, for benchmarks; None if there is nothing below the driver.

    SQLite gets a file of its own beside the store's. etcd is asked through its first endpoint, without TLS.
    """
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        from hostler.drivers.store.sqlite.bare import BareSqlite

        return BareSqlite(local_path(parts) + ".bare")
    if parts.scheme == "etcd" and not parts.query:
        from hostler.drivers.store.etcd.bare import BareEtcd

        return BareEtcd(parts.netloc.split(",")[0])
    return None

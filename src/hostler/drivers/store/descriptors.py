"""The descriptors of the stores: how a URL opens each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.errors import Invalid
from hostler.ports.url import DEFAULT_TIMEOUT, ESCAPE, StoreDriver, extra, local_path

if TYPE_CHECKING:
    from urllib.parse import SplitResult

    from hostler.ports.store import Store
    from hostler.ports.url import Options


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
    from hostler.drivers.store.file import Bounds, FileStore

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
    with extra("etcd"):
        from hostler.drivers.store.etcd import EtcdStore
        from hostler.drivers.store.etcd.auth import Access

    if url.path not in ("", "/"):
        raise Invalid(f"store URL {url.scheme}://…: takes no path, only host:port[,host:port…]")
    if "@" in url.netloc:
        raise Invalid(f"store URL {url.scheme}://…: give the user as ?user=…&password=… (or password_file=…)")
    access = Access(
        tls=url.scheme == "etcds",
        **{name: options.text(name) for name in ("ca", "cert", "key", "user", "password", "password_file")},
    )
    quota = options.number("quota_mib", 0, least=0)
    return EtcdStore(
        [_endpoint(url.scheme, part) for part in url.netloc.split(",")],
        access=access,
        timeout=options.number("timeout", DEFAULT_TIMEOUT, least=0.01),
        quota_bytes=int(quota * 2**20) or None,
    )


def _endpoint(scheme: str, text: str) -> str:
    """Return `host:port` with etcd's default port if none is given."""
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, "2379"
    if not host or not port.isdecimal() or len(port) > 5 or not 0 < int(port) < 65536:
        raise Invalid(f"store URL {scheme}://…: needs host:port[,host:port…] after ://; {ESCAPE}")
    return f"{host}:{port}"


MEMORY = StoreDriver(about="in the memory of one process; for tests", open=_open_memory)
SQLITE = StoreDriver(about="one SQLite file of one host", open=_open_sqlite)
FILE = StoreDriver(about="one JSON file of one host", open=_open_file)
ETCD = StoreDriver(about="an etcd cluster", open=_open_etcd, shared=True)
ETCDS = StoreDriver(about="an etcd cluster over TLS", open=_open_etcd, shared=True)

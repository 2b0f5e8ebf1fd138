"""Where ports meet drivers: URLs in, open objects out. Only this module (and `hostler.sim`) names drivers."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from hostler.drivers.password import read_password
from hostler.errors import Invalid

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from hostler.kit.clock import Clock
    from hostler.model.image import Image
    from hostler.model.inventory import Capacity
    from hostler.ports.bare import Bare
    from hostler.ports.hasher import Hasher
    from hostler.ports.images import Images, Progress
    from hostler.ports.machines import Machines
    from hostler.ports.store import Store
    from hostler.ports.ttl import TtlStorage
    from hostler.settings import Settings

T = TypeVar("T")

DEFAULT_TIMEOUT = 5.0


class Options:
    """The query parameters of a URL, taken out one by one; what is left over is an error."""

    def __init__(self, url: SplitResult, what: str = "store URL") -> None:
        self._subject = f"{what} {url.scheme}://…"
        self._values: dict[str, str] = {}
        for name, value in parse_qsl(url.query, keep_blank_values=True):
            if name in self._values:
                raise Invalid(f"{self._subject}: the option {name!r} is given twice")
            self._values[name] = value
        self._known: set[str] = set()

    def text(self, name: str) -> str | None:
        """An option as it is."""
        self._known.add(name)
        value = self._values.pop(name, None)
        if value == "":
            raise Invalid(f"{self._subject}: the option {name!r} is empty")
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
            raise Invalid(f"{self._subject}: {name}={text!r} must be a number of at least {least:g}")
        return value

    def flag(self, name: str) -> bool:
        """An option that is true or false; false if it is not given."""
        text = self.text(name) or "false"
        if text not in ("true", "false"):
            raise Invalid(f"{self._subject}: {name}={text!r} must be true or false")
        return text == "true"

    def password(self) -> str | None:
        """`password`, or what is in the file that `password_file` names."""
        password, file = self.text("password"), self.text("password_file")
        if file is None:
            return password
        if password is not None:
            raise Invalid(f"{self._subject}: give either password or password_file")
        return read_password(file, self._subject)

    def finish(self) -> None:
        """Invalid: an option was given that nobody asked for."""
        if self._values:
            unknown = ", ".join(repr(name) for name in self._values)
            known = ", ".join(sorted(self._known)) or "none"
            raise Invalid(f"{self._subject}: unknown option {unknown}; known: {known}")


def open_store(url: str) -> Store:
    """The store behind `url`, to be entered with `async with`.

    `memory://`, `sqlite:///abs/path.db`, `file:///abs/path/state.json`, `etcd://host:port[,host:port…]`, `etcds://…`.
    """
    return _opened(url, _STORES, "store URL")


def open_ttl_storage(url: str) -> TtlStorage:
    """The ttl storage behind `url`, to be entered with `async with`.

    Every store URL; `redis://host:port/db`, `rediss://…`, `dynamodb://table?region=…`, `cassandra://host:port/keyspace`.
    """
    return _opened(url, _TTL_STORAGES, "ttl storage URL")


def is_store(url: str) -> bool:
    """Whether `url` is one that `open_store` takes, by its scheme."""
    return url.partition("://")[0] in _STORES


def ttl_storage_on(store: Store) -> TtlStorage:
    """A ttl storage on a store that somebody else opens and closes; it is not entered."""
    from hostler.drivers.ttl.store import StoreTtlStorage

    return StoreTtlStorage(store)


def open_hasher() -> Hasher:
    """What keeps and checks passwords; to be closed with `aclose`."""
    from hostler.drivers.hasher import Argon2Hasher

    return Argon2Hasher()


MACHINES = ("simulated", "qemu")
"""The kinds of machines that `open_machines` knows."""


def open_machines(
    kind: str,
    folder: str | Path,
    *,
    capacity: Capacity,
    clock: Clock | None = None,
    rng: random.Random | None = None,
    delays: Mapping[str, float] | None = None,
    settings: Settings | None = None,
    nodes: int = 1,
) -> Machines:
    """The machines of one node, kept in `folder`, to be entered with `async with`.

    One process at a time has a folder open. `capacity` is what simulated machines have, and `delays` the seconds that a
    verb of theirs takes, by its name. Those of QEMU have what the host has, divided by the `nodes` that share it;
    `settings` say where their images are and how they run.
    """
    if kind not in MACHINES:
        raise Invalid(f"machines {kind!r}: unknown; known are {', '.join(MACHINES)}")
    if kind == "qemu":
        if settings is None:
            raise Invalid("machines 'qemu': they need settings; load them with hostler.settings.load()")
        return _open_qemu(folder, settings, clock, nodes)
    from hostler.drivers.machines.simulated import FilePlace, SimulatedMachines, faults_of

    return SimulatedMachines(FilePlace(folder), clock=clock, rng=rng, capacity=capacity, faults=faults_of(delays or {}))


def _open_qemu(folder: str | Path, settings: Settings, clock: Clock | None, nodes: int) -> Machines:
    from hostler.drivers.machines.qemu.driver import QemuMachines
    from hostler.drivers.machines.qemu.images.folder import ImageFolder
    from hostler.drivers.machines.qemu.options import QemuOptions

    images = ImageFolder(
        settings.data / "images", machines=settings.data / "machines", default=settings.image, clock=clock
    )
    options = QemuOptions(
        network=settings.network,
        prefix6=settings.network_prefix6,
        uids=settings.qemu_uids,
        accelerator=settings.accelerator,
        reserve_gib=settings.disk_reserve_gib,
        cpu_overcommit=settings.cpu_overcommit,
        shared_by=nodes,
    )
    return QemuMachines(folder, images=images, options=options, clock=clock)


def known_acceleration(images: Path, uids: str | None = None) -> tuple[str, str] | None:
    """What guests made of the images in that folder run with, and why; None: nobody has found out yet.

    `uids`: the setting `qemu_uids`, for it depends on who runs them.
    """
    from hostler.drivers.machines.qemu.acceleration import remembered
    from hostler.drivers.machines.qemu.rights import users_here

    found = remembered(images, uids=users_here(uids))
    return None if found is None else (found.accelerator, found.why)


def open_images(
    folder: Path,
    *,
    machines: Path | None = None,
    default: str = "tiny",
    clock: Clock | None = None,
    settings: Settings | None = None,
) -> Images:
    """The images in `folder`. `machines`: where the nodes that use them keep their machines; beside it if not given.

    Any number of processes may use it at once; it need not be closed. `settings` say how guests run that are kept warm.
    """
    from hostler.drivers.machines.qemu.images.folder import ImageFolder

    async def keep_warm(image: Image, files: Path, cpus: int, memory_mib: int, progress: Progress) -> None:
        from hostler.drivers.machines.qemu.template import warmer

        options = {} if settings is None else {"accelerator": settings.accelerator, "uids": settings.qemu_uids}
        await warmer(folder, **options)(image, files, cpus, memory_mib, progress)

    machines = machines or folder.parent / "machines"
    return ImageFolder(folder, machines=machines, default=default, clock=clock, warmer=keep_warm)


def _opened(url: str, openers: Mapping[str, Callable[[SplitResult, Options], T]], what: str) -> T:
    if not isinstance(url, str):
        raise Invalid(f"{what}: must be a str, not {type(url).__name__}")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise Invalid(f"{what}: {error}") from None
    opener = openers.get(parts.scheme)
    if opener is None:
        known = ", ".join(f"{scheme}://" for scheme in openers)
        raise Invalid(f"{what} with scheme {parts.scheme!r}: unknown; known are {known}")
    if parts.fragment:
        raise Invalid(f"{what} {parts.scheme}://…: a '#' in it must be written %23")
    options = Options(parts, what)
    opened = opener(parts, options)
    options.finish()
    return opened


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


def _on_store(opener: Callable[[SplitResult, Options], Store]) -> Callable[[SplitResult, Options], TtlStorage]:
    def opened(url: SplitResult, options: Options) -> TtlStorage:
        return ttl_storage_on(opener(url, options))

    return opened


def _open_redis(url: SplitResult, options: Options) -> TtlStorage:
    with _extra("redis"):
        from hostler.drivers.ttl.redis import RedisTtlStorage

    host, port = _address(url, 6379)
    db = unquote(url.path).strip("/") or "0"
    if not db.isdecimal():
        raise Invalid(f"ttl storage URL {url.scheme}://…: {db!r} is no number of a database; write …/0")
    tls = url.scheme == "rediss"
    files = {name: options.text(name) for name in ("ca", "cert", "key")} if tls else {}
    return RedisTtlStorage(
        host,
        port,
        db=int(db),
        user=_user(url, options),
        password=_password(url, options),
        tls=tls,
        timeout=options.number("timeout", DEFAULT_TIMEOUT, least=0.01),
        **files,
    )


def _open_dynamodb(url: SplitResult, options: Options) -> TtlStorage:
    with _extra("dynamodb"):
        from hostler.drivers.ttl.dynamodb import DynamodbTtlStorage

    if not re.fullmatch(r"[A-Za-z0-9_.-]{3,255}", url.netloc) or url.path not in ("", "/"):
        raise Invalid("ttl storage URL dynamodb://…: names a table: 3 to 255 of A-Z, a-z, 0-9, _, . and -")
    return DynamodbTtlStorage(
        url.netloc,
        endpoint=options.text("endpoint"),
        region=options.text("region"),
        create=options.flag("create"),
        timeout=options.number("timeout", DEFAULT_TIMEOUT, least=0.01),
    )


def _open_cassandra(url: SplitResult, options: Options) -> TtlStorage:
    with _extra("cassandra"):
        from hostler.drivers.ttl.cassandra import TABLE, CassandraTtlStorage

    hosts, port = _address(url, 9042)
    keyspace, table = unquote(url.path).strip("/"), options.text("table") or TABLE
    for name in (keyspace, table):
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,47}", name):
            raise Invalid(
                f"ttl storage URL cassandra://…: {name!r} is no name of a keyspace or table: "
                "a letter, then letters, digits or _; write cassandra://host:port/keyspace"
            )
    return CassandraTtlStorage(
        hosts.split(","),
        port,
        keyspace=keyspace,
        table=table,
        user=_user(url, options),
        password=_password(url, options),
        datacenter=options.text("datacenter"),
        create=options.flag("create"),
        replicas=int(options.number("replicas", 0, least=1)) or None,
        timeout=options.number("timeout", DEFAULT_TIMEOUT, least=0.01),
    )


def _address(url: SplitResult, default_port: int) -> tuple[str, int]:
    """Host and port of a URL that has one of each."""
    try:
        port = url.port or default_port
    except ValueError:
        port = 0
    if not url.hostname or not port:
        raise Invalid(f"ttl storage URL {url.scheme}://…: {url.netloc.rpartition('@')[2]!r} is no host:port")
    return url.hostname, port


def _user(url: SplitResult, options: Options) -> str | None:
    return options.text("user") or unquote(url.username or "") or None


def _password(url: SplitResult, options: Options) -> str | None:
    return options.password() or unquote(url.password or "") or None


@contextmanager
def _extra(name: str) -> Iterator[None]:
    """Around the import of a driver whose client is an extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "hostler":
            raise
        raise Invalid(f"{name}: its client is not installed; run: pip install 'hostler[{name}]'") from None


_TTL_STORAGES: Mapping[str, Callable[[SplitResult, Options], TtlStorage]] = {
    **{scheme: _on_store(opener) for scheme, opener in _STORES.items()},
    "redis": _open_redis,
    "rediss": _open_redis,
    "dynamodb": _open_dynamodb,
    "cassandra": _open_cassandra,
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

        return BareEtcd(_endpoint(parts.scheme, parts.netloc.split(",")[0]))
    return None

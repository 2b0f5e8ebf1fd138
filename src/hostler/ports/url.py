"""What the URLs of stores, storages and power switches have in common, and the descriptors of their drivers.

The name of the entry point is the scheme. A driver with several schemes has an entry point for each. The module of a
descriptor must be quick to import: the driver itself is imported by `open`, which takes the options that it knows out
of the URL; what remains is an error.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, parse_qsl, unquote

from hostler.errors import Invalid
from hostler.settings.driver import Driver
from hostler.settings.password import read_password

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hostler.ports.power import Power
    from hostler.ports.store import Store
    from hostler.ports.ttl import TtlStorage

DEFAULT_TIMEOUT = 5.0
ESCAPE = "if the password contains / ? # @ or %, write them %2F %3F %23 %40 %25"
"""Advice for a URL that may be split in the wrong place.

Its pieces may be parts of a password, so no error message repeats them.
"""
SHOWN = frozenset(
    [
        "ca",
        "cert",
        "cipher",
        "create",
        "datacenter",
        "fingerprint",
        "history",
        "history_age",
        "history_mib",
        "insecure",
        "key",
        "password_file",
        "privilege",
        "quota_mib",
        "region",
        "replicas",
        "serial",
        "table",
        "timeout",
        "user",
        "uuid",
        "verify",
    ]
)
"""Options whose values are not secret."""


class Options:
    """The query parameters of a URL, taken out one by one; parameters that remain are an error."""

    def __init__(self, url: SplitResult, what: str = "store URL") -> None:
        self._subject = f"{what} {url.scheme}://…"
        self._values: dict[str, str] = {}
        self._torn = "@" in url.geturl()
        for name, value in parse_qsl(url.query, keep_blank_values=True):
            if name in self._values:
                which = f"the option {name!r}" if name in SHOWN or name == "password" else "an option"
                raise Invalid(f"{self._subject}: {which} is given twice")
            self._values[name] = value
            # the text after a password may be more of it
            self._torn = self._torn or name.casefold().startswith("pass") or not value
        self._known: set[str] = set()

    def text(self, name: str) -> str | None:
        """Return an option as text."""
        self._known.add(name)
        value = self._values.pop(name, None)
        if value == "":
            raise Invalid(f"{self._subject}: the option {name!r} is empty")
        return value

    def number(self, name: str, default: float, *, least: float) -> float:
        """Return an option as a number of at least `least`."""
        text = self.text(name)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not least <= value < float("inf"):
            raise Invalid(f"{self._subject}: the option {name!r} must be a number of at least {least:g}")
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return an option as a boolean."""
        text = self.text(name) or ("true" if default else "false")
        if text not in ("true", "false"):
            raise Invalid(f"{self._subject}: the option {name!r} must be true or false")
        return text == "true"

    def password(self) -> str | None:
        """Return `password`, or the content of the file that `password_file` names."""
        password, file = self.text("password"), self.text("password_file")
        if file is None:
            return password
        if password is not None:
            raise Invalid(f"{self._subject}: give either password or password_file")
        return read_password(file, self._subject)

    def finish(self) -> None:
        """Raise Invalid if an option was given that the opener did not read."""
        if self._values:
            known = ", ".join(sorted(self._known)) or "none"
            if self._torn or len(self._values) > 1:
                raise Invalid(f"{self._subject}: an unknown option; known: {known}; {ESCAPE}")
            raise Invalid(f"{self._subject}: unknown option {next(iter(self._values))!r}; known: {known}")


def local_path(url: SplitResult) -> str:
    """Return the absolute path of a URL with three slashes."""
    path = unquote(url.path)
    if url.netloc or not path.startswith("/"):
        raise Invalid(
            f"store URL {url.scheme}://…: needs an absolute path, with three slashes: {url.scheme}:///abs/path"
        )
    if path.endswith("/") or "\0" in path:
        raise Invalid(f"store URL {url.scheme}://{path!r}: must name a file")
    return path


def address(url: SplitResult, default_port: int, what: str) -> tuple[str, int]:
    """Return host and port of a URL."""
    try:
        port = url.port or default_port
    except ValueError:
        port = 0
    if not url.hostname or not port:
        raise Invalid(f"{what} {url.scheme}://…: needs host:port after ://; {ESCAPE}")
    return url.hostname, port


def user_of(url: SplitResult, options: Options) -> str | None:
    """Return the user: from the option, or from before the host."""
    return options.text("user") or unquote(url.username or "") or None


def password_of(url: SplitResult, options: Options) -> str | None:
    """Return the password: from the option, the file, or from before the host."""
    return options.password() or unquote(url.password or "") or None


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Wrap the import of a driver whose client is an optional dependency."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "hostler":
            raise
        raise Invalid(f"{name}: its client is not installed; run: pip install 'hostler[{name}]'") from None


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

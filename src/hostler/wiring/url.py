"""Drivers by the scheme of a URL."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import SplitResult, urlsplit

from hostler.errors import Invalid
from hostler.ports.url import ESCAPE, Options
from hostler.settings.driver import TO_ADD, Driver, installed

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def opened_by(url: str, openers: Mapping[str, Callable[[SplitResult, Options], T]], what: str) -> T:
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

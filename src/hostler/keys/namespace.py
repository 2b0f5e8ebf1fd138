"""Namespaces: production and test namespaces in one store.

In production every key is as the contracts write it. In a test namespace `Xxxx` a key is stored at
`/CloudChamber/V0.1/Test/Xxxx/` + the key without `/CloudChamber/V0.1` and without a leading slash, and names in Redis
begin with `Test:Xxxx:`. Other code does not see the difference: it uses production keys on a store that translates
them.

The reverse translation is exact because the roots are known: keys under `users/` came from `/CloudChamber/V0.1/users/`,
keys under `plasmavmc/` from `/plasmavmc/`, and keys without such a root had no slash. A key for which this does not
hold (`users/x` without its root, `/unheard/of`) is refused.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING

import msgspec

from hostler.errors import Invalid
from hostler.keys.family import KEYS
from hostler.keys.inventory import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostler.settings import NamespaceOptions

TEST_ROOT = f"{ROOT}/Test/"
STANDARD = "Standard"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,62}", re.ASCII)


def _stripped(key: str) -> str:
    return key.removeprefix(ROOT).removeprefix("/")


def _slash_roots() -> tuple[str, ...]:
    """Return the roots, up to their first segment, of all families whose keys begin with a slash."""
    roots = set()
    for key in KEYS:
        if key.template.startswith("/"):
            base = f"{ROOT}/" if key.template.startswith(f"{ROOT}/") else "/"
            roots.add(base + key.template.removeprefix(base).split("/")[0] + "/")
    return tuple(sorted(roots))


SLASH_ROOTS = _slash_roots()


class Run(msgspec.Struct, frozen=True):
    """Production keys that are also adjacent in the store: those under `prefix` are stored under `stored`.

    `pure`: no other keys are under `stored`. Otherwise keys of slash roots are mixed in, and only keys between `above`
    and `below` belong to the run.
    """

    prefix: str
    stored: str
    pure: bool = True
    above: str = ""
    below: str | None = None


class Namespace:
    """Production (`name` None), or a test namespace."""

    def __init__(self, name: str | None = None, *, slash_roots: Iterable[str] = SLASH_ROOTS) -> None:
        if name is not None and not _NAME.fullmatch(name):
            raise Invalid(f"namespace {name!r}: must be of letters, digits, dots and hyphens, at most 63")
        self.name = name
        self.prefix = "" if name is None else f"{TEST_ROOT}{name}/"
        self.redis_prefix = "" if name is None else f"Test:{name}:"
        self._roots = tuple(sorted(slash_roots))
        self._by_tail = {_stripped(root): root for root in self._roots}

    def __repr__(self) -> str:
        return f"Namespace({self.name!r})"

    def stored(self, key: str) -> str:
        """Return the stored key of a production key. Invalid: the translation could not be reversed."""
        if self.name is None:
            return key
        tail = _stripped(key)
        if not tail or self._unstripped(tail) != key:
            raise Invalid(
                f"key {key!r}: not allowed in the test namespace {self.name}, where it would be the same as"
                f" {self._unstripped(tail)!r}; begin the key with one of {', '.join(self._roots)} or with no slash"
            )
        return self.prefix + tail

    def production(self, stored: str) -> str | None:
        """Return the production key of `stored`; None: it is not in this namespace."""
        if self.name is None:
            return stored
        tail = stored.removeprefix(self.prefix)
        if tail == stored or not tail:
            return None
        key = self._unstripped(tail)
        return key if _stripped(key) == tail else None

    def runs(self, prefix: str) -> tuple[Run, ...]:
        """Return where the production keys under `prefix` are stored, in production order.

        Production order is: keys that begin with a character below a slash, the slash roots, the rest. In a test
        namespace the roots are stored among the rest, so a range that production reads at once is read here run by run.
        """
        roots = tuple(run for root in self._roots if (run := self._root_run(prefix, root)) is not None)
        if prefix.startswith("/"):
            return roots
        if not prefix:
            low = Run("", self.prefix, pure=False, below="/")
            return (low, *roots, Run("", self.prefix, pure=False, above="/"))
        if any(prefix.startswith(tail) for tail in self._by_tail):
            return ()
        pure = not any(tail.startswith(prefix) for tail in self._by_tail)
        return (Run(prefix, self.prefix + prefix, pure=pure),)

    def _root_run(self, prefix: str, root: str) -> Run | None:
        if prefix.startswith(root):
            return Run(prefix, self.prefix + _stripped(prefix))
        return Run(root, self.prefix + _stripped(root)) if root.startswith(prefix) else None

    def _unstripped(self, tail: str) -> str:
        first, slash, _ = tail.partition("/")
        root = self._by_tail.get(first + slash)
        return tail if root is None else root.removesuffix(first + slash) + tail


PRODUCTION = Namespace()


def choose(options: NamespaceOptions, *, wall: float, token: str) -> Namespace:
    """Return the namespace that the options name, for a store that is opened at `wall` (seconds since 1970).

    The name of a unique namespace is that time in UTC, so that names sort by age, and `token`, so that two that start
    at the same instant differ.
    """
    if not options.use_test_namespace:
        return PRODUCTION
    if not options.use_unique_instance:
        return Namespace(STANDARD)
    instant = dt.datetime.fromtimestamp(wall, dt.UTC)
    return Namespace(f"{instant:%Y%m%dT%H%M%S.%fZ}-{token}")

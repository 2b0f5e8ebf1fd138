"""Cache of accounts and tokens: the caches of the store, overlaid with own writes that they do not have yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from hostler.keys.entry import Entry
from hostler.keys.families import TOKEN, USER
from hostler.model.access import TokenKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hostler.engine.calendar import Calendar
    from hostler.keys.cache import Cache
    from hostler.keys.key import Key
    from hostler.model.access import Token
    from hostler.model.inventory import User
    from hostler.model.workload import Workload

T = TypeVar("T")


class Caches(Protocol):
    """The part of `engine.view.View` that this needs."""

    @property
    def users(self) -> Cache[User]: ...

    @property
    def tokens(self) -> Cache[Token]: ...

    @property
    def workloads(self) -> Cache[Workload]: ...

    @property
    def calendar(self) -> Calendar: ...


class Overlaid(Generic[T]):
    """A cache overlaid with own writes, each until the cache has caught up."""

    def __init__(self, mirror: Cache[T], key: Key[T], changed: Callable[[str], None]) -> None:
        self._mirror, self._key, self._changed = mirror, key, changed
        self._written: dict[str, tuple[int, Entry[T] | None]] = {}
        mirror.listen(self._caught_up)

    @property
    def ready(self) -> bool:
        """Return whether the cache was ever filled: until then a missing key is not known to be absent."""
        return self._mirror.revision > 0

    def get(self, key: str) -> Entry[T] | None:
        """Return the latest known entry of the key."""
        entry = self._mirror.entries.get(key)
        written = self._written.get(key)
        if written is None or self._mirror.revision > written[0]:
            return entry
        # The cache may be at our revision while a part of that transaction is still to come.
        return entry if entry is not None and entry.mod_revision >= written[0] else written[1]

    def __iter__(self) -> Iterator[Entry[T]]:
        for key in list(self._mirror.entries.keys() | self._written.keys()):
            entry = self.get(key)
            if entry is not None:
                yield entry

    def wrote(self, value: T | None, revision: int, before: Entry[T] | None = None, **parts: str | int) -> None:
        """Note that this process wrote `value` (None: deleted) at `revision`, over `before`."""
        key = self._key.fill(**parts)
        if revision >= self._mirror.revision:
            created, version = (before.create_revision, before.version + 1) if before else (revision, 1)
            entry = None if value is None else Entry(value, self._key.parse(key), key, created, revision, version)
            self._written[key] = (revision, entry)
        for old in [old for old, (written_at, _) in self._written.items() if written_at < self._mirror.revision]:
            del self._written[old]
        self._changed(key)

    def learned(self, entry: Entry[T]) -> None:
        """Add an entry just read from the store, which the cache does not have yet. Never replaces a newer one."""
        written = self._written.get(entry.key)
        if written is not None and written[0] >= entry.mod_revision:
            return  # this replica wrote or deleted it while the store was read
        if entry.mod_revision >= self._mirror.revision:
            self._written[entry.key] = (entry.mod_revision, entry)
        self._changed(entry.key)

    def _caught_up(self, key: str) -> None:
        written = self._written.get(key)
        if written is not None and self._mirror.revision >= written[0]:
            del self._written[key]
        self._changed(key)


class AccountCache:
    """Accounts and tokens, readable without the store. `changed` is called with each changed key."""

    def __init__(self, mirrors: Caches, changed: Callable[[str], None]) -> None:
        self._owner: dict[str, str] = {}
        self._tokens_of: dict[str, set[str]] = {}
        self._tell = changed
        self._calendar = mirrors.calendar
        self.users = Overlaid(mirrors.users, USER, changed)
        self.tokens = Overlaid(mirrors.tokens, TOKEN, self._token_changed)
        for key in mirrors.tokens.entries:
            self._index(key)

    @property
    def is_in_doubt(self) -> bool:
        """Return whether the wall clock disagrees with those of the nodes: then nothing is deleted as expired."""
        return self._calendar.apart() is not None

    def user(self, name: str) -> Entry[User] | None:
        """Return the account with this folded name."""
        return self.users.get(USER.fill(user=name))

    def tokens_of(self, name: str) -> list[Entry[Token]]:
        """Return the known tokens of an account, including invalid ones, oldest first."""
        found = (self.tokens.get(key) for key in self._tokens_of.get(name, ()))
        return sorted((entry for entry in found if entry is not None), key=_age)

    def _token_changed(self, key: str) -> None:
        self._index(key)
        self._tell(key)

    def _index(self, key: str) -> None:
        entry = self.tokens.get(key)
        if entry is not None:
            self._owner[key] = entry.value.user
            self._tokens_of.setdefault(entry.value.user, set()).add(key)
        elif (owner := self._owner.pop(key, None)) is not None:
            self._tokens_of[owner].discard(key)
            if not self._tokens_of[owner]:
                del self._tokens_of[owner]


def _age(entry: Entry[Token]) -> tuple[float, str]:
    return entry.value.created_at, entry.value.id


def counts(token: Token, user: User | None, at: float) -> bool:
    """Return whether the token is valid for the account at this time."""
    if user is None or not user.enabled:
        return False
    if token.expires_at is not None and token.expires_at <= at:
        return False
    if not token.purpose.is_known:  # it may grant less than the account's rights
        return False
    return token.era == (user.session_era if token.purpose is TokenKind.SESSION else user.era)

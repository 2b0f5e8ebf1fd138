"""Authentication: tokens are checked in memory; passwords are checked with the hasher.

Nothing here reveals whether an account exists: an unknown or disabled account, one without a password and a wrong
password get the same answer after the same work.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from hostler.engine.access.account_cache import counts
from hostler.engine.access.rate_limits import Slowing
from hostler.engine.access.token import PREFIX, digest_of
from hostler.engine.idempotent_writer import Beaten
from hostler.engine.request import Caller, Request
from hostler.errors import (
    Damaged,
    Forbidden,
    HostlerError,
    Invalid,
    TooManyTries,
    Unauthenticated,
    Unavailable,
    Uncertain,
)
from hostler.keys.families import TOKEN, USER
from hostler.kit.connections import origin
from hostler.model.name import fold

if TYPE_CHECKING:
    from hostler.engine.access.account_cache import AccountCache
    from hostler.engine.access.token import Tokens
    from hostler.keys.entry import Entry
    from hostler.kit.clock import Clock
    from hostler.model.access import Token
    from hostler.model.access_api import Login, TokenIssued
    from hostler.model.inventory import Rights, User
    from hostler.ports.hasher import Hasher
    from hostler.ports.store import Store

ACCOUNT_TRIES = 5
SOURCE_TRIES = 20
FAMILIAR = 10_000
"""Number of remembered addresses from which accounts have logged in."""
_LONGEST_TOKEN = 256
_TRIES = 4


class _Holder(msgspec.Struct, frozen=True):
    """The caller of a token, valid as long as neither the token nor the account changes."""

    name: str
    rights: Rights
    memberships: tuple[str, ...]
    token: str
    life: int
    expires_at: float | None


class Authenticator:
    """Turns tokens into callers, and passwords into sessions."""

    def __init__(self, store: Store, *, clock: Clock, hasher: Hasher) -> None:
        self._store, self._clock, self._hasher = store, clock, hasher
        self._prefix = TOKEN.prefix()
        self._holders: dict[str, _Holder] = {}
        self._by_account = Slowing("login", clock=clock, free=ACCOUNT_TRIES)
        self._by_source = Slowing("login", clock=clock, free=SOURCE_TRIES)
        self._familiar: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._by_token = Slowing("token", clock=clock, free=SOURCE_TRIES)

    def forget(self, key: str) -> None:
        """Drop cached callers after a change of a token or an account."""
        if key.startswith(self._prefix):
            self._holders.pop(key, None)
        else:
            self._holders.clear()

    def is_strange(self, known: AccountCache, token: str) -> bool:
        """Return whether the store must be read for a token (`introduce`): the caches do not show that it is valid."""
        if not token.startswith(PREFIX) or len(token) > _LONGEST_TOKEN:
            return False
        return self.is_unheard_of(known, digest_of(token))

    def is_unheard_of(self, known: AccountCache, digest: str) -> bool:
        """Return the same for the digest of a token.

        Tokens and accounts are cached separately, and either cache may lag. So a token that is invalid by the caches
        may still be valid; only an expired one cannot.
        """
        key = self._prefix + digest
        if key in self._holders:
            return False
        entry = known.tokens.get(key)
        if entry is None:
            return True
        token, now = entry.value, self._clock.wall()
        if token.expires_at is not None and token.expires_at <= now:
            return False
        user = known.user(token.user)
        return user is None or not counts(token, user.value, now)

    async def introduce(self, known: AccountCache, digest: str, source: str) -> None:
        """Read the token with this digest from the store. It is not read for a source that guesses too often."""
        with suppress(TooManyTries, Unavailable, Uncertain, Damaged):  # then the caches have to suffice
            self._by_token.check(origin(source))
            entry = await TOKEN.get(self._store, digest=digest)
            user = None if entry is None else await USER.get(self._store, user=entry.value.user)
            if entry is not None and user is not None:
                known.users.learned(user)
                known.tokens.learned(entry)

    def authenticate(self, known: AccountCache, token: str, source: str) -> Caller:
        """Return the caller of a token. Unauthenticated: it is invalid. TooManyTries: the source has guessed too often.

        A valid token is accepted however often others at the same source have guessed.
        """
        if not token.startswith(PREFIX) or len(token) > _LONGEST_TOKEN:
            raise self.count_guess(source)
        return self.stood_for(known, digest_of(token), source)

    def stood_for(self, known: AccountCache, digest: str, source: str) -> Caller:
        """Return the caller of the token with this digest, also for credentials that were issued with it."""
        key = self._prefix + digest
        holder = self._holders.get(key)
        if holder is None:
            holder = self._looked_up(known, key, source)
            self._holders[key] = holder
        elif holder.expires_at is not None and holder.expires_at <= self._clock.wall():
            del self._holders[key]
            raise self.count_guess(source)
        return Caller(holder.name, holder.rights, holder.memberships, source, holder.token, holder.life)

    def check_guesses(self, source: str) -> None:
        """Raise TooManyTries if the source has guessed too often for another read of the store."""
        self._by_token.check(origin(source))

    def count_guess(self, source: str) -> Unauthenticated | TooManyTries:
        """Count an invalid secret, and return the error for it."""
        where = origin(source)
        try:
            self._by_token.begin(where)
        except TooManyTries as error:
            return error
        return Unauthenticated("token: not valid; log in again, or use a token that is neither expired nor revoked")

    async def login(self, tokens: Tokens, asked: Login, source: str) -> TokenIssued:
        """Start a session for a caller with the right password.

        If the account has logged in from this address before, tries from there are counted separately, so that guesses
        from elsewhere do not lock its owner out.
        """
        name, where = fold(asked.name), origin(source)
        self._by_source.check(where)
        tried = f"{name} {where}" if (name, where) in self._familiar else name
        self._by_account.begin(tried)
        self._by_source.record_failure(where)
        try:
            user = await self._account(name)
            right = await self._hasher.verify(_kept(user), asked.password)
        except HostlerError:  # not a guess, because there was no answer
            self._by_account.take_back(tried)
            self._by_source.take_back(where)
            raise
        if user is None or not right:
            raise _wrong()
        self._by_account.forget(name)
        self._by_account.forget(tried)
        self._remember(name, where)
        # not forgotten: a caller's own password must not reset the count of guesses for others
        self._by_source.take_back(where)
        return await self._issue_session(tokens, user, source)

    async def prove(self, user: Entry[User], password: str) -> None:
        """Raise Forbidden if this is not the password of the account. Tries are throttled like logins."""
        name = user.parts["user"]
        self._by_account.begin(name)
        try:
            right = await self._hasher.verify(user.value.password_hash, password)
        except HostlerError:
            self._by_account.take_back(name)
            raise
        if not right:
            raise Forbidden(f"user {user.value.name}: the old password is wrong; nothing was changed")
        self._by_account.forget(name)

    async def enter(self, tokens: Tokens, digest: str, source: str) -> TokenIssued:
        """Start a session for the holder of the token with this digest, if the token is valid in the store."""
        for _ in range(_TRIES):
            token = await self._token(digest)
            user = None if token is None else await self._account(token.value.user)
            if token is None or user is None or not counts(token.value, user.value, self._clock.wall()):
                raise self.count_guess(source)
            try:
                return (await tokens.begin_session(Request(_caller(user, source)), user, token)).value
            except Beaten:
                continue
        raise _busy()

    # Internal

    def _remember(self, name: str, where: str) -> None:
        self._familiar[name, where] = None
        self._familiar.move_to_end((name, where))
        if len(self._familiar) > FAMILIAR:
            self._familiar.popitem(last=False)

    def _looked_up(self, known: AccountCache, key: str, source: str) -> _Holder:
        entry = known.tokens.get(key)
        user = None if entry is None else known.user(entry.value.user)
        if entry is None or user is None:
            if not (known.tokens.ready and known.users.ready):
                raise Unavailable("token: this replica has not read the accounts yet; try again in a moment")
            raise self.count_guess(source)
        if not counts(entry.value, user.value, self._clock.wall()):
            raise self.count_guess(source)
        account, token = user.value, entry.value
        return _Holder(
            token.user, account.rights, account.memberships, token.id, user.create_revision, token.expires_at
        )

    async def _account(self, name: str) -> Entry[User] | None:
        try:
            return await USER.get(self._store, user=name)
        except (Invalid, Damaged):  # no valid account name, or an unreadable account
            return None

    async def _token(self, digest: str) -> Entry[Token] | None:
        try:
            return await TOKEN.get(self._store, digest=digest)
        except Damaged:
            return None

    async def _issue_session(self, tokens: Tokens, user: Entry[User], source: str) -> TokenIssued:
        name, kept = user.parts["user"], user.value.password_hash
        for _ in range(_TRIES):
            try:
                return (await tokens.begin_session(Request(_caller(user, source)), user)).value
            except Beaten:
                again = await self._account(name)
            if again is None or _kept(again) != kept:
                raise _wrong()
            user = again
        raise _busy()


def _caller(user: Entry[User], source: str) -> Caller:
    account = user.value
    return Caller(user.parts["user"], account.rights, account.memberships, source, life=user.create_revision)


def _busy() -> Unavailable:
    return Unavailable("login: the account is being changed; try again in a moment")


def _kept(user: Entry[User] | None) -> str:
    return user.value.password_hash if user is not None and user.value.enabled else ""


def _wrong() -> Unauthenticated:
    return Unauthenticated("login: name or password is wrong; correct them and try again")

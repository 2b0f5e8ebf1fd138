"""Tokens: issued once, stored as a digest, listed without their secret, revoked by id.

A token is valid while its account is enabled and has the same era as the token: so one write to the account ends all of
its tokens at once. The keys of invalid tokens are garbage and are deleted when convenient.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING

import msgspec

from hostler.engine.access.account_cache import counts
from hostler.engine.idempotent_writer import Beaten
from hostler.engine.request import Request, Written
from hostler.errors import Conflict, HostlerError, Invalid, NotFound, QuotaExceeded, Refused
from hostler.keys.families import TOKEN, USER
from hostler.model.access import Token, TokenKind
from hostler.model.access_api import TokenCreate, TokenIssued, TokenPage, TokenView
from hostler.ports.store import Delete

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostler.engine.access.account_cache import AccountCache
    from hostler.engine.idempotent_writer import Writer
    from hostler.engine.runtime.env import Env
    from hostler.keys.entry import Entry
    from hostler.model.inventory import User
    from hostler.ports.store import Store

PREFIX = "hst_"
"""Prefix of every token, so that secret scanners recognise it."""
MOST = 100
"""Largest number of API tokens of an account.

The same limit applies to sessions, but there the oldest one is deleted.
"""
SESSION = 12 * 3600.0
_SWEPT = 64
"""Number of keys that are deleted in one transaction."""


def digest_of(token: str) -> str:
    """Return the stored digest of a token. A token has 256 random bits, so no slow hash is needed."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class Tokens:
    """The tokens of all accounts. The calling code has checked the permission."""

    def __init__(
        self,
        store: Store,
        writer: Writer,
        known: AccountCache,
        env: Env,
    ) -> None:
        self._store, self._writer, self._known, self._clock = store, writer, known, env.clock
        self._new_id, self._secret = env.new_id, env.new_secret

    async def issue(self, request: Request, user: Entry[User], asked: TokenCreate) -> Written[TokenIssued]:
        """Issue an API token. Conflict: this request was answered before, and the secret is returned only once."""
        await self._refuse_replay(request)
        name = user.parts["user"]
        if not user.value.enabled:
            raise Conflict(f"user {user.value.name}: is disabled, so its tokens are not valid; enable it first")
        if sum(1 for entry in self._live(user) if entry.value.purpose is TokenKind.API) >= MOST:
            raise QuotaExceeded(f"user {user.value.name}: has {MOST} API tokens already; revoke one first")
        token = self.new_token(user, TokenKind.API, name=asked.name, within=asked.expires_in)
        try:
            return await self.write(request, "token.issue", user, token, sweep=self._dead(user))
        except (Conflict, Refused) as error:
            await self._refuse_replay(request)
            if isinstance(error, Beaten):
                raise Conflict(f"user {name}: changed concurrently; issue the token again") from None
            raise

    async def begin_session(
        self, request: Request, user: Entry[User], of: Entry[Token] | None = None
    ) -> Written[TokenIssued]:
        """Start a session; one that is based on a token (`of`) ends no later than that token.

        Beaten: the account changed since it was read, or the token was deleted.
        """
        sessions = [entry for entry in self._live(user) if entry.value.purpose is TokenKind.SESSION]
        too_many = sessions[: max(0, len(sessions) - MOST + 1)]
        token = self.new_token(user, TokenKind.SESSION, within=SESSION)
        ends = [at for at in (token.expires_at, of.value.expires_at if of is not None else None) if at is not None]
        token = msgspec.structs.replace(token, expires_at=min(ends))
        sweep = [*too_many, *self._dead(user)]
        return await self.write(request, "session.begin", user, token, sweep=sweep, of=of)

    def new_token(self, user: Entry[User], purpose: TokenKind, *, name: str = "", within: float | None = None) -> Token:
        """Return a token for the account in its current state, not written yet."""
        now = self._clock.wall()
        return Token(
            id=self._new_id(),
            user=user.parts["user"],
            purpose=purpose,
            name=name,
            created_at=now,
            expires_at=None if within is None else now + within,
            era=user.value.session_era if purpose is TokenKind.SESSION else user.value.era,
        )

    async def write(
        self,
        request: Request,
        verb: str,
        user: Entry[User],
        token: Token,
        *,
        sweep: Iterable[Entry[Token]] = (),
        of: Entry[Token] | None = None,
    ) -> Written[TokenIssued]:
        """Write a token. Beaten: the account, or `of`, has changed since it was read."""
        secret = PREFIX + self._secret()
        digest = digest_of(secret)
        garbage = list(sweep)[:_SWEPT]
        revision = await self._writer.commit(
            request,
            verb,
            TOKEN.fill(digest=digest),
            0,
            [USER.unchanged(user), TOKEN.absent(digest=digest), *([TOKEN.unchanged(of)] if of is not None else ())],
            [TOKEN.put(token, digest=digest), *(Delete(entry.key) for entry in garbage)],
            status=201,
            answer=view_of(token),
        )
        # Another replica may have created the account a moment ago. The commit compared it, so it is valid here, too.
        self._known.users.learned(user)
        self._known.tokens.wrote(token, revision, digest=digest)
        for entry in garbage:
            self._known.tokens.wrote(None, revision, digest=entry.parts["digest"])
        told = TokenIssued(token=secret, id=token.id, user=token.user, expires_at=token.expires_at)
        return Written(told, revision, 201)

    async def all_of(self, user: Entry[User]) -> TokenPage:
        """Return the valid tokens of the account, oldest first."""
        listing = await TOKEN.list(self._store, strict=False)
        name, now = user.parts["user"], self._clock.wall()
        live = [e.value for e in listing.entries if e.value.user == name and counts(e.value, user.value, now)]
        live.sort(key=lambda token: (token.created_at, token.id))
        return TokenPage(items=tuple(map(view_of, live)))

    async def revoke(
        self, request: Request, name: str, token_id: str, verb: str = "token.revoke"
    ) -> Written[TokenView]:
        """Revoke one token of the account with this folded name."""
        return await self._writer.once(request, TokenView, lambda: self._revoke(request, name, token_id, verb))

    async def end_session(self, request: Request) -> Written[TokenView]:
        """End the session that the request was made with."""
        entry = await self._find(request.caller.name, request.caller.token)
        if entry is not None and entry.value.purpose is TokenKind.API:
            raise Invalid("session: this is an API token; revoke it by its id")
        return await self.revoke(request, request.caller.name, request.caller.token, "session.end")

    async def sweep(self, name: str) -> None:
        """Delete invalid tokens of an account. Failures are ignored."""
        user = self._known.user(name)
        now = -math.inf if self._known.is_in_doubt else self._clock.wall()
        dead = [e for e in self._known.tokens_of(name) if not counts(e.value, user.value if user else None, now)]
        try:
            while dead:
                batch, dead = dead[:_SWEPT], dead[_SWEPT:]
                result = await self._store.txn([], [Delete(entry.key) for entry in batch])
                for entry in batch:
                    self._known.tokens.wrote(None, result.revision, digest=entry.parts["digest"])
        except HostlerError:
            return

    # Internal

    async def _revoke(self, request: Request, name: str, token_id: str, verb: str) -> Written[TokenView]:
        entry = await self._find(name, token_id)
        if entry is None:
            raise _no_token(name, token_id)
        answer = view_of(entry.value)
        try:
            revision = await self._writer.commit(
                request,
                verb,
                entry.key,
                entry.mod_revision,
                [TOKEN.exists(digest=entry.parts["digest"])],
                [Delete(entry.key)],
                status=200,
                answer=answer,
            )
        except Beaten:
            raise _no_token(name, token_id) from None
        self._known.tokens.wrote(None, revision, digest=entry.parts["digest"])
        return Written(answer, revision, 200)

    async def _find(self, name: str, token_id: str) -> Entry[Token] | None:
        """Find a token by its id: the keys are digests.

        Tokens that another replica just issued are in the store only.
        """
        for entry in self._known.tokens_of(name):
            if entry.value.id == token_id:
                return entry
        for entry in (await TOKEN.list(self._store, strict=False)).entries:
            if entry.value.user == name and entry.value.id == token_id:
                return entry
        return None

    def _live(self, user: Entry[User]) -> list[Entry[Token]]:
        now = self._clock.wall()
        return [e for e in self._known.tokens_of(user.parts["user"]) if counts(e.value, user.value, now)]

    def _dead(self, user: Entry[User]) -> list[Entry[Token]]:
        # Only expired tokens: the era of a token may be newer than the account that was read.
        if self._known.is_in_doubt:
            return []
        now = self._clock.wall()
        return [
            entry
            for entry in self._known.tokens_of(user.parts["user"])
            if entry.value.expires_at is not None and entry.value.expires_at <= now
        ]

    async def _refuse_replay(self, request: Request) -> None:
        if await self._writer.replay(request) is not None:
            raise Conflict("token: already issued, and shown only once; revoke it and issue another with a new key")


def view_of(token: Token) -> TokenView:
    """Return the API form of a token, without its secret."""
    return TokenView(
        id=token.id,
        user=token.user,
        purpose=token.purpose,
        name=token.name,
        created_at=token.created_at,
        expires_at=token.expires_at,
    )


def _no_token(name: str, token_id: str) -> NotFound:
    return NotFound(f"token {token_id!r}: user {name} has none with this id; list them to see which exist")

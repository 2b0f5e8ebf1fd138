"""User service: accounts, sessions and tokens. The parts are in `engine.access`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.engine.access.account import Accounts, view_of
from hostler.engine.access.account_cache import AccountCache
from hostler.engine.access.admin import Admin
from hostler.engine.access.authentication import Authenticator
from hostler.engine.access.token import Tokens, digest_of
from hostler.engine.request import Caller
from hostler.errors import Unauthenticated
from hostler.model.access import TokenKind
from hostler.model.inventory import Rights

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.engine.access.account_cache import Caches
    from hostler.engine.idempotent_writer import Writer
    from hostler.engine.request import Request, Written
    from hostler.engine.runtime.env import Env
    from hostler.model.access_api import (
        Login,
        TokenCreate,
        TokenIssued,
        TokenPage,
        TokenView,
        UserCreate,
        UserPage,
        UserUpdate,
        UserView,
    )
    from hostler.ports.hasher import Hasher
    from hostler.ports.store import Store


class UserService:
    """Accounts, sessions and tokens.

    The random part of a token is a secret of the environment. `view` is read for every request, so that tokens
    are valid while the store is unreachable; it need not run for `first_admin` and `recover_admin`.
    """

    def __init__(
        self,
        store: Store,
        writer: Writer,
        view: Caches,
        env: Env,
        hasher: Hasher,
    ) -> None:
        self._door = Authenticator(store, clock=env.clock, hasher=hasher)
        self._known = AccountCache(view, self._door.forget)
        self._tokens = Tokens(store, writer, self._known, env)
        self._admin = Admin(store, writer, self._known, env)
        self._accounts = Accounts(
            *(store, writer, self._known, self._tokens, env), hasher=hasher, prove=self._door.prove
        )

    # Accounts

    async def create(self, request: Request, asked: UserCreate) -> Written[UserView]:
        """Create an account.

        Forbidden: the caller lacks manage_accounts, or a right or membership that would be granted.
        """
        return await self._accounts.create(request, asked)

    async def get(self, caller: Caller, user: str, *, stale: bool = False) -> UserView:
        """Return the caller's own account, or with manage_accounts any account that the caller may manage."""
        return await self._accounts.get(caller, user, stale=stale)

    async def list(
        self, caller: Caller, *, limit: int = 100, after: str | None = None, stale: bool = False
    ) -> UserPage:
        """Return a page of the accounts that the caller may manage."""
        return await self._accounts.page(caller, limit=limit, after=after, stale=stale)

    async def update(self, request: Request, user: str, asked: UserUpdate) -> Written[UserView]:
        """Change an account; without manage_accounts, only the full name and password of the caller's own."""
        return await self._accounts.update(request, user, asked)

    async def delete(self, request: Request, user: str) -> Written[UserView]:
        """Delete an account with its tokens; return its last state."""
        return await self._accounts.delete(request, user)

    # Tokens

    async def issue(self, request: Request, user: str, asked: TokenCreate) -> Written[TokenIssued]:
        """Issue an API token. The secret is returned only once: a repeated request is a Conflict."""
        return await self._tokens.issue(request, await self._accounts.manageable_user(request.caller, user), asked)

    async def tokens(self, caller: Caller, user: str) -> TokenPage:
        """Return the valid tokens and sessions of an account, without their secrets."""
        return await self._tokens.all_of(await self._accounts.manageable_user(caller, user))

    async def revoke(self, request: Request, user: str, token_id: str) -> Written[TokenView]:
        """Revoke a token or session by its id."""
        entry = await self._accounts.manageable_user(request.caller, user)
        return await self._tokens.revoke(request, entry.parts["user"], token_id)

    # Authentication

    async def login(self, asked: Login, source: str = "") -> TokenIssued:
        """Start a session of 12 hours for a name and a password. Unauthenticated does not reveal which was wrong."""
        return await self._door.login(self._tokens, asked, source)

    async def enter(self, digest: str, source: str = "") -> TokenIssued:
        """Start a session for the holder of the token with this SHA-256; it ends no later than that token."""
        return await self._door.enter(self._tokens, digest, source)

    async def entered(self, issued: TokenIssued) -> UserView:
        """Return the account of a new session, and add it to the cache of this replica."""
        entry = await self._accounts.visible_user(Caller(issued.user, Rights()), issued.user)
        self._known.users.learned(entry)
        return view_of(entry)

    def session_end(self, caller: Caller) -> float | None:
        """Return when the caller's session ends, from the cache; None: the caller did not use a session."""
        for entry in self._known.tokens_of(caller.name):
            if entry.value.id == caller.token and entry.value.purpose is TokenKind.SESSION:
                return entry.value.expires_at
        return None

    async def logout(self, request: Request) -> Written[TokenView]:
        """End the session that the request was made with."""
        return await self._tokens.end_session(request)

    async def meet(self, token: str, source: str = "") -> Caller:
        """Return the caller of a token. The store is read only for a token that is not in the cache of this replica."""
        if self._door.is_strange(self._known, token):
            await self._door.introduce(self._known, digest_of(token), source)
        return self._door.authenticate(self._known, token, source)

    async def meet_holder(self, digest: str, source: str = "") -> Caller:
        """Return the caller of the token with this SHA-256, for a ticket that was issued with it."""
        if self._door.is_unheard_of(self._known, digest):
            await self._door.introduce(self._known, digest, source)
        return self._door.stood_for(self._known, digest, source)

    def holder(self, digest: str, source: str = "") -> Caller:
        """Return the caller of the token with this SHA-256, from the cache only."""
        return self._door.stood_for(self._known, digest, source)

    def check_guesses(self, source: str) -> None:
        """Raise TooManyTries if too many invalid secrets came from this source."""
        self._door.check_guesses(source)

    def count_guess(self, source: str) -> None:
        """Count an invalid secret from this source."""
        self._door.count_guess(source)

    def authenticate(self, token: str, source: str = "") -> Caller:
        """Return the caller of a token from the cache only, so that it works without the store."""
        return self._door.authenticate(self._known, token, source)

    def whoami(self, caller: Caller) -> UserView:
        """Return the caller's own account, from the cache."""
        entry = self._known.user(caller.name)
        if entry is None:
            raise Unauthenticated(f"user {caller.name}: deleted; log in with another account")
        return view_of(entry)

    # The first administrator

    async def first_admin(self, keep: Callable[[str], None] = lambda _: None) -> str | None:
        """If there is no account at all, create `admin` and return its token. The token is not stored anywhere else.

        `keep` gets the token before anything is written, to store it where it outlives this process. If None is
        returned nevertheless, a concurrent process was faster, and that token is invalid.
        """
        return await self._admin.first(keep)

    async def recover_admin(self, *, remove_password: bool = False) -> str:
        """Issue a token for `admin`, for an operator with access to the store; its old tokens end."""
        return await self._admin.recover(remove_password=remove_password)

"""Users and rights: the service that the doors call. The parts are in `engine.access`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.engine.access.account import Accounts, view_of
from hostler.engine.access.account_cache import Known
from hostler.engine.access.admin import Admin
from hostler.engine.access.authentication import Door
from hostler.engine.access.token import Tokens, digest_of
from hostler.engine.request import Caller
from hostler.errors import Unauthenticated
from hostler.model.access import TokenKind
from hostler.model.inventory import Rights

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.engine.access.account_cache import Mirrors
    from hostler.engine.idempotent_writer import Writer
    from hostler.engine.request import Request, Written
    from hostler.kit.clock import Clock
    from hostler.model.api import (
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

    `secret` makes the random part of a token: 32 random bytes as text. `view` is read for every request, so that
    tokens count while the store is out of reach; it need not run for `first_admin` and `recover_admin`.
    """

    def __init__(
        self,
        store: Store,
        writer: Writer,
        view: Mirrors,
        *,
        clock: Clock,
        new_id: Callable[[], str],
        secret: Callable[[], str],
        hasher: Hasher,
    ) -> None:
        self._door = Door(store, clock=clock, hasher=hasher)
        self._known = Known(view, self._door.changed)
        self._tokens = Tokens(store, writer, self._known, clock=clock, new_id=new_id, secret=secret)
        self._admin = Admin(store, writer, self._known, clock=clock, new_id=new_id, secret=secret)
        self._accounts = Accounts(
            *(store, writer, self._known, self._tokens),
            clock=clock,
            new_id=new_id,
            hasher=hasher,
            prove=self._door.prove,
        )

    # Accounts

    async def create(self, request: Request, asked: UserCreate) -> Written[UserView]:
        """A new account. Forbidden: the caller lacks manage_accounts, or something that would be given."""
        return await self._accounts.create(request, asked)

    async def get(self, caller: Caller, user: str, *, stale: bool = False) -> UserView:
        """An account: one's own, or with manage_accounts any within reach."""
        return await self._accounts.get(caller, user, stale=stale)

    async def list(
        self, caller: Caller, *, limit: int = 100, after: str | None = None, stale: bool = False
    ) -> UserPage:
        """A page of the accounts within reach."""
        return await self._accounts.page(caller, limit=limit, after=after, stale=stale)

    async def update(self, request: Request, user: str, asked: UserUpdate) -> Written[UserView]:
        """Change an account; without manage_accounts one's own full name and password."""
        return await self._accounts.update(request, user, asked)

    async def delete(self, request: Request, user: str) -> Written[UserView]:
        """Delete an account with its tokens; the answer is what it was."""
        return await self._accounts.delete(request, user)

    # Tokens

    async def issue(self, request: Request, user: str, asked: TokenCreate) -> Written[TokenIssued]:
        """A new API token, told this once: a repeated request is a Conflict."""
        return await self._tokens.issue(request, await self._accounts.touched(request.caller, user), asked)

    async def tokens(self, caller: Caller, user: str) -> TokenPage:
        """The tokens and sessions of an account that count, without their secrets."""
        return await self._tokens.all_of(await self._accounts.touched(caller, user))

    async def revoke(self, request: Request, user: str, token_id: str) -> Written[TokenView]:
        """End a token or session by its id."""
        entry = await self._accounts.touched(request.caller, user)
        return await self._tokens.revoke(request, entry.parts["user"], token_id)

    # The door

    async def login(self, asked: Login, source: str = "") -> TokenIssued:
        """A session of 12 hours for a name and a password. Unauthenticated tells nothing of what was wrong."""
        return await self._door.login(self._tokens, asked, source)

    async def enter(self, digest: str, source: str = "") -> TokenIssued:
        """A session for who has the token with this SHA-256; it ends no later than that token would."""
        return await self._door.enter(self._tokens, digest, source)

    async def entered(self, issued: TokenIssued) -> UserView:
        """The account that a session was begun for. This replica knows it from now on, whoever made it."""
        entry = await self._accounts.seen(Caller(issued.user, Rights()), issued.user)
        self._known.users.learned(entry)
        return view_of(entry)

    def session_end(self, caller: Caller) -> float | None:
        """When the session ends that the caller came with, from memory; None: it came with something else."""
        for entry in self._known.tokens_of(caller.name):
            if entry.value.id == caller.token and entry.value.purpose is TokenKind.SESSION:
                return entry.value.expires_at
        return None

    async def logout(self, request: Request) -> Written[TokenView]:
        """End the session that the request came with."""
        return await self._tokens.end_session(request)

    async def meet(self, token: str, source: str = "") -> Caller:
        """Who a token stands for. The store is asked only about one that this replica has never heard of."""
        if self._door.is_strange(self._known, token):
            await self._door.introduce(self._known, digest_of(token), source)
        return self._door.authenticate(self._known, token, source)

    async def meet_holder(self, digest: str, source: str = "") -> Caller:
        """Who the token with this SHA-256 stands for, for a ticket that was issued on the strength of it."""
        if self._door.is_unheard_of(self._known, digest):
            await self._door.introduce(self._known, digest, source)
        return self._door.stood_for(self._known, digest, source)

    def holder(self, digest: str, source: str = "") -> Caller:
        """The same from memory, for one that was met before."""
        return self._door.stood_for(self._known, digest, source)

    def check_guesses(self, source: str) -> None:
        """TooManyTries: too many secrets that stand for nobody came from there."""
        self._door.check_guesses(source)

    def guessed(self, source: str) -> None:
        """One more of them."""
        self._door.guessed(source)

    def authenticate(self, token: str, source: str = "") -> Caller:
        """Who a token stands for that was met before; from memory, so it works without the store."""
        return self._door.authenticate(self._known, token, source)

    def whoami(self, caller: Caller) -> UserView:
        """The caller's own account, from memory."""
        entry = self._known.user(caller.name)
        if entry is None:
            raise Unauthenticated(f"user {caller.name}: is gone; log in with another account")
        return view_of(entry)

    # The first one

    async def first_admin(self, keep: Callable[[str], None] = lambda _: None) -> str | None:
        """If there is no account at all: make `admin`, and answer its token. It is told to nobody else.

        `keep` gets the token before anything is written, to put it where it outlives this process. If None is answered
        all the same, others were faster, and that token counts for nothing.
        """
        return await self._admin.first(keep)

    async def recover_admin(self, *, remove_password: bool = False) -> str:
        """A new token for `admin`, for an operator who can reach the store itself; its old tokens end."""
        return await self._admin.recover(remove_password=remove_password)

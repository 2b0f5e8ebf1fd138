"""The first account, and its recovery.

Both need access to the store only: a process that can write there needs no right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hostler.engine.access.token import PREFIX, digest_of
from hostler.engine.idempotent_writer import Beaten
from hostler.engine.request import HOSTLER, Request
from hostler.errors import Conflict, Uncertain
from hostler.keys.families import TOKEN, USER
from hostler.model.access import EVERYWHERE, ROLES, Role, Token, TokenKind
from hostler.model.inventory import User
from hostler.ports.store import Delete

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostler.engine.access.account_cache import AccountCache
    from hostler.engine.idempotent_writer import Writer
    from hostler.engine.runtime.env import Env
    from hostler.keys.entry import Entry
    from hostler.ports.store import Comparison, Store

ADMIN = "admin"
_TRIES = 4
_BATCH = 64


class Admin:
    """Creates the account `admin`: protected, with every right, member of everything."""

    def __init__(
        self,
        store: Store,
        writer: Writer,
        known: AccountCache,
        env: Env,
    ) -> None:
        self._store, self._writer, self._known, self._clock = store, writer, known, env.clock
        self._new_id, self._secret = env.new_id, env.new_secret

    async def first(self, keep: Callable[[str], None]) -> str | None:
        """Create the admin and return its API token; None: accounts exist already. Of concurrent callers one succeeds.

        `keep` gets the token before the account is created: a crash between the two leaves a token that is invalid, and
        not an account whose token is lost.
        """
        if (await self._store.range(USER.prefix(), limit=1, keys_only=True)).items:
            return None
        token = PREFIX + self._secret()
        keep(token)
        try:
            await self._write("user.first", None, [USER.absent(user=ADMIN)], token)
        except Beaten:
            return None
        return token

    async def recover(self, *, remove_password: bool = False) -> str:
        """Return a new API token of the admin, who is created if necessary. All its other tokens end.

        Its password stays unless it is removed: the admin then sets one without the old one.
        """
        for _ in range(_TRIES):
            entry = await USER.get(self._store, user=ADMIN)
            try:
                token = PREFIX + self._secret()
                await self._write("user.recover", entry, [_as_read(entry)], token, remove_password=remove_password)
            except Beaten:
                continue
            await self._sweep(digest_of(token))
            return token
        raise Conflict(f"user {ADMIN}: others kept changing it; nothing was written, try again")

    # Internal

    async def _write(
        self,
        verb: str,
        entry: Entry[User] | None,
        when: Sequence[Comparison],
        token: str,
        *,
        remove_password: bool = False,
    ) -> None:
        now, era = self._clock.wall(), self._new_id()
        before = User(name=ADMIN, created_at=now) if entry is None else entry.value
        user = msgspec.structs.replace(
            before,
            password_hash="" if remove_password else before.password_hash,
            enabled=True,
            protected=True,
            rights=ROLES[Role.ADMIN],
            memberships=(EVERYWHERE,),
            era=era,
            session_era=self._new_id(),
        )
        digest = digest_of(token)
        record = Token(id=self._new_id(), user=ADMIN, purpose=TokenKind.API, name=verb, created_at=now, era=era)
        try:
            revision = await self._writer.commit(
                Request(HOSTLER),
                verb,
                USER.fill(user=ADMIN),
                0 if entry is None else entry.mod_revision,
                when,
                [USER.put(user, user=ADMIN), TOKEN.put(record, digest=digest)],
                status=201,
            )
        except Uncertain:
            # No other process knows the token: if it exists, this process wrote it.
            found = await TOKEN.get(self._store, digest=digest)
            if found is None:
                raise
            revision = found.create_revision
        self._known.users.wrote(user, revision, entry, user=ADMIN)
        self._known.tokens.wrote(record, revision, digest=digest)

    async def _sweep(self, kept: str) -> None:
        """Delete old tokens, which are already invalid."""
        listing = await TOKEN.list(self._store, strict=False)
        old = [e.key for e in listing.entries if e.value.user == ADMIN and e.parts["digest"] != kept]
        for start in range(0, len(old), _BATCH):
            await self._store.txn([], [Delete(key) for key in old[start : start + _BATCH]])


def _as_read(entry: Entry[User] | None) -> Comparison:
    return USER.absent(user=ADMIN) if entry is None else USER.unchanged(entry)

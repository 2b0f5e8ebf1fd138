"""Accounts: create, read, change and delete, with permission checks."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from hostler.engine.access.grant import (
    check_gift,
    check_home_given,
    check_memberships,
    check_protected,
    check_touch,
    rights_of,
    within_reach,
)
from hostler.engine.idempotent_writer import Beaten
from hostler.engine.request import HOSTLER, Written
from hostler.errors import Conflict, Damaged, Forbidden, Invalid, KeyReused, NotFound, Stale
from hostler.keys.families import USER
from hostler.keys.template import check_new
from hostler.model.access import EVERYWHERE
from hostler.model.access_api import UserCreate, UserPage, UserUpdate, UserView
from hostler.model.inventory import Rights, User
from hostler.model.name import check_line, fold
from hostler.ports.store import Delete

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hostler.engine.access.account_cache import AccountCache
    from hostler.engine.access.token import Tokens
    from hostler.engine.idempotent_writer import Writer
    from hostler.engine.request import Caller, Request
    from hostler.engine.runtime.env import Env
    from hostler.keys.entry import Entry
    from hostler.ports.hasher import Hasher
    from hostler.ports.store import Comparison, Store

_TRIES = 4
_OWN = frozenset(("full_name", "password", "old_password"))
"""Fields of the own account that every user may change."""
_PAGE = 500


class Accounts:
    """Operations on accounts. Every method checks the caller's permission."""

    def __init__(
        self,
        store: Store,
        writer: Writer,
        known: AccountCache,
        tokens: Tokens,
        env: Env,
        *,
        hasher: Hasher,
        prove: Callable[[Entry[User], str], Awaitable[None]],
    ) -> None:
        """`prove` raises Forbidden unless the password is the account's."""
        self._store, self._writer, self._known, self._tokens = store, writer, known, tokens
        self._clock, self._new_id, self._hasher = env.clock, env.new_id, hasher
        self._prove = prove

    async def create(self, request: Request, asked: UserCreate) -> Written[UserView]:
        """Create an account. Conflict: the name is taken."""
        request.caller.require("manage_accounts")
        rights = rights_of(asked.role, asked.rights) or Rights()
        memberships = check_memberships(asked.memberships)
        check_gift(request.caller, rights, memberships)
        check_home_given(request.caller, memberships)
        key = USER.fill(user=_checked_name(asked.name))
        full_name = _checked_full_name(asked.full_name)

        async def do(request: Request) -> Written[UserView]:
            user = User(
                name=asked.name,
                full_name=full_name,
                password_hash="" if asked.password is None else await self._hasher.hash(asked.password),
                enabled=asked.enabled,
                rights=rights,
                memberships=memberships,
                created_at=self._clock.wall(),
                era=self._new_id(),
                session_era=self._new_id(),
            )
            return await self._create(request, user)

        plain = msgspec.structs.replace(asked, password=None)
        return await self._once(_with_fingerprint(request, key, plain.encode()), asked.name, asked.password, do)

    async def get(self, caller: Caller, name: str, *, stale: bool = False) -> UserView:
        """Return the caller's own account; with manage_accounts, any whose memberships the caller has, too."""
        return view_of(await self.visible_user(caller, name, stale=stale))

    async def page(
        self, caller: Caller, *, limit: int = 100, after: str | None = None, stale: bool = False
    ) -> UserPage:
        """Return a page of the accounts that the caller may manage, ordered by folded name."""
        caller.require("manage_accounts")
        if stale:
            entries = [entry for entry in self._known.users if after is None or entry.parts["user"] > fold(after)]
            entries = sorted((e for e in entries if within_reach(caller, e.value)), key=lambda e: e.parts["user"])
            more, revision = len(entries) > limit, max((entry.mod_revision for entry in entries), default=0)
        else:
            entries, more, revision = await self._list(caller, limit, after)
        entries = entries[:limit]
        last = entries[-1].parts["user"] if more and entries else None
        return UserPage(items=tuple(map(view_of, entries)), after=last, revision=revision)

    async def update(self, request: Request, name: str, asked: UserUpdate) -> Written[UserView]:
        """Change an account. A new password ends its sessions; disabling it also ends all its tokens.

        A session does not prove that its user knows the password: a new password for the caller's own account needs the
        old one, also if the caller manages accounts.
        """
        named = frozenset(field for field in UserUpdate.__struct_fields__ if getattr(asked, field) is not UNSET)
        if fold(name) != request.caller.name or named - _OWN:
            request.caller.require("manage_accounts")
        password = None if asked.password is UNSET else asked.password

        async def do(request: Request) -> Written[UserView]:
            kept = None if password is None else await self._hasher.hash(password)
            return await self._update(request, name, lambda user: self._changed_user(user, asked, kept), check)

        proven = ""

        async def check(entry: Entry[User]) -> None:
            nonlocal proven
            present = entry.value.password_hash
            if password is None or fold(name) != request.caller.name or present in ("", proven):
                return
            if asked.old_password is UNSET:
                raise Invalid("old_password: your own password is changed only with the present one; send it as well")
            await self._prove(entry, asked.old_password)
            proven = present

        plain = msgspec.structs.replace(asked, password=UNSET, old_password=UNSET)
        seal = _with_fingerprint(request, USER.fill(user=name), plain.encode())
        return await self._once(seal, name, password, do)

    async def delete(self, request: Request, name: str) -> Written[UserView]:
        """Delete an account with its tokens; return its last state."""
        request.caller.require("manage_accounts")
        return await self._writer.once(request, UserView, lambda: self._delete(request, name))

    async def visible_user(self, caller: Caller, name: str, *, stale: bool = False) -> Entry[User]:
        """Return an account that the caller may see. NotFound: there is none, or the caller may not see it."""
        own = fold(name) == caller.name
        if not own:
            caller.require("manage_accounts")
        entry = self._known.user(name) if stale else await USER.get(self._store, user=name)
        if entry is None or not (own or within_reach(caller, entry.value)):
            raise NotFound(f"user {name!r}: not found; list the users to see which exist")
        return entry

    async def manageable_user(self, caller: Caller, name: str) -> Entry[User]:
        """Return an account that the caller may act for. Forbidden: it has rights that the caller lacks."""
        entry = await self.visible_user(caller, name)
        if entry.parts["user"] != caller.name:
            check_touch(caller, entry.value)
        return entry

    # Transactions

    async def _create(self, request: Request, user: User) -> Written[UserView]:
        key = USER.fill(user=user.name)
        answer = _shown(user, 0)
        try:
            revision = await self._writer.commit(
                request,
                "user.create",
                key,
                0,
                [USER.absent(user=user.name)],
                [USER.put(user, user=user.name)],
                status=201,
                answer=answer,
            )
        except Beaten:
            raise Conflict(f"user {user.name!r}: exists already; choose another name") from None
        self._known.users.wrote(user, revision, user=user.name)
        return Written(_shown(user, revision), revision, 201)

    async def _update(
        self,
        request: Request,
        name: str,
        change: Callable[[User], User],
        check: Callable[[Entry[User]], Awaitable[None]],
    ) -> Written[UserView]:
        for _ in range(_TRIES):
            entry = await self.manageable_user(request.caller, name)
            _check_match(request, entry)
            await check(entry)
            before, after = entry.value, change(entry.value)
            if after.rights != before.rights or after.memberships != before.memberships:
                check_gift(request.caller, after.rights, after.memberships)
            check_protected(before, after)
            when = [USER.unchanged(entry), *await self._somebody_left(entry, after)]
            try:
                revision = await self._writer.commit(
                    request,
                    "user.update",
                    entry.key,
                    entry.mod_revision,
                    when,
                    [USER.put(after, user=name)],
                    status=200,
                    answer=_shown(after, 0),
                )
            except Beaten:
                continue
            self._known.users.wrote(after, revision, entry, user=name)
            if (after.era, after.session_era) != (before.era, before.session_era):
                await self._tokens.sweep(entry.parts["user"])
            return Written(_shown(after, revision), revision, 200)
        raise Conflict(f"user {name!r}: others kept changing it; nothing was written, try again")

    async def _delete(self, request: Request, name: str) -> Written[UserView]:
        for _ in range(_TRIES):
            entry = await self.manageable_user(request.caller, name)
            _check_match(request, entry)
            if entry.value.protected:
                raise Forbidden(f"user {entry.value.name}: is protected and cannot be deleted")
            when = [USER.unchanged(entry), *await self._somebody_left(entry, None)]
            answer = view_of(entry)
            try:
                revision = await self._writer.commit(
                    request,
                    "user.delete",
                    entry.key,
                    entry.mod_revision,
                    when,
                    [Delete(entry.key)],
                    status=200,
                    answer=answer,
                )
            except Beaten:
                continue
            self._known.users.wrote(None, revision, user=name)
            await self._tokens.sweep(entry.parts["user"])
            return Written(answer, revision, 200)
        raise Conflict(f"user {name!r}: others kept changing it; nothing was written, try again")

    # Helpers

    def _changed_user(self, user: User, asked: UserUpdate, kept: str | None) -> User:
        fields: dict[str, object] = {}
        for name in ("full_name", "enabled"):
            if (value := getattr(asked, name)) is not UNSET:
                fields[name] = value
        if asked.full_name is not UNSET and asked.full_name != user.full_name:
            _checked_full_name(asked.full_name)
        role = None if asked.role is UNSET else asked.role
        rights = rights_of(role, None if asked.rights is UNSET else asked.rights)
        if rights is not None:
            fields["rights"] = rights
        if asked.memberships is not UNSET:
            fields["memberships"] = check_memberships(asked.memberships)
        if kept is not None:
            fields |= {"password_hash": kept, "session_era": self._new_id()}
        if asked.enabled is False:
            fields |= {"era": self._new_id(), "session_era": self._new_id()}
        return msgspec.structs.replace(user, **fields)

    async def _somebody_left(self, entry: Entry[User], after: User | None) -> list[Comparison]:
        """Return comparisons which ensure that another account still manages accounts. Forbidden: none does.

        If this account does so everywhere, the other one must, too. The record of the other account is compared, so
        that of two concurrent requests that would lock out each other only one succeeds.
        """
        everywhere = EVERYWHERE in entry.value.memberships

        def manages(user: User) -> bool:
            return _manages(user) and (not everywhere or EVERYWHERE in user.memberships)

        if not manages(entry.value) or (after is not None and manages(after)):
            return []
        others = (await USER.list(self._store, strict=False)).entries
        other = next((other for other in others if other.key != entry.key and manages(other.value)), None)
        if other is None:
            what, needed = ("", "") if not everywhere else (" of every org", f" and membership in {EVERYWHERE}")
            raise Forbidden(
                f"user {entry.value.name}: is the last one who manages accounts{what}; give manage_accounts{needed} to"
                " another first"
            )
        return [USER.unchanged(other)]

    async def _list(self, caller: Caller, limit: int, after: str | None) -> tuple[list[Entry[User]], bool, int]:
        found: list[Entry[User]] = []
        position = None if after is None else USER.fill(user=after)
        revision: int | None = None
        while True:
            page = await self._store.range(USER.prefix(), after=position, limit=_PAGE, revision=revision)
            revision = page.revision
            for kv in page.items:
                try:
                    entry = USER.entry(kv)
                except (Invalid, Damaged):
                    continue
                if within_reach(caller, entry.value):
                    found.append(entry)
            if len(found) > limit or not page.more:
                return found, len(found) > limit, revision
            position = page.items[-1].key

    async def _once(
        self,
        request: Request,
        name: str,
        password: str | None,
        do: Callable[[Request], Awaitable[Written[UserView]]],
    ) -> Written[UserView]:
        """Run `do`, or return the earlier response.

        The fingerprint excludes the password, so it is compared separately.
        """
        written = await self._writer.once(request, UserView, lambda: do(request))
        if written.replayed and password is not None:
            entry = await USER.get(self._store, user=name)
            if entry is None or not await self._hasher.verify(entry.value.password_hash, password):
                raise KeyReused(f"Idempotency-Key {request.key!r}: used for another request; use a new key")
        return written


def view_of(entry: Entry[User]) -> UserView:
    """Return the API form of an account."""
    return _shown(entry.value, entry.mod_revision)


def _shown(user: User, revision: int) -> UserView:
    return UserView(
        name=user.name,
        full_name=user.full_name,
        enabled=user.enabled,
        protected=user.protected,
        has_password=bool(user.password_hash),
        rights=user.rights,
        memberships=user.memberships,
        created_at=user.created_at,
        revision=revision,
    )


def _manages(user: User) -> bool:
    return user.enabled and user.rights.manage_accounts


def _check_match(request: Request, entry: Entry[User]) -> None:
    if request.if_match is not None and request.if_match != entry.mod_revision:
        raise Stale(
            f"user {entry.value.name}: is at revision {entry.mod_revision}, not {request.if_match}; read it again"
        )


def _checked_name(name: str) -> str:
    if name != name.strip():
        raise Invalid(f"user {name!r}: a name must not begin or end with a space")
    check_new(name, "user")
    if fold(name) == HOSTLER.name:
        raise Invalid(f"user {name!r}: this name is reserved for the control plane; choose another")
    return name


def _checked_full_name(name: str) -> str:
    """Check a full name; it may be empty. An unchanged one is not checked."""
    return check_line(name, "full name") if name else name


def _with_fingerprint(request: Request, key: str, plain: bytes) -> Request:
    """Return the request with a fingerprint that excludes the password: a fast hash of a password could be guessed."""
    if request.key is None:
        return request
    fingerprint = hashlib.sha256(key.encode() + b"\0" + plain).hexdigest()
    return msgspec.structs.replace(request, fingerprint=fingerprint)

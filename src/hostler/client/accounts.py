"""`client.users`, `client.projects`, `client.quotas`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.client.resource import Resource
from hostler.model.access_api import Login, ProjectCreate, TokenCreate
from hostler.model.resources.accounts import BrowserSessionApi, OrgQuotaApi, ProjectApi, QuotaApi, UserApi

if TYPE_CHECKING:
    from typing import Unpack

    from hostler.client.resource import Keyed, Pages, Paging, WriteOptions
    from hostler.model.access_api import (
        ProjectList,
        ProjectView,
        QuotaSet,
        QuotaView,
        TokenIssued,
        TokenPage,
        UserCreate,
        UserPage,
        UserUpdate,
        UserView,
    )
    from hostler.model.vm_api import TicketView


class Users(Resource):
    """Accounts, sessions and tokens."""

    async def me(self) -> UserView:
        """Return the account of the token."""
        return await self._wire.call(UserApi.whoami)

    async def login(self, name: str, password: str) -> TokenIssued:
        """Open a session; `Client.login` also uses it. Sent only once: a session with a lost answer is useless."""
        return await self._wire.call(UserApi.login, body=Login(name=name, password=password))

    async def logout(self) -> None:
        """End the session whose token this client has."""
        await self._wire.send(UserApi.logout, repeat=False)

    async def web_ticket(self) -> TicketView:
        """Return a one-time ticket that signs a browser in as this account, valid for a minute: `{url}/{ticket}`."""
        return await self._wire.call(BrowserSessionApi.ticket)

    async def create(self, user: UserCreate, **options: Unpack[Keyed]) -> UserView:
        """Create an account."""
        return await self._wire.call(UserApi.create, body=user, **options)

    async def get(self, name: str) -> UserView:
        """Return an account."""
        return await self._wire.call(UserApi.get, name)

    def list(self, **options: Unpack[Paging]) -> Pages[UserPage, UserView]:
        """List the accounts: `await` a page, or `async for` over all."""
        return self._wire.list(UserApi.list, **options)

    async def update(self, name: str, change: UserUpdate, **options: Unpack[WriteOptions]) -> UserView:
        """Change an account. Fields that are left out do not change."""
        return await self._wire.call(UserApi.update, name, body=change, **options)

    async def delete(self, name: str, **options: Unpack[WriteOptions]) -> None:
        """Delete an account and its tokens."""
        await self._wire.send(UserApi.delete, name, **options)

    async def tokens(self, name: str) -> TokenPage:
        """List the tokens and sessions of an account, without their secrets."""
        return await self._wire.call(UserApi.tokens, name)

    async def issue(self, name: str, token: TokenCreate | None = None) -> TokenIssued:
        """Create an API token. Its secret is in this answer only, so the request is sent once and not repeated."""
        return await self._wire.call(UserApi.issue, name, body=token or TokenCreate(), repeat=False)

    async def revoke(self, name: str, token_id: str) -> None:
        """Revoke a token by its id."""
        await self._wire.send(UserApi.revoke, name, token_id, repeat=False)


class Projects(Resource):
    """Projects of orgs."""

    async def list(self, *, org: str | None = None) -> ProjectList:
        """List the visible projects."""
        return await self._wire.call(ProjectApi.list, query={"org": org})

    async def create(self, org: str, name: str, **options: Unpack[Keyed]) -> ProjectView:
        """Create a project."""
        return await self._wire.call(ProjectApi.create, org, body=ProjectCreate(name=name), **options)


class Quotas(Resource):
    """Quotas of projects; with an empty `project`, of all projects of the org together."""

    async def get(self, org: str, project: str) -> QuotaView:
        """Return limits and usage."""
        if not project:
            return await self._wire.call(OrgQuotaApi.get, org)
        return await self._wire.call(QuotaApi.get, org, project)

    async def set(self, org: str, project: str, quota: QuotaSet, **options: Unpack[WriteOptions]) -> QuotaView:
        """Set the limits."""
        if not project:
            return await self._wire.call(OrgQuotaApi.set, org, body=quota, **options)
        return await self._wire.call(QuotaApi.set, org, project, body=quota, **options)

    async def delete(self, org: str, project: str, **options: Unpack[WriteOptions]) -> None:
        """Remove the limits."""
        if not project:
            await self._wire.send(OrgQuotaApi.delete, org, **options)
        else:
            await self._wire.send(QuotaApi.delete, org, project, **options)

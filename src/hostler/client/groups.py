"""`client.nodes`, `client.retained`, `client.users`, `client.projects`, `client.quotas`, `client.control`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.model.api import (
    AuditPage,
    AuditView,
    BrakeView,
    Drain,
    LeaderView,
    Login,
    NodePage,
    NodeView,
    ProjectCreate,
    ProjectList,
    ProjectView,
    QuotaView,
    ReplicaPage,
    TicketView,
    TokenCreate,
    TokenIssued,
    TokenPage,
    UserPage,
    UserView,
    VmView,
)
from hostler.model.overview_api import Overview
from hostler.model.retained_api import RetainedPage, RetainedRestore, RetainedView

if TYPE_CHECKING:
    from hostler.client.pages import Pages
    from hostler.client.transport import HttpTransport
    from hostler.model.api import QuotaSet, UserCreate, UserUpdate


class Nodes:
    """Nodes, on which machines run."""

    def __init__(self, wire: HttpTransport) -> None:
        self._wire = wire

    async def get(self, node: str, *, stale: bool = False) -> NodeView:
        """Return a node with its usage."""
        return await self._wire.read(NodeView, "nodes", node, stale=stale)

    def list(
        self, *, limit: int | None = None, after: str | None = None, stale: bool = False
    ) -> Pages[NodePage, NodeView]:
        """List the nodes: `await` a page, or `async for` over all."""
        return self._wire.pages(NodePage, "nodes", limit=limit, after=after, stale=stale)

    async def drain(
        self, node: str, drain: Drain | None = None, *, if_match: int | None = None, key: str | None = None
    ) -> NodeView:
        """Empty the node: its machines are moved, or stopped, one by one."""
        return await self._act(node, "drain", drain or Drain(), if_match, key)

    async def activate(self, node: str, *, if_match: int | None = None, key: str | None = None) -> NodeView:
        """Return a drained node to service."""
        return await self._act(node, "activate", None, if_match, key)

    async def confirm_off(self, node: str, *, if_match: int | None = None, key: str | None = None) -> NodeView:
        """Confirm that an unreachable node is off: its machines are started elsewhere."""
        return await self._act(node, "confirm-off", None, if_match, key)

    async def brake(self) -> BrakeView:
        """Return whether the brake on mass failure holds."""
        return await self._wire.read(BrakeView, "brake")

    async def release_brake(self, *, if_match: int | None = None, key: str | None = None) -> BrakeView:
        """Allow fencing of the nodes that hold the brake, one at a time."""
        return await self._wire.write("POST", BrakeView, "brake", "release", if_match=if_match, key=key)

    async def forget(
        self, node: str, *, forget_retained: bool = False, if_match: int | None = None, key: str | None = None
    ) -> None:
        """Remove the record of a node that is decommissioned, or unreachable and empty.

        `forget_retained`: also remove the records of its retained machines. Their disks stay in the node's folder.
        """
        query = {"forget_retained": forget_retained or None}
        await self._wire.send("DELETE", "nodes", node, query=query, if_match=if_match, key=key)

    async def _act(self, node: str, verb: str, body: Drain | None, if_match: int | None, key: str | None) -> NodeView:
        return await self._wire.write("POST", NodeView, "nodes", node, verb, body=body, if_match=if_match, key=key)


class RetainedMachines:
    """Machines that are out of service and are kept with their disks."""

    def __init__(self, wire: HttpTransport) -> None:
        self._wire = wire

    async def list(self) -> RetainedPage:
        """List all visible retained machines, newest first."""
        return await self._wire.read(RetainedPage, "retained")

    async def get(self, node: str, name: str) -> RetainedView:
        """Return one retained machine."""
        return await self._wire.read(RetainedView, "retained", node, name)

    async def restore(self, node: str, name: str, *, as_name: str | None = None, key: str | None = None) -> VmView:
        """Restore its virtual machine to that disk, or create a new machine `as_name` from it."""
        body = RetainedRestore(name=as_name)
        return await self._wire.write("POST", VmView, "retained", node, name, "restore", body=body, key=key)

    async def delete(self, node: str, name: str, *, key: str | None = None) -> RetainedView:
        """Delete it permanently, with disk and snapshots."""
        return await self._wire.write("DELETE", RetainedView, "retained", node, name, key=key)


class Users:
    """Accounts, sessions and tokens."""

    def __init__(self, wire: HttpTransport) -> None:
        self._wire = wire

    async def me(self) -> UserView:
        """Return the account of the token."""
        return await self._wire.read(UserView, "sessions")

    async def login(self, name: str, password: str) -> TokenIssued:
        """Open a session; `Client.login` also uses it. Sent only once: a session with a lost answer is useless."""
        body = Login(name=name, password=password)
        return await self._wire.write("POST", TokenIssued, "sessions", body=body, repeat=False)

    async def logout(self) -> None:
        """End the session whose token this client has."""
        await self._wire.send("DELETE", "sessions", repeat=False)

    async def web_ticket(self) -> TicketView:
        """Return a one-time ticket that signs a browser in as this account, valid for a minute: `{url}/{ticket}`."""
        return await self._wire.write("POST", TicketView, "sessions", "tickets", repeat=False)

    async def create(self, user: UserCreate, *, key: str | None = None) -> UserView:
        """Create an account."""
        return await self._wire.write("POST", UserView, "users", body=user, key=key)

    async def get(self, name: str) -> UserView:
        """Return an account."""
        return await self._wire.read(UserView, "users", name)

    def list(self, *, limit: int | None = None, after: str | None = None) -> Pages[UserPage, UserView]:
        """List the accounts: `await` a page, or `async for` over all."""
        return self._wire.pages(UserPage, "users", limit=limit, after=after)

    async def update(
        self, name: str, change: UserUpdate, *, if_match: int | None = None, key: str | None = None
    ) -> UserView:
        """Change an account. Fields that are left out do not change."""
        return await self._wire.write("PATCH", UserView, "users", name, body=change, if_match=if_match, key=key)

    async def delete(self, name: str, *, if_match: int | None = None, key: str | None = None) -> None:
        """Delete an account and its tokens."""
        await self._wire.send("DELETE", "users", name, if_match=if_match, key=key)

    async def tokens(self, name: str) -> TokenPage:
        """List the tokens and sessions of an account, without their secrets."""
        return await self._wire.read(TokenPage, "users", name, "tokens")

    async def issue(self, name: str, token: TokenCreate | None = None) -> TokenIssued:
        """Create an API token. Its secret is in this answer only, so the request is sent once and not repeated."""
        body = token or TokenCreate()
        return await self._wire.write("POST", TokenIssued, "users", name, "tokens", body=body, repeat=False)

    async def revoke(self, name: str, token_id: str) -> None:
        """Revoke a token by its id."""
        await self._wire.send("DELETE", "users", name, "tokens", token_id, repeat=False)


class Projects:
    """Projects of orgs."""

    def __init__(self, wire: HttpTransport) -> None:
        self._wire = wire

    async def list(self, *, org: str | None = None) -> ProjectList:
        """List the visible projects."""
        return await self._wire.read(ProjectList, "projects", query={"org": org})

    async def create(self, org: str, name: str, *, key: str | None = None) -> ProjectView:
        """Create a project."""
        body = ProjectCreate(name=name)
        return await self._wire.write("POST", ProjectView, "orgs", org, "projects", body=body, key=key)


class Quotas:
    """Quotas of projects; with an empty `project`, of all projects of the org together."""

    def __init__(self, wire: HttpTransport) -> None:
        self._wire = wire

    async def get(self, org: str, project: str) -> QuotaView:
        """Return limits and usage."""
        return await self._wire.read(QuotaView, *_quota(org, project))

    async def set(
        self, org: str, project: str, quota: QuotaSet, *, if_match: int | None = None, key: str | None = None
    ) -> QuotaView:
        """Set the limits."""
        return await self._wire.write("PUT", QuotaView, *_quota(org, project), body=quota, if_match=if_match, key=key)

    async def delete(self, org: str, project: str, *, if_match: int | None = None, key: str | None = None) -> None:
        """Remove the limits."""
        await self._wire.send("DELETE", *_quota(org, project), if_match=if_match, key=key)


class Control:
    """The control plane itself."""

    def __init__(self, wire: HttpTransport) -> None:
        self._wire = wire

    async def leader(self) -> LeaderView:
        """Return the leader."""
        return await self._wire.read(LeaderView, "leader")

    async def replicas(self) -> ReplicaPage:
        """List the running replicas."""
        return await self._wire.read(ReplicaPage, "replicas")

    async def overview(self) -> Overview:
        """Return an overview: leader and past leaders, the store, nodes, machines, labs, and what needs attention."""
        return await self._wire.read(Overview, "overview")

    def audit(
        self,
        *,
        day: str | None = None,
        newest: bool = False,
        who: str | None = None,
        verb: str | None = None,
        subject: str | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Pages[AuditPage, AuditView]:
        """List every write, oldest first unless `newest`; of one day (`2026-11-15`) if `day` is given.

        `verb` may be a prefix (`vm.`), `subject` any part of the key that was written.
        """
        return self._wire.pages(
            AuditPage,
            "audit",
            limit=limit,
            after=after,
            query={"day": day, "who": who, "verb": verb, "subject": subject, "newest": newest or None},
        )


def _quota(org: str, project: str) -> tuple[str, ...]:
    return ("orgs", org, "projects", project, "quota") if project else ("orgs", org, "quota")

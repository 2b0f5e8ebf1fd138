"""`client.nodes`, `client.retained`, `client.users`, `client.quotas`, `client.control`."""

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
    from hostler.client.transport import Wire
    from hostler.model.api import QuotaSet, UserCreate, UserUpdate


class Nodes:
    """Where machines run."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def get(self, node: str, *, stale: bool = False) -> NodeView:
        """A node, and how full it is."""
        return await self._wire.read(NodeView, "nodes", node, stale=stale)

    def list(
        self, *, limit: int | None = None, after: str | None = None, stale: bool = False
    ) -> Pages[NodePage, NodeView]:
        """`await` a page, or `async for` over every node."""
        return self._wire.pages(NodePage, "nodes", limit=limit, after=after, stale=stale)

    async def drain(
        self, node: str, drain: Drain | None = None, *, if_match: int | None = None, key: str | None = None
    ) -> NodeView:
        """Empty it: machines are moved, or stopped, one by one."""
        return await self._act(node, "drain", drain or Drain(), if_match, key)

    async def activate(self, node: str, *, if_match: int | None = None, key: str | None = None) -> NodeView:
        """Put a drained node on duty again."""
        return await self._act(node, "activate", None, if_match, key)

    async def confirm_off(self, node: str, *, if_match: int | None = None, key: str | None = None) -> NodeView:
        """Stand for it that a silent node is off: its machines are started elsewhere."""
        return await self._act(node, "confirm-off", None, if_match, key)

    async def brake(self) -> BrakeView:
        """Whether the brake on mass failure holds."""
        return await self._wire.read(BrakeView, "brake")

    async def release_brake(self, *, if_match: int | None = None, key: str | None = None) -> BrakeView:
        """Let the nodes be fenced that hold the brake, one at a time."""
        return await self._wire.write("POST", BrakeView, "brake", "release", if_match=if_match, key=key)

    async def forget(
        self, node: str, *, forget_retained: bool = False, if_match: int | None = None, key: str | None = None
    ) -> None:
        """Forget a node that is decommissioned, or silent and empty.

        `forget_retained`: its retained machines as well. Their records go; their disks stay in the node's folder.
        """
        query = {"forget_retained": forget_retained or None}
        await self._wire.send("DELETE", "nodes", node, query=query, if_match=if_match, key=key)

    async def _act(self, node: str, verb: str, body: Drain | None, if_match: int | None, key: str | None) -> NodeView:
        return await self._wire.write("POST", NodeView, "nodes", node, verb, body=body, if_match=if_match, key=key)


class RetainedMachines:
    """Machines that are out of service and are kept with their disks."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def list(self) -> RetainedPage:
        """All that one sees, the newest first."""
        return await self._wire.read(RetainedPage, "retained")

    async def get(self, node: str, name: str) -> RetainedView:
        """One."""
        return await self._wire.read(RetainedView, "retained", node, name)

    async def restore(self, node: str, name: str, *, as_name: str | None = None, key: str | None = None) -> VmView:
        """Bring its virtual machine back to that disk; or make a new one of it, `as_name`."""
        body = RetainedRestore(name=as_name)
        return await self._wire.write("POST", VmView, "retained", node, name, "restore", body=body, key=key)

    async def delete(self, node: str, name: str, *, key: str | None = None) -> RetainedView:
        """Delete it for good, with disk and snapshots."""
        return await self._wire.write("DELETE", RetainedView, "retained", node, name, key=key)


class Users:
    """Accounts, sessions and tokens."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def me(self) -> UserView:
        """Whom the token stands for."""
        return await self._wire.read(UserView, "sessions")

    async def login(self, name: str, password: str) -> TokenIssued:
        """A session; `Client.login` also uses it. Sent once: a lost answer is no session worth looking for."""
        body = Login(name=name, password=password)
        return await self._wire.write("POST", TokenIssued, "sessions", body=body, repeat=False)

    async def logout(self) -> None:
        """End the session whose token this client has."""
        await self._wire.send("DELETE", "sessions", repeat=False)

    async def web_ticket(self) -> TicketView:
        """What signs a browser in as the one this client asks for, once, within a minute: `{url}/{ticket}`."""
        return await self._wire.write("POST", TicketView, "sessions", "tickets", repeat=False)

    async def create(self, user: UserCreate, *, key: str | None = None) -> UserView:
        """A new account."""
        return await self._wire.write("POST", UserView, "users", body=user, key=key)

    async def get(self, name: str) -> UserView:
        """An account."""
        return await self._wire.read(UserView, "users", name)

    def list(self, *, limit: int | None = None, after: str | None = None) -> Pages[UserPage, UserView]:
        """`await` a page, or `async for` over every account."""
        return self._wire.pages(UserPage, "users", limit=limit, after=after)

    async def update(
        self, name: str, change: UserUpdate, *, if_match: int | None = None, key: str | None = None
    ) -> UserView:
        """Change an account; what is left out stays."""
        return await self._wire.write("PATCH", UserView, "users", name, body=change, if_match=if_match, key=key)

    async def delete(self, name: str, *, if_match: int | None = None, key: str | None = None) -> None:
        """Delete an account, and its tokens with it."""
        await self._wire.send("DELETE", "users", name, if_match=if_match, key=key)

    async def tokens(self, name: str) -> TokenPage:
        """The tokens and sessions of an account, without their secrets."""
        return await self._wire.read(TokenPage, "users", name, "tokens")

    async def issue(self, name: str, token: TokenCreate | None = None) -> TokenIssued:
        """A new API token, told this once; sent once, for an answer that is lost cannot be asked for again."""
        body = token or TokenCreate()
        return await self._wire.write("POST", TokenIssued, "users", name, "tokens", body=body, repeat=False)

    async def revoke(self, name: str, token_id: str) -> None:
        """End a token by its id."""
        await self._wire.send("DELETE", "users", name, "tokens", token_id, repeat=False)


class Projects:
    """Projects of orgs."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def list(self, *, org: str | None = None) -> ProjectList:
        """The projects that you see."""
        return await self._wire.read(ProjectList, "projects", query={"org": org})

    async def create(self, org: str, name: str, *, key: str | None = None) -> ProjectView:
        """A new project."""
        body = ProjectCreate(name=name)
        return await self._wire.write("POST", ProjectView, "orgs", org, "projects", body=body, key=key)


class Quotas:
    """What projects may have; with an empty `project`, what all projects of the org may have together."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def get(self, org: str, project: str) -> QuotaView:
        """Limits and use."""
        return await self._wire.read(QuotaView, *_quota(org, project))

    async def set(
        self, org: str, project: str, quota: QuotaSet, *, if_match: int | None = None, key: str | None = None
    ) -> QuotaView:
        """New limits."""
        return await self._wire.write("PUT", QuotaView, *_quota(org, project), body=quota, if_match=if_match, key=key)

    async def delete(self, org: str, project: str, *, if_match: int | None = None, key: str | None = None) -> None:
        """No limits any more."""
        await self._wire.send("DELETE", *_quota(org, project), if_match=if_match, key=key)


class Control:
    """The control plane itself."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def leader(self) -> LeaderView:
        """Who leads."""
        return await self._wire.read(LeaderView, "leader")

    async def replicas(self) -> ReplicaPage:
        """The replicas that live."""
        return await self._wire.read(ReplicaPage, "replicas")

    async def overview(self) -> Overview:
        """Everything at a glance: who leads and led, the store, nodes, machines, labs, what needs a look."""
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
        """Every write, oldest first unless `newest`; of one day, `2026-11-15`, if that is named.

        `verb` may be the beginning of one (`vm.`), `subject` any part of the key that was written.
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

"""A route: everything that the router, the OpenAPI document, the docs page and the test of rights need to know."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from hostler.errors import NotFound
from hostler.model.name import fold

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hostler.engine.request import Caller, Request
    from hostler.entry.server.feed import Feed
    from hostler.entry.server.services import ServerPlan, Services
    from hostler.entry.terminal.sessions import Keeper
    from hostler.keys.entry import Entry
    from hostler.model.access import Ticket
    from hostler.model.record import Record


class Access(enum.StrEnum):
    """Who may call a route, beside the six rights."""

    ANYONE = "anyone"
    """No token is needed."""
    NEARBY = "nearby"
    """From this very machine no token is needed; from elsewhere that of any account."""
    LOGGED_IN = "logged in"
    """Everybody with a token; the answer holds only what the caller sees."""
    PROJECT = "project"
    """Those who see the project; to all others it does not exist."""
    SELF = "self"
    """The owner of the account, and those with the right manage_accounts."""
    DEPLOYERS = "deployers"
    """Those with the right modify_workloads who belong everywhere: what they say runs on every node."""
    ADMINISTRATORS = "administrators"
    """Those with the right manage_accounts who are members everywhere."""


NOTHING = 204
"""The status of an answer that has nothing to tell."""
Right: TypeAlias = Literal[
    "manage_accounts", "step_time", "modify_workloads", "modify_inventory", "inject_faults", "perform_repairs"
]
Kind: TypeAlias = Literal["string", "integer", "boolean"]


class Parameter(msgspec.Struct, frozen=True):
    """One query parameter."""

    name: str
    about: str
    kind: Kind = "string"
    minimum: int | None = None
    maximum: int | None = None
    default: int | str | bool | None = None
    pattern: str | None = None
    example: str | None = None


LIMIT = Parameter("limit", "How many at most.", "integer", minimum=1, maximum=1000, default=100)
AFTER = Parameter("after", "Where the last page ended: its `after`.")
STALE = Parameter(
    "stale", "Answer from memory if need be; `Hostler-Stale` says how old that may be.", "boolean", default=False
)


class Asked(msgspec.Struct, frozen=True):
    """A request that passed the door."""

    route: Route
    services: Services
    caller: Caller
    parts: dict[str, str]
    query: dict[str, Any]
    """Typed, with defaults."""
    body: Any
    """Of the route's `body` type; None if it has none."""
    request: Request
    """For services that write."""
    source: str
    raw: Raw
    feed: Feed
    plan: ServerPlan
    terminals: Keeper
    spend: Callable[[Caller], None]
    """Count a write of an account that the request began without. OverBudget: it must wait."""

    @property
    def limit(self) -> int:
        """How many the caller wants at most."""
        return self.query["limit"]  # type: ignore[no-any-return]

    @property
    def after(self) -> str | None:
        """Where the last page ended."""
        return self.query["after"]  # type: ignore[no-any-return]

    @property
    def stale(self) -> bool:
        """Whether old news will do."""
        return self.query["stale"]  # type: ignore[no-any-return]


class Raw(msgspec.Struct):
    """The request as ASGI has it, and what was read of it at the door."""

    scope: Any
    receive: Any
    send: Any
    headers: dict[bytes, bytes]
    taken: bool = False
    """Whether a handler has read all of the body."""
    token: str = ""
    ticket: Entry[Ticket] | None = None
    """In place of a token, at the door of a machine."""
    peer: bool = False
    """Whether another process of the control plane asks, with a ticket of its own."""
    cookie: bool = False
    """Whether the token came in the cookie of a browser."""
    id: str = ""
    tried: str = ""
    """The name of the account that a sign-in is for, as the caller gave it."""


class Answer(msgspec.Struct, frozen=True):
    """What a handler answers. A `text` is sent as it is, otherwise the value as JSON."""

    value: Record | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()
    text: bytes | None = None
    media: bytes = b"application/json"
    status: int | None = None
    """None: the route's."""


Handler: TypeAlias = "Callable[[Asked], Awaitable[Answer | None]]"
"""None: it has answered by itself (a stream)."""


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path.

    `access` is one of `Access`, or a right. A route under a project with a right also wants the caller to see the
    project. `errors` are beyond those that every such route has (`statuses`).
    """

    method: str
    path: str
    """`/v1/nodes/{node}`: a part in braces stands for one segment."""
    name: str
    """`vm.create`: unique; the operation's id."""
    summary: str
    handler: Handler
    access: Access | Right
    status: int = 200
    also: tuple[int, ...] = ()
    """Other statuses of success."""
    body: type[Record] | None = None
    body_optional: bool = False
    answer: type[Record] | None = None
    brief: type[Record] | None = None
    """What it answers in place of that to who asks for `brief=true`."""
    media: str = "application/json"
    errors: tuple[int, ...] = ()
    query: tuple[Parameter, ...] = ()
    about: str = ""
    idempotent: bool = True
    """Whether a write takes an Idempotency-Key."""
    conditional: bool = False
    """Whether a write takes If-Match."""
    max_body: int | None = None
    """Bytes of its body at most; None: what the server takes elsewhere."""
    aside: Callable[[bytes], Record] | None = None
    """Reads a body that is large, in a thread; None: its bodies are small enough for the loop."""
    streamed: bool = False
    """Whether the handler reads the body itself, as it comes: it is a file."""
    quiet: bool = False
    """Whether it is not logged while it succeeds, though it writes: it comes too often."""
    is_long: bool = False
    """Whether it reads thousands of records to answer: such reads wait for each other (`entry.server.long_reads`)."""
    costly: bool = False
    """Whether it costs as much as a write, though it is a GET: it leaves tickets in the store."""
    door: str | None = None
    """Of a machine (`hostler.ports.machines.Door`), or a lab's terminal: a ticket lets in, too."""
    peers: str = ""
    """In place of a node, where another process of the control plane is let in with a ticket of its own
    (`PeerTickets`): for the path's last part in braces, and for what the path ends in. Empty: nowhere."""
    takes_rest: bool = False
    """Whether the path's last part in braces stands for all the rest of a path, and the handler reads path and query
    itself: they are those of a slice."""
    listed: bool = True
    """Whether it stands in the OpenAPI document: files of the page do not."""

    @property
    def writes(self) -> bool:
        """Whether it changes anything."""
        return self.method != "GET"

    @property
    def spends_write(self) -> bool:
        """Whether it counts as a write of its caller: opening a console, a shell or a terminal is audited."""
        return (self.writes and not self.quiet) or self.costly or self.door is not None

    @property
    def tag(self) -> str:
        """What it is about."""
        return self.name.partition(".")[0]

    @property
    def parts(self) -> tuple[str, ...]:
        """The names in braces, in order."""
        return tuple(piece[1:-1] for piece in self.path.split("/") if piece.startswith("{"))

    @property
    def in_project(self) -> bool:
        """Whether it belongs to one project, and does not exist for those who do not see that."""
        return "{project}" in self.path

    @property
    def statuses(self) -> tuple[int, ...]:
        """Every status but the success that it may answer."""
        found = {500, 503, *self.errors}
        if self.access is not Access.ANYONE:
            found |= {400, 401, 403, 429}  # 403: a browser that does not show that our own page asks
        if self.parts:
            found |= {400, 404}
        if self.body is not None:
            found |= {400, 408, 413, 415}
        if self.writes:
            found |= {400, 408, 409, 413, 415}
            found |= {422} if self.idempotent else set()
            found |= {412} if self.conditional else set()
        return tuple(sorted(found))


def check_access(route: Route, caller: Caller, parts: dict[str, str]) -> None:
    """NotFound: to this caller there is no such project. Forbidden: a right is missing."""
    if route.in_project and not caller.sees(parts["org"], parts["project"]):
        raise NotFound(
            f"project {parts['org']}/{parts['project']}: there is none such, or this account is no member of it; see"
            " hostler project list, and name one with --org and --project"
        )
    if route.access is Access.SELF:
        if fold(parts["user"]) != caller.name:
            caller.require("manage_accounts")
    elif route.access is Access.DEPLOYERS:
        caller.require_deploy()
    elif route.access is Access.ADMINISTRATORS:
        caller.require("manage_accounts", everywhere=True)
    elif not isinstance(route.access, Access):
        caller.require(route.access)

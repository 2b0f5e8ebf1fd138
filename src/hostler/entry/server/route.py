"""A route: everything that the router, the OpenAPI document, the docs page and the tests of permissions need."""

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
    from hostler.entry.server.services import ServerConfig, Services
    from hostler.entry.terminal.sessions import TerminalSessions
    from hostler.keys.entry import Entry
    from hostler.model.access import Ticket
    from hostler.model.record import Record


class Access(enum.StrEnum):
    """Who may call a route, in addition to the six rights."""

    ANYONE = "anyone"
    """No token is needed."""
    NEARBY = "nearby"
    """From this host no token is needed; from elsewhere the token of any account."""
    LOGGED_IN = "logged in"
    """Everyone with a token; the answer holds only what the caller sees."""
    PROJECT = "project"
    """Accounts that see the project; for all others it does not exist."""
    SELF = "self"
    """The owner of the account, and accounts with the right manage_accounts."""
    DEPLOYERS = "deployers"
    """Accounts with the right modify_workloads that belong everywhere, because a blueprint may run on every node."""
    ADMINISTRATORS = "administrators"
    """Accounts with the right manage_accounts that belong everywhere."""


NOTHING = 204
"""The status of an answer without content."""
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


LIMIT = Parameter("limit", "Most items to return.", "integer", minimum=1, maximum=1000, default=100)
AFTER = Parameter("after", "The `after` of the last page.")
STALE = Parameter(
    "stale", "Answer from memory if necessary; `Hostler-Stale` says how old that may be.", "boolean", default=False
)


class Asked(msgspec.Struct, frozen=True):
    """A request that passed authentication and parsing."""

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
    plan: ServerConfig
    terminals: TerminalSessions
    spend: Callable[[Caller], None]
    """Count a write of an account that was not known when the request began. OverBudget: the caller must wait."""

    @property
    def limit(self) -> int:
        """Return the most items that the caller wants."""
        return self.query["limit"]  # type: ignore[no-any-return]

    @property
    def after(self) -> str | None:
        """Return where the last page ended."""
        return self.query["after"]  # type: ignore[no-any-return]

    @property
    def stale(self) -> bool:
        """Return whether the caller accepts cached state."""
        return self.query["stale"]  # type: ignore[no-any-return]


class Raw(msgspec.Struct):
    """The ASGI request, and what authentication read from it."""

    scope: Any
    receive: Any
    send: Any
    headers: dict[bytes, bytes]
    taken: bool = False
    """Whether a handler has read all of the body."""
    token: str = ""
    ticket: Entry[Ticket] | None = None
    """Used in place of a token, for a channel to a machine."""
    peer: bool = False
    """Whether another process of the control plane makes the request, with a ticket of its own."""
    cookie: bool = False
    """Whether the token came in a browser's cookie."""
    id: str = ""
    tried: str = ""
    """The account name of a sign-in, as the caller gave it."""


class Answer(msgspec.Struct, frozen=True):
    """The answer of a handler. A `text` is sent unchanged, otherwise the value is sent as JSON."""

    value: Record | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()
    text: bytes | None = None
    media: bytes = b"application/json"
    status: int | None = None
    """None: the status of the route."""


Handler: TypeAlias = "Callable[[Asked], Awaitable[Answer | None]]"
"""Returns None if the handler has already answered (a stream)."""


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path.

    `access` is one of `Access`, or a right. A route below a project with a right also requires that the caller sees the
    project. `errors` adds to those that every such route has (`statuses`).
    """

    method: str
    path: str
    """`/v1/nodes/{node}`: a part in braces matches one segment."""
    name: str
    """`vm.create`: unique; the operation id."""
    summary: str
    handler: Handler
    access: Access | Right
    status: int = 200
    also: tuple[int, ...] = ()
    """Other success statuses."""
    body: type[Record] | None = None
    body_optional: bool = False
    answer: type[Record] | None = None
    brief: type[Record] | None = None
    """The type of the answer for `brief=true`."""
    media: str = "application/json"
    errors: tuple[int, ...] = ()
    query: tuple[Parameter, ...] = ()
    about: str = ""
    idempotent: bool = True
    """Whether a write accepts an Idempotency-Key."""
    conditional: bool = False
    """Whether a write accepts If-Match."""
    max_body: int | None = None
    """Largest body in bytes; None: the server's default."""
    aside: Callable[[bytes], Record] | None = None
    """Decodes a large body in a thread; None: all bodies are small enough for the event loop."""
    streamed: bool = False
    """Whether the handler reads the body itself, as a stream: it is a file."""
    quiet: bool = False
    """Whether successful requests are not logged although they write, because they are too frequent."""
    is_long: bool = False
    """Whether it reads thousands of records: such reads are limited (`entry.server.long_reads`)."""
    costly: bool = False
    """Whether it costs as much as a write although it is a GET: it leaves tickets in the store."""
    door: str | None = None
    """A channel of a machine (`hostler.ports.machines.Door`), or a lab's terminal: a ticket is accepted too."""
    peers: str = ""
    """Replaces the node in tickets of other processes of the control plane (`PeerTickets`) that may use this route.

    Such a ticket is for the path's last part in braces and for the end of the path. Empty: no such tickets.
    """
    takes_rest: bool = False
    """Whether the last part in braces matches the rest of the path, and the handler parses path and query itself.

    Used for paths that belong to slices.
    """
    listed: bool = True
    """Whether it is in the OpenAPI document; files of the web page are not."""

    @property
    def writes(self) -> bool:
        """Return whether it changes anything."""
        return self.method != "GET"

    @property
    def spends_write(self) -> bool:
        """Return whether it counts as a write of its caller: opening a console, shell or terminal is audited."""
        return (self.writes and not self.quiet) or self.costly or self.door is not None

    @property
    def tag(self) -> str:
        """Return the kind of object that it is about."""
        return self.name.partition(".")[0]

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the names in braces, in order."""
        return tuple(piece[1:-1] for piece in self.path.split("/") if piece.startswith("{"))

    @property
    def in_project(self) -> bool:
        """Return whether it belongs to one project, and does not exist for callers who do not see that project."""
        return "{project}" in self.path

    @property
    def statuses(self) -> tuple[int, ...]:
        """Return every status except success."""
        found = {500, 503, *self.errors}
        if self.access is not Access.ANYONE:
            found |= {400, 401, 403, 429}  # 403: a browser request that does not come from our own page
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
    """Check the caller's permissions. NotFound: the caller sees no such project. Forbidden: a right is missing."""
    if route.in_project and not caller.sees(parts["org"], parts["project"]):
        raise NotFound(
            f"project {parts['org']}/{parts['project']}: not found, or this account is not a member of it; see"
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

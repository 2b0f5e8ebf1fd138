"""A route: an operation of the API and its handler; the request that a handler gets, and its answer."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

import msgspec

from hostler.errors import NotFound
from hostler.model.name import fold
from hostler.model.record import Record
from hostler.model.resources.operation import Access, Operation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hostler.engine.request import Caller, Request, Written
    from hostler.entry.server.feed import Feed
    from hostler.entry.server.services import ServerConfig, Services
    from hostler.entry.terminal.sessions import TerminalSessions
    from hostler.keys.entry import Entry
    from hostler.model.access import Ticket


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


class Route(Operation[Record], frozen=True, kw_only=True):
    """An operation, and what answers it."""

    handler: Handler
    calls: str = ""
    """`nodes.drain`: the method of a service that it calls, if the handler does nothing else."""
    aside: Callable[[bytes], Record] | None = None
    """Decodes a large body in a thread; None: all bodies are small enough for the event loop."""
    channel: str | None = None
    """A channel of a machine (`hostler.ports.machines.ChannelKind`), or a lab's terminal: a ticket is accepted too."""
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
    def spends_write(self) -> bool:
        """Return whether it counts as a write of its caller: opening a console, shell or terminal is audited."""
        return (self.writes and not self.quiet) or self.costly or self.channel is not None


def routes_of(
    resource: type, service: str = "", options: dict[str, dict[str, Any]] | None = None, /, **handlers: Handler
) -> tuple[Route, ...]:
    """Return the routes of a resource, in the order of its declaration.

    An operation without a handler calls the method of `service` (a field of `Services`) that has its name. `options`:
    more fields of a route, by the name of its operation. TypeError: the resource has no operation of such a name.
    """
    operations = {name: each for name, each in vars(resource).items() if isinstance(each, Operation)}
    if unknown := sorted({*handlers, *(options or {})} - operations.keys()):
        raise TypeError(f"{resource.__name__}: no operation {', '.join(unknown)}; it has {', '.join(operations)}")
    found = []
    for name, operation in operations.items():
        calls = "" if name in handlers else f"{service}.{name}"
        handler = handlers.get(name) or _calling(operation, calls)
        more = (options or {}).get(name, {})
        found.append(Route(**msgspec.structs.asdict(operation), handler=handler, calls=calls, **more))
    return tuple(found)


def _calling(operation: Operation[Any], calls: str) -> Handler:
    """Return a handler that calls a method with the caller or request, parts of the path, body and query."""
    method = attrgetter(calls)

    async def read(asked: Asked) -> Answer:
        return Answer(await method(asked.services)(asked.caller, *asked.parts.values(), **asked.query))

    async def write(asked: Asked) -> Answer:
        given = () if operation.body is None else (operation.body() if asked.body is None else asked.body,)
        done = await method(asked.services)(asked.request, *asked.parts.values(), *given, **asked.query)
        return write_answer(done, location=_location(operation, asked, done))

    return write if operation.writes else read


def _location(operation: Operation[Any], asked: Asked, done: Written[Any]) -> str | None:
    if not operation.location or (done.status or operation.status) != 201:
        return None
    field = operation.location.rpartition("{")[2].removesuffix("}")
    return operation.location.format(**asked.parts, **{field: getattr(done.value, field)})


def write_answer(done: Written[Any], *, location: str | None = None) -> Answer:
    """Return the answer to a write."""
    headers: list[tuple[bytes, bytes]] = []
    if done.replayed:
        headers.append((b"idempotency-replayed", b"true"))
    if location is not None:
        headers.append((b"location", quote(location).encode()))
    return Answer(done.value, tuple(headers), status=done.status)


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

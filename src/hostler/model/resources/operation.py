"""An operation of the HTTP API, and a kind of resource, which has the usual ones."""

from __future__ import annotations

import enum
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import msgspec

from hostler.model.record import Record

A = TypeVar("A", bound=Record)
V = TypeVar("V", bound=Record)
P = TypeVar("P", bound=Record)


class Access(enum.StrEnum):
    """Who may call an operation, in addition to the six rights."""

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


class Parameter(msgspec.Struct, frozen=True):
    """One query parameter."""

    name: str
    about: str
    kind: Literal["string", "integer", "boolean"] = "string"
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


class Operation(msgspec.Struct, Generic[A], frozen=True, kw_only=True):
    """One method of one path: what its callers, its documentation and its permission check need.

    `access` is one of `Access`, or a right. An operation below a project with a right also requires that the caller
    sees the project. `errors` adds to those that every such operation has (`statuses`).
    """

    method: str
    path: str
    """`/v1/nodes/{node}`: a part in braces matches one segment."""
    former: tuple[str, ...] = ()
    """Paths of earlier releases, which still work and are no longer documented (docs/deprecations.md)."""
    name: str
    """`vm.create`: unique; the operation id."""
    summary: str
    access: Access | Right
    status: int = 200
    also: tuple[int, ...] = ()
    """Other success statuses."""
    body: type[Record] | None = None
    body_optional: bool = False
    """Whether the body may be missing; then it is one with all defaults."""
    answer: type[A] | None = None
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
    location: str = ""
    """The path of what it made: the names in braces are of this path, or the field of the answer that is its name."""
    max_body: int | None = None
    """Largest body in bytes; None: the server's default."""
    streamed: bool = False
    """Whether the body is a file, which the handler reads as a stream."""
    quiet: bool = False
    """Whether successful requests are not logged although they write, because they are too frequent."""
    is_long: bool = False
    """Whether it reads thousands of records: such reads are limited (`entry.server.concurrency_limits`)."""
    costly: bool = False
    """Whether it costs as much as a write although it is a GET: it leaves tickets in the store."""

    @property
    def writes(self) -> bool:
        """Return whether it changes anything."""
        return self.method != "GET"

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

    @property
    def options(self) -> frozenset[str]:
        """Return what a client may send with it, besides path, query and body."""
        given = {"stale": STALE in self.query, "key": self.writes and self.idempotent, "if_match": self.conditional}
        return frozenset(name for name, is_given in given.items() if is_given)

    def segments(self, *names: str) -> tuple[str, ...]:
        """Return the segments below `/v1`, with these names for the parts in braces."""
        given = iter(names)
        pieces = self.path.split("/")[2:]
        found = tuple(next(given) if piece.startswith("{") else piece for piece in pieces)
        if next(given, None) is not None:
            raise TypeError(f"{self.name}: takes {len(self.parts)} names, not {len(names)}")
        return found


def reads(name: str, path: str, summary: str, answer: type[A] | None, **more: Any) -> Operation[A]:
    """Return an operation that reads; for everyone with a token, unless `more` says otherwise."""
    given = {"access": Access.LOGGED_IN} | more
    return Operation(method="GET", name=name, path=path, summary=summary, answer=answer, **given)


def writes(how: str, name: str, summary: str, answer: type[A], access: Access | Right, **more: Any) -> Operation[A]:
    """Return an operation that writes. `how`: its method and its path."""
    method, _, path = how.partition(" ")
    return Operation(method=method, path=path, name=name, summary=summary, answer=answer, access=access, **more)


class Kind(msgspec.Struct, Generic[P, V], frozen=True, kw_only=True):
    """A kind of resource: its paths, its types, and the usual operations. Arguments of these replace the defaults."""

    name: str
    """`node`: the first part of operation ids, and what stands for one of them in the path."""
    path: str
    """`/v1/nodes`: the path of all of them."""
    view: type[V]
    page: type[P]
    readers: Access | Right = Access.LOGGED_IN
    writers: Access | Right = Access.ADMINISTRATORS
    key: str = "name"
    """The field of a view that names it in the path."""
    about: str = ""
    """What every operation that reads says of itself."""

    @property
    def one(self) -> str:
        """Return the path of one of them."""
        return f"{self.path}/{{{self.name}}}"

    def list(self, summary: str, **more: Any) -> Operation[P]:
        """Return the operation that lists them, page by page."""
        return self._read("list", self.path, summary, self.page, {"query": (LIMIT, AFTER, STALE)} | more)

    def get(self, summary: str, **more: Any) -> Operation[V]:
        """Return the operation that reads one of them."""
        return self._read("get", self.one, summary, self.view, {"query": (STALE,)} | more)

    def look(self, what: str, summary: str, answer: type[A], **more: Any) -> Operation[A]:
        """Return the operation that reads `what` of one of them."""
        return self._read(what, f"{self.one}/{what}", summary, answer, more)

    def create(self, summary: str, body: type[Record], **more: Any) -> Operation[V]:
        """Return the operation that creates one."""
        location = f"{self.path}/{{{self.key}}}"
        more = {"body": body, "status": 201, "location": location, "conditional": False} | more
        return self._write(f"POST {self.path}", "create", summary, more)

    def apply(self, summary: str, body: type[Record], **more: Any) -> Operation[V]:
        """Return the operation that creates one with a name, or changes it to the body."""
        return self._write(f"PUT {self.one}", "apply", summary, {"body": body, "also": (201,)} | more)

    def update(self, summary: str, body: type[Record], **more: Any) -> Operation[V]:
        """Return the operation that changes the fields in the body."""
        return self._write(f"PATCH {self.one}", "update", summary, {"body": body} | more)

    def delete(self, summary: str, **more: Any) -> Operation[V]:
        """Return the operation that deletes one. With `status=202` it continues after the answer."""
        return self._write(f"DELETE {self.one}", "delete", summary, more)

    def act(self, verb: str, summary: str, **more: Any) -> Operation[V]:
        """Return the operation that does something with one of them: `POST {path}/{verb}`."""
        return self._write(f"POST {self.one}/{verb}", verb.replace("-", "_"), summary, more)

    def _read(self, verb: str, path: str, summary: str, answer: type[A], more: dict[str, Any]) -> Operation[A]:
        given = {"name": f"{self.name}.{verb}", "access": self.readers, "about": self.about} | more
        return reads(path=path, summary=summary, answer=answer, **given)

    def _write(self, how: str, verb: str, summary: str, more: dict[str, Any]) -> Operation[V]:
        given: dict[str, Any] = {"name": f"{self.name}.{verb}", "access": self.writers, "conditional": True} | more
        return writes(how, summary=summary, answer=self.view, **given)

"""One request: find the route, authenticate the caller, read the body, call the service, answer.

A plain ASGI app with its own router. Paths are split before they are decoded, so that an encoded slash never changes
the route. Finding a route takes one step per segment.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import math
import re
import secrets
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec

from hostler.engine.access.rate_limits import Budget
from hostler.engine.access.refusals import BUDGET, CREDENTIAL, RIGHT, SIGN_IN, Refusals
from hostler.engine.request import Caller, Request
from hostler.engine.serial_executor import Turn
from hostler.entry.server import accounts
from hostler.entry.server import body as incoming
from hostler.entry.server.authentication import (
    Proxies,
    bearer_of,
    check_one,
    needs_token,
    peer_of,
    shows_ticket,
    token_of,
)
from hostler.entry.server.concurrency_limits import LongReads
from hostler.entry.server.feed import Feed
from hostler.entry.server.logs import logger
from hostler.entry.server.monitoring import CONTENT_TYPE, Metrics
from hostler.entry.server.openapi import document
from hostler.entry.server.problem import INVALID, NOT_ALLOWED, NOT_FOUND, Refusal, tell
from hostler.entry.server.protocol import CONNECTION
from hostler.entry.server.response import COMMON, body_of, refuse
from hostler.entry.server.response import send as send_answer
from hostler.entry.server.route import Answer, Asked, Raw, Route, check_access
from hostler.entry.server.services import ServerConfig, Services
from hostler.entry.server.static_files import StaticFiles
from hostler.entry.server.table import table
from hostler.entry.terminal.sessions import TerminalConfig, TerminalSessions
from hostler.errors import Invalid, OverBudget, Unavailable
from hostler.model.inventory import Rights
from hostler.model.name import fold

if TYPE_CHECKING:
    from collections.abc import Sequence

NOBODY = Caller("", Rights())
_REFUSALS = {401: CREDENTIAL, 403: RIGHT, 429: BUDGET}
"""The refusal kind in the audit log for each status."""
_SIGN_INS = frozenset({"session.login", "session.sign_in"})
_ACCOUNTS = ("user", "token")
"""Tags of routes that write accounts."""
SWITCHING = 101
SMALL = 64 * 1024
"""Largest body in bytes that is decoded in the event loop; decoding takes about a millisecond."""
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
_IF_MATCH = re.compile(rb'"(\d{1,18})"|(\d{1,18})')
_KEY = re.compile(rb"[\x21-\x7e]{1,255}")


class _Branch:
    """A node in the tree of paths."""

    __slots__ = ("any", "methods", "named", "takes_rest")

    def __init__(self) -> None:
        self.named: dict[str, _Branch] = {}
        self.any: _Branch | None = None
        self.methods: dict[str, Route] = {}
        self.takes_rest = False


class Router:
    """Finds routes by path, segment by segment. A literal segment takes precedence over one in braces."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._root = _Branch()
        for route in routes:
            for path in (route.path, *route.former):
                self._add(route, path)

    def find(self, method: str, path: str) -> tuple[Route, list[str]]:
        """Return the route and the segments in braces, still encoded. Refusal: there is no such route."""
        found: list[str] = []
        branch = self._root
        for segment in path.split("/")[1:]:
            following = branch.named.get(segment)
            if following is None:
                following = branch.any
                if following is None or not (segment or following.takes_rest):
                    raise Refusal(NOT_FOUND, f"path {path[:200]!r}: not found; see /docs")
                if following.takes_rest:
                    branch = following
                    break
                found.append(segment)
            branch = following
        route = branch.methods.get(method)
        if route is None and method == "HEAD":
            route = branch.methods.get("GET")
        if route is not None and (method != "HEAD" or route.media != "text/event-stream"):
            return route, found
        if not branch.methods:
            raise Refusal(NOT_FOUND, f"path {path[:200]!r}: not found; see /docs")
        allowed = ", ".join(sorted(branch.methods))
        message = f"method {method[:20]}: not allowed on {path[:200]!r}; use {allowed}"
        raise Refusal(NOT_ALLOWED, message, ((b"allow", allowed.encode()),))

    def _add(self, route: Route, path: str) -> None:
        branch = self._root
        for segment in path.split("/")[1:]:
            if segment.startswith("{"):
                branch.any = branch.any or _Branch()
                branch = branch.any
            else:
                branch = branch.named.setdefault(segment, _Branch())
        branch.takes_rest = route.takes_rest
        if route.method in branch.methods:
            raise ValueError(f"route {route.method} {path}: defined twice")
        branch.methods[route.method] = route


class App:
    """The ASGI app. Call `start` before the first request, `close` to end streams, then `aclose`."""

    def __init__(self, services: Services, plan: ServerConfig) -> None:
        self._services, self._plan, self._proxies = services, plan, Proxies(plan.trusted_proxies)
        self.routes = table(self._openapi, self._metrics, open_metrics=plan.open_metrics, site=StaticFiles(plan.site))
        self._router = Router(self.routes)
        self._parts = {route.name: route.parts for route in self.routes}
        self._quiet = frozenset(route.name for route in self.routes if route.quiet)
        self._channels = frozenset(route.name for route in self.routes if route.channel is not None)
        mirrors = services.view.mirrors.values()
        self.feed = Feed(services.store, clock=services.clock, history=plan.history, mirrors=mirrors)
        self._accounts = frozenset(route.name for route in self.routes if route.tag in _ACCOUNTS)
        self._long_reads = LongReads()
        self._budget = Budget(plan.budget, clock=services.clock)
        self.refusals = Refusals(
            services.store, clock=services.clock, new_id=lambda: secrets.token_hex(16), exists=self._has_account
        )
        self._noting: asyncio.Task[None] | None = None
        self.terminals = TerminalSessions(
            services.store,
            services.view,
            services.peers,
            TerminalConfig(plan.lab_key, plan.terminal_grace, plan.max_terminals),
            clock=services.clock,
            attend=services.labs.attend,
        )
        self.metrics = Metrics(services, self.feed)
        self._log = logger(part="http")
        self._following: asyncio.Task[None] | None = None
        self._large = Turn("body", busy="other large ones are being read")
        self._place, self._numbers = secrets.token_hex(4), itertools.count(1)

    @cached_property
    def _document(self) -> bytes:
        """Return the OpenAPI document, built on first request: building it takes longer than the rest of the start."""
        return msgspec.json.encode(document(self.routes))

    async def start(self) -> None:
        """Start to follow the store."""
        self._following = asyncio.create_task(self.feed.run(), name="events: feed")
        self._noting = asyncio.create_task(self.refusals.run(), name="audit: refusals")

    def close(self) -> None:
        """End every stream."""
        self.feed.close()
        self.terminals.close()

    async def aclose(self) -> None:
        """Close everything."""
        self.close()
        await self.terminals.aclose()
        tasks = [task for task in (self._following, self._noting) if task is not None]
        if tasks:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self.refusals.aclose()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        started = perf_counter()
        self._proxies.believe(scope)
        method = scope.get("method", "GET")  # a WebSocket has no method, and starts as a GET
        headers = dict(scope["headers"])
        raw = Raw(scope, receive, send, headers, id=self._request_id(headers))
        name, caller, is_counted, unread = "", NOBODY, False, scope["type"] == "http" and incoming.announced(headers)
        try:
            route, segments = self._router.find(method, scope["raw_path"].decode("ascii", "replace"))
            name = route.name
            if route.channel is not None:
                caller, query = await self._authenticate_channel(route, raw)
            elif route.peers and shows_ticket(headers):
                caller = await peer_of(self._services, raw, route, segments, source_of(scope))
            elif needs_token(route, headers, source_of(scope)):
                caller = await self._authenticate(raw)
            is_counted = True
            self._admit(route, caller, scope)
            if scope["type"] == "websocket" and route.status != SWITCHING:
                raise Refusal(INVALID, f"path {route.path}: not a WebSocket; send the request without an upgrade")
            parts = incoming.named_parts(route.path, self._parts[name], segments)
            check_access(route, caller, parts)
            if route.channel is None:
                query = {} if route.takes_rest else incoming.query(scope["query_string"], route.query)
            data = b""
            if route.writes and not route.streamed:
                data, unread = await incoming.read(raw, self._plan, route.max_body) if unread else b"", False
            asked = await self._read_request(route, caller, raw, data, parts=parts, query=query)
            if route.is_long:
                async with self._long_reads.turn(caller, route.name):
                    answer = await route.handler(asked)
            else:
                answer = await route.handler(asked)
            status, unread = route.status, unread and not raw.taken
            if answer is not None:
                status = answer.status or status
                await _respond(raw, status, answer, self._more_headers(query), unread=unread)
        except incoming.Disconnected:
            return
        except Exception as error:  # noqa: BLE001 - every error is answered
            error = self._count_refusal(error, caller, raw, name, is_counted=is_counted)
            told = tell(error, instance=raw.id)
            status = told.problem.status
            self._tell_of(error, status, raw)
            await refuse(raw, told, unread=unread and not raw.taken)
        seconds = perf_counter() - started
        self.metrics.count(name or "none", method, status, seconds)
        writes = method not in ("GET", "HEAD") and name not in self._quiet
        if status >= 400 or self._plan.log_reads or writes or name in self._channels:
            self._log.info(
                "request",
                id=raw.id,
                method=method,
                path=scope["path"][:500],
                status=status,
                who=caller.name,
                source=source_of(scope),
                ms=round(seconds * 1000, 2),
            )

    # Internal

    def _admit(self, route: Route, caller: Caller, scope: Any) -> None:
        """Spend from the caller's request budget.

        OverBudget: the caller must wait. Unavailable: too many connections.
        """
        if caller is NOBODY:
            self._budget.spend_anonymous(source_of(scope))
            return
        self._spend(caller, writes=route.spends_write, of_accounts=route.writes and route.name in self._accounts)
        state = scope.get("state")
        if not state or state[CONNECTION].is_proven:
            return
        if not state[CONNECTION].prove(reserved=caller.is_administrator):
            raise Unavailable("connections: limit reached; close some, or try again in a moment")

    def _spend(self, caller: Caller, *, writes: bool = True, of_accounts: bool = False) -> None:
        """Spend from an account's request budget; administrators have no limit. OverBudget: the caller must wait."""
        if not caller.is_administrator:
            self._budget.spend(caller, writes=writes, of_accounts=of_accounts)

    def _count_refusal(self, error: Exception, caller: Caller, raw: Raw, name: str, *, is_counted: bool) -> Exception:
        """Count a refused request for the audit log. Return the error to answer with.

        A request that was refused before its caller was known (no such path, a wrong token) counts against its address.
        """
        status, source = tell(error).problem.status, source_of(raw.scope)
        if not is_counted and 400 <= status < 500:
            try:
                self._budget.spend_anonymous(source)
            except OverBudget as over:
                error, status = over, tell(over).problem.status
        if status not in _REFUSALS:
            return error
        kind = SIGN_IN if name in _SIGN_INS else _REFUSALS[status]
        self.refusals.note(kind, caller.name or fold(raw.tried), source, name)
        return error

    def _has_account(self, name: str) -> bool:
        try:
            return self._services.view.users.get(user=name) is not None
        except Invalid:
            return False

    async def _authenticate(self, raw: Raw) -> Caller:
        """Return the caller, by the token in a header or in a browser's cookie."""
        source = source_of(raw.scope)
        if accounts.has_cookie(raw):
            return await accounts.caller_of_cookie(self._services, raw, source)
        raw.token = token_of(raw.headers)
        return await self._services.users.meet(raw.token, source)

    async def _authenticate_channel(self, route: Route, raw: Raw) -> tuple[Caller, dict[str, Any]]:
        """Return the caller of a machine channel, by token or ticket, and the query.

        Remove the query from the scope.
        """
        source, asked = source_of(raw.scope), raw.scope["query_string"]
        raw.scope["query_string"] = b""  # uvicorn's debug log would contain the whole URL, with the ticket
        query = incoming.query(asked, route.query)
        if b"authorization" not in raw.headers:
            return await bearer_of(self._services, raw, route, query["ticket"], source), query
        check_one(query["ticket"])
        raw.token = token_of(raw.headers)
        return await self._services.users.meet(raw.token, source), query

    def _request_id(self, headers: dict[bytes, bytes]) -> str:
        given = headers.get(b"x-request-id")
        if given is not None and _REQUEST_ID.fullmatch(given):
            return given.decode()
        return f"{self._place}-{next(self._numbers)}"

    async def _read_request(
        self, route: Route, caller: Caller, raw: Raw, data: bytes, *, parts: Any, query: Any
    ) -> Asked:
        body = None
        request = Request(caller)
        if route.writes:
            if route.aside is not None and len(data) > SMALL:
                incoming.check_media(raw.headers)
                body = await self._large.run(route.aside, data)
            else:
                body = _decode_body(route, data, raw.headers)
            request = _request(route, caller, data, raw)
        if query.get("stale") and not self._services.was_read():
            raise Unavailable("view: the store has not been read yet, so there is no cached state; try again")
        return Asked(
            route=route,
            services=self._services,
            caller=caller,
            parts=parts,
            query=query,
            body=body,
            request=request,
            source=source_of(raw.scope),
            raw=raw,
            feed=self.feed,
            plan=self._plan,
            terminals=self.terminals,
            spend=self._spend,
        )

    def _more_headers(self, query: dict[str, Any]) -> tuple[tuple[bytes, bytes], ...]:
        if not query.get("stale"):
            return ()
        old = self._services.view.stale_for()
        return ((b"hostler-stale", b"%.1f" % old),) if 0 < old < math.inf else ()

    def _tell_of(self, error: Exception, status: int, raw: Raw) -> None:
        if status == 500:
            self._log.error("request failed", id=raw.id, path=raw.scope["path"][:500], exc_info=error)
        elif status == 503:
            self._log.warning("request refused", id=raw.id, why=str(error))

    async def _openapi(self, asked: Asked) -> Answer:  # noqa: ARG002 - every handler takes it
        return Answer(text=self._document)

    async def _metrics(self, asked: Asked) -> Answer:  # noqa: ARG002
        return Answer(text=await self.metrics.text(), media=CONTENT_TYPE)


def build(services: Services, plan: ServerConfig | None = None) -> App:
    """Return the server's app, for `serve.Server`."""
    return App(services, plan or ServerConfig())


def source_of(scope: Any) -> str:
    """Return the client address of a request; a trusted proxy's headers are already applied to the scope."""
    client = scope.get("client")
    return client[0] if client else ""


def _decode_body(route: Route, data: bytes, headers: dict[bytes, bytes]) -> Any:
    if route.body is None:
        if data.strip() not in (b"", b"{}"):
            raise Invalid(f"body: {route.method} {route.path} takes no body; leave it out")
        return None
    if not data and route.body_optional:
        return None
    incoming.check_media(headers)
    return route.body.decode(data, strict=True)


def _request(route: Route, caller: Caller, data: bytes, raw: Raw) -> Request:
    key = raw.headers.get(b"idempotency-key")
    if key is not None and not _KEY.fullmatch(key):
        raise Invalid("Idempotency-Key: must be 1 to 255 printable ASCII characters without blanks")
    match = raw.headers.get(b"if-match")
    expected = None
    if match is not None and match.strip() != b"*":
        found = _IF_MATCH.fullmatch(match.strip())
        if found is None:
            raise Invalid('If-Match: must be one revision, "123", or *; take it from ETag or from `revision`')
        if not route.conditional:
            raise Invalid(f"If-Match: {route.method} {route.path} does not support it; leave it out")
        expected = int(found[1] or found[2])
    if key is None or not route.idempotent:
        return Request(caller, if_match=expected)
    digest = hashlib.sha256()
    asked = (raw.scope["query_string"],) if raw.scope["query_string"] else ()
    for piece in (route.method.encode(), raw.scope["raw_path"], data, *asked):
        digest.update(b"%d:%b" % (len(piece), piece))
    return Request(caller, key.decode(), digest.hexdigest(), expected)


async def _respond(
    raw: Raw, status: int, answer: Answer, more: tuple[tuple[bytes, bytes], ...], *, unread: bool
) -> None:
    common = [*COMMON] if all(name != b"cache-control" for name, _ in answer.headers) else [*COMMON[1:]]
    headers = [*common, (b"x-request-id", raw.id.encode()), *answer.headers, *more]
    data = b""
    if answer.text is not None:
        data = answer.text
        headers.append((b"content-type", answer.media))
    elif answer.value is not None and status != 204:
        data = body_of(answer.value)
        headers.append((b"content-type", b"application/json"))
        revision = getattr(answer.value, "revision", None)
        if revision is not None:
            headers.append((b"etag", b'"%d"' % revision))
    await send_answer(raw, status, headers, data, unread=unread)

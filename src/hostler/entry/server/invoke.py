"""Routes that call slices: by their names, and by the paths that blueprints map to their methods.

A single value is answered as JSON. The results of a stream are sent as they arrive, one JSON value per line. If a
stream breaks off, its last line is the problem document and the response has no proper end, so that no client takes a
part for the whole. The time limit of a call includes the time in which the client reads the answer.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

from hostler.entry.server.body import Disconnected, query_texts
from hostler.entry.server.problem import FORBIDDEN, NOT_ALLOWED, Refusal, tell
from hostler.entry.server.protocol import cut
from hostler.entry.server.response import COMMON
from hostler.entry.server.route import Answer, Asked, Route
from hostler.errors import HostlerError, Invalid, Unavailable
from hostler.model.http_route import METHODS, RESERVED, decode_segments, merge_arguments
from hostler.model.resources.operation import Access, Parameter
from hostler.model.slice_api import Arguments

if TYPE_CHECKING:
    from hostler.engine.invocation.load_balancer import Instance
    from hostler.engine.invocation.service import InvokeService
    from hostler.ports.calls import Items

WITHIN, MAX_WITHIN = 30.0, 3600.0
MAX_BODY = 8 * 1024 * 1024
"""Largest size of the arguments in bytes."""
LISTEN_AFTER = 0.05
"""Seconds after which the server starts to check whether the client is still connected; most calls end before."""
GRACE = 2.0
"""Seconds after the time limit of the call within which the client must have read the end of a stream."""
NDJSON = b"application/x-ndjson"
BLUEPRINT_ROUTES = "/v1/routes"
_SECONDS = re.compile(r"[0-9]{1,4}(\.[0-9]{1,6})?")


async def invoke_method(asked: Asked) -> Answer | None:
    arguments = b"{}" if asked.body is None else asked.body.text
    within = _within(asked.query["within"])
    return await _answer_call(asked, asked.parts["artifact"], asked.parts["method"], arguments, within)


async def invoke_route(asked: Asked) -> Answer | None:
    """Call the method that a path of a blueprint is mapped to."""
    if asked.raw.cookie:
        raise Refusal(FORBIDDEN, "cookie: not accepted by routes of slices; send Authorization: Bearer with a token")
    verb = asked.route.method
    raw_path = asked.raw.scope["raw_path"].decode("ascii", "replace")
    segments = raw_path.split("/")[4:]
    match = _calls(asked).route(asked.parts["blueprint"], verb, [] if segments == [""] else decode_segments(segments))
    if match.target is None:
        allowed = ", ".join(match.verbs)
        message = f"method {verb}: not allowed on {raw_path[:200]!r}; use {allowed}"
        raise Refusal(NOT_ALLOWED, message, ((b"allow", allowed.encode()),))
    query = query_texts(asked.raw.scope["query_string"])
    within = _within(query.pop(RESERVED, f"{WITHIN:g}"))
    called_with = merge_arguments(match, query, b"" if asked.body is None else asked.body.text)
    return await _answer_call(asked, match.target.base, match.target.method, called_with, within)


def _calls(asked: Asked) -> InvokeService:
    if asked.services.calls is None:
        raise Unavailable("invoke: this process does not call slices; ask another")
    return asked.services.calls


async def _answer_call(asked: Asked, target: str, method: str, arguments: bytes, within: float) -> Answer | None:
    calls = _calls(asked)
    ends_at = asyncio.get_running_loop().time() + within
    served: list[tuple[bytes, bytes]] = []

    def served_by(instance: Instance) -> None:
        said = f"{instance.node}/{instance.artifact}/{instance.number}"
        served.append((b"hostler-instance", said.encode("ascii", "replace")))

    presence = _Presence(asked.raw.receive)
    try:
        answer = await calls.ask(
            asked.caller,
            target,
            method,
            arguments,
            within=within,
            trace=asked.raw.id,
            served_by=served_by,
        )
        if isinstance(answer, bytes):
            return Answer(text=answer, headers=tuple(served))
        await _stream_results(asked, answer, ends_at, served)
    except asyncio.CancelledError:
        if presence.gone:
            raise Disconnected from None
        raise
    finally:
        presence.end()
    return None


class _Presence:
    """Checks, after a short delay, whether the client is still connected, and cancels the call if not."""

    __slots__ = ("_listening", "_receive", "_timer", "_work", "gone")

    def __init__(self, receive: Any) -> None:
        self._receive, self._work = receive, asyncio.current_task()
        self._listening: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(LISTEN_AFTER, self._begin)
        self.gone = False

    def end(self) -> None:
        """Stop checking: the call has ended."""
        self._timer.cancel()
        if self._listening is not None:
            self._listening.cancel()

    def _begin(self) -> None:
        self._listening = asyncio.create_task(self._listen(), name="invoke: listening")

    async def _listen(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        if self._work is not None:
            self._work.cancel()


async def _stream_results(asked: Asked, items: Items, ends_at: float, served: list[tuple[bytes, bytes]]) -> None:
    try:
        async with asyncio.timeout_at(ends_at + GRACE):
            await _send_chunk(asked, items, served)
    except TimeoutError:  # the items end in time by themselves, so it is the client that does not read
        cut(asked.raw.send, linger=0.0)
    finally:
        await items.aclose()


async def _send_chunk(asked: Asked, items: Items, served: list[tuple[bytes, bytes]]) -> None:
    raw = asked.raw
    headers = [*COMMON, (b"x-request-id", raw.id.encode()), (b"content-type", NDJSON), (b"x-accel-buffering", b"no")]
    headers += served
    await raw.send({"type": "http.response.start", "status": 200, "headers": headers})
    try:
        async for item in items:
            await raw.send({"type": "http.response.body", "body": item + b"\n", "more_body": True})
    except HostlerError as error:
        last = tell(error, instance=raw.id).body + b"\n"
        await raw.send({"type": "http.response.body", "body": last, "more_body": True})
        cut(raw.send)
    else:
        await raw.send({"type": "http.response.body", "body": b""})


def _within(text: str) -> float:
    within = float(text) if _SECONDS.fullmatch(text) else 0.0
    if not 0 < within <= MAX_WITHIN:
        raise Invalid(f"query within = {text[:80]}: must be more than 0 and at most {MAX_WITHIN:g} seconds")
    return within


ROUTES: tuple[Route, ...] = (
    Route(
        method="POST",
        path="/v1/invoke/{artifact}/{method}",
        name="invoke.call",
        summary="Call a method of a slice: group:name, or group:name:version for exactly that version",
        handler=invoke_method,
        access=Access.LOGGED_IN,
        body=Arguments,
        body_optional=True,
        errors=(403, 502, 504),
        query=(
            Parameter(
                "within",
                "Time limit of the call in seconds, including retries; at most 3600.",
                default=f"{WITHIN:g}",
                pattern=f"^{_SECONDS.pattern}$",
                example="2.5",
            ),
        ),
        about="The body is a JSON object of arguments, the answer is the method's result; `Hostler-Instance` names the"
        " node, artifact and number of the instance that answered. A method that streams is answered as"
        " application/x-ndjson; a stream that breaks off ends with a problem document, and without a proper end."
        " 404: no such slice or method. 503: no instance takes the call now; it did not start. 502: the method raised"
        " an error. 504: the time limit passed. The blueprint says who may call a slice: members of * with the right"
        " modify_workloads, or everyone with a token.",
        idempotent=False,
        max_body=MAX_BODY,
        quiet=True,
    ),
    *(
        Route(
            method=verb,
            path=BLUEPRINT_ROUTES + "/{blueprint}/{path}",
            name=f"route.{verb.lower()}",
            summary=f"Call the method of a slice that the blueprint maps {verb} of this path to",
            handler=invoke_route,
            access=Access.LOGGED_IN,
            body=None if verb == "GET" else Arguments,
            body_optional=True,
            errors=(403, 405, 502, 504),
            about="`path` is the rest of the URL path, slashes included: one pattern for the routes of all blueprints,"
            " which the `routes` of their slices define. Parts of the path and of the query that a route names, and the"
            " fields of a JSON object in the body, are the method's arguments. The query `within` sets the time limit"
            " in"
            " seconds. Answers, limits and permissions are those of /v1/invoke. 404: the blueprint has no such route.",
            idempotent=False,
            max_body=MAX_BODY,
            quiet=True,
            takes_rest=True,
        )
        for verb in METHODS
    ),
)

"""The stand-in as an HTTP server of its own threads, with what goes wrong with such servers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qs, urlsplit

from .cloud import (
    LOCATIONS,
    TYPES,
    ApiError,
    Cloud,
    check_labels,
    selected,
    shown_action,
    shown_image,
    shown_location,
    shown_server,
    shown_type,
)

if TYPE_CHECKING:
    from collections.abc import Callable

TOKEN = "the-token-of-the-project-that-nobody-may-see"
KINDS = ("429", "500", "503", "locked", "conflict", "cut-before", "cut-after", "garbage", "empty", "slow")


@dataclass
class Fault:
    kind: str
    match: re.Pattern[str]
    skip: int
    times: int
    """-1: for ever."""


class StandIn:
    """Serves while it is entered."""

    def __init__(self, **options: Any) -> None:
        self.cloud = Cloud(**options)
        self.lock = threading.RLock()
        self.calls: list[str] = []
        self.working = 0
        self.faults: list[Fault] = []
        self.token_is_good = True
        self.limit = 3_600_000
        """Calls in an hour: a thousand times what is usual, for tests have less time."""
        self.remaining: int | None = None
        """Calls that are left; None: as many as they are."""
        self.recovers_in = 0.05
        self.slow = 0.3
        self._over = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.standin = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def inject(self, kind: str, *, match: str = "", nth: int = 1, times: int = 1) -> None:
        """Let the `nth` call from now whose `METHOD /path` matches, and `times` in all, meet a fault."""
        with self.lock:
            self.faults.append(Fault(kind, re.compile(match), nth - 1, times))

    def heal(self) -> None:
        with self.lock:
            self.faults.clear()

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not is_so():
                await asyncio.sleep(0.002)

    async def idle(self) -> None:
        """Until every call that came was worked, though nobody waits for its answer any more."""
        await self.until(lambda: self.working == 0)

    def linger(self) -> None:
        """As one does who is slow."""
        self._over.wait(self.slow)

    def fault_of(self, call: str) -> str | None:
        for fault in self.faults:
            if not fault.match.search(call):
                continue
            if fault.skip:
                fault.skip -= 1
                continue
            if fault.times:
                fault.times -= 1
                return fault.kind
        return None


class _Server(ThreadingHTTPServer):
    """Ends with its connections: a thread that waits for the next call of a client that keeps its connection would
    otherwise outlive it for as long as the client holds on to an answer."""

    daemon_threads = False  # so that they are waited for
    standin: StandIn

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self._open: set[socket.socket] = set()
        self._guard = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._guard:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._guard:
            self._open.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        with self._guard:
            for request in self._open:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who hangs up is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the method's own
        pass

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def _serve(self) -> None:
        standin = self.server.standin
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        call = f"{self.command} {url.path.removeprefix('/v1')}"
        with standin.lock:
            standin.calls.append(call)
            standin.working += 1
            fault = standin.fault_of(call)
        try:
            self._work(call, url.query, data, fault)
        finally:
            with standin.lock:
                standin.working -= 1

    def _work(self, call: str, query: str, data: bytes, fault: str | None) -> None:
        standin = self.server.standin
        if fault == "cut-before":
            self._cut()
            return
        if fault == "slow":
            standin.linger()
        with standin.lock:
            status, body = self._answer(call, query, data, fault)
        if fault == "cut-after":
            self._cut()
            return
        if fault == "empty":
            body = {}
        self._send(status, body, garbage=fault == "garbage")

    def _answer(self, call: str, query: str, data: bytes, fault: str | None) -> tuple[int, Any]:
        standin = self.server.standin
        try:
            if self.headers.get("Authorization") != f"Bearer {TOKEN}" or not standin.token_is_good:
                raise ApiError(401, "unauthorized", "unable to authenticate")
            if standin.remaining is not None:
                standin.remaining -= 1
            if fault == "429" or (standin.remaining is not None and standin.remaining < 0):
                raise ApiError(429, "rate_limit_exceeded", "limit of 3600 requests per hour reached")
            if fault == "500":
                raise ApiError(500, "server_error", "something went wrong")
            if fault == "503":
                return 503, None
            if fault == "locked":
                raise ApiError(423, "locked", "server is locked")
            if fault == "conflict":
                raise ApiError(409, "conflict", "the resource has changed during the request")
            if not call.startswith(("GET /servers", "GET /images")):
                standin.cloud.count()
            standin.cloud.tick()
            answer = self._route(call, parse_qs(query), json.loads(data) if data else {})
            standin.cloud.tick()
        except ApiError as error:
            return error.status, {"error": {"code": error.code, "message": error.message, "details": {}}}
        return answer

    def _route(self, call: str, query: dict[str, list[str]], body: dict[str, Any]) -> tuple[int, Any]:
        cloud = self.server.standin.cloud
        method, _, path = call.partition(" ")
        match method, *path.strip("/").split("/"):
            case "GET", "servers":
                name, selector = query.get("name"), query.get("label_selector", [""])[0]
                found = [
                    shown_server(each)
                    for each in cloud.servers.values()
                    if (each.name not in cloud.hidden if name is None else each.name == name[0])
                    and selected(each.labels, selector)
                ]
                return paged("servers", found, query)
            case "POST", "servers":
                server, action = cloud.create(body)
                answer = {"server": shown_server(server), "action": shown_action(action), "next_actions": []}
                return 201, answer | {"root_password": None}
            case "GET", "servers", number, "actions":
                server = self._server_of(number)
                found = [shown_action(each) for each in cloud.actions.values() if each.server == server.id]
                return paged("actions", found[::-1], query)
            case "PUT", "servers", number:
                server = self._server_of(number)
                check_labels(body.get("labels", {}))
                name = body.get("name", server.name)
                if any(each.name == name and each is not server for each in cloud.servers.values()):
                    raise ApiError(409, "uniqueness_error", "server name is already used")
                server.labels, server.name = body.get("labels", server.labels), name
                return 200, {"server": shown_server(server)}
            case "DELETE", "servers", number:
                return 200, {"action": shown_action(cloud.delete(self._server_of(number)))}
            case "POST", "servers", number, "actions", verb:
                action, image = cloud.act(self._server_of(number), verb, body)
                answer = {"action": shown_action(action)}
                return 201, answer if image is None else answer | {"image": shown_image(image)}
            case "GET", "actions":
                if "id" not in query:
                    raise ApiError(410, "deprecated_api_endpoint", "list of all actions is gone")
                known = [cloud.actions[int(each)] for each in query["id"] if int(each) in cloud.actions]
                return paged("actions", [shown_action(each) for each in known], query)
            case "GET", "images":
                selector = query.get("label_selector", [""])[0]
                images = [shown_image(each) for each in cloud.images.values() if selected(each.labels, selector)]
                return paged("images", images, query)
            case "PUT", "images", number:
                if int(number) not in cloud.images:
                    raise ApiError(404, "not_found", "image not found")
                check_labels(body.get("labels", {}))
                cloud.images[int(number)].labels = body["labels"]
                return 200, {"image": shown_image(cloud.images[int(number)])}
            case "DELETE", "images", number:
                if cloud.images.pop(int(number), None) is None:
                    raise ApiError(404, "not_found", "image not found")
                return 204, None
            case "GET", "server_types":
                return paged("server_types", [shown_type(each, cloud.ends.get(each)) for each in TYPES], query)
            case "GET", "locations":
                return paged("locations", [shown_location(each) for each in LOCATIONS], query)
            case "GET", "firewalls":
                named = [
                    {"id": number, "name": name, "labels": {}, "created": "2026-01-01T00:00:00Z", "rules": [],
                     "applied_to": []}
                    for name, number in cloud.firewalls.items()
                    if name in query.get("name", [name])
                ]  # fmt: skip
                return paged("firewalls", named, query)
            case _:
                raise ApiError(404, "not_found", f"no {call}")

    def _server_of(self, number: str) -> Any:
        found = self.server.standin.cloud.servers.get(int(number))
        if found is None:
            raise ApiError(404, "not_found", f"server with ID '{number}' not found")
        return found

    def _send(self, status: int, body: Any, *, garbage: bool) -> None:
        standin = self.server.standin
        data = b"<html>bad gateway" if garbage else b"" if body is None else json.dumps(body).encode()
        left = standin.limit if standin.remaining is None else max(0, standin.remaining)
        self.send_response(502 if garbage else status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("RateLimit-Limit", str(standin.limit))
        self.send_header("RateLimit-Remaining", "0" if status == 429 else str(left))
        self.send_header("RateLimit-Reset", str(time.time() + standin.recovers_in))
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()

    def _cut(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


def paged(name: str, found: list[Any], query: dict[str, list[str]]) -> tuple[int, Any]:
    page, size = int(query.get("page", ["1"])[0]), min(50, int(query.get("per_page", ["25"])[0]))
    last = max(1, -(-len(found) // size))
    pagination = {
        "page": page, "per_page": size, "previous_page": page - 1 if page > 1 else None,
        "next_page": page + 1 if page < last else None, "last_page": last, "total_entries": len(found),
    }  # fmt: skip
    return 200, {name: found[(page - 1) * size : page * size], "meta": {"pagination": pagination}}

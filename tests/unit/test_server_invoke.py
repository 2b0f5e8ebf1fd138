"""Calls of slices over HTTP: what each way to fail answers, who may, what is bounded, streams, callers that go away."""

from __future__ import annotations

import asyncio
import random
import select
import socket
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from api_server import serving
from harness.pace import check
from stub_worker import TOKEN, StubWorker
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from hostler.client import Client
from hostler.drivers.calling.connection_pool import TcpConnectionPool
from hostler.engine.invocation.endpoints import Why
from hostler.engine.invocation.router import Router
from hostler.engine.invocation.service import InvokeService
from hostler.entry.server import invoke
from hostler.entry.server.protocol import cut
from hostler.errors import DeadlinePassed, Forbidden, Invalid, NotFound, Raised, Unavailable, Uncertain
from hostler.keys.families import BLUEPRINT, SLICE_OWNER
from hostler.kit.clock import SystemClock
from hostler.model.access import Role
from hostler.model.deployment import Blueprint, Callers, SliceSpec
from hostler.model.rollout import SliceOwner

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from api_server import Api

BASE, OLD = "acme:shop", "acme:shop:1.0"
SELL = f"/v1/invoke/{BASE}/sell"


class Place:
    """A server, a worker, and a client."""

    def __init__(self, api: Api, worker: StubWorker, client: Client, router: Router) -> None:
        self.api, self.worker, self.client, self.router = api, worker, client, router

    async def blueprint(self, callers: Callers) -> None:
        """Who may call it."""
        blueprint = Blueprint(slices=(SliceSpec(artifact=OLD, instances=1, callers=callers),))
        owner = SliceOwner(blueprint="shop", number=1)
        await self.api.store.txn([], [BLUEPRINT.put(blueprint, blueprint="shop"), SLICE_OWNER.put(owner, base=BASE)])
        await self.api.services.view.refresh(self.api.services.view.blueprints, self.api.services.view.owners)

    async def status(self, path: str = SELL, **more: Any) -> tuple[int, str]:
        reply = await self.api.call("POST", path, **more)
        return reply.status, reply.json["type"].rpartition("/")[2] if reply.status >= 400 else reply.body.decode()


@asynccontextmanager
async def place(**publish: Any) -> AsyncIterator[Place]:
    lines = TcpConnectionPool(TOKEN, connect_within=30.0)
    async with AsyncExitStack() as stack:
        made: dict[str, Any] = {}

        class Late:
            """The service, once there is a store to make it on."""

            async def ask(self, *arguments: Any, **more: Any) -> Any:
                return await made["service"].ask(*arguments, **more)

        api = await stack.enter_async_context(serving(calls=Late(), sockets=True))
        view = api.services.view
        router = Router(api.store, lines, clock=SystemClock(), rng=random.Random(1), why=Why(api.store, view))
        made["service"] = InvokeService(router, view)
        running = asyncio.create_task(router.run())
        worker = await stack.enter_async_context(StubWorker(OLD))
        await worker.publish(api.store, "sell", **publish)
        client = await stack.enter_async_context(Client(api.url, api.admin))
        try:
            yield Place(api, worker, client, router)
        finally:
            running.cancel()
            await asyncio.wait((running,))
            await lines.aclose()


async def until(done: Any) -> None:
    async with asyncio.timeout(20):
        while not done():
            await asyncio.sleep(0.001)


async def test_the_answer_is_what_the_method_returns_and_the_arguments_go_as_they_are() -> None:
    async with place() as at:
        reply = await at.api.call("POST", SELL, json={"what": "ü", "n": [1, None]}, X_Request_Id="trace-7")
        assert (reply.status, reply.json) == (200, {"what": "ü", "n": [1, None]})
        assert reply.headers["Content-Type"] == "application/json"
        assert at.worker.calls[0].trace == "trace-7"
        assert 10 < (at.worker.calls[0].within or 0) <= 30
        assert await at.status() == (200, "{}")  # no body: no arguments
        assert await at.status(f"/v1/invoke/{OLD}/sell?within=60.5") == (200, "{}")
        assert 40 < (at.worker.calls[-1].within or 0) <= 60.5
        assert await at.client.invoke(BASE, "sell", {"n": 3}) == {"n": 3}
        assert [item async for item in at.client.stream(OLD, "sell", {"n": 4})] == [{"n": 4}]


@pytest.mark.slow
async def test_each_way_to_fail_has_its_status_and_the_client_its_error() -> None:
    async with place() as at:
        expected = {
            "refused": (503, "unavailable", Unavailable),
            "no_method": (404, "not-found", NotFound),
            "arguments": (400, "invalid", Invalid),
            "raised": (502, "raised", Raised),
            "too_large": (502, "raised", Raised),
            "deadline": (504, "deadline", DeadlinePassed),
            "cut": (503, "uncertain", Uncertain),
        }
        for mode, (status, name, kind) in expected.items():
            at.worker.mode = mode
            assert await at.status() == (status, name), mode
            with pytest.raises(kind):
                await at.client.invoke(BASE, "sell")
        at.worker.mode = "raised"
        with pytest.raises(Raised, match="ValueError: it is raised"):
            await at.client.invoke(BASE, "sell")
        at.worker.mode = "slow"
        assert await at.status(SELL + "?within=0.5") == (504, "deadline")
        assert await at.status("/v1/invoke/acme:other/sell") == (404, "not-found")
        assert await at.status(f"/v1/invoke/{BASE}/buy") == (404, "not-found")
        assert await at.status("/v1/invoke/shop/sell") == (400, "invalid")
        for wrong in ("0", "3601", "-1", "nan", "1e3", ""):
            assert (await at.status(f"{SELL}?within={wrong}"))[0] == 400
        assert await at.status(SELL, data=b"x=1") == (415, "media-type")


async def test_without_an_instance_the_answer_says_why() -> None:
    async with place() as at:
        await at.blueprint(Callers.OPERATORS)
        await at.worker.withdraw(at.api.store)
        reply = await at.api.call("POST", SELL)
        assert reply.status == 503
        assert "no instance takes calls now" in reply.json["detail"]
        assert reply.json["next"] == "see hostler blueprint status shop"


async def test_who_may_call_is_said_in_the_blueprint() -> None:
    async with place() as at:
        viewer, member = await at.api.user(Role.VIEWER, "*"), await at.api.user(Role.MEMBER, "*")
        of_a_project = await at.api.user(Role.OPERATOR, "acme", "acme/web")
        assert (await at.status(token=None))[0] == 401
        assert (await at.status(token="nobody's"))[0] == 401
        assert (await at.status(token=viewer))[0] == 403
        assert (await at.status(token=of_a_project))[0] == 403
        assert (await at.status(token=member))[0] == 200  # may modify workloads, everywhere
        await at.blueprint(Callers.EVERYBODY)
        assert (await at.status(token=viewer))[0] == 200
        assert (await at.status(token=of_a_project))[0] == 200
        assert (await at.status(f"/v1/invoke/{OLD}/sell", token=viewer))[0] == 200
        assert (await at.status("/v1/invoke/acme:other/sell", token=viewer))[0] == 403
        await at.blueprint(Callers.OPERATORS)
        assert (await at.status(token=viewer))[0] == 403
        async with Client(at.api.url, viewer) as client:
            with pytest.raises(Forbidden):
                await client.invoke(BASE, "sell")
        assert len(at.worker.calls) == 4


async def test_arguments_are_bounded() -> None:
    async with place() as at:
        just = b'{"x":"' + b"y" * (invoke.MAX_BODY - 8) + b'"}'
        headers = {"Content_Type": "application/json"}
        assert (await at.api.call("POST", SELL, data=just, **headers)).body == just
        reply = await at.api.call("POST", SELL, data=just + b" ", **headers)
        assert reply.status == 413


async def test_a_stream_comes_line_by_line() -> None:
    async with place(streams=True) as at:
        at.worker.mode = "stream"
        reply = await at.api.call("POST", SELL)
        assert reply.headers["Content-Type"] == "application/x-ndjson"
        assert reply.body == b"0\n1\n2\n"
        assert [item async for item in at.client.stream(BASE, "sell")] == [0, 1, 2]
        assert await at.client.invoke(BASE, "sell") == [0, 1, 2]
        assert [one async for one in at.client.answers(BASE, "sell")] == [(0, True), (1, True), (2, True)]
        at.worker.mode = "answer"
        assert [one async for one in at.client.answers(BASE, "sell", {"n": 1})] == [({"n": 1}, False)]


async def test_a_stream_that_breaks_off_ends_with_the_problem_and_without_a_proper_end() -> None:
    async with place(streams=True) as at:
        at.worker.mode = "broken stream"
        url, headers = at.api.url + SELL, {"Authorization": f"Bearer {at.api.admin}"}
        async with at.api.http.post(url, headers=headers) as answer:
            assert answer.status == 200
            assert await answer.content.readline() == b"0\n"  # before the end is there
            at.worker.release.set()
            assert b"about:hostler/uncertain" in await answer.content.readline()
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.content.readline()
        stream = at.client.stream(BASE, "sell")
        assert await anext(stream) == 0
        with pytest.raises(Uncertain, match="gave no answer"):
            await anext(stream)
        at.worker.mode = "stream"
        assert [item async for item in at.client.stream(BASE, "sell")] == [0, 1, 2]


@pytest.mark.parametrize("streams", [False, True])
async def test_a_caller_that_goes_away_cancels_the_call(streams: bool) -> None:
    async with place(streams=streams) as at:
        at.worker.mode = "endless" if streams else "slow"
        calling = asyncio.create_task(at.api.call("POST", SELL))
        await until(lambda: at.worker.calls)
        await asyncio.sleep(invoke.LISTEN_AFTER * 2)
        calling.cancel()
        await asyncio.wait((calling,))
        await until(lambda: at.worker.cancelled)
        await until(lambda: at.router.measures.in_flight == {})
        at.worker.mode = "answer"
        assert (await at.status())[0] == 200


@pytest.mark.slow
async def test_who_does_not_read_a_stream_holds_it_no_longer_than_the_call_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(invoke, "GRACE", 0.1)
    async with place(streams=True) as at:
        at.worker.mode = "endless"
        sock, gone = socket.socket(), select.poll()
        with sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            host, _, port = at.api.url.removeprefix("http://").partition(":")
            await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
            gone.register(sock, select.POLLRDHUP)  # tells of errors and ends alone
            head = f"POST {SELL}?within=2 HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {at.api.admin}\r\n"
            began = time.monotonic()
            sock.send(f"{head}Connection: close\r\n\r\n".encode())
            await until(lambda: at.worker.calls)
            await until(lambda: gone.poll(0))
            took = time.monotonic() - began
        assert took >= 2.0, "it was cut before the call had all its time"
        check(took, 2.5, since=began, what="a stream that nobody reads")
        await until(lambda: at.router.measures.in_flight == {})  # the call ends after its connection


async def test_a_connection_that_was_cut_ends_also_if_nobody_reads_what_was_sent() -> None:
    done: list[str] = []

    class Transport:
        def close(self) -> None:
            done.append("close")

        def get_extra_info(self, _: str) -> None:
            return None

        def abort(self) -> None:
            done.append("abort")

    cycle = RequestResponseCycle.__new__(RequestResponseCycle)
    cycle.transport, cycle.message_event = Transport(), asyncio.Event()  # type: ignore[assignment]
    cut(cycle.send, linger=0.01)
    await until(lambda: done == ["close", "abort"])


async def test_calls_are_counted_and_not_logged_one_by_one() -> None:
    async with place() as at:
        for _ in range(3):
            await at.status()
        text = (await at.api.call("GET", "/metrics")).body.decode()
        assert 'hostler_http_requests_total{method="POST",route="invoke.call",status="200"} 3.0' in text
        assert "invoke.call" in at.api.app._quiet
        assert at.router.counters["calls"] == 3

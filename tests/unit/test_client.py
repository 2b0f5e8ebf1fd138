"""The client against a stand-in for the server that answers, fails and hangs up as it is told."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
import trustme
from aiohttp import web
from harness.pace import patience

import hostler
from hostler.client import Client, transport, wait
from hostler.client.events import MOST, Parser
from hostler.errors import (
    Closed,
    Conflict,
    Damaged,
    Forbidden,
    HostlerError,
    Invalid,
    KeyReused,
    NotFound,
    OverBudget,
    QuotaExceeded,
    Stale,
    TooLarge,
    TooManyTries,
    Unauthenticated,
    Unavailable,
    Uncertain,
)
from hostler.model.access_api import UserCreate, UserUpdate
from hostler.model.vm import OnNodeLoss, Power, VmSpec
from hostler.model.vm_api import VmCreate, VmPhase, VmUpdate, VmView

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
TOKEN = "hst_token"


def view(**fields: Any) -> VmView:
    plain: dict[str, Any] = {
        "id": "v1",
        "name": "www",
        "org": "acme",
        "project": "web",
        "spec": VmSpec(cpus=1, memory_mib=64),
        "power": Power.ON,
        "phase": VmPhase.RUNNING,
        "node": "local-1",
        "address": "",
        "detail": "",
        "labels": {},
        "on_node_loss": OnNodeLoss.WAIT,
        "affinity": (),
        "node_labels": {},
        "at_next_boot": (),
        "snapshots": {},
        "restore": None,
        "move": None,
        "moved": 0,
        "available": True,
        "readiness": None,
        "access": None,
        "settled": True,
        "created_at": 1.0,
        "expires_at": None,
        "generation": 1,
        "revision": 7,
    }
    return VmView(**{**plain, **fields})


def said(vm: VmView) -> web.Response:
    return web.Response(body=vm.encode(), content_type="application/json")


def problem(status: int, name: str, detail: str = "x: y", advice: str = "do z", **headers: str) -> web.Response:
    body = {"type": f"about:hostler/{name}", "title": "t", "status": status, "detail": detail, "next": advice}
    return web.Response(
        status=status,
        body=json.dumps(body),
        headers={"Content-Type": "application/problem+json", **headers},
    )


class StandIn:
    """Answers with what is put into `script`, one after the other, the last one for ever; keeps every request."""

    def __init__(self) -> None:
        self.script: list[Answer | web.Response | str] = []
        self.events: list[Answer] = []
        self.asked: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.url = ""

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/events":
            if not self.events:
                return problem(503, "unavailable")
            answer: Any = self.events.pop(0) if len(self.events) > 1 else self.events[0]
            return await answer(request)  # type: ignore[no-any-return]
        self.asked.append(request)
        self.bodies.append(await request.read())
        answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if answer == "hang up":
            request.transport.abort()  # type: ignore[union-attr]
            return web.Response()
        if answer == "never":
            await asyncio.sleep(60)
        if isinstance(answer, web.Response):
            return web.Response(status=answer.status, body=answer.body, headers=answer.headers.copy())
        return await answer(request)  # type: ignore[no-any-return]

    @property
    def keys(self) -> list[str | None]:
        return [request.headers.get("Idempotency-Key") for request in self.asked]


async def served(stand_in: StandIn, **site: Any) -> AsyncIterator[StandIn]:
    runner = web.ServerRunner(web.Server(stand_in, handler_cancellation=True), shutdown_timeout=0.1)
    await runner.setup()
    made = web.UnixSite(runner, **site) if "path" in site else web.TCPSite(runner, "127.0.0.1", 0, **site)
    await made.start()
    if "path" not in site:
        port = runner.addresses[0][1]
        stand_in.url = f"{'https' if 'ssl_context' in site else 'http'}://127.0.0.1:{port}"
    yield stand_in
    await runner.cleanup()


@pytest.fixture
async def server() -> AsyncIterator[StandIn]:
    async for stand_in in served(StandIn()):
        yield stand_in


@pytest.fixture
async def client(server: StandIn) -> AsyncIterator[Client]:
    async with Client(server.url, TOKEN, timeout=5) as opened:
        yield opened


# Where it may go


@pytest.mark.parametrize(
    "url", ["", "host", "ftp://host", "http://", "http://user:pw@host", "http://h?x=1", "http://h:x", "http://[::1"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(Invalid, match="server"):
        Client(url, TOKEN)


@pytest.mark.parametrize("url", ["http://example.com", "http://10.0.0.1:8440", "http://127.0.0.1.example.com"])
def test_a_token_is_not_sent_in_clear_to_another_machine(url: str) -> None:
    with pytest.raises(Invalid, match="in clear"):
        Client(url, TOKEN)
    Client(url)
    Client(url, TOKEN, insecure=True)
    Client(url.replace("http:", "https:"), TOKEN)
    Client(url, TOKEN, unix="/run/hostler.sock")


async def test_a_password_is_not_sent_in_clear_to_another_machine_either() -> None:
    async with Client("http://192.0.2.1") as client:
        with pytest.raises(Invalid, match="in clear"):
            await client.login("ada", "password")


@pytest.mark.parametrize("url", ["http://localhost:1", "http://127.0.0.2:1", "http://[::1]:1", "https://example.com"])
def test_this_machine_and_tls_are_good_enough_for_a_token(url: str) -> None:
    assert TOKEN not in repr(Client(url, TOKEN))


@pytest.mark.parametrize("token", ["", " x", "a b", "x\n", "é"])
def test_a_token_that_was_cut_out_badly_is_refused_without_being_shown(token: str) -> None:
    with pytest.raises(Invalid, match="token: must be one line"):
        Client("http://localhost", token)


def test_the_client_is_at_the_front_door() -> None:
    assert hostler.Client is Client


async def test_a_closed_client_says_so(server: StandIn) -> None:
    client = Client(server.url, TOKEN)
    with pytest.raises(Closed, match="async with"):
        await client.vms.get("acme", "web", "www")


# Requests


async def test_what_is_sent_and_what_comes_back(server: StandIn, client: Client) -> None:
    server.script = [said(view())]
    asked = VmCreate(name="www", spec=VmSpec(cpus=1, memory_mib=64))
    assert await client.vms.create("acme", "web", asked, key="k1") == view()
    (request,) = server.asked
    assert (request.method, request.path) == ("POST", "/v1/orgs/acme/projects/web/vms")
    assert request.headers["Authorization"] == f"Bearer {TOKEN}"
    assert request.headers["Idempotency-Key"] == "k1"
    assert VmCreate.decode(server.bodies[0], strict=True) == asked
    await client.vms.update("acme", "web", "www", VmUpdate(name="w2"), if_match=7)
    assert server.asked[1].headers["If-Match"] == '"7"'


async def test_an_option_that_an_operation_does_not_have_is_an_error(server: StandIn, client: Client) -> None:
    with pytest.raises(TypeError, match=r"vm\.start: takes no if_mach"):
        await client.vms.start("acme", "web", "www", if_mach=7)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"user\.create: takes no if_match"):
        await client.users.create(UserCreate(name="ada"), if_match=7)  # type: ignore[call-arg]
    assert not server.asked


def test_former_names_of_the_client_still_work(client: Client) -> None:
    assert client.traces is client.decisions


async def test_the_former_name_of_the_summary_of_racks_asks_the_same(server: StandIn, client: Client) -> None:
    server.script = [web.json_response({"racks": [], "simulation": False, "revision": 1})]
    with suppress(HostlerError):  # what it asks is looked at, not what is answered
        await client.racks.floor(["r1"])
    assert [request.path_qs for request in server.asked] == ["/v1/inventory/summary?racks=r1"]


async def test_names_stay_one_segment_of_the_path(server: StandIn, client: Client) -> None:
    server.script = [said(view())]
    await client.vms.get("a?b#c", "ä %2F", "x;y")
    assert server.asked[0].raw_path == "/v1/orgs/a%3Fb%23c/projects/%C3%A4%20%252F/vms/x%3By"
    for name in ("", "..", ".", "a/b", "a\nb"):
        with pytest.raises(Invalid):
            await client.vms.get("acme", "web", name)
    assert len(server.asked) == 1


async def test_fields_that_a_later_server_adds_do_no_harm(server: StandIn, client: Client) -> None:
    body = json.dumps({**json.loads(view().encode()), "colour": "blue"})
    server.script = [web.Response(body=body, content_type="application/json")]
    assert (await client.vms.get("acme", "web", "www")).name == "www"


async def test_another_server_at_the_address_is_noticed(server: StandIn, client: Client) -> None:
    server.script = [web.Response(text="<html>hello</html>")]
    with pytest.raises(Invalid, match="check the url"):
        await client.vms.get("acme", "web", "www")
    with pytest.raises(Uncertain, match="check the url"):
        await client.vms.start("acme", "web", "www")


async def test_a_redirect_is_not_followed_with_the_token(server: StandIn, client: Client) -> None:
    server.script = [web.Response(status=307, headers={"Location": "http://evil.example/"})]
    with pytest.raises(Invalid, match="evil.example"):
        await client.vms.get("acme", "web", "www")
    assert len(server.asked) == 1


async def test_old_news_say_how_old(server: StandIn, client: Client) -> None:
    server.script = [web.Response(body=view().encode(), headers={"Hostler-Stale": "12.5"}), said(view())]
    await client.vms.get("acme", "web", "www", stale=True)
    assert client.stale_for == 12.5
    assert server.asked[0].query["stale"] == "true"
    await client.vms.get("acme", "web", "www")
    assert client.stale_for == 0.0
    assert "stale" not in server.asked[1].query


# Errors


@pytest.mark.parametrize(
    ("status", "name", "kind"),
    [
        (400, "invalid", Invalid),
        (401, "unauthenticated", Unauthenticated),
        (403, "forbidden", Forbidden),
        (404, "not-found", NotFound),
        (405, "method-not-allowed", Invalid),
        (409, "conflict", Conflict),
        (409, "quota-exceeded", QuotaExceeded),
        (412, "stale", Stale),
        (413, "too-large", TooLarge),
        (422, "idempotency-key-reused", KeyReused),
        (500, "damaged", Damaged),
        (501, "not-here", Unavailable),
        (503, "unavailable", Unavailable),
    ],
)
async def test_an_error_comes_back_as_its_own_class_with_its_sentence(
    server: StandIn, client: Client, status: int, name: str, kind: type[HostlerError]
) -> None:
    server.script = [problem(status, name, "vm www: is so", "do that")]
    with pytest.raises(kind) as caught:
        await client.vms.start("acme", "web", "www")
    assert type(caught.value) is kind
    assert str(caught.value) == "vm www: is so; do that"
    assert len(server.asked) == 1


async def test_being_slowed_says_for_how_long(server: StandIn, client: Client) -> None:
    server.script = [problem(429, "too-many-tries", **{"Retry-After": "7"})]
    with pytest.raises(TooManyTries) as caught:
        await client.users.login("ada", "password")
    assert caught.value.after == 7.0


async def test_a_request_that_a_budget_refused_is_sent_again_when_the_server_says(
    server: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    told: list[str] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(transport, "asyncio", SimpleNamespace(sleep=sleep))

    def slowed(after: str) -> web.Response:
        return problem(429, "too-many-requests", "ada: 5 requests a second", "slow down", **{"Retry-After": after})

    async with Client(server.url, "t", on_slowed=told.append) as client:
        server.script = [slowed("1"), slowed("20"), web.Response(status=503), web.Response(status=503)]
        with pytest.raises(Unavailable):  # what came after the pauses counts
            await client.vms.start("acme", "web", "www")
        assert pauses == [1.0, 20.0]
        assert len(set(server.keys)) == 1, "it is the same request, so it is done once"
        assert told == [f"server {server.url}: ada: 5 requests a second; trying again in 20 s"]

        server.script = [slowed("20"), slowed("20")]
        with pytest.raises(OverBudget):
            await client.nodes.get("n1")
        assert pauses == [1.0, 20.0, 20.0], "no request waits for more than 30 s"
        server.script = [slowed("1")]
        with pytest.raises(OverBudget):  # a sign-in is sent once
            await client.users.login("ada", "password")
        assert len(pauses) == 3
    async with Client(server.url, "t", retries=0) as client:
        with pytest.raises(OverBudget):
            await client.nodes.get("n1")


@pytest.mark.parametrize("status", [500, 502, 504])
async def test_a_proxy_that_failed_in_the_middle_leaves_a_write_uncertain(
    server: StandIn, client: Client, status: int
) -> None:
    server.script = [web.Response(status=status, text="bad gateway")]
    with pytest.raises(Unavailable, match=f"answered {status}"):
        await client.vms.get("acme", "web", "www")
    with pytest.raises(Uncertain, match="may have been written"):
        await client.users.logout()


# Again


async def test_a_read_is_repeated_when_the_connection_is_lost(server: StandIn, client: Client) -> None:
    server.script = ["hang up", "hang up", said(view())]
    assert (await client.vms.get("acme", "web", "www")).id == "v1"


async def test_a_write_is_repeated_with_one_key(server: StandIn, client: Client) -> None:
    server.script = ["hang up", problem(503, "uncertain"), said(view())]
    assert (await client.vms.start("acme", "web", "www")).id == "v1"
    assert len(set(server.keys)) == 1
    assert len(server.keys) == 3
    await client.vms.start("acme", "web", "www")
    assert len(set(server.keys)) == 2


@pytest.mark.slow
async def test_repeating_ends_and_says_that_it_may_have_been_done(server: StandIn, client: Client) -> None:
    server.script = ["hang up"]
    with pytest.raises(Uncertain, match="read first.*key='mine'"):
        await client.vms.start("acme", "web", "www", key="mine")
    assert len(server.asked) == 4
    with pytest.raises(Unavailable, match="no answer"):
        await client.vms.get("acme", "web", "www")


async def test_a_write_that_was_lost_stays_uncertain_when_the_server_then_writes_nothing(
    server: StandIn, client: Client
) -> None:
    server.script = [problem(503, "uncertain", "store: no answer"), problem(503, "unavailable")]
    with pytest.raises(Uncertain, match="store: no answer.*key='mine'"):
        await client.vms.start("acme", "web", "www", key="mine")
    assert server.keys == ["mine"] * 4
    with pytest.raises(Unavailable):
        await client.vms.start("acme", "web", "www", key="other")
    assert len(server.keys) == 5, "what was certainly not written is the caller's to repeat"


async def test_a_write_that_was_lost_is_asked_for_until_the_store_is_back(server: StandIn, client: Client) -> None:
    server.script = ["hang up", problem(503, "unavailable"), said(view())]
    assert (await client.vms.start("acme", "web", "www")).id == "v1"


@pytest.mark.parametrize("verb", ["login", "issue", "revoke", "logout"])
async def test_what_takes_no_key_is_sent_once(server: StandIn, client: Client, verb: str) -> None:
    server.script = ["hang up"]
    verbs: dict[str, Callable[[], Awaitable[Any]]] = {
        "login": lambda: client.users.login("ada", "password"),
        "issue": lambda: client.users.issue("ada"),
        "revoke": lambda: client.users.revoke("ada", "t1"),
        "logout": client.users.logout,
    }
    with pytest.raises(Uncertain):
        await verbs[verb]()
    assert server.keys == [None]


async def test_a_server_that_is_not_there_is_unavailable_even_for_a_write() -> None:
    async with Client("http://127.0.0.1:1", TOKEN, retries=1) as client:
        for attempt in (client.vms.get("a", "b", "c"), client.vms.start("a", "b", "c"), client.users.logout()):
            with pytest.raises(Unavailable, match=r"cannot be reached \(connection refused\); check that it runs"):
                await attempt
    async with Client("http://nowhere.invalid:1", TOKEN, insecure=True, retries=0) as client:
        with pytest.raises(Unavailable, match=r"cannot be reached \((?!cannot)[a-z ]+\); check that"):
            await client.vms.get("a", "b", "c")


async def test_https_to_a_server_of_http_is_not_taken_for_a_bad_certificate(server: StandIn) -> None:
    async with Client(server.url.replace("http:", "https:"), TOKEN, retries=0) as client:
        with pytest.raises(Invalid, match="does not speak https; try http"):
            await client.vms.get("acme", "web", "www")


async def test_a_server_that_never_answers_is_given_up(server: StandIn) -> None:
    server.script = ["never"]
    async with Client(server.url, TOKEN, timeout=patience(0.15), retries=1) as client:  # enough to send the request
        with pytest.raises(Unavailable, match="no answer"):
            await client.vms.get("acme", "web", "www")
        with pytest.raises(Uncertain):
            await client.vms.start("acme", "web", "www")
    assert len(server.asked) == 4


async def test_a_write_that_was_lost_stays_uncertain_when_the_server_then_goes() -> None:
    async def last(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        listener.close()
        writer.transport.abort()

    listener = await asyncio.start_server(last, "127.0.0.1", 0)
    async with Client(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", TOKEN, retries=2) as client:
        with pytest.raises(Uncertain):
            await client.vms.start("acme", "web", "www")
        with pytest.raises(Unavailable, match="cannot be reached"):
            await client.vms.start("acme", "web", "www")
    await listener.wait_closed()


# Pages


async def test_a_list_is_a_page_to_await_and_every_item_to_walk_over(server: StandIn, client: Client) -> None:
    async def page(request: web.Request) -> web.StreamResponse:
        first = int(request.query.get("after", 0))
        items = [json.loads(view(id=f"v{n}").encode()) for n in range(first, first + 2)]
        after = None if first >= 4 else str(first + 2)
        return web.json_response({"items": items, "after": after, "revision": 9})

    server.script = [page]
    found = await client.vms.list("acme", "web", limit=2, labels={"tier": "web", "zone": "a"})
    assert ([vm.id for vm in found.items], found.after, found.revision) == (["v0", "v1"], "2", 9)
    assert dict(server.asked[0].query) == {"limit": "2", "labels": "tier=web,zone=a"}
    assert [vm.id async for vm in client.vms.list()] == [f"v{n}" for n in range(6)]
    assert server.asked[1].path == "/v1/vms"
    with pytest.raises(Invalid, match="both"):
        client.vms.list("acme")


# Sessions, sockets, TLS


async def test_logging_in_changes_the_token_and_logging_out_forgets_it(server: StandIn) -> None:
    issued = web.json_response({"token": "hst_session", "id": "t1", "user": "ada", "expires_at": None}, status=201)
    server.script = [issued, said(view()), web.Response(status=204), problem(401, "unauthenticated")]
    async with Client(server.url) as client:
        await client.login("ada", "password")
        await client.vms.get("acme", "web", "www")
        await client.logout()
        with pytest.raises(Unauthenticated):
            await client.users.me()
    sent = [request.headers.get("Authorization") for request in server.asked]
    assert sent == [None, "Bearer hst_session", "Bearer hst_session", None]


async def test_a_server_behind_a_socket(tmp_path: Path) -> None:
    async for server in served(StandIn(), path=str(tmp_path / "s")):
        server.script = [said(view())]
        async with Client("http://hostler", TOKEN, unix=str(tmp_path / "s")) as client:
            assert (await client.vms.get("acme", "web", "www")).id == "v1"
    async with Client("http://hostler", TOKEN, unix=str(tmp_path / "none"), retries=0) as client:
        with pytest.raises(Unavailable, match="cannot be reached"):
            await client.vms.get("acme", "web", "www")


async def test_a_certificate_is_trusted_by_its_ca_and_by_no_other(tmp_path: Path) -> None:
    ca, context = trustme.CA(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    ca.issue_cert("127.0.0.1").configure_cert(context)
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    async for server in served(StandIn(), ssl_context=context):
        server.script = [said(view())]
        async with Client(server.url, TOKEN, ca=str(tmp_path / "ca.pem")) as client:
            assert (await client.vms.get("acme", "web", "www")).id == "v1"
        async with Client(server.url, TOKEN) as client:
            with pytest.raises(Invalid, match="not trusted.*name the file of its CA with --ca"):
                await client.vms.get("acme", "web", "www")
        assert len(server.asked) == 1
    with pytest.raises(Invalid, match="PEM"):
        Client("https://host", ca=str(tmp_path / "none"))


# Events


def event(n: int, subject: str = "acme/web/v1") -> bytes:
    data = {"type": "put", "kind": "vm", "subject": subject, "revision": n, "record": {}}
    return f"id: {n}.0\ndata: {json.dumps(data)}\n\n".encode()


def streaming(*pieces: bytes, end: str = "close", seen: list[str | None] | None = None) -> Answer:
    """A stream of these pieces, which then ends, is cut, or stays."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if seen is not None:
            seen.append(request.headers.get("Last-Event-ID"))
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        for piece in pieces:
            await stream.write(piece)
            await asyncio.sleep(0)
        if end == "cut":
            request.transport.abort()  # type: ignore[union-attr]
        elif end == "stay":
            await asyncio.sleep(60)
        return stream

    return answer


async def test_a_stream_that_is_cut_resumes_after_the_last_event(server: StandIn, client: Client) -> None:
    seen: list[str | None] = []
    whole = event(3)
    server.events = [
        streaming(b"retry: 1000\nid: 1.0\n\n", event(2), whole[:20], end="cut", seen=seen),
        streaming(whole, b": alive\nid: 7.4\n\n", seen=seen),
        streaming(event(8), end="stay", seen=seen),
    ]
    found: list[int] = []
    async with client.events() as events:
        async for one in events:
            found.append(one.revision)
            if one.revision == 8:
                break
        assert events.last_id == "8.0"
    assert found == [2, 3, 8]
    assert seen == [None, "2.0", "7.4"]


async def test_the_last_id_is_that_of_the_event_that_was_given_and_not_of_those_that_wait(
    server: StandIn, client: Client
) -> None:
    several = b"".join(event(5).replace(b"id: 5.0", b"id: 5.%d" % index) for index in range(3))
    server.events = [streaming(several + b"id: 9.0\n\n" + event(10), end="stay")]
    given = []
    async with client.events() as events:
        async for one in events:
            given.append(events.last_id)
            if one.revision == 10:
                break
    assert given == ["5.0", "5.1", "5.2", "10.0"]


async def test_events_start_where_they_are_told(server: StandIn, client: Client) -> None:
    seen: list[str | None] = []
    server.events = [streaming(event(42), end="stay", seen=seen)]
    async with client.events(41, org="acme", kinds=("vm", "handle")) as events:
        assert (await anext(events)).of == "vm"
    assert seen == ["41"]


async def test_lost_history_is_an_event_of_its_own(server: StandIn, client: Client) -> None:
    server.events = [streaming(b'event: reset\nid: 90.0\ndata: {"revision":90}\n\n', event(91), end="stay")]
    async with client.events("5.0") as events:
        reset = await anext(events)
        assert (reset.type, reset.revision) == ("reset", 90)
        assert (await anext(events)).revision == 91


async def test_what_the_server_refuses_ends_the_stream_at_once(server: StandIn, client: Client) -> None:
    async def refused(request: web.Request) -> web.StreamResponse:
        return problem(401, "unauthenticated")

    server.events = [streaming(event(1)), refused]
    async with client.events() as events:
        assert (await anext(events)).revision == 1
        with pytest.raises(Unauthenticated):
            await anext(events)


@pytest.mark.slow
async def test_patience_ends(server: StandIn) -> None:
    async def down(request: web.Request) -> web.StreamResponse:
        return problem(503, "unavailable", "store: out of reach", "wait")

    server.events = [streaming(event(1)), down]
    async with Client(server.url, TOKEN, retries=0) as client, client.events(patience=0.3) as events:
        await anext(events)
        with pytest.raises(Unavailable, match="out of reach"):
            await anext(events)
    async with Client("http://127.0.0.1:1", TOKEN, retries=0) as client, client.events() as events:
        with pytest.raises(Unavailable, match="cannot be reached"):
            await anext(events)


@pytest.mark.parametrize("cut", range(1, 60, 7))
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_stream_reads_the_same_however_it_is_cut(cut: int, end: str) -> None:
    text = "\ufeff: hello\n\nid: 1\nevent: x\ndata: a\ndata:b\n\ndata\n\nid: 2\n\nid: 3\ndata: é€\n\n".replace(
        "\n", end
    )
    data = (text + "data: rest").encode()
    parser = Parser()
    found = [message for start in range(0, len(data), cut) for message in parser.feed(data[start : start + cut])]
    assert [(m.event, m.data.decode(), m.id) for m in found] == [
        ("x", "a\nb", "1"),
        ("message", "", None),
        ("message", "", "2"),
        ("message", "é€", "3"),
    ]


def test_a_message_without_an_end_is_refused() -> None:
    parser = Parser()
    for _ in range(MOST // 2**20):
        parser.feed(b"x" * 2**20)
    with pytest.raises(Unavailable, match="too large"):
        parser.feed(b"x")


# Waiting


async def test_waiting_looks_when_an_event_comes(
    server: StandIn, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait, "LOOK_ANYWAY", 60.0)
    monkeypatch.setattr(wait, "LOOK_EVERY", 60.0)
    phases = [VmPhase.PENDING, VmPhase.PLACED, VmPhase.STARTING, VmPhase.RUNNING]
    looked = asyncio.Event()

    async def now(request: web.Request) -> web.StreamResponse:
        looked.set()
        return said(view(phase=phases.pop(0) if len(phases) > 1 else phases[0]))

    async def events(request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        await stream.write(b"id: 1.0\n\n")
        for n in range(2, 9):
            await looked.wait()
            looked.clear()
            await stream.write(event(n, "acme/web/another") + event(n + 100))
        return stream

    server.script, server.events = [now], [events]
    seen: list[VmPhase] = []
    async with asyncio.timeout(40):
        got = await client.vms.wait(
            "acme", "web", "www", phase=VmPhase.RUNNING, within=60, on_change=lambda vm: seen.append(vm.phase)
        )
    assert got is not None
    assert got.phase is VmPhase.RUNNING
    assert seen == [VmPhase.PENDING, VmPhase.PLACED, VmPhase.STARTING, VmPhase.RUNNING]
    assert server.asked[0].path.endswith("/www")
    assert server.asked[-1].path.endswith("/v1")


async def test_waiting_looks_once_for_each_change(
    server: StandIn, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait, "LOOK_EVERY", 60.0)
    others = [event(n, "acme/web/another") for n in range(3, 30)]
    server.script = [said(view(phase=VmPhase.PENDING))]
    server.events = [streaming(b"id: 1.0\n\n", event(2), *others, end="stay")]
    with pytest.raises(Unavailable, match="still pending"):
        await client.vms.wait("acme", "web", "v1", phase=VmPhase.RUNNING, within=0.5)
    assert len(server.asked) <= 3


async def test_waiting_goes_on_without_events_and_over_an_outage(
    server: StandIn, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait, "LOOK_EVERY", 0.01)
    server.script = [said(view(settled=False)), problem(503, "unavailable"), problem(503, "unavailable"), said(view())]
    got = await client.vms.wait("acme", "web", "www", settled=True, within=60)
    assert got is not None
    assert got.settled
    assert len(server.asked) == 4


async def test_waiting_for_the_end(server: StandIn, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait, "LOOK_EVERY", 0.01)
    server.script = [said(view()), said(view(phase=VmPhase.DELETING)), problem(404, "not-found")]
    assert await client.vms.wait("acme", "web", "www", gone=True, within=60) is None
    with pytest.raises(NotFound):
        await client.vms.wait("acme", "web", "www", settled=True, within=60)


@pytest.mark.slow
async def test_waiting_ends_in_time_and_says_where_it_stands(
    server: StandIn, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait, "LOOK_EVERY", 0.01)
    server.script = [said(view(phase=VmPhase.PENDING, detail="no node has 64 cpus"))]
    with pytest.raises(Unavailable, match=r"vm www: still pending \(no node has 64 cpus\) after 1 s"):
        await client.vms.wait("acme", "web", "www", phase=(VmPhase.RUNNING, VmPhase.STOPPED), within=1)
    with pytest.raises(Invalid, match="wait: give"):
        await client.vms.wait("acme", "web", "www")


async def test_a_cancelled_wait_leaves_nothing(server: StandIn, client: Client) -> None:
    server.script, server.events = [said(view(phase=VmPhase.PENDING))], [streaming(b"id: 1.0\n\n", end="stay")]
    task = asyncio.create_task(client.vms.wait("acme", "web", "www", phase=VmPhase.RUNNING))
    while not server.asked:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_no_foreign_exception_gets_out(server: StandIn, client: Client) -> None:
    async def broken(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Length": "100"})
        await answer.prepare(request)
        await answer.write(b"{")
        request.transport.close()  # type: ignore[union-attr]
        return answer

    server.script = [broken]
    with pytest.raises(Uncertain):
        await client.users.update("ada", UserUpdate(full_name="x"))
    assert issubclass(aiohttp.ClientPayloadError, aiohttp.ClientError)

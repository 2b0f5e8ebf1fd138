"""The server around the API: readiness, outages, figures, TLS, closing."""

from __future__ import annotations

import asyncio
import io
import json
import re
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme
from api_server import VM_BODY, Api, Reply, api_on, serving
from harness.pace import within

import hostler
from hostler.entry.server.app import build
from hostler.entry.server.logs import configure
from hostler.entry.server.serve import ListenAddress, Server
from hostler.entry.server.services import ServerConfig
from hostler.keys.families import ALERT
from hostler.model.access import Role
from hostler.model.deployment import AlertMetric, AlertRule
from hostler.model.rollout import Alert, AlertState

VMS = "/v1/orgs/acme/projects/web/vms"


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with serving() as api:
        yield api


REQUESTS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("POST", VMS, {"json": VM_BODY, "Idempotency_Key": "k"}),
    ("POST", VMS, {"json": VM_BODY, "Idempotency_Key": "k"}),
    ("POST", VMS, {"json": VM_BODY}),
    ("POST", VMS, {"data": b"{", "Content_Type": "application/json"}),
    ("POST", VMS, {"data": b"{}", "Content_Type": "text/plain"}),
    ("POST", VMS, {"data": b"x" * (3 << 20), "Content_Type": "application/json"}),
    ("GET", f"{VMS}/one", {}),
    ("GET", f"{VMS}/%6Fne?stale=true", {}),
    ("GET", f"{VMS}/%2F", {}),
    ("GET", f"{VMS}?limit=1&after=x%20y", {}),
    ("HEAD", VMS, {}),
    ("PATCH", f"{VMS}/one", {"json": {"labels": {"a": "é"}}, "If_Match": '"1"'}),
    ("PATCH", f"{VMS}/one", {"json": {"labels": {"a": "é"}}}),
    ("POST", f"{VMS}/one/stop", {}),
    ("DELETE", f"{VMS}/one", {}),
    ("GET", "/v1/vms", {"token": None}),
    ("GET", "/v1/vms", {"token": None, "Authorization": "Bearer é "}),
    ("GET", "/v1/nothing/..", {}),
    ("PUT", "/v1/overview", {}),
    ("POST", "/v1/sessions", {"token": None, "json": {"name": "ann", "password": "password"}}),
    ("POST", "/v1/sessions/browser", {"token": None, "json": {"name": "ann", "password": "guess"}}),
    ("GET", "/v1/sessions/browser", {"token": None, "X_Forwarded_Proto": "https", "X_Forwarded_For": "192.0.2.1"}),
    ("GET", "/v1/audit", {}),
    ("GET", "/openapi.json", {"token": None}),
    ("GET", "/", {"token": None}),
    ("GET", "/healthz", {"token": None, "X_Request_Id": " mine", "If_None_Match": " x "}),
)
OF_THE_SERVER = frozenset(("date", "connection", "x-request-id", "transfer-encoding"))
OF_THE_CLIENT = frozenset((b"accept", b"accept-encoding", b"user-agent", b"authorization", b"host", b"connection"))
CHANGES = re.compile(
    rb'"(id|token|instance|at|[a-z]+_at|subject|csrf|key)":("[^"]*"|[0-9.e+-]+)|nonce[^;>"]*|content="[^"]{24}"'
)


async def test_a_server_answers_as_the_app_in_this_process_does(tmp_path: Path) -> None:
    """Most tests of the API call the app; so a server must pass on what comes, and what is answered, as it is."""

    async def exchanged(*, sockets: bool) -> tuple[list[Any], list[Any]]:
        asked: list[Any] = []
        plan = ServerConfig(site=tmp_path, trusted_proxies=("127.0.0.0/8",), max_body=1 << 20)
        async with serving(plan=plan, sockets=sockets) as api:
            await api.user(Role.MEMBER, "acme", name="ann")
            believe = api.app._proxies.believe

            def recorded(scope: Any) -> None:
                asked.append(_scope(scope))
                believe(scope)

            api.app._proxies.believe = recorded  # type: ignore[method-assign]
            replies = [await api.call(method, path, **more) for method, path, more in REQUESTS]
            async with api.stream("GET", "/v1/events", [("Authorization", f"Bearer {api.admin}")]) as stream:
                replies.append(Reply(stream.status, stream.headers, (await stream.content.readline())[:3]))
        return asked, [(reply.status, _headers(reply.headers), CHANGES.sub(b"", reply.body)) for reply in replies]

    (asked, answered), (asked_on_socket, answered_on_socket) = [
        await exchanged(sockets=sockets) for sockets in (False, True)
    ]
    for number, request in enumerate((*REQUESTS, ("GET", "/v1/events"))):
        assert asked[number] == asked_on_socket[number], request[:2]
        assert answered[number] == answered_on_socket[number], request[:2]
    assert len(asked) == len(asked_on_socket) == len(answered) == len(answered_on_socket) == len(REQUESTS) + 1
    assert {status for status, _, _ in answered} >= {200, 201, 204, 400, 401, 404, 405, 409, 412, 413, 415}


def _scope(scope: Any) -> Any:
    """What the app is told of a request, without what the library of the socket's client adds."""
    added = ((b"content-length", b"0"), (b"content-type", b"application/octet-stream"))
    headers = [each for each in scope["headers"] if each[0] not in OF_THE_CLIENT and each not in added]
    known = ("type", "http_version", "scheme", "method", "path", "raw_path", "query_string", "root_path")
    return {name: scope[name] for name in known}, scope["client"][0], sorted(headers)


def _headers(headers: Any) -> list[tuple[str, str]]:
    """Without what another answer has otherwise: times, ids, secrets, lengths of those."""
    changing = {"etag", "content-length", "location", "set-cookie", "content-security-policy"}
    found = [(name.lower(), value) for name, value in headers.items() if name.lower() not in OF_THE_SERVER]
    return sorted((name, "" if name in changing else value) for name, value in found)


async def test_alive_and_ready_need_no_token(api: Api) -> None:
    assert (await api.call("GET", "/healthz", token=None)).status == 200
    assert (await api.call("GET", "/readyz", token=None)).status == 200


async def test_figures_tell_requests_machines_nodes_and_the_store(api: Api) -> None:
    await api.call("POST", VMS, json=VM_BODY)
    await api.node("n1")
    await api.call("GET", f"{VMS}/one")
    await api.call("GET", "/v1/nothing")
    rule = AlertRule(name="slow", metric=AlertMetric.P95_MS, above=5.0)
    alert = ALERT.put(
        Alert(blueprint="shop", rule=rule, state=AlertState.FIRING, value=9.0, at=1.0), base="o:web", alert="slow"
    )
    await api.services.store.put(alert.key, alert.value)
    async with asyncio.timeout(60):
        while not (api.services.view.vms.entries and api.services.view.alerts.entries):
            await asyncio.sleep(0.01)
    text = (await api.call("GET", "/metrics")).body.decode()
    for line in (
        'hostler_http_requests_total{method="POST",route="vm.create",status="201"} 1.0',
        'hostler_http_requests_total{method="GET",route="vm.get",status="200"} 1.0',
        'hostler_http_requests_total{method="GET",route="none",status="404"} 1.0',
        'hostler_http_request_seconds_bucket{le="+Inf",method="GET",route="vm.get"} 1.0',
        'hostler_vms{phase="pending"} 1.0',
        'hostler_nodes{alive="true",lifecycle="ON_DUTY"} 1.0',
        'hostler_alert_firing{alert="slow",blueprint="shop",slice="o:web"} 1.0',
        "hostler_leader 0.0",
        "hostler_store_healthy 1.0",
        "hostler_store_stale_seconds 0.0",
        "hostler_event_streams 0.0",
    ):
        assert line in text.splitlines()


async def test_an_outage_stops_writes_and_plain_reads_but_not_stale_ones() -> None:
    async with hostler.open_store("memory://") as inner:
        store = Outage(inner)
        async with api_on(store) as api:  # type: ignore[arg-type]
            made = (await api.call("POST", VMS, json=VM_BODY)).json
            async with asyncio.timeout(60):
                while not api.services.view.vms.entries:
                    await asyncio.sleep(0.01)
            assert "Hostler-Stale" not in (await api.call("GET", f"{VMS}/one?stale=true")).headers
            store.out = True
            async with asyncio.timeout(60):
                while (await api.call("GET", "/readyz")).status == 200:
                    await asyncio.sleep(0.02)
            assert (await api.call("GET", "/healthz")).status == 200
            plain = await api.call("GET", f"{VMS}/one")
            assert (plain.status, plain.json["type"]) == (503, "about:hostler/unavailable")
            assert plain.headers["Retry-After"]
            write = await api.call("POST", f"{VMS}/one/stop")
            assert (write.status, write.json["type"]) == (503, "about:hostler/unavailable")
            for path in (f"{VMS}/one", f"{VMS}/{made['id']}", VMS, "/v1/vms", "/v1/nodes", "/v1/users/admin"):
                old = await api.call("GET", f"{path}?stale=true")
                assert old.status == 200, path
                assert float(old.headers["Hostler-Stale"]) > 0
            store.out = False
            async with asyncio.timeout(60):
                while (await api.call("GET", "/readyz")).status != 200:
                    await asyncio.sleep(0.02)
            assert (await api.call("POST", f"{VMS}/one/stop")).status == 200


class Outage:
    """A store that can be out of reach for questions and writes; watches go on, and see nothing."""

    def __init__(self, store: Any) -> None:
        self._store, self.out = store, False

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._store, name)
        if name not in ("get", "range", "put", "txn", "delete", "grant", "status"):
            return verb

        async def asked(*args: Any, **options: Any) -> Any:
            if self.out:
                raise hostler.Unavailable("store: out of reach; try again later")
            return await verb(*args, **options)

        return asked


async def test_a_lost_answer_is_told_as_uncertain_and_the_same_key_repeats_it_safely() -> None:

    class Lossy(Outage):
        def __getattr__(self, name: str) -> Any:
            verb = getattr(self._store, name)
            if name not in ("txn", "get"):
                return verb

            async def asked(*args: Any, **options: Any) -> Any:
                answer = await verb(*args, **options) if name == "get" and not self.out else None
                if name == "txn":
                    answer = await verb(*args, **options)
                if self.out:
                    raise (hostler.Uncertain if name == "txn" else hostler.Unavailable)("store: no answer; read first")
                return answer

            return asked

    async with hostler.open_store("memory://") as inner:
        store = Lossy(inner)
        async with api_on(store) as api:  # type: ignore[arg-type]
            assert (await api.call("POST", VMS, json=VM_BODY | {"name": "first"})).status == 201  # the project is there
            store.out = True
            lost = await api.call("POST", VMS, json=VM_BODY, Idempotency_Key="k")
            store.out = False
            assert (lost.status, lost.json["type"]) == (503, "about:hostler/uncertain")
            async with asyncio.timeout(60):  # where others need the processor, the outage was noticed
                while not api.services.view.healthy():
                    await asyncio.sleep(0.01)
            again = await api.call("POST", VMS, json=VM_BODY, Idempotency_Key="k")
            assert again.status == 201
            assert again.headers["Idempotency-Replayed"] == "true"
            assert len((await api.call("GET", VMS)).json["items"]) == 2


async def test_tls(api: Api, tmp_path: Any) -> None:
    await api.listen()
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    issued.private_key_pem.write_to_path(tmp_path / "key")
    for number, pem in enumerate(issued.cert_chain_pems):
        pem.write_to_path(tmp_path / "cert", append=number > 0)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    async with Server(build(api.services), ListenAddress(cert=tmp_path / "cert", key=tmp_path / "key")) as server:
        assert server.url.startswith("https://127.0.0.1:")
        async with api.http.get(f"{server.url}/healthz", ssl=context) as answer:
            assert await answer.text() == "ok\n"
        with pytest.raises(aiohttp.ClientError):
            async with api.http.get(f"{server.url.replace('https', 'http')}/healthz"):
                pass


async def test_the_server_closes_quickly_with_idle_connections_and_half_a_request(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hostler.entry.server.serve.GRACE", 1)
    await api.listen()
    idle = await asyncio.open_connection("127.0.0.1", api.server.port)
    half = await asyncio.open_connection("127.0.0.1", api.server.port)
    half[1].write(
        b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
    )
    await half[1].drain()
    await api.call("GET", "/healthz")
    with within(2.5, "closing"):  # it would wait for the rest for ever
        await api.server.__aexit__(None, None, None)
    for _, writer in (idle, half):
        writer.close()


async def test_each_write_and_each_error_is_one_line_without_secrets(api: Api) -> None:
    stream = io.StringIO()
    configure("info", stream)
    try:
        await api.call("POST", "/v1/sessions", token=None, json={"name": "admin", "password": "hidden-password"})
        await api.call("POST", VMS, json=VM_BODY, X_Request_Id="mine-1")
        await api.call("GET", VMS)
        await api.call("GET", "/v1/nothing")
    finally:
        configure("warning")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["method"], line["status"]) for line in lines] == [("POST", 401), ("POST", 201), ("GET", 404)]
    assert lines[1]["id"] == "mine-1"
    assert lines[1]["who"] == "admin"
    assert lines[1]["source"] == "127.0.0.1"
    assert api.admin not in stream.getvalue()
    assert "hidden-password" not in stream.getvalue()


async def test_a_fault_is_logged_with_the_requests_id_and_without_values(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*args: object, **options: object) -> None:
        raise RuntimeError("what happened")

    monkeypatch.setattr(type(api.services.vms), "get", broken)
    stream = io.StringIO()
    configure("info", stream)
    try:
        await api.call("GET", f"{VMS}/one", X_Request_Id="mine-2")
    finally:
        configure("warning")
    fault = json.loads(stream.getvalue().splitlines()[0])
    assert (fault["event"], fault["id"]) == ("request failed", "mine-2")
    assert "what happened" in json.dumps(fault["exception"])
    assert api.admin not in stream.getvalue()


async def test_the_audit_tells_who_did_what_from_where(api: Api) -> None:
    ann = await api.user(Role.MEMBER, "acme/web", name="ann")
    made = (await api.call("POST", VMS, token=ann, json=VM_BODY)).json
    changed = (await api.call("POST", f"{VMS}/one/stop", token=ann)).json
    items = await _audited(api, limit=2)
    mine = [item for item in items if item["who"] == "ann"]
    assert [item["verb"] for item in mine] == ["vm.create", "vm.stop"]
    assert [(item["before"], item["after"]) for item in mine] == [
        (0, made["revision"]),
        (made["revision"], changed["revision"]),
    ]
    assert {item["source"] for item in mine} == {"127.0.0.1"}


async def _audited(api: Api, token: str = "", *, limit: int = 100) -> list[dict[str, Any]]:
    """Every page of it."""
    items: list[dict[str, Any]] = []
    after = ""
    while after is not None:
        page = (await api.call("GET", f"/v1/audit?limit={limit}{'&after=' + after if after else ''}", token=token)).json
        assert len(page["items"]) <= limit
        items += page["items"]
        after = page["after"]
    return items


async def test_the_audit_tells_a_manager_only_of_what_they_may_see(api: Api) -> None:
    mine = await api.user(Role.ADMIN, "acme/web", name="mine")
    await api.user(Role.MEMBER, "acme/web", name="near")
    await api.user(Role.MEMBER, "acme/web", "other", name="far")
    for path in (VMS, "/v1/orgs/acme/projects/mobile/vms", "/v1/orgs/other/projects/web/vms"):
        assert (await api.call("POST", path, json=VM_BODY)).status == 201
        assert (await api.call("PUT", path.replace("/vms", "/quota"), json={"vms": 5})).status in (200, 201)
    await api.node("n1")
    assert (await api.call("POST", "/v1/nodes/n1/drain", json={"mode": "stop"})).status == 200
    users = api.services.view.users
    async with asyncio.timeout(60):
        while users.get(user="far") is None or len(api.services.view.tokens.entries) < 4:
            await asyncio.sleep(0.01)

    everything = await _audited(api)
    shown = await _audited(api, mine)
    assert shown == [item for item in everything if item in shown], "the same entries, in the same order"
    keys = [item["subject"] for item in shown]
    assert [key for key in keys if key.startswith("/plasmavmc/vms/")] == [
        item["subject"] for item in everything if item["subject"].startswith("/plasmavmc/vms/acme/web/")
    ]
    assert [key for key in keys if "/quotas/" in key] == ["/hostler/v1/quotas/acme/web"]
    assert {key.rpartition("/")[2] for key in keys if "/users/" in key} == {"mine", "near"}
    assert sum("/tokens/" in key for key in keys) == 2, "theirs, and that of the account within reach"
    assert not [key for key in keys if "members" in key]
    for limit in (1, 2, 3):
        assert await _audited(api, mine, limit=limit) == shown
        assert await _audited(api, limit=limit) == everything


async def test_the_audit_tells_a_manager_of_labs_and_workloads_in_their_projects(api: Api) -> None:
    labs = await api.user(Role.ADMIN, "labs", name="head")
    mine = await api.user(Role.ADMIN, "labs/ada", "acme/web", name="one")
    for user in ("ada", "bob"):
        assert (await api.call("POST", "/v1/labs", json={"user": user, "labId": 5})).status == 202
    shape = {"cpus": 1, "memory_mib": 64}
    for name, org in (("here", "acme"), ("there", "other")):
        body = {"name": name, "org": org, "project": "web", "instances": 0, "spec": shape}
        assert (await api.call("PUT", f"/v1/workloads/{name}", json=body)).status in (200, 201)
    view = api.services.view
    async with asyncio.timeout(60):
        while view.workloads.get(workload="there") is None or view.users.get(user="one") is None:
            await asyncio.sleep(0.01)

    async def told(token: str) -> list[str]:
        shown = [
            item["subject"].rpartition("/")[2] for item in await _audited(api, token) if "user" not in item["verb"]
        ]
        return [name for name in shown if name in ("ada", "bob", "here", "there")]

    assert await told(labs) == ["ada", "bob"]
    assert await told(mine) == ["ada", "here"]


async def test_the_audit_of_a_namesake_that_was_deleted_stays_hidden(api: Api) -> None:
    mine = await api.user(Role.ADMIN, "acme", name="mine")
    await api.user(Role.MEMBER, "other", name="ann")
    assert (await api.call("DELETE", "/v1/users/ann")).status == 200
    await api.user(Role.MEMBER, "acme", name="ann")
    async with asyncio.timeout(60):
        while not [item for item in await _audited(api, mine) if item["subject"].endswith("/ann")]:
            await asyncio.sleep(0.01)
    assert [item["verb"] for item in await _audited(api, mine) if item["subject"].endswith("/ann")] == ["user.create"]


async def test_a_long_audit_of_others_is_gone_through_in_portions(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hostler.engine.access.audit.LOOKED_AT", 4)
    mine = await api.user(Role.ADMIN, "acme", name="mine")
    for number in range(12):
        body = {**VM_BODY, "name": f"m{number}"}
        assert (await api.call("POST", "/v1/orgs/other/projects/web/vms", json=body)).status == 201
    await api.call("POST", VMS, json=VM_BODY)
    page = (await api.call("GET", "/v1/audit?limit=3", token=mine)).json
    assert page["after"] is not None
    assert "vm.create" in [item["verb"] for item in await _audited(api, mine, limit=3)]

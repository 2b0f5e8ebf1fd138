"""What is wrong is told clearly, as a problem document, and nothing is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from api_server import VM_BODY, Api, Reply, serving

from hostler.entry.server.app import build
from hostler.entry.server.serve import ListenAddress, Server
from hostler.entry.server.services import ServerConfig
from hostler.errors import Invalid, Unavailable
from hostler.keys.families import ANSWERED, AUDIT, NAME, VM
from hostler.model.access import Role
from hostler.model.control_api import Problem

VMS = "/v1/orgs/acme/projects/web/vms"
SPEC = {"cpus": 1, "memory_mib": 64}


@pytest.fixture
async def api(tmp_path: Any) -> AsyncIterator[Api]:
    async with serving(f"sqlite://{tmp_path}/api.db") as api:
        yield api


def problem_of(answer: Reply) -> Problem:
    """The document; it must be one, and say what to do."""
    assert answer.headers["Content-Type"] == "application/problem+json"
    problem = msgspec.json.decode(answer.body, type=Problem)
    assert problem.status == answer.status
    assert problem.type.startswith("about:hostler/")
    assert problem.title
    assert problem.detail
    assert problem.next
    assert problem.instance == answer.headers["X-Request-Id"]
    assert b"Traceback" not in answer.body
    return problem


async def _nothing_written(api: Api) -> None:
    assert not (await VM.list(api.store)).entries
    assert not (await NAME.list(api.store)).entries
    assert not (await ANSWERED.list(api.store)).entries
    audits = (await AUDIT.list(api.store)).entries
    assert [entry.value.verb for entry in audits if entry.value.verb.startswith("vm.")] == []


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"name": "x" * 64, "spec": SPEC}, "$.name"),
        ({"name": "a/b", "spec": SPEC}, "$.name"),
        ({"name": "", "spec": SPEC}, "$.name"),
        ({"name": "a\x00b", "spec": SPEC}, "$.name"),
        ({"name": "a\nb", "spec": SPEC}, "$.name"),
        ({"name": "..", "spec": SPEC}, "name"),
        ({"name": 7, "spec": SPEC}, "$.name"),
        ({"name": None, "spec": SPEC}, "$.name"),
        ({"spec": SPEC}, "name"),
        ({"name": "a"}, "spec"),
        ({"name": "a", "spec": {"cpus": 1, "memory_mib": 0}}, "$.spec.memory_mib"),
        ({"name": "a", "spec": {"cpus": 1, "memory_mib": -5}}, "$.spec.memory_mib"),
        ({"name": "a", "spec": {"cpus": 0, "memory_mib": 64}}, "$.spec.cpus"),
        ({"name": "a", "spec": {"cpus": 1.5, "memory_mib": 64}}, "$.spec.cpus"),
        ({"name": "a", "spec": {"cpus": "1", "memory_mib": 64}}, "$.spec.cpus"),
        ({"name": "a", "spec": {"cpus": True, "memory_mib": 64}}, "$.spec.cpus"),
        ({"name": "a", "spec": {"cpus": 10**30, "memory_mib": 64}}, "$.spec.cpus"),
        ({"name": "a", "spec": {"cpus": 1, "memory_mib": 64, "gpus": 1}}, "gpus"),
        ({"name": "a", "spec": SPEC, "colour": "red"}, "colour"),
        ({"name": "a", "spec": SPEC, "hostler:unknown": {}}, "unknown"),
        ({"name": "a", "spec": SPEC, "power": "maybe"}, "$.power"),
        ({"name": "a", "spec": SPEC, "labels": {"a": 1}}, "$.labels"),
        ({"name": "a", "spec": SPEC, "expires_in": -1}, "$.expires_in"),
        ({"name": "a", "spec": SPEC, "affinity": [{}]}, "$.affinity"),
        ([], "$"),
        ("text", "$"),
        (7, "$"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else "",
)
async def test_a_body_that_cannot_be_is_refused_with_the_place(api: Api, body: Any, where: str) -> None:
    answer = await api.call("POST", VMS, json=body, Idempotency_Key="k")
    problem = problem_of(answer)
    assert answer.status == 400
    assert where in problem.detail
    await _nothing_written(api)


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{", b"nonsense", b'{"name": "a", "spec": {"cpus": 1', b"\xff\xfe", b'{"name": "\xff"}', b"\x00"),
        *(b'{"name": "\\ud800", "spec": {"cpus": 1, "memory_mib": 64}}', b"NaN", b'{"a":' * 5000, b"[" * 100_000),
        b'\xef\xbb\xbf{"name": "a"}',
    ],
)
async def test_what_is_no_json_is_refused(api: Api, data: bytes) -> None:
    answer = await api.call("POST", VMS, data=data, Content_Type="application/json")
    assert problem_of(answer).status == 400
    await _nothing_written(api)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", "", "json"])
async def test_a_body_that_is_not_said_to_be_json_is_refused(api: Api, kind: str) -> None:
    answer = await api.call("POST", VMS, data=msgspec.json.encode(VM_BODY), Content_Type=kind)
    assert problem_of(answer).status == 415
    await _nothing_written(api)


async def test_json_with_a_character_set_is_taken(api: Api) -> None:
    data = msgspec.json.encode(VM_BODY)
    answer = await api.call("POST", VMS, data=data, Content_Type="Application/JSON; charset=utf-8")
    assert answer.status == 201


async def test_a_body_where_none_belongs_is_refused(api: Api) -> None:
    await api.call("POST", VMS, json=VM_BODY)
    assert problem_of(await api.call("POST", f"{VMS}/one/stop", json={"force": True})).status == 400
    assert (await api.call("POST", f"{VMS}/one/stop", json={})).status == 200
    assert (await api.call("POST", f"{VMS}/one/stop")).status == 200


# Sizes


async def _raw(api: Api, data: bytes, *more: bytes) -> tuple[bytes, int]:
    """What the server answers until it closes, and how many bytes it took."""
    await api.listen()
    reader, writer = await asyncio.open_connection("127.0.0.1", api.server.port)
    answering = asyncio.create_task(_until_closed(reader))
    taken = 0
    with suppress(ConnectionError):
        for piece in (data, *more):
            writer.write(piece)
            await writer.drain()
            taken += len(piece)
    async with asyncio.timeout(60):
        answer = await answering
    writer.close()
    return answer, taken


async def _until_closed(reader: asyncio.StreamReader) -> bytes:
    answer = b""
    with suppress(ConnectionError):
        while piece := await reader.read(65536):
            answer += piece
    return answer


def _head(api: Api, method: str, path: str, *lines: str) -> bytes:
    head = (f"{method} {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {api.admin}", *lines)
    return "\r\n".join((*head, "", "")).encode()


async def test_a_body_of_100_mb_is_refused_early_and_the_connection_closed(api: Api) -> None:
    head = _head(api, "POST", VMS, "Content-Type: application/json", f"Content-Length: {100 * 2**20}")
    answer, taken = await _raw(api, head, *[b"x" * 2**20] * 100)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"about:hostler/too-large" in answer
    assert b"connection: close" in answer.lower()
    assert taken < 30 * 2**20
    await _nothing_written(api)


async def test_a_body_of_100_mb_without_a_length_is_refused_too(api: Api) -> None:
    head = _head(api, "POST", VMS, "Content-Type: application/json", "Transfer-Encoding: chunked")
    chunk = b"100000\r\n" + b"x" * 2**20 + b"\r\n"
    answer, taken = await _raw(api, head, *[chunk] * 100)
    assert answer.startswith(b"HTTP/1.1 413")
    assert taken < 30 * 2**20
    await _nothing_written(api)


async def test_a_large_body_for_nobody_is_not_taken_either(api: Api) -> None:
    for path, status in (("/v1/nothing", b"404"), ("/v1/leader", b"405")):
        head = _head(api, "POST", path, "Content-Type: application/json", f"Content-Length: {100 * 2**20}")
        answer, taken = await _raw(api, head, *[b"x" * 2**20] * 100)
        assert answer.startswith(b"HTTP/1.1 " + status)
        assert taken < 30 * 2**20


async def test_who_asks_before_sending_is_not_told_to_go_on(api: Api) -> None:
    lines = ("Content-Type: application/json", f"Content-Length: {100 * 2**20}", "Expect: 100-continue")
    answer, _ = await _raw(api, _head(api, "POST", VMS, *lines))
    assert answer.startswith(b"HTTP/1.1 413")


async def test_headers_without_end_are_refused(api: Api) -> None:
    head = _head(api, "GET", "/v1/vms")[:-2]
    answer, _ = await _raw(api, head, *[b"X-Padding: " + b"x" * 8000 + b"\r\n"] * 100)
    assert answer.startswith(b"HTTP/1.1 431")
    assert b"about:hostler/headers-too-large" in answer


async def test_what_is_no_http_is_told_so(api: Api) -> None:
    await api.listen()
    junk = (b"\x16\x03\x01\x00\xa5 TLS?\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x00" * 100)
    for answer, _ in await asyncio.gather(*(_raw(api, data) for data in junk)):
        assert answer.startswith(b"HTTP/1.1 400")
        assert b"application/problem+json" in answer
    assert (await api.call("GET", "/healthz")).status == 200


TARGETS = [
    "*",
    "/%",
    "/%zz",
    "/v1/orgs/%00/projects/b/vms",
    "/v1/orgs/%ff/projects/b/vms",
    "/v1/orgs/a%2Fb/projects/c/vms",
    "/v1/orgs/../projects/b/vms",
    "/v1/orgs/%2e%2e/projects/b/vms",
    "/v1/orgs/a/projects/b/vms/%2F",
    "//",
    "/v1//vms",
    "/v1/vms?after=%00",
    "/v1/vms?limit=%ff",
    "/v1/vms?x",
    "/v1/vms?limit=5&limit=6",
    "/v1/vms?after=%2F%2F",
    "/v1/nodes/" + "n" * 300,
    "/v1/nodes/%F0%9F%90%B4",
    "/v1/users/%E2%80%A8",
    "/v1/audit?after=x",
    "/v1/audit?day=../..",
    "/v1/events?after=x",
    "/v1/events?after=1.2.3",
    "/v1/events?project=x",
    "/v1/events?kinds=token",
    "/" + "a/" * 5000,
    "http://elsewhere/v1/nope",
    "/v1/orgs/a/projects/b/vms/%EF%BF%BF",
    "/v1/audit?after=../../tokens/x",
]


async def test_no_path_or_query_breaks_it(api: Api) -> None:
    for target in TARGETS:
        answer, _ = await _raw(api, _head(api, "GET", target, "Connection: close"))
        assert int(answer.split(b" ", 2)[1]) in (400, 404), target
        assert b"application/problem+json" in answer, target


@pytest.mark.parametrize("value", ["x", '"x"', '"1', "1 2", '"1", "2"', 'W/"1"', "-1", "", "9" * 30, '""'])
async def test_an_if_match_that_is_no_revision_is_refused(api: Api, value: str) -> None:
    await api.call("POST", VMS, json=VM_BODY)
    answer = await api.call("POST", f"{VMS}/one/stop", If_Match=value)
    assert problem_of(answer).status == 400
    assert (await api.call("GET", f"{VMS}/one")).json["power"] == "on"


async def test_if_match_where_it_has_no_meaning_is_refused_not_ignored(api: Api) -> None:
    assert problem_of(await api.call("POST", VMS, json=VM_BODY, If_Match='"1"')).status == 400
    await _nothing_written(api)


async def test_a_stale_if_match_writes_nothing(api: Api) -> None:
    made = await api.call("POST", VMS, json=VM_BODY)
    assert made.headers["ETag"] == f'"{made.json["revision"]}"'
    changed = await api.call("PATCH", f"{VMS}/one", json={"labels": {"a": "1"}}, If_Match=made.headers["ETag"])
    assert changed.status == 200
    assert changed.json["revision"] > made.json["revision"]
    stale = await api.call("PATCH", f"{VMS}/one", json={"labels": {"a": "2"}}, If_Match=made.headers["ETag"])
    assert problem_of(stale).type == "about:hostler/stale"
    assert stale.status == 412
    assert (await api.call("GET", f"{VMS}/one")).json["labels"] == {"a": "1"}
    bare = await api.call("PATCH", f"{VMS}/one", json={"labels": {}}, If_Match=str(changed.json["revision"]))
    assert bare.status == 200
    assert (await api.call("POST", f"{VMS}/one/stop", If_Match="*")).status == 200


async def test_the_same_key_with_another_body_is_refused_and_with_the_same_one_answered_alike(api: Api) -> None:
    first = await api.call("POST", VMS, json=VM_BODY, Idempotency_Key="k1")
    again = await api.call("POST", VMS, json=VM_BODY, Idempotency_Key="k1")
    other = await api.call("POST", VMS, json={**VM_BODY, "name": "two"}, Idempotency_Key="k1")
    elsewhere = await api.call("POST", "/v1/orgs/acme/projects/mobile/vms", json=VM_BODY, Idempotency_Key="k1")
    assert (first.status, again.status) == (201, 201)
    assert first.json == again.json
    assert again.headers["Idempotency-Replayed"] == "true"
    assert "Idempotency-Replayed" not in first.headers
    for refused in (other, elsewhere):
        assert problem_of(refused).type == "about:hostler/idempotency-key-reused"
        assert refused.status == 422
    assert len((await VM.list(api.store)).entries) == 1


@pytest.mark.parametrize("key", ["", "a b", "x" * 256, "é", "a\tb"])
async def test_a_key_that_cannot_be_kept_is_refused(api: Api, key: str) -> None:
    answer = await api.call("POST", VMS, json=VM_BODY, Idempotency_Key=key)
    assert problem_of(answer).status == 400
    await _nothing_written(api)


# Tokens


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", "Basic YTpi", "Bearer x", "Bearer " + "x" * 9000, "Bearer é", "bearer\tx", "Token x"],
)
async def test_a_token_that_counts_for_nothing_is_one_answer(api: Api, header: str) -> None:
    answer = await api.call("GET", "/v1/vms", token=None, Authorization=header)
    assert problem_of(answer).status == 401
    assert "Bearer" in answer.headers["WWW-Authenticate"]


async def test_a_token_in_the_url_is_refused(api: Api) -> None:
    assert (await api.call("GET", f"/v1/vms?token={api.admin}", token=None)).status == 401
    assert (await api.call("GET", f"/v1/vms?access_token={api.admin}")).status == 400


async def test_a_token_that_expired_or_was_revoked_is_refused(api: Api) -> None:
    await api.user(Role.VIEWER, name="ann")
    short = await api.call("POST", "/v1/users/ann/tokens", json={"expires_in": 0.2})
    assert short.status == 201
    async with asyncio.timeout(60):
        while (answer := await api.call("GET", "/v1/sessions", token=short.json["token"])).status == 200:
            await asyncio.sleep(0.02)
    assert problem_of(answer).status == 401
    kept = (await api.call("POST", "/v1/users/ann/tokens", json={})).json
    assert (await api.call("GET", "/v1/sessions", token=kept["token"])).status == 200
    assert (await api.call("DELETE", f"/v1/users/ann/tokens/{kept['id']}")).status == 200
    assert (await api.call("GET", "/v1/sessions", token=kept["token"])).status == 401


async def test_guessing_is_slowed_and_told_when_to_come_back(api: Api) -> None:
    for name in ("admin", "nobody-of-that-name"):
        statuses = []
        for _ in range(12):
            answer = await api.call("POST", "/v1/sessions", token=None, json={"name": name, "password": "guess"})
            statuses.append(answer.status)
            problem_of(answer)
        assert statuses[0] == 401
        assert statuses[-1] == 429
        assert int(answer.headers["Retry-After"]) >= 1


# Headers and ids


async def test_every_answer_says_that_it_is_not_to_be_kept(api: Api) -> None:
    for path in ("/v1/vms", "/v1/nothing", "/healthz", "/openapi.json"):
        answer = await api.call("GET", path)
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["X-Request-Id"]
        assert "Server" not in answer.headers


async def test_a_request_id_is_kept_if_it_is_a_decent_one(api: Api) -> None:
    assert (await api.call("GET", "/healthz", X_Request_Id="abc-1.2")).headers["X-Request-Id"] == "abc-1.2"
    for bad in ("x" * 65, 'a"b', "a b", "<script>"):
        assert (await api.call("GET", "/healthz", X_Request_Id=bad)).headers["X-Request-Id"] != bad


async def test_head_has_no_body(api: Api) -> None:
    answer = await api.call("HEAD", "/v1/vms")
    assert (answer.status, answer.body) == (200, b"")
    assert int(answer.headers["Content-Length"]) > 0


async def test_a_fault_inside_is_told_without_its_inside(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*args: object, **options: object) -> None:
        raise RuntimeError("secret 4711")

    monkeypatch.setattr(type(api.services.vms), "get", broken)
    answer = await api.call("GET", f"{VMS}/one")
    assert problem_of(answer).status == 500
    assert b"4711" not in answer.body
    assert b"RuntimeError" not in answer.body


# Starting


async def test_a_port_in_use_is_one_clear_sentence(api: Api) -> None:
    await api.listen()
    app = build(api.services, ServerConfig())
    with pytest.raises(Unavailable, match="port is in use; "):
        async with Server(app, ListenAddress(port=api.server.port)):
            pass


@pytest.mark.parametrize("host", ["203.0.113.7", "no.such.host.invalid"])
async def test_an_address_that_is_not_ours_is_one_clear_sentence(api: Api, host: str) -> None:
    with pytest.raises(Unavailable, match=f"listen {host}:0"):
        async with Server(build(api.services), ListenAddress(host=host)):
            pass


async def test_a_certificate_that_is_none_is_one_clear_sentence(api: Api, tmp_path: Any) -> None:
    cert = tmp_path / "cert.pem"
    cert.write_text("no certificate")
    with pytest.raises(Invalid, match="tls: .*cannot be used"):
        async with Server(build(api.services), ListenAddress(cert=cert, key=cert)):
            pass
    with pytest.raises(Invalid, match="tls: .*cannot be used"):
        async with Server(build(api.services), ListenAddress(cert=tmp_path / "none", key=cert)):
            pass
    with pytest.raises(Invalid, match="needs both"):
        Server(build(api.services), ListenAddress(cert=cert))

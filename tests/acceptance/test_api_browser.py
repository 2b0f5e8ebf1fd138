"""Browsers: a session in a cookie; and pages of other servers, which must not get anything by it."""

from __future__ import annotations

import asyncio
import io
import ssl
from collections.abc import AsyncIterator
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import trustme
from api_server import VM_BODY, Api, Reply, serving, stop_throttle

from hostler.engine.request import HOSTLER, Request
from hostler.entry.server.app import build
from hostler.entry.server.logs import configure
from hostler.entry.server.serve import ListenAddress, Server
from hostler.model.access import Role
from hostler.model.access_api import TokenCreate, UserUpdate

PATH = "/v1/sessions/browser"
VMS = "/v1/orgs/acme/projects/web/vms"
SESSION = 12 * 3600.0


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with serving() as api:
        await api.user(Role.MEMBER, "acme", name="ann")
        assert (await api.call("POST", "/v1/orgs/acme/projects", json={"name": "web"})).status == 201
        yield api


class Browser:
    """Somebody's session: the cookie as it was set, and what the page knows."""

    def __init__(self, api: Api, reply: Reply) -> None:
        assert reply.status == 201, reply.body
        self.api, self.reply = api, reply
        (morsel,) = SimpleCookie(reply.headers["Set-Cookie"]).values()
        self.morsel, self.cookie = morsel, f"{morsel.key}={morsel.value}"
        self.csrf = str(reply.json["csrf"])

    async def call(self, method: str, path: str, **more: Any) -> Reply:
        headers = {"Cookie": self.cookie, "Hostler_Csrf": self.csrf, **more}
        return await self.api.call(method, path, token=None, **{k: v for k, v in headers.items() if v is not None})


async def signed_in(api: Api, body: Any = None, **headers: str) -> Reply:
    return await api.call("POST", PATH, token=None, json=body or {"name": "ann", "password": "password"}, **headers)


async def browser(api: Api, body: Any = None) -> Browser:
    return Browser(api, await signed_in(api, body))


def problem(reply: Reply) -> tuple[int, str]:
    return reply.status, str(reply.json["type"]).removeprefix("about:hostler/")


def forgets(reply: Reply, name: str) -> bool:
    text = reply.headers.get("Set-Cookie", "")
    return text.startswith(f"{name}=;") and "Max-Age=0" in text


# Signing in


async def test_a_password_gives_a_session_in_a_cookie_that_no_script_reads(api: Api) -> None:
    ann = await browser(api)
    morsel = ann.morsel
    assert morsel.key == f"hostler_{api.port}"
    assert (morsel["httponly"], morsel["samesite"], morsel["path"], morsel["domain"]) == (True, "Strict", "/", "")
    assert not morsel["secure"]
    assert SESSION - 60 < int(morsel["max-age"]) <= SESSION
    assert set(ann.reply.json) == {"user", "csrf", "expires_at"}
    assert ann.reply.json["user"]["name"] == "ann"
    assert morsel.value.encode() not in ann.reply.body
    assert ann.reply.headers["Cache-Control"] == "no-store"
    shown = await ann.call("GET", PATH)
    assert (shown.status, shown.json) == (200, ann.reply.json)
    assert (await ann.call("GET", "/v1/sessions")).json["name"] == "ann"


async def test_a_token_gives_a_new_session_that_ends_no_later_and_is_not_kept(api: Api) -> None:
    issued = (await api.services.users.issue(Request(HOSTLER), "ann", TokenCreate(expires_in=600))).value
    ann = await browser(api, {"token": issued.token})
    assert issued.token not in ann.cookie
    assert ann.reply.json["expires_at"] <= issued.expires_at
    assert 500 < int(ann.morsel["max-age"]) <= 600
    again = await browser(api, {"token": ann.morsel.value})
    assert again.reply.json["expires_at"] <= issued.expires_at, "a session cannot be made to last by signing in with it"
    await api.services.users.revoke(Request(HOSTLER), "ann", issued.id)
    assert problem(await signed_in(api, {"token": issued.token})) == (401, "unauthenticated")


async def test_a_ticket_signs_in_once_and_opens_nothing_else(api: Api) -> None:
    token = await api.user(Role.MEMBER, "acme", name="bob")
    told = (await api.call("POST", "/v1/sessions/tickets", token=token)).json
    assert told["url"] == "/#/sign-in"
    await api.call("POST", VMS, json=VM_BODY)
    for door in (f"{VMS}/one/console", f"{VMS}/one/ssh", "/v1/labs/bob/terminal"):
        answer = await api.call("GET", f"{door}?ticket={told['ticket']}", token=None)
        assert answer.status == 401, door
    assert (await api.call("GET", PATH, token=told["ticket"])).status == 401
    bob = await browser(api, {"ticket": told["ticket"]})
    assert bob.reply.json["user"]["name"] == "bob"
    assert problem(await signed_in(api, {"ticket": told["ticket"]})) == (401, "unauthenticated")
    door = await api.call("POST", f"{VMS}/one/tickets", token=token, json={"door": "console"})
    assert problem(await signed_in(api, {"ticket": door.json["ticket"]})) == (401, "unauthenticated")


async def test_a_ticket_counts_no_longer_than_the_token_that_it_was_asked_for_with(api: Api) -> None:
    issued = (await api.services.users.issue(Request(HOSTLER), "ann", TokenCreate())).value
    ticket = (await api.call("POST", "/v1/sessions/tickets", token=issued.token)).json["ticket"]
    await api.services.users.revoke(Request(HOSTLER), "ann", issued.id)
    assert problem(await signed_in(api, {"ticket": ticket})) == (401, "unauthenticated")


async def test_of_many_who_show_one_ticket_at_once_one_gets_in(api: Api) -> None:
    ticket = (await api.call("POST", "/v1/sessions/tickets")).json["ticket"]
    replies = await asyncio.gather(*(signed_in(api, {"ticket": ticket}) for _ in range(8)))
    assert sorted(reply.status for reply in replies) == [201] + [401] * 7


@pytest.mark.parametrize(
    "body",
    [
        {"name": "ann"},
        {"password": "password"},
        {"name": "ann", "password": "password", "token": "hst_x"},
        {"token": "hst_x", "ticket": "hstt_x"},
        {"name": None},
        {"token": None, "ticket": None, "unknown": 1},
    ],
)
async def test_it_takes_one_way_in_at_a_time(api: Api, body: Any) -> None:
    reply = await signed_in(api, body)
    assert problem(reply) == (400, "invalid")
    assert "Set-Cookie" not in reply.headers


async def test_unknown_and_wrong_are_one_answer_and_guessing_is_slowed(api: Api) -> None:
    stop_throttle(api)
    wrong = [await signed_in(api, {"name": name, "password": "guess"}) for name in ("ann", "nobody")]
    assert len({(reply.status, reply.json["detail"]) for reply in wrong}) == 1
    assert problem(wrong[0]) == (401, "unauthenticated")
    for _ in range(5):
        last = await signed_in(api, {"name": "ann", "password": "guess"})
    assert problem(last) == (429, "too-many-tries")
    assert int(last.headers["Retry-After"]) >= 1


@pytest.mark.parametrize("what", [{"token": "hst_" + "x" * 43}, {"ticket": "hstt_" + "x" * 43}])
async def test_guessing_tokens_and_tickets_is_slowed_too(api: Api, what: Any) -> None:
    statuses = [(await signed_in(api, what)).status for _ in range(24)]
    assert statuses[:20] == [401] * 20
    assert statuses[-1] == 429
    assert (await browser(api)).reply.status == 201, "who knows the password gets in all the same"


async def test_by_https_the_cookie_is_for_https_alone(api: Api) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    client = ssl.create_default_context()
    authority.configure_trust(client)
    with certificate.private_key_and_cert_chain_pem.tempfile() as pem:
        app = build(api.services)
        async with Server(app, ListenAddress(cert=Path(pem), key=Path(pem))) as server, aiohttp.ClientSession() as http:
            body = {"name": "ann", "password": "password"}
            async with http.post(server.url + PATH, json=body, ssl=client) as answer:
                assert answer.status == 201
                (morsel,) = SimpleCookie(answer.headers["Set-Cookie"]).values()
            assert (morsel.key, morsel["secure"]) == (f"__Host-hostler_{server.port}", True)
            assert (morsel["path"], morsel["domain"], morsel["httponly"]) == ("/", "", True)
            for name, status in ((morsel.key, 200), (f"hostler_{server.port}", 204)):
                async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as bare:
                    cookie = {"Cookie": f"{name}={morsel.value}"}
                    async with bare.get(server.url + PATH, headers=cookie, ssl=client) as answer:
                        assert answer.status == status, name


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("example.org", "hostler_80"),
        ("example.org:7070", "hostler_7070"),
        ("[::1]:7070", "hostler_7070"),
        ("[::1]", "hostler_80"),
        ("a b", None),
        ("example.org:port", None),
        ("example.org:123456", None),
        ("[::1", None),
        ("x;y=1:80", None),
        ("é.example", None),
        ("", None),
    ],
)
async def test_the_cookie_is_called_after_the_port_of_the_host_header(api: Api, host: str, name: str | None) -> None:
    reply = await signed_in(api, Host=host)
    if name is None:
        assert problem(reply) == (400, "invalid")
        cookie = f"hostler_{api.port}=x"
        assert (await api.call("GET", PATH, token=None, Host=host, Cookie=cookie)).status == 204
        return
    here = Browser(api, reply)
    assert here.morsel.key == name
    assert (await here.call("GET", PATH, Host=host)).status == 200
    assert (await here.call("GET", PATH)).status == 204, "at another port it is not looked for"


# What the cookie lets in to


async def test_the_cookie_counts_like_a_token_if_the_page_shows_its_proof(api: Api) -> None:
    ann = await browser(api)
    assert (await ann.call("GET", VMS, Hostler_Csrf=None)).status == 200
    assert (await ann.call("HEAD", VMS, Hostler_Csrf=None)).status == 200
    made = await ann.call("POST", VMS, json=VM_BODY, Origin=api.url, Sec_Fetch_Site="same-origin")
    assert made.status == 201
    assert (await ann.call("PATCH", f"{VMS}/one", json={"labels": {"a": "b"}})).status == 200
    ticket = await ann.call("POST", f"{VMS}/one/tickets", json={"door": "console"})
    assert ticket.status == 201
    assert (await ann.call("DELETE", f"{VMS}/one")).status in (200, 202)
    assert (await ann.call("GET", "/v1/users")).status == 403, "it has no rights but those of the account"


async def test_without_the_proof_or_with_anothers_nothing_is_written(api: Api) -> None:
    await api.user(Role.MEMBER, "acme", name="bob")
    ann, bob = await browser(api), await browser(api, {"name": "bob", "password": "password"})
    second = await browser(api)
    assert len({ann.csrf, bob.csrf, second.csrf}) == 3
    for sent in (None, "", "x", bob.csrf, second.csrf, ann.csrf[:-1], ann.csrf.upper(), ann.csrf + "0", "é" * 32):
        for method, path in (("POST", VMS), ("DELETE", "/v1/sessions"), ("PUT", f"{VMS}/x"), ("POST", f"{VMS}/x/stop")):
            body = VM_BODY if path == VMS else None
            reply = await ann.call(method, path, json=body, Hostler_Csrf=sent)
            if reply.status == 405:
                continue
            assert problem(reply) == (403, "csrf"), (sent, method)
            assert "Set-Cookie" not in reply.headers
    assert (await ann.call("GET", VMS)).json["items"] == []


async def test_a_form_of_another_site_does_nothing(api: Api) -> None:
    """What a page can make a browser send without asking first: simple requests, with the cookie if at all."""
    ann = await browser(api)
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        data = msgspec.json.encode(VM_BODY)
        headers = {"Content_Type": kind, "Hostler_Csrf": None, "Origin": "http://evil.example"}
        assert problem(await ann.call("POST", VMS, data=data, **headers)) == (403, "csrf")
        login = msgspec.json.encode({"name": "ann", "password": "password"})
        reply = await api.call("POST", PATH, token=None, data=login, Content_Type=kind)
        assert problem(reply) == (415, "media-type")
    assert (await ann.call("GET", VMS)).json["items"] == []
    asked = await ann.call("OPTIONS", VMS, Origin="http://evil.example", Access_Control_Request_Method="POST")
    assert asked.status == 405
    assert not any(name.lower().startswith("access-control") for name in asked.headers)


async def test_where_the_browser_says_whose_page_asks_it_must_be_ours(api: Api) -> None:
    ann = await browser(api)
    port = api.port
    others = ["http://evil.example", f"http://127.0.0.1:{port + 1}", "http://127.0.0.1", f"http://localhost:{port}"]
    others += ["null", "", "http://[", f"http://127.0.0.1:{port}.evil.example", f"http://x@127.0.0.1:{port}"]
    for origin in others:
        assert problem(await ann.call("POST", VMS, json=VM_BODY, Origin=origin)) == (403, "csrf"), origin
        assert problem(await signed_in(api, Origin=origin)) == (403, "csrf"), origin
    for site in ("cross-site", "same-site", "none", "x"):
        assert problem(await ann.call("POST", VMS, json=VM_BODY, Sec_Fetch_Site=site)) == (403, "csrf"), site
        assert problem(await signed_in(api, Sec_Fetch_Site=site)) == (403, "csrf"), site
    for path in (PATH, VMS, "/v1/events", "/metrics"):
        assert problem(await ann.call("GET", path, Sec_Fetch_Site="cross-site")) == (403, "csrf"), path
    assert (await ann.call("GET", VMS, Sec_Fetch_Site="same-origin")).json["items"] == []
    assert (await signed_in(api, Origin=api.url, Sec_Fetch_Site="same-origin")).status == 201


async def test_a_token_in_a_header_counts_and_the_cookie_beside_it_does_not(api: Api) -> None:
    ann = await browser(api)
    bob = await api.user(Role.MEMBER, "acme", name="bob")
    headers = {"Cookie": ann.cookie, "Sec_Fetch_Site": "cross-site"}
    assert (await api.call("GET", "/v1/sessions", token=bob, **headers)).json["name"] == "bob"
    assert (await api.call("POST", VMS, token=bob, json=VM_BODY, **headers)).status == 201
    assert (await api.call("GET", "/v1/sessions", token="hst_" + "x" * 43, **headers)).status == 401
    assert (await api.call("GET", "/v1/sessions", token=None, Authorization="Basic x", Cookie=ann.cookie)).status == 401
    assert problem(await api.call("GET", PATH, token=bob, **headers)) == (401, "unauthenticated")


async def test_no_websocket_takes_a_cookie(api: Api) -> None:
    await api.listen()
    ann = await browser(api)
    await ann.call("POST", VMS, json=VM_BODY)
    headers = {"Cookie": ann.cookie, "Origin": api.url, "Hostler-Csrf": ann.csrf}
    for path in (f"{VMS}/one/console", f"{VMS}/one/ssh", "/v1/labs/ann/terminal", VMS, "/v1/events"):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await api.http.ws_connect(api.url + path, headers=headers)
        assert refused.value.status == 401, path
    assert (await ann.call("GET", f"{VMS}/one/console")).status == 401


# Its end


async def test_after_logging_out_the_cookie_is_forgotten_and_counts_for_nothing(api: Api) -> None:
    ann = await browser(api)
    assert problem(await ann.call("DELETE", "/v1/sessions", Hostler_Csrf=None)) == (403, "csrf")
    out = await ann.call("DELETE", "/v1/sessions")
    assert out.status == 200
    assert forgets(out, ann.morsel.key)
    for method, path in (("GET", PATH), ("GET", VMS), ("POST", VMS), ("DELETE", "/v1/sessions")):
        late = await ann.call(method, path, json=VM_BODY if method == "POST" else None)
        assert problem(late) == (401, "unauthenticated")
        assert forgets(late, ann.morsel.key)
    assert (await api.call("GET", VMS)).json["items"] == []


@pytest.mark.parametrize("change", [{"enabled": False}, {"password": "another password"}, None])
async def test_what_ends_sessions_ends_a_browsers_and_its_events(api: Api, change: dict[str, Any] | None) -> None:
    ann = await browser(api)
    async with api.stream("GET", "/v1/events?beat=1", [("Cookie", ann.cookie)]) as events:
        assert events.status == 200
        if change is None:
            await api.services.users.delete(Request(HOSTLER), "ann")
        else:
            await api.services.users.update(Request(HOSTLER), "ann", UserUpdate(**change))
        async with asyncio.timeout(60):
            assert b"ended: the token no longer counts" in await events.read()
    late = await ann.call("GET", PATH)
    assert problem(late) == (401, "unauthenticated")
    assert forgets(late, ann.morsel.key)


async def test_junk_for_a_cookie_is_nobody_and_breaks_nothing(api: Api) -> None:
    ann = await browser(api)
    name, good = ann.morsel.key, ann.cookie
    junk = [f"{good}; {good}", f"{good}; {name}=x", f"{name}=x; {good}", f"{name}=", name, "=", ";;;", f'{name}="x"']
    junk += [f"{name}={'x' * 5000}", f"{name}=é", f"{name}=a b", f"{name}=a,b", f"other={ann.morsel.value}", "é=\xff"]
    junk += [f"hostler_{api.port + 1}={ann.morsel.value}", f"__Host-{good}", f"{name}x={ann.morsel.value}"]
    for cookie in junk:
        for method in ("GET", "POST"):
            reply = await ann.call(method, VMS, json=VM_BODY if method == "POST" else None, Cookie=cookie)
            assert reply.status in (401, 429), cookie
    two = [("Cookie", good), ("Cookie", good)]
    async with api.stream("GET", VMS, two) as answer:
        assert answer.status == 401
    async with api.stream("GET", VMS, [("Cookie", "theme=dark; a=b"), ("Cookie", good)]) as answer:
        assert answer.status == 200, "others may have cookies here, too"
    reply = await ann.call("GET", VMS, Cookie="theme=dark")
    assert (reply.status, "Set-Cookie" in reply.headers) == (401, False)


async def test_an_api_token_in_the_cookie_is_no_browsers_session(api: Api) -> None:
    ann = await browser(api)
    token = await api.user(Role.MEMBER, "acme", name="bob")
    cookie = f"{ann.morsel.key}={token}"
    assert (await ann.call("GET", PATH, Cookie=cookie)).status == 401
    assert (await signed_in(api, Cookie=cookie)).status == 201
    assert (await api.call("GET", "/v1/sessions", token=token)).status == 200, "signing in ends sessions only"


async def test_who_has_no_cookie_is_told_nothing_and_who_has_a_worthless_one_that_it_is(api: Api) -> None:
    """A browser calls every 401 an error, and a first visit is none."""
    for headers in ({}, {"Cookie": "theme=dark"}, {"Sec_Fetch_Site": "same-origin"}):
        reply = await api.call("GET", PATH, token=None, **headers)
        assert (reply.status, reply.body, "Set-Cookie" in reply.headers) == (204, b"", False)
    name = f"hostler_{api.port}"
    for value in ("", "x", "hst_" + "x" * 43):
        reply = await api.call("GET", PATH, token=None, Cookie=f"{name}={value}")
        assert problem(reply) == (401, "unauthenticated")
        assert forgets(reply, name)


async def test_signing_in_again_ends_the_session_that_is_replaced_and_no_other(api: Api) -> None:
    await api.user(Role.MEMBER, "acme", name="bob")
    first, other = await browser(api), await browser(api)
    assert (await signed_in(api, {"name": "bob", "password": "wrong"}, Cookie=first.cookie)).status == 401
    assert (await first.call("GET", PATH)).status == 200, "nothing took its place"
    bob = await signed_in(api, {"name": "bob", "password": "password"}, Cookie=first.cookie)
    assert (bob.status, bob.json["user"]["name"]) == (201, "bob")
    assert problem(await first.call("GET", PATH)) == (401, "unauthenticated")
    assert (await other.call("GET", PATH)).status == 200
    last = (await api.call("GET", "/v1/audit")).json["items"][-1]
    assert (last["who"], last["verb"]) == ("ann", "session.end")
    for junk in (first.cookie, f"{other.morsel.key}=x", f"{other.cookie}; {other.cookie}", "=;;"):
        assert (await signed_in(api, Cookie=junk)).status == 201, junk
    assert (await other.call("GET", PATH)).status == 200


# What is told of it


async def test_signing_in_and_out_is_audited_and_no_secret_is_logged(api: Api) -> None:
    log = io.StringIO()
    configure(stream=log, level="debug")
    issued = (await api.services.users.issue(Request(HOSTLER), "ann", TokenCreate())).value
    ticket = (await api.call("POST", "/v1/sessions/tickets", token=issued.token)).json["ticket"]
    sessions = [await browser(api, body) for body in (None, {"token": issued.token}, {"ticket": ticket})]
    await signed_in(api, {"name": "ann", "password": "wrong-secret"})
    await signed_in(api, {"token": "hst_wrong-secret"})
    await sessions[0].call("POST", VMS, json=VM_BODY, Hostler_Csrf="wrong-secret")
    assert (await sessions[0].call("DELETE", "/v1/sessions")).status == 200
    written = [(line["who"], line["verb"]) for line in (await api.call("GET", "/v1/audit")).json["items"]]
    assert written.count(("ann", "session.begin")) == 3
    assert written.count(("ann", "session.end")) == 1
    assert ("ann", "ticket.web") in written
    text = log.getvalue()
    assert PATH in text
    secrets = [issued.token, ticket, "wrong-secret", '"password"']
    for each in sessions:
        secrets += [each.morsel.value, each.csrf]
    assert not [secret for secret in secrets if secret in text]
    store = b"".join(item.value for item in (await api.store.range("/")).items)
    assert not [secret for secret in secrets[:2] + secrets[4:] if secret.encode() in store]


async def test_a_name_that_is_a_script_comes_as_json_that_no_browser_runs(api: Api) -> None:
    evil = "<script>alert(1)</script>"
    await api.services.users.update(Request(HOSTLER), "ann", UserUpdate(full_name=evil))
    ann = await browser(api)
    for reply in (ann.reply, await ann.call("GET", PATH), await ann.call("GET", "/v1/users/ann")):
        user = reply.json.get("user", reply.json)
        assert user["full_name"] == evil
        assert reply.headers["Content-Type"] == "application/json"
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        assert reply.headers["Cross-Origin-Resource-Policy"] == "same-origin"


# Events


async def test_the_page_says_how_often_the_events_show_life(api: Api) -> None:
    ann = await browser(api)
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with api.stream("GET", "/v1/events?beat=1&kinds=node", [("Cookie", ann.cookie)]) as events:
        async with asyncio.timeout(60):
            while b": alive" not in await events.content.readline():
                pass
        assert 0.5 < loop.time() - began < 12, "the plan says 15 s"
    for bad in ("0", "61", "1.5", "x", "-1", ""):
        assert (await ann.call("GET", f"/v1/events?beat={bad}")).status == 400, bad

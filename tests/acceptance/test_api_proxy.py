"""A server behind a proxy that ends TLS: the cookie, the audit and the count of guesses are the caller's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from http.cookies import SimpleCookie

import pytest
from api_server import Api, Reply, serving

from hostler.entry.server.services import ServerConfig
from hostler.model.access import Role

PATH = "/v1/sessions/browser"


@pytest.fixture(params=[True, False], ids=["trusted", "untrusted"])
async def behind(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Api, bool]]:
    """A server, and whether it trusts who calls it here."""
    trusted = ("127.0.0.0/8",) if request.param else ("192.0.2.1/32",)
    async with serving(plan=ServerConfig(trusted_proxies=trusted, open_metrics=None)) as api:
        await api.user(Role.MEMBER, "acme", name="ann")
        yield api, request.param


async def signed_in(api: Api, password: str = "password", **headers: str) -> Reply:
    body = {"name": "ann", "password": password}
    return await api.call("POST", PATH, token=None, json=body, **headers)


async def test_the_cookie_of_who_came_by_https_is_secure(behind: tuple[Api, bool]) -> None:
    api, trusted = behind
    reply = await signed_in(api, Host="hostler.example", X_Forwarded_Proto="https", X_Forwarded_For="198.51.100.7")
    assert reply.status == 201
    (morsel,) = SimpleCookie(reply.headers["Set-Cookie"]).values()
    assert (bool(morsel["secure"]), morsel.key) == (trusted, "__Host-hostler_443" if trusted else "hostler_80")
    shown = {"Host": "hostler.example", "Cookie": f"{morsel.key}={morsel.value}"}
    again = await api.call("GET", PATH, token=None, X_Forwarded_Proto="https", **shown)
    assert again.status == 200
    assert again.json["csrf"] == reply.json["csrf"]
    plain = await api.call("GET", PATH, token=None, **shown)
    assert plain.status == (204 if trusted else 200), "by http it is no cookie of this server"
    lines = (await api.call("GET", "/v1/audit?verb=session.begin")).json["items"]
    sources = {line["source"] for line in lines if line["verb"] == "session.begin"}
    assert sources == {"198.51.100.7" if trusted else "127.0.0.1"}


@pytest.mark.parametrize(
    ("host", "plain"), [("hostler.example", "hostler_80"), ("hostler.example:8443", "hostler_8443")]
)
async def test_a_session_from_before_the_proxy_was_trusted_is_replaced_and_its_cookie_forgotten(
    behind: tuple[Api, bool], host: str, plain: str
) -> None:
    api, trusted = behind
    before = await signed_in(api, Host=host)
    (morsel,) = SimpleCookie(before.headers["Set-Cookie"]).values()
    assert morsel.key == plain
    cookie = f"{plain}={morsel.value}"
    shown = {"Authorization": f"Bearer {morsel.value}"}
    assert (await api.call("GET", "/v1/vms", token=None, **shown)).status == 200
    now = await signed_in(api, Host=host, Cookie=cookie, X_Forwarded_Proto="https")
    assert (await api.call("GET", "/v1/vms", token=None, **shown)).status == 401, "nobody could end it any more"
    names = [name for text in now.headers.getall("Set-Cookie") for name in SimpleCookie(text)]
    assert names == ([f"__Host-hostler_{host.partition(':')[2] or 443}", plain] if trusted else [plain])
    assert ("Max-Age=0" in now.headers.getall("Set-Cookie")[-1]) is trusted
    worthless = f"{names[0]}=x; {cookie}" if trusted else f"{plain}=x"
    told = await api.call("GET", PATH, token=None, Host=host, Cookie=worthless, X_Forwarded_Proto="https")
    assert told.status == 401
    assert [text.partition("=;")[0] for text in told.headers.getall("Set-Cookie")] == names


async def test_guessing_is_counted_by_the_callers_own_address(behind: tuple[Api, bool]) -> None:
    api, trusted = behind
    bad = {"Authorization": "Bearer hst_" + "x" * 43}
    for _ in range(30):
        reply = await api.call("GET", "/v1/vms", token=None, X_Forwarded_For="6.6.6.6, 198.51.100.7", **bad)
    assert reply.status == 429
    other = await api.call("GET", "/v1/vms", token=None, X_Forwarded_For="198.51.100.7, 198.51.100.8", **bad)
    assert other.status == (401 if trusted else 429)


@pytest.mark.parametrize("header", ["X_Forwarded_For", "X_Forwarded_Proto", "Forwarded"])
async def test_who_comes_through_a_proxy_here_is_not_nearby(behind: tuple[Api, bool], header: str) -> None:
    api, _ = behind
    assert (await api.call("GET", "/metrics", token=None)).status == 200
    assert (await api.call("GET", "/metrics", token=None, **{header: "127.0.0.1"})).status == 401

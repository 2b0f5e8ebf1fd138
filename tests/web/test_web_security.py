"""What keeps other pages, and text that wants to be code, from doing anything with somebody's session."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web
from harness import pace
from playwright.async_api import Page
from pytest_asyncio import fixture
from up_process import until
from web_browser import Trouble
from web_expect import expect
from web_plane import Plane
from web_type import Check, Enter

BODY = {"name": "one", "spec": {"cpus": 1, "memory_mib": 64}}
VMS = "/v1/orgs/acme/projects/web/vms"


async def test_a_script_that_got_into_the_page_does_not_run(
    page: Page, cheap_plane: Plane, enter: Enter, expect_trouble: Callable[..., None]
) -> None:
    """By the policy alone: these get in by force."""
    expect_trouble("CSP: script-src-elem forbids inline", "CSP: script-src-attr forbids inline", "CSP: img-src forbids")
    expect_trouble("CSP: connect-src forbids", "CSP: style-src-attr forbids", "CSP: script-src forbids eval")
    expect_trouble("CSP: base-uri", "CSP: form-action", "CSP: frame-src")
    expect_trouble("Refused|[Vv]iolates|blocked", must=False)  # Chromium's own words for the same
    await enter(page, cheap_plane)
    await page.evaluate("""async () => {
      const add = (name, more) => document.body.append(Object.assign(document.createElement(name), more));
      add("script", { textContent: "window.hacked = 1" });
      document.body.insertAdjacentHTML("beforeend", '<b id="trap" onclick="window.hacked = 2" style="top: 0">b</b>');
      document.getElementById("trap").click();
      add("img", { src: "http://127.0.0.1:1/stolen" });
      add("iframe", { src: "http://127.0.0.1:1/" });
      add("base", { href: "http://127.0.0.1:1/" });
      const form = document.createElement("form");
      form.action = "http://127.0.0.1:1/";
      document.body.append(form);
      form.submit();
      await fetch("http://127.0.0.1:1/stolen").catch(() => 0);
      setTimeout("window.hacked = 3", 0);
      await new Promise((done) => setTimeout(done, 100));
    }""")
    assert await page.evaluate("window.hacked") is None


async def test_the_session_is_nowhere_that_a_script_or_a_neighbour_could_find_it(
    page: Page, cheap_plane: Plane
) -> None:
    bodies: list[str] = []

    async def keep(response: Any) -> None:
        if "/v1/sessions" in response.url:
            bodies.append(await response.text())

    page.on("response", keep)
    await page.goto(cheap_plane.url + "/")
    await page.get_by_role("tab", name="Token").click()
    await page.get_by_role("textbox", name="Token").fill(cheap_plane.admin)
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("navigation", name="Pages")).to_be_visible()
    (cookie,) = await page.context.cookies()
    assert re.fullmatch(r"hostler_[0-9]+", cookie["name"])
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/")
    assert cookie["domain"] == "127.0.0.1"  # and no dot before it: of this host alone
    secrets = [cheap_plane.admin, cookie["value"]]
    await until(lambda: len(bodies) >= 2, pace.patience(5), lambda: f"both answers: {bodies}")
    assert len(bodies) == 2, "who is it, and the sign-in"
    held = await page.evaluate("""async () => JSON.stringify([
      document.cookie, document.documentElement.outerHTML, location.href, document.referrer, history.state,
      { ...localStorage }, { ...sessionStorage }, await indexedDB.databases(), window.name,
      [...document.querySelectorAll("input")].map((input) => input.value),
      performance.getEntries().map((entry) => entry.name),
    ])""")
    assert await page.evaluate("document.cookie") == ""
    assert await page.evaluate("caches.keys().then(found => found.length)") == 0
    for secret in secrets:
        assert secret not in held
        assert secret not in "".join(bodies)
    assert "hst_" not in held


async def test_a_link_does_not_swap_somebodys_session_unasked(
    page: Page, cheap_plane: Plane, enter: Enter, axe: Check
) -> None:
    """Or who sent it would be shown what is done in their account by somebody who does not know."""
    await cheap_plane.user("mallory", full_name="admin")
    mallory = await cheap_plane.token("mallory")
    ticket = (await cheap_plane.call("POST", "/v1/sessions/tickets", token=mallory))["ticket"]
    await enter(page, cheap_plane)
    (before,) = await page.context.cookies()
    question = page.get_by_role("heading", name="You are signed in as admin", exact=True)
    for answer in ("Stay", "Go on"):
        await page.goto(f"{cheap_plane.url}/#/sign-in/{ticket}")
        await expect(question).to_be_visible()
        assert await page.context.cookies() == [before]
        await axe(page)
        await page.get_by_role("button", name=answer, exact=True).click()
        await expect(page.get_by_role("navigation", name="Pages")).to_be_visible()
        assert "hstt_" not in page.url
        if answer == "Stay":
            await expect(page.get_by_role("link", name="admin", exact=True)).to_be_visible()
            assert await page.context.cookies() == [before]
    await expect(page.get_by_role("status").filter(has_text="Signed in as admin (mallory)")).to_be_visible()
    await expect(page.get_by_role("link", name="admin (mallory)", exact=True)).to_be_visible()
    old = await cheap_plane.ask("GET", "/v1/sessions", token=before["value"])
    assert old.status == 401, "the session that was replaced has ended"


# A page of another server


@fixture(loop_scope="session")
async def stranger(trouble: Trouble) -> AsyncIterator[str]:
    """The address of another server on this machine, to which the browser shows the same cookies."""

    async def empty(request: web.Request) -> web.Response:
        return web.Response(text="<!doctype html><title>stranger</title><body>", content_type="text/html")

    app = web.Application()
    app.router.add_get("/", empty)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    trouble.own |= {f"127.0.0.1:{port}", f"localhost:{port}"}
    # What is refused is refused by the browser or by the server, and the console says so.
    trouble.expect("CORS", "Failed to load resource", "net::ERR", "WebSocket", "frame", must=False)
    yield f"http://127.0.0.1:{port}/"
    await runner.cleanup()


@fixture(loop_scope="session", params=["127.0.0.1", "localhost"], ids=["neighbour", "foreigner"])
async def intruder(request: pytest.FixtureRequest, page: Page, cheap_plane: Plane, stranger: str, enter: Enter) -> Page:
    """Another server's page in the browser of an administrator who is signed in. A neighbour differs in the port alone:
    the browser takes it for the same site, and sends the cookie along."""
    await enter(page, cheap_plane)
    await page.goto(stranger.replace("127.0.0.1", request.param))
    return page


async def machines(plane: Plane) -> int:
    return len((await plane.call("GET", VMS))["items"])


async def test_another_page_cannot_write(intruder: Page, cheap_plane: Plane) -> None:
    told = await intruder.evaluate(
        """async ([url, body]) => {
          const tell = (asked) => asked.then((answer) => `${answer.type} ${answer.status}`, () => "refused");
          const json = { "Content-Type": "application/json" }, shown = { ...json, "Hostler-Csrf": "0" };
          return [
            await tell(fetch(url, { method: "POST", mode: "no-cors", credentials: "include", body })),
            await tell(fetch(url, { method: "POST", credentials: "include", body })),
            await tell(fetch(url, { method: "POST", credentials: "include", headers: json, body })),
            await tell(fetch(url, { method: "POST", credentials: "include", headers: shown, body })),
            await tell(fetch(url, { method: "DELETE", credentials: "include" })),
            String(navigator.sendBeacon(url, new Blob([body], { type: "text/plain" }))),
          ];
        }""",
        [cheap_plane.url + VMS, json.dumps(BODY)],
    )
    assert {*told[:-1]} <= {"opaque 0", "refused"}, "nothing that it can read"
    is_neighbour = "//127.0.0.1" in intruder.url
    await intruder.evaluate(
        """url => {
          const form = document.createElement("form");
          Object.assign(form, { method: "post", action: url, enctype: "text/plain" });
          form.append(Object.assign(document.createElement("input"), {
            name: '{"name": "one", "spec": {"cpus": 1, "memory_mib": 64}, "labels": {"a": "', value: '"}}' }));
          document.body.append(form);
          form.submit();
        }""",
        cheap_plane.url + VMS,
    )
    await intruder.wait_for_url(cheap_plane.url + VMS)
    answer = await intruder.inner_text("body")
    assert ("csrf" if is_neighbour else "unauthenticated") in answer, "the cookie came along from a neighbour only"
    assert await machines(cheap_plane) == 0


async def test_another_page_cannot_sign_its_own_account_in(intruder: Page, cheap_plane: Plane) -> None:
    """Or else somebody would work in the account of an attacker without seeing it."""
    await cheap_plane.user("mallory")
    before = await intruder.context.cookies()
    await intruder.evaluate(
        "([url, body]) => fetch(url, { method: 'POST', mode: 'no-cors', credentials: 'include', body }).catch(() => 0)",
        [cheap_plane.url + "/v1/sessions/browser", '{"name": "mallory", "password": "correct horse"}'],
    )
    assert await intruder.context.cookies() == before
    made = (await cheap_plane.call("GET", "/v1/users/mallory/tokens"))["items"]
    assert made == [], "a session, even if this browser takes no cookie of it"


async def test_another_page_cannot_read_listen_or_open_a_door(
    intruder: Page, cheap_plane: Plane, trouble: Trouble
) -> None:
    made = await cheap_plane.call("POST", VMS, BODY)
    ticket = (await cheap_plane.call("POST", f"{VMS}/{made['id']}/tickets", {"door": "console"}))["ticket"]
    told = await intruder.evaluate(
        """async ([url, vm, ticket]) => {
          const read = (path) => fetch(url + path, { credentials: "include" }).then((it) => it.text(), () => "refused");
          const stream = new EventSource(url + "/v1/events?after=1.0", { withCredentials: true });
          const heard = new Promise((done) => {
            stream.onmessage = () => done("heard");
            stream.onopen = () => done("open");
            stream.onerror = () => done("refused");
          });
          const door = (path) => new Promise((done) => {
            const socket = new WebSocket(url.replace("http", "ws") + path);
            socket.onopen = () => done("open");
            socket.onclose = () => done("refused");
          });
          const found = [await read("/v1/sessions/browser"), await read("/v1/users"), await read("/"), await heard,
            await door(`${vm}/console`), await door(`${vm}/shell`), await door(`${vm}/console?ticket=${ticket}`)];
          stream.close();
          return found;
        }""",
        [cheap_plane.url, f"{VMS}/{made['id']}", ticket],
    )
    assert told == ["refused"] * 7
    # Nothing is behind these doors, so it counts why they stay shut: a cookie opens none, and a ticket none from there.
    shut = [one for one in trouble.seen if "WebSocket" in one]
    for why, one in zip(("Authentication failed", "Authentication failed", "code: 403"), shut, strict=True):
        assert why in one


async def test_another_page_cannot_frame_or_hold_ours(intruder: Page, cheap_plane: Plane) -> None:
    await intruder.evaluate(
        """url => new Promise((done) => {
          const frame = Object.assign(document.createElement("iframe"), { src: url, onload: done, onerror: done });
          document.body.append(frame);
        })""",
        cheap_plane.url + "/",
    )
    framed = [frame.url for frame in intruder.frames[1:]]
    assert all(not url.startswith(cheap_plane.url) for url in framed), framed
    async with intruder.context.expect_page() as opened:
        await intruder.evaluate("url => { window.held = open(url) }", cheap_plane.url + "/")
    ours = await opened.value
    await expect(ours).to_have_title(re.compile("Hostler"))
    assert await ours.evaluate("window.opener") is None
    assert await intruder.evaluate("window.held.closed") is True, "it holds nothing of ours"

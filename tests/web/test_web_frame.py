"""The frame of the page: signing in and out, where one can go, and what every page must hold to."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from harness import pace
from playwright.async_api import Page, Route
from pytest_asyncio import fixture
from up_process import until, well
from web_expect import expect
from web_plane import PASSWORD, Plane, Planes
from web_type import NARROW, WIDE, Check, Enter, NewPage, Shot, SignIn

PAGES = ["overview", "racks", "vms", "labs", "deployments", "events", "audit", "users", "account"]
NAMES = {"vms": "Machines", "account": "Your account"}
HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1'
"""A name: no "/" may be in one. What is no name may have one, see below."""
HOSTILE_TEXT = HOSTILE + "</script>"
LABS = '[default]\nlife = "10m"\n[labs.5]\ntitle = "Files <b>and</b> folders"\n'


def heading(page: Page) -> Any:
    return page.get_by_role("heading", level=1)


async def settled(page: Page) -> None:
    """The page has what it shows."""
    await expect(heading(page)).to_be_visible()
    await expect(page.locator(".busy")).to_have_count(0)


async def see(page: Page, name: str) -> None:
    """Go to a page of the navigation's address, and wait until it stands."""
    await page.evaluate("place => { location.hash = place }", f"#/{name}")
    await expect(page).to_have_title(f"{NAMES.get(name, name.capitalize())} · Hostler")
    await settled(page)


# Signing in and out


async def test_a_user_signs_in_by_password_and_out_again(page: Page, cheap_plane: Plane, sign_in: SignIn) -> None:
    await cheap_plane.user("ann", "member", "acme", full_name="Ann Onym")
    await sign_in(page, cheap_plane, "ann")
    await expect(page.get_by_role("link", name="Ann Onym (ann)", exact=True)).to_be_visible()
    await page.reload()
    await expect(page.get_by_role("link", name="Ann Onym")).to_be_visible()
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_role("heading", name="Sign in to Hostler")).to_be_visible()
    await expect(page.get_by_role("textbox", name="Name")).to_be_focused()
    assert await page.context.cookies() == []
    await page.reload()
    await expect(page.get_by_role("heading", name="Sign in to Hostler")).to_be_visible()
    await expect(page.get_by_text("has ended")).to_have_count(0)


async def test_a_wrong_password_is_said_and_another_try_is_possible(
    page: Page, cheap_plane: Plane, sign_in: SignIn, expect_trouble: Callable[..., None]
) -> None:
    expect_trouble("401")
    await cheap_plane.user("ann")
    await page.goto(cheap_plane.url + "/")
    await page.get_by_role("textbox", name="Name").fill("ann")
    await page.get_by_role("textbox", name="Password").fill("wrong")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("alert")).to_contain_text(re.compile(r"^Name or password is wrong\."))
    await sign_in(page, cheap_plane, "ann")
    await expect(page.get_by_role("alert")).to_have_count(0)


async def test_a_token_signs_in_and_is_not_kept(page: Page, cheap_plane: Plane) -> None:
    await page.goto(cheap_plane.url + "/")
    await page.get_by_role("tab", name="Token").click()
    await page.get_by_role("textbox", name="Token").fill(f" {cheap_plane.admin}\n")
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("link", name="admin")).to_be_visible()
    (cookie,) = await page.context.cookies()
    assert cheap_plane.admin not in str(cookie)


async def test_the_link_of_hostler_web_signs_in_once(
    page: Page, new_page: NewPage, cheap_plane: Plane, expect_trouble: Callable[..., None]
) -> None:
    expect_trouble("401")
    link = (await well("web", "--print", **cheap_plane.environ)).out.strip()
    await page.goto(link)
    await expect(page.get_by_role("status").filter(has_text="Signed in as admin")).to_be_visible()
    await expect(page.get_by_role("link", name="admin")).to_be_visible()
    assert "hstt_" not in page.url
    other = await new_page()
    await other.goto(link)
    await expect(other.get_by_role("alert")).to_be_visible()
    await expect(other.get_by_role("textbox", name="Name")).to_be_visible()
    assert "hstt_" not in other.url


async def test_who_was_revoked_is_told_so_and_is_led_back(
    page: Page, cheap_plane: Plane, enter: Enter, sign_in: SignIn, expect_trouble: Callable[..., None]
) -> None:
    expect_trouble("401", must=False)
    await cheap_plane.user("ann", "member", "acme")
    await enter(page, cheap_plane, "ann", "#/vms?q=web")
    for token in (await cheap_plane.call("GET", "/v1/users/ann/tokens"))["items"]:
        await cheap_plane.call("DELETE", f"/v1/users/ann/tokens/{token['id']}")
    await expect(page.get_by_text("Your session has ended")).to_be_visible()
    await sign_in(page, cheap_plane, "ann")
    await expect(page.get_by_text("Your session has ended")).to_have_count(0)
    assert page.url.endswith("#/vms?q=web")
    await expect(page).to_have_title("Machines · Hostler")


async def test_a_page_that_was_opened_as_another_says_who_one_is_now_and_does_nothing(
    page: Page, cheap_plane: Plane, enter: Enter, expect_trouble: Callable[..., None]
) -> None:
    expect_trouble("403")
    expect_trouble("401", must=False)  # what was under way when a session ended
    await cheap_plane.user("ann", "member", "acme")
    await enter(page, cheap_plane, at="#/users/ann")
    # The page has all that it asked for: an answer that comes after the swap would tell it, before anything is done.
    await settled(page)
    await expect(page.get_by_text("Live", exact=True)).to_be_visible()
    await page.get_by_role("button", name="Disable").click()
    disable = page.get_by_role("dialog").get_by_role("button", name="Disable")
    await expect(disable).to_be_enabled()
    shown = {"name": "ann", "password": PASSWORD}
    assert (await page.context.request.post(f"{cheap_plane.url}/v1/sessions/browser", data=shown)).ok
    await disable.click()
    await expect(page.get_by_text("This page was opened as admin, and you are signed in as ann")).to_be_visible()
    await expect(page.locator(".shell-me")).to_have_text("ann")
    await expect(page.get_by_text("Accounts are for those who have the right")).to_be_visible()
    assert (await cheap_plane.call("GET", "/v1/users/ann"))["enabled"]
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_role("heading", name="Sign in to Hostler")).to_be_visible()
    await page.reload()
    await expect(page.get_by_role("heading", name="Sign in to Hostler")).to_be_visible()


async def test_who_signs_in_or_out_does_so_in_every_tab(
    page: Page, cheap_plane: Plane, enter: Enter, sign_in: SignIn, expect_trouble: Callable[..., None]
) -> None:
    expect_trouble("401", must=False)  # what was under way when the session ended
    await cheap_plane.user("ann", "member", "acme")
    await enter(page, cheap_plane)
    other = await page.context.new_page()
    await other.goto(cheap_plane.url + "/#/account")
    await other.get_by_role("banner").get_by_role("button", name="Sign out").click()
    await expect(page.get_by_text("You signed out in another tab")).to_be_visible()
    await sign_in(other, cheap_plane, "ann")
    for tab in (page, other):
        await expect(tab.locator(".shell-me")).to_have_text("ann")
        await expect(tab.get_by_role("link", name="Users")).to_have_count(0)


async def test_a_deep_link_is_kept_over_signing_in(page: Page, cheap_plane: Plane, sign_in: SignIn) -> None:
    await cheap_plane.user("ann")
    await page.goto(cheap_plane.url + "/#/events?kinds=vm")
    await sign_in(page, cheap_plane, "ann")
    await expect(page).to_have_title("Events · Hostler")
    assert page.url.endswith("#/events?kinds=vm")


# Where one can go


async def test_only_what_ones_rights_allow_is_offered(new_page: NewPage, cheap_plane: Plane, enter: Enter) -> None:
    await cheap_plane.user("ann", "viewer", "acme")
    offered = []
    for name in ("ann", "admin"):
        page = await new_page()
        await enter(page, cheap_plane, name)
        offered.append(await page.get_by_role("navigation", name="Pages").get_by_role("link").all_inner_texts())
    for_all = ["Overview", "Racks", "Machines", "Labs", "Deployments", "Events"]
    assert offered == [for_all, [*for_all, "Audit", "Users"]]


async def test_a_page_that_is_none_says_so(page: Page, cheap_plane: Plane, enter: Enter) -> None:
    await enter(page, cheap_plane, at="#/%3Cb%3Enowhere/at/all")
    await expect(heading(page)).to_have_text("There is no page “<b>nowhere”")
    await expect(page).to_have_title("No such page · Hostler")
    await page.get_by_role("link", name="Go to the overview").click()
    await expect(page).to_have_title("Overview · Hostler")
    await page.go_back()
    await expect(page).to_have_title("No such page · Hostler")


async def test_who_sees_labs_alone_lands_there_and_a_student_has_no_other_page(
    new_page: NewPage, cheap_plane: Plane, enter: Enter
) -> None:
    await cheap_plane.user("tom", "member", "labs")
    await cheap_plane.user("ada", "viewer", "labs/ada")
    for name, racks in (("tom", "Racks"), ("ada", "Not offered")):
        page = await new_page()
        await enter(page, cheap_plane, name, at="")
        await expect(page).to_have_title("Labs · Hostler")
        await page.evaluate("location.hash = '#/racks'")
        await expect(page).to_have_title(f"{racks} · Hostler")
    await expect(heading(page)).to_have_text("Racks is not offered to you")
    await page.get_by_role("link", name="Go to your lab").click()
    await expect(page).to_have_title("Labs · Hostler")


async def test_at_360_pixels_the_frame_leaves_room_for_the_page(
    new_page: NewPage, cheap_plane: Plane, enter: Enter, narrow: Check
) -> None:
    await cheap_plane.user("ann", "admin", "*", full_name="Ann of the very long name")
    page = await new_page(NARROW)
    await enter(page, cheap_plane, "ann", at="#/events?view=why")
    top = await page.evaluate("document.querySelector('main').getBoundingClientRect().top")
    assert top <= 100, "header and navigation take too much"
    for role, name in (("link", "Events"), ("tab", "Explain"), ("button", "Sign out")):
        await expect(page.get_by_role(role, name=name, exact=True)).to_be_in_viewport(ratio=0.9)
    await narrow(page)


async def test_the_theme_is_kept_and_is_the_systems_until_chosen(page: Page, cheap_plane: Plane, enter: Enter) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    await enter(page, cheap_plane)
    light = await page.evaluate(ground)
    await page.emulate_media(color_scheme="dark")
    dark = await page.evaluate(ground)
    assert light != dark
    await page.get_by_role("combobox", name="Colours").select_option("Light")
    assert await page.evaluate(ground) == light
    await page.reload()
    await expect(page.get_by_role("combobox", name="Colours")).to_have_value("light")
    assert await page.evaluate(ground) == light
    await page.get_by_role("combobox", name="Colours").select_option("System default")
    assert await page.evaluate(ground) == dark


# By keyboard


async def test_everything_is_reached_by_keyboard(page: Page, cheap_plane: Plane, enter: Enter) -> None:
    await enter(page, cheap_plane)
    await settled(page)

    async def focused() -> str:
        return str(await page.evaluate("document.activeElement.ariaLabel || document.activeElement.innerText"))

    await page.keyboard.press("Tab")
    assert await focused() == "Skip to the page"
    await expect(page.get_by_role("link", name="Skip to the page")).to_be_in_viewport()
    await page.keyboard.press("Enter")
    await expect(page.locator("#main")).to_be_focused()
    assert page.url.endswith("#/overview")
    await page.reload()
    await settled(page)
    order = []
    for _ in range(7):
        await page.keyboard.press("Tab")
        order.append(await focused())
        outline = await page.evaluate("getComputedStyle(document.activeElement).outlineWidth")
        assert float(outline.removesuffix("px")) >= 2, f"one does not see that {order[-1]} has the focus"
    assert [" ".join(one.split()) for one in order] == [
        *("Skip to the page", "Hostler", "Colours", "admin", "Sign out", "Overview", "Racks")
    ]
    await page.keyboard.press("Enter")
    await expect(page).to_have_title("Racks · Hostler")
    await expect(page.locator("#main")).to_be_focused()  # the next Tab leads into the page


async def test_what_goes_away_with_the_focus_leaves_it_to_a_heading(
    page: Page, cheap_plane: Plane, enter: Enter
) -> None:
    await cheap_plane.user("bob")
    await enter(page, cheap_plane, at="#/users")
    await page.get_by_role("link", name="bob", exact=True).focus()
    await page.keyboard.press("Enter")
    await expect(heading(page)).to_contain_text("bob")
    await expect(heading(page)).to_be_focused()
    await page.get_by_role("button", name="Issue a token").click()
    await page.keyboard.press("Enter")
    kept = page.get_by_role("dialog", name="The new token of bob")
    await expect(kept).to_be_visible()
    await expect(kept.get_by_role("heading")).to_be_focused()
    for _ in range(3):
        await page.keyboard.press("Escape")
    await expect(kept).to_be_visible()
    await kept.get_by_role("button", name="I have kept it").click()
    await expect(kept).to_have_count(0)
    await page.get_by_role("button", name=re.compile("^Revoke")).click()
    await page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await expect(page.get_by_role("heading", name="Tokens and sessions")).to_be_focused()


async def test_dialogs_keep_the_focus_and_give_it_back(page: Page, cheap_plane: Plane, enter: Enter) -> None:
    await cheap_plane.user("bob")
    await enter(page, cheap_plane, at="#/users/bob")
    inside = "document.activeElement === document.body || document.activeElement.closest('dialog') !== null"
    for name in ("Change", "Disable", "Delete"):
        button = page.get_by_role("main").get_by_role("button", name=name, exact=True)
        await button.focus()
        await page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog")
        await expect(dialog).to_be_visible()
        await expect(page.locator("dialog:focus-within"), f"{name}: not in the dialog").to_have_count(1)
        for _ in range(8):
            await page.keyboard.press("Tab")
            assert await page.evaluate(inside), f"{name}: the focus left the dialog"
        await page.keyboard.press("Escape")
        await expect(dialog).to_have_count(0)
        await expect(button).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("button", name="Delete", exact=True).last).to_be_disabled()
    await page.keyboard.type("bob")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("status").filter(has_text="The account bob is gone")).to_be_visible()
    assert (await cheap_plane.ask("GET", "/v1/users/bob")).status == 404


async def test_where_the_browser_gives_no_clipboard_the_text_is_selected(page: Page, cheap_plane: Plane) -> None:
    """As on every page that came without TLS from another machine."""
    await page.add_init_script("Object.defineProperty(Navigator.prototype, 'clipboard', { value: undefined })")
    await page.context.request.post(f"{cheap_plane.url}/v1/sessions/browser", data={"token": cheap_plane.admin})
    await page.goto(cheap_plane.url + "/#/vms")
    await page.get_by_role("button", name="Copy: hostler vm create web --wait").click()
    await expect(page.get_by_role("status").filter(has_text="copy it with Ctrl+C")).to_be_visible()
    assert await page.evaluate("String(getSelection())") == "hostler vm create web --wait"


# What is lost on the way


async def test_a_write_whose_answer_is_lost_is_repeated_and_done_once(
    page: Page, cheap_plane: Plane, enter: Enter, expect_trouble: Callable[..., None]
) -> None:
    expect_trouble("ERR_FAILED", "503")
    await enter(page, cheap_plane, at="#/account")
    keys: list[str] = []

    async def lossy(route: Route) -> None:
        if route.request.method != "PATCH":
            await route.continue_()
            return
        keys.append(route.request.headers["idempotency-key"])
        answer = await route.fetch()
        if len(keys) == 1:
            await route.abort()
        elif len(keys) == 3:
            await route.fulfill(status=503, json={"type": "about:hostler/uncertain"})
        else:
            await route.fulfill(response=answer)

    await page.route("**/v1/users/admin", lossy)
    for name in ("Ada", "Ada L."):
        await page.get_by_role("textbox", name="Full name").fill(name)
        await page.get_by_role("button", name="Save").click()
        await expect(page.get_by_role("link", name=f"{name} (admin)")).to_be_visible()
    assert len(keys) == 4
    assert keys == [keys[0]] * 2 + [keys[2]] * 2
    assert keys[0] != keys[2]
    written = [line["verb"] for line in (await cheap_plane.call("GET", "/v1/audit"))["items"]]
    assert written.count("user.update") == 2


# Live, or not


async def test_a_server_that_hangs_or_dies_is_seen_and_its_return_too(
    page: Page, plane: Plane, enter: Enter, axe: Check, expect_trouble: Callable[..., None]
) -> None:
    expect_trouble("ERR_", "50[0-9]", must=False)
    sign, banner = page.locator(".shell-live"), page.get_by_role("alert")
    await page.clock.install()
    await enter(page, plane)
    await expect(sign).to_have_text("Live")
    await expect(banner).to_have_count(0)
    plane.suspend()
    await page.clock.fast_forward(13_000)  # nothing comes for so long
    await expect(sign).to_have_text("Not live")
    await expect(banner).to_contain_text("What you see may be old")
    plane.proceed()
    await page.clock.fast_forward(13_000)
    await expect(sign).to_have_text("Live")
    await expect(banner).to_have_count(0)
    plane.process.kill()
    await expect(sign).to_have_text("Not live")
    await axe(page)
    await plane.restart()
    await page.clock.fast_forward(10_000)
    await expect(sign).to_have_text("Live")
    await expect(banner).to_have_count(0)


async def test_a_page_that_nobody_looks_at_gives_its_stream_back_and_goes_on_later(
    page: Page, cheap_plane: Plane, enter: Enter
) -> None:
    """A browser has six connections to one server for all its pages: seven with a stream each would be one too many."""
    assert cheap_plane.api is not None
    feed = cheap_plane.api.app.feed
    hidden = """now => {
      Object.defineProperty(document, "hidden", { value: now, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    sign = page.locator(".shell-live")
    await page.clock.install()
    await enter(page, cheap_plane, at="#/vms")
    await expect(page.get_by_text("There is no machine yet")).to_be_visible()
    await expect(sign).to_have_text("Live")
    await page.evaluate(hidden, True)
    await page.clock.fast_forward(61_000)
    await expect(sign).to_have_text("Ended")
    await until(lambda: feed.streams == 0, pace.patience(5), lambda: "the stream's end")
    await page.clock.fast_forward(30_000)  # it is given back, and no other is begun
    await expect(sign).to_have_text("Ended")
    assert feed.streams == 0
    body = {"name": "meanwhile", "spec": {"cpus": 1, "memory_mib": 64}}
    await cheap_plane.call("POST", "/v1/orgs/acme/projects/web/vms", body)
    await page.evaluate(hidden, False)
    await expect(sign).to_have_text("Live")
    await expect(page.get_by_role("link", name="meanwhile")).to_be_visible()


# What every page must hold to


@fixture(scope="module", loop_scope="session")
async def furnished(shared_planes: Planes) -> Plane:
    """Something on every page, with names that want to be more than names."""
    plane = await shared_planes.up(labs=LABS)
    spec = {"cpus": 1, "memory_mib": 64}
    body = {"name": HOSTILE, "spec": spec, "labels": {"app": HOSTILE_TEXT}}
    await plane.call("POST", "/v1/orgs/acme/projects/web/vms", body)
    await plane.call("POST", "/v1/orgs/acme/projects/web/vms", {"name": "db", "spec": spec})
    await plane.user(HOSTILE, "admin", "*", full_name=HOSTILE_TEXT)
    return plane


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
async def test_every_page_is_readable_by_everybody(
    furnished: Plane, new_page: NewPage, enter: Enter, axe: Check, *, narrow: Check, size: tuple[int, int]
) -> None:
    page = await new_page(size)
    await enter(page, furnished)
    for name in PAGES:
        await see(page, name)
        await expect(heading(page)).to_have_count(1)
        if size == NARROW:
            await narrow(page)
        await axe(page)


async def test_names_are_text_wherever_they_are_shown(furnished: Plane, new_page: NewPage, enter: Enter) -> None:
    page = await new_page()
    await enter(page, furnished, HOSTILE)
    await expect(page.get_by_role("link", name=HOSTILE_TEXT)).to_be_visible()
    for name in PAGES:
        await see(page, name)
        assert await page.locator("img[src=x], script:not([src])").count() == 0, name
        assert await page.evaluate("window.hacked") is None, name
        if name in ("vms", "users"):
            await expect(page.get_by_role("main").get_by_text(HOSTILE).first).to_be_visible()


async def test_the_sign_in_page_is_readable_everywhere(
    page: Page, cheap_plane: Plane, axe: Check, narrow: Check, shot: Shot
) -> None:
    await page.goto(cheap_plane.url + "/")
    await expect(page.get_by_role("heading", name="Sign in to Hostler")).to_be_visible()
    await expect(page.get_by_role("textbox", name="Name")).to_be_focused()
    await axe(page)
    await narrow(page)
    await shot(page, "sign-in")

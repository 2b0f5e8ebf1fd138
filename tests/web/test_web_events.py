"""Events and audit: followed and filtered, with what led to them, and with who did it."""

from __future__ import annotations

import re
from typing import Any

from playwright.async_api import Page
from web_expect import expect
from web_plane import Plane
from web_type import Check, Enter, Shot, SignIn

from hostler.keys.families import SLICE
from hostler.model.deployment import SliceRecord, SliceState

VMS = "/v1/orgs/acme/projects/web/vms"
SMALL = {"cpus": 1, "memory_mib": 64}


async def machine(plane: Plane, name: str, project: str = "web") -> Any:
    return await plane.call("POST", f"/v1/orgs/acme/projects/{project}/vms", {"name": name, "spec": SMALL})


async def test_events_are_followed_filtered_and_open_to_their_causes(
    page: Page, plane: Plane, enter: Enter, *, axe: Check, narrow: Check, shot: Shot
) -> None:
    await machine(plane, "before")
    await enter(page, plane, at="#/events")
    table = page.get_by_role("table", name="Events, newest first")
    before = table.get_by_role("row").filter(has_text="machine acme/web/before: running on local-")
    await expect(before.first).to_contain_text(
        re.compile(r"^\d")
    )  # from before the page was opened: when its record says
    made = await machine(plane, "www")
    await machine(plane, "app", "mobile")
    runs = table.get_by_role("row").filter(has_text=re.compile(r"machine acme/web/www: running on local-\d"))
    await expect(runs).to_have_count(1)
    await expect(table).to_contain_text("machine acme/mobile/app: running")
    await axe(page)
    await narrow(page)
    await shot(page, "events")

    await page.get_by_role("searchbox", name="Org, or org/project").fill("acme/web")
    await expect(table).not_to_contain_text("acme/mobile")
    await page.get_by_role("searchbox", name="Subject or words").fill("www: running")
    await expect(table.get_by_role("row")).to_have_count(2)  # the head is one
    await page.reload()
    await expect(page.get_by_role("searchbox", name="Subject or words")).to_have_value("www: running")
    await expect(table.get_by_role("row")).to_have_count(2)

    await runs.click()
    opened = page.get_by_role("dialog", name="What happened")
    await expect(opened).to_contain_text('"state": "running"')
    await opened.get_by_role("button", name="Why?").click()
    tree = opened.get_by_role("list", name=re.compile("Why machine"))
    await expect(tree).to_contain_text("placed on local-")
    await expect(tree).to_contain_text("admin created it")
    await axe(page)
    await expect(opened.get_by_role("link", name="Open the machine")).to_have_attribute(
        "href", f"#/vms/acme/web/{made['id']}"
    )
    await opened.get_by_role("link", name="What was decided about it").click()
    decided = page.get_by_role("list", name="What was decided, under what led to it")
    await expect(decided).to_contain_text("admin created it")
    await expect(decided.get_by_role("list").first).to_contain_text("placed on local-")
    await expect(decided).not_to_contain_text("acme/mobile")
    await axe(page)
    await narrow(page)


async def test_following_can_be_paused(page: Page, cheap_plane: Plane, enter: Enter) -> None:
    await enter(page, cheap_plane, at="#/events")
    await expect(page.get_by_role("heading", name="Nothing has happened yet")).to_be_visible()
    await machine(cheap_plane, "one")
    table = page.get_by_role("table", name="Events, newest first")
    await expect(table).to_contain_text("machine acme/web/one: power: on")
    await page.get_by_role("button", name="Pause").click()
    await machine(cheap_plane, "two")
    go_on = page.get_by_role("button", name="Continue (1 new)")
    await expect(go_on).to_be_visible()
    await expect(table).not_to_contain_text("two")
    await go_on.click()
    await expect(table.get_by_role("row").nth(1)).to_contain_text("machine acme/web/two: power: on")
    await page.get_by_role("button", name="Nodes").click()
    await expect(page.get_by_role("heading", name="None of them is like that")).to_be_visible()
    await expect(page).to_have_url(re.compile("kinds=nodes"))


async def test_what_was_heard_on_another_page_keeps_its_time(page: Page, cheap_plane: Plane, enter: Enter) -> None:
    api = cheap_plane.api
    assert api is not None
    artifact = SliceRecord(state=SliceState.ACTIVE, timestamp=0)
    where: Any = {"node": "local-1", "artifact": "org.example:greeting:1.1.0"}
    await enter(page, cheap_plane, at="#/account")
    await expect(page.locator(".shell-live")).to_have_text("Live")
    await api.store.txn([], [SLICE.put(artifact, **where)])
    await api.store.txn([], [SLICE.delete(**where)])
    await page.get_by_role("link", name="Events", exact=True).click()
    gone = page.get_by_role("row").filter(has_text="org.example:greeting 1.1.0 is gone from local-1")
    await expect(gone).to_be_visible()
    await expect(gone).not_to_contain_text("earlier")


async def test_what_nobody_knows_is_asked_in_vain_and_said(
    page: Page, cheap_plane: Plane, enter: Enter, expect_trouble: Any
) -> None:
    expect_trouble("404")
    await enter(page, cheap_plane, at="#/events?view=why")
    await page.get_by_role("searchbox", name="About").fill("node/nowhere")
    await page.get_by_role("button", name="Ask why").click()
    await expect(page.get_by_role("alert")).to_contain_text("not found, or not visible to you")


async def test_the_audit_tells_what_was_just_done(
    page: Page, cheap_plane: Plane, enter: Enter, *, axe: Check, narrow: Check, shot: Shot
) -> None:
    for number in range(105):
        await cheap_plane.call("PUT", f"/v1/orgs/old/projects/p{number}/quota", {"vms": 5})
    await enter(page, cheap_plane, at="#/audit")
    table = page.get_by_role("table", name="The audit, newest first")
    await expect(table.get_by_role("row").nth(1)).to_contain_text("signed in")
    made = await machine(cheap_plane, "www")
    await cheap_plane.call("DELETE", f"{VMS}/{made['id']}")  # which nobody does anything about here
    rows = table.get_by_role("row")
    await expect(rows.nth(1)).to_contain_text(re.compile(r"admin.*deleted.*acme/web/www.*\d+ → \d+.*127\.0\.0\.1"))
    await expect(rows.nth(2)).to_contain_text(re.compile(r"created.*new → \d+"))
    await expect(rows.nth(1).get_by_role("link", name=re.compile("^machine"))).to_have_attribute(
        "href", f"#/vms/acme/web/{made['id']}"
    )
    await narrow(page)
    await shot(page, "audit")

    await expect(table).not_to_contain_text("quota old/p0")
    await page.get_by_role("button", name="Older").click()
    await expect(table).to_contain_text("quota old/p0")
    await expect(rows.last).to_contain_text("made the first account")
    await expect(page.get_by_role("button", name="Older")).to_have_count(0)

    await page.get_by_role("combobox", name="What").select_option("vm.")
    await expect(rows).to_have_count(3)
    await axe(page)
    await page.get_by_role("searchbox", name="Who").fill("nobody")
    await expect(page.get_by_role("heading", name="No line matches")).to_be_visible()
    await expect(page).to_have_url(re.compile(r"who=nobody"))


async def test_what_is_done_in_the_page_is_in_the_audit(
    page: Page, cheap_plane: Plane, enter: Enter, sign_in: SignIn
) -> None:
    await cheap_plane.user("boss", "admin", "*")
    await enter(page, cheap_plane, "boss", at="#/audit?who=boss")
    table = page.get_by_role("table", name="The audit, newest first")
    await expect(table.get_by_role("row")).to_have_count(2)
    await page.get_by_role("button", name="Sign out").click()
    await sign_in(page, cheap_plane, "boss")
    await expect(table.get_by_role("row").nth(1)).to_contain_text("signed in")
    await expect(table.get_by_role("row").nth(2)).to_contain_text("signed out")
    await page.evaluate("location.hash = '#/account'")
    await page.get_by_label("Full name", exact=True).fill("The boss")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("link", name="The boss")).to_be_visible()
    await page.evaluate("location.hash = '#/audit?who=boss'")
    await expect(table.get_by_role("row").nth(1)).to_contain_text("changed")


async def test_the_audit_is_for_those_who_manage_accounts(page: Page, cheap_plane: Plane, enter: Enter) -> None:
    await cheap_plane.user("ann", "member", "acme")
    await enter(page, cheap_plane, "ann")
    await expect(page.get_by_role("navigation", name="Pages").get_by_role("link", name="Audit")).to_have_count(0)
    await page.evaluate("location.hash = '#/audit'")
    await expect(page.get_by_role("alert")).to_contain_text("manage_accounts")
    await expect(page.get_by_role("search")).to_have_count(0)
    await expect(page.get_by_role("button", name="Try again")).to_have_count(0)

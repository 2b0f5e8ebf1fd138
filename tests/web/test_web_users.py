"""Accounts in the page: those of others, for who manages them, and one's own, for everybody."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from playwright.async_api import Locator, Page
from web_expect import expect
from web_plane import PASSWORD, Plane
from web_type import Check, Enter, Shot

NASTY = '<script>alert(1)</script><img src=x onerror="alert(2)">'


def button(page: Page | Locator, name: str, *, exact: bool = True) -> Locator:
    return page.get_by_role("button", name=name, exact=exact)


def field(page: Page | Locator, label: str) -> Locator:
    return page.get_by_label(label, exact=True)


async def test_an_account_is_made_changed_disabled_and_deleted(
    page: Page, cheap_plane: Plane, enter: Enter, axe: Check, narrow: Check
) -> None:
    await enter(page, cheap_plane, at="#/users")
    await expect(page.get_by_text("There is one account so far")).to_be_visible()
    await button(page, "New account").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_role("heading", name="New account")).to_be_visible()
    await field(dialog, "Name").fill("ada lovelace")
    await field(dialog, "Full name").fill(NASTY)
    await field(dialog, "Password").fill("short")
    await field(dialog, "Role").select_option("member")
    await expect(dialog.get_by_role("checkbox", name="Work with machines")).to_be_checked()
    await dialog.get_by_role("checkbox", name="Move time").check()
    await expect(field(dialog, "Role")).to_have_value("")
    await field(dialog, "Add a membership").fill("acme/web/too")
    await button(dialog, "Create").click()
    await expect(dialog.get_by_text("It must be an org")).to_be_visible()
    await expect(dialog.get_by_text("At least 8 characters.", exact=True)).to_be_visible()
    await axe(page)
    await field(dialog, "Password").fill(PASSWORD)
    await field(dialog, "Add a membership").fill("acme")
    await button(dialog, "Add this membership").click()
    await field(dialog, "Add a membership").fill("lab/one")
    await button(dialog, "Create").click()

    await expect(page.get_by_role("heading", name="ada lovelace", level=1)).to_be_visible()
    await expect(page.get_by_text(NASTY)).to_be_visible()
    assert page.url.endswith("#/users/ada%20lovelace")
    made = await cheap_plane.call("GET", "/v1/users/ada%20lovelace")
    assert made["memberships"] == ["acme", "lab/one"]
    assert [right for right, held in made["rights"].items() if held] == ["step_time", "modify_workloads"]
    assert made["has_password"]
    await axe(page)
    await narrow(page)

    await button(page, "Change").click()
    await field(dialog, "Role").select_option("viewer")
    await button(dialog, "Remove lab/one").click()
    await button(dialog, "Save").click()
    await expect(dialog).to_have_count(0)
    changed = await cheap_plane.call("GET", "/v1/users/ada%20lovelace")
    assert changed["memberships"] == ["acme"]
    assert not any(changed["rights"].values())

    await button(page, "Disable").click()
    await expect(dialog).to_contain_text("Disable ada lovelace?")
    await button(dialog, "Disable").click()
    await expect(page.get_by_text("Disabled", exact=True)).to_be_visible()
    await button(page, "Enable").click()
    await expect(page.get_by_text("Enabled", exact=True)).to_be_visible()

    await page.goto(f"{cheap_plane.url}/#/users")
    await expect(page.get_by_role("table").get_by_text(NASTY)).to_be_visible()
    await axe(page)
    await narrow(page)
    await field(page, "Search").fill("LOVE")
    await expect(page.get_by_text("1 of 2 accounts")).to_be_visible()
    await expect(page.get_by_role("link", name="ada lovelace")).to_be_visible()
    await expect(page.get_by_role("rowheader")).to_have_count(1)
    await page.reload()
    await expect(page.get_by_text("1 of 2 accounts")).to_be_visible()
    await field(page, "Search").fill("nobody")
    await expect(page.get_by_text("No account matches")).to_be_visible()
    await button(page, "Show all").click()

    await page.get_by_role("link", name="ada lovelace").click()
    await button(page, "Delete").click()
    await expect(button(dialog, "Delete")).to_be_disabled()
    await field(dialog, "Type ada lovelace to go on").fill("ada lovelace")
    await button(dialog, "Delete").click()
    await expect(page.get_by_text("There is one account so far")).to_be_visible()
    assert (await cheap_plane.ask("GET", "/v1/users/ada%20lovelace")).status == 404


async def test_a_token_is_told_once_and_works_until_it_is_revoked(
    page: Page, cheap_plane: Plane, enter: Enter, axe: Check
) -> None:
    await cheap_plane.user("ada", "member", "acme")
    await enter(page, cheap_plane, at="#/users/ada")
    dialog = page.get_by_role("dialog")
    await expect(page.get_by_text("A program that uses the API needs one")).to_be_visible()
    await button(page, "Issue a token").click()
    await field(dialog, "Name").fill("ci")
    await field(dialog, "Counts for").select_option("1 week")
    await button(dialog, "Issue").click()
    token = await dialog.locator("code", has_text="hst_").inner_text()
    await expect(button(dialog, f"Copy: {token}")).to_be_visible()
    await axe(page)
    assert (await cheap_plane.call("GET", "/v1/sessions", token=token))["name"] == "ada"
    await button(dialog, "I have kept it").click()
    row = page.get_by_role("row", name="ci")
    await expect(row).to_contain_text("6 d 23 h")
    await expect(page.locator("body")).not_to_contain_text(token)
    await button(row, "Revoke ci").click()
    await expect(dialog).to_contain_text("Revoke the token “ci” of ada?")
    await button(dialog, "Revoke").click()
    await expect(row).to_have_count(0)
    assert (await cheap_plane.ask("GET", "/v1/sessions", token=token)).status == 401


async def test_only_what_one_has_is_offered_to_be_given(
    page: Page, cheap_plane: Plane, enter: Enter, shot: Shot
) -> None:
    rights: dict[str, Any] = {"rights": {"manage_accounts": True, "modify_workloads": True}}
    await cheap_plane.call(
        "POST", "/v1/users", {"name": "chief", "password": PASSWORD, "memberships": ["acme"], **rights}
    )
    await cheap_plane.user("op", "operator", "acme")
    await cheap_plane.user("stranger", "member", "other")
    await enter(page, cheap_plane, "chief", "#/users")
    await expect(page.get_by_role("rowheader")).to_have_text(["chief", "op"])
    await shot(page, "users")
    await button(page, "New account").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_role("checkbox")).to_have_count(2)
    await expect(field(dialog, "Role").get_by_role("option")).to_have_text(["viewer", "member"])
    await field(dialog, "Add a membership").fill("*")
    await button(dialog, "Add this membership").click()
    await expect(dialog.get_by_text("You are no member of *")).to_be_visible()
    await page.keyboard.press("Escape")
    await page.get_by_role("link", name="op", exact=True).click()
    await expect(page.get_by_text("It may do what you may not")).to_be_visible()
    for name in ("Change", "Set password", "Disable", "Delete", "Issue a token"):
        await expect(button(page, name)).to_have_count(0)


async def test_a_protected_account_says_why_it_cannot_be_deleted(page: Page, cheap_plane: Plane, enter: Enter) -> None:
    await cheap_plane.user("boss", "admin", "*")
    await enter(page, cheap_plane, "boss", "#/users/admin")
    await expect(page.get_by_text("It is protected: it can be neither disabled nor deleted")).to_be_visible()
    await expect(button(page, "Delete")).to_have_count(0)
    await button(page, "Change").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_role("checkbox", name="Manage accounts")).to_be_disabled()
    await expect(button(dialog, "Remove *")).to_have_count(0)


async def test_what_somebody_else_did_meanwhile_is_not_overwritten(
    page: Page, cheap_plane: Plane, enter: Enter, expect_trouble: Callable[..., None]
) -> None:
    expect_trouble("412")
    await cheap_plane.user("ada", "member", "acme")
    await enter(page, cheap_plane, at="#/users/ada")
    await button(page, "Change").click()
    dialog = page.get_by_role("dialog")
    await cheap_plane.call("PATCH", "/v1/users/ada", {"memberships": ["acme", "lab"]})
    await field(dialog, "Full name").fill("Ada")
    await button(dialog, "Save").click()
    await expect(dialog.get_by_role("alert")).to_be_visible()
    assert (await cheap_plane.call("GET", "/v1/users/ada"))["memberships"] == ["acme", "lab"]


async def test_a_change_is_not_refused_for_what_the_form_does_not_show(
    page: Page, cheap_plane: Plane, enter: Enter, expect_trouble: Callable[..., None]
) -> None:
    expect_trouble("412")  # the first answer; the page looks what differs, and finds nothing
    await cheap_plane.user("ada", "member", "acme")
    await enter(page, cheap_plane, at="#/users/ada")
    await button(page, "Change").click()
    dialog = page.get_by_role("dialog")
    await cheap_plane.call("PATCH", "/v1/users/ada", {"password": "another horse"})
    await field(dialog, "Full name").fill("Ada")
    await button(dialog, "Save").click()
    await expect(dialog).to_have_count(0)
    assert (await cheap_plane.call("GET", "/v1/users/ada"))["full_name"] == "Ada"


async def test_without_the_right_accounts_are_not_offered_and_the_address_says_what_is_missing(
    page: Page, cheap_plane: Plane, enter: Enter, axe: Check
) -> None:
    await cheap_plane.user("ada", "operator", "*")
    await enter(page, cheap_plane, "ada", "#/users")
    await expect(page.get_by_role("alert")).to_contain_text("manage_accounts")
    await expect(page.get_by_role("navigation").get_by_role("link", name="Users")).to_have_count(0)
    await axe(page)
    await page.goto(f"{cheap_plane.url}/#/users/admin")
    await expect(page.get_by_role("alert")).to_contain_text("manage_accounts")
    await expect(page.get_by_text("everything (*)")).to_have_count(0)


async def test_everybody_changes_the_own_name_and_password_and_stays_signed_in(  # noqa: PLR0917 - its fixtures
    page: Page,
    cheap_plane: Plane,
    enter: Enter,
    axe: Check,
    narrow: Check,
    shot: Shot,
    expect_trouble: Callable[..., None],
) -> None:
    await cheap_plane.user("ada", "viewer", "acme/web", full_name=NASTY)
    await enter(page, cheap_plane, "ada", "#/account")
    await expect(page.get_by_role("heading", name="Your account", level=1)).to_be_visible()
    await expect(page.get_by_label("This session", exact=True)).to_contain_text(re.compile(r"ends in 11 h 5\d min"))
    await expect(page.get_by_text("acme/web")).to_be_visible()
    await expect(page.get_by_role("row", name="This session")).to_be_visible()
    await axe(page)
    await narrow(page)
    await field(page, "Full name").fill("Ada Lovelace")
    await button(page, "Save").click()
    await expect(page.get_by_role("banner").get_by_role("link", name="Ada Lovelace")).to_be_visible()
    await shot(page, "account")

    await field(page, "New password").fill("a better one")
    await field(page, "New password again").fill("a better one")
    await button(page, "Change password").click()
    await expect(page.get_by_text("Your present password is needed.")).to_be_visible()
    expect_trouble("403")
    await field(page, "Present password").fill("a guess")
    await button(page, "Change password").click()
    await expect(page.get_by_text("the old password is wrong")).to_be_visible()
    await field(page, "Present password").fill(PASSWORD)
    await field(page, "New password again").fill("a bitter one")
    await button(page, "Change password").click()
    await expect(page.get_by_text("The two are not the same.")).to_be_visible()
    await field(page, "New password again").fill("a better one")
    await button(page, "Change password").click()
    await expect(page.get_by_text("Your password was changed.")).to_be_visible()
    await expect(page.get_by_role("heading", name="Your account")).to_be_visible()
    old = await cheap_plane.ask("POST", "/v1/sessions", {"name": "ada", "password": PASSWORD})
    assert old.status == 401
    assert (await cheap_plane.ask("POST", "/v1/sessions", {"name": "ada", "password": "a better one"})).status == 201

    await button(page, "Issue a token").click()
    await button(page.get_by_role("dialog"), "Issue").click()
    token = await page.get_by_role("dialog").locator("code", has_text="hst_").inner_text()
    assert (await cheap_plane.call("GET", "/v1/sessions", token=token))["full_name"] == "Ada Lovelace"
    await button(page, "I have kept it").click()
    await button(page, "Sign out here").click()
    await expect(field(page, "Name")).to_be_visible()

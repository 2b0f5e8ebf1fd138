"""A terminal in the page, to a real guest: its serial port, a shell by SSH, and what its console said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import Locator, Page
from real_plane import RealPlane
from warm_image import CPUS, MEMORY_MIB, warm_images
from web_expect import expect
from web_plane import Planes
from web_type import Check, Enter, Shot


@pytest.fixture
def real(tmp_path: Path, site: None) -> Iterator[RealPlane]:
    plane = RealPlane(tmp_path / "real", warm_images())
    plane.start("--nodes", 1)
    yield plane
    plane.end()


async def typed(page: Page, terminal: Locator, text: str) -> None:
    await terminal.locator(".xterm-screen").click()
    await page.keyboard.type(text)
    await page.keyboard.press("Enter")


async def test_a_machine_is_created_and_typed_at(  # noqa: PLR0917 - its fixtures
    real: RealPlane, planes: Planes, page: Page, enter: Enter, axe: Check, narrow: Check, shot: Shot
) -> None:
    assert real.up is not None
    plane = planes.known(await real.up.url(), (real.data / "admin.token").read_text().strip())
    await enter(page, plane, at="#/vms/new")
    await expect(page.get_by_label("Image")).to_contain_text("The default: tiny (1 node, user hostler)")
    await page.get_by_label("Name", exact=True).fill("web")
    await page.get_by_label("Cores", exact=True).fill(str(CPUS))
    await page.get_by_label("Memory in MiB").fill("64")
    await expect(page.get_by_text("It will not fit.")).to_be_visible()
    await page.get_by_label("Memory in MiB").fill(str(MEMORY_MIB))
    await expect(page.get_by_text("It will not fit.")).to_have_count(0)
    await page.get_by_role("button", name="Create", exact=True).click()
    await expect(page.get_by_role("heading", level=1, name="web")).to_be_visible()
    await expect(page.get_by_role("heading", name="Ready"), within=15).to_be_visible()
    await expect(page.get_by_role("list", name="Steps")).not_to_contain_text("later")
    await expect(page.get_by_text("hostler vm ssh ")).to_be_visible()

    await page.get_by_role("tab", name="Terminal").click()
    serial = page.get_by_role("region", name="Serial port of web")
    await expect(serial.get_by_text("Connected"), within=15).to_be_visible()
    await typed(page, serial, "")
    await expect(serial.locator(".xterm-rows"), within=15).to_contain_text("~ $")  # a shell drops what came before it
    await typed(page, serial, "uname -a; echo $((600*70+1)) > kept")
    await expect(serial.locator(".xterm-rows"), within=15).to_contain_text("x86_64 GNU/Linux")
    await shot(page, "terminal")
    # Colours of 24 bits and links: neither may need what the page's policy forbids, and nothing can be clicked.
    await typed(
        page, serial, r"printf '\033[38;2;1;200;3mgreen\033[0m \033]8;;http://x/\033\\lin''k\033]8;;\033\\ end\n'"
    )
    await expect(serial.locator(".xterm-rows"), within=15).to_contain_text("green link end")
    assert await serial.locator("a").count() == 0
    await page.keyboard.press("Control+Shift+Enter")
    await expect(serial.get_by_role("button", name="Copy what is selected")).to_be_focused()
    await axe(page)
    await narrow(page)

    await page.get_by_label("What to open").select_option("shell")
    shell = page.get_by_role("region", name="Shell in web")
    await expect(shell.get_by_text("Connected"), within=15).to_be_visible()
    await typed(page, shell, "cat kept; stty size")
    await expect(shell.locator(".xterm-rows"), within=15).to_contain_text("42001")
    await typed(page, shell, "exit 3")
    await expect(shell.get_by_role("status"), within=15).to_contain_text("exit status 3")
    await shell.get_by_role("button", name="Connect again").click()
    await expect(shell.get_by_text("Connected"), within=15).to_be_visible()

    await page.get_by_role("tab", name="Console log").click()
    await expect(page.locator("pre.vms-log"), within=15).to_contain_text("uname -a")

"""What tests of the page stand on: a browser, a control plane, somebody who is signed in, and what no page may do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import running
from playwright.async_api import Browser, Page, async_playwright
from pytest_asyncio import fixture
from web_browser import Chromium, Trouble
from web_expect import expect, milliseconds
from web_plane import PASSWORD, Plane, Planes
from web_type import NARROW, SHOTS, WIDE, Check, Enter, NewPage, Shot, SignIn

import hostler

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BUILT = Path(hostler.__file__).parent / "site" / "index.html"
AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
IMAGES = ROOT / "docs" / "images"
LARGEST_IMAGE = 200_000


@pytest.fixture(scope="session")
def site() -> None:
    """The page is built."""
    if not BUILT.exists():
        pytest.fail("the page is not built: run make web", pytrace=False)


@pytest.fixture(scope="session")
def chromium(site: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """The browser process of this worker. Of a run that was killed, pytest removes the folder some runs later."""
    try:
        process = Chromium(tmp_path_factory.mktemp("chromium"))
    except FileNotFoundError as error:
        pytest.fail(str(error), pytrace=False)
    running.PIDS.add(process.process.pid)
    yield process
    process.stop()
    running.PIDS.discard(process.process.pid)


# What drives the browser takes as long to start as a small test does, and lives in one event loop. So these tests share
# one, and each leaves nothing in it.


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
            if config.getoption("timeout", None) is None and item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(180))


@fixture(scope="session", loop_scope="session")
async def connection(chromium: Chromium) -> AsyncIterator[Browser]:
    """To the browser, for this worker's tests."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.connect_over_cdp(chromium.address, timeout=milliseconds(20))
        yield browser
        await browser.close()


@fixture(loop_scope="session")
async def _no_task_left() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    await running.no_task_left(before)


@fixture(loop_scope="session")
async def browser(connection: Browser, trouble: Trouble) -> AsyncIterator[Browser]:
    """The browser; contexts made by it end with the test."""
    yield connection
    await trouble.come()
    for context in connection.contexts[1:]:
        await context.close()


@pytest.fixture
def trouble() -> Iterator[Trouble]:
    """What pages complained of. At the end of the test there must be nothing but what was expected."""
    trouble = Trouble()
    yield trouble
    if trouble.unexpected:
        pytest.fail("the page complained:\n" + "\n".join(trouble.unexpected), pytrace=False)
    if trouble.missed:
        pytest.fail(f"expected of the page, and did not come: {trouble.missed}", pytrace=False)


@pytest.fixture
def expect_trouble(trouble: Trouble) -> Callable[..., None]:
    """Say which complaints are wanted: `expect_trouble("403")`."""
    return trouble.expect


@pytest.fixture
def new_page(browser: Browser, trouble: Trouble) -> NewPage:
    """A page in a context of its own: another user, another screen."""

    async def made(size: tuple[int, int] = WIDE, **options: Any) -> Page:
        chosen = {"color_scheme": "light", "locale": "en-GB", "timezone_id": "UTC", **options}
        context = await browser.new_context(viewport={"width": size[0], "height": size[1]}, **chosen)
        context.set_default_timeout(milliseconds(10))
        await trouble.watch(context)
        return await context.new_page()

    return made


@fixture(loop_scope="session")
async def page(new_page: NewPage) -> Page:
    """`evaluate` is above the page's policy; `wait_for_function` is not, and fails: expect something that is seen."""
    return await new_page()


@asynccontextmanager
async def planes_in(folder: Path, hosts: set[str]) -> AsyncIterator[Planes]:
    async with AsyncExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.delenv("HOSTLER_SHOTS", raising=False)  # to a control plane it would be a setting that it does not know
        http = await stack.enter_async_context(aiohttp.ClientSession())
        yield Planes(folder, stack, http, hosts)


@fixture(loop_scope="session")
async def planes(tmp_path: Path, site: None, trouble: Trouble) -> AsyncIterator[Planes]:
    """Control planes of every kind, for one test; see web_plane.py."""
    async with planes_in(tmp_path, trouble.own) as planes:
        yield planes
        trouble.end()


@fixture(scope="module", loop_scope="session")
async def shared_planes(tmp_path_factory: pytest.TempPathFactory, site: None) -> AsyncIterator[Planes]:
    """Control planes that the tests of a module share: a test that kills or configures one has its own.

    A test that opens a page of one calls `trouble.own.add(plane.host)`; `enter` does.
    """
    async with planes_in(tmp_path_factory.mktemp("planes"), set()) as planes:
        yield planes


@fixture(loop_scope="session")
async def plane(planes: Planes) -> Plane:
    """`hostler up` with two nodes of simulated machines, in a process of its own."""
    return await planes.up()


@fixture(loop_scope="session")
async def cheap_plane(planes: Planes) -> Plane:
    """A server in this test's own loop, without controllers or agents: what it is told stays as it is."""
    return await planes.cheap()


# What users do


@pytest.fixture
def sign_in() -> SignIn:
    """Through the form, as a user does it. The page stays where it was led to."""

    async def signed_in(page: Page, plane: Plane, name: str, password: str = PASSWORD) -> None:
        if not page.url.startswith(plane.url):
            await page.goto(plane.url + "/")
        await page.get_by_role("textbox", name="Name").fill(name)
        await page.get_by_role("textbox", name="Password").fill(password)
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("navigation", name="Pages")).to_be_visible()

    return signed_in


@pytest.fixture
def enter(trouble: Trouble) -> Enter:
    """Open a page as somebody who is signed in already: quicker than the form."""

    async def entered(page: Page, plane: Plane, name: str = "admin", at: str = "#/overview") -> None:
        trouble.own.add(plane.host)
        shown = {"token": plane.admin} if name == "admin" else {"name": name, "password": PASSWORD}
        answer = await page.context.request.post(f"{plane.url}/v1/sessions/browser", data=shown)
        assert answer.ok, await answer.text()
        await page.goto(f"{plane.url}/{at}")
        await expect(page.get_by_role("navigation", name="Pages")).to_be_visible()

    return entered


# What must hold of every page


@pytest.fixture
def axe() -> Check:
    """No serious or critical violation of accessibility, in either theme."""
    if not AXE.exists():
        pytest.fail("axe-core is not installed: run make web", pytrace=False)
    source = AXE.read_text(encoding="utf-8")

    async def checked(page: Page) -> None:
        found = []
        # What a theme changes is its colours: the other rules are looked at once.
        for scheme, rules in (("light", {}), ("dark", {"runOnly": ["color-contrast"]})):
            await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            if not await page.evaluate("'axe' in window"):
                await page.evaluate(source)
            told = await page.evaluate("rules => axe.run(document, {resultTypes: ['violations'], ...rules})", rules)
            found += [
                f"{scheme}: {one['id']} ({one['impact']}, {len(one['nodes'])} nodes): {node['html'][:300]}\n"
                f"    {node['failureSummary']}"
                for one in told["violations"]
                if one["impact"] in ("serious", "critical")
                for node in one["nodes"][:3]
            ]
        await page.emulate_media(color_scheme="light", reduced_motion="no-preference")
        assert not found, f"{page.url}:\n" + "\n".join(found)

    return checked


@pytest.fixture
def narrow() -> Check:
    """At 360 pixels nothing scrolls sideways. The page is as wide as before afterwards."""

    async def checked(page: Page) -> None:
        before = page.viewport_size
        await page.set_viewport_size({"width": NARROW[0], "height": NARROW[1]})
        wide = await page.evaluate(TOO_WIDE)
        if before is not None:
            await page.set_viewport_size(before)
        assert not wide, f"{page.url}: wider than {NARROW[0]} pixels: {wide}"

    return checked


TOO_WIDE = """() => {
  const whole = document.scrollingElement;
  if (whole.scrollWidth <= whole.clientWidth) return [];
  const end = (one) => one.getBoundingClientRect().right;
  return [...document.querySelectorAll("body *")]
    .filter((one) => end(one) > whole.clientWidth + 1)
    .slice(0, 8)
    .map((one) => `${one.tagName}.${one.className} to ${end(one)}: ${one.textContent.slice(0, 40)}`)
    .concat(`page ${whole.scrollWidth}`);
}"""


@pytest.fixture
def shot(tmp_path: Path) -> Shot:
    """A picture of what is on the screen: docs/images/NAME.png with HOSTLER_SHOTS=1 (`make shots`)."""
    folder = IMAGES if SHOTS else tmp_path

    async def taken(page: Page, name: str, *, scheme: Any = "light") -> None:
        before = page.viewport_size
        await page.set_viewport_size({"width": WIDE[0], "height": WIDE[1]})
        await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        folder.mkdir(parents=True, exist_ok=True)
        image = await page.screenshot(path=folder / f"{name}.png", animations="disabled", caret="hide")
        assert len(image) <= LARGEST_IMAGE, f"{name}.png: {len(image)} bytes; at most {LARGEST_IMAGE}"
        await page.emulate_media(color_scheme="light", reduced_motion="no-preference")
        if before is not None:
            await page.set_viewport_size(before)

    return taken

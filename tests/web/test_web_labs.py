"""Labs in the page: one page for a student, all of them for a teacher, and each sees at once what the other does."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from doubles import DoorMachines
from harness import pace
from msgspec.structs import replace
from playwright.async_api import Locator, Page
from real_plane import RealPlane
from terminal_guest import ShellGuest
from terminal_place import Place
from warm_image import CPUS, MEMORY_MIB, warm_images
from web_expect import expect
from web_plane import Plane, Planes
from web_type import Check, Enter, NewPage, Shot, SignIn

from hostler.entry.server.services import ServerConfig
from hostler.entry.ssh import terminal_key
from hostler.entry.terminal import protocol
from hostler.keys.families import HANDLE
from hostler.keys.lab import LAB
from hostler.kit.clock import SystemClock
from hostler.model.lab import Lab, LabCatalogue, LabEvent, LabNews, LabPhase, LabTemplate, LabUser
from hostler.model.vm import MachineState, VmHandle

CLASS = """at_once = 1
[default]
life = "20m"
grace = "2m"
[labs.1]
title = "Files and rights"
[labs.2]
title = "Processes"
"""
REAL = f"""[labs.1]
title = "A real one"
image = "tiny"
cpus = {CPUS}
memory = "{MEMORY_MIB}M"
"""
HOSTILE = '<b>bold</b> & "quoted"'


def catalogue() -> LabCatalogue:
    files = LabTemplate(title="Files and rights", image="tiny", warm=2)
    return LabCatalogue(labs={"1": files, "2": LabTemplate(title="Processes", image="tiny", life=5400.0)}, at_once=30)


def row(page: Page, user: str) -> Locator:
    """The user's line in the teacher's table."""
    return page.get_by_role("table", name="Labs", exact=True).get_by_role("row").filter(has_text=user)


def minutes(text: str) -> int:
    """Of "1 h 5 min", "34 min 59 s"."""
    found = dict(zip(text.split()[1::2], map(int, text.split()[::2]), strict=False))
    return found.get("h", 0) * 60 + found.get("min", 0)


async def left(page: Page) -> int:
    return minutes((await page.locator(".labs-left time").inner_text()).strip())


async def put(plane: Plane, user: str, *, lab_id: int = 1, news: tuple[LabNews, ...] = (), **fields: Any) -> None:
    """The user's lab is this now."""
    assert plane.api is not None
    wall = SystemClock().wall()
    said: dict[str, Any] = {"phase": LabPhase.RUNNING, "requested_at": wall - 60, "life": 1800.0, **fields}
    if said["phase"] is not LabPhase.WAITING:
        said = {"vm": f"vm-{user}", "user": "student", "expires_at": wall + 1800.0, "available": True, **said}
    record = LabUser(user=user, generation=1, lab=Lab(lab_id=lab_id, generation=1, **said), news=news, changed_at=wall)
    await plane.api.store.txn([], [LAB.put(record, user=user)])


async def test_a_student_starts_and_stops_a_lab_while_the_teacher_looks_on(
    planes: Planes, new_page: NewPage, sign_in: SignIn, enter: Enter
) -> None:
    plane = await planes.up(labs=CLASS)
    await plane.user("ada", "viewer", "labs/ada")
    await plane.user("bob", "viewer", "labs/bob")
    await plane.user("tom", "member", "labs")
    teacher, ada, bob = await new_page(), await new_page(), await new_page()
    await enter(teacher, plane, "tom", "#/labs")
    await expect(teacher.get_by_role("heading", name="No labs")).to_be_visible()

    # Who has a lab and nothing else is there right away.
    await sign_in(ada, plane, "ada")
    await expect(ada.get_by_role("heading", level=1)).to_have_text("Your lab")
    assert ada.url.endswith("#/labs")
    assert await ada.get_by_role("navigation", name="Pages").get_by_role("link").all_inner_texts() == ["Labs"]
    await ada.get_by_role("button", name="Start Files and rights").click()
    await expect(ada.get_by_role("heading", level=1)).to_have_text("Files and rights")
    await expect(ada.get_by_text("Ready", exact=True).first).to_be_visible()
    assert 15 <= await left(ada) <= 20
    await expect(ada.get_by_role("region", name="Terminal of Files and rights")).to_be_visible()
    await expect(row(teacher, "ada")).to_contain_text("Ready")
    await expect(row(teacher, "ada")).to_contain_text("local-")

    # One may run: the next waits, and is told where.
    await enter(bob, plane, "bob", "#/labs")
    await expect(bob.get_by_text("All places are taken.").first).to_be_visible()
    await bob.get_by_role("button", name="Start Processes").click()
    await expect(bob.get_by_text("You are next.")).to_be_visible()
    await expect(bob.get_by_text("Its time has not begun")).to_be_visible()
    await expect(row(teacher, "bob")).to_contain_text("Waiting, number 1")

    # The teacher extends, says something, and stops it; the student sees each of them without loading anything.
    await row(teacher, "ada").get_by_role("checkbox").check()
    await teacher.get_by_role("button", name="Extend…").click()
    await teacher.get_by_label("Minutes").fill("60")
    await teacher.get_by_role("button", name="Extend", exact=True).click()
    await expect(row(teacher, "ada")).to_contain_text("1 h 1")
    await expect(ada.locator(".labs-left")).to_contain_text("1 h 1")
    assert 75 <= await left(ada) <= 80
    await teacher.get_by_role("button", name="Message…").click()
    await teacher.get_by_role("textbox", name="Message").fill(HOSTILE)
    await teacher.get_by_role("button", name="Send").click()
    await expect(ada.get_by_role("log", name="Messages of your teacher")).to_contain_text(HOSTILE)
    await expect(bob.get_by_role("log", name="Messages of your teacher")).to_have_text("")
    await teacher.get_by_role("button", name="Stop…").click()
    await expect(teacher.get_by_role("dialog")).to_contain_text("The machine of ada is deleted")
    await teacher.get_by_role("button", name="Stop it").click()
    await expect(ada.get_by_role("status").filter(has_text="Lab 1 is gone: it was stopped.")).to_be_visible()
    await expect(row(teacher, "ada")).to_have_count(0)

    # That was bob's turn, who ends it by himself.
    await expect(bob.get_by_text("Ready", exact=True).first).to_be_visible()
    await row(teacher, "bob").get_by_role("link", name="bob").click()
    await expect(teacher.get_by_role("link", name="lab-2-1", exact=True)).to_be_visible()
    await teacher.get_by_role("main").get_by_role("link", name="Labs").click()
    await bob.get_by_role("button", name="Stop", exact=True).click()
    await bob.get_by_role("button", name="Cancel").click()
    await bob.get_by_role("button", name="Stop", exact=True).click()
    await bob.get_by_role("button", name="Stop it").click()
    await expect(bob.get_by_role("button", name="Start Processes")).to_be_visible()
    await expect(teacher.get_by_role("heading", name="No labs")).to_be_visible()
    audit = (await plane.call("GET", "/v1/audit?limit=100"))["items"]
    seen = [(one["who"], one["verb"]) for one in audit if one["verb"].startswith("lab.")]
    wanted = [
        ("ada", "start"),
        ("bob", "start"),
        ("tom", "extend"),
        ("tom", "message"),
        ("tom", "stop"),
        ("bob", "stop"),
    ]
    assert sorted(seen) == sorted((who, f"lab.{verb}") for who, verb in wanted)


@asynccontextmanager
async def lab_of_ann(planes: Planes, tmp_path: Path) -> AsyncIterator[tuple[Plane, ShellGuest]]:
    """A lab of the student ann, whose teacher is tom, with a shell behind it."""
    doubles, key = DoorMachines({}), tmp_path / "lab_ed25519"
    async with ShellGuest() as guest:
        guest.allowed.append(terminal_key(key)[0].convert_to_public())
        plane = await planes.cheap(
            plan=ServerConfig(lab_key=key),
            machines_of=lambda node: doubles if node == "n1" else None,
            catalogue=catalogue(),
        )
        assert plane.api is not None
        place = Place(plane.api, guest, doubles)
        await plane.user("ann", "viewer", "labs/ann")
        await plane.user("tom", "member", "labs")
        wall = SystemClock().wall()
        await place.lab(lab_id=1, requested_at=wall, expires_at=wall + 1500.0)
        yield plane, guest


async def test_the_terminal_of_a_lab_is_in_the_page_and_a_teacher_takes_it_over_only_after_being_asked(
    planes: Planes, new_page: NewPage, enter: Enter, *, tmp_path: Path, shot: Shot, axe: Check
) -> None:
    async with lab_of_ann(planes, tmp_path) as (plane, guest):
        page, teacher = await new_page(), await new_page()
        await enter(page, plane, "ann", "#/labs")
        terminal = page.get_by_role("region", name="Terminal of Files and rights")
        await expect(terminal.get_by_text("Connected")).to_be_visible()
        await terminal.locator(".xterm-screen").click()
        await page.keyboard.type("who\n")
        await _typed(guest, b"who")
        await expect(terminal.locator(".xterm-rows")).to_contain_text("shell 1 is here")
        assert guest.users == ["student"]
        told = await plane.ask("POST", "/v1/labs/ann/message", {"text": "Ten more minutes, then save your work"})
        assert told.status == 200
        await expect(page.get_by_role("log", name="Messages of your teacher")).to_contain_text("Ten more minutes")
        await expect(terminal.locator(".xterm-rows")).to_contain_text("message: Ten more minutes")
        await expect(terminal.get_by_text("Connected")).to_be_visible()
        await axe(page)
        await shot(page, "labs-student")

        await enter(teacher, plane, "tom", "#/labs/ann")
        await teacher.get_by_role("button", name="Open the terminal…").click()
        await expect(teacher.get_by_role("dialog")).to_contain_text("you take it over with its shell")
        await teacher.get_by_role("button", name="Open it").click()
        await expect(teacher.locator(".xterm-rows")).to_contain_text("shell 1 is here")
        await expect(terminal).to_contain_text("opened elsewhere")


async def test_a_page_that_is_loaded_again_or_takes_over_types_nothing(
    planes: Planes, new_page: NewPage, enter: Enter, tmp_path: Path
) -> None:
    async with lab_of_ann(planes, tmp_path) as (plane, guest):
        page, teacher = await new_page(), await new_page()
        await enter(page, plane, "ann", "#/labs")
        await _type_at(page, "ask\n")
        await _typed(guest, b"R")  # a question that the shell asks now is answered
        answer = guest.typed.partition(b"ask\r")[2]
        assert re.fullmatch(rb"\x1b\[\d+;\d+R", answer)
        await page.reload()
        await _type_at(page, "who\n", after="where is the cursor?")
        await _typed(guest, b"who\r")
        await enter(teacher, plane, "tom", "#/labs/ann")
        await teacher.get_by_role("button", name="Open the terminal…").click()
        await teacher.get_by_role("button", name="Open it").click()
        await _type_at(teacher, "who\n", after="where is the cursor?")
        await _typed(guest, b"who\r", times=2)
        assert guest.typed == b"ask\r" + answer + b"who\rwho\r"


async def test_a_terminal_connects_again_by_itself_and_a_new_shell_begins_on_an_empty_screen(
    planes: Planes, page: Page, enter: Enter, tmp_path: Path
) -> None:
    async with lab_of_ann(planes, tmp_path) as (plane, _):
        assert plane.api is not None
        await enter(page, plane, "ann", "#/labs")
        await _type_at(page, "draw\n")
        shown = page.locator(".xterm-rows")
        await expect(shown).to_contain_text("the picture of an editor")
        plane.api.app.terminals.end("ann", protocol.GOING_AWAY, "the server closes")
        await expect(shown).to_contain_text("shell 2")
        await expect(shown).not_to_contain_text("the picture of an editor")
        await expect(page.locator(".terminal-state")).to_have_text("Connected")
        await page.reload()
        await expect(shown).to_contain_text("shell 2")
        await expect(page.locator(".terminal-state")).to_have_text("Connected")
        await _type_at(page, "exit 3\n")
        await expect(page.get_by_role("button", name="Connect again")).to_be_visible()


async def _type_at(page: Page, text: str, *, after: str = "shell") -> None:
    """Type into the terminal of the page once it shows the text `after`."""
    await expect(page.locator(".xterm-rows")).to_contain_text(after)
    await page.locator(".xterm-screen").click()
    await page.keyboard.type(text)


@pytest.fixture
def real(tmp_path: Path) -> Iterator[RealPlane]:
    """Real machines, which go on from a guest that was booted once."""
    plane = RealPlane(tmp_path / "real", warm_images())
    (tmp_path / "labs.toml").write_text(REAL)
    plane.start("--nodes", 1, "--labs", tmp_path / "labs.toml")
    yield plane
    plane.end()


async def test_a_student_types_in_a_real_machine(real: RealPlane, planes: Planes, page: Page, enter: Enter) -> None:
    assert real.up is not None
    plane = planes.known(await real.up.url(), (real.data / "admin.token").read_text().strip())
    await plane.user("ada", "viewer", "labs/ada")
    await enter(page, plane, "ada", "#/labs")
    await page.get_by_role("button", name="Start A real one").click()
    terminal = page.get_by_role("region", name="Terminal of A real one")
    await expect(terminal.get_by_text("Connected"), within=15).to_be_visible()
    await terminal.locator(".xterm-screen").click()
    await page.keyboard.type("uname -a\n")
    await expect(terminal.locator(".xterm-rows"), within=15).to_contain_text("x86_64 GNU/Linux")
    await page.get_by_role("button", name="Stop", exact=True).click()
    await page.get_by_role("button", name="Stop it").click()
    gone = page.get_by_text("Lab 1 is gone: it was stopped.")
    await expect(gone, within=15).to_be_visible()
    assert (await plane.call("GET", "/v1/vms"))["items"] == []


async def _typed(guest: ShellGuest, text: bytes, *, times: int = 1) -> None:
    async with asyncio.timeout(pace.patience(5)):
        while guest.typed.count(text) < times:
            await asyncio.sleep(0.02)


async def test_a_student_is_told_how_far_it_is_and_when_it_ends(
    planes: Planes, page: Page, enter: Enter, axe: Check, narrow: Check
) -> None:
    plane = await planes.cheap(catalogue=catalogue())
    wall = SystemClock().wall()
    await plane.user("ada", "viewer", "labs/ada")
    await put(plane, "first", phase=LabPhase.WAITING, requested_at=wall - 100)
    await put(plane, "second", phase=LabPhase.WAITING, requested_at=wall - 90)
    await put(plane, "ada", phase=LabPhase.WAITING, detail="the limit of 30 concurrent labs is reached")
    await enter(page, plane, "ada", "#/labs")
    far = page.get_by_role("region", name="How far it is")
    await expect(far).to_contain_text("2 are before you. It begins by itself (the limit of 30")
    await expect(far.get_by_role("listitem").filter(has_text="Waiting for your turn")).to_contain_text("(now)")
    await axe(page)
    await narrow(page)
    assert plane.api is not None
    await plane.call("DELETE", "/v1/labs/first")  # nothing of ada's changes by that
    await expect(far).to_contain_text("1 is before you.")
    await put(plane, "ada", phase=LabPhase.PROVISIONING, available=False)
    await expect(far).to_contain_text("Your machine is being made.")
    await put(
        plane, "ada", phase=LabPhase.PROVISIONING, available=False, detail="cloud-init runs", expires_at=wall + 200
    )
    await expect(far).to_contain_text("(cloud-init runs)")
    await expect(page.get_by_role("alert")).to_contain_text("Your lab ends soon.")
    await axe(page)
    news = LabNews(number=1, at=wall, event=LabEvent.FAILED, lab_id=1, reason="no node has room for it")
    gone = LabUser(user="ada", generation=1, news=(news,), changed_at=wall)
    await plane.api.store.txn([], [LAB.put(gone, user="ada")])
    await expect(page.get_by_text("Lab 1 is gone: it failed (no node has room for it).")).to_be_visible()
    await expect(page.get_by_text("One is ready: it begins at once.")).to_have_count(0)
    await expect(page.get_by_role("list", name="Labs that there are").get_by_role("listitem")).to_have_count(2)
    await axe(page)
    await narrow(page)


OFF_BY = """
const Right = Date;
Date = class extends Right {
  constructor(...given) { super(...(given.length ? given : [Date.now()])); }
  static now() { return Right.now() + HOURS * 3600_000; }
};
"""


async def test_times_go_by_the_servers_clock_where_the_browsers_is_wrong(
    planes: Planes, new_page: NewPage, enter: Enter
) -> None:
    plane = await planes.cheap(catalogue=catalogue())
    wall = SystemClock().wall()
    await plane.user("ada", "viewer", "labs/ada")
    await put(
        *(plane, "ada"), phase=LabPhase.PROVISIONING, available=False, requested_at=wall - 90, expires_at=wall + 1810
    )
    early, late = await new_page(), await new_page()
    for page, hours in ((early, -1), (late, 1)):
        await page.add_init_script(OFF_BY.replace("HOURS", str(hours)))
    await enter(late, plane, "ada", "#/labs")
    assert abs(await late.evaluate("Date.now()") / 1000 - wall - 3600) < 300, "the browser's clock is wrong"
    assert 25 <= await left(late) <= 30
    await expect(late.get_by_role("alert")).to_have_count(0)
    await late.evaluate("location.hash = '#/account'")
    (session,) = (await plane.call("GET", "/v1/users/ada/tokens"))["items"]
    ends = minutes(await late.get_by_role("region", name="This session").locator("time").first.inner_text())
    assert abs(ends * 60 - (session["expires_at"] - wall)) < 300

    await enter(early, plane, at="#/labs")
    await expect(row(early, "ada").locator("time")).to_have_text(re.compile(r"^(2[5-9]|30) min"))
    await row(early, "ada").get_by_role("link", name="ada").click()
    await expect(early.get_by_text(re.compile(r"^[1-6] min .*ago$"))).to_be_visible()


async def test_a_student_neither_sees_nor_touches_anothers_lab(
    planes: Planes, page: Page, enter: Enter, expect_trouble: Callable[..., None]
) -> None:
    plane = await planes.cheap(catalogue=catalogue())
    await plane.user("ada", "viewer", "labs/ada")
    await put(plane, "bob")
    await put(plane, "ada", phase=LabPhase.WAITING)
    await enter(page, plane, "ada", "#/labs/bob")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Files and rights")
    await expect(page.get_by_text("bob")).to_have_count(0)
    for verb in ("Extend…", "Message…", "Start a lab"):
        await expect(page.get_by_role("button", name=verb)).to_have_count(0)
    expect_trouble("404", "403")
    by_hand = """async ([method, path, body]) => {
      const session = await (await fetch("/v1/sessions/browser")).json();
      const headers = { "Hostler-Csrf": session.csrf, "Content-Type": "application/json" };
      const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body) });
      return [answer.status, (await answer.json()).detail];
    }"""
    for method, path, body, status, words in (
        ("GET", "/v1/labs/bob", None, 404, "lab of bob: not found"),
        ("DELETE", "/v1/labs/bob", None, 404, "lab of bob: not found"),
        ("POST", "/v1/labs/bob/tickets", None, 404, "lab of bob: not found"),
        ("POST", "/v1/labs", {"user": "bob", "labId": 1}, 404, "lab of bob: not found"),
        ("POST", "/v1/labs/bob/message", {"text": "me"}, 404, "lab of bob: not found"),
        ("POST", "/v1/labs/ada/extend", {"minutes": 5}, 403, "the right modify_workloads is missing"),
        ("POST", "/v1/labs/ada/message", {"text": "me"}, 403, "the right modify_workloads is missing"),
        ("POST", "/v1/orgs/labs/projects/ada/vms", {"name": "mine"}, 403, "the right modify_workloads is missing"),
    ):
        answered = await page.evaluate(by_hand, [method, path, body])
        assert answered[0] == status, path
        assert words in answered[1], path


async def test_a_teacher_finds_one_among_thousands_and_acts_on_many(
    planes: Planes, page: Page, enter: Enter, *, axe: Check, narrow: Check, shot: Shot
) -> None:
    plane = await planes.cheap(catalogue=replace(catalogue(), at_once=1500))
    await plane.user("tom", "member", "labs")
    await plane.user("vera", "viewer", "labs")
    wall = SystemClock().wall()
    for number in range(1500):
        fields: dict[str, Any] = {"expires_at": wall + 400 + number, "address": f"2001:db8::{number:x}"}
        if number % 50 == 7:
            fields = {"phase": LabPhase.WAITING, "requested_at": wall + number}
        await put(plane, f"user{number:04d}", lab_id=1 + number % 2, **fields)
    await _class(plane, wall)
    await enter(page, plane, "tom", "#/labs")
    table = page.get_by_role("table", name="Labs", exact=True)
    await expect(table).to_have_attribute("aria-rowcount", "1509")
    assert await table.get_by_role("row").count() < 80
    await expect(row(page, "dan")).to_contain_text("Waiting, number 1")
    await expect(row(page, "user0007")).to_contain_text("Waiting, number 2")
    await expect(row(page, "eva")).to_contain_text("Does not answer")
    await expect(row(page, "ada")).to_contain_text("r1-b1")
    await axe(page)
    await narrow(page)
    await shot(page, "labs-teacher")
    await page.get_by_label("Search").fill("user149")
    await expect(table).to_have_attribute("aria-rowcount", "11")
    assert "search=user149" in page.url
    await page.get_by_role("button", name="Choose all").click()
    await page.get_by_role("button", name="Extend…").click()
    await page.get_by_role("button", name="60 min").click()
    await page.get_by_role("button", name="Extend", exact=True).click()
    await expect(page.get_by_text("10 labs live 60 min longer.")).to_be_visible()
    await expect(row(page, "user1499")).to_contain_text(re.compile("1 h (2[5-9]|3[01]) min"))
    await page.get_by_role("button", name="Stop…").click()
    dialog = page.get_by_role("dialog", name="Stop 10 labs?")
    await expect(dialog).to_contain_text("The machines of user1490, user1491")
    await axe(page)
    await dialog.get_by_role("button", name="Stop them").click()
    await expect(row(page, "user1499")).to_contain_text("Stopping")
    await page.get_by_role("link", name="user1499").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("user1499")
    story = page.get_by_role("region", name="What happened")
    await expect(story).to_contain_text("Extended (lab 2): it ends at ")
    await expect(story).not_to_contain_text(re.compile(r"\d{4}-\d\d-\d\dT"))
    await expect(story).to_contain_text("Stops (lab 2)")
    await expect(page.get_by_role("region", name="Why it is so")).to_contain_text("requested by tom: lab.stop")
    await axe(page)
    await narrow(page)


async def _class(plane: Plane, wall: float) -> None:
    """A few who stand first in the list, one of each state."""
    assert plane.api is not None
    states: dict[str, dict[str, Any]] = {
        "ada": {"expires_at": wall + 2460},
        "ben": {"expires_at": wall + 200},
        "cem": {"phase": LabPhase.PROVISIONING, "available": False, "expires_at": wall + 1790},
        "dan": {"phase": LabPhase.WAITING, "requested_at": wall - 50},
        "eva": {"available": False, "detail": "its node is silent", "expires_at": wall + 1000},
        "fay": {"phase": LabPhase.STOPPING, "available": False, "expires_at": wall + 900},
        "gil": {"expires_at": wall + 1260},
        "hal": {"expires_at": wall + 1500},
    }
    for number, (user, fields) in enumerate(states.items()):
        waits = fields.get("phase") is LabPhase.WAITING
        more: dict[str, Any] = {} if waits else {"address": f"2001:db8:0:7::{number + 1:x}"}
        await put(plane, user, lab_id=1 + number % 2, **more, **fields)
        if not waits:
            handle = VmHandle(id=f"vm-{user}", node=f"r1-b{1 + number % 3}", state=MachineState.RUNNING, seen_at=wall)
            await plane.api.store.txn([], [HANDLE.put(handle, org="labs", project=user, vm=handle.id)])


@pytest.mark.parametrize("labs", [{}, None], ids=["none", "any"])
async def test_where_there_are_no_labs_the_page_says_what_to_do(
    planes: Planes, new_page: NewPage, enter: Enter, axe: Check, *, labs: dict[str, LabTemplate] | None
) -> None:
    plane = await planes.cheap(catalogue=LabCatalogue(labs=labs))
    await plane.user("ada", "viewer", "labs/ada")
    await plane.user("eve", "viewer", "acme")
    await plane.user("vera", "viewer", "labs")
    admin, ada, eve, vera = [await new_page() for _ in range(4)]
    await enter(admin, plane, at="#/labs")
    await expect(admin.get_by_text("hostler up --labs labs.toml")).to_be_visible()
    await axe(admin)
    await enter(ada, plane, "ada", "#/labs")
    if labs is None:
        await ada.get_by_label("Number of the lab").fill("7")
        await ada.get_by_role("button", name="Start Any lab").click()
        await expect(ada.get_by_role("heading", level=1)).to_have_text("Lab 7")
        await admin.goto(f"{plane.url}/#/labs/ada")
        await expect(admin.get_by_text("Lab 7", exact=True)).to_be_visible()
        await expect(admin.get_by_text("The lab of ada is waiting (lab 7)")).to_be_visible()
    else:
        await expect(ada.get_by_role("heading", name="There are no labs yet")).to_be_visible()
    await enter(eve, plane, "eve", "#/labs")
    # It says all memberships: what is left out is taken away.
    await expect(eve.get_by_text("hostler user update eve --member acme --member labs/eve")).to_be_visible()
    await enter(vera, plane, "vera", "#/labs")
    await expect(vera.get_by_role("heading", name="Active labs")).to_be_visible()
    await expect(vera.get_by_role("button", name="Start")).to_have_count(0)
    for user in ("vera", "Vera"):  # a name alone is nobody's lab
        await vera.evaluate("(user) => { location.hash = `#/labs/${user}`; }", user)
        await expect(vera.get_by_role("heading", name=f"{user} has no lab now", exact=True)).to_be_visible()
        await expect(vera.get_by_role("button", name="Start one")).to_have_count(0)

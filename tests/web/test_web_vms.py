"""Machines in the page: found among many, created with what one may have, and looked at from all sides."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from playwright.async_api import Locator, Page
from web_expect import expect
from web_plane import Plane, Planes
from web_type import Check, Enter, NewPage, Shot

from hostler.keys.families import ALIVE, HANDLE, MEMBER, RETAINED, RETAINED_REQUEST, VM
from hostler.model.inventory import Capacity
from hostler.model.node import Heartbeat, ImageNeeds, Lifecycle, NodeRecord, Retained
from hostler.model.vm import MachineState, Readiness, Reinstatement, Step, VmHandle, VmSpec

PROJECT = "/v1/orgs/acme/projects/web"
SCRIPT = "<script>document.title='taken'</script>"


def rows(page: Page) -> Locator:
    """Of the list, without its head."""
    return page.get_by_role("table", name="Machines").locator(".virtual-row")


async def made(plane: Plane, name: str, project: str = PROJECT, **more: Any) -> dict[str, Any]:
    body = {"name": name, "spec": {"cpus": 1, "memory_mib": 64}, **more}
    vm: dict[str, Any] = await plane.call("POST", f"{project}/vms", body)
    return vm


async def seen(plane: Plane, vm: dict[str, Any], state: MachineState, node: str = "n1", **more: Any) -> None:
    """What an agent would write of it."""
    assert plane.api is not None
    handle = VmHandle(id=vm["id"], node=node, state=state, generation=1, seen_at=0.0, **more)
    await plane.api.store.txn([], [HANDLE.put(handle, org=vm["org"], project=vm["project"], vm=vm["id"])])


async def test_a_machine_is_created_by_the_form_lives_and_is_deleted(  # noqa: PLR0917 - its fixtures
    plane: Plane,
    page: Page,
    enter: Enter,
    axe: Check,
    narrow: Check,
    shot: Shot,
    expect_trouble: Callable[..., None],
) -> None:
    await enter(page, plane, at="#/vms")
    await expect(page.get_by_role("heading", name="There is no machine yet")).to_be_visible()
    await page.get_by_role("link", name="Create a machine").first.click()
    await page.get_by_label("Name", exact=True).fill("web-1")
    await page.get_by_label("Labels", exact=True).fill("app=web")
    await page.get_by_text("Placement, network and more").click()
    await page.get_by_role("button", name="Add a rule").click()
    await page.get_by_label("Machines labelled").fill("app=web")
    await axe(page)
    await narrow(page)
    await page.get_by_role("button", name="Create", exact=True).click()
    await expect(page.get_by_role("heading", level=1, name="web-1")).to_be_visible()
    steps = page.get_by_role("list", name="Steps")
    await expect(page.get_by_role("heading", name=re.compile("^(Ready|Running)$"))).to_be_visible()
    await expect(steps).to_contain_text(re.compile(r"(Running|Available) \(done\)after \d+\.\d s"))
    await expect(steps).not_to_contain_text(re.compile("now|later"))
    (vm,) = (await plane.call("GET", "/v1/vms"))["items"]
    assert vm["affinity"] == [{"together": False, "level": "node", "labels": {"app": "web"}, "required": True}]
    await axe(page)
    await narrow(page)
    await shot(page, "machine")

    await page.get_by_role("tab", name="Overview").focus()
    await page.keyboard.press("ArrowRight")
    serial = page.get_by_role("region", name="Serial port of web-1")
    await expect(serial.get_by_text("Connected")).to_be_visible()
    await expect(page.get_by_role("tab", name="Terminal")).to_be_focused()
    await expect(serial.get_by_text("leaves the terminal by keyboard")).to_be_in_viewport(ratio=1)
    await page.get_by_role("tab", name="Snapshots").click()
    await page.get_by_label("New snapshot").fill("before")
    await page.get_by_role("button", name="Take snapshot").click()
    await expect(page.get_by_role("row", name="before")).to_contain_text("ready")
    await page.get_by_role("button", name="Restore before").click()
    await page.get_by_role("dialog").get_by_role("button", name="Restore").click()
    await expect(page.get_by_text("web-1 goes back to before.")).to_be_visible()
    await page.get_by_role("link", name="New machine of before").click()
    await page.get_by_label("Name", exact=True).fill("web-2")
    await expect(page.get_by_label("Labels", exact=True)).to_have_value("app=web")
    await page.get_by_role("button", name="Create", exact=True).click()
    await expect(page.get_by_role("heading", level=1, name="web-2")).to_be_visible()
    await expect(page.get_by_text(f"clone of {vm['id']} at before")).to_be_visible()
    await page.goto(f"{plane.url}/#/vms/default/default/{vm['id']}?tab=snapshots")
    await page.get_by_role("button", name="Delete snapshot before").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete snapshot").click()
    await expect(page.get_by_role("heading", name="It has no snapshot")).to_be_visible()

    await page.get_by_role("tab", name="Placement").click()
    verdicts = page.get_by_role("table", name="Verdicts on nodes")
    await expect(verdicts.get_by_role("row")).to_have_count(3)
    await expect(verdicts.get_by_role("row").filter(has_text="it is here")).to_contain_text("fits")
    await page.get_by_role("tab", name="Events").click()
    await expect(page.get_by_role("list", name="What led to it")).to_contain_text("admin")
    await page.get_by_role("tab", name="Console log").click()
    await expect(page.locator("pre.vms-log")).to_contain_text("simulated machine")
    await page.get_by_role("tab", name="Settings").click()
    await page.get_by_label("Memory in MiB").fill("1024")
    await page.get_by_role("button", name="Change", exact=True).click()
    await expect(page.get_by_text(re.compile("^Changed"))).to_be_visible()

    expect_trouble("404", must=False)  # it may be asked for once more while it goes
    await page.get_by_role("button", name="Delete", exact=True).click()
    asked = page.get_by_role("dialog", name="Delete web-1?")
    await expect(asked.get_by_role("button", name="Delete")).to_be_disabled()
    await asked.get_by_role("textbox").fill("web-1")
    await asked.get_by_role("button", name="Delete").click()
    await expect(page.get_by_text("web-1 is gone.")).to_be_visible()
    audit = (await plane.call("GET", "/v1/audit?limit=1000"))["items"]
    assert ("admin", "vm.delete") in {(line["who"], line["verb"]) for line in audit}


async def test_a_change_leaves_what_others_changed_meanwhile(cheap_plane: Plane, page: Page, enter: Enter) -> None:
    vm = await made(cheap_plane, "shared", labels={"app": "web"})
    path = f"{PROJECT}/vms/{vm['id']}"
    await enter(page, cheap_plane, at=f"#/vms/acme/web/{vm['id']}?tab=change")
    await page.get_by_label("Cores", exact=True).fill("2")
    await cheap_plane.call("PATCH", path, {"labels": {"owner": "bob"}, "memory_mib": 2048})
    await expect(page.get_by_label("Memory in MiB")).to_have_value("2048")
    await expect(page.get_by_label("Labels", exact=True)).to_have_value("owner=bob")
    await expect(page.get_by_label("Cores", exact=True)).to_have_value("2")
    sent: list[Any] = []
    page.on("request", lambda asked: sent.append(asked.post_data_json) if asked.method == "PATCH" else None)
    await page.get_by_role("button", name="Change", exact=True).click()
    await expect(page.get_by_text(re.compile("^Changed"))).to_be_visible()
    now = await cheap_plane.call("GET", path)
    assert (now["spec"]["cpus"], now["spec"]["memory_mib"], now["labels"]) == (2, 2048, {"owner": "bob"})
    assert sent == [{"cpus": 2}]


async def test_who_changes_what_another_changed_meanwhile_is_asked_which_shall_be(
    cheap_plane: Plane, page: Page, enter: Enter, axe: Check
) -> None:
    vm = await made(cheap_plane, "shared")
    path = f"{PROJECT}/vms/{vm['id']}"
    await enter(page, cheap_plane, at=f"#/vms/acme/web/{vm['id']}?tab=change")
    cores, memory = page.get_by_label("Cores", exact=True), page.get_by_label("Memory in MiB")
    change = page.get_by_role("button", name="Change", exact=True)
    asked = page.get_by_role("alert").filter(has_text="Another user changed this record")
    await cores.fill("2")
    await memory.fill("100")
    await cheap_plane.call("PATCH", path, {"memory_mib": 2048})
    await expect(asked).to_contain_text("Memory in MiB: it was 64, is 2048 now, and you wrote 100.")
    await expect(change).to_be_disabled()
    await axe(page)
    await asked.get_by_role("button", name="Take what is there now").click()
    await expect(asked).to_have_count(0)
    await expect(memory).to_have_value("2048")
    await expect(cores).to_have_value("2")
    await memory.fill("100")
    await cheap_plane.call("PATCH", path, {"memory_mib": 4096})
    await asked.get_by_role("button", name="Keep what I wrote").click()
    await change.click()
    await expect(page.get_by_text(re.compile("^Changed"))).to_be_visible()
    now = await cheap_plane.call("GET", path)
    assert (now["spec"]["cpus"], now["spec"]["memory_mib"]) == (2, 100)


async def test_a_change_that_the_page_has_not_heard_of_is_asked_about_as_well(
    cheap_plane: Plane, page: Page, enter: Enter, expect_trouble: Callable[..., None]
) -> None:
    expect_trouble("ERR_FAILED")
    vm = await made(cheap_plane, "shared")
    path = f"{PROJECT}/vms/{vm['id']}"
    await page.route("**/v1/events?*", lambda route: route.abort())
    await enter(page, cheap_plane, at=f"#/vms/acme/web/{vm['id']}?tab=change")
    await page.get_by_label("Memory in MiB").fill("100")
    await cheap_plane.call("PATCH", path, {"memory_mib": 2048, "labels": {"owner": "bob"}})
    await page.get_by_role("button", name="Change", exact=True).click()
    await expect(page.get_by_role("alert").filter(has_text="is 2048 now, and you wrote 100")).to_be_visible()
    now = await cheap_plane.call("GET", path)
    assert (now["spec"]["memory_mib"], now["labels"]) == (2048, {"owner": "bob"})


async def test_what_does_not_fit_is_said_before_and_after(
    cheap_plane: Plane, page: Page, enter: Enter, expect_trouble: Callable[..., None]
) -> None:
    await cheap_plane.call("PUT", f"{PROJECT}/quota", {"vms": 2, "cpus": 4})
    await cheap_plane.user("ann", "member", "acme/web")
    await made(cheap_plane, "first")
    await enter(page, cheap_plane, "ann", "#/vms/new")
    await expect(page.get_by_label("Project", exact=True)).to_have_value("acme/web")
    await expect(page.get_by_text("1 machine of 2 left by its quota.")).to_be_visible()
    await page.get_by_label("Name", exact=True).fill("first")
    await page.get_by_label("Cores", exact=True).fill("4")
    await expect(page.get_by_label("Cores", exact=True)).to_have_accessible_description(
        re.compile("The quota leaves 3 of 4 cores")
    )
    await expect(page.get_by_text("It will not fit.")).to_be_visible()
    expect_trouble("409", "400")
    create = page.get_by_role("button", name="Create", exact=True)
    await create.click()
    await expect(page.get_by_role("alert").filter(has_text="cpus would be 5, its quota allows 4")).to_have_count(2)
    await page.get_by_label("Cores", exact=True).fill("3")
    await page.get_by_label("Name", exact=True).fill("a/b")
    await create.click()
    await expect(page.get_by_label("Name", exact=True)).to_have_accessible_description(re.compile(r"\$\.name"))
    await expect(page.get_by_role("alert").filter(has_text="$.name").last).to_be_focused()
    await page.get_by_label("Name", exact=True).fill("second")
    posts: list[str] = []
    page.on("request", lambda one: posts.append(one.url) if one.method == "POST" else None)
    await create.evaluate("(button) => { for (let n = 0; n < 3; n += 1) button.click(); }")
    await expect(page.get_by_role("heading", level=1, name="second")).to_be_visible()
    await expect(page.get_by_text("waits for its first placement")).to_be_visible()
    assert len(posts) == 1, posts


async def test_machines_are_found_and_change_before_ones_eyes(  # noqa: PLR0917 - its fixtures
    cheap_plane: Plane, page: Page, enter: Enter, axe: Check, narrow: Check, shot: Shot
) -> None:
    plane = cheap_plane
    assert plane.api is not None
    for node in ("rack1-blade1", "rack1-blade2"):
        await plane.api.node(node)
    vms = [
        await made(plane, f"{kind}-{n}", labels={"app": kind}, project=f"/v1/orgs/acme/projects/{kind}")
        for kind in ("db", "web")
        for n in range(1, 7)
    ]
    for n, vm in enumerate(vms):
        ready = Readiness(step=Step.AVAILABLE, since=0.0) if n % 2 else None
        await seen(plane, vm, MachineState.RUNNING, f"rack1-blade{1 + n % 2}", readiness=ready)
    hostile = await made(plane, SCRIPT[:60].replace("/", "-"), labels={"note": SCRIPT})
    await enter(page, plane, at="#/vms")
    count = page.locator(".filters-count")
    await expect(count).to_have_text("13 machines")
    await expect(rows(page).filter(has_text=hostile["name"])).to_have_count(1)
    await axe(page)
    await narrow(page)
    await shot(page, "machines")

    await page.get_by_label("Search").fill("WEB-")
    await expect(count).to_have_text("6 of 13 machines")
    await page.get_by_label("Node", exact=True).select_option("rack1-blade1")
    await expect(count).to_have_text("3 of 13 machines")
    assert re.search(r"#/vms\?.*q=WEB-", page.url), page.url
    await page.reload()
    await expect(count).to_have_text("3 of 13 machines")
    await page.get_by_label("Labels", exact=True).fill("app=db")
    await expect(page.get_by_role("heading", name="No machine matches")).to_be_visible()
    await page.get_by_role("link", name="Show all machines").click()
    await expect(count).to_have_text("13 machines")

    web1 = next(vm for vm in vms if vm["name"] == "web-1")
    await seen(plane, web1, MachineState.FAILED, "rack1-blade1", detail="its disk is full")
    await expect(rows(page).filter(has_text="web-1")).to_contain_text("failed")
    await expect(rows(page).filter(has_text="web-1")).to_contain_text("its disk is full")
    await plane.api.store.txn([], [ALIVE.delete(node="rack1-blade2")])
    await expect(rows(page).filter(has_text="silent")).to_have_count(6)
    # A node that is heard again: what its agent saw last still holds, also for a page that was read meanwhile.
    available = rows(page).filter(has_text="available")
    await plane.api.node("rack1-blade2")
    await expect(available).to_have_count(6)
    await plane.api.store.txn([], [ALIVE.delete(node="rack1-blade2")])
    await expect(available).to_have_count(0)
    await page.reload()
    await expect(rows(page).filter(has_text="silent")).to_have_count(6)
    await plane.api.node("rack1-blade2")
    await expect(available).to_have_count(6)
    await page.get_by_label("Phase").select_option("failed")
    await expect(count).to_have_text("1 of 13 machines")
    await page.get_by_label("Phase").select_option("")
    await made(plane, "new-one")
    await expect(count).to_have_text("14 machines")
    await page.get_by_label("Order").select_option("newest")
    await expect(rows(page).first).to_contain_text("new-one")

    await page.get_by_label("Mark new-one").check()
    await page.get_by_role("group", name="What is marked").get_by_role("button", name="Delete").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(rows(page).filter(has_text="new-one")).to_contain_text("deleting")


async def test_what_a_machine_is_called_is_text(
    cheap_plane: Plane, page: Page, enter: Enter, axe: Check, narrow: Check
) -> None:
    plane = cheap_plane
    assert plane.api is not None
    await plane.api.node("n1")
    vm = await made(plane, "<img src=x onerror=alert(1)>", labels={"note": SCRIPT})
    await seen(plane, vm, MachineState.FAILED, detail=SCRIPT)
    await enter(page, plane, at=f"#/vms/acme/web/{vm['id']}")
    await expect(page.get_by_role("heading", level=1)).to_have_text(vm["name"])
    await expect(page.get_by_text(f"note={SCRIPT}")).to_be_visible()
    assert (await page.title()).startswith("<img")
    assert await page.locator("main img, main script").count() == 0
    await axe(page)
    await narrow(page)


async def test_a_long_name_makes_no_page_wider(cheap_plane: Plane, page: Page, enter: Enter, narrow: Check) -> None:
    assert cheap_plane.api is not None
    await cheap_plane.api.node("n1")
    vm = await made(cheap_plane, "x" * 63)
    await seen(cheap_plane, vm, MachineState.RUNNING)
    await enter(page, cheap_plane, at=f"#/vms/acme/web/{vm['id']}")
    await expect(page.get_by_text("hostler vm console")).to_be_visible()
    await narrow(page)


async def test_a_retained_machine_is_restored_as_another_one_and_its_disk_is_deleted_after_a_question(
    cheap_plane: Plane, page: Page, enter: Enter, *, axe: Check, narrow: Check, expect_trouble: Callable[..., None]
) -> None:
    assert cheap_plane.api is not None
    vm = await made(cheap_plane, "db")
    await seen(cheap_plane, vm, MachineState.RUNNING, node="n2")  # it has a newer disk
    node = NodeRecord(
        node="n1", lifecycle=Lifecycle.ON_DUTY, capacity=Capacity(cpus=1, memory_mib=1), registered_at=0.0
    )
    puts = [MEMBER.put(node, node="n1")]
    for name, whose in (("db-1", vm["id"]), ("old-1", "gone")):
        kept = Retained(
            name=name,
            org="acme",
            project="web",
            vm=whose,
            vm_name=name[:-2],
            spec=VmSpec(cpus=1, memory_mib=64),
            snapshots=("before", "after"),
            retained_at=time.time(),
            disk_bytes=3 * 2**20,
        )
        puts.append(RETAINED.put(kept, node="n1", name=name))
    await cheap_plane.api.store.txn([], puts)
    await enter(page, cheap_plane, at="#/vms")
    table = page.get_by_role("table", name="Retained machines")
    await expect(table.get_by_role("row")).to_have_count(3)
    await axe(page)
    await narrow(page)

    await page.get_by_role("button", name="Delete old-1").click()
    asked = page.get_by_role("dialog", name="Delete the disk of old?")
    await expect(asked).to_contain_text("acme/web/old: the disk (3 MiB) n1/old-1, snapshots before, after")
    await expect(asked).to_contain_text("Node n1 cannot be reached")
    await expect(asked.get_by_role("button", name="Delete")).to_be_disabled()
    await asked.get_by_role("textbox").fill("old")
    await asked.get_by_role("button", name="Delete").click()
    await expect(table.get_by_role("row", name="old-1")).to_contain_text("being deleted")
    requests = (await RETAINED_REQUEST.list(cheap_plane.api.store)).entries
    assert [entry.parts["name"] for entry in requests] == ["old-1"]

    await page.get_by_role("button", name="Restore db-1").click()
    form = page.get_by_role("dialog", name="Restore db?")
    await expect(form).to_contain_text("snapshots before, after")
    expect_trouble("409")
    await form.get_by_role("button", name="Restore").click()
    await expect(form.get_by_role("alert")).to_contain_text("vm db has a newer disk on node n2")
    await form.get_by_label("Name of a new machine").fill("db-again")
    await form.get_by_role("button", name="Restore").click()
    await expect(page.get_by_role("heading", level=1, name="db-again")).to_be_visible()
    (entry,) = [e for e in (await VM.list(cheap_plane.api.store)).entries if e.value.name == "db-again"]
    assert entry.value.reinstate == Reinstatement(node="n1", name="db-1")


async def test_user_data_that_the_image_does_not_run_is_said_before_and_after_a_machine_is_made(
    cheap_plane: Plane, page: Page, enter: Enter
) -> None:
    assert cheap_plane.api is not None
    node = NodeRecord(
        node="n1",
        lifecycle=Lifecycle.ON_DUTY,
        capacity=Capacity(cpus=8, memory_mib=8192),
        images=("", "tiny"),
        image_needs={"tiny": ImageNeeds(memory_mib=128, default=True, seeding="firmware")},
        registered_at=0.0,
    )
    beat = ALIVE.put(Heartbeat(holder="h", started_at=1.0), node="n1")
    await cheap_plane.api.store.txn([], [MEMBER.put(node, node="n1"), beat])
    await enter(page, cheap_plane, at="#/vms/new")
    await page.get_by_label("Name", exact=True).fill("web-1")
    await page.get_by_text("Placement, network and more").click()
    await page.get_by_label("User data").fill("#!/bin/sh")
    await expect(page.get_by_text("tiny has no cloud-init")).to_be_visible()
    await expect(page.get_by_text("It will not be run")).to_have_count(0)
    await page.get_by_label("User data").fill("#cloud-config")
    await expect(page.get_by_text("It will not be run: tiny has no cloud-init")).to_be_visible()
    await page.get_by_role("button", name="Create", exact=True).click()
    await expect(page.get_by_text("user_data is not run: the default image has no cloud-init")).to_be_visible()


async def test_who_may_not_change_machines_is_offered_nothing(
    cheap_plane: Plane, page: Page, new_page: NewPage, enter: Enter, expect_trouble: Callable[..., None]
) -> None:
    vm = await made(cheap_plane, "web-1")
    await cheap_plane.user("vera", "viewer", "acme/web")
    await cheap_plane.user("olga", "member", "acme/other")
    await enter(page, cheap_plane, "vera", "#/vms")
    await expect(rows(page)).to_have_count(1)
    await expect(page.get_by_role("link", name="Create a machine")).to_have_count(0)
    await expect(page.get_by_role("checkbox")).to_have_count(0)
    await rows(page).first.get_by_role("link", name="web-1").click()
    await expect(page.get_by_role("heading", level=1, name="web-1")).to_be_visible()
    await expect(page.get_by_role("button", name="Delete")).to_have_count(0)
    tabs = page.get_by_role("tab")
    await expect(tabs).to_have_text(["Overview", "Snapshots", "Placement", "Events"])
    await page.goto(f"{cheap_plane.url}/#/vms/new")
    await expect(page.get_by_role("heading", name="You may not create machines")).to_be_visible()
    # What the page does not offer the server refuses, too.
    session = await page.evaluate("fetch('/v1/sessions/browser').then((answer) => answer.json())")
    path = f"{PROJECT}/vms/{vm['id']}/tickets"
    expect_trouble("403", "404")
    status = await page.evaluate(
        """([path, csrf]) => fetch(path, {method: "POST", body: '{"door":"console"}',
           headers: {"Content-Type": "application/json", "Hostler-Csrf": csrf}}).then((answer) => answer.status)""",
        [path, session["csrf"]],
    )
    assert status == 403
    other = await new_page()
    await enter(other, cheap_plane, "olga", f"#/vms/acme/web/{vm['id']}")
    await expect(other.get_by_role("alert")).to_contain_text("not found, or this account is not a member")


async def test_twenty_thousand_machines_are_shown_and_searched(planes: Planes, page: Page, enter: Enter) -> None:
    """The bounds leave room for a machine that is busy; docs/web.md has what was measured."""
    from hostler.keys.families import VM
    from hostler.model.vm import VirtualMachine, VmSpec

    plane = await planes.cheap()
    assert plane.api is not None
    many, store = 20_000, plane.api.store
    spec = VmSpec(cpus=1, memory_mib=64)
    for begin in range(0, many, 100):
        puts = []
        for n in range(begin, begin + 100):
            ids = {"org": "acme", "project": f"p{n % 9}", "vm": f"{n:032x}"}
            wish = VirtualMachine(
                id=ids["vm"], name=f"m-{n:05}", org="acme", project=ids["project"], spec=spec, created_at=float(n)
            )
            puts.append(VM.put(wish, **ids))
        await store.txn([], puts)
    await enter(page, plane, at="#/vms")
    await expect(rows(page).first).to_be_visible()
    await expect(page.locator(".filters-count"), within=10).to_have_text("20,000 machines")
    assert await rows(page).count() < 100
    sent = await page.evaluate(
        """performance.getEntriesByType("resource").filter((one) => one.name.includes("brief=true"))
             .reduce((sum, one) => sum + one.transferSize, 0)"""
    )
    assert 0 < sent < many * 100, "10 MB for 100,000"
    await page.get_by_label("Search").fill("m-19998")
    await expect(page.locator(".filters-count")).to_have_text("1 of 20,000 machines")
    await page.get_by_label("Search").fill("")
    await expect(page.locator(".filters-count")).to_have_text("20,000 machines")
    await page.get_by_role("table", name="Machines").focus()
    await page.keyboard.press("End")
    await expect(rows(page).last).to_contain_text("m-19999")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1, name="m-19999")).to_be_visible()

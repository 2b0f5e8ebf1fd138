"""The floor: an inventory is loaded in the page and seen, a blade opens, a node that is killed is seen to heal."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from playwright.async_api import Locator, Page
from web_expect import expect
from web_plane import Plane, Planes
from web_type import Check, Enter, Shot

from hostler.keys.families import ALIVE, COMMAND, HANDLE, MEMBER, RETAINED, VM
from hostler.model.inventory import Capacity
from hostler.model.node import Heartbeat, Lifecycle, NodeRecord, Retained, VmCommand
from hostler.model.vm import MachineState, Snapshot, SnapshotState, VmHandle, VmSpec

VMS = "/v1/orgs/acme/projects/web/vms"
FEEDS = {"pdus": [{"name": "pdu1", "ports": 10}, {"name": "pdu2", "ports": 10}], "tors": [{"name": "tor1", "ports": 8}]}
RACKS = [{"name": f"r{n}", "location": "hall 2", "blades": {"count": 8, "cpus": 16}, **FEEDS} for n in range(1, 7)]
DOCUMENT = {
    "regions": [{"name": "eu", "zones": [{"name": "eu-1", "racks": RACKS[:4]}, {"name": "eu-2", "racks": RACKS[4:]}]}]
}


async def node(plane: Plane, name: str, *, alive: bool = True, vms: int = 0, **more: Any) -> None:
    """As if an agent had registered there."""
    assert plane.api is not None
    fields = {
        "lifecycle": Lifecycle.ON_DUTY,
        "capacity": Capacity(cpus=16, memory_mib=65536),
        "registered_at": time.time() - 5000,
    }
    puts: list[Any] = [MEMBER.put(NodeRecord(node=name, driver="simulated", **{**fields, **more}), node=name)]
    if alive:
        puts.append(ALIVE.put(Heartbeat(holder="h", started_at=1.0), node=name))
    for number in range(vms):
        told = VmCommand(
            org="acme", project="web", vm=f"{name}{number}", name=f"www-{number}", spec=VmSpec(cpus=2, memory_mib=1024)
        )
        puts.append(COMMAND.put(told, node=name, vm=told.vm))
    await plane.api.store.txn([], puts)


async def disks_on(plane: Plane, name: str) -> str:
    """A machine of the node, with a snapshot, and a retained one; the key of the command for the first."""
    assert plane.api is not None
    vm = await plane.call("POST", VMS, {"name": "db", "spec": {"cpus": 1, "memory_mib": 64, "disk_gib": 7}})
    taken = {"before": Snapshot(state=SnapshotState.READY, taken_at=1.0)}
    running = VmHandle(id=vm["id"], node=name, state=MachineState.RUNNING, generation=1, seen_at=0.0, snapshots=taken)
    command = VmCommand(org="acme", project="web", vm=vm["id"], name="db", spec=VmSpec(cpus=1, memory_mib=64))
    told = COMMAND.put(command, node=name, vm=vm["id"])
    kept = Retained(
        name="old-1",
        org="acme",
        project="web",
        vm="gone",
        vm_name="old",
        spec=VmSpec(cpus=1, memory_mib=64),
        snapshots=("first",),
        retained_at=time.time(),
        disk_bytes=3 * 2**20,
    )
    wanted = VM.entry(await plane.api.store.get(VM.fill(org="acme", project="web", vm=vm["id"]))).value
    wish = VM.put(msgspec.structs.replace(wanted, snapshots=("before",)), org="acme", project="web", vm=vm["id"])
    handle = HANDLE.put(running, org="acme", project="web", vm=vm["id"])
    await plane.api.store.txn([], [told, wish, handle, RETAINED.put(kept, node=name, name="old-1")])
    return told.key


def key(page: Page, word: str) -> Locator:
    """Of the legend."""
    return page.get_by_role("list", name="States of blades").get_by_role("button", name=re.compile(f"^{word} "))


def aside(page: Page) -> Locator:
    return page.get_by_role("region", name="What is selected")


async def test_an_inventory_is_loaded_in_the_page_and_the_floor_is_seen(
    page: Page, cheap_plane: Plane, enter: Enter, *, axe: Check, narrow: Check, expect_trouble: Callable[..., None]
) -> None:
    await enter(page, cheap_plane, at="#/racks")
    await expect(page.get_by_role("heading", name="No racks yet")).to_be_visible()
    await expect(page.get_by_text("hostler inventory load dc.yaml")).to_be_visible()
    await axe(page)
    await page.get_by_role("link", name="Load an inventory").click()
    wrong = {
        "name": "dc.yaml",
        "mimeType": "application/yaml",
        "buffer": b"racks:\n  - name: r-1\n    blades: {count: 0}\n",
    }
    expect_trouble("400")
    await page.get_by_label("Inventory file").set_input_files(wrong)  # type: ignore[arg-type]
    await page.get_by_role("button", name="Show what would change").click()
    told = page.get_by_role("alert").filter(has_text="4 mistakes")
    await expect(told).to_be_focused()
    await expect(told).to_be_in_viewport()
    await expect(told.get_by_role("listitem").first).to_contain_text("line 2 racks[0].name")
    await expect(told).not_to_contain_text("correct the request")
    await told.get_by_role("listitem").filter(has_text="racks[0].blades.count").get_by_role("button").click()
    text = page.get_by_label("What it says")
    await expect(text).to_be_focused()
    assert await page.evaluate("getSelection().toString()") == "    blades: {count: 0}"

    # What somebody has written is not thrown away for a press.
    await text.fill("racks: []")
    await page.get_by_role("button", name="Start from an example").click()
    question = page.get_by_role("dialog", name="Replace what you have written?")
    await question.get_by_role("button", name="Cancel").click()
    await expect(text).to_have_value("racks: []")
    await page.get_by_role("button", name="Start from an example").click()
    await question.get_by_role("button", name="Replace it").click()
    await page.get_by_role("button", name="Show what would change").click()
    plan = page.get_by_role("region", name="What would change")
    await expect(plan.get_by_role("heading")).to_be_focused()
    await expect(plan.get_by_role("heading")).to_be_in_viewport()
    await expect(plan).to_contain_text("26 added, 0 changed, 0 removed")
    await expect(plan).to_contain_text("8 blades of r1 (b1 to b8)")
    assert (await cheap_plane.call("GET", "/v1/racks"))["items"] == []
    await axe(page)
    await narrow(page)
    await plan.get_by_role("button", name="Load it").click()

    await expect(page.get_by_role("heading", name="2 racks, 16 blades")).to_be_visible()
    await expect(key(page, "No agent yet")).to_contain_text("16")
    await node(cheap_plane, "r1-b1", vms=3)  # seen without anybody asking for it
    await expect(key(page, "On duty")).to_contain_text("1")
    await expect(key(page, "No agent yet")).to_contain_text("15")
    await cheap_plane.call("PATCH", "/v1/racks/r1/blades/b2", {"condition": "out_for_repair"})
    await expect(key(page, "Out for repair")).to_contain_text("1")

    async with page.expect_download() as download:
        await page.get_by_role("button", name="Export the inventory").click()
    saved = (await (await download.value).path()).read_bytes()
    kept = await cheap_plane.ask("POST", "/v1/inventory/read", {"text": saved.decode(), "file": "inventory.json"})
    assert [rack["name"] for rack in kept.json["regions"][0]["zones"][0]["racks"]] == ["r1", "r2"]


async def test_a_blade_opens_by_keyboard_with_its_node_its_machines_and_what_feeds_it(
    page: Page, cheap_plane: Plane, enter: Enter, *, axe: Check, narrow: Check, shot: Shot
) -> None:
    await cheap_plane.call("PUT", "/v1/inventory", DOCUMENT)
    for rack in range(1, 7):
        for blade in range(1, 9):
            more: dict[str, Any] = {"vms": (rack * blade) % 5}
            if (rack, blade) == (2, 3):
                more["lifecycle"] = Lifecycle.DRAINING
            if (rack, blade) != (5, 6):
                await node(cheap_plane, f"r{rack}-b{blade}", alive=(rack, blade) not in {(3, 2), (3, 7)}, **more)
    await cheap_plane.call("PATCH", "/v1/racks/r4/pdus/pdu2", {"condition": "out_for_repair"})
    await cheap_plane.call("PATCH", "/v1/racks/r6/blades/b4", {"enabled": False})
    await enter(page, cheap_plane, at="#/racks")
    await expect(key(page, "Silent")).to_contain_text("2")

    picture = page.get_by_role("application", name="Picture of the racks")
    said = page.get_by_role("status").filter(has_text="Blade r")
    await picture.focus()
    await picture.press("ArrowDown")
    await expect(said).to_have_text("Blade r1/b1: on duty, 1 machine.")
    await picture.press("ArrowUp")  # to no tor, as it is no blade
    await expect(said).to_have_text("Blade r1/b1: on duty, 1 machine.")
    feeds = page.get_by_role("status").filter(has_text=re.compile("^(Pdu|Tor) r1/"))
    for press, feed in (("p", "Pdu r1/pdu1"), ("p", "Pdu r1/pdu2"), ("t", "Tor r1/tor1")):
        await picture.press(press)
        await expect(feeds).to_have_text(f"{feed}: working.")
    await picture.press("Home")
    await picture.press("ArrowDown")
    await picture.press("ArrowRight")
    await expect(said).to_have_text("Blade r2/b2: on duty, 4 machines.")
    await picture.press("ArrowDown")
    await expect(said).to_have_text("Blade r2/b3: draining, 1 machine.")
    await picture.press("Enter")
    await expect(page).to_have_url(re.compile("#/racks/r2/b3$"))
    opened = page.get_by_role("heading", name="Blade r2/b3")
    await expect(opened).to_be_focused()
    await expect(aside(page)).to_contain_text("2 of 16")
    await expect(aside(page).get_by_role("link", name="acme/web/www-0")).to_have_attribute(
        "href", "#/vms/acme/web/www-0"
    )
    for feed in ("pdu1", "pdu2", "tor1"):
        await expect(aside(page).get_by_role("link", name=feed, exact=True)).to_have_attribute(
            "href", f"#/racks/r2/{feed}"
        )
    await axe(page)
    await narrow(page)
    await shot(page, "racks")
    await aside(page).get_by_role("tab", name="Why").click()
    await expect(aside(page)).to_contain_text("node r2-b3 is draining")

    await aside(page).get_by_role("link", name="Rack r2").click()
    table = aside(page).get_by_role("region", name="What is in r2")
    await expect(table.get_by_role("row")).to_have_count(1 + 1 + 8 + 2)
    await expect(table.get_by_role("row", name=re.compile("b3"))).to_contain_text("Draining")
    await axe(page)

    # The words below follow what is opened, by whatever way it is.
    await page.goto(f"{cheap_plane.url}/#/racks/r4/b5")
    await expect(said).to_have_text("Blade r4/b5: on duty, 0 machines.")
    await picture.focus()
    await picture.press("p")
    await picture.press("Enter")
    await expect(page.get_by_role("heading", name="Pdu r4/pdu1")).to_be_focused()
    await page.evaluate("location.hash = '#/racks/r2/b1'")
    await picture.focus()
    await expect(said).to_have_text("Blade r2/b1: on duty, 2 machines.")
    await aside(page).get_by_role("tab", name="Why").press("Escape")
    await expect(page.get_by_role("heading", name="6 racks, 48 blades")).to_be_visible()
    await expect(picture).to_be_focused()

    await page.get_by_role("searchbox", name="Find a rack, blade or node").fill("r3-b7")
    await page.get_by_role("list", name="Found").get_by_role("link", name="r3/b7").click()
    await expect(page.get_by_role("heading", name="Blade r3/b7")).to_be_visible()
    await key(page, "Silent").click()
    await expect(page).to_have_url(re.compile("state=silent"))
    await page.goto(f"{cheap_plane.url}/#/racks/r9/b1")
    await expect(page.get_by_role("alert")).to_contain_text("There is no r9/b1 on this floor")
    await node(cheap_plane, "r9-b1")  # an agent whose rack nobody has listed
    await expect(page.get_by_role("heading", name="Node r9-b1")).to_be_visible()
    await expect(aside(page)).to_contain_text("0 of 16")


async def test_the_picture_lets_the_page_scroll_and_has_room_for_a_finger(
    page: Page, cheap_plane: Plane, enter: Enter
) -> None:
    await cheap_plane.call("PUT", "/v1/inventory", DOCUMENT)
    await page.set_viewport_size({"width": 1280, "height": 560})
    await enter(page, cheap_plane, at="#/racks/r1")
    await expect(aside(page).get_by_role("region", name="What is in r1")).to_be_visible()  # the page has its height
    picture = page.get_by_role("application", name="Picture of the racks")
    box = await picture.bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + 50, box["y"] + 20)
    fits = (
        "(() => { const box = document.querySelector('.racks-view'); return box.scrollHeight <= box.clientHeight })()"
    )
    assert await page.evaluate(fits)
    title = page.get_by_role("heading", name="Racks", exact=True)
    await expect(title).to_be_in_viewport()
    await page.mouse.wheel(0, 200)
    await expect(title).not_to_be_in_viewport()

    await page.set_viewport_size({"width": 360, "height": 740})
    await page.goto(f"{cheap_plane.url}/#/racks/r1/b2")
    await expect(page.get_by_role("heading", name="Blade r1/b2")).to_be_visible()
    await picture.scroll_into_view_if_needed()
    box = await picture.bounding_box()
    assert box is not None
    tall = 0
    for y in range(10, 200, 2):
        await page.mouse.move(box["x"] + 150, box["y"] + y)
        tall += 2 * ("r1/b2:" in (await picture.get_attribute("title") or ""))
    assert tall >= 24, f"a blade is {tall} pixels tall"


async def test_what_is_taken_out_of_use_is_asked_for_and_seen_at_once(
    page: Page, cheap_plane: Plane, enter: Enter
) -> None:
    await cheap_plane.call("PUT", "/v1/inventory", DOCUMENT)
    await node(cheap_plane, "r1-b1")
    await node(cheap_plane, "r1-b2", alive=False)
    told = await disks_on(cheap_plane, "r1-b2")
    await enter(page, cheap_plane, at="#/racks/r1/b1")
    await aside(page).get_by_role("button", name="Out for repair").click()
    await (
        page.get_by_role("dialog", name="Take Blade r1/b1 out for repair?").get_by_role("button", name="Do it").click()
    )
    await expect(key(page, "Out for repair")).to_contain_text("1")
    await expect(aside(page)).to_contain_text("blade r1/b1: out_for_repair")
    await aside(page).get_by_role("button", name="Back into operation").click()
    await page.get_by_role("dialog").get_by_role("button", name="Do it").click()
    await aside(page).get_by_role("button", name="Drain", exact=True).click()
    await page.get_by_role("dialog", name="Drain r1-b1?").get_by_role("button", name="Drain it").click()
    await expect(key(page, "Draining")).to_contain_text("1")
    await aside(page).get_by_role("button", name="Activate").click()
    await page.get_by_role("dialog").get_by_role("button", name="Activate it").click()
    await expect(key(page, "On duty")).to_contain_text("1")
    await page.goto(f"{cheap_plane.url}/#/racks/r1/b2")
    # What is given up is named before it is asked for.
    await aside(page).get_by_role("button", name="Confirm that it is off").click()
    question = page.get_by_role("dialog", name="Is r1-b2 really off?")
    await expect(question).to_contain_text("acme/web/db: its disk of 7 GiB, snapshots before")
    await question.get_by_role("button", name="It is off").click()
    await expect(key(page, "Known to be off")).to_contain_text("1")
    assert cheap_plane.api is not None
    await expect(aside(page).get_by_role("button", name="Forget")).to_have_count(0)
    await cheap_plane.api.store.delete(told)
    await page.reload()
    await aside(page).get_by_role("button", name="Forget").click()
    question = page.get_by_role("dialog", name="Forget r1-b2?")
    await expect(question).to_contain_text("acme/web/old: the disk (3 MiB) r1-b2/old-1, snapshots first")
    await question.get_by_role("button", name="Forget it").click()
    await expect(page.get_by_text("r1-b2 is forgotten.")).to_be_visible()
    assert (await cheap_plane.call("GET", "/v1/retained"))["items"] == []

    # One word for one state; since when is told only where that is known.
    await node(cheap_plane, "r1-b3", lifecycle=Lifecycle.DECOMMISSIONED)
    await expect(key(page, "Drained")).to_contain_text("1")
    await page.goto(f"{cheap_plane.url}/#/racks/r1/b3")
    facts = aside(page).locator("dl").first
    await expect(facts).to_contain_text("Drained, reachable")
    await aside(page).get_by_role("tab", name="Why").click()
    await expect(aside(page).get_by_text("node r1-b3 is drained")).to_be_visible()
    await expect(aside(page).get_by_text("since")).to_have_count(0)


async def test_a_drain_is_refused_only_if_the_node_changed_in_what_was_decided_by(
    page: Page, cheap_plane: Plane, enter: Enter, expect_trouble: Callable[..., None]
) -> None:
    await cheap_plane.call("PUT", "/v1/inventory", DOCUMENT)
    for name in ("r1-b1", "r1-b2"):
        await node(cheap_plane, name)
    await enter(page, cheap_plane, at="#/racks/r1/b1")
    expect_trouble("412")
    await aside(page).get_by_role("button", name="Drain", exact=True).click()
    await node(cheap_plane, "r1-b1")  # its agent writes the record again while the question is open
    await page.get_by_role("dialog").get_by_role("button", name="Drain it").click()
    await expect(key(page, "Draining")).to_contain_text("1")

    await page.goto(f"{cheap_plane.url}/#/racks/r1/b2")
    await aside(page).get_by_role("button", name="Drain by stopping").click()
    await node(cheap_plane, "r1-b2", lifecycle=Lifecycle.DECOMMISSIONED)
    await page.get_by_role("dialog").get_by_role("button", name="Drain it by stopping").click()
    await expect(page.get_by_text("is not the present one")).to_be_visible()


@pytest.mark.parametrize("part", ["pdu1", "tor1", "b1"])
async def test_a_part_is_taken_out_for_repair_though_the_inventory_was_loaded_anew(
    page: Page, cheap_plane: Plane, enter: Enter, expect_trouble: Callable[..., None], *, part: str
) -> None:
    expect_trouble("412")  # the first answer; the page looks what differs, and finds nothing that it showed
    await cheap_plane.call("PUT", "/v1/inventory", {"racks": [{"name": "r1", "blades": {"count": 2}, **FEEDS}]})
    await enter(page, cheap_plane, at=f"#/racks/r1/{part}")
    await aside(page).get_by_role("button", name="Out for repair").click()
    feeds = {kind: [{**one, "ports": one["ports"] + 1} for one in found] for kind, found in FEEDS.items()}
    await cheap_plane.call(
        "PUT", "/v1/inventory", {"racks": [{"name": "r1", "blades": {"count": 3, "cpus": 8}, **feeds}]}
    )
    await page.get_by_role("dialog").get_by_role("button", name="Do it").click()
    await expect(aside(page).get_by_role("button", name="Back into operation")).to_be_visible()
    if part == "b1":  # out for repair without an agent: nothing is asked of a node that is not there
        await page.reload()
        await expect(aside(page)).to_contain_text("No agent has registered as r1-b1 yet.")
        await expect(aside(page).get_by_role("alert")).to_have_count(0)


async def test_who_may_only_look_is_offered_nothing_and_refused_in_words(
    page: Page, cheap_plane: Plane, enter: Enter, *, expect_trouble: Callable[..., None]
) -> None:
    await cheap_plane.call("PUT", "/v1/inventory", DOCUMENT)
    await node(cheap_plane, "r1-b1")
    await cheap_plane.user("vera", "viewer", "acme/web")
    await enter(page, cheap_plane, "vera", at="#/racks/r1/b1")
    await expect(aside(page)).to_contain_text("0 of 16")
    for name in ("Disable", "Drain", "Out for repair", "Load an inventory"):
        await expect(page.get_by_role("button", name=name)).to_have_count(0)
        await expect(page.get_by_role("link", name=name)).to_have_count(0)
    await page.goto(f"{cheap_plane.url}/#/racks?view=inventory")
    await expect(page.get_by_text("takes the right modify_inventory")).to_be_visible()

    # The page of somebody whose right was taken away a moment ago still offers it.
    await cheap_plane.user("otto", "operator", "*")
    await page.context.clear_cookies()
    await page.goto("about:blank")
    await enter(page, cheap_plane, "otto", at="#/racks/r1/b1")
    await expect(aside(page).get_by_role("button", name="Disable")).to_be_visible()
    await cheap_plane.call("PATCH", "/v1/users/otto", {"role": "viewer"})
    expect_trouble("403")
    await aside(page).get_by_role("button", name="Disable").click()
    await page.get_by_role("dialog").get_by_role("button", name="Do it").click()
    await expect(page.get_by_role("status").filter(has_text="modify_inventory")).to_be_visible()


async def test_a_node_is_killed_and_the_page_shows_how_it_heals(page: Page, planes: Planes, enter: Enter) -> None:
    plane = await planes.replicated(replicas=1, nodes=2, prefix="r1-b")
    rack = {"name": "r1", "blades": {"count": 2}, **FEEDS}
    await plane.call("PUT", "/v1/inventory", {"racks": [rack]})
    await enter(page, plane, at="#/racks")
    await expect(key(page, "On duty")).to_contain_text("2")
    await page.evaluate("window.here = true")  # a page that is loaded anew would not know it
    made = {"name": "www", "spec": {"cpus": 1, "memory_mib": 64}, "on_node_loss": "recreate"}
    vm = (await plane.call("POST", VMS, made))["id"]
    rows = aside(page).get_by_role("row")
    await aside(page).get_by_role("link", name="r1", exact=True).click()
    await expect(
        rows.filter(has_text="1").filter(has_text="On duty").filter(has=page.get_by_role("cell", name="1", exact=True))
    ).to_have_count(1)
    home = (await plane.call("GET", f"{VMS}/{vm}"))["node"]
    number = int(home.removeprefix("r1-b"))
    plane.processes[number].kill()
    await expect(rows.filter(has_text=f"b{number}")).to_contain_text("Silent")
    other = rows.filter(has_text=f"b{3 - number}")
    await expect(other.get_by_role("cell").last, within=10).to_have_text("1")
    await other.get_by_role("link").click()
    await expect(aside(page).get_by_role("link", name="acme/web/www")).to_be_visible()
    await page.goto(f"{plane.url}/#/racks/r1/b{number}")
    await aside(page).get_by_role("tab", name="Why").click()
    await expect(aside(page)).to_contain_text("it became unreachable: no heartbeat came before its lease ended")
    assert await page.evaluate("window.here")

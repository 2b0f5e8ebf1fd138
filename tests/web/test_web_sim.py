"""A simulation in the page: its time, a fault on a click, and what followed as a tree of reasons."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import pytest
from harness import pace
from playwright.async_api import Locator, Page
from pytest_asyncio import fixture
from web_expect import expect
from web_plane import Plane, Planes
from web_type import Check, Enter, Shot

SCENARIO = """\
name: two-racks
about: Two racks, machines and slices; nothing happens by itself.
length: 1h
settings: {brake_share: 0.5}
inventory:
  racks:
    - name: r1
      pdus: [{name: pdu1, ports: 6}]
      tors: [{name: tor1, ports: 6}]
      blades: {count: 4, cpus: 8, memory: 16GiB}
    - name: r2
      pdus: [{name: pdu1, ports: 6}]
      tors: [{name: tor1, ports: 6}]
      blades: {count: 4, cpus: 8, memory: 16GiB}
workloads:
  - {name: web, on_node_loss: recreate, instances: 6, cpus: 1, memory: 1GiB}
blueprints:
  shop:
    slices:
      - {artifact: "org.shop:cart:1.0.0", instances: 4, needs: ["org.shop:prices"]}
      - {artifact: "org.shop:prices:1.0.0", instances: 2}
"""


@fixture(loop_scope="session")
async def world(planes: Planes) -> Plane:
    return await planes.simulated(SCENARIO, "--mode", "manual")


def time(page: Page) -> Locator:
    return page.get_by_role("region", name="Time of the simulation")


async def pressed(page: Page, name: str, shows: str) -> None:
    await time(page).get_by_role("button", name=name, exact=True).click()
    await expect(time(page).get_by_role("timer")).to_have_text(shows)


async def place(world: Plane, machine: str) -> str | None:
    """The node that it is on."""
    found = await world.call("GET", "/v1/orgs/{}/projects/{}/vms/{}".format(*machine.split("/")))
    node: str | None = found["node"]
    return node


async def test_a_pdu_is_broken_by_a_click_and_the_tree_tells_what_followed(
    page: Page, world: Plane, enter: Enter, *, axe: Check, narrow: Check, shot: Shot
) -> None:
    await enter(page, world, at="#/racks")
    await expect(time(page).get_by_role("timer")).to_have_text("0:00:00.500")
    await expect(page.get_by_role("heading", name="Nothing was broken yet")).to_be_visible()
    await pressed(page, "+10 s", "0:00:10.500")

    # The pdu hangs at the left of the first rack.
    await page.evaluate("window.here = true")
    picture = page.get_by_role("application", name="Picture of the racks")
    box = await picture.bounding_box()
    assert box is not None
    for x in range(12, 40):
        await page.mouse.move(box["x"] + x, box["y"] + 120)
        if "Pdu r1/pdu1" in (await picture.get_attribute("title") or ""):
            break
    await page.mouse.click(box["x"] + x, box["y"] + 120)
    side = page.get_by_role("region", name="What is selected")
    await expect(side.get_by_role("heading", name="Pdu r1/pdu1")).to_be_visible()
    await expect(side.get_by_label("What goes wrong")).to_have_value("power")
    await side.get_by_role("button", name="Break it").click()
    legend = page.get_by_role("list", name="States of blades")
    await expect(legend.get_by_role("button", name=re.compile("^No power"))).to_contain_text("4")
    faults = page.get_by_role("region", name="Faults and repairs")
    await expect(faults).to_contain_text("power r1/pdu1")
    await expect(faults).to_contain_text("restore the feed of pdu pdu1 in rack r1 (it has no feed)")
    await expect(side.get_by_text("No feed", exact=True)).to_be_visible()
    await expect(page.get_by_text("Pdu r1/pdu1: no feed.", exact=True)).to_be_visible()

    tree = page.get_by_role("list", name="What followed, newest first")
    await expect(tree).to_contain_text("r1/pdu1: working → no feed: its feed was lost")
    await expect(tree).not_to_contain_text("missed its heartbeats")
    for shows in ("0:00:20.500", "0:00:30.500"):
        await pressed(page, "+10 s", shows)
    await expect(tree).to_contain_text("node r1-b1: missed its heartbeats")
    await pressed(page, "+1 min", "0:01:30.500")
    # Each under its reason, down to what was made good elsewhere.
    line = tree
    for text in (
        r"fault-1, power r1/pdu1",
        r"r1/pdu1: working → no feed",
        r"r1/b\d: working → off",
        r"node r1-b\d: missed its heartbeats",
        r"node r1-b\d: it became unreachable: no heartbeat came .* share pdu r1/pdu1",
        r"machine workloads/web/web-\d: taken from r1-b\d: it was unreachable for \d+ s",
        r"machine workloads/web/web-\d: placed on r2-b\d: score",
    ):
        item = line.locator("> li").filter(has_text=re.compile(text)).filter(has_text="running on r2-b").first
        line = item.locator("> ul")
        await expect(line).to_be_visible()
    await expect(line).to_contain_text(re.compile(r"placed → creating → starting → running on r2-b\d"))
    await expect(tree).to_contain_text(re.compile(r"slice org.shop:cart:1.0.0 #\d: gone from r1-b\d"))
    await expect(tree).to_contain_text(re.compile(r"LOAD → LOADING → LOADED → .* → ACTIVE on r2-b\d"))
    # What the log gives no cause of is told as likely; what it does is not.
    told = tree.locator("li > span")
    await expect(
        told.filter(has_text=re.compile(r"cart: next step: \d × LOAD .*\(probably because of that\)"))
    ).not_to_have_count(0)
    await expect(told.filter(has_text="missed its heartbeats").filter(has_text="probably")).to_have_count(0)
    await axe(page)
    await narrow(page)
    await page.evaluate("scrollTo(0, 245)")  # time stays in sight, and what followed comes into it
    await shot(page, "simulation")

    await side.get_by_role("button", name="Go there and repair r1/pdu1").click()
    await expect(faults).to_contain_text("Nothing is broken on purpose")
    await pressed(page, "+1 min", "0:02:30.500")
    await expect(legend.get_by_role("button", name=re.compile("^On duty"))).to_contain_text("8")
    await expect(tree).to_contain_text("node r1-b1: sends heartbeats")
    assert await page.evaluate("window.here")

    # On a narrow screen it is folded.
    await page.set_viewport_size({"width": 360, "height": 740})
    await page.reload()
    await expect(tree.get_by_role("listitem")).to_have_count(20)
    await page.get_by_role("button", name=re.compile(r"^Show all \d+ lines$")).click()
    await expect(tree.get_by_role("listitem").nth(20)).to_be_visible()


async def test_while_time_stands_still_nothing_counts_down(page: Page, world: Plane, enter: Enter) -> None:
    await world.call("PUT", "/v1/sim/mode", {"mode": "manual", "epoch": (await world.call("GET", "/v1/sim"))["epoch"]})
    await page.clock.install()
    await enter(page, world, at="#/overview")
    leads = page.get_by_role("region", name="Leader").locator("time").last
    texts = {await leads.inner_text()}
    for _ in range(4):
        await page.clock.run_for(1000)
        texts.add(await leads.inner_text())
    assert len(texts) == 1, texts
    before = await leads.get_attribute("datetime") or ""
    await world.call("POST", "/v1/sim/step", {"seconds": 60})
    await page.clock.run_for(5000)  # it asks again
    await expect(leads).not_to_have_attribute("datetime", before)
    await expect(leads).not_to_have_text("over, unless it was just renewed")


async def test_time_goes_by_itself_jumps_and_a_killed_node_heals(page: Page, world: Plane, enter: Enter) -> None:
    await world.call("POST", "/v1/sim/step", {"seconds": 5})
    found = await world.call("GET", "/v1/orgs/workloads/projects/web/vms")
    home = found["items"][0]["node"]
    rack, blade = home.split("-")
    await enter(page, world, at=f"#/racks/{rack}/{blade}")
    side = page.get_by_role("region", name="What is selected")
    machine = side.get_by_role("list", name="Machines of this node").get_by_role("link").first
    name = await machine.inner_text()
    await side.get_by_label("What goes wrong").select_option("blade_crash")
    await side.get_by_role("button", name="Break it").click()
    await expect(side).to_contain_text("hardware: faulted")
    await time(page).get_by_role("button", name="By the clock").click()
    await time(page).get_by_label("Rate").select_option("60")
    await expect(side).to_contain_text("node: silent")
    await expect(side.get_by_role("link", name=name)).to_have_count(0)
    async with asyncio.timeout(pace.patience(5)):  # it is taken from there first, and placed then
        while await place(world, name) in {None, "", home}:
            await asyncio.sleep(0.05)
    await time(page).get_by_role("button", name="Paused").click()
    await time(page).get_by_role("spinbutton", name="Jump ahead by").fill("2")
    await time(page).get_by_label("Unit").select_option("hours")
    before = float((await world.call("GET", "/v1/sim"))["now"])
    await time(page).get_by_role("button", name="Jump", exact=True).click()
    hours = int(before + 7200) // 3600
    await expect(time(page).get_by_role("timer"), within=10).to_have_text(re.compile(f"^{hours}:"))  # hours of work
    assert float((await world.call("GET", "/v1/sim"))["now"]) == pytest.approx(before + 7200)
    await side.get_by_role("tab", name="Why").click()
    await expect(side.get_by_role("list", name="Because")).to_contain_text("it became unreachable")


async def test_who_has_no_rights_sees_time_and_faults_and_moves_nothing(
    page: Page, world: Plane, enter: Enter, expect_trouble: Callable[..., None]
) -> None:
    await world.user("vera", "viewer", "acme/web")
    await world.call("POST", "/v1/sim/faults", {"fault": "power", "on": "r1/pdu1"})
    await enter(page, world, "vera", at="#/racks/r1/pdu1")
    await expect(time(page)).to_contain_text("Moving time takes the right step_time")
    side = page.get_by_role("region", name="What is selected")
    await expect(side).to_contain_text("power r1/pdu1")
    for name in ("Break it", "Lift", "Repair", "+10 s", "Paused"):
        await expect(page.get_by_role("button", name=name)).to_have_count(0)
    expect_trouble("403")
    told = await page.evaluate(
        """async () => {
          const {csrf} = await (await fetch("/v1/sessions/browser")).json();
          const sent = {method: "POST", body: '{"seconds": 5}'};
          sent.headers = {"Content-Type": "application/json", "Hostler-Csrf": csrf};
          return await (await fetch("/v1/sim/step", sent)).json();
        }"""
    )
    assert told["status"] == 403
    assert "step_time" in told["detail"]

"""The overview: its figures follow what happens, it says what needs a look, who led, and when it is old."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from harness import pace
from playwright.async_api import Page, Route
from web_expect import expect
from web_plane import Plane, Planes
from web_type import Check, Enter, Shot

from hostler.keys.families import HANDLE
from hostler.model.vm import MachineState, VmHandle

VMS = "/v1/orgs/acme/projects/web/vms"
SMALL = {"cpus": 1, "memory_mib": 64}
SMALL_WORLD = """\
name: small
about: One rack; nothing happens by itself.
length: 1h
inventory:
  racks:
    - name: r1
      pdus: [{name: pdu1, ports: 4}]
      tors: [{name: tor1, ports: 4}]
      blades: {count: 2, cpus: 8, memory: 16GiB}
"""


NEVER_ASKS = """
const every = setInterval;
setInterval = (call, ms, ...given) => ms === 5000 ? 0 : every(call, ms, ...given);
"""
"""The page asks every five seconds besides: here it has the stream of events alone."""


async def test_the_figures_follow_a_machine_from_its_creation_to_its_end(
    page: Page, plane: Plane, enter: Enter, *, axe: Check, narrow: Check, shot: Shot
) -> None:
    await page.add_init_script(NEVER_ASKS)
    await enter(page, plane)
    machines = page.get_by_role("region", name="Machines", exact=True)
    await expect(page.get_by_role("heading", name="There is no machine yet")).to_be_visible()
    await expect(page.get_by_text("hostler vm create web")).to_be_visible()
    await expect(page.get_by_role("region", name="Nodes", exact=True)).to_contain_text("2 on duty")
    await page.evaluate("window.here = true")  # a page that is loaded anew would not know it

    made = await plane.call("POST", VMS, {"name": "www", "spec": SMALL})
    await expect(machines.get_by_role("link", name="1 running")).to_have_attribute("href", "#/vms?phase=running")
    await expect(machines.get_by_role("link", name="Machines: 1")).to_be_visible()
    await expect(page.get_by_role("heading", name="All healthy")).to_be_visible()

    leader = page.get_by_role("region", name="Leader")
    await expect(leader).to_contain_text(plane.host)
    await expect(leader).to_contain_text(re.compile(r"Time left\d+ s"))
    await expect(leader).to_contain_text("ready")
    await expect(page.get_by_role("region", name="Store")).to_contain_text(re.compile(r"answers.*Revision\d+.*sqlite"))
    await expect(page.get_by_role("link", name=re.compile("events per second"))).to_be_visible()
    await axe(page)
    await narrow(page)
    await shot(page, "overview")

    await plane.call("DELETE", f"{VMS}/{made['id']}")
    await expect(machines).to_contain_text("none yet")
    assert await page.evaluate("window.here")


async def test_what_needs_a_look_is_said_with_a_link(
    page: Page, cheap_plane: Plane, enter: Enter, axe: Check, narrow: Check
) -> None:
    api = cheap_plane.api
    assert api is not None
    await api.node("n1")
    await api.node("r1-b2", alive=False)
    made = await cheap_plane.call("POST", VMS, {"name": "<b>www", "spec": SMALL})
    handle = VmHandle(id=made["id"], node="n1", state=MachineState.FAILED, detail="no such image", seen_at=0.0)
    await api.store.txn([], [HANDLE.put(handle, org="acme", project="web", vm=made["id"])])
    await enter(page, cheap_plane)
    look = page.get_by_role("region", name="Needs attention")
    await expect(look.get_by_role("link", name="1 machine has failed")).to_have_attribute("href", "#/vms?phase=failed")
    await expect(look).to_contain_text("acme/web/<b>www: no such image")
    await expect(look.get_by_role("link", name="acme/web/<b>www", exact=True)).to_have_attribute(
        "href", f"#/vms/acme/web/{made['id']}"
    )
    await expect(look).to_contain_text("1 node is unreachable")
    await expect(look.get_by_role("link", name="r1-b2", exact=True)).to_have_attribute("href", "#/racks/r1/b2")
    await expect(look).to_contain_text("No leader")
    await axe(page)
    await narrow(page)


async def test_a_member_is_told_of_their_own_projects(page: Page, cheap_plane: Plane, enter: Enter) -> None:
    for project in ("web", "mobile"):
        await cheap_plane.call("POST", f"/v1/orgs/acme/projects/{project}/vms", {"name": "www", "spec": SMALL})
    await cheap_plane.user("ann", "viewer", "acme/web")
    await enter(page, cheap_plane, "ann")
    await expect(page.get_by_role("link", name="Machines: 1", exact=True)).to_be_visible()
    await expect(page.get_by_role("region", name="Labs", exact=True)).to_contain_text("none that you see")


async def test_a_simulation_says_that_its_time_is_not_ours_and_where_its_replicas_are(
    page: Page, planes: Planes, enter: Enter
) -> None:
    plane = await planes.simulated(SMALL_WORLD, "--mode", "manual")
    await enter(page, plane)
    note = page.get_by_text("This is a simulation")
    await expect(note.get_by_role("link", name="the page of racks")).to_have_attribute("href", "#/racks")
    await expect(page.get_by_role("region", name="Leader")).to_be_visible()
    await expect(page.get_by_role("main")).not_to_contain_text(re.compile("not known$|No replica|None was"))
    await page.evaluate("location.hash = '#/account'")
    await expect(page.get_by_role("region", name="This session")).to_contain_text("its time is not ours")


async def test_a_leader_that_is_killed_is_followed_by_another_and_the_history_tells(
    page: Page, planes: Planes, enter: Enter
) -> None:
    plane = await planes.replicated(replicas=2, nodes=0)
    first, plane.url = plane.host, plane.others[0]
    await enter(page, plane)
    leader, history = (
        page.get_by_role("region", name="Leader"),
        page.get_by_role("region", name="Takeovers", exact=True),
    )
    await expect(leader).to_contain_text(first)
    await expect(page.get_by_role("region", name="Replicas").first).to_contain_text("stands by")
    plane.process.kill()
    await expect(leader).to_contain_text(plane.host)
    newest = history.get_by_role("row").nth(1)
    await expect(newest).to_contain_text(plane.host)
    await expect(newest).to_contain_text(first)
    await expect(newest).to_contain_text("became unreachable")


async def test_what_is_old_says_so(
    page: Page, cheap_plane: Plane, enter: Enter, expect_trouble: Callable[..., None], axe: Check
) -> None:
    expect_trouble("ERR_FAILED")
    api = cheap_plane.api
    assert api is not None
    await api.node("n1")
    await enter(page, cheap_plane)
    await expect(page.get_by_role("link", name="Nodes: 1")).to_be_visible()
    tried = asyncio.Event()

    async def refuse(route: Route) -> None:
        await route.abort()
        tried.set()

    await page.route("**/v1/events?*", refuse)
    api.app.feed.close()  # every stream ends, and the page cannot begin another
    async with asyncio.timeout(pace.patience(5)):
        await tried.wait()
    old = page.get_by_role("status").filter(has_text="as of")
    await expect(old).to_be_visible()
    await expect(page.get_by_role("alert")).to_contain_text("What you see may be old")
    await axe(page)
    api.app.feed.closing = False
    await page.unroute("**/v1/events?*")
    await expect(old).to_have_count(0)
    await api.node("n2")
    await expect(page.get_by_role("link", name="Nodes: 2")).to_be_visible()

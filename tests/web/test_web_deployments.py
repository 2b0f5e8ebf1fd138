"""Deployments in the page: from a text to its plan to what runs; canaries and their gates; the way back."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest
from blueprint_scene import SaidArtifacts, believing, blueprint, spec
from harness import pace
from playwright.async_api import Page
from web_expect import expect
from web_plane import Plane, Planes
from web_type import SHOTS, Check, Enter, NewPage, Shot

from hostler import Client
from hostler.engine.request import HOSTLER, Request
from hostler.errors import HostlerError
from hostler.keys.families import DEPLOYMENT
from hostler.model.deployment import Blueprint, Gate, SliceSettings, SliceSpec, Stage, Strategy, StrategyKind
from hostler.model.rollout import Deployment, Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BASE = "org.example:greeting"
SOURCE = '''
"""Says hello."""

from hostler.slices import method

print("\\x1b[31mbegun\\x1b[0m <script>alert(1)</script>\\x07\\u061cx\\u2028y\\u2029")
calls = 0


@method(idempotent=True)
async def greet(name: str = "you") -> str:
    global calls
    calls += 1
    if {bad} and calls % 3 == 0:
        raise ValueError("out of greetings")
    return "Hello {version}, " + name
'''
WRONG = """\
[[slices]]
artifact = "org.example:greeting:1.0.0"
instances = "three"
"""
RIGHT = """\
[[slices]]
artifact = "org.example:greeting:1.0.0"
instances = 3
settings.environment.NOTE = "<script>alert(1)</script>"
"""
CANARY = """\
[[slices]]
artifact = "org.example:greeting:{version}"
instances = 1

[slices.strategy]
type = "canary"
stages = {stages}
gate = {{ max_error_rate = 0.01, min_calls = {calls}, max_latency_ms = {latency} }}
"""
SEEN = "[{ weight = 20, hold = 18 }, { weight = 50, hold = 30 }]"
HARM = "<script>alert(1)</script>"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Upgrades go on as soon as they may; what nobody ended goes with the test."""
    monkeypatch.setenv("HOSTLER_SLICE_MIN_READY", "1")
    monkeypatch.setenv("HOSTLER_ARTIFACTS", str(tmp_path / "artifacts"))
    yield
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            if process.name.isdigit() and _is_worker(process, tmp_path):
                os.kill(int(process.name), signal.SIGKILL)


def _is_worker(process: Path, folder: Path) -> bool:
    line = (process / "cmdline").read_bytes()
    return b"hostler.slices" in line and str(folder).encode() in line + os.readlink(process / "cwd").encode()


def written(folder: Path, version: str, *, bad: bool = False) -> Path:
    file = folder / version / "greeting.py"
    file.parent.mkdir(parents=True)
    file.write_text(SOURCE.format(version=version, bad=bad))
    return file


async def publish(client: Client, folder: Path, version: str, *, bad: bool = False) -> None:
    await client.artifacts.publish(f"{BASE}:{version}", written(folder, version, bad=bad))


class Load:
    """Somebody calls all the time, now and then or often."""

    def __init__(self, client: Client) -> None:
        self._client, self._pause, self._at_once = client, 0.4, 1

    async def __aenter__(self) -> Self:
        self._calling = asyncio.create_task(self._keep_calling())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._calling.cancel()
        await asyncio.wait((self._calling,))

    def call_often(self) -> None:
        self._pause, self._at_once = 0.02, 3

    async def _keep_calling(self) -> None:
        while True:
            await asyncio.gather(*(self._call() for _ in range(self._at_once)))
            await asyncio.sleep(self._pause)

    async def _call(self) -> None:
        with suppress(HostlerError):
            await self._client.invoke(BASE, "greet", {"name": "Ada"})


async def test_a_blueprint_is_planned_applied_and_seen_to_converge(  # noqa: PLR0917 - fixtures
    page: Page, plane: Plane, enter: Enter, axe: Check, narrow: Check, shot: Shot, tmp_path: Path
) -> None:
    await enter(page, plane, at="#/deployments")
    await expect(page.get_by_role("heading", name="No blueprint yet")).to_be_visible()
    await page.get_by_role("tab", name="Artifacts").click()
    await page.get_by_label("File").set_input_files(written(tmp_path, "1.0.0"))
    await page.get_by_role("textbox", name="Artifact").fill(f"{BASE}:1.0.0")
    await page.get_by_role("button", name="Publish").click()
    await expect(page.get_by_role("row", name=f"{BASE}:1.0.0")).to_contain_text("greeting.py")
    await axe(page)
    await page.get_by_role("tab", name="Blueprints").click()
    await page.get_by_role("link", name="Apply a blueprint").first.click()
    await page.get_by_role("textbox", name="Name").fill("shop")
    text = page.get_by_role("textbox", name="Blueprint")

    await text.fill(WRONG)
    await page.get_by_role("button", name="Show the plan").click()
    fault = page.get_by_role("alert")
    await expect(fault).to_contain_text("slices[0].instances")
    await fault.get_by_role("button", name="Show line 3").click()
    chosen = await text.evaluate("one => one.value.slice(one.selectionStart, one.selectionEnd)")
    assert chosen == 'instances = "three"'

    await text.fill(RIGHT)
    await page.get_by_role("button", name="Show the plan").click()
    plan = page.get_by_role("region", name="Plan")
    await expect(plan).to_contain_text("3 instances would be loaded, 0 unloaded")
    planned = page.get_by_role("heading", name="What would happen to shop")
    await expect(planned).to_be_focused()
    await expect(planned).to_be_in_viewport()
    await expect(plan.get_by_role("listitem").filter(has_text="load").first).to_be_visible()
    await axe(page)
    await page.get_by_role("button", name="Apply shop").click()

    await expect(page.get_by_role("heading", name="shop", level=1)).to_be_visible()
    await expect(page.get_by_text("ready, 3 of 3 instances ready"), within=10).to_be_visible()
    active = page.get_by_role("button", name=re.compile(r"#\d+ active: instance of 1.0.0 on"))
    await expect(active).to_have_count(3)
    await expect(page.get_by_role("button", name="Roll back")).to_have_count(0)  # there is nothing to go back to
    endpoints = page.get_by_role("region", name=f"Endpoints of {BASE}")
    await expect(endpoints.get_by_role("row", name="greet")).to_contain_text("3")
    await axe(page)
    await narrow(page)
    await shot(page, "deployments")

    await active.first.click()
    why = page.get_by_role("dialog")
    await expect(why).to_contain_text("active (ACTIVE)")
    await expect(why.get_by_role("listitem").first).to_be_visible()
    await why.get_by_text("Log", exact=True).click()
    await expect(why.locator("pre")).to_have_text("begun <script>alert(1)</script>␇␡x␡y␡")
    await axe(page)
    await why.get_by_role("button", name="Close").click()

    await page.get_by_role("tab", name="Call").click()
    await page.get_by_role("textbox", name="Arguments").fill('{"name": "Ada"}')
    await page.get_by_role("button", name="Call", exact=True).click()
    await expect(page.get_by_text('"Hello 1.0.0, Ada"')).to_be_visible()
    await page.get_by_role("tab", name="Settings").click()
    await expect(page.get_by_role("textbox", name="Blueprint")).to_have_value(RIGHT_SHOWN)


RIGHT_SHOWN = """\
[[slices]]
artifact = "org.example:greeting:1.0.0"
instances = 3

[slices.settings]
environment = { NOTE = "<script>alert(1)</script>" }
"""


async def test_a_canary_is_seen_with_its_gate_and_comes_back_by_itself_or_by_the_button(  # noqa: PLR0917 - fixtures
    page: Page, plane: Plane, enter: Enter, axe: Check, shot: Shot, tmp_path: Path
) -> None:
    async with Client(plane.url, plane.admin) as client:
        for version in ("1.0.0", "2.0.0", "3.0.0"):
            await publish(client, tmp_path, version, bad=version == "3.0.0")
        await apply(client, "1.0.0", 2)
        async with Load(client) as load:  # from the beginning: routers that are quiet are asked seldom
            await asyncio.gather(
                client.blueprints.wait("shop", settled=True, within=pace.patience(15)),
                enter(page, plane, at="#/deployments/shop?tab=change"),
            )
            # Held for calls until all of it was seen: of so many, one in a second comes to the new version. They take
            # 80 s at least, unless they are made often.
            await change(page, "2.0.0", SEEN if SHOTS else "[{ weight = 50, hold = 1 }]", calls=40 if SHOTS else 100)
            stages = page.get_by_role("list", name="Stages of the canary")
            await expect(stages.get_by_role("listitem").first).to_contain_text("held")
            await expect(page.get_by_role("img", name="Share of calls that go to 2.0.0")).to_be_visible()
            failed = page.get_by_role("img", name="Calls that failed")
            await expect(failed).to_have_accessible_name(
                "Calls that failed: 1.0.0 now 0 %, 2.0.0 now 0 %, limit now 1 %"
            )
            measured = page.get_by_role("region", name=f"What was measured of {BASE}")
            await expect(measured.get_by_role("row", name="gate")).to_contain_text("at most 1 %")
            await expect(page.get_by_text("The table is of all calls")).to_be_visible()
            await axe(page)
            if SHOTS:  # lines that have become long enough to be looked at
                await page.wait_for_timeout(30_000)
            await page.get_by_role("tab", name="Slices").evaluate("one => one.scrollIntoView()")
            await shot(page, "canary")
            await expect(stages.get_by_role("listitem").first).to_contain_text("held")
            await page.get_by_role("button", name=f"Pause {BASE}").click()
            await expect(page.get_by_text("Paused by", exact=False).first).to_be_visible()
            await page.get_by_role("button", name=f"Resume {BASE}").click()
            await expect(page.get_by_role("button", name=f"Pause {BASE}")).to_be_visible()
            load.call_often()
            verdict = page.get_by_role("status").filter(has_text="1 of org.example:greeting:2.0.0 are ready.")
            await expect(verdict, within=10).to_contain_text("Passed: ")
            await expect(page.get_by_text("ready, 1 of 1 instance ready"), within=10).to_be_visible()

            await page.get_by_role("tab", name="Settings").click()
            await change(page, "3.0.0", "[{ weight = 50, hold = 20 }]")
            back = page.get_by_text("calls failed, and at most 1.00% may. 2.0.0 serves.")
            await expect(back, within=10).to_be_visible()
            await expect(page.get_by_role("row", name="3.0.0 new")).to_contain_text(
                re.compile(r"\d+ \([23]\d(\.\d)? %\)")
            )

        await page.get_by_role("button", name="Roll back", exact=True).click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_role("combobox", name="Revision", exact=True).select_option("1")
        await expect(dialog.get_by_role("region", name="Plan")).to_contain_text("rolling, regardless of its strategy")
        await expect(dialog.get_by_label("From revision 3 to revision 1")).to_contain_text("− type")
        await dialog.get_by_role("button", name="Roll back to revision 1").click()
        await expect(page.get_by_text("of 2 instances ready"), within=10).to_be_visible()
        await page.get_by_role("tab", name="History").click()
        await expect(page.get_by_role("row", name="back to revision 1")).to_contain_text("4 (present)")


async def apply(client: Client, version: str, instances: int) -> None:
    slices = (SliceSpec(artifact=f"{BASE}:{version}", instances=instances),)
    await client.blueprints.apply("shop", Blueprint(slices=slices))


async def change(page: Page, version: str, stages: str, calls: int = 10) -> None:
    await page.get_by_role("textbox", name="Blueprint").fill(
        CANARY.format(version=version, stages=stages, calls=calls, latency=250 if SHOTS else 60_000)
    )
    await page.get_by_role("button", name="Show the plan").click()
    await expect(page.get_by_role("region", name="Plan")).to_contain_text("canary: ")
    await page.get_by_role("button", name="Apply shop").click()


async def test_what_was_on_a_node_that_died_comes_up_elsewhere(
    page: Page, planes: Planes, enter: Enter, tmp_path: Path
) -> None:
    plane = await planes.replicated(replicas=1, nodes=2)
    async with Client(plane.url, plane.admin) as client:
        await publish(client, tmp_path, "1.0.0")
        for process in plane.processes[1:]:
            await process.says("registered\n")
        await apply(client, "1.0.0", 2)
        await enter(page, plane, at="#/deployments/shop")
        on = page.get_by_role("region", name=f"Instances of {BASE} by node")
        await expect(page.get_by_text("ready, 2 of 2 instances ready"), within=10).to_be_visible()
        node = (await client.blueprints.slices()).items[0].node
        other = {"n1": "n2", "n2": "n1"}[node]
        await expect(on.get_by_role("row", name=node)).to_contain_text("active")
        plane.processes[int(node[1])].kill()
        await expect(on.get_by_role("row", name=node), within=10).to_have_count(0)
        both = on.get_by_role("row", name=other).get_by_role("button", name="active")
        await expect(both, within=10).to_have_count(2)
        await expect(page.get_by_text("ready, 2 of 2 instances ready"), within=10).to_be_visible()


async def test_without_the_right_to_deploy_one_looks_and_is_offered_nothing_else(
    page: Page, planes: Planes, enter: Enter, axe: Check, narrow: Check
) -> None:
    plane = await planes.cheap(artifacts=SaidArtifacts())
    await shop(plane)
    await plane.user("ann", "operator", "acme")
    await enter(page, plane, "ann", at="#/deployments")
    row = page.get_by_role("row", name="shop")
    await expect(row).to_contain_text("canary at 25 % (stage 1 of 2)")
    await expect(page.get_by_role("link", name="Apply a blueprint")).to_have_count(0)
    await axe(page)
    await row.get_by_role("link", name="shop").click()
    await expect(page.get_by_text("Stage 1 of 2 is held for calls: 0 of 50 were made.")).to_be_visible()
    assert await page.get_by_role("tab").all_inner_texts() == ["Slices", "History"]
    for offer in ("Roll back", "Delete", "Promote", "Pause", "Abort"):
        await expect(page.get_by_role("button", name=offer)).to_have_count(0)
    await axe(page)
    await narrow(page)
    await page.goto(f"{plane.url}/#/deployments?view=apply")
    await expect(page.get_by_text("takes the right modify_workloads and the membership *")).to_be_visible()
    token = await plane.token("ann")
    refused = await plane.ask("POST", "/v1/blueprint-files", {"text": RIGHT}, token=token)
    assert refused.status == 403
    assert "modify_workloads" in refused.json["detail"] + refused.json["next"]


async def test_revisions_are_compared_a_blueprint_is_deleted_by_its_name_and_text_stays_text(
    page: Page, planes: Planes, enter: Enter, expect_trouble: Callable[..., None]
) -> None:
    plane = await planes.cheap(artifacts=SaidArtifacts())
    await shop(plane)
    await enter(page, plane, at="#/deployments?slice=org:cart")
    await expect(page.get_by_role("heading", name="shop", level=1)).to_be_visible()  # led there by its slice
    await page.set_viewport_size({"width": 360, "height": 740})
    await page.get_by_role("tab", name="History").click()
    for shown in (page.get_by_role("row", name="cart:2 × 2"), page.get_by_role("button", name="Look at revision 1")):
        await expect(shown).to_be_in_viewport(ratio=1)
    await page.get_by_role("button", name="Look at revision 1").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_label("From revision 2 to revision 1")).to_contain_text(
        f'− environment = {{ NOTE = "{HARM}" }}'
    )
    await dialog.get_by_role("button", name="Close").click()
    # Somebody else is faster than who looks at a plan: what was planned is not what would happen any more.
    await page.get_by_role("tab", name="Settings").click()
    await page.get_by_role("textbox", name="Blueprint").fill('[[slices]]\nartifact = "org:cart:3"\ninstances = 2\n')
    await page.get_by_role("button", name="Show the plan").click()
    await expect(page.get_by_role("region", name="Plan")).to_contain_text("2 → 3")
    await plane.call("PUT", "/v1/blueprints/shop", {"slices": [{"artifact": "org:cart:4", "instances": 2}]})
    expect_trouble("412")
    await page.get_by_role("button", name="Apply shop").click()
    await expect(page.get_by_role("alert")).to_contain_text("is not the present one")

    await page.get_by_role("button", name="Delete").click()
    gone = dialog.get_by_role("button", name="Delete shop")
    await expect(gone).to_be_disabled()
    await dialog.get_by_role("textbox", name="Type shop to go on").fill("shop")
    await gone.click()
    await expect(page.get_by_text("shop is being deleted.")).to_be_visible()
    assert (await plane.call("GET", "/v1/blueprints"))["items"] == []


async def test_a_blueprint_that_never_was_is_not_said_to_have_a_history(
    page: Page, cheap_plane: Plane, enter: Enter, expect_trouble: Callable[..., None]
) -> None:
    expect_trouble("404")
    await enter(page, cheap_plane, at="#/deployments/nope")
    told = page.get_by_role("main").get_by_role("status")
    await expect(told).to_have_text("There is no blueprint nope, and nothing was applied under that name.")


async def test_blueprints_and_workloads_are_found_by_their_state_and_by_what_is_typed(
    page: Page, planes: Planes, enter: Enter, axe: Check, narrow: Check
) -> None:
    plane = await planes.cheap(artifacts=SaidArtifacts())
    await shop(plane)
    for name in ("blog", "Billing"):
        slices = [{"artifact": f"org:{name}:7", "instances": 1}]
        await plane.call("PUT", f"/v1/blueprints/{name}", {"slices": slices})
    for name in ("web", "batch"):
        body = {"org": "acme", "project": name, "instances": 1, "spec": {"cpus": 1, "memory_mib": 64}}
        await plane.call("PUT", f"/v1/workloads/{name}", {"name": name, **body})
    phases = {one["name"]: one["phase"] for one in (await plane.call("GET", "/v1/blueprints"))["items"]}
    await enter(page, plane, at="#/deployments")
    rows, said = page.locator("tbody tr"), page.get_by_role("tabpanel").get_by_role("status")
    search, state = page.get_by_role("searchbox", name="Search"), page.get_by_role("combobox", name="State")
    await expect(said).to_have_text("3 blueprints")
    for typed, found in (("cart", "shop"), ("BILL", "Billing"), ("org: :7 og", "blog")):
        await search.fill(typed)
        await expect(rows).to_have_count(1)
        await expect(rows).to_contain_text(found)
    await expect(said).to_have_text("1 of 3 blueprints")
    await page.reload()
    await expect(search).to_have_value("org: :7 og")
    await search.fill("")
    for phase in ("ready", "changing", "waiting", "failed", "removing"):
        await state.select_option(phase)
        await expect(rows).to_have_count(list(phases.values()).count(phase))
    await axe(page)
    await page.get_by_role("button", name="Show all blueprints").click()
    await expect(rows).to_have_count(3)
    await narrow(page)
    await page.get_by_role("tab", name="Workloads").click()
    await expect(said).to_have_text("2 workloads")
    await search.fill("acme/batch")
    await expect(rows).to_have_count(1)
    await expect(rows).to_contain_text("batch")
    await state.select_option("deleting")
    await expect(page.get_by_role("heading", name="No workload is like that")).to_be_visible()


async def shop(plane: Plane) -> None:
    """A blueprint whose canary is held for calls."""
    assert plane.api is not None
    service, own = believing(plane.api.services), Request(HOSTLER)
    stages = (Stage(weight=25, hold=1.0), Stage(weight=50, hold=1.0))
    strategy = Strategy(type=StrategyKind.CANARY, stages=stages, gate=Gate())
    await service.apply(own, "shop", blueprint(spec("cart:1", 2)))
    settings = SliceSettings(environment={"NOTE": HARM})
    await service.apply(own, "shop", blueprint(spec("cart:2", 2, strategy=strategy, settings=settings)))
    record = Deployment(
        blueprint="shop",
        number=2,
        artifact="org:cart:2",
        settings=settings,
        previous="org:cart:1",
        strategy=strategy,
        phase=Phase.CANARY,
        weights={"org:cart:1": 75, "org:cart:2": 25},
        started_at=1000.0,
        changed_at=1000.0,
        why="stage 1 of 2",
    )
    await plane.api.store.txn([], [DEPLOYMENT.put(record, base="org:cart")])
    await plane.api.services.view.refresh(plane.api.services.view.deployments)


async def test_a_workload_is_scaled_and_switched_off(  # noqa: PLR0917 - fixtures
    page: Page, cheap_plane: Plane, new_page: NewPage, enter: Enter, axe: Check, narrow: Check
) -> None:
    body = {"name": "web", "org": "acme", "project": "web", "instances": 3, "spec": {"cpus": 1, "memory_mib": 512}}
    await cheap_plane.call("PUT", "/v1/workloads/web", body)
    await cheap_plane.user("ann", "viewer", "acme")
    await enter(page, cheap_plane, at="#/deployments?tab=workloads")
    await page.get_by_role("link", name="web").click()
    await expect(page.get_by_text("0 of 3 instances ready")).to_be_visible()
    await axe(page)
    await narrow(page)
    await page.get_by_role("spinbutton", name="Instances").fill("2")
    await page.get_by_role("button", name="Scale").click()
    await page.get_by_role("dialog").get_by_role("button", name="Remove 1 machine").click()
    await expect(page.get_by_text("0 of 2 instances ready")).to_be_visible()
    await page.get_by_role("button", name="Switch off").click()
    await page.get_by_role("dialog").get_by_role("button", name="Switch off").click()
    await expect(page.get_by_role("button", name="Switch on")).to_be_visible()
    wish = await cheap_plane.call("GET", "/v1/workloads/web")
    assert (wish["instances"], wish["enabled"]) == (2, False)

    other = await new_page()
    await enter(other, cheap_plane, "ann", at="#/deployments?tab=workloads&workload=web")
    await expect(other.get_by_text("of 2 instances ready")).to_be_visible()
    await expect(other.get_by_role("button", name="Scale")).to_have_count(0)

"""Ten thousand blades on a real server: the floor is read in one answer, found in, walked over and stays quick."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from playwright.async_api import Page
from web_expect import expect
from web_frames import check_frames
from web_plane import Plane
from web_type import Enter

from hostler.keys.families import ALIVE, MEMBER
from hostler.model.inventory import Capacity
from hostler.model.node import Heartbeat, Lifecycle, NodeRecord

BLADES, AT_ONCE = 40, 100
FEEDS = {
    "pdus": [{"name": "pdu1", "ports": 42}, {"name": "pdu2", "ports": 42}],
    "tors": [{"name": "tor1", "ports": 40}],
}


def rack(zone: int, number: int) -> dict[str, Any]:
    return {"name": f"z{zone}r{number}", "blades": {"count": BLADES, "cpus": 16}, **FEEDS}


DOCUMENT = {
    "regions": [
        {"name": "eu", "zones": [{"name": f"eu-{z}", "racks": [rack(z, n) for n in range(50)]} for z in range(5)]}
    ]
}


async def nodes(plane: Plane) -> None:
    """An agent for each blade but the last of its rack, and no sign of life from one in 29."""
    assert plane.api is not None
    puts: list[Any] = []
    room = Capacity(cpus=16, memory_mib=65536)
    for place in range(250):
        for blade in range(1, BLADES):
            name = f"z{place // 50}r{place % 50}-b{blade}"
            record = NodeRecord(node=name, lifecycle=Lifecycle.ON_DUTY, capacity=room, registered_at=1.0)
            puts.append(MEMBER.put(record, node=name))
            if (place * BLADES + blade) % 29:
                puts.append(ALIVE.put(Heartbeat(holder="h", started_at=1.0), node=name))
    for first in range(0, len(puts), AT_ONCE):
        await plane.api.store.txn([], puts[first : first + AT_ONCE])
        await asyncio.sleep(0)


async def test_ten_thousand_blades_of_a_real_server_are_found_and_walked_over(
    page: Page, cheap_plane: Plane, enter: Enter
) -> None:
    await cheap_plane.call("PUT", "/v1/inventory", DOCUMENT)
    await nodes(cheap_plane)
    await enter(page, cheap_plane, at="#/racks")
    legend = page.get_by_role("list", name="States of blades")
    await expect(page.get_by_role("heading", name="250 racks, 10,000 blades"), within=10).to_be_visible()
    await expect(legend.get_by_role("button", name=re.compile("^No agent yet"))).to_contain_text("250")
    await expect(legend.get_by_role("button", name=re.compile("^Silent"))).to_contain_text("336")

    picture = page.get_by_role("application", name="Picture of the racks")
    await page.get_by_role("searchbox", name="Find a rack, blade or node").fill("z4r49-b40")
    await page.get_by_role("searchbox").press("Enter")
    await expect(page.get_by_role("heading", name="Blade z4r49/b40")).to_be_visible()
    await page.get_by_role("button", name="Closer").click()
    await picture.focus()
    await picture.press("ArrowUp")
    said = page.get_by_role("status").filter(has_text="Blade z")
    await expect(said).to_have_text("Blade z4r49/b39: on duty, 0 machines.")
    await picture.press("PageUp")
    await expect(said).not_to_contain_text("z4r49/")

    # One that falls silent is told of by its rack alone, and the picture has it at once.
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/v1/inventory/summary" in request.url else None)
    assert cheap_plane.api is not None
    await cheap_plane.api.store.txn([], [ALIVE.delete(node="z2r7-b1")])
    await expect(legend.get_by_role("button", name=re.compile("^Silent"))).to_contain_text("337")
    assert "racks=z2r7" in [url.rpartition("?")[2] for url in asked]

    await page.get_by_role("button", name="Further away").click()
    await page.get_by_role("button", name="Further away").click()
    await check_frames(page, ".racks-view")  # each of which draws all ten thousand

"""Racks and the inventory over HTTP, and in the client."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from api_server import Api, serving

import hostler
from hostler.engine.inventory import streaming_json
from hostler.errors import Invalid, NotFound, Stale
from hostler.model.inventory import Condition
from hostler.model.inventory_api import HardwareSet, InventoryDocument

RACK: dict[str, Any] = {
    "name": "R1",
    "location": "hall 2",
    "pdus": [{"name": "pdu1", "ports": 4}, {"name": "pdu2", "ports": {"1": "b1", "2": "b2", "4": None}}],
    "tors": [{"name": "tor1", "ports": 4}],
    "blades": {"count": 2, "cpus": 8, "memory": "16GiB"},
}
DOCUMENT = {"regions": [{"name": "EU", "zones": [{"name": "eu-1", "racks": [RACK]}]}]}


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with serving() as api:
        yield api


async def test_an_inventory_is_planned_loaded_and_shown(api: Api) -> None:
    plan = (await api.call("POST", "/v1/inventory/plan", json=DOCUMENT)).json
    assert [change["name"] for change in plan["changes"]][:4] == ["EU", "EU/eu-1", "R1", "r1/pdu1"]
    assert (await api.call("GET", "/v1/racks")).json["items"] == []
    loaded = await api.call("PUT", "/v1/inventory", json={**DOCUMENT, "agreed": plan["digest"]}, Idempotency_Key="k")
    assert (loaded.status, loaded.json["added"]) == (200, 8)
    again = await api.call("PUT", "/v1/inventory", json={**DOCUMENT, "agreed": plan["digest"]}, Idempotency_Key="k")
    assert again.json == loaded.json
    assert again.headers["Idempotency-Replayed"] == "true"
    same = await api.call("PUT", "/v1/inventory", json=DOCUMENT)
    assert (same.json["added"], same.json["changed"], same.json["removed"]) == (0, 0, 0)
    shown = (await api.call("GET", "/v1/inventory")).json
    assert (shown["regions"], shown["racks"]) == (DOCUMENT["regions"], [])
    agreed = await api.call("PUT", "/v1/inventory", json={"racks": [], "agreed": plan["digest"]})
    assert agreed.status == 412
    assert "look at the new plan" in agreed.json["next"]


async def test_every_mistake_is_told_with_its_field(api: Api) -> None:
    wrong = {"racks": [{**RACK, "name": "r-1", "blades": {"count": 0}, "pdus": [{"name": "p", "ports": {"1": "x"}}]}]}
    answer = await api.call("PUT", "/v1/inventory", json=wrong)
    assert answer.status == 400
    told = answer.json["detail"].splitlines()
    assert [line.partition(": ")[0] for line in told] == [
        "racks[0].name",
        "racks[0].blades.count",
        "racks[0].pdus[0].ports.1",
    ]
    assert answer.json["next"] == "correct the inventory"
    for body in ({"racks": 3}, {"rax": []}, [], {"racks": [[]]}):
        assert (await api.call("POST", "/v1/inventory/plan", json=body)).status == 400


async def test_a_large_inventory_is_taken_and_other_bodies_are_as_small_as_ever(api: Api) -> None:
    blades = [{"name": f"b{n}", "labels": {"note": "x" * 250, "more": "y" * 250}} for n in range(1000)]
    feeds = {kind: [{"name": kind, "ports": 1002}] for kind in ("pdus", "tors")}
    document = {"racks": [{**RACK, **feeds, "name": f"r{n}", "blades": blades} for n in range(3)]}
    plan = await api.call("POST", "/v1/inventory/plan", json=document)
    assert (plan.status, len(plan.json["changes"])) == (200, 3009)
    body = {"name": "x" * (1024 * 1024), "spec": {"cpus": 1, "memory_mib": 1}}
    assert (await api.call("POST", "/v1/orgs/a/projects/b/vms", json=body)).status == 413


async def test_a_large_body_is_read_beside_the_loop_and_a_small_one_at_once(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_the_loop: list[bool] = []
    monkeypatch.setattr(streaming_json, "_outlined", _noted(on_the_loop, streaming_json._outlined))
    monkeypatch.setattr(InventoryDocument, "decode", _noted(on_the_loop, InventoryDocument.decode))
    large = {"racks": [{**RACK, "location": "x" * 200, "name": f"r{n}"} for n in range(200)]}
    for verb, path in (("POST", "/v1/inventory/plan"), ("PUT", "/v1/inventory")):
        on_the_loop.clear()
        assert (await api.call(verb, path, json=large)).status == 200
        assert on_the_loop == [False]
        on_the_loop.clear()
        wrong = await api.call(verb, path, json={**large, "rax": []})
        assert (wrong.status, "rax" in wrong.json["detail"]) == (400, True)
        assert on_the_loop == [False]
        on_the_loop.clear()
        assert (await api.call(verb, path, json=DOCUMENT)).status == 200
        assert on_the_loop == [True]


def _noted(on_the_loop: list[bool], work: Callable[..., Any]) -> Callable[..., Any]:
    def noted(*arguments: Any, **more: Any) -> Any:
        on_the_loop.append(threading.current_thread() is threading.main_thread())
        return work(*arguments, **more)

    return noted


async def test_everything_in_a_rack_has_its_place(api: Api) -> None:
    await api.call("PUT", "/v1/inventory", json=DOCUMENT)
    await api.node("r1-b2")
    await api.services.view.refresh()
    (item,) = (await api.call("GET", "/v1/racks?limit=1")).json["items"]
    assert (item["name"], item["blades"], item["nodes"], item["on_duty"]) == ("R1", 2, 1, 1)
    rack = (await api.call("GET", "/v1/racks/r1")).json
    assert [blade["name"] for blade in rack["blades"]] == ["b1", "b2"]
    assert (await api.call("GET", "/v1/racks/R1/pdu")).json == rack["pdus"][0]
    assert (await api.call("GET", "/v1/racks/R1/tor")).json == rack["tors"][0]
    assert (await api.call("GET", "/v1/racks/r1/pdus")).json["items"] == rack["pdus"]
    assert (await api.call("GET", "/v1/racks/r1/tors")).json["items"] == rack["tors"]
    assert (await api.call("GET", "/v1/racks/r1/blades")).json["items"] == rack["blades"]
    blade = await api.call("GET", "/v1/racks/r1/blades/B2")
    assert blade.json == rack["blades"][1]
    assert (blade.json["node"], blade.json["alive"], blade.json["pdus"]) == ("r1-b2", True, ["r1/pdu1", "r1/pdu2"])
    etag = blade.headers["ETag"]
    off = {"condition": "out_for_repair"}
    changed = await api.call("PATCH", "/v1/racks/r1/blades/b2", json=off, If_Match=etag)
    assert (changed.status, changed.json["condition"]) == (200, "out_for_repair")
    assert (await api.call("PATCH", "/v1/racks/r1/blades/b2", json=off, If_Match=etag)).status == 412
    for path in ("/pdus/b2", "/tors/pdu1", "/blades/tor1", "/blades/b9"):
        assert (await api.call("PATCH", f"/v1/racks/r1{path}", json=off)).status == 404
    assert (await api.call("PATCH", "/v1/racks/r1/blades/b2", json={"condition": "broken"})).status == 400
    for path in ("/v1/racks/r9", "/v1/racks/r9/pdu", "/v1/racks/r9/blades", "/v1/racks/r1/blades/b9"):
        assert (await api.call("GET", path)).status == 404
    assert (await api.call("GET", "/v1/racks/a-b")).status == 400
    (region,) = (await api.call("GET", "/v1/regions")).json["items"]
    assert [zone["name"] for zone in region["zones"]] == ["eu-1"]


async def test_the_client_knows_all_of_it(api: Api) -> None:
    await api.listen()
    async with hostler.Client(api.url, api.admin) as client:
        document = InventoryDocument(regions=tuple(DOCUMENT["regions"]))
        plan = await client.inventory.plan(document)
        assert (await client.inventory.load(document)).added == len(plan.changes)
        off, repair = HardwareSet(enabled=False), HardwareSet(condition=Condition.OUT_FOR_REPAIR)
        for done, name in (
            (await client.racks.set("r1", off), "R1"),
            (await client.racks.set_blade("r1", "b1", repair), "r1/b1"),
            (await client.racks.set_pdu("r1", "pdu2", off), "r1/pdu2"),
            (await client.racks.set_tor("r1", "tor1", off), "r1/tor1"),
            (await client.inventory.set_region("eu", off), "EU"),
            (await client.inventory.set_zone("eu", "eu-1", off), "EU/eu-1"),
        ):
            assert done.name == name
        assert [rack.name async for rack in client.racks.list(limit=1)] == ["R1"]
        assert [blade.name async for blade in client.racks.blades("r1", limit=1)] == ["b1", "b2"]
        detail = await client.racks.get("r1")
        assert (await client.racks.pdus("r1")).items == detail.pdus
        assert (await client.racks.tors("r1")).items == detail.tors
        assert (await client.racks.blade("r1", "b1")).condition is Condition.OUT_FOR_REPAIR
        assert (await client.inventory.regions()).items[0].enabled is False
        shown = await client.inventory.get()
        assert shown.regions[0]["enabled"] is False
        with pytest.raises(NotFound, match="rack r9"):
            await client.racks.get("r9")
        with pytest.raises(Stale, match="revision 1 is not"):
            await client.racks.set("r1", off, if_match=1)
        with pytest.raises(Invalid, match=r"racks\[0\].name: is missing"):
            await client.inventory.plan(InventoryDocument(racks=({},)))


async def test_the_floor_is_one_answer_and_a_file_is_read_as_the_command_line_reads_it(api: Api) -> None:
    await api.listen()
    feeds = "pdus: [{name: p, ports: 3}], tors: [{name: t, ports: 2}]"
    text = f"racks:\n  - {{name: R9, {feeds}, blades: {{count: 2}}}}\n"
    async with hostler.Client(api.url, api.admin) as client:
        document = await client.inventory.read(text, "dc.yaml")
        await client.inventory.load(document)
        await client.inventory.load(InventoryDocument(regions=tuple(DOCUMENT["regions"]), racks=document.racks))
        floor = await client.racks.summary()
        while len(floor.racks) < 2:  # it follows the store by a moment
            floor = await client.racks.summary()
        assert [(rack.region, rack.zone, rack.name) for rack in floor.racks] == [("EU", "eu-1", "R1"), ("", "", "R9")]
        assert floor.racks[0].blades == ("b1", "b2")
        assert set(floor.racks[0].states) == {"no_node"}
        assert (floor.simulation, floor.nodes) == (False, ())
        former = (await api.call("GET", "/v1/floor?racks=r9")).json  # the path of an earlier release
        assert [rack["name"] for rack in former["racks"]] == ["R9"]
        assert [rack.name for rack in (await client.racks.summary(["r9", "nowhere"])).racks] == ["R9"]
        with pytest.raises(Invalid, match=r"dc.yaml:1: racks\[0\]"):
            await client.inventory.read("racks: [{name: a}]", "dc.yaml")

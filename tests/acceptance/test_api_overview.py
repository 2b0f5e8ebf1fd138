"""The overview and the audit's newest lines, over HTTP."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from api_server import VM_BODY, Api, api_on, serving

from hostler.drivers.store.faulty import FaultyStore
from hostler.drivers.store.memory import MemoryStore
from hostler.entry.doctor import examination as doctor
from hostler.entry.doctor.host import paused_guests
from hostler.keys.families import AUDIT, BRAKE, CLOCK_DISPUTE, FENCING, HANDLE, LEADER, LEADER_CLOCK, REPLICA, TAKEOVER
from hostler.model.access import Audit, Role
from hostler.model.lab import LabPhase
from hostler.model.node import BrakeRecord, ClockDispute
from hostler.model.replica import Farewell, LeaderRecord, ReplicaRecord, Takeover
from hostler.model.vm import MachineState, Readiness, Step, VmHandle

VMS = "/v1/orgs/acme/projects/web/vms"


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with serving() as api:
        yield api


async def overview(api: Api, token: str = "") -> Any:
    reply = await api.call("GET", "/v1/overview", token=token)
    assert reply.status == 200
    return reply.json


async def test_everything_is_counted_as_far_as_the_caller_sees_it(api: Api) -> None:
    await api.node("n1")
    await api.node("n2", alive=False)
    await api.lab("ada", phase=LabPhase.WAITING)
    for path in (VMS, "/v1/orgs/other/projects/web/vms"):
        assert (await api.call("POST", path, json=VM_BODY)).status == 201
    ann = await api.user(Role.VIEWER, "acme", name="ann")
    everything = await overview(api)
    async with asyncio.timeout(60):
        while everything["vms"] != {"pending": 2}:
            everything = await overview(api)
    assert everything["labs"] == {"waiting": 1}
    assert everything["nodes"] == {"on_duty": 1, "silent": 1}
    assert [(one["what"], one["count"]) for one in everything["attention"]] == [("nodes-silent", 1)]
    assert everything["attention"][0]["examples"][0]["object"] == "node/n2"
    assert everything["store"]["answers"]
    assert everything["store"]["engine"] == "memory"
    assert everything["control"] == {"leader": None, "replicas": [], "takeovers": []}
    mine = await overview(api, ann)
    assert (mine["vms"], mine["labs"], mine["nodes"]) == ({"pending": 1}, {}, everything["nodes"])


async def test_a_guest_that_is_paused_is_told_of_everywhere(api: Api) -> None:
    await api.node("n1")
    made = (await api.call("POST", VMS, json=VM_BODY)).json
    detail = "the guest is paused because its disk cannot be written"
    handle = VmHandle(
        id=made["id"],
        node="n1",
        state=MachineState.RUNNING,
        readiness=Readiness(step=Step.AVAILABLE, since=0.0),
        paused=True,
        detail=detail,
        seen_at=0.0,
    )
    await api.store.txn([], [HANDLE.put(handle, org="acme", project="web", vm=made["id"])])
    (row,) = (await api.call("GET", "/v1/vms")).json["items"]
    assert (row["phase"], row["available"]) == ("paused", False)
    async with asyncio.timeout(60):
        while not (seen := await overview(api))["attention"]:
            await asyncio.sleep(0.01)
    assert seen["vms"] == {"paused": 1}
    assert [(one["what"], one["count"]) for one in seen["attention"]] == [("vms-paused", 1)]
    assert seen["attention"][0]["examples"][0]["detail"] == detail
    assert 'hostler_vms{phase="paused"} 1' in (await api.call("GET", "/metrics")).body.decode()
    (finding,) = paused_guests(api.services.view)
    assert finding.what == f"acme/web/{made['name']} on n1 is paused: {detail}"


async def test_a_brake_that_holds_is_shown_until_it_is_released(api: Api) -> None:
    record = BrakeRecord(nodes=("n1", "n2", "n3"), of=5, cause="all of them on tor r1/tor1", at=7.0)
    await api.store.txn([], [BRAKE.put(record, scope=FENCING)])
    concerns: list[Any] = []
    async with asyncio.timeout(60):
        while not concerns:
            concerns = [one for one in (await overview(api))["attention"] if one["what"] == "brake-held"]
    assert concerns[0]["count"] == 3
    assert concerns[0]["examples"][0] == {"object": "node/n1", "name": "n1", "detail": record.cause, "since": 7.0}
    assert "hostler_brake_held 1.0" in (await api.call("GET", "/metrics")).body.decode()
    (finding,) = await doctor._brake(api.store)
    assert "3 of 5 nodes" in finding.what
    assert "hostler node brake release" in finding.next
    assert (await api.call("GET", "/v1/brake")).json["held"]
    assert (await api.call("POST", "/v1/brake/release")).json["released_by"]
    async with asyncio.timeout(60):
        while (await overview(api))["attention"]:
            pass
    assert "hostler_brake_held 0.0" in (await api.call("GET", "/metrics")).body.decode()
    assert await doctor._brake(api.store) == []


async def test_a_clock_that_is_in_doubt_needs_attention(api: Api) -> None:
    dispute = ClockDispute(why="the leader's clock is 90 s ahead of the clock of node n1", node="n1", at=5.0, fence=7)
    await api.store.txn([], [CLOCK_DISPUTE.put(dispute, name=LEADER_CLOCK)])
    async with asyncio.timeout(60):
        while not (attention := (await overview(api))["attention"]):
            await asyncio.sleep(0.01)
    [concern] = attention
    assert (concern["what"], concern["count"]) == ("clock-in-doubt", 1)
    assert (concern["examples"][0]["object"], concern["examples"][0]["detail"]) == ("node/n1", dispute.why)


async def test_who_leads_is_told_with_the_time_that_is_left(api: Api) -> None:
    lease = await api.store.grant(30.0)
    held = ReplicaRecord(address="a:1", holder="h1", ttl=30.0, started_at=5.0, key=1, fence=7, held_at=6.0)
    took = Takeover(
        fence=7,
        holder="h1",
        address="a:1",
        at=6.5,
        previous_holder="h0",
        previous_address="b:1",
        previous=Farewell.SILENT,
    )
    old = Takeover(fence=5, holder="h0", address="b:1", at=1.0)
    await api.store.txn(
        [],
        [
            LEADER.put(LeaderRecord(address="a:1", holder="h1", fence=7), lease=lease, n=1),
            REPLICA.put(held, holder="h1"),
            TAKEOVER.put(took, fence=7),
            TAKEOVER.put(old, fence=5),
        ],
    )
    seen = await overview(api)
    leader = seen["control"]["leader"]
    assert (leader["fence"], leader["since"], leader["ttl"]) == (7, 6.5, 30.0)
    assert 0 < leader["ends_at"] - seen["at"] <= 30.0
    assert [one["fence"] for one in seen["control"]["takeovers"]] == [7, 5]
    assert seen["control"]["replicas"][0]["leads"]


async def test_while_the_store_is_silent_the_counts_are_told_and_who_leads_is_not() -> None:
    async with FaultyStore(MemoryStore(), random.Random(1)) as store, api_on(store) as api:
        assert (await api.call("POST", VMS, json=VM_BODY)).status == 201
        async with asyncio.timeout(60):
            while (await overview(api))["vms"] != {"pending": 1}:
                await asyncio.sleep(0.01)
        store.down()
        async with asyncio.timeout(60):
            while (seen := await overview(api))["store"]["answers"]:
                await asyncio.sleep(0.05)
        assert seen["control"] is None
        assert seen["vms"] == {"pending": 1}
        assert seen["store"]["silent_for"] > 0
        assert not seen["ready"]
        store.up()


# The audit


async def audited(api: Api, token: str = "", **query: Any) -> list[dict[str, Any]]:
    """Every page of it."""
    items: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        asked = {**query, "after": after} if after else query
        path = "/v1/audit?" + "&".join(f"{name}={value}" for name, value in asked.items())
        page = (await api.call("GET", path, token=token)).json
        items += page["items"]
        after = page["after"]
    return items


async def test_the_audit_newest_first_is_the_audit_turned_round(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(12):
        await api.call("PUT", f"/v1/orgs/acme/projects/p{number}/quota", json={"vms": 5})
    made = (await api.call("POST", VMS, json=VM_BODY)).json
    forth = await audited(api, limit=1000)
    for limit in (1, 3, 5, 14, 1000):
        assert await audited(api, newest="true", limit=limit) == forth[::-1]
        assert await audited(api, limit=limit) == forth
    today = (await api.call("GET", "/v1/audit?limit=1")).json
    assert today["after"] is not None
    day = today["after"].partition("/")[0]
    assert await audited(api, newest="true", limit=4, day=day) == forth[::-1]
    assert await audited(api, newest="true", day="2020-01-01") == []
    monkeypatch.setattr("hostler.engine.access.audit.LOOKED_AT", 4)
    only = await audited(api, newest="true", who="ADMIN", verb="vm.", subject=made["id"])
    assert [(item["verb"], item["name"]) for item in only] == [("vm.create", "one")]
    assert await audited(api, who="nobody") == []
    assert (await api.call("GET", "/v1/audit?newest=true&after=x/y")).status == 400


async def test_lines_of_one_instant_are_all_told(api: Api) -> None:
    for write in "abcde":
        line = Audit(who="ann", verb="vm.stop", subject=f"/x/{write}", before=1, at=1.0)
        await api.store.txn([], [AUDIT.put(line, day="2026-11-15", write=f"10:15:30.123456-{write}")])
    told = await audited(api, newest="true", limit=2, who="ann")
    assert [item["subject"] for item in told] == [f"/x/{write}" for write in "edcba"]

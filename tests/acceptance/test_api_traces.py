"""Decisions over HTTP, in the client and on the command line."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from api_server import Api, serving

import hostler
from hostler.engine.decision_recorder import Tracer
from hostler.engine.runtime.guarded_writer import Why
from hostler.errors import NotFound
from hostler.keys.families import VM
from hostler.kit.clock import SystemClock
from hostler.model.access import Role

VMS = "/v1/orgs/acme/projects/web/vms"


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with serving() as api:
        yield api


async def decided(api: Api) -> str:
    """A machine, and a decision about it; its id."""
    made = (await api.call("POST", VMS, json={"name": "www", "spec": {"cpus": 1, "memory_mib": 64}})).json
    wish = await VM.get(api.store, org="acme", project="web", vm=made["id"])
    assert wish is not None
    then: list[Any] = [VM.put(wish.value, org="acme", project="web", vm=made["id"])]
    Tracer(SystemClock(), lambda: "a", "machines").add(
        then, Why(what="place", why="placed on r1-b2: score 71.2", read=(wish,)), subject=wish.key, fence=3
    )
    await api.store.txn([], then)
    return str(made["id"])


async def test_a_decision_is_listed_under_the_wish_that_led_to_it(api: Api) -> None:
    await decided(api)
    page = (await api.call("GET", "/v1/decisions?object=vm/acme/web/www")).json
    assert [item["what"] for item in page["items"]] == ["place", "vm.create"]
    assert page["items"][0]["parent"] == page["items"][1]["id"]
    assert (page["items"][0]["subject"], page["items"][0]["fence"]) == ("vm acme/web/www", 3)
    assert page["after"] is None
    former = await api.call("GET", "/v1/traces?object=vm/acme/web/www")  # the path of an earlier release
    assert (former.status, former.json["items"]) == (200, page["items"])
    first = (await api.call("GET", "/v1/decisions?limit=1")).json
    assert [item["what"] for item in first["items"]] == ["place"]
    assert [item["what"] for item in first["before"]] == ["vm.create"]
    rest = (await api.call("GET", f"/v1/decisions?limit=1&after={first['after']}")).json
    assert [item["what"] for item in rest["items"]] == ["vm.create"]
    for wrong, status in (("after=x", 400), ("limit=0", 400), ("object=node/none", 404), ("object=/", 400)):
        assert (await api.call("GET", f"/v1/decisions?{wrong}")).status == status


async def test_why_tells_the_steps_to_those_who_see_the_project(api: Api) -> None:
    vm = await decided(api)
    found = (await api.call("GET", "/v1/why?object=vm/www&org=acme&project=web")).json
    assert (found["object"], found["state"]) == ("vm acme/web/www", "is pending")
    assert [step["what"] for step in found["steps"]] == ["place", "vm.create"]
    assert (await api.call("GET", "/v1/why")).status == 400
    mine = await api.user(Role.VIEWER, "acme/web")
    assert (await api.call("GET", f"/v1/why?object={vm}", token=mine)).status == 200
    other = await api.user(Role.ADMIN, "other")
    assert (await api.call("GET", f"/v1/why?object={vm}", token=other)).status == 404
    seen = (await api.call("GET", "/v1/decisions", token=other)).json["items"]
    assert all(item["subject"].startswith(("user ", "a token")) for item in seen), "their own account, and no machine"
    assert (await api.call("GET", "/v1/decisions", token=await api.user(Role.MEMBER, "other"))).json["items"] == []
    assert (await api.call("GET", "/v1/decisions", token=None)).status == 401


async def test_the_client_reads_the_same(api: Api) -> None:
    await api.listen()
    await decided(api)
    async with hostler.Client(api.url, api.admin) as client:
        why = await client.decisions.why("vm/acme/web/www")
        assert [step.what for step in why.steps] == ["place", "vm.create"]
        pages = client.decisions.list("vm/acme/web/www", limit=1)
        assert [one.what async for one in pages] == ["place", "vm.create"]
        with pytest.raises(NotFound):
            await client.decisions.why("node/none")

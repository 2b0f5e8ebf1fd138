"""Workloads over HTTP: what each request answers, who may, what is shown of instances, and the client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from api_server import Api, Reply, serving
from harness import pace

import hostler
from hostler.errors import Conflict, NotFound, Stale, Unavailable
from hostler.keys.families import ACTUAL, HANDLE, INSTANCE, TARGET, VM, WORKLOAD
from hostler.model.access import Role
from hostler.model.trace import Reason
from hostler.model.vm import MachineState, VirtualMachine, VmHandle, VmSpec
from hostler.model.workload import Actual, Target, WorkloadInstance
from hostler.model.workload_api import WorkloadApply, WorkloadPhase

ALL = "/v1/workloads"
SPEC = {"cpus": 1, "memory_mib": 64}


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with serving() as api:
        yield api


def said(answer: Reply) -> str:
    return f"{answer.json['detail']}; {answer.json['next']}"


def body(name: str = "Web", **more: Any) -> dict[str, Any]:
    return {"name": name, "spec": SPEC, **more}


async def put_instance(
    api: Api, number: int, *, node: str | None = "n1", why: str = "", vm: bool = True, template: int = 1
) -> None:
    """An instance in the store, with nothing behind it."""
    ids: dict[str, Any] = {"workload": "web", "instance": str(number)}
    id_ = f"vm-{number}" if vm else ""
    place: dict[str, Any] = {"org": "workloads", "project": "web", "vm": id_}
    reasons = (Reason(subject="n1" if node is None else node, why=why),) if why else ()
    then = [
        INSTANCE.put(WorkloadInstance(instance=str(number), vm=id_, template=template, created_at=1.0), **ids),
        TARGET.put(Target(node=node, vm=id_, reasons=reasons, decided_at=1.0), **ids),
    ]
    if vm:
        shape = VmSpec(cpus=1, memory_mib=64)
        labels = {"workload": "web"}
        wish = VirtualMachine(
            id=id_,
            name=f"web-{number}",
            org="workloads",
            project="web",
            spec=shape,
            labels=labels,
            instance=f"web/{number}",
            on_node_loss="wait",  # type: ignore[arg-type]
            created_at=1.0,
        )
        state = MachineState.PENDING if node is None else MachineState.RUNNING
        handle = VmHandle(id=id_, node=node or "", state=state, generation=1, detail=why, seen_at=2.0)
        then += [VM.put(wish, **place), HANDLE.put(handle, **place)]
        if node is not None:
            then.append(ACTUAL.put(Actual(node=node, state=state, vm=id_, generation=1, seen_at=2.0), **ids))
    await api.store.txn([], then)


async def heard(api: Api) -> None:
    """Until the server knows what was written."""
    view = api.services.view
    await view.refresh(view.instances, view.targets, view.vms, view.handles, view.workloads)


async def test_applying_creates_then_changes_then_changes_nothing(api: Api) -> None:
    first = await api.call("PUT", f"{ALL}/Web", json=body(instances=3))
    assert (first.status, first.headers["Location"]) == (201, "/v1/workloads/Web")
    assert (first.json["org"], first.json["project"], first.json["phase"]) == ("workloads", "web", "changing")
    assert (first.json["generation"], first.json["template"]) == (1, 1)
    shown = await api.call("GET", f"{ALL}/WEB")
    assert shown.headers["ETag"] == f'"{first.json["revision"]}"'
    assert shown.json == first.json
    same = await api.call("PUT", f"{ALL}/web", json=body("web", instances=3))
    assert (same.status, same.json["revision"], same.json["name"]) == (200, first.json["revision"], "Web")
    fewer = await api.call("PUT", f"{ALL}/web", json=body("web"))
    assert fewer.json["revision"] == first.json["revision"], "without a number it stays"
    scaled = await api.call("PATCH", f"{ALL}/web", json={"instances": 5})
    assert (scaled.json["instances"], scaled.json["generation"], scaled.json["template"]) == (5, 2, 1)
    labelled = await api.call("PUT", f"{ALL}/web", json=body(labels={"a": "b"}))
    assert (labelled.json["instances"], labelled.json["template"]) == (5, 1)
    larger = await api.call("PUT", f"{ALL}/web", json=body(labels={"a": "b"}) | {"spec": {**SPEC, "cpus": 2}})
    assert (larger.json["generation"], larger.json["template"]) == (4, 2)
    off = await api.call("PATCH", f"{ALL}/web", json={"enabled": False})
    assert (off.json["enabled"], off.json["template"]) == (False, 2)


async def test_what_is_deleted_is_refused_everything_but_being_deleted(api: Api) -> None:
    await api.call("PUT", f"{ALL}/web", json=body("web"))
    gone = await api.call("DELETE", f"{ALL}/web")
    assert (gone.status, gone.json["phase"]) == (202, "deleting")
    again = await api.call("DELETE", f"{ALL}/web")
    assert (again.status, again.json["revision"]) == (202, gone.json["revision"])
    for method, sent in (("PUT", body("web")), ("PATCH", {"instances": 2})):
        answer = await api.call(method, f"{ALL}/web", json=sent)
        assert answer.status == 409, method
        assert "it is being deleted; wait until it is gone" in said(answer)
    for method, sent in (("GET", None), ("DELETE", None), ("PATCH", {"instances": 2})):
        assert (await api.call(method, f"{ALL}/never", json=sent)).status == 404, method


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"rollout": {"max_unavailable": 0, "max_surge": 0}}, "nothing could ever be replaced"),
        ({"labels": {"workload": "x"}}, "Hostler sets it"),
        ({"org": "labs"}, "is for labs"),
        ({"project": "a/b"}, "must not hold a '/'"),
        ({"spec": {**SPEC, "origin": {"vm": "v", "snapshot": "s"}}}, "cannot begin as a snapshot"),
        ({"name": "other"}, "the body names other"),
        ({"instances": -1}, "$.instances"),
        ({"size": 3}, "unknown field"),
    ],
)
async def test_what_cannot_be_is_refused_with_the_reason(api: Api, changes: dict[str, Any], why: str) -> None:
    answer = await api.call("PUT", f"{ALL}/web", json=body("web") | changes)
    assert (answer.status, await api.store.get(WORKLOAD.fill(workload="web"))) == (400, None)
    assert why in said(answer)


async def test_machines_do_not_change_their_project(api: Api) -> None:
    await api.call("PUT", f"{ALL}/web", json=body("web"))
    answer = await api.call("PUT", f"{ALL}/web", json=body("web", org="acme"))
    assert answer.status == 409
    assert "are in workloads/web and cannot go to acme/web" in said(answer)


async def test_requests_are_repeated_once_and_conditional(api: Api) -> None:
    first = await api.call("PUT", f"{ALL}/web", json=body("web"), Idempotency_Key="k")
    second = await api.call("PUT", f"{ALL}/web", json=body("web"), Idempotency_Key="k")
    assert (second.headers["Idempotency-Replayed"], second.json) == ("true", first.json)
    revision = first.json["revision"]
    assert (await api.call("PATCH", f"{ALL}/web", json={"instances": 2}, If_Match=f'"{revision}"')).status == 200
    for method, sent in (("PATCH", {"instances": 3}), ("PUT", body("web")), ("DELETE", None)):
        assert (await api.call(method, f"{ALL}/web", json=sent, If_Match=f'"{revision}"')).status == 412, method
    assert (await api.call("PUT", f"{ALL}/new", json=body("new"), If_Match='"7"')).status == 412


async def test_to_strangers_a_workload_is_not_there_but_its_name_is_taken(api: Api) -> None:
    await api.call("PUT", f"{ALL}/web", json=body("web"))
    await api.call("PUT", f"{ALL}/shop", json=body("shop", org="acme", project="shop"))
    token = await api.user(Role.MEMBER, "acme/shop", "mine")
    for method, path, sent in (
        ("GET", "/{}", None),
        ("GET", "/{}/instances", None),
        ("PATCH", "/{}", {"instances": 2}),
        ("DELETE", "/{}", None),
    ):
        answers = []
        for name in ("web", "nothing"):
            answer = await api.call(method, ALL + path.format(name), token=token, json=sent)
            answers.append((answer.status, answer.json["detail"].replace(name, "X")))
        assert answers[0] == answers[1], method
        assert answers[0][0] == 404, method
    assert (await api.call("PUT", f"{ALL}/mine", token=token, json=body("mine"))).status == 404
    taken = await api.call("PUT", f"{ALL}/web", token=token, json=body("web", org="mine"), If_Match='"1"')
    assert (taken.status, "the name is taken" in taken.json["detail"]) == (409, True)
    for stale in ("", "?stale=true"):
        items = (await api.call("GET", ALL + stale, token=token)).json["items"]
        assert [item["name"] for item in items] == ["shop"]


async def test_lists_page(api: Api) -> None:
    for name in ("d", "B", "a", "c"):
        await api.call("PUT", f"{ALL}/{name}", json=body(name, org="acme"))
    await heard(api)
    for stale in ("", "&stale=true"):
        page = (await api.call("GET", f"{ALL}?limit=3{stale}")).json
        assert ([item["name"] for item in page["items"]], page["after"]) == (["a", "B", "c"], "c")
        rest = (await api.call("GET", f"{ALL}?limit=3&after=c{stale}")).json
        assert ([item["name"] for item in rest["items"]], rest["after"]) == (["d"], None)


async def test_instances_tell_what_was_decided_and_what_is(api: Api) -> None:
    await api.call("PUT", f"{ALL}/web", json=body("web", instances=12))
    await api.node("n1")
    await api.node("n2", alive=False)
    for number in range(1, 11):
        await put_instance(api, number, node="n2" if number == 3 else "n1", why="chosen: score 9")
    await put_instance(api, 11, node=None, why="no room: 1 of 1 cpus missing")
    await put_instance(api, 12, node=None, why="its quota allows 11", vm=False)
    await heard(api)
    view = (await api.call("GET", f"{ALL}/web")).json
    assert (view["made"], view["ready"], view["pending"], view["updated"]) == (12, 9, 2, 11)
    assert (view["phase"], view["settled"]) == ("pending", False)
    assert view["detail"] == "instance 12: its quota allows 11"
    for stale in ("", "&stale=true"):
        page = (await api.call("GET", f"{ALL}/web/instances?limit=10{stale}")).json
        assert [item["instance"] for item in page["items"]] == [str(n) for n in range(1, 11)]
        assert page["after"] == "10"
        first, third = page["items"][0], page["items"][2]
        assert (first["phase"], first["node"], first["ready"], first["name"]) == ("running", "n1", True, "web-1")
        assert (first["target"]["node"], first["actual"]["state"]) == ("n1", "running")
        assert first["reasons"][0]["why"] == "chosen: score 9"
        assert (third["phase"], third["ready"]) == ("silent", False)
        rest = (await api.call("GET", f"{ALL}/web/instances?limit=10&after=10{stale}")).json
        assert [(item["phase"], item["detail"]) for item in rest["items"]] == [
            ("pending", "no room: 1 of 1 cpus missing"),
            ("pending", "its quota allows 11"),
        ]
        assert (rest["after"], rest["items"][1]["vm"], rest["items"][1]["actual"]) == (None, "", None)
    assert (await api.call("GET", f"{ALL}/web/instances?after=x")).status == 400


async def test_a_workload_is_ready_when_all_is_as_wished(api: Api) -> None:
    await api.call("PUT", f"{ALL}/web", json=body("web", instances=1))
    await api.node("n1")
    await put_instance(api, 1)
    await heard(api)
    view = (await api.call("GET", f"{ALL}/web")).json
    assert (view["phase"], view["settled"], view["detail"]) == ("ready", True, "")
    await api.call("PUT", f"{ALL}/web", json=body("web", instances=1, node_labels={"a": "b"}))
    view = (await api.call("GET", f"{ALL}/web")).json
    assert (view["phase"], view["updated"], view["detail"]) == ("updating", 0, "0 of 1 are of the newest template")


async def test_the_client_applies_waits_scales_and_deletes(api: Api) -> None:
    await api.listen()
    async with hostler.Client(api.url, api.admin) as client:
        wanted = WorkloadApply(name="web", spec=VmSpec(cpus=1, memory_mib=64), instances=1)
        made = await client.workloads.apply(wanted)
        assert (made.phase, made.instances) == (WorkloadPhase.CHANGING, 1)
        seen: list[str] = []
        waiting = asyncio.create_task(
            client.workloads.wait("web", settled=True, within=60, on_change=lambda view: seen.append(view.phase))
        )
        await api.node("n1")
        await put_instance(api, 1)
        view = await waiting
        assert view is not None
        assert seen[-1] == "ready"
        assert [one.instance async for one in client.workloads.instances("web", limit=1)] == ["1"]
        assert [one.name async for one in client.workloads.list()] == ["web"]
        scaled = await client.workloads.scale("web", 3, if_match=view.revision)
        with pytest.raises(Stale):
            await client.workloads.scale("web", 4, if_match=view.revision)
        assert (await client.workloads.scale("web", enabled=False)).generation == scaled.generation + 1
        within = pace.patience(0.2)  # long enough for one answer
        with pytest.raises(Unavailable, match=f"still changing after {within:g} s"):
            await client.workloads.wait("web", settled=True, within=within)
        await client.workloads.delete("web")
        with pytest.raises(Conflict, match="being deleted"):
            await client.workloads.apply(wanted)
        gone = asyncio.create_task(client.workloads.wait("web", gone=True, within=60))
        await api.store.delete(WORKLOAD.fill(workload="web"))
        assert await gone is None
        with pytest.raises(NotFound):
            await client.workloads.wait("web", settled=True)
        assert msgspec.to_builtins(await client.workloads.list())["items"] == ()

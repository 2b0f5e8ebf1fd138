"""Every route × every role, on a running server. A route without a line here fails."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from api_server import Api, serving
from blueprint_scene import believing, blueprint, spec

from hostler.engine.inventory.inventory_file import inventory_in
from hostler.engine.request import HOSTLER, Request
from hostler.entry.server.route import Answer, Asked, Route
from hostler.entry.server.services import ServerConfig
from hostler.entry.server.table import table
from hostler.keys.families import BRAKE, COMMAND, FENCING, RETAINED
from hostler.model.access import Role
from hostler.model.access_api import QuotaSet, TokenCreate
from hostler.model.node import BrakeRecord, Lifecycle, Retained, VmCommand
from hostler.model.vm import VmSpec
from hostler.model.vm_api import VmCreate
from hostler.model.workload_api import WorkloadApply

EVERYBODY = frozenset(("viewer", "member", "operator", "admin"))
WORKERS = EVERYBODY - {"viewer"}
OPERATORS = frozenset(("operator of *", "admin of *"))
"""Nodes, racks and simulated time belong to no org: nobody whose orgs are few may."""
ADMINISTRATORS = frozenset(("admin of *",))
"""Limits are changed by nobody whom they bound."""
ADMINS = frozenset(("admin",))
ANYONE = EVERYBODY | {"nobody", "guesser"}
DEPLOYERS = frozenset(("member of *", "operator of *", "admin of *"))
"""What they say runs on every node: nobody whose projects are few may."""

MAY = {
    "vm.get": EVERYBODY,
    "vm.list": EVERYBODY,
    "vm.list_all": EVERYBODY,
    "vm.why": EVERYBODY,
    "vm.create": WORKERS,
    "vm.update": WORKERS,
    "vm.delete": WORKERS,
    "vm.start": WORKERS,
    "vm.stop": WORKERS,
    "vm.reset": WORKERS,
    "vm.snapshot": WORKERS,
    "vm.restore": WORKERS,
    "vm.drop_snapshot": WORKERS,
    "vm.move": WORKERS,
    "vm.ticket": WORKERS,
    "vm.console": WORKERS,
    "vm.ssh": WORKERS,
    "vm.log": WORKERS,
    "vm.shell": WORKERS,
    "terminal.key": EVERYBODY,
    "image.list": EVERYBODY,
    "lab.list": EVERYBODY,
    "lab.get": EVERYBODY,
    "lab.events": EVERYBODY,
    "lab.catalogue": EVERYBODY,
    "lab.start": WORKERS,
    "lab.stop": WORKERS,
    "lab.extend": WORKERS,
    "lab.message": WORKERS,
    "lab.ticket": WORKERS,
    "lab.terminal": WORKERS,
    "workload.list": EVERYBODY,
    "workload.get": EVERYBODY,
    "workload.instances": EVERYBODY,
    "workload.apply": WORKERS,
    "workload.scale": WORKERS,
    "workload.delete": WORKERS,
    "invoke.call": DEPLOYERS,  # and everybody, where the blueprint says so
    **{f"route.{verb}": EVERYBODY for verb in ("get", "post", "put", "patch", "delete")},  # who may, the slice says
    "artifact.list": EVERYBODY,
    "artifact.get": EVERYBODY,
    "artifact.file": EVERYBODY,
    "artifact.publish": DEPLOYERS,
    "blueprint.list": EVERYBODY,
    "blueprint.get": EVERYBODY,
    "blueprint.status": EVERYBODY,
    "blueprint.calls": EVERYBODY,
    "blueprint.read": DEPLOYERS,
    "blueprint.history": EVERYBODY,
    "blueprint.revision": EVERYBODY,
    "blueprint.plan": DEPLOYERS,
    "blueprint.apply": DEPLOYERS,
    "blueprint.rollback": DEPLOYERS,
    **{f"blueprint.{verb}": DEPLOYERS for verb in ("promote", "pause", "resume", "approve", "abort")},
    "blueprint.delete": DEPLOYERS,
    "slice.list": EVERYBODY,
    "slice.log": DEPLOYERS,
    "endpoint.list": EVERYBODY,
    "retained.list": EVERYBODY,
    "retained.get": EVERYBODY,
    "retained.restore": WORKERS,
    "retained.delete": ADMINS,
    "brake.get": EVERYBODY,
    "brake.release": OPERATORS,
    "node.list": EVERYBODY,
    "node.get": EVERYBODY,
    "node.drain": OPERATORS,
    "node.activate": OPERATORS,
    "node.confirm_off": OPERATORS,
    "node.forget": OPERATORS,
    "rack.list": EVERYBODY,
    "rack.get": EVERYBODY,
    "rack.pdu": EVERYBODY,
    "rack.pdus": EVERYBODY,
    "rack.tor": EVERYBODY,
    "rack.tors": EVERYBODY,
    "rack.blades": EVERYBODY,
    "blade.get": EVERYBODY,
    "region.list": EVERYBODY,
    "region.set": OPERATORS,
    "zone.set": OPERATORS,
    "rack.set": OPERATORS,
    "pdu.set": OPERATORS,
    "tor.set": OPERATORS,
    "blade.set": OPERATORS,
    "inventory.get": EVERYBODY,
    "floor.get": EVERYBODY,
    "inventory.read": OPERATORS,
    "inventory.plan": OPERATORS,
    "inventory.load": OPERATORS,
    "quota.get": EVERYBODY,
    "quota.set": ADMINISTRATORS,
    "quota.delete": ADMINISTRATORS,
    "quota.get_org": EVERYBODY,
    "quota.set_org": ADMINISTRATORS,
    "quota.delete_org": ADMINISTRATORS,
    "project.list": EVERYBODY,
    "project.create": ADMINS,
    "user.list": ADMINS,
    "user.create": ADMINS,
    "user.get": ADMINS,
    "user.update": ADMINS,
    "user.delete": ADMINS,
    "token.list": ADMINS,
    "token.issue": ADMINS,
    "token.revoke": ADMINS,
    "session.login": ANYONE,
    "session.get": EVERYBODY,
    "session.logout": EVERYBODY,
    "session.sign_in": ANYONE,
    "session.browser": ANYONE,
    "session.ticket": EVERYBODY,
    "control.leader": EVERYBODY,
    "control.replicas": EVERYBODY,
    "control.overview": EVERYBODY,
    "control.audit": ADMINS,
    "control.events": EVERYBODY,
    "trace.list": EVERYBODY,
    "trace.why": EVERYBODY,
    "sim.get": EVERYBODY,
    "sim.mode": OPERATORS,
    "sim.step": OPERATORS,
    "sim.state": ADMINISTRATORS,
    "sim.kinds": EVERYBODY,
    "sim.inject": OPERATORS,
    "sim.lift": OPERATORS,
    "sim.command": OPERATORS,
    "sim.proposals": EVERYBODY,
    "sim.auto_repair": OPERATORS,
    "sim.repair": OPERATORS,
    "sim.log": EVERYBODY,
    "health.alive": ANYONE,
    "health.ready": ANYONE,
    "health.metrics": EVERYBODY,
    "health.openapi": ANYONE,
    "health.docs": ANYONE,
    "site.page": ANYONE,
    "site.asset": ANYONE,
    "site.icon": ANYONE,
    "site.licences": ANYONE,
}
"""Who may, as the owner of a project `acme/web`, and of all labs, would say it. Accounts and tokens are another's."""
OWN = {
    "user.get": EVERYBODY,
    "user.update": EVERYBODY,
    "token.list": EVERYBODY,
    "token.issue": EVERYBODY,
    "token.revoke": EVERYBODY,
    "user.delete": ADMINS,
}
"""The same routes for one's own account."""
BODIES = {
    "vm.create": {"name": "new", "spec": {"cpus": 1, "memory_mib": 64}},
    "vm.update": {"labels": {"a": "b"}},
    "vm.snapshot": {"name": "s2"},
    "vm.restore": {"name": "s1"},
    "vm.move": {"to": "n0"},
    "vm.ticket": {"door": "ssh"},
    "lab.start": {"user": "target", "labId": 5},
    "lab.extend": {"minutes": 10},
    "lab.message": {"text": "ten minutes left"},
    "workload.apply": {"org": "acme", "project": "web", "spec": {"cpus": 1, "memory_mib": 64}},
    "workload.scale": {"instances": 2},
    **{f"blueprint.{verb}": {"slices": [{"artifact": "a:new:1", "instances": 1}]} for verb in ("plan", "apply")},
    "blueprint.rollback": {},
    **{f"blueprint.{verb}": {} for verb in ("promote", "pause", "resume", "approve", "abort")},
    "blueprint.read": {"text": "{}"},
    "node.drain": {"mode": "stop"},
    **{f"{level}.set": {"enabled": False} for level in ("region", "zone", "rack", "pdu", "tor", "blade")},
    "inventory.read": {"text": "racks: []"},
    "inventory.plan": {"racks": []},
    "inventory.load": {"racks": []},
    "quota.set": {"vms": 100},
    "quota.set_org": {"vms": 100},
    "project.create": {"name": "new"},
    "user.create": {"name": "new", "memberships": ["acme/web"]},
    "user.update": {"full_name": "Ann"},
    "token.issue": {"name": "t"},
    "session.login": {"name": "target", "password": "password"},
    "session.sign_in": {"name": "target", "password": "password"},
    "sim.mode": {"mode": "manual", "epoch": 0},
    "sim.step": {"seconds": 1},
    "sim.inject": {"fault": "power", "on": "r1"},
    "sim.command": {"command": "power_off", "on": "r1/b1", "guard": 0},
    "sim.auto_repair": {"automatic": True},
}
OTHERWISE = {
    "vm.move": {404},
    "vm.console": {400},
    "vm.shell": {400},
    "vm.ssh": {400},
    "lab.terminal": {400},
    "trace.why": {400},
    "blueprint.apply": {404},
    "blueprint.rollback": {404},
    **{f"blueprint.{verb}": {404, 409} for verb in ("promote", "pause", "resume", "approve", "abort")},
    "slice.log": {404},
    "artifact.get": {404},
    "artifact.file": {404},
    "artifact.publish": {400},
    "invoke.call": {404},
    **{name: {404} for name in MAY if name.startswith("route.")},
    "session.browser": {204, 401},  # without a cookie; for a token in a header is no browser's
    "site.asset": {404},
    "site.icon": {404},
    "site.licences": {404},
    "vm.restore": {200, 409},
    "vm.drop_snapshot": {200},
    **{name: {404} for name in MAY if name.startswith("sim.")},
}
"""What who may gets, where that is not the success: nothing runs behind this server."""


async def _handler(asked: Asked) -> Answer:
    return Answer()


ROUTES = {route.name: route for route in table(_handler, _handler)}


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with serving(plan=ServerConfig(site=tmp_path)) as api:
        yield api


def test_every_route_has_its_line() -> None:
    assert set(MAY) == set(ROUTES)


class World:
    """Makes for each call what it is about, so that no call spoils another's."""

    def __init__(self, api: Api) -> None:
        self._api, self._numbers = api, itertools.count(1)

    async def path(self, route: Route, user: str) -> str:
        number = next(self._numbers)
        api, own = self._api, Request(HOSTLER)
        parts = {"org": "acme", "project": "web", "user": user, "vm": f"vm{number}", "name": "s1", "node": f"n{number}"}
        parts |= {"fault": "fault-1", "proposal": "fix~r1", "artifact": "org.example:none:1", "method": "greet"}
        parts |= {"file": "none.js", "path": "none"}
        if "{vm}" in route.path:
            await api.services.vms.create(
                own, "acme", "web", VmCreate(name=parts["vm"], spec=VmSpec(cpus=1, memory_mib=64))
            )
            await api.services.vms.snapshot(own, "acme", "web", parts["vm"], "s1")
        if "{workload}" in route.path:
            parts["workload"] = f"w{number}"
            shape = VmSpec(cpus=1, memory_mib=64)
            wish = WorkloadApply(name=parts["workload"], org="acme", project="web", spec=shape)
            await api.services.workloads.apply(own, wish)
        if "{blueprint}" in route.path:
            parts |= {"blueprint": f"b{number}", "number": "1"}
            for version in ("1", "2"):
                wanted = blueprint(spec(f"s{number}:{version}"))
                await believing(api.services).apply(own, parts["blueprint"], wanted)
        if "/retained/" in route.path:
            record = Retained(
                name="s1",
                org="acme",
                project="web",
                vm=f"gone{number}",
                vm_name=f"old{number}",
                spec=VmSpec(cpus=1, memory_mib=64),
                retained_at=0.0,
            )
            await api.services.store.txn([], [RETAINED.put(record, node=parts["node"], name="s1")])
        if "{node}" in route.path:
            leaving = {"node.activate": Lifecycle.DRAINING, "node.forget": Lifecycle.DECOMMISSIONED}
            alive = route.name not in ("node.confirm_off", "node.forget")
            await api.node(parts["node"], alive=alive, lifecycle=leaving.get(route.name, Lifecycle.ON_DUTY))
        if "{rack}" in route.path or "{region}" in route.path:
            parts |= {"region": "eu", "zone": "a", "rack": "r1", "pdu": "p", "tor": "t", "blade": "b1"}
            feeds = {"pdus": [{"name": "p", "ports": 2}], "tors": [{"name": "t", "ports": 1}]}
            rack = {"name": "r1", "blades": {"count": 1}, **feeds}
            inventory = inventory_in({"regions": [{"name": "eu", "zones": [{"name": "a", "racks": [rack]}]}]})
            await api.services.inventory.load(own, inventory)
        if "{token}" in route.path:
            parts["token"] = (await api.services.users.issue(own, user, TokenCreate())).value.id
        if route.path.startswith("/v1/labs/"):
            await api.lab(user)
        if route.name == "brake.release":
            brake = BrakeRecord(nodes=("n1", "n2", "n3"), of=3, at=0.0)
            await api.store.txn([], [BRAKE.put(brake, scope=FENCING)])
        if "{org}" in route.path and not route.in_project:
            parts["org"] = "labs"  # the one that the callers are members of
        if route.name in ("quota.delete", "quota.delete_org"):
            bound = "" if route.name.endswith("_org") else "web"
            await api.services.quotas.set(own, parts["org"], bound, QuotaSet(vms=1000))
        return route.path.format(**parts)


async def _status(api: Api, route: Route, path: str, token: str | None, name: str) -> int:
    body = BODIES.get(route.name)
    if route.name in ("user.create", "vm.create", "project.create"):
        body = BODIES[route.name] | {"name": name}
    if route.name == "lab.start":
        body = BODIES[route.name] | {"user": name}
    if route.name == "workload.apply":
        body = BODIES[route.name] | {"name": path.rpartition("/")[2]}
    if route.name == "control.events":
        headers = [] if token is None else [("Authorization", f"Bearer {token}")]
        async with api.stream("GET", path, headers) as answer:
            return answer.status
    return (await api.call(route.method, path, token=token, json=body)).status


@pytest.mark.parametrize("name", MAY)
async def test_who_may_does_and_who_may_not_is_refused(api: Api, name: str) -> None:
    route, world = ROUTES[name], World(api)
    await api.user(Role.VIEWER, "acme/web", name="target")
    callers: dict[str, str | None] = {"nobody": None, "guesser": "hst_" + "x" * 43}
    for role in Role:
        callers[role.value] = await api.user(role, "acme/web", "labs", name=f"the-{role.value}")
        if name == "session.logout":  # an API token is revoked, not logged out
            login = {"name": f"the-{role.value}", "password": "password"}
            callers[role.value] = (await api.call("POST", "/v1/sessions", token=None, json=login)).json["token"]
    if MAY[name] in (DEPLOYERS, OPERATORS, ADMINISTRATORS):
        if not route.in_project:  # which does not exist for them
            callers["student"] = await api.user(Role.MEMBER, "labs/student", name="student")
        callers |= {f"{role.value} of *": await api.user(role, "*", name=f"{role.value}-of-all") for role in Role}
    for who, token in callers.items():
        path = await world.path(route, "target")
        status = await _status(api, route, path, token, f"new-{who}")
        if who in MAY[name]:
            assert status in OTHERWISE.get(name, {route.status, *route.also}), (who, status)
        elif token is None or who == "guesser":
            assert status == 401, who
        else:
            assert status == 403, who
        if name == "user.delete" and status == 200:
            await api.user(Role.VIEWER, "acme/web", name="target")


@pytest.mark.parametrize("name", OWN)
async def test_ones_own_account(api: Api, name: str) -> None:
    route, world = ROUTES[name], World(api)
    for role in Role:
        token = await api.user(role, "acme/web", name=f"own-{role.value}")
        status = await _status(api, route, await world.path(route, f"own-{role.value}"), token, "x")
        assert status == (route.status if role.value in OWN[name] else 403), role


@pytest.mark.parametrize("name", [name for name, route in ROUTES.items() if route.in_project])
async def test_to_strangers_a_project_is_not_there_whatever_their_rights(api: Api, name: str) -> None:
    """The answer is word for word that for a project that nobody ever made."""
    route, world = ROUTES[name], World(api)
    body = BODIES.get(name)
    for role in Role:
        token = await api.user(role, "other", "acme/mobile", "acm", "acme/we")
        path = await world.path(route, "target")
        there = await api.call(route.method, path, token=token, json=body)
        nowhere = await api.call(route.method, path.replace("/acme/", "/nope/"), token=token, json=body)
        assert (there.status, nowhere.status) == (404, 404)
        told, never = {**there.json, "instance": ""}, {**nowhere.json, "instance": ""}
        told["detail"] = told["detail"].replace("acme", "nope")
        assert told == never


@pytest.mark.parametrize("name", [name for name, route in ROUTES.items() if "{org}" in route.path])
async def test_to_strangers_an_org_is_not_there(api: Api, name: str) -> None:
    """Nor to members of some of its projects, where all of it is asked for."""
    route, world = ROUTES[name], World(api)
    for number, role in enumerate(Role):
        token = await api.user(role, "other", "acme/mobile", "acm", "labs/ada", name=f"stranger-{number}")
        answer = await api.call(route.method, await world.path(route, "target"), token=token, json=BODIES.get(name))
        assert answer.status in ((403, 404) if route.writes and not route.in_project else (404,)), (role, answer.status)


async def test_rights_on_what_serves_every_org_take_membership_everywhere_and_the_answer_says_so(api: Api) -> None:
    """An operator of one org drained the node of another's machines once, and read their names in the answer."""
    await api.node("n1")
    made = await api.call("POST", "/v1/orgs/acme/projects/web/vms", json={**BODIES["vm.create"], "name": "secret-www"})
    command = VmCommand(
        org="acme", project="web", vm=made.json["id"], spec=VmSpec(cpus=1, memory_mib=64), name="secret-www"
    )
    await api.services.store.txn([], [COMMAND.put(command, node="n1", vm=command.vm)])
    operator = await api.user(Role.OPERATOR, "beta", name="op")
    for method, path, body in (
        ("POST", "/v1/nodes/n1/drain", {}),
        ("PUT", "/v1/inventory", {"racks": []}),
        ("POST", "/v1/inventory/plan", {"racks": []}),
        ("POST", "/v1/nodes/n1/confirm-off", None),
    ):
        answer = await api.call(method, path, token=operator, json=body)
        assert (answer.status, "secret-www" in str(answer.json)) == (403, False), path
        assert "and membership in *" in answer.json["detail"]
        assert "ask an administrator who is a member of *" in str(answer.json)


async def test_a_server_that_is_no_simulation_says_so(api: Api) -> None:
    answer = await api.call("GET", "/v1/sim")
    assert answer.status == 404
    assert (answer.json["detail"], answer.json["next"]) == (
        "sim: not a simulation",
        "hostler sim serve starts one",
    )


async def test_a_list_of_everything_holds_only_ones_own(api: Api) -> None:
    for org in ("acme", "other"):
        for project in ("web", "mobile"):
            answer = await api.call("POST", f"/v1/orgs/{org}/projects/{project}/vms", json=BODIES["vm.create"])
            assert answer.status == 201
    one = await api.user(Role.MEMBER, "acme/web")
    org = await api.user(Role.MEMBER, "acme")
    none = await api.user(Role.ADMIN)

    async def seen(token: str, query: str = "") -> set[tuple[str, str]]:
        items = (await api.call("GET", f"/v1/vms{query}", token=token)).json["items"]
        return {(item["org"], item["project"]) for item in items}

    for query in ("", "?stale=true"):
        assert await seen(one, query) == {("acme", "web")}
        assert await seen(org, query) == {("acme", "web"), ("acme", "mobile")}
        assert await seen(none, query) == set()
        assert len(await seen("", query)) == 4


async def test_a_key_of_another_account_is_another_key(api: Api) -> None:
    ann, bob = await api.user(Role.MEMBER, "acme/web"), await api.user(Role.MEMBER, "other/web")
    body = BODIES["vm.create"]
    key = {"Idempotency_Key": "same"}
    first = await api.call("POST", "/v1/orgs/acme/projects/web/vms", token=ann, json=body, **key)
    second = await api.call("POST", "/v1/orgs/other/projects/web/vms", token=bob, json=body, **key)
    assert (first.status, second.status) == (201, 201)
    assert first.json["id"] != second.json["id"]


def _from(source: str) -> Callable[[object], str]:
    return lambda _: source


async def test_metrics_want_the_token_of_any_account_even_on_this_machine(api: Api) -> None:
    """For a guest of an agent that is not root comes from the loopback as well."""
    nobody_much = await api.user(Role.VIEWER)
    assert (await api.call("GET", "/metrics", token=None)).status == 401
    assert (await api.call("GET", "/metrics", token="hst_" + "x" * 43)).status == 401
    assert (await api.call("GET", "/metrics", token=nobody_much)).status == 200


async def test_metrics_can_be_opened_to_this_very_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(plan=ServerConfig(open_metrics=None)) as api:
        nobody_much = await api.user(Role.VIEWER)
        assert (await api.call("GET", "/metrics", token=None)).status == 200
        for proxied in ({"X_Forwarded_For": "192.0.2.1"}, {"Forwarded": "for=192.0.2.1"}):
            assert (await api.call("GET", "/metrics", token=None, **proxied)).status == 401
            assert (await api.call("GET", "/metrics", token=nobody_much, **proxied)).status == 200
        for source in ("192.0.2.1", "2001:db8::1", "::ffff:192.0.2.1", ""):
            monkeypatch.setattr("hostler.entry.server.app.source_of", _from(source))
            assert (await api.call("GET", "/metrics", token=None)).status == 401
            assert (await api.call("GET", "/metrics", token="hst_" + "x" * 43)).status == 401
            assert (await api.call("GET", "/metrics", token=nobody_much)).status == 200
        for source in ("127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"):
            monkeypatch.setattr("hostler.entry.server.app.source_of", _from(source))
            assert (await api.call("GET", "/metrics", token=None)).status == 200


async def test_metrics_can_be_opened_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(plan=ServerConfig(open_metrics=True)) as api:
        monkeypatch.setattr("hostler.entry.server.app.source_of", _from("192.0.2.1"))
        assert (await api.call("GET", "/metrics", token=None)).status == 200

"""The table of routes, the router, and what is read of a request at the door."""

from __future__ import annotations

import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from hostler.engine.deployments.service import BlueprintService
from hostler.engine.inventory.service import InventoryService
from hostler.engine.labs.service import LabService
from hostler.engine.nodes import NodeService
from hostler.engine.projects import Projects
from hostler.engine.quotas import QuotaService
from hostler.engine.request import Caller
from hostler.engine.retained import RetainedService
from hostler.engine.users import UserService
from hostler.engine.vms import VmService
from hostler.engine.workloads.service import WorkloadService
from hostler.entry.server import body as incoming
from hostler.entry.server.app import Router
from hostler.entry.server.body import Disconnected, linger, path_parts, query, read
from hostler.entry.server.machines import labels_of
from hostler.entry.server.problem import Refusal
from hostler.entry.server.route import Answer, Asked, Raw, Route, check_access, routes_of
from hostler.entry.server.services import ServerConfig
from hostler.entry.server.table import API, table
from hostler.errors import Forbidden, Invalid, NotFound
from hostler.model.access import ROLES, Role
from hostler.model.inventory import Rights
from hostler.model.resources.accounts import UserApi
from hostler.model.resources.operation import AFTER, LIMIT, STALE, Access

VM = "/v1/orgs/{org}/projects/{project}/vms/{vm}"


async def _handler(asked: Asked) -> Answer:
    return Answer()


ALL = table(_handler, _handler)


def _route(path: str, method: str = "GET", **more: Any) -> Route:
    return Route(method=method, path=path, name=path, summary="", handler=_handler, access=Access.ANYONE, **more)


def test_every_route_has_a_name_of_its_own() -> None:
    assert len({route.name for route in ALL}) == len(ALL)


def test_every_route_can_be_found() -> None:
    router = Router(ALL)
    for route in ALL:
        found, segments = router.find(route.method, route.path.replace("{", "").replace("}", ""))
        assert found is route
        assert segments == list(route.parts[:-1] if route.takes_rest else route.parts)


def test_every_write_that_changes_a_record_takes_if_match_or_creates_something() -> None:
    exempt = {"session.login", "session.logout", "token.issue", "token.revoke", "vm.create", "user.create", "vm.ticket"}
    exempt |= {"project.create"}
    exempt |= {"session.sign_in", "session.ticket"}
    exempt |= {"lab.start", "lab.ticket", "inventory.plan", "inventory.load"}  # the plan's digest is what is compared
    exempt |= {"retained.restore", "retained.delete"}  # what an agent sees of a machine has no revision of a caller's
    exempt |= {"blueprint.read", "inventory.read"}  # what a file says: nothing is written
    exempt |= {"invoke.call", "blueprint.plan", "artifact.publish"}  # what is published is never changed
    # Orders for rollouts name what was seen of each slice's rollout.
    exempt |= {f"blueprint.{verb}" for verb in ("promote", "pause", "resume", "approve", "abort")}
    exempt |= {route.name for route in API if route.takes_rest and route.writes}  # calls of slices
    exempt |= {route.name for route in API if route.tag == "sim" and route.writes}  # time and hardware are no records
    assert {route.name for route in API if route.writes and not route.conditional} == exempt


def test_every_route_under_v1_but_those_of_sessions_wants_a_token() -> None:
    open_ones = ["session.login", "session.sign_in", "session.browser"]  # the last looks at the cookie itself
    assert [route.name for route in API if route.access is Access.ANYONE] == open_ones


def test_the_page_repeats_only_writes_that_take_a_key() -> None:
    """What it does not repeat stands in its api.ts: another try could do it twice."""
    source = (Path(__file__).parents[2] / "web" / "src" / "api.ts").read_text()
    said = re.search(r"^const ONCE = /(.+)/;$", source, re.MULTILINE)
    assert said is not None
    once = re.compile(said[1].replace(r"\/", "/"))
    for route in API:
        if route.writes:
            assert bool(once.search(f"{route.method} {route.path}")) is not route.idempotent, route.name


def test_a_route_that_stands_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        Router([_route("/a/{b}"), _route("/a/{c}")])


def test_a_spelled_out_segment_comes_before_one_in_braces() -> None:
    spelled, braces = _route("/a/b"), _route("/a/{x}")
    router = Router([braces, spelled])
    assert router.find("GET", "/a/b")[0] is spelled
    assert router.find("GET", "/a/c") == (braces, ["c"])


@pytest.mark.parametrize(
    "path",
    [
        "",
        "//",
        "/assets",
        "/assets/",
        "/assets/a/b",
        "/nothing",
        "/v1",
        "/v1/vms/",
        "//v1/vms",
        "/v1//vms",
        VM + "/",
        "/v1/orgs//projects/b/vms",
    ],
)
def test_other_paths_are_not_found(path: str) -> None:
    with pytest.raises(Refusal) as refused:
        Router(ALL).find("GET", path)
    assert refused.value.sort.status == 404


def test_another_method_is_told_which_there_are() -> None:
    with pytest.raises(Refusal) as refused:
        Router(ALL).find("BREW", "/v1/orgs/a/projects/b/vms/c")
    assert refused.value.sort.status == 405
    assert refused.value.headers == ((b"allow", b"DELETE, GET, PATCH"),)


def test_head_is_get_except_for_streams() -> None:
    assert Router(ALL).find("HEAD", "/v1/vms")[0].name == "vm.list_all"
    with pytest.raises(Refusal):
        Router(ALL).find("HEAD", "/v1/events")


def test_an_encoded_slash_stays_inside_its_part() -> None:
    router = Router(ALL)
    route, segments = router.find("GET", "/v1/nodes/a%2Fdrain")
    assert (route.name, segments) == ("node.get", ["a%2Fdrain"])
    with pytest.raises(Invalid, match="'/'"):
        path_parts(segments)


@pytest.mark.parametrize(
    "segment", ["%00", "a%00b", "%ff", "%C3", "..", ".", "%2e%2e", "%2F", "a%0Ab", "x" * 256, "%ED%A0%80"]
)
def test_a_part_that_cannot_be_a_key_is_invalid(segment: str) -> None:
    with pytest.raises(Invalid):
        path_parts([segment])


@pytest.mark.parametrize(
    ("segment", "part"), [("a%20b", "a b"), ("%C3%A9", "é"), ("a+b", "a+b"), ("%25", "%"), ("%zz", "%zz")]
)
def test_parts_are_decoded_once(segment: str, part: str) -> None:
    assert path_parts([segment]) == [part]


# The query


def test_what_is_left_out_of_a_query_has_its_default() -> None:
    assert query(b"", (LIMIT, AFTER, STALE)) == {"limit": 100, "after": None, "stale": False}
    assert query(b"limit=7&stale=true&after=a%2Fb+c", (LIMIT, AFTER, STALE)) == {
        "limit": 7,
        "stale": True,
        "after": "a/b c",
    }


@pytest.mark.parametrize(
    "text",
    [
        *(b"nope=1", b"limit=1&limit=2", b"limit=0", b"limit=1001", b"limit=x", b"limit=-1", b"limit=1e3"),
        *(b"limit=%D9%A3", b"stale=yes", b"stale=", b"after=", b"after=%00", b"after=%ff", b"=", b"limit"),
        b"limit=" + b"9" * 5000,
    ],
)
def test_a_query_that_is_not_understood_is_refused(text: bytes) -> None:
    with pytest.raises((Invalid, Refusal)) as refused:
        query(text, (LIMIT, AFTER, STALE))
    assert not isinstance(refused.value, Refusal) or refused.value.sort.status == 400


def test_labels_are_pairs() -> None:
    assert labels_of(None) == {}
    assert labels_of("a=b,c=") == {"a": "b", "c": ""}
    for bad in ("a", "=b", "a=b,", "a=b,a=c", ","):
        with pytest.raises(Invalid):
            labels_of(bad)


# The body


class Sender:
    """Sends a body in pieces, and counts how much of it was taken."""

    def __init__(self, *pieces: bytes, pause: float = 0.0, gone: bool = False, **headers: str) -> None:
        self._pieces, self._pause, self._gone = list(pieces), pause, gone
        self.taken = 0
        named = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
        self.raw = Raw({}, self.receive, None, named)

    async def receive(self) -> dict[str, Any]:
        await asyncio.sleep(self._pause)
        if not self._pieces:
            return {"type": "http.disconnect"}
        piece = self._pieces.pop(0)
        self.taken += len(piece)
        return {"type": "http.request", "body": piece, "more_body": self._gone or bool(self._pieces)}


async def test_a_body_in_pieces_is_put_together() -> None:
    assert await read(Sender(b"a", b"", b"bc").raw, ServerConfig()) == b"abc"


async def test_a_body_over_the_limit_is_refused_unread_where_its_length_is_told() -> None:
    caller = Sender(b"x" * 100, content_length="100")
    with pytest.raises(Refusal) as refused:
        await read(caller.raw, ServerConfig(max_body=99))
    assert refused.value.sort.status == 413
    assert caller.taken == 0


async def test_a_body_without_a_length_is_refused_as_soon_as_it_is_too_long() -> None:
    caller = Sender(*[b"x" * 10] * 1000)
    with pytest.raises(Refusal) as refused:
        await read(caller.raw, ServerConfig(max_body=99))
    assert refused.value.sort.status == 413
    assert caller.taken == 100


async def test_a_body_of_just_the_limit_is_taken() -> None:
    assert len(await read(Sender(b"x" * 99, content_length="99").raw, ServerConfig(max_body=99))) == 99


async def test_a_body_that_does_not_come_is_given_up() -> None:
    with pytest.raises(Refusal) as refused:
        await read(Sender(b"x", pause=10).raw, ServerConfig(body_within=0.01))
    assert refused.value.sort.status == 408


async def test_a_caller_that_goes_away_is_not_answered() -> None:
    with pytest.raises(Disconnected):
        await read(Sender(b"x", gone=True).raw, ServerConfig())


async def test_lingering_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "LINGER_WITHIN", 0.01)
    await linger(Sender(b"x", pause=10).raw)
    monkeypatch.setattr(incoming, "LINGER_BYTES", 50)
    caller = Sender(*[b"x" * 10] * 1000)
    await linger(caller.raw)
    assert caller.taken == 50


# Who may


def _caller(role: Role, *memberships: str, name: str = "ann") -> Caller:
    return Caller(name, ROLES[role], memberships)


def _named(name: str) -> Route:
    return next(route for route in ALL if route.name == name)


def test_a_project_that_is_not_ones_own_does_not_exist_whatever_ones_rights() -> None:
    parts = {"org": "a", "project": "b", "vm": "c"}
    for role in Role:
        for name in ("vm.get", "vm.start", "quota.get"):
            with pytest.raises(NotFound):
                check_access(_named(name), _caller(role, "other", "a/c"), parts)


def test_a_member_without_the_right_is_forbidden() -> None:
    parts = {"org": "a", "project": "b", "vm": "c"}
    check_access(_named("vm.get"), _caller(Role.VIEWER, "a/b"), parts)
    check_access(_named("vm.start"), _caller(Role.MEMBER, "a/b"), parts)
    with pytest.raises(Forbidden):
        check_access(_named("vm.start"), _caller(Role.VIEWER, "a/b"), parts)


def test_ones_own_account_is_open_under_any_spelling_of_the_name() -> None:
    check_access(_named("user.get"), _caller(Role.VIEWER), {"user": "Ann"})
    with pytest.raises(Forbidden):
        check_access(_named("user.get"), _caller(Role.VIEWER), {"user": "bob"})
    check_access(_named("user.get"), _caller(Role.ADMIN), {"user": "bob"})


def test_every_right_in_the_table_is_one_of_the_six() -> None:
    rights = {route.access for route in ALL if not isinstance(route.access, Access)}
    assert rights <= set(Rights.__struct_fields__)


SERVICES = {
    "blueprints": BlueprintService,
    "inventory": InventoryService,
    "labs": LabService,
    "nodes": NodeService,
    "quotas": QuotaService,
    "retained": RetainedService,
    "users": UserService,
    "vms": VmService,
    "vms.projects": Projects,
    "workloads": WorkloadService,
}


@pytest.mark.parametrize("route", [route for route in API if route.calls], ids=lambda route: route.name)
def test_a_route_without_a_handler_calls_a_method_that_takes_what_it_declares(route: Route) -> None:
    service, _, method = route.calls.rpartition(".")
    body = () if route.body is None else ("body",)
    given = {parameter.name: parameter.default for parameter in route.query}
    inspect.signature(getattr(SERVICES[service], method)).bind("service", "caller", *route.parts, *body, **given)


def test_most_operations_need_no_handler() -> None:
    assert sum(bool(route.calls) for route in API) > 50


def test_a_handler_or_options_of_no_operation_are_refused() -> None:
    with pytest.raises(TypeError, match="UserApi: no operation logn; it has .*login"):
        routes_of(UserApi, "users", logn=_handler)
    with pytest.raises(TypeError, match="UserApi: no operation logn"):
        routes_of(UserApi, "users", {"logn": {"listed": False}})


def test_a_path_of_an_earlier_release_still_leads_to_its_operation() -> None:
    router = Router(API)
    for former, now in (("/v1/traces", "/v1/decisions"), ("/v1/floor", "/v1/inventory/summary")):
        assert router.find("GET", former)[0] is router.find("GET", now)[0]

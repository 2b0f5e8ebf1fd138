"""D38: a blueprint maps HTTP paths to methods of its slices; they are served by the rules of invoke, and go with it."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from blueprint_scene import blueprint, spec
from test_server_invoke import BASE, OLD, place

from hostler.engine.deployments.blueprint_file import faults
from hostler.engine.invocation.service import InvokeService
from hostler.entry.server.openapi import document
from hostler.entry.server.table import API
from hostler.errors import Invalid
from hostler.keys.families import BLUEPRINT, SLICE_OWNER
from hostler.model.access import Role
from hostler.model.deployment import Blueprint, Callers, SliceSpec
from hostler.model.http_route import Match, RouteTable, merge_arguments, parse_route
from hostler.model.rollout import SliceOwner

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from test_server_invoke import Place


def table(*routes: str) -> RouteTable:
    return RouteTable([SliceSpec(artifact=OLD, instances=1, routes={text: f"m{at}" for at, text in enumerate(routes)})])


def called(found: Match | None) -> str | None:
    return None if found is None or found.target is None else found.target.method


def test_d38_a_segment_that_is_spelled_out_comes_before_a_parameter() -> None:
    routes = table(
        "GET /orders/{id}", "GET /orders/new", "POST /orders", "GET /{any}/new/{more}", "GET /", "PUT /x/{y}/z"
    )
    for verb, path, method in (
        ("GET", ["orders", "7"], "m0"),
        ("GET", ["orders", "new"], "m1"),
        ("POST", ["orders"], "m2"),
        ("GET", ["orders", "new", "9"], "m3"),  # the literal way has no end there: the other one is taken
        ("GET", [], "m4"),
        ("PUT", ["x", "a b", "z"], "m5"),
    ):
        assert called(routes.find(verb, path)) == method
    assert routes.find("GET", ["nothing"]) is None
    assert routes.find("GET", ["orders", ""]) is None, "a parameter takes a segment that is not empty"
    other = routes.find("DELETE", ["orders"])
    assert other is not None
    assert (other.target, other.verbs) == (None, ("POST",))


@pytest.mark.parametrize("segment", [".", "..", "../x", "x/..", "a/../../b", "..\\x", "a/./b"])
def test_d38_a_parameter_takes_no_segment_that_leads_out_of_a_folder(segment: str) -> None:
    routes = table("GET /files/{name}")
    assert routes.find("GET", ["files", segment]) is None
    for name in ("...", "a..b", ".hidden", "a/b", "x.."):
        assert called(routes.find("GET", ["files", name])) == "m0"


def test_d38_path_query_and_body_become_arguments_by_their_names() -> None:
    routes = table("PUT /orders/{id:int}/{part}?page:Integer&exact:bool&rate:float&tag")
    found = routes.find("PUT", ["orders", "-7", "a/b"])
    assert found is not None
    query = {"page": "2", "exact": "true", "rate": "0.5", "tag": "x"}
    made = json.loads(merge_arguments(found, query, b'{"big": 12345678901234567890123, "n": [null]}'))
    expected = {"id": -7, "part": "a/b", "page": 2, "exact": True, "rate": 0.5, "tag": "x"}
    assert made == {**expected, "big": 12345678901234567890123, "n": [None]}
    assert json.loads(merge_arguments(found, {}, b" ")) == {"id": -7, "part": "a/b"}
    for query, body, said in (
        ({"page": "two"}, b"", "page = 'two': must be a whole number"),
        ({"exact": "1"}, b"", "true or false"),
        ({"rate": "nan"}, b"", "must be a number"),
        ({"unknown": "1"}, b"", "query 'unknown': unknown; this route takes page"),
        ({}, b"[1]", "must be a JSON object"),
        ({}, b"{", "must be a JSON object"),
        ({}, b'{"id": 3}', "argument id is in the path or the query already"),
    ):
        with pytest.raises(Invalid, match=said.replace("(", r"\(")):
            merge_arguments(found, query, body)
    plain = table("POST /orders").find("POST", ["orders"])
    assert plain is not None
    assert merge_arguments(plain, {}, b'{"as": "it is" }') == b'{"as": "it is" }', "what adds nothing copies nothing"
    assert merge_arguments(plain, {}, b"") == b"{}"


@pytest.mark.parametrize(
    "text",
    [
        *("orders", "GET", "get /orders", "HEAD /x", "GET orders", "GET /a//b", "GET /a/", "GET /../x", "GET /a b"),
        *(
            "GET /{a}/{a}",
            "GET /{a}?a",
            "GET /{within}",
            "GET /x?within",
            "GET /{a:date}",
            "GET /{}",
            "GET /x{a}",
            "GET /?",
        ),
        "GET /" + "/".join("a" * 33),
    ],
)
def test_d38_what_is_no_route_is_refused_at_apply_with_its_place(text: str) -> None:
    with pytest.raises(Invalid):
        parse_route(text)
    wrong = SliceSpec(artifact=OLD, instances=1, routes={text: "m"})
    assert [fault.place for fault in faults(blueprint(wrong))] == [f"slices[0].routes.{text[:200]}"]


def test_d38_two_routes_of_one_path_are_refused_with_the_place_of_both() -> None:
    first = SliceSpec(artifact=OLD, instances=1, routes={"GET /orders/{id}": "a", "POST /orders/{id}": "b"})
    second = SliceSpec(artifact="acme:bill:1", instances=1, routes={"GET /orders/{number:int}?page": "c"})
    (found,) = faults(blueprint(first, second))
    assert found.place == "slices[1].routes.GET /orders/{number:int}?page"
    assert "slices[0].routes.GET /orders/{id}" in found.what
    assert not faults(blueprint(first, spec("bill:1")))


def test_d38_the_document_has_one_pattern_for_the_routes_of_all_blueprints() -> None:
    paths = document(API)["paths"]
    (path,) = (one for one in paths if one.startswith("/v1/routes"))
    assert path == "/v1/routes/{blueprint}/{path}"
    assert paths[path].keys() - {"parameters"} == {"get", "post", "put", "patch", "delete"}


@asynccontextmanager
async def shop(callers: Callers = Callers.OPERATORS, **publish: Any) -> AsyncIterator[Place]:
    async with place(**publish) as at:
        service = InvokeService(at.router, at.api.services.view)
        at.api.services.calls.route = service.route
        routes = {"GET /orders/{id:int}?page": "sell", "POST /orders": "sell", "GET /gone": "lost"}
        await write(at, Blueprint(slices=(SliceSpec(artifact=OLD, instances=1, callers=callers, routes=routes),)))
        yield at


async def write(at: Place, said: Blueprint | None) -> None:
    owner = SliceOwner(blueprint="shop", number=1)
    one = BLUEPRINT.delete(blueprint="shop") if said is None else BLUEPRINT.put(said, blueprint="shop")
    await at.api.store.txn([], [one, SLICE_OWNER.put(owner, base=BASE)])
    await at.api.services.view.refresh(at.api.services.view.blueprints, at.api.services.view.owners)


async def test_d38_a_route_calls_its_method_by_the_rules_of_invoke() -> None:
    async with shop() as at:
        reply = await at.api.call("GET", "/v1/routes/shop/orders/7?page=2&within=60", X_Request_Id="trace-7")
        assert (reply.status, reply.json) == (200, {"id": 7, "page": "2"})
        assert at.worker.calls[0].trace == "trace-7"
        assert 40 < (at.worker.calls[0].within or 0) <= 60
        assert reply.headers["Hostler-Instance"].endswith(f"/{OLD}/1"), "which instance answered"
        reply = await at.api.call("POST", "/v1/routes/SHOP/orders", json={"what": "ü"})
        assert (reply.status, reply.json) == (200, {"what": "ü"})
        assert 10 < (at.worker.calls[-1].within or 0) <= 30
        number = len(at.worker.calls)
        for verb, path, status in (
            ("GET", "/v1/routes/shop/orders/seven", 400),
            ("GET", "/v1/routes/shop/orders/7?other=1", 400),
            ("GET", "/v1/routes/shop/orders/7?page=1&page=2", 400),
            ("GET", "/v1/routes/shop/orders/7?within=0", 400),
            ("GET", "/v1/routes/shop/orders/7?within=x", 400),
            ("GET", "/v1/routes/shop/orders/%ff", 400),
            ("GET", "/v1/routes/shop/none", 404),
            ("GET", "/v1/routes/shop/orders/%2e%2e", 404),
            ("GET", "/v1/routes/shop//orders/7", 404),
            ("GET", "/v1/routes/shop%2Forders/7", 400),
            ("GET", "/v1/routes/shop/orders%2F7", 404),
            ("GET", "/v1/routes/shop/" + "a/" * 5000, 404),
            ("GET", "/v1/routes/" + "s" * 5000 + "/orders/7", 400),
            ("GET", "/v1/routes/shop", 404),
            ("GET", "/v1/routes/shop/", 404),
            ("GET", "/v1/routes/other/orders/7", 404),
            ("DELETE", "/v1/routes/shop/orders", 405),
        ):
            reply = await at.api.call(verb, path)
            assert (reply.status, reply.headers["Content-Type"]) == (status, "application/problem+json"), path
        assert reply.headers["Allow"] == "POST"
        assert len(at.worker.calls) == number


async def test_d38_who_may_call_a_route_is_who_may_call_the_slice() -> None:
    async with shop() as at:
        token = await at.api.user(Role.VIEWER, "*")
        assert (await at.api.call("GET", "/v1/routes/shop/orders/7", token=token)).status == 403
        assert (await at.api.call("GET", "/v1/routes/shop/orders/7", token=None)).status == 401
    async with shop(Callers.EVERYBODY) as at:
        token = await at.api.user(Role.VIEWER, "*")
        assert (await at.api.call("GET", "/v1/routes/shop/orders/7", token=token)).status == 200


async def test_d38_routes_come_and_go_with_the_blueprint() -> None:
    async with shop() as at:
        assert (await at.api.call("GET", "/v1/routes/shop/orders/7")).status == 200
        await write(at, Blueprint(slices=(SliceSpec(artifact=OLD, instances=1, routes={"GET /new": "sell"}),)))
        assert (await at.api.call("GET", "/v1/routes/shop/orders/7")).status == 404
        assert (await at.api.call("GET", "/v1/routes/shop/new")).status == 200
        await write(at, None)
        assert (await at.api.call("GET", "/v1/routes/shop/new")).status == 404

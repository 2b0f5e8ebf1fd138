"""The OpenAPI document and the docs page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from hostler.entry.server.body import named_parts
from hostler.entry.server.openapi import PAGE, document
from hostler.entry.server.route import Answer, Asked
from hostler.entry.server.table import table
from hostler.model.resources.operation import Access


async def _handler(asked: Asked) -> Answer:
    return Answer()


ROUTES = table(_handler, _handler)
DOCUMENT = document(ROUTES)


def _everything(value: Any) -> Iterator[Any]:
    yield value
    if isinstance(value, dict):
        for inner in value.values():
            yield from _everything(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _everything(inner)


def _resolved(reference: str) -> Any:
    found: Any = DOCUMENT
    for step in reference.removeprefix("#/").split("/"):
        found = found[step]
    return found


def test_every_reference_leads_somewhere() -> None:
    references = [value["$ref"] for value in _everything(DOCUMENT) if isinstance(value, dict) and "$ref" in value]
    assert len(references) > 100
    for reference in references:
        assert _resolved(reference)


def test_files_of_the_page_are_no_part_of_the_api() -> None:
    assert {route.tag for route in ROUTES if not route.listed} == {"site"}
    assert not {"/", "/assets/{file}", "/favicon.svg"} & set(DOCUMENT["paths"])
    assert "site" not in {tag["name"] for tag in DOCUMENT["tags"]}


def test_every_route_is_in_it_with_every_status() -> None:
    for route in ROUTES:
        if not route.listed:
            continue
        operation = DOCUMENT["paths"][route.path][route.method.lower()]
        assert operation["operationId"] == route.name
        assert set(operation["responses"]) == {str(s) for s in (route.status, *route.also, *route.statuses)}
        assert bool(operation["security"]) == (route.access is not Access.ANYONE)


def test_every_error_is_a_problem_document() -> None:
    for status, response in DOCUMENT["components"]["responses"].items():
        assert int(status) >= 400
        assert response["content"]["application/problem+json"]["schema"]["$ref"].endswith("/Problem")
        assert response["description"]


def test_the_inside_of_records_does_not_show() -> None:
    assert "hostler:unknown" not in msgspec.json.encode(DOCUMENT).decode()


def test_what_is_taken_is_strict_and_what_is_given_has_room() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    assert schemas["VmCreate"]["additionalProperties"] is False
    assert schemas["VmCreate"]["properties"]["spec"]["$ref"].endswith("/VmSpecInput")
    assert schemas["VmSpecInput"]["additionalProperties"] is False
    assert schemas["VmView"]["properties"]["spec"]["$ref"].endswith("/VmSpec")
    assert "additionalProperties" not in schemas["VmSpec"]
    assert "additionalProperties" not in schemas["VmView"]


def test_writes_name_their_headers() -> None:
    operation = DOCUMENT["paths"]["/v1/orgs/{org}/projects/{project}/vms/{vm}"]["patch"]
    assert {item["name"] for item in operation["parameters"]} == {"Idempotency-Key", "If-Match"}


def test_the_docs_page_names_no_other_address() -> None:
    assert b"http://" not in PAGE
    assert b"https://" not in PAGE
    assert b'src="' not in PAGE


def test_parts_of_a_path_are_as_long_as_the_server_takes_them() -> None:
    """A project of a lab is named after its web user id, which may hold more than names."""
    long = "x" * 300
    vms, lab = "/v1/orgs/{org}/projects/{project}/vms", "/v1/labs/{user}"
    schemas = {
        (path, one["name"]): one["schema"] for path in (vms, lab) for one in DOCUMENT["paths"][path]["parameters"]
    }
    assert named_parts(vms, ["org", "project"], ["acme", long])["project"] == long
    assert schemas[vms, "project"]["maxLength"] >= len(long)
    assert schemas[vms, "org"]["maxLength"] < len(long)
    assert named_parts(lab, ["user"], ["a%2Fb"]) == {"user": "a/b"}
    assert re.search(schemas[lab, "user"]["pattern"], "a/b")

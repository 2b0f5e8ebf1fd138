"""The OpenAPI document of the routes, and the same as an HTML page."""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING, Any

import msgspec

from hostler.entry.server.body import LABS
from hostler.entry.server.problem import SCHEME, SORTS
from hostler.keys.template import MAX_USER
from hostler.model.control_api import Problem
from hostler.model.resources.operation import NOTHING, Access, Parameter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hostler.entry.server.route import Route
    from hostler.model.record import Record


REF = "#/components/schemas/{name}"
_UNKNOWN = "hostler:unknown"
INPUT = "Input"
"""Suffix of a type that is used both as a strict input and as an output that may gain fields."""
PART = {
    "type": "string",
    "minLength": 1,
    "maxLength": 255,
    "pattern": r"^[^/\x00-\x1f\x7f-\x9f\u2028\u2029]+$",
    "not": {"enum": [".", ".."]},
}
"""What `keys.part.check_part` accepts, as far as a schema can express it."""
PROJECT = {**PART, "maxLength": MAX_USER}
"""A lab's project is named after a web user id, which gets longer by escaping."""
WEB_USER = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$"}
"""What `keys.lab.check_user` accepts."""


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """Return the document of all listed routes."""
    routes = [route for route in routes if route.listed]
    given_ones = (kind for route in routes for kind in (route.answer, route.brief) if kind is not None)
    bodies = (route.body for route in routes if route.body is not None)
    given, taken = _components(tuple(dict.fromkeys(given_ones)), tuple(dict.fromkeys(bodies)))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        operations = paths.setdefault(route.path, {})
        if route.parts and "parameters" not in operations:
            operations["parameters"] = [_part(route.path, name) for name in route.parts]
        operations[route.method.lower()] = _operation(route, taken)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Hostler",
            "version": "1",
            "summary": "A control plane for virtual machines",
            "description": "Errors are problem documents (RFC 9457). Lists page with `limit` and `after`.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": tag} for tag in dict.fromkeys(route.tag for route in routes)],
        "paths": paths,
        "components": {
            "schemas": given,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {str(status): _problem_response(status) for status in _all_statuses(routes)},
        },
    }


# Types


@functools.lru_cache(maxsize=4)
def _components(answers: tuple[Any, ...], bodies: tuple[Any, ...]) -> tuple[dict[str, Any], dict[Any, dict[str, str]]]:
    """Return all schemas, and the reference of each input type.

    Types do not change while the process runs, and inspecting them is the slowest part of a server's start. So all
    servers of a process share the schemas.
    """
    _, given = msgspec.json.schema_components([*answers, Problem], ref_template=REF)
    references, taken = msgspec.json.schema_components(bodies, ref_template=REF)
    for schema in given.values():
        _tidy(schema, strict=False)
    for schema in taken.values():
        _tidy(schema, strict=True)
    both = {name for name in taken if name in given and taken[name].get("type") == "object"}
    schemas = copy.deepcopy(given)
    for name, schema in taken.items():
        schemas[name + INPUT if name in both else name] = _rename_references(schema, both)
    for body in bodies:
        schemas |= {body.__name__: body.schema} if hasattr(body, "schema") else {}
    return schemas, {body: _rename_references(reference, both) for body, reference in zip(bodies, references)}


def _tidy(schema: dict[str, Any], *, strict: bool) -> None:
    properties = schema.get("properties")
    if properties is None:
        return
    properties.pop(_UNKNOWN, None)
    if not strict:
        schema.pop("additionalProperties", None)


def _rename_references(schema: Any, names: set[str]) -> Any:
    if isinstance(schema, dict):
        return {
            key: _referring(value, names) if key == "$ref" else _rename_references(value, names)
            for key, value in schema.items()
        }
    if isinstance(schema, list):
        return [_rename_references(item, names) for item in schema]
    return schema


def _referring(reference: str, names: set[str]) -> str:
    return reference + INPUT if reference.rpartition("/")[2] in names else reference


# Operations


def _operation(route: Route, taken: dict[type[Record], dict[str, str]]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": [route.tag],
        "description": " ".join(text for text in (route.about, _who(route)) if text),
        "security": _security(route),
        "parameters": [*map(_query, route.query), *_headers(route)],
        "responses": _responses(route),
    }
    if route.body is not None:
        operation["requestBody"] = {
            "required": not route.body_optional,
            "content": {"application/json": {"schema": taken[route.body]}},
        }
    if route.streamed:
        file = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
        operation["requestBody"] = {"required": True, "content": file}
    return operation


def _security(route: Route) -> list[dict[str, list[str]]]:
    if route.access is Access.ANYONE:
        return []
    return [{"token": []}, {}] if route.access is Access.NEARBY else [{"token": []}]


def _who(route: Route) -> str:
    who = {
        Access.ANYONE: "Needs no token.",
        Access.NEARBY: "For everyone with a token; from the server's own host also without one.",
        Access.LOGGED_IN: "For everyone with a token.",
        Access.PROJECT: "For members of the project.",
        Access.SELF: "For the account itself, and for accounts with the right manage_accounts.",
        Access.DEPLOYERS: "For members of * (everything) with the right modify_workloads.",
        Access.ADMINISTRATORS: "For members of * (everything) with the right manage_accounts.",
    }
    if isinstance(route.access, Access):
        return who[route.access]
    within = "members of the project with" if route.in_project else "accounts with"
    return f"For {within} the right {route.access}."


def _part(path: str, name: str) -> dict[str, Any]:
    about = "An id or a name" if name == "vm" else f"The {name}"
    schema = PROJECT if name == "project" else WEB_USER if name == "user" and path.startswith(LABS) else PART
    return {"name": name, "in": "path", "required": True, "description": about, "schema": schema}


def _query(parameter: Parameter) -> dict[str, Any]:
    limits = {name: getattr(parameter, name) for name in ("minimum", "maximum", "default", "pattern")}
    schema = {"type": parameter.kind} | {name: value for name, value in limits.items() if value is not None}
    if parameter.kind == "string":
        schema["minLength"] = 1
    found = {"name": parameter.name, "in": "query", "description": parameter.about, "schema": schema}
    return found | ({"example": parameter.example} if parameter.example else {})


def _headers(route: Route) -> Iterable[dict[str, Any]]:
    if route.writes and route.idempotent:
        yield {
            "name": "Idempotency-Key",
            "in": "header",
            "description": "A repeated request with the same key within a day is executed once, and answered the same.",
            "schema": {"type": "string", "pattern": r"^[!-.0-~]{1,255}$", "minLength": 1, "maxLength": 255},
        }
    if route.writes and route.conditional:
        yield {
            "name": "If-Match",
            "in": "header",
            "description": "Only if this is still the current revision.",
            "schema": {"type": "string", "pattern": r'^("[0-9]{1,18}"|[0-9]{1,18}|\*)$'},
        }
    if route.media == "text/event-stream":
        yield {
            "name": "Last-Event-ID",
            "in": "header",
            "description": "The id of the last received event.",
            "schema": {"type": "string", "pattern": r"^[0-9]{1,18}(\.[0-9]{1,9})?$"},
        }


def _responses(route: Route) -> dict[str, Any]:
    success: dict[str, Any] = {"description": "Done" if route.writes else "Found"}
    if route.answer is not None and route.media == "application/json":
        shape: dict[str, Any] = {"$ref": REF.format(name=route.answer.__name__)}
        if route.brief is not None:
            shape = {"anyOf": [shape, {"$ref": REF.format(name=route.brief.__name__)}]}
        success["content"] = {route.media: {"schema": shape}}
        if "revision" in route.answer.__struct_fields__:
            success["headers"] = {"ETag": {"description": "The revision, for If-Match", "schema": {"type": "string"}}}
    elif route.status == 101:
        success["description"] = "A WebSocket"
    else:
        success["content"] = {route.media: {"schema": {} if "json" in route.media else {"type": "string"}}}
    found = {str(status): success for status in (route.status, *route.also)}
    if NOTHING in route.also:
        found[str(NOTHING)] = {"description": "No content"}
    return found | {str(status): {"$ref": f"#/components/responses/{status}"} for status in route.statuses}


def _all_statuses(routes: Sequence[Route]) -> list[int]:
    return sorted({status for route in routes for status in route.statuses})


def _problem_response(status: int) -> dict[str, Any]:
    sorts = [sort for sort in SORTS if sort.status == status]
    response: dict[str, Any] = {
        "description": "; ".join(sort.title for sort in sorts),
        "content": {
            "application/problem+json": {
                "schema": {"$ref": REF.format(name="Problem")},
                "examples": {
                    sort.name: {"value": {"type": SCHEME + sort.name, "title": sort.title, "status": status}}
                    for sort in sorts
                },
            }
        },
    }
    if any(sort.retry_after is not None for sort in sorts):
        response["headers"] = {"Retry-After": {"description": "Seconds", "schema": {"type": "integer"}}}
    return response


PAGE = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Hostler API</title><link rel="icon" href="data:,">
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light dark; --line: #8884; --soft: #8882; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { margin-bottom: 0 } h2 { margin-top: 2rem; text-transform: capitalize; border-bottom: 1px solid var(--line) }
details { border: 1px solid var(--line); border-radius: 6px; margin: .4rem 0; }
summary { cursor: pointer; padding: .4rem .7rem; display: flex; gap: .8rem; align-items: baseline; }
summary code { overflow-wrap: anywhere } summary span { margin-left: auto; opacity: .75; text-align: right }
.method { font: 600 12px ui-monospace, monospace; min-width: 4em }
.GET { color: #1769c0 } .POST { color: #1a7f37 } .DELETE { color: #c62828 } .PATCH, .PUT { color: #9a6700 }
.inside { padding: 0 .9rem .7rem; } table { border-collapse: collapse; width: 100% }
td, th { text-align: left; padding: .2rem .6rem .2rem 0; vertical-align: top; border-top: 1px solid var(--soft) }
pre { background: var(--soft); padding: .6rem; border-radius: 6px; overflow: auto }
</style></head><body>
<h1>Hostler API</h1>
<p>Made from <a href="/openapi.json">/openapi.json</a>. Send <code>Authorization: Bearer</code> and a token.
Errors are problem documents (<code>type</code>, <code>title</code>, <code>status</code>, <code>detail</code>,
<code>next</code>).</p>
<main id="all">Reading the document...</main>
<script>
"use strict";
const make = (tag, props = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), props);
  element.append(...children);
  return element;
};
const rows = (head, lines) => make("table", {},
  make("tr", {}, ...head.map(text => make("th", {textContent: text}))),
  ...lines.map(line => make("tr", {}, ...line.map(text => make("td", {textContent: text ?? ""})))));
const shape = (api, schema, depth = 0) => {
  if (!schema) return null;
  if (schema.$ref) return depth > 5 ? "..." : shape(api, api.components.schemas[schema.$ref.split("/").pop()], depth);
  if (schema.anyOf) return shape(api, schema.anyOf[0], depth);
  if (schema.properties) return Object.fromEntries(
    Object.entries(schema.properties).map(([name, inner]) => [name, shape(api, inner, depth + 1)]));
  if (schema.type === "array") return [shape(api, schema.items, depth + 1)];
  if (schema.enum) return schema.enum.join(" | ");
  return schema.default ?? schema.type ?? "any";
};
const block = (title, api, media) => {
  const schema = Object.values(media?.content ?? {})[0]?.schema;
  if (!schema || !(schema.$ref || schema.properties)) return [];
  return [make("h4", {textContent: title}),
    make("pre", {textContent: JSON.stringify(shape(api, schema), null, 2)})];
};
const operation = (api, path, method, op, shared) => make("details", {id: op.operationId},
  make("summary", {}, make("b", {className: "method " + method, textContent: method}),
    make("code", {textContent: path}), make("span", {textContent: op.summary})),
  make("div", {className: "inside"}, make("p", {textContent: op.description}),
    rows(["parameter", "in", "about"],
      [...shared, ...op.parameters].map(item => [item.name, item.in, item.description])),
    ...block("Body", api, op.requestBody),
    ...Object.entries(op.responses).filter(([code]) => code < "300").slice(0, 1)
      .flatMap(([code, answer]) => block("Answer " + code, api, answer)),
    make("h4", {textContent: "Errors"}),
    rows(["status", "about"], Object.entries(op.responses).filter(([code]) => code >= "400")
      .map(([code]) => [code, api.components.responses[code]?.description]))));
const show = api => {
  const all = document.getElementById("all");
  all.textContent = "";
  for (const {name} of api.tags) {
    all.append(make("h2", {textContent: name}));
    for (const [path, item] of Object.entries(api.paths))
      for (const [method, op] of Object.entries(item))
        if (op.tags?.includes(name)) all.append(operation(api, path, method.toUpperCase(), op, item.parameters ?? []));
  }
  document.getElementById(location.hash.slice(1))?.setAttribute("open", "");
};
fetch("/openapi.json").then(answer => answer.json()).then(show)
  .catch(error => { document.getElementById("all").textContent = "It cannot be read: " + error; });
</script></body></html>
"""

STYLE = PAGE.partition(b"<style>")[2].partition(b"</style>")[0]
SCRIPT = PAGE.partition(b"<script>")[2].partition(b"</script>")[0]
"""The inline style and script, which the page's Content-Security-Policy names by hash."""

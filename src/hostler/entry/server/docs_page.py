"""The API docs page: one HTML file that reads `/openapi.json` and refers to no other address."""

from __future__ import annotations

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

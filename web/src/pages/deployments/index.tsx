// Blueprints, the workloads of machines, and the artifacts that slices are made of.
import { useEffect } from "preact/hooks";
import { get } from "../../api";
import type { Page as Listed } from "../../api";
import { go, route, setQuery, to } from "../../route";
import { deploys } from "../../session";
import { Head, Tabs, toast } from "../../ui";
import { Apply } from "./apply";
import { Artifacts } from "./artifacts";
import { One } from "./blueprint";
import { List } from "./list";
import type { BlueprintView } from "./types";
import { owner } from "./words";
import { Workloads } from "./workloads";
import "./deployments.css";

export default function Page() {
  const { parts, query } = route.value;
  const name = parts[0];
  const slice = query.get("slice") ?? "";
  useEffect(() => {
    if (!name && slice) void lead(slice);
  }, [name, slice]);
  useEffect(() => {
    document.title = name ? `${name} · Deployments · Hostler` : "Deployments · Hostler";
  }, [name]);
  if (name) return <One key={name} name={name} />;
  if (query.get("view") === "apply") return <New />;
  const tab = query.get("tab") ?? "blueprints";
  return (
    <>
      <Head title="Deployments">
        {tab === "blueprints" && deploys.value && (
          <a class="button primary" href={to("deployments", [], { view: "apply" })}>
            Apply a blueprint
          </a>
        )}
      </Head>
      <Tabs
        label="Deployments"
        tabs={[
          ["blueprints", "Blueprints"],
          ["workloads", "Workloads"],
          ["artifacts", "Artifacts"],
        ]}
        current={tab}
        onChange={(chosen) => go(to("deployments", [], { tab: chosen === "blueprints" ? "" : chosen }))}
      >
        {tab === "workloads" ? <Workloads /> : tab === "artifacts" ? <Artifacts /> : <List />}
      </Tabs>
    </>
  );
}

/** A link with the name of a slice leads to the blueprint that contains it. */
async function lead(slice: string): Promise<void> {
  const found = await get<Listed<BlueprintView>>("/v1/blueprints?limit=1000").catch(() => null);
  const view = found && owner(found.items, slice);
  if (view) return go(to("deployments", [view.name], { slice }), true);
  toast(`No blueprint names the slice ${slice} any more.`);
  setQuery({ slice: "" });
}

function New() {
  return (
    <>
      <Head title="Apply a blueprint" crumbs={<a href={to("deployments")}>Deployments</a>} />
      <Apply />
    </>
  );
}

// One blueprint: its slices by node, its endpoints, how an upgrade goes, and what was applied before.
import { useState } from "preact/hooks";
import { all, asProblem, at, changeShown, del, get } from "../../api";
import { useLive } from "../../live";
import { route, setQuery, to } from "../../route";
import { deploys } from "../../session";
import { attempt, Busy, Button, confirm, count, Failure, Head, State, Tabs } from "../../ui";
import { Apply } from "./apply";
import { Call } from "./call";
import { History, RollBack } from "./history";
import { useCalls } from "./series";
import { Slice } from "./slice";
import type { BlueprintStatus, BlueprintView, EndpointView, SliceView } from "./types";
import { PHASE_LOOK } from "./words";

interface Found {
  status: BlueprintStatus;
  /** null: it was deleted, and its slices are going. */
  view: BlueprintView | null;
  slices: Record<string, SliceView[]>;
  endpoints: Record<string, EndpointView[]>;
}

/** Of how many slices instances and endpoints are shown one by one. */
const SHOWN = 20;

export function One({ name }: { name: string }) {
  const [found, setFound] = useState<Found | null>(null);
  const [failure, setFailure] = useState<unknown>(null);
  const [back, setBack] = useState(false);
  const reload = async (): Promise<void> => {
    try {
      setFound(await look(name));
      setFailure(null);
    } catch (error) {
      if (asProblem(error).status === 404) setFound(null);
      setFailure(error);
    }
  };
  // Many slices are many questions.
  useLive(["blueprint", "deployment", "slice", "endpoint", "alert"], reload, found && found.status.slices.length > 4 ? 3000 : 700);
  const measured = useCalls(name, found !== null);
  const tab = route.value.query.get("tab") ?? "now";
  const crumbs = <a href={to("deployments")}>Deployments</a>;
  const gone = failure !== null && asProblem(failure).status === 404;
  if (!found) {
    return (
      <>
        <Head title={name} crumbs={crumbs} />
        {gone ? (
          <History name={name} revision={0} gone />
        ) : failure ? (
          <Failure error={failure} again={reload} />
        ) : (
          <Busy>Looking at {name}</Busy>
        )}
      </>
    );
  }
  const { status, view } = found;
  const tabs: [string, string][] = [["now", "Slices"]];
  if (view && deploys.value) tabs.push(["change", "Settings"]);
  tabs.push(["history", "History"]);
  if (view && callable(view)) tabs.push(["call", "Call"]);
  return (
    <>
      <Head title={name} crumbs={crumbs}>
        <span role="status">
          <State look={PHASE_LOOK[status.phase]}>
            {status.phase}, {readyOf(status)}
          </State>
        </span>
        <span class="soft">revision {status.number || "unknown"}</span>
        {deploys.value && (status.number !== 1 || !view) && <Button onClick={() => setBack(true)}>Roll back</Button>}
        {deploys.value && view && (
          <Button danger onClick={() => remove(name)}>
            Delete
          </Button>
        )}
      </Head>
      {status.detail && !isSaidBelow(status) && <p class={`note ${status.phase === "failed" ? "bad" : status.phase === "waiting" ? "warn" : ""}`}>{status.detail}</p>}
      {Boolean(failure) && <Failure error={failure} again={reload} />}
      <Tabs label={`Blueprint ${name}`} tabs={tabs} current={tabs.some(([one]) => one === tab) ? tab : "now"} onChange={(chosen) => setQuery({ tab: chosen === "now" ? "" : chosen })}>
        {tab === "change" && view && deploys.value ? (
          <Apply of={view} />
        ) : tab === "history" ? (
          <History name={name} revision={status.revision} />
        ) : tab === "call" && view && callable(view) ? (
          <Call view={view} endpoints={found.endpoints} />
        ) : (
          <div class="stack">
            {status.slices.map((slice) => (
              <Slice
                key={slice.base}
                blueprint={name}
                slice={slice}
                on={found.slices[slice.base] ?? null}
                endpoints={found.endpoints[slice.base] ?? null}
                measured={measured(slice.base)}
              />
            ))}
          </div>
        )}
      </Tabs>
      {back && <RollBack name={name} onClose={() => setBack(false)} />}
    </>
  );
}

async function look(name: string): Promise<Found> {
  const status = await get<BlueprintStatus>(at`/v1/blueprints/${name}/status`);
  const bases = status.slices.slice(0, SHOWN).map((slice) => slice.base);
  const [view, slices, endpoints] = await Promise.all([
    status.revision ? get<BlueprintView>(at`/v1/blueprints/${name}`).catch(() => null) : null,
    Promise.all(bases.map((base) => some<SliceView>(`/v1/slices?artifact=${encodeURIComponent(base)}&limit=500`))),
    Promise.all(bases.map((base) => some<EndpointView>(`/v1/endpoints?artifact=${encodeURIComponent(base)}&limit=500`))),
  ]);
  const by = <T,>(found: T[][]): Record<string, T[]> => Object.fromEntries(bases.map((base, i) => [base, found[i] ?? []]));
  return { status, view, slices: by(slices), endpoints: by(endpoints) };
}

/** Only the first page is shown. */
async function some<T>(path: string): Promise<T[]> {
  return (await get<{ items: T[] }>(path)).items;
}

function readyOf(status: BlueprintStatus): string {
  const sum = (field: "ready" | "wished"): number => status.slices.reduce((total, slice) => total + slice[field], 0);
  return `${Math.min(sum("ready"), sum("wished"))} of ${count(sum("wished"), "instance")} ready`;
}

/** A blueprint of one slice says what its slice says. */
const isSaidBelow = (status: BlueprintStatus): boolean => status.slices.length === 1 && Boolean(status.slices[0]?.detail && status.detail.includes(status.slices[0].detail));

const callable = (view: BlueprintView): boolean => deploys.value || view.slices.some((spec) => spec.callers === "everybody");

async function remove(name: string): Promise<void> {
  const path = at`/v1/blueprints/${name}`;
  let view: BlueprintView | null = null;
  // What the page shows may be a moment old; what is deleted is what the question says.
  if (!(await attempt(async () => (view = await get<BlueprintView>(path)))) || !view) return;
  await removeShown(view, path);
}

async function removeShown(view: BlueprintView, path: string): Promise<void> {
  const others = (await all<BlueprintView>("/v1/blueprints").catch(() => [])).length - 1;
  const yes = await confirm({
    title: `Delete ${view.name}`,
    text: (
      <>
        <p>
          {count(view.instances, "instance")} of {count(view.slices.length, "slice")} take no new calls, finish the calls in progress, and are removed. The history of {view.name} stays: it can be
          rolled back to.
        </p>
        {others > 0 && <p>Where another blueprint needs one of its slices, it is refused.</p>}
      </>
    ),
    action: `Delete ${view.name}`,
    danger: true,
    typed: view.name,
  });
  if (yes) await attempt(() => changeShown(view, ["slices"], path, (extra) => del(path, extra)), `${view.name} is being deleted.`);
}

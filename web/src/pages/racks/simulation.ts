// The simulation, if the server is one: its time, its faults, and its log.
import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { asProblem, get, Problem, withQuery } from "../../api";
import type { TracePage, SimLogPage, FaultKindPage } from "../../api-types";
import type { FaultKind, Sim, Told } from "./types";

export const sim = signal<Sim | null>(null);
export const simProblem = signal<Problem | null>(null);
export const kinds = signal<FaultKind[]>([]);
/** What happened, oldest first; the newest few thousand. */
export const log = signal<Told[]>([]);
/** Of decisions: what led to them, by their ids. */
export const parents = signal<ReadonlyMap<string, string>>(new Map());

const KEPT = 4000;
const PAGE = 1000;

let reading: Promise<void> | null = null;

/** Read it now. A caller that asks during a read gets the result of the next read. */
export async function refresh(): Promise<void> {
  if (reading) await reading.catch(() => undefined);
  reading = read();
  try {
    await reading;
    simProblem.value = null;
  } catch (error) {
    simProblem.value = asProblem(error);
  } finally {
    reading = null;
  }
}

async function read(): Promise<void> {
  const view = await get<Sim>("/v1/sim");
  sim.value = view;
  const last = log.value.at(-1)?.number ?? 0;
  if (view.log === last) return;
  if (view.log < last) log.value = [];
  await readLog();
}

async function readLog(): Promise<void> {
  let entries = log.value;
  let decided = false;
  for (let page = 0; page < 10; page += 1) {
    const after = entries.at(-1)?.number ?? 0;
    const found = await get<SimLogPage>(withQuery("/v1/sim/log", { limit: PAGE, ...(after ? { after } : { last: true }) }));
    entries = [...entries, ...found.items].slice(-KEPT);
    decided ||= found.items.some((one) => one.kind === "decision");
    if (found.after === null) break;
  }
  if (decided) {
    const told = await get<TracePage>(withQuery("/v1/decisions", { limit: 500 }));
    const known = new Map(parents.value);
    for (const one of told.items) if (one.parent) known.set(one.id, one.parent);
    parents.value = known;
  }
  log.value = entries;
}

/** Poll it while the page is open: it is in no store, so it has no events. */
export function useSimulation(there: boolean): void {
  useEffect(() => {
    if (!there) return;
    let timer: ReturnType<typeof setTimeout> | undefined;
    let ended = false;
    const follow = async (): Promise<void> => {
      if (!document.hidden) await refresh();
      if (!ended) timer = setTimeout(follow, sim.value?.mode === "manual" ? 2000 : 1000);
    };
    void follow();
    if (!kinds.value.length) {
      void get<FaultKindPage>("/v1/sim/faults").then(
        (page) => (kinds.value = page.items),
        () => undefined,
      );
    }
    return () => {
      ended = true;
      clearTimeout(timer);
      sim.value = null;
      log.value = [];
      parents.value = new Map();
    };
  }, [there]);
}

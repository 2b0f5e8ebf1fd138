// Which rows are shown, and in what order. All of it happens in the page.
import type { VmRow } from "./types";

export interface Filter {
  /** Part of a name, an id, a project, a node or an address. */
  q: string;
  phase: string;
  node: string;
  org: string;
  project: string;
  /** `name=value,name=value`; a name alone will do. */
  labels: string;
  sort: Sort;
}

export const SORTS = ["name", "phase", "node", "project", "newest", "oldest"] as const;
export type Sort = (typeof SORTS)[number];

export function filterOf(query: URLSearchParams): Filter {
  const sort = query.get("sort") as Sort;
  return {
    q: query.get("q") ?? "",
    phase: query.get("phase") ?? "",
    node: query.get("node") ?? "",
    org: query.get("org") ?? "",
    project: query.get("project") ?? "",
    labels: query.get("labels") ?? "",
    sort: SORTS.includes(sort) ? sort : "name",
  };
}

type Test = (row: VmRow) => boolean;

function tests(filter: Filter): Test[] {
  const found: Test[] = [];
  const words = filter.q.toLowerCase().split(/\s+/).filter(Boolean);
  if (filter.phase === "available") found.push((row) => row.available);
  else if (filter.phase) found.push((row) => row.phase === filter.phase);
  if (filter.node) found.push((row) => row.node === filter.node);
  if (filter.org) found.push((row) => row.org === filter.org);
  if (filter.project) found.push((row) => row.project === filter.project);
  for (const pair of filter.labels.split(",").map((one) => one.trim()).filter(Boolean)) {
    const at = pair.indexOf("=");
    if (at < 0) found.push((row) => pair in row.labels);
    else found.push((row) => row.labels[pair.slice(0, at)] === pair.slice(at + 1));
  }
  for (const word of words) {
    found.push((row) => row.name.toLowerCase().includes(word) || row.id.startsWith(word) || `${row.org}/${row.project}`.toLowerCase().includes(word) || (row.node ?? "").toLowerCase().includes(word));
  }
  return found;
}

const compare = (a: string, b: string): number => (a < b ? -1 : a > b ? 1 : 0);
const byName = (a: VmRow, b: VmRow): number => compare(a.name, b.name) || compare(a.id, b.id);
const ORDERS: Record<Sort, (a: VmRow, b: VmRow) => number> = {
  name: byName,
  phase: (a, b) => compare(a.phase, b.phase) || byName(a, b),
  node: (a, b) => compare(a.node ?? "~", b.node ?? "~") || byName(a, b),
  project: (a, b) => compare(a.org, b.org) || compare(a.project, b.project) || byName(a, b),
  newest: (a, b) => b.created_at - a.created_at || byName(a, b),
  oldest: (a, b) => a.created_at - b.created_at || byName(a, b),
};

/** Milliseconds of work before the page gets a turn. */
const TURN = 8;
const CHUNK = 2000;

/** The rows that pass, in order. Long lists are looked through in turns, so that no frame waits for it. */
export async function chosen(rows: Iterable<VmRow>, filter: Filter, signal: AbortSignal): Promise<VmRow[]> {
  const pass = tests(filter);
  const found: VmRow[] = [];
  let begun = performance.now();
  let looked = 0;
  for (const row of rows) {
    if (pass.every((test) => test(row))) found.push(row);
    looked += 1;
    if (looked % CHUNK === 0 && performance.now() - begun > TURN) {
      await turn();
      if (signal.aborted) return [];
      begun = performance.now();
    }
  }
  return sorted(found, ORDERS[filter.sort], signal);
}

/** Runs of a bounded length are sorted, then merged two by two: the same order as of one sort, in turns. */
async function sorted(rows: VmRow[], order: (a: VmRow, b: VmRow) => number, signal: AbortSignal): Promise<VmRow[]> {
  let runs: VmRow[][] = [];
  let begun = performance.now();
  const rest = async (): Promise<void> => {
    if (performance.now() - begun <= TURN) return;
    await turn();
    begun = performance.now();
  };
  for (let at = 0; at < rows.length; at += CHUNK) {
    runs.push(rows.slice(at, at + CHUNK).sort(order));
    await rest();
  }
  while (runs.length > 1) {
    const next: VmRow[][] = [];
    for (let at = 0; at < runs.length; at += 2) {
      const a = runs[at] ?? [];
      const b = runs[at + 1];
      next.push(b ? await merged(a, b, order, rest) : a);
      if (signal.aborted) return [];
    }
    runs = next;
  }
  return runs[0] ?? [];
}

async function merged(a: VmRow[], b: VmRow[], order: (a: VmRow, b: VmRow) => number, rest: () => Promise<void>): Promise<VmRow[]> {
  const found: VmRow[] = new Array(a.length + b.length);
  let i = 0;
  let j = 0;
  for (let at = 0; at < found.length; at += 1) {
    const left = a[i];
    const right = b[j];
    if (left !== undefined && (right === undefined || order(left, right) <= 0)) {
      found[at] = left;
      i += 1;
    } else if (right !== undefined) {
      found[at] = right;
      j += 1;
    }
    if (at % CHUNK === 0) await rest();
  }
  return found;
}

const channel = new MessageChannel();
const waiting: (() => void)[] = [];
channel.port1.onmessage = () => waiting.shift()?.();

/** Let the page draw and answer keys. */
function turn(): Promise<void> {
  return new Promise((done) => {
    waiting.push(done);
    channel.port2.postMessage(0);
  });
}

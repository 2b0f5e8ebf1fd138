// Events of machines contain ids. Their names come from the specs in the stream, and otherwise from a read per project.
import { signal } from "@preact/signals";
import { at, get } from "../../api";
import type { VmRowPage } from "../../api-types";
import type { Change } from "../../live";

const MOST = 20_000;
const AGAIN = 10_000;
const PAUSE = 500;

const known = new Map<string, string>();
const wanted = new Set<string>();
/** When a project was asked about last. One machine may be gone for ever: that is no reason to ask all the time. */
const askedAt = new Map<string, number>();
let asking = false;

/** Grows when names became known. */
export const named = signal(0);

export function learn(changes: readonly Change[]): void {
  for (const { kind, subject, record } of changes) {
    const name = kind === "vm" && record ? (record as { name?: unknown }).name : undefined;
    if (typeof name === "string") keep(subject, name);
  }
}

/** The name of the machine `org/project/id`, if it is known. */
export const knownName = (subject: string): string => known.get(subject) ?? "";

/** The same; if it is not known, it soon may be. */
export function nameOf(subject: string): string {
  const found = known.get(subject);
  const project = subject.slice(0, subject.lastIndexOf("/"));
  if (found === undefined && Date.now() - (askedAt.get(project) ?? 0) > AGAIN) {
    askedAt.set(project, Date.now());
    wanted.add(project);
    if (!asking) void ask();
  }
  return found ?? "";
}

async function ask(): Promise<void> {
  asking = true;
  for (const project of wanted) {
    wanted.delete(project);
    const [org = "", name = ""] = project.split("/");
    try {
      const page = await get<VmRowPage>(`${at`/v1/orgs/${org}/projects/${name}/vms`}?limit=1000&stale=true&brief=true`);
      for (const vm of page.items) keep(`${project}/${vm.id}`, vm.name);
      if (page.items.length) named.value += 1;
    } catch {
      // They go by their ids.
    }
    await new Promise((done) => setTimeout(done, PAUSE));
  }
  asking = false;
}

function keep(subject: string, name: string): void {
  if (known.size >= MOST) known.delete(known.keys().next().value ?? "");
  known.set(subject, name);
}

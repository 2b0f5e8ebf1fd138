// Every machine that one sees: read once, a page after the other, then kept up to date by events.
import { effect, signal } from "@preact/signals";
import { asProblem, get, type Page, type Problem, withQuery } from "../../api";
import type { VmRowPage } from "../../api-types";
import { type Change, live, on, onReset } from "../../live";
import { type Handle, seen, rowOf, type VmRecord } from "./phase";
import type { VmRow } from "./types";

const PAGE = 1000;
/** Milliseconds to wait for the event stream: earlier changes would be missed. */
const STREAM_WITHIN = 1500;
/** Milliseconds between two readings that were not asked for. */
const REST = 1000;

export class Rows {
  /** By `org/project/id`, as events name them. */
  readonly all = new Map<string, VmRow>();
  /** Grows whenever something in `all` is another. */
  readonly version = signal(0);
  readonly reading = signal(true);
  readonly read = signal(0);
  readonly problem = signal<Problem | null>(null);
  private readonly silent = new Set<string>();
  /** What events said while pages came in: a page that was read before does not undo it. */
  private newer = new Map<string, number>();
  private current: AbortController | null = null;
  private soon: ReturnType<typeof setTimeout> | undefined;
  private readonly ends: (() => void)[];

  constructor() {
    this.ends = [on(["vm", "handle", "alive"], (changes) => this.take(changes)), onReset(() => void this.load())];
    void this.begin();
  }

  close(): void {
    clearTimeout(this.soon);
    this.current?.abort();
    for (const end of this.ends) end();
  }

  /** Read everything again. What was there stays to be seen until it is known to be gone. */
  async load(): Promise<void> {
    this.current?.abort();
    const current = new AbortController();
    this.current = current;
    this.reading.value = true;
    this.read.value = 0;
    this.problem.value = null;
    this.newer = new Map();
    const found = new Set<string>();
    let first = 0;
    try {
      const ask = (after: string | null): Promise<Page<VmRow>> => get<VmRowPage>(withQuery("/v1/vms", { brief: true, limit: PAGE, after }), { signal: current.signal });
      let next: Promise<Page<VmRow>> | null = ask(null);
      while (next) {
        const page: Page<VmRow> = await next;
        // The server reads on while this page is put in its place.
        next = page.after === null ? null : ask(page.after);
        next?.catch(() => {});
        const revision = page.revision ?? 0;
        first ||= revision;
        for (const row of page.items) {
          const key = `${row.org}/${row.project}/${row.id}`;
          found.add(key);
          if ((this.newer.get(key) ?? -1) > revision) continue;
          this.all.set(key, this.placed(row, revision));
        }
        this.read.value += page.items.length;
        this.version.value += 1;
      }
      for (const key of this.all.keys()) if (!found.has(key) && !((this.newer.get(key) ?? -1) > first)) this.all.delete(key);
    } catch (error) {
      if (current.signal.aborted) return;
      this.problem.value = asProblem(error);
    }
    this.reading.value = false;
    this.version.value += 1;
  }

  private async begin(): Promise<void> {
    const waited = await streaming(STREAM_WITHIN);
    await this.load();
    if (waited) return;
    // It came late: what changed in between is not known.
    this.ends.push(
      effect(() => {
        if (live.state.value === "live") queueMicrotask(() => void this.again());
      }),
    );
  }

  private done = false;
  private async again(): Promise<void> {
    if (this.done) return;
    this.done = true;
    await this.load();
  }

  private take(changes: Change[]): void {
    const isSilent = (node: string | null): boolean => node !== null && this.silent.has(node);
    for (const { kind, type, subject, revision, record } of changes) {
      if (kind === "alive") {
        if (this.reading.value) this.newer.set(aliveKey(subject), revision);
        if (type === "delete") this.fell(subject);
        else if (this.silent.delete(subject)) this.repaint(subject);
        continue;
      }
      if (this.reading.value) this.newer.set(subject, revision);
      const row = this.all.get(subject);
      if (kind === "vm") {
        if (type === "delete") this.all.delete(subject);
        else this.all.set(subject, rowOf(record as VmRecord, row, isSilent));
      } else if (row) {
        this.all.set(subject, seen(row, type === "delete" ? null : (record as Handle), isSilent));
      }
    }
    this.version.value += 1;
  }

  private fell(node: string): void {
    this.silent.add(node);
    this.repaint(node);
  }

  private repaint(node: string): void {
    for (const [key, row] of this.all) if (row.node === node) this.all.set(key, this.repainted(row));
  }

  /** The row as it is after its node became unreachable, or reachable again. */
  private repainted(row: VmRow): VmRow {
    if (row.state === null || row.node === null) return row;
    const silent = this.silent.has(row.node);
    // Of one that was read while its node was silent it is not known how far it was.
    if (!silent && row.phase === "silent" && row.ready === undefined) this.later();
    const state = { node: row.node, state: row.state, detail: row.detail, paused: row.phase === "paused", readiness: row.ready ? { step: "available" } : null };
    return { ...seen(row, state, () => silent), ready: row.ready };
  }

  /** A row that was read: it also updates its node, unless a newer event did. */
  private placed(row: VmRow, revision: number): VmRow {
    if (row.phase !== "silent") row.ready = row.available;
    if (row.node === null || row.phase === "deleting") return row;
    if ((this.newer.get(aliveKey(row.node)) ?? -1) > revision) return this.repainted(row);
    if (row.phase === "silent") this.silent.add(row.node);
    else this.silent.delete(row.node);
    return row;
  }

  /** Read everything again soon, once for all callers. */
  private later(): void {
    this.soon ??= setTimeout(() => {
      this.soon = undefined;
      if (this.reading.value) this.later();
      else void this.load();
    }, REST);
  }
}

/** Where `newer` has what was said of a node: no machine is named like that. */
const aliveKey = (node: string): string => `alive ${node}`;

/** Wait for the event stream; false: it did not open in time. */
function streaming(within: number): Promise<boolean> {
  if (live.state.peek() === "live") return Promise.resolve(true);
  return new Promise((done) => {
    const timer = setTimeout(() => finish(false), within);
    const stop = live.state.subscribe((state) => {
      if (state === "live") queueMicrotask(() => finish(true));
    });
    const finish = (there: boolean): void => {
      clearTimeout(timer);
      stop();
      done(there);
    };
  });
}

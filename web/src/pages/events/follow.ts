// What was heard since signing in: the newest changes, and those shortly before.
import { get, open, withQuery } from "../../api";
import type { Overview } from "../../api-types";
import { type Change, heardLately, on, onReset } from "../../live";
import { learn } from "./names";

const MOST = 10_000;
const BEFORE = 300;
const READ_WITHIN = 10_000;
// The stream ends the reading by its first comment, after a second at most; this is for a server that sends nothing.
const TELL_EVERY = 250;

/** A change with a unique key. */
export interface Heard extends Change {
  id: number;
}

export class Memory {
  private newest: Heard[] = [];
  private last = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private stops: (() => void)[];
  private reading = new AbortController();

  /** `tell` gets all of it, newest first, some times a second while there is news. */
  constructor(
    private tell: (all: readonly Heard[]) => void,
    missed: () => void,
  ) {
    this.stops = [on(null, (changes) => this.take(changes)), onReset(missed)];
    const lately = heardLately();
    if (lately.length) this.take(lately);
    void this.before();
  }

  close(): void {
    for (const stop of this.stops) stop();
    this.reading.abort();
    clearTimeout(this.timer);
  }

  private take(changes: readonly Change[]): void {
    learn(changes);
    const fresh = changes.map((change) => ({ ...change, id: (this.last += 1) })).reverse();
    this.newest = [...fresh, ...this.newest].slice(0, MOST);
    this.timer ??= setTimeout(() => {
      this.timer = undefined;
      this.tell(this.newest);
    }, TELL_EVERY);
  }

  /** Read what the store still has of the last changes. Where it has none, nothing is missed by going without. */
  private async before(): Promise<void> {
    const found: Heard[] = [];
    let timer: ReturnType<typeof setTimeout> | undefined;
    try {
      const { store } = await get<Overview>("/v1/overview");
      const now = store.revision ?? 0;
      timer = setTimeout(() => this.reading.abort(), READ_WITHIN);
      const answer = await open(withQuery("/v1/events", { after: Math.max(1, now - BEFORE), beat: 1 }), { signal: this.reading.signal });
      const reader = answer.body?.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (let more = reader !== undefined; more && reader; ) {
        const { done, value } = await reader.read();
        const blocks = (rest + (value ?? "")).split("\n\n");
        rest = blocks.pop() ?? "";
        for (const block of blocks) {
          const data = block.split("\n").find((line) => line.startsWith("data: "));
          if (!data || block.includes("event: reset")) continue;
          const change = JSON.parse(data.slice(6)) as Change;
          if (change.revision <= now) found.push({ ...change, heardAt: 0, id: -found.length - 1 });
          else more = false;
        }
        if (done || blocks.some((block) => block.startsWith(":"))) more = false;
      }
    } catch {
      // An end by the clock is as good as any.
    }
    clearTimeout(timer);
    if (!this.reading.signal.aborted) this.reading.abort();
    this.join(found);
  }

  private join(found: Heard[]): void {
    learn(found);
    const first = this.newest.at(-1)?.revision ?? Infinity;
    this.newest = [...this.newest, ...found.filter((one) => one.revision < first).reverse()].slice(0, MOST);
    this.tell(this.newest);
  }
}

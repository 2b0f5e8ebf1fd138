// What changes, as it changes: one stream of Server-Sent Events for the whole page.
// It is read with fetch, for an EventSource hides the comments by which a silent stream shows that it lives.
import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { open, Problem, withQuery } from "./api";
import type { EventView } from "./api-types";
import { now } from "./clock";

export interface Change extends Omit<EventView, "type" | "record"> {
  type: "put" | "delete";
  record: unknown;
  /** When this page heard of it, in milliseconds by the server's clock. */
  heardAt: number;
}

export type LiveState = "connecting" | "live" | "stale" | "ended";

const BEAT = 5;
const STALE_AFTER = 12_000;
const BROKEN = new Problem(0, "about:hostler/unreachable", "No answer", "The connection to the server broke.", "The page tries again.");
const SLEEP_AFTER = 60_000;
const SECONDS = 120;
/** Changes that are kept for listeners that subscribe later. */
const KEPT = 2000;

export const live = {
  state: signal<LiveState>("connecting"),
  /** When anything came last, in milliseconds; 0: never. */
  lastAt: signal(0),
  /** Why there is no stream, where that is known. */
  problem: signal<Problem | null>(null),
  /** Events of each of the last seconds, the newest last. It is filled once a second. */
  counts: signal<number[]>(Array<number>(SECONDS).fill(0)),
};

/** Events per second over the last minute. */
export const rate = (counts: number[], over = 60): number => counts.slice(-over).reduce((sum, n) => sum + n, 0) / over;

type Listener = { kinds: ReadonlySet<string> | null; call: (changes: Change[]) => void };
const listeners = new Set<Listener>();
const resets = new Set<() => void>();
let waiting: Change[] = [];
let recent: Change[] = [];
let counted = 0;
let lastId = "";
let running: AbortController | null = null;

/** Subscribe to changes of these kinds (null: all), in batches, at most once per frame. Returns the unsubscribe function. */
export function on(kinds: readonly string[] | null, call: (changes: Change[]) => void): () => void {
  const listener = { kinds: kinds && new Set(kinds), call };
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** What was heard since signing in, oldest first; of much, the newest. */
export const heardLately = (): readonly Change[] => recent.slice(-KEPT);

/** Subscribe to resets: changes were missed, so everything must be read again. */
export function onReset(call: () => void): () => void {
  resets.add(call);
  return () => resets.delete(call);
}

/** Call `reload` now, then again whenever something of these kinds changed, at most every so many milliseconds. */
export function useLive(kinds: readonly string[], reload: () => unknown, every = 1000): void {
  const latest = useRef(reload);
  latest.current = reload;
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    let due = false;
    let busy = false;
    const run = async (): Promise<void> => {
      if (busy) {
        due = true;
        return;
      }
      busy = true;
      due = false;
      try {
        await latest.current();
      } finally {
        busy = false;
        timer = setTimeout(() => {
          timer = undefined;
          if (due) void run();
        }, every);
      }
    };
    const changed = (): void => {
      if (timer === undefined && !busy) void run();
      else due = true;
    };
    void run();
    const stops = [on(kinds, changed), onReset(changed)];
    return () => {
      due = false;
      clearTimeout(timer);
      for (const stop of stops) stop();
    };
  }, [kinds.join(), every]);
}

/** Begin to follow; what runs already is ended. */
export function follow(): void {
  unfollow();
  recent = [];
  begin();
}

function begin(): void {
  running = new AbortController();
  live.state.value = "connecting";
  void keepFollowing(running.signal);
}

export function unfollow(): void {
  running?.abort();
  running = null;
  lastId = "";
}

/** Run what ends the session of the stream. The server would refuse a stream of the ended session, so it stops before and goes on after. */
export async function withoutStream(change: () => Promise<void>, then: { goOn: "always" | "after an error" }): Promise<void> {
  const last = lastId;
  unfollow();
  const goOn = (): void => {
    lastId = last;
    begin();
  };
  try {
    await change();
  } catch (error) {
    goOn();
    throw error;
  }
  if (then.goOn === "always") goOn();
}

async function keepFollowing(signal: AbortSignal): Promise<void> {
  let pause = 500;
  while (!signal.aborted) {
    const heard = live.lastAt.value;
    // A stream that hangs does not end by itself: after a while of silence it is given up, and another begun.
    const attempt = new AbortController();
    const giveUp = (): void => attempt.abort();
    signal.addEventListener("abort", giveUp);
    const watching = setInterval(() => {
      if (Date.now() - Math.max(live.lastAt.value, begun) > STALE_AFTER) giveUp();
    }, 1000);
    const begun = Date.now();
    try {
      await readOnce(attempt.signal);
      live.problem.value = null;
    } catch (error) {
      if (!signal.aborted && !attempt.signal.aborted) live.problem.value = error instanceof Problem ? error : BROKEN;
    } finally {
      clearInterval(watching);
      signal.removeEventListener("abort", giveUp);
    }
    if (signal.aborted) return;
    if (live.lastAt.value > heard) pause = 500;
    live.state.value = "stale";
    await new Promise((done) => setTimeout(done, pause * (0.75 + Math.random() / 2)));
    pause = Math.min(pause * 2, 10_000);
  }
}

async function readOnce(signal: AbortSignal): Promise<void> {
  const answer = await open(withQuery("/v1/events", { beat: BEAT, after: lastId }), { signal });
  const reader = answer.body?.pipeThrough(new TextDecoderStream()).getReader();
  if (!reader) return;
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    live.lastAt.value = Date.now();
    live.state.value = "live";
    live.problem.value = null;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop() ?? "";
    blocks.forEach(take);
  }
}

function take(block: string): void {
  let name = "";
  let data = "";
  for (const line of block.split("\n")) {
    if (line.startsWith("id: ")) lastId = line.slice(4);
    else if (line.startsWith("event: ")) name = line.slice(7);
    else if (line.startsWith("data: ")) data += line.slice(6);
  }
  if (name === "reset") {
    for (const call of resets) call();
  } else if (data) {
    counted += 1;
    if (!waiting.length) nextFrame(deliver);
    waiting.push({ ...(JSON.parse(data) as Omit<Change, "heardAt">), heardAt: now() * 1000 });
  }
}

/** A page in the background has no frames, and must not gather changes without end: there it is a timer's turn. */
function nextFrame(call: () => void): void {
  const done = (): void => {
    cancelAnimationFrame(frame);
    clearTimeout(timer);
    call();
  };
  const frame = requestAnimationFrame(done);
  const timer = setTimeout(done, 250);
}

function deliver(): void {
  const changes = waiting;
  waiting = [];
  recent.push(...changes);
  if (recent.length > 2 * KEPT) recent = recent.slice(-KEPT);
  for (const { kinds, call } of listeners) {
    const wanted = kinds ? changes.filter((change) => kinds.has(change.kind)) : changes;
    if (!wanted.length) continue;
    try {
      call(wanted);
    } catch (error) {
      reportError(error); // one listener's failure is not the others'
    }
  }
}

// A browser keeps six connections to one server for all its pages together. A hidden page gives its own
// back after some time, and resumes when it is visible again.
let asleep: ReturnType<typeof setTimeout> | undefined;
document.addEventListener("visibilitychange", () => {
  clearTimeout(asleep);
  if (document.hidden) {
    asleep = setTimeout(() => {
      if (running) live.state.value = "ended";
      running?.abort();
    }, SLEEP_AFTER);
  } else if (running?.signal.aborted) {
    begin();
  }
});

setInterval(() => {
  live.counts.value = [...live.counts.value.slice(1), counted];
  counted = 0;
  if (live.state.value === "live" && Date.now() - live.lastAt.value > STALE_AFTER) live.state.value = "stale";
}, 1000);

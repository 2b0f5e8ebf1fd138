// What was measured of calls, second by second. Routers remember five minutes; while the page is open it keeps more.
import { useEffect, useRef, useState } from "preact/hooks";
import { at, get } from "../../api";
import type { BlueprintCalls, VersionCalls } from "./types";

export interface Second {
  calls: number;
  errors: number;
  latency: number;
}

export interface Measured {
  now: number;
  /** What the gate counts, by artifact. */
  counted: Record<string, Pick<VersionCalls, "calls" | "errors" | "p95_ms" | "since">>;
  /** By artifact, then by second. */
  seconds: Record<string, Map<number, Second>>;
}

const EVERY = 2000;
const KEPT = 1800;
/** Routers that were quiet tell late: so many seconds are asked for again. */
const AGAIN = 10;

/** Asks while the page is looked at. */
export function useCalls(name: string, wanted: boolean): (base: string) => Measured | null {
  const known = useRef(new Map<string, Measured>());
  const [, changed] = useState(0);
  useEffect(() => {
    if (!wanted) return;
    let since = 0;
    let timer: ReturnType<typeof setTimeout>;
    let ended = false;
    const ask = async (): Promise<void> => {
      if (!document.hidden) {
        try {
          const told = await get<BlueprintCalls>(at`/v1/blueprints/${name}/calls` + (since ? `?since=${since}` : ""));
          take(known.current, told);
          since = Math.max(0, Math.floor(told.now) - AGAIN);
          changed((n) => n + 1);
        } catch {
          // Errors are shown where the blueprint itself is read.
        }
      }
      if (!ended) timer = setTimeout(ask, EVERY);
    };
    void ask();
    return () => {
      ended = true;
      clearTimeout(timer);
    };
  }, [name, wanted]);
  return (base) => known.current.get(base) ?? null;
}

function take(known: Map<string, Measured>, told: BlueprintCalls): void {
  for (const slice of told.slices) {
    const before = known.get(slice.base);
    const measured: Measured = { now: told.now, counted: {}, seconds: before?.seconds ?? {} };
    for (const version of slice.versions) {
      measured.counted[version.artifact] = version;
      const seconds = (measured.seconds[version.artifact] ??= new Map());
      version.at.forEach((second, i) => {
        seconds.set(second, { calls: version.called[i] ?? 0, errors: version.failed[i] ?? 0, latency: version.latency_ms[i] ?? 0 });
      });
      for (const second of seconds.keys()) if (second < told.now - KEPT) seconds.delete(second);
    }
    known.set(slice.base, measured);
  }
}

/** All calls from an instant on, as far as they are known; latency is a mean of that of each second. */
export function sumsOf(measured: Measured, start: number): Measured["counted"] {
  const found: Measured["counted"] = {};
  for (const [artifact, seconds] of Object.entries(measured.seconds)) {
    let [calls, errors, latency] = [0, 0, 0];
    for (const [at, one] of seconds) {
      if (at < start) continue;
      calls += one.calls;
      errors += one.errors;
      latency += one.latency * one.calls;
    }
    if (calls) found[artifact] = { calls, errors, p95_ms: latency / calls, since: start };
  }
  return found;
}

export interface Lines {
  x: number[];
  share: (number | null)[];
  errors: [old: (number | null)[], now: (number | null)[]];
  latency: [old: (number | null)[], now: (number | null)[]];
}

/** Over how many seconds each point is a mean. */
export const SMOOTHED = 10;

/** From `start` to the last whole second: shares, errors and latency of two versions. */
export function linesOf(measured: Measured, before: string, after: string, start: number): Lines {
  const end = Math.floor(measured.now) - 1;
  const first = Math.max(Math.floor(start), end - KEPT);
  const lines: Lines = { x: [], share: [], errors: [[], []], latency: [[], []] };
  const sides = [windowed(measured.seconds[before], first, end), windowed(measured.seconds[after], first, end)] as const;
  for (let second = first; second <= end; second++) {
    const i = second - first;
    const [old, now] = [sides[0][i], sides[1][i]];
    lines.x.push(second);
    const calls = (old?.calls ?? 0) + (now?.calls ?? 0);
    lines.share.push(calls ? (100 * (now?.calls ?? 0)) / calls : null);
    [old, now].forEach((one, side) => {
      lines.errors[side as 0 | 1].push(one?.calls ? (100 * one.errors) / one.calls : null);
      lines.latency[side as 0 | 1].push(one?.calls ? one.latency / one.calls : null);
    });
  }
  return lines;
}

/** Sums over the last seconds before each; latency weighed by calls. */
function windowed(seconds: Map<number, Second> | undefined, first: number, end: number): Second[] {
  const found: Second[] = [];
  let [calls, errors, latency] = [0, 0, 0];
  const add = (second: number, sign: 1 | -1): void => {
    const one = seconds?.get(second);
    if (!one) return;
    calls += sign * one.calls;
    errors += sign * one.errors;
    latency += sign * one.latency * one.calls;
  };
  for (let second = first - SMOOTHED + 1; second <= end; second++) {
    add(second, 1);
    add(second - SMOOTHED, -1);
    if (second >= first) found.push({ calls, errors, latency });
  }
  return found;
}

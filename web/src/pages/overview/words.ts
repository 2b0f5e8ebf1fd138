// How states are said, in which order they stand, and how they look.
import type { Look } from "../../ui";
import type { Counts } from "./types";

type Row = readonly [state: string, words: string, look: Look];

/** What is worst stands first: where space is short it is seen. */
export const NODES: readonly Row[] = [
  ["silent", "unreachable", "bad"],
  ["off", "off, confirmed", "warn"],
  ["draining", "draining", "warn"],
  ["shutting_down", "shutting down", "idle"],
  ["joining", "joining", "busy"],
  ["on_duty", "on duty", "good"],
  ["unknown", "in a state that this release does not know", "warn"],
  ["decommissioned", "drained", "idle"],
];

export const VMS: readonly Row[] = [
  ["failed", "failed", "bad"],
  ["silent", "on unreachable nodes", "bad"],
  ["paused", "paused", "bad"],
  ["unknown", "in a state that this release does not know", "warn"],
  ["pending", "waiting for a node", "warn"],
  ["placed", "placed", "busy"],
  ["creating", "being created", "busy"],
  ["starting", "starting", "busy"],
  ["moving", "moving", "busy"],
  ["stopping", "stopping", "busy"],
  ["deleting", "being deleted", "busy"],
  ["running", "running", "good"],
  ["stopped", "stopped", "idle"],
];

export const LABS: readonly Row[] = [
  ["waiting", "in the queue", "warn"],
  ["provisioning", "being prepared", "busy"],
  ["running", "running", "good"],
  ["stopping", "stopping", "busy"],
];

export const BLUEPRINTS: readonly Row[] = [
  ["failed", "failed", "bad"],
  ["waiting", "waiting", "warn"],
  ["changing", "changing", "busy"],
  ["removing", "being removed", "busy"],
  ["ready", "ready", "good"],
];

/** The states that there are, also those that this page does not know. */
export function rows(of: Counts, known: readonly Row[]): (readonly [...Row, number])[] {
  const names = new Set(known.map(([state]) => state));
  const found = known.flatMap(([state, words, look]) => (of[state] ? [[state, words, look, of[state]] as const] : []));
  const others = Object.entries(of).filter(([state]) => !names.has(state));
  return [...found, ...others.map(([state, n]) => [state, state.replaceAll("_", " "), "idle", n] as const)];
}

export const total = (of: Counts): number => Object.values(of).reduce((sum, n) => sum + n, 0);

/** 1536 → "1.5 KiB". */
export function bytes(size: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let step = 0;
  let rest = size;
  while (rest >= 1024 && step < units.length - 1) {
    rest /= 1024;
    step += 1;
  }
  return `${Number(rest.toFixed(rest < 10 ? 1 : 0))} ${units[step]}`;
}

/** Enough of a holder's id to tell it from the others. */
export const short = (holder: string): string => holder.slice(0, 8);

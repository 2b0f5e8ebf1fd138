// States in words and looks, and what is going on in a sentence.
import type { Look } from "../../ui";
import type { BlueprintView, Phase, SliceInstance, SliceSpec, SliceState, SliceStatus, Workload } from "./types";

export const PHASE_LOOK: Record<Phase, Look> = { ready: "good", changing: "busy", waiting: "warn", failed: "bad", removing: "idle" };

const STATES: Record<SliceState, readonly [look: Look, word: string]> = {
  LOAD: ["idle", "to be loaded"],
  LOADING: ["busy", "loading"],
  LOADED: ["busy", "loaded"],
  ACTIVATE: ["busy", "to be activated"],
  ACTIVATING: ["busy", "activating"],
  ACTIVE: ["good", "active"],
  DEACTIVATE: ["idle", "to be stopped"],
  DEACTIVATING: ["idle", "stopping"],
  UNLOAD: ["idle", "to be unloaded"],
  UNLOADING: ["idle", "unloading"],
  FAILED: ["bad", "failed"],
};

export const stateWord = (state: SliceState): string => STATES[state]?.[1] ?? state;

/** State of one instance: an active one whose process is restarting serves no calls. */
export function instanceState(one: SliceInstance): readonly [look: Look, word: string] {
  if (one.state === "ACTIVE" && !one.ready) return ["warn", "starting again"];
  return STATES[one.state] ?? ["idle", one.state];
}

export const WORKLOAD_LOOK: Record<Workload["phase"], Look> = {
  ready: "good",
  off: "idle",
  pending: "warn",
  updating: "busy",
  changing: "busy",
  deleting: "idle",
};

export const versionOf = (artifact: string): string => artifact.split(":")[2] ?? artifact;

/** 0.031 → "3.1 %". */
export function percent(share: number): string {
  return `${Number((share * 100).toFixed(share < 0.1 ? 2 : 1))} %`;
}

/** What happens to a slice now; empty: nothing. */
export function goingOn(slice: SliceStatus): string {
  const version = versionOf(slice.artifact);
  const wanted = slice.versions.find((one) => one.artifact === slice.artifact);
  const share = slice.weights[slice.artifact] ?? 0;
  if (slice.phase === "removing") return `goes: ${slice.detail}`;
  if (slice.phase === "failed") return slice.previous ? `rolled back: ${slice.detail}` : slice.detail;
  if (slice.phase === "ready") return slice.detail;
  if (slice.rollout?.paused || slice.rollout?.awaits_approval) return slice.detail;
  switch (slice.step) {
    case "canary":
      return slice.stage ? `canary at ${share} % (stage ${slice.stage} of ${slice.stages})` : `canary passed, all calls go to ${version}`;
    case "rolling":
      return `rolling to ${version}: ${wanted?.ready ?? 0}/${slice.wished}${slice.phase === "waiting" ? `; held: ${slice.detail}` : ""}`;
    case "standby":
      return `${version} starts alongside ${versionOf(slice.previous)}: ${wanted?.ready ?? 0}/${slice.wished}`;
    case "keeping":
      return `${version} serves, ${versionOf(slice.previous)} is kept until the rollout ends`;
    case "backing_out":
      return `rolling back: ${slice.detail}`;
    case "starting":
      return slice.phase === "waiting" ? slice.detail : `starting: ${slice.ready}/${slice.wished}`;
    default:
      return slice.detail;
  }
}

export const owner = (views: readonly BlueprintView[], base: string): BlueprintView | undefined =>
  views.find((view) => view.slices.some((spec) => spec.artifact.startsWith(`${base}:`)));

// A blueprint as its file could have it

/** In TOML, as the documentation writes it. */
export function asToml(slices: readonly SliceSpec[]): string {
  return slices.map(sliceToml).join("\n");
}

function sliceToml(spec: SliceSpec): string {
  const plain = Object.entries(spec).filter(([, value]) => !isTable(value));
  const tables = Object.entries(spec).filter(([, value]) => isTable(value));
  const lines = ["[[slices]]", ...plain.map(line)];
  for (const [name, value] of tables) lines.push("", `[slices.${key(name)}]`, ...Object.entries(value as object).map(line));
  return `${lines.join("\n")}\n`;
}

const isTable = (value: unknown): boolean => typeof value === "object" && value !== null && !Array.isArray(value);
const key = (name: string): string => (/^[A-Za-z0-9_-]+$/.test(name) ? name : text(name));
const line = ([name, value]: [string, unknown]): string => `${key(name)} = ${inline(value)}`;
/** TOML escapes as JSON does, and one character more. */
const text = (value: string): string => JSON.stringify(value).replaceAll("\u007f", "\\u007f");

function inline(value: unknown): string {
  if (typeof value === "string") return text(value);
  if (Array.isArray(value)) return `[${value.map(inline).join(", ")}]`;
  if (isTable(value)) {
    const fields = Object.entries(value as object).map(line);
    return fields.length ? `{ ${fields.join(", ")} }` : "{}";
  }
  return String(value);
}

export type DiffLine = readonly [sign: "+" | "−" | " ", text: string];

/** Lines of both, by their longest common part. */
export function diff(before: string, after: string): DiffLine[] {
  const old = before.split("\n");
  const now = after.split("\n");
  if (old.length * now.length > 4_000_000) return [...old.map((one) => ["−", one] as const), ...now.map((one) => ["+", one] as const)];
  const width = now.length + 1;
  const common = new Uint32Array((old.length + 1) * width);
  for (let i = old.length - 1; i >= 0; i--) {
    for (let j = now.length - 1; j >= 0; j--) {
      const here = i * width + j;
      common[here] = old[i] === now[j] ? (common[here + width + 1] ?? 0) + 1 : Math.max(common[here + width] ?? 0, common[here + 1] ?? 0);
    }
  }
  const found: DiffLine[] = [];
  let i = 0;
  let j = 0;
  while (i < old.length || j < now.length) {
    const here = i * width + j;
    if (i < old.length && j < now.length && old[i] === now[j]) {
      found.push([" ", old[i] ?? ""]);
      i++;
      j++;
    } else if (i < old.length && (j >= now.length || (common[here + width] ?? 0) >= (common[here + 1] ?? 0))) {
      found.push(["−", old[i++] ?? ""]);
    } else {
      found.push(["+", now[j++] ?? ""]);
    }
  }
  return found;
}

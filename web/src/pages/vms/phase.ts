// The phase of a machine, as the server makes it (hostler.engine.phase), from the records that events bring.
import type { Look } from "../../ui";
import type { MachineState } from "../../api-types";
import { PHASES, type Labels, type Phase, type VmRow } from "./types";

export interface VmRecord {
  id: string;
  name: string;
  org: string;
  project: string;
  spec: { cpus: number; memory_mib: number };
  deleting?: boolean;
  labels?: Labels;
  created_at: number;
  expires_at?: number | null;
}

export interface Handle {
  node?: string;
  state: MachineState;
  detail?: string;
  paused?: boolean;
  readiness?: { step: string } | null;
}

const BY_STATE: Record<string, Phase> = { deleting: "stopping", gone: "pending", arriving: "moving", departed: "moving" };
const WITHOUT_NODE = new Set(["pending", "gone"]);
const LONGEST = 160;

/** `silent`: the node is unreachable. `paused`: the guest is paused, though its process runs. */
function phaseOf(deleting: boolean, state: string | null, node: string | null, silent: boolean, paused: boolean): Phase {
  if (deleting) return "deleting";
  if (state === null) return "pending";
  if (node && silent && !WITHOUT_NODE.has(state)) return "silent";
  if (state === "running" && paused) return "paused";
  return BY_STATE[state] ?? PHASES.find((one) => one === state) ?? "unknown";
}

/** The row after its spec was written. */
export function rowOf(record: VmRecord, before: VmRow | undefined, silent: (node: string | null) => boolean): VmRow {
  const state = before?.state ?? null;
  const node = before?.node ?? null;
  const phase = phaseOf(record.deleting ?? false, state, node, silent(node), before?.phase === "paused");
  return {
    id: record.id,
    name: record.name,
    org: record.org,
    project: record.project,
    phase,
    state,
    node,
    available: phase === "running" && (before?.ready ?? false),
    ready: before?.ready,
    detail: before?.detail ?? "waits for its first placement",
    cpus: record.spec.cpus,
    memory_mib: record.spec.memory_mib,
    labels: record.labels ?? {},
    created_at: record.created_at,
    expires_at: record.expires_at ?? null,
  };
}

/** The row after its agent, or the leader, wrote what there is of it; null: nothing. */
export function seen(row: VmRow, handle: Handle | null, silent: (node: string | null) => boolean): VmRow {
  const state = handle?.state ?? null;
  const node = handle && !WITHOUT_NODE.has(handle.state) ? handle.node || null : null;
  const phase = phaseOf(row.phase === "deleting", state, node, silent(node), handle?.paused ?? false);
  const detail = phase === "silent" ? row.detail : (handle?.detail ?? "");
  const ready = handle?.readiness?.step === "available";
  return { ...row, phase, state, node, available: phase === "running" && ready, ready, detail: detail.length > LONGEST ? `${detail.slice(0, LONGEST - 1)}…` : detail };
}

const LOOKS: Record<Phase, Look> = {
  pending: "warn",
  placed: "busy",
  creating: "busy",
  starting: "busy",
  running: "good",
  paused: "bad",
  stopping: "busy",
  stopped: "idle",
  failed: "bad",
  deleting: "busy",
  moving: "busy",
  silent: "warn",
  unknown: "warn",
};
export const lookOf = (phase: Phase): Look => LOOKS[phase] ?? "idle";

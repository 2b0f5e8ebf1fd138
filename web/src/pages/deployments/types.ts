// What the API says of blueprints, slices and workloads, as far as this page shows it (docs/api.md).
export type Phase = "ready" | "changing" | "waiting" | "failed" | "removing";
export type Step = "starting" | "rolling" | "canary" | "standby" | "keeping" | "backing_out" | "failed" | "done" | "removing";
export type SliceState =
  | "LOAD"
  | "LOADING"
  | "LOADED"
  | "ACTIVATE"
  | "ACTIVATING"
  | "ACTIVE"
  | "DEACTIVATE"
  | "DEACTIVATING"
  | "UNLOAD"
  | "UNLOADING"
  | "FAILED";

export interface Reason {
  subject: string;
  why: string;
}

/** A slice of a blueprint; what is usual is left out. */
export interface SliceSpec {
  artifact: string;
  instances: number;
  callers?: "operators" | "everybody";
  [field: string]: unknown;
}

export interface BlueprintView {
  name: string;
  number: number;
  slices: SliceSpec[];
  phase: Phase;
  detail: string;
  instances: number;
  ready: number;
  settled: boolean;
  revision: number;
}

export interface VersionStatus {
  artifact: string;
  weight: number | null;
  ready: number;
  states: Partial<Record<SliceState, number>>;
  nodes: { node: string; instances: number; ready: number }[];
  more_nodes: number;
  failures: number;
  retry_at: number;
  given_up: boolean;
  why: string;
}

export interface Gate {
  max_error_rate: number;
  max_latency_ms: number | null;
  min_calls: number;
}

export type Order = "promote" | "pause" | "resume" | "approve" | "abort";

export interface Rollout {
  stages: { weight: number; hold: number }[];
  gate: Gate | null;
  bake: number;
  keep: number;
  started_at: number;
  changed_at: number;
  why: string;
  approval: "automatic" | "manual";
  paused: boolean;
  awaits_approval: boolean;
  /** Ordered, and not yet carried out by the leader. */
  ordered: "promote" | "abort" | null;
  ordered_by: string;
  /** Why the leader did not carry out the last promotion. */
  refused: string;
  actions: Order[];
}

export interface Alert {
  name: string;
  metric: string;
  above: number | null;
  below: number | null;
  after: number;
  firing: boolean;
  value: number | null;
  since: number | null;
  why: string;
  fired: number;
}

export interface SliceStatus {
  base: string;
  artifact: string;
  previous: string;
  phase: Phase;
  step: Step | null;
  strategy: "rolling" | "canary" | "blue-green";
  stage: number;
  stages: number;
  detail: string;
  wished: number;
  ready: number;
  leaving: number;
  failed: number;
  weights: Record<string, number>;
  versions: VersionStatus[];
  needs: string[];
  reasons: Reason[];
  since: number | null;
  rollout: Rollout | null;
  alerts: Alert[];
}

export interface BlueprintStatus {
  name: string;
  number: number;
  phase: Phase;
  detail: string;
  settled: boolean;
  slices: SliceStatus[];
  revision: number;
}

export interface VersionCalls {
  artifact: string;
  calls: number;
  errors: number;
  p95_ms: number;
  in_flight: number;
  since: number;
  at: number[];
  called: number[];
  failed: number[];
  latency_ms: number[];
}

export interface BlueprintCalls {
  name: string;
  now: number;
  kept: number;
  slices: { base: string; versions: VersionCalls[] }[];
}

export interface SliceInstance {
  instance: number;
  state: SliceState;
  ready: boolean;
  since: number;
  restarts: number;
  template: number;
  why: string;
}

export interface SliceView {
  node: string;
  artifact: string;
  state: SliceState;
  instances: SliceInstance[];
  methods: string[];
}

export interface EndpointView {
  artifact: string;
  method: string;
  instance: number;
  node: string;
  address: string;
  idempotent: boolean;
  streams: boolean;
}

export interface Planned {
  node: string;
  instances: number;
  why: string;
}

export interface SlicePlan {
  base: string;
  what: "add" | "upgrade" | "settings" | "scale" | "change" | "remove" | "keep";
  artifact: string;
  previous: string;
  instances: number;
  previous_instances: number;
  how: string;
  to_load: number;
  to_unload: number;
  to_move: number;
  load: Planned[];
  unload: Planned[];
  move: { source: string; target: string; instances: number; why: string }[];
  waiting: number;
  passed_over: Reason[];
}

export interface BlueprintPlan {
  name: string;
  slices: SlicePlan[];
  refused: string[];
  notes: string[];
  changes: boolean;
  revision: number;
}

export interface Fault {
  place: string;
  line: number;
  what: string;
}

export interface BlueprintRead {
  name: string;
  slices: SliceSpec[];
  faults: Fault[];
  /** Of a file of Aether's: what was left out. */
  warnings: Fault[];
}

export interface Revision {
  number: number;
  by: string;
  at: number;
  rollback_to: number;
  deleted: boolean;
  current: boolean;
  artifacts: Record<string, number>;
  slices: SliceSpec[];
}

export interface Artifact {
  artifact: string;
  file: string;
  sha256: string;
  size: number;
  module: string;
  requires: string[];
  published_at: number;
}

export interface Workload {
  name: string;
  org: string;
  project: string;
  enabled: boolean;
  instances: number;
  spec: { cpus: number; memory_mib: number; image?: string };
  phase: "ready" | "off" | "pending" | "updating" | "changing" | "deleting";
  detail: string;
  made: number;
  ready: number;
  updated: number;
  pending: number;
  leaving: number;
  settled: boolean;
  created_at: number;
  revision: number;
}

export interface WorkloadInstance {
  instance: string;
  vm: string;
  name: string;
  phase: string;
  node: string | null;
  updated: boolean;
  ready: boolean;
  leaving: boolean;
  detail: string;
  reasons: Reason[];
}

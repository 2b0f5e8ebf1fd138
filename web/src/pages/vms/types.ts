// What the API answers about machines (docs/api.md), as far as it is used here.

export const PHASES = ["pending", "placed", "creating", "starting", "running", "paused", "stopping", "stopped", "failed", "deleting", "moving", "silent", "unknown"] as const;
export type Phase = (typeof PHASES)[number];
export type Labels = Record<string, string>;

export interface VmRow {
  id: string;
  name: string;
  org: string;
  project: string;
  phase: Phase;
  /** What its agent saw last; null: nothing. */
  state: string | null;
  node: string | null;
  available: boolean;
  /** Whether its agent saw it available last, however silent its node is now; undefined: that is not known. Only here. */
  ready?: boolean | undefined;
  detail: string;
  cpus: number;
  memory_mib: number;
  labels: Labels;
  created_at: number;
  expires_at: number | null;
}

export interface Affinity {
  together: boolean;
  level: string;
  labels: Labels;
  required: boolean;
}

export interface Spec {
  cpus: number;
  memory_mib: number;
  disk_gib: number;
  image: string;
  user_data: string;
  network_config: string;
  ssh_keys: string[];
  user: string;
  cpu_share: number;
  origin: { vm: string; snapshot: string } | null;
}

export interface Vm extends Omit<VmRow, "state" | "cpus" | "memory_mib"> {
  spec: Spec;
  power: "on" | "off";
  address: string;
  on_node_loss: "wait" | "fence" | "recreate";
  disk_since: number;
  retained: { node: string; name: string; retained_at: number }[];
  warnings?: string[];
  affinity: Affinity[];
  node_labels: Labels;
  at_next_boot: string[];
  snapshots: Record<string, { state: "ready" | "failed"; taken_at: number; detail: string } | null>;
  restore: { snapshot: string; number: number } | null;
  move: { to: string; number: number; stop: boolean } | null;
  moved: number;
  readiness: { step: "booting" | "network" | "ssh" | "available"; since: number; cause: string } | null;
  access: { host: string; port: number; user: string; host_keys: string[] } | null;
  settled: boolean;
  generation: number;
  revision: number;
}

export interface Why {
  phase: Phase;
  node: string | null;
  decided: { subject: string; why: string }[];
  nodes: { node: string; fits: boolean; score: number; reasons: string[] }[];
}

export interface Quota {
  limits: { vms: number | null; cpus: number | null; memory_mib: number | null; disk_gib: number | null };
  /** Of its org, which bound the project as well. */
  inherited: Quota["limits"];
  used_vms: number;
  used: { cpus: number; memory_mib: number; disk_gib: number };
  revision: number;
}

export interface Image {
  name: string;
  nodes: number;
  default: boolean;
  memory_mib: number;
  disk_gib: number;
  user: string;
  /** `cloud-init`, `firmware` (scripts only) or `none`; empty: not known. */
  seeding: string;
}

export interface Images {
  items: Image[];
  any: boolean;
}

export type { Trace } from "../../why";

export interface Ticket {
  ticket: string;
  url: string;
}
